//! The bounds by degree: what one rank must receive, or send, over its own links.
//!
//! A rank's links are put into groups that share a resource, each link into one group. A group delivers no more than
//! its links together, and no more than its resource. This holds for any choice of groups; each link joins the group of
//! its resource that most of the rank's links use. In whole chunks of b bytes, a link delivers at most ⌊(T − α) /
//! (β·b)⌋ by time T if messages merge, and ⌊T / (α + β·b)⌋ if each carries one chunk and α occupies.

use super::{Bound, Certificate, LinkGroup, Scope, WholeChunks, capacity::capacity, classes::RankClasses};
use crate::problem::Problem;
use schedule::{Chunk, ChunkId, RankSet};
use std::collections::BTreeMap;
use topology::{Latency, LinkId, Micros, MicrosPerByte, Rank, ResourceId, Topology};

/// A side of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// What the rank receives.
    Ingress,
    /// What the rank sends.
    Egress,
}

/// The least that a rank must move over its links.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LeastTraffic {
    chunks: i64,
    bytes: f64,
}

impl LeastTraffic {
    fn add(&mut self, other: Self, sign: f64) {
        self.chunks += if sign < 0.0 { -other.chunks } else { other.chunks };
        self.bytes += sign * other.bytes;
    }

    /// A key that is equal for equal amounts.
    pub(super) fn key(self) -> (i64, u64) {
        (self.chunks, self.bytes.to_bits())
    }
}

/// For each scope, the strongest bound over all ranks.
pub(super) fn degree(problem: &Problem, classes: &RankClasses, side: Side) -> Vec<Bound> {
    let least_traffic = classes.least_traffic(side);
    let uniform = problem.demand.chunks().iter().all(|chunk| chunk.bytes.is_none());
    let mut best: BTreeMap<Scope, (Micros, Rank)> = BTreeMap::new();
    for rank in classes.split(problem.topology.ranks()).0 {
        let LeastTraffic { chunks, bytes } = least_traffic[rank.index()];
        let Some(chunks) = u64::try_from(chunks).ok().filter(|&chunks| chunks > 0) else { continue };
        let links = links(problem, rank, side);
        let mut offer = |scope, beats: &dyn Fn(Micros) -> bool, value: &dyn Fn() -> Micros| {
            if best.get(&scope).is_none_or(|best: &(Micros, Rank)| beats(best.0)) {
                best.insert(scope, (value(), rank));
            }
        };
        let value = continuous(&problem.topology, &links, bytes);
        offer(Scope::AnyChunking, &|best| value > best, &|| value);
        if uniform {
            let groups = RankLinkGroups::new(problem, &links);
            for (scope, merging) in [(Scope::ThisChunking, Merging::Any), (Scope::OneChunkPerMessage, Merging::None)] {
                // Most ranks have no later bound than the latest so far; this cheap test finds out.
                let later = |best: Micros| groups.passed(best.0, chunks, merging) < chunks;
                offer(scope, &later, &|| groups.earliest(chunks, merging));
            }
        }
    }
    let bound = |(scope, (value, rank))| Bound {
        name: if side == Side::Ingress { "ingress" } else { "egress" },
        scope,
        value,
        certificate: certificate(problem, (rank, side), scope, least_traffic[rank.index()].chunks),
    };
    best.into_iter().map(bound).collect()
}

fn links(problem: &Problem, rank: Rank, side: Side) -> Vec<LinkId> {
    let links = match side {
        Side::Ingress => problem.topology.incoming(rank),
        Side::Egress => problem.topology.outgoing(rank),
    };
    links.iter().copied().filter(|&link| problem.allows_link(link)).collect()
}

fn certificate(problem: &Problem, (rank, side): (Rank, Side), scope: Scope, chunks: i64) -> Certificate {
    let ranks = match side {
        Side::Egress => vec![rank],
        Side::Ingress => problem.topology.ranks().filter(|&other| other != rank).collect(),
    };
    let links = links(problem, rank, side);
    let whole = || WholeChunks {
        chunks: chunks.unsigned_abs(),
        chunk_bytes: problem.demand.chunk_bytes(),
        merged: scope == Scope::ThisChunking,
        groups: RankLinkGroups::new(problem, &links).groups.into_iter().map(|group| group.of).collect(),
    };
    Certificate::Cut {
        ranks,
        capacity: MicrosPerByte(1.0 / capacity(&problem.topology, &links)),
        tail: None,
        whole: (scope != Scope::AnyChunking).then(whole),
    }
}

/// The ranks that must receive or send a chunk, unless they are [`spared`].
fn concerned(chunk: &Chunk, side: Side) -> &RankSet {
    match side {
        Side::Ingress => &chunk.wanted_by,
        Side::Egress => &chunk.holders,
    }
}

/// How much every rank must receive or send in any schedule.
pub(super) fn least_traffic(problem: &Problem, side: Side) -> Vec<LeastTraffic> {
    let demand = &*problem.demand;
    let mut least_traffic = vec![LeastTraffic::default(); problem.topology.rank_count()];
    let mut first = 0;
    // Chunks that all ranks want share one list of ranks, so that they are summed before they are added to each rank.
    for run in demand.chunks().chunk_by(|a, b| concerned(a, side).as_ptr() == concerned(b, side).as_ptr()) {
        let mut all = LeastTraffic::default();
        for (chunk, id) in run.iter().zip(first..) {
            let one = LeastTraffic { chunks: 1, bytes: demand.bytes_of(ChunkId(id)).0 };
            let Some(spared) = spared(chunk, side) else { continue };
            all.add(one, 1.0);
            for &rank in spared {
                least_traffic[rank.index()].add(one, -1.0);
            }
        }
        concerned(&run[0], side).iter().for_each(|rank| least_traffic[rank.index()].add(all, 1.0));
        first += run.len() as u32;
    }
    least_traffic
}

/// Of the ranks that want (or hold) a chunk, those that need not receive (or send) it; `None` if none of them must.
fn spared(chunk: &Chunk, side: Side) -> Option<Vec<&Rank>> {
    let (holders, wanted_by) = (&chunk.holders, &chunk.wanted_by);
    let both = || holders.iter().filter(|&&rank| wanted_by.has(rank));
    Some(match (side, chunk.combine) {
        (Side::Ingress, false) => both().collect(),
        (Side::Ingress, true) if holders.len() == 1 => both().collect(),
        (Side::Egress, true) if wanted_by.len() == 1 => both().collect(),
        (Side::Egress, true) if wanted_by.is_empty() => return None,
        (Side::Egress, false) if holders.len() > 1 => return None,
        (Side::Egress, false) if wanted_by.iter().all(|rank| holders.has(*rank)) => return None,
        _ => Vec::new(),
    })
}

/// The earliest time at which `bytes` have passed, however they are cut.
fn continuous(topology: &Topology, links: &[LinkId], bytes: f64) -> Micros {
    let alpha = links.iter().map(|&link| topology.link(link).alpha.0).fold(f64::INFINITY, f64::min);
    let rate = capacity(topology, links);
    // Without links the demand is infeasible, which is reported elsewhere.
    if rate > 0.0 { Micros(alpha + bytes / rate) } else { Micros::ZERO }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Merging {
    Any,
    None,
}

/// The pace of a link or a resource: its k-th use ends at `first` + k·`each`.
#[derive(Clone, Copy, Debug)]
struct Pace {
    first: f64,
    each: f64,
}

impl Pace {
    /// The pace of a link or resource with the given α that needs `beta_time` for the bytes of one chunk.
    fn new(alpha: f64, beta_time: f64, latency: Latency, merging: Merging) -> Self {
        match (latency, merging) {
            (Latency::Occupies, Merging::None) => Self { first: 0.0, each: alpha + beta_time },
            _ => Self { first: alpha, each: beta_time },
        }
    }

    /// How many uses end by `time`, at most `enough`.
    fn uses(self, time: f64, enough: u64) -> u64 {
        // A use that ends slightly after `time` counts as well: rounding errs towards a smaller bound.
        let time = time * (1.0 + 1e-12) - self.first;
        match self.each > 0.0 {
            _ if time < 0.0 => 0,
            true => ((time / self.each) as u64).min(enough),
            false => enough,
        }
    }
}

/// The links of one rank, in groups that share a resource.
struct RankLinkGroups {
    groups: Vec<GroupPaces>,
}

/// Some links, with the paces of the shared resource and of each link.
struct GroupPaces {
    of: LinkGroup,
    shared: Option<Paces>,
    own: Vec<Paces>,
}

/// The pace with merged messages and with single chunks.
#[derive(Clone, Copy, Debug)]
struct Paces {
    merged: Pace,
    single: Pace,
}

impl Paces {
    fn new(alpha: f64, beta_time: f64, latency: Latency) -> Self {
        let pace = |merging| Pace::new(alpha, beta_time, latency, merging);
        Self { merged: pace(Merging::Any), single: pace(Merging::None) }
    }

    fn of(&self, merging: Merging) -> Pace {
        match merging {
            Merging::Any => self.merged,
            Merging::None => self.single,
        }
    }
}

/// Links in groups: those of the resource that most of them use, and those without a resource.
pub(super) fn by_resource(topology: &Topology, links: &[LinkId]) -> BTreeMap<Option<ResourceId>, Vec<LinkId>> {
    let mut users: BTreeMap<ResourceId, u32> = BTreeMap::new();
    for resource in links.iter().flat_map(|&link| topology.link(link).resources.iter()) {
        *users.entry(*resource).or_default() += 1;
    }
    let mut members: BTreeMap<Option<ResourceId>, Vec<LinkId>> = BTreeMap::new();
    for &link in links {
        let busiest = topology.link(link).resources.iter().copied().max_by_key(|resource| users[resource]);
        members.entry(busiest).or_default().push(link);
    }
    members
}

impl RankLinkGroups {
    fn new(problem: &Problem, links: &[LinkId]) -> Self {
        let (topology, bytes) = (&*problem.topology, problem.demand.chunk_bytes());
        let members = by_resource(topology, links);
        let group = |(resource, members): (Option<ResourceId>, Vec<LinkId>)| {
            let links = members.iter().map(|&id| topology.link(id));
            let alpha = links.clone().map(|link| link.alpha.0).fold(f64::INFINITY, f64::min);
            let occupies = links.clone().all(|link| link.latency == Latency::Occupies);
            let latency = if occupies { Latency::Occupies } else { Latency::Pipelines };
            let shared = resource.map(|id| Paces::new(alpha, topology.resource(id).byte_time(bytes).0, latency));
            let own = links.map(|link| Paces::new(link.alpha.0, link.byte_time(bytes).0, link.latency)).collect();
            GroupPaces { of: LinkGroup { resource, links: members }, shared, own }
        };
        Self { groups: members.into_iter().map(group).collect() }
    }

    /// The most chunks that can have passed by `time`.
    fn passed(&self, time: f64, enough: u64, merging: Merging) -> u64 {
        let group = |GroupPaces { shared, own, .. }: &GroupPaces| {
            let own = own.iter().map(|paces| paces.of(merging).uses(time, enough)).sum::<u64>();
            shared.map_or(own, |shared| own.min(shared.of(merging).uses(time, enough)))
        };
        self.groups.iter().map(group).sum()
    }

    /// The earliest time by which `chunks` can have passed.
    fn earliest(&self, chunks: u64, merging: Merging) -> Micros {
        let all = || self.groups.iter().flat_map(|group| group.shared.iter().chain(&group.own));
        let paces = || all().map(|paces| paces.of(merging));
        let latest = |pace: Pace| pace.first + chunks as f64 * pace.each;
        let (mut early, mut late) = (0.0, paces().map(latest).fold(0.0, f64::max));
        if self.passed(late, chunks, merging) < chunks {
            return Micros::ZERO;
        }
        for _ in 0..64 {
            let middle = 0.5 * (early + late);
            if self.passed(middle, chunks, merging) < chunks {
                early = middle;
            } else {
                late = middle;
            }
        }
        // The result is the end of some use: the last such instant up to `late`, except for rounding.
        let used = paces().map(|pace| (pace, pace.uses(late, chunks))).filter(|&(_, uses)| uses > 0);
        Micros(used.map(|(pace, uses)| pace.first + uses as f64 * pace.each).fold(0.0, f64::max))
    }
}
