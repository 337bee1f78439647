//! Tables that all restarts share: which rank accepts which chunk, which link may carry it, and distances.
//!
//! The principal type is [`Instance`]. A rank accepts a chunk if it wants the chunk, or if it is a relay: a path to a
//! rank that wants the chunk leads through it. Relays are chosen here, once, so that the matching treats relays and
//! destinations alike. Copies to relays that turn out to be useless are pruned afterwards.

use crate::ordering::bits::BitMatrix;
use crate::problem::distance::{LimitedPaths, PathTree};
use crate::problem::reach::check_reachable;
use crate::problem::{Deadline, Problem, SynthError};
use crate::symmetry::Mirror;
use schedule::{Chunk, ChunkId, Demand, RankSet};
use topology::{Bytes, LinkId, Micros, Rank, Topology};

/// The most ranks for which all distances are computed: for more, the lookahead costs more than it gains.
const LOOKAHEAD_RANKS: usize = 64;
/// The most entries of a rank × chunk table of distances (4 MiB of `f32`).
const LOOKAHEAD_ENTRIES: usize = 1 << 20;

/// The tables of one problem.
pub(super) struct Instance<'a> {
    /// The deadline of the searches.
    pub(super) deadline: Deadline,
    /// Repeats each decision for the images of links and chunks.
    pub(super) mirror: Mirror,
    pub(super) problem: &'a Problem,
    pub(super) topology: &'a Topology,
    pub(super) demand: &'a Demand,
    /// By rank and chunk: held from the start.
    pub(super) initial: BitMatrix,
    /// By rank and chunk: wanted, or useful to relay.
    pub(super) accepts: BitMatrix,
    /// By link and chunk: whether the chunk may use the link; only where a sketch reserves links for owners.
    pub(super) allowed: Option<BitMatrix>,
    /// By rank and rank: the time of one chunk over a shortest path; `None` where there are too many entries.
    pub(super) distance: Option<Vec<f32>>,
    /// The largest finite distance; 1 where there is none, so that it can be a divisor.
    pub(super) diameter: f32,
}

impl<'a> Instance<'a> {
    /// The tables of `problem`, for a search whose messages `mirror` repeats.
    ///
    /// # Errors
    /// [`SynthError::Infeasible`] if no allowed path leads from a holder to a rank that wants the chunk;
    /// [`SynthError::NothingYet`] if the deadline passes meanwhile.
    pub(super) fn new(problem: &'a Problem, mirror: Mirror, deadline: &Deadline) -> Result<Self, SynthError> {
        check_reachable(problem)?;
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let (ranks, chunks) = (topology.rank_count(), demand.chunks().len());
        let mut initial = BitMatrix::new(ranks, chunks);
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            chunk.holders.iter().for_each(|holder| initial.set(holder.index(), id.index()));
        }
        let allowed = (!problem.constraints.owners.is_empty()).then(|| {
            let mut allowed = BitMatrix::new(topology.links().len(), chunks);
            for link in topology.link_ids() {
                let may = demand.chunk_ids().filter(|&chunk| problem.allows(chunk, link));
                may.for_each(|chunk| allowed.set(link.index(), chunk.index()));
            }
            allowed
        });
        let accepts = acceptance(problem, deadline)?;
        let affordable = ranks <= LOOKAHEAD_RANKS && ranks * chunks <= LOOKAHEAD_ENTRIES;
        let distance = affordable.then(|| distances(problem));
        let finite = distance.iter().flatten().copied().filter(|distance| distance.is_finite());
        let diameter = Some(finite.fold(0.0, f32::max)).filter(|&diameter| diameter > 0.0).unwrap_or(1.0);
        Ok(Self {
            deadline: deadline.clone(),
            mirror,
            problem,
            topology,
            demand,
            initial,
            accepts,
            allowed,
            distance,
            diameter,
        })
    }

    /// The time from the start of a message of one chunk to its arrival.
    pub(super) fn duration(&self, link: LinkId, chunk: ChunkId) -> Micros {
        self.topology.link(link).transfer_time(self.demand.bytes_of(chunk))
    }
}

/// By rank and chunk: whether the rank should receive the chunk.
fn acceptance(problem: &Problem, deadline: &Deadline) -> Result<BitMatrix, SynthError> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let mut accepts = BitMatrix::new(topology.rank_count(), demand.chunks().len());
    let mut previous: Option<(&Chunk, Vec<Rank>)> = None;
    let mut shortest = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        // The C chunks of one rank follow each other and have the same rules.
        let acceptors = match previous.take() {
            Some((like, acceptors)) if like == chunk => acceptors,
            _ if chunk.wanted_by.len() == topology.rank_count() => topology.ranks().collect(),
            // Small tables are always completed, so that there is always some schedule.
            _ if id.0 % 1024 == 1023 && deadline.has_passed() => return Err(SynthError::NothingYet),
            _ => acceptors(problem, id, &mut shortest),
        };
        acceptors.iter().for_each(|rank| accepts.set(rank.index(), id.index()));
        previous = Some((chunk, acceptors));
    }
    Ok(accepts)
}

/// The shortest paths of a chunk, kept for the next chunks with the same holders.
struct Shortest {
    holders: RankSet,
    bytes: Bytes,
    paths: PathTree,
}

/// The ranks that want `chunk`, and the relays of a tree that reaches them. A path through ranks that want the chunk is
/// preferred to one through others, unless it is much longer.
fn acceptors(problem: &Problem, id: ChunkId, shortest: &mut Option<Shortest>) -> Vec<Rank> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let chunk = demand.chunk(id);
    let bytes = demand.bytes_of(id);
    let mut accepts = vec![false; topology.rank_count()];
    chunk.wanted_by.iter().for_each(|rank| accepts[rank.index()] = true);
    let length = |link: LinkId| {
        let time = topology.link(link).transfer_time(bytes).0;
        problem.allows(id, link).then(|| time.max(f64::MIN_POSITIVE))
    };
    let mut accept = |path: Vec<LinkId>| path.iter().for_each(|&link| accepts[topology.link(link).to.index()] = true);
    if problem.constraints.limits_ways() {
        // Where the sketch limits ways, only permitted paths are sure to be useful.
        let permitted = LimitedPaths::new(problem, chunk.holders.iter().copied(), length);
        chunk.wanted_by.iter().for_each(|&rank| accept(permitted.path_to(rank)));
    } else {
        let through_wanting = through_wanting(problem, chunk, length);
        let alike = |known: &Shortest| known.holders == chunk.holders && known.bytes == bytes;
        // Where links are reserved for owners, every chunk has its own paths.
        if !problem.constraints.owners.is_empty() || !shortest.as_ref().is_some_and(alike) {
            let paths = PathTree::new(topology, chunk.holders.iter().copied(), length);
            *shortest = Some(Shortest { holders: chunk.holders.clone(), bytes, paths });
        }
        let anywhere = &shortest.as_ref().expect("it was just put there").paths;
        for (&rank, through) in chunk.wanted_by.iter().zip(through_wanting) {
            // A detour of more than half the direct path costs more than a relay.
            if through > 1.5 * anywhere.distance[rank.index()] {
                accept(anywhere.path_to(topology, rank));
            }
        }
    }
    topology.ranks().filter(|rank| accepts[rank.index()]).collect()
}

/// For each rank that wants `chunk`, its distance over ranks that want the chunk.
fn through_wanting(problem: &Problem, chunk: &Chunk, length: impl Fn(LinkId) -> Option<f64>) -> Vec<f64> {
    let topology = &*problem.topology;
    if let [rank] = chunk.wanted_by[..] {
        // A chunk that one rank wants needs no search: only links from a holder count.
        let direct = topology.incoming(rank).iter().filter(|&&id| chunk.holders.has(topology.link(id).from));
        let nearest = direct.filter_map(|&id| length(id)).fold(f64::INFINITY, f64::min);
        return vec![if chunk.holders.has(rank) { 0.0 } else { nearest }];
    }
    let paths = PathTree::new(topology, chunk.holders.iter().copied(), |link| {
        chunk.wanted_by.has(topology.link(link).to).then(|| length(link)).flatten()
    });
    chunk.wanted_by.iter().map(|rank| paths.distance[rank.index()]).collect()
}

/// By rank and rank: the time of one chunk over a shortest path of allowed links.
fn distances(problem: &Problem) -> Vec<f32> {
    let (topology, bytes) = (&*problem.topology, problem.demand.chunk_bytes());
    let length = |link: LinkId| problem.allows_link(link).then(|| topology.link(link).transfer_time(bytes).0);
    let mut table = Vec::with_capacity(topology.rank_count() * topology.rank_count());
    for rank in topology.ranks() {
        table.extend(PathTree::new(topology, [rank], length).distance.iter().map(|&distance| distance as f32));
    }
    table
}
