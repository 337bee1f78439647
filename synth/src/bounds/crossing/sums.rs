//! Sums that several ranks want: what must come into a set of ranks for one of them.
//!
//! The principal type is [`SharedSums`]. A rank of the set needs what the contributors outside of it add up to. Either all of it crosses
//! in one message, which leaves when its sender can have all of it. Or parts of it cross in several messages. Then one of them has what
//! the farthest rank contributes, and at least one more has something: two messages are counted. How many chunks cross in parts is open,
//! so each number is a case, and a time is refuted if it is in all cases.
//!
//! The time at which a sender can have the sums of some chunks is found in the same way, and so is the time at which it can have what the
//! farthest rank contributes to some. Where a sender receives over one server, that server and those that it sends over are decided
//! together ([`super::relay`]), up to three in a row. Turned around in time, on the reversed machine, all of this holds for what must
//! leave a set.

use super::batches::{CountSpace, Server};
use super::distances::Distances;
use super::relay::relayed;
use super::side::{ChunkClass, ServedLinks, SetCrossing};
use crate::problem::Problem;
use schedule::{ChunkId, RankSet};
use std::collections::BTreeMap;
use std::rc::Rc;
use topology::{Bytes, Rank};

/// From sender to sender, so often it is counted what each must collect before.
const DEPTH: u32 = 2;
/// With more chunks, nothing is tried.
const MOST_CHUNKS: usize = 64;

/// The ranks over which contributions come, the rank that they come to, the only one that counts, and how often senders are counted.
type CollectedKey = (Rc<[bool]>, Rank, Option<Rank>, u32);

/// Chunks that the same ranks contribute to, and that the same ranks want.
pub(super) struct SharedSums {
    chunks: Vec<ChunkId>,
    bytes: Bytes,
    ranks: RankSet,
    /// For each number of chunks that cross in parts, the combinations of what crosses.
    spaces: Vec<Rc<CountSpace>>,
    /// For each number of chunks, when a rank can have that many sums, or what one rank contributes to them, over the ranks of a set only.
    collected: BTreeMap<CollectedKey, Rc<[f64]>>,
}

/// What a look at a table of distances costs, in pairs of combinations and parts of them.
const LOOK: f64 = 100.0;

/// How many chunks cross in parts, and what that makes cross.
struct PartedCase {
    parted: usize,
    /// The only rank whose contributions count, or `None` if all do.
    only: Option<Rank>,
    /// The rank whose contribution is in the first part of what crosses in parts.
    far: Rank,
    space: Rc<CountSpace>,
    /// What crosses whole, the first parts, and what is left of the others.
    classes: Vec<ChunkClass>,
}

impl SharedSums {
    /// `None` unless all chunks are such sums, alike and not too many, and exactly their contributors want them.
    pub(super) fn of(problem: &Problem, most_pairs: f64) -> Option<Self> {
        let demand = &*problem.demand;
        let first = demand.chunks().first()?;
        let bytes = demand.bytes_of(demand.chunk_ids().next()?);
        let is_alike = |(id, chunk): (ChunkId, &schedule::Chunk)| {
            chunk.holders == first.holders && chunk.wanted_by == first.holders && demand.bytes_of(id) == bytes
        };
        let alike = first.is_sum() && demand.chunk_ids().zip(demand.chunks()).all(is_alike);
        let ranks = first.holders.clone();
        let chunks: Vec<ChunkId> = demand.chunk_ids().collect();
        let counts = |parted: usize| vec![(chunks.len() - parted) as u32, parted as u32, parted as u32];
        let few = |parted| CountSpace::pairs(&counts(parted)) <= most_pairs;
        if !alike || chunks.len() > MOST_CHUNKS || !(0..=chunks.len()).all(few) {
            return None;
        }
        let spaces = (0..=chunks.len()).map(|parted| Rc::new(CountSpace::new(counts(parted)))).collect();
        Some(Self { chunks, bytes, ranks, spaces, collected: BTreeMap::new() })
    }

    /// For each rank of a set that wants the sums, what must cross into the set for it.
    pub(super) fn crossings(&mut self, inside: &[bool], distances: &mut Distances<'_>) -> Vec<SetCrossing> {
        let outside: Rc<[bool]> = inside.iter().map(|inside| !inside).collect();
        let across = ServedLinks::into(distances.problem, &outside, inside);
        let ranks: Vec<Rank> = distances.problem.topology.ranks().filter(|rank| inside[rank.index()]).collect();
        let targets: Vec<Rank> = ranks.iter().copied().filter(|&rank| self.ranks.has(rank)).collect();
        let mut found = Vec::new();
        for target in targets {
            let on = distances.to(target, self.bytes);
            let ways = ContributionWays::new(self, &across, &outside, None, distances);
            let case = |parted| ways.as_ref().and_then(|ways| ways.case(self, parted, &across, Some(&on), distances));
            let cases: Option<Vec<PartedCase>> = (0..self.spaces.len()).map(case).collect();
            let Some(cases) = cases else { return found };
            let cases = cases.into_iter().map(|case| {
                let servers = self.servers(&case, &across, &outside, DEPTH, distances);
                (case.space, servers)
            });
            let cases = cases.collect();
            // What was not finished may be too late.
            if distances.left <= 0.0 {
                return found;
            }
            found.push(SetCrossing::of_sums(ranks.clone(), target, self.chunks.clone(), cases));
        }
        found
    }

    /// The servers of a case, where each sender must first collect what crosses whole, and what the farthest rank contributes to the first
    /// parts.
    fn servers(
        &mut self,
        case: &PartedCase,
        across: &[ServedLinks],
        among: &Rc<[bool]>,
        depth: u32,
        distances: &mut Distances<'_>,
    ) -> Vec<Server> {
        let problem = distances.problem;
        let space = &case.space;
        distances.left -= space.work() * across.len() as f64;
        let mut of: BTreeMap<Option<Rank>, Vec<Server>> = BTreeMap::new();
        for (at, links) in across.iter().enumerate() {
            let sender = links.only_sender(problem).filter(|_| depth > 0);
            of.entry(sender).or_default().push(links.server(problem, space, &case.classes, at));
        }
        let mut all = Vec::new();
        for (sender, mut next) in of {
            // Without more work, senders have everything as soon as it can come to them.
            if let Some(sender) = sender.filter(|_| distances.left > 0.0) {
                let whole_times = self.collected(sender, among, case.only, depth - 1, distances);
                let far = Some(case.far).filter(|&far| far != sender && case.parted > 0);
                let far_times = far.map(|far| self.collected(sender, among, Some(far), depth - 1, distances));
                let ready = space.table(|digits| {
                    let (whole, first_parts) = (digits[0] as usize, digits[1] as usize);
                    far_times.as_ref().map_or(0.0, |times| times[whole + first_parts]).max(whole_times[whole])
                });
                for server in &mut next {
                    server.ready.iter_mut().zip(&ready).for_each(|(mine, ready)| *mine = mine.max(*ready));
                }
                if let Some(known) = self.known_of(sender, case, &next, (among, depth - 1), distances) {
                    next = vec![Server::as_one(next, known)];
                }
            }
            all.extend(next);
        }
        all
    }

    /// For each combination, when the `next` servers of a sender can have carried it, where it receives over one server and from one
    /// rank only. Of a chunk that is whole here and has come in parts, the last part counts: when it came, all of it had been at that rank.
    fn known_of(
        &mut self,
        sender: Rank,
        case: &PartedCase,
        next: &[Server],
        (among, depth): (&Rc<[bool]>, u32),
        distances: &mut Distances<'_>,
    ) -> Option<Vec<f64>> {
        let problem = distances.problem;
        let (before, links) = ServedLinks::to_one(problem, among, sender);
        // From several senders, parts of what crosses whole may come in messages of their own.
        let [_] = links.iter().map(|links| links.only_sender(problem)).collect::<Option<Vec<Rank>>>()?[..] else {
            return None;
        };
        let mut ways = ContributionWays::new(self, &links, &before, case.only, distances)?;
        let is_here = case.far == sender;
        if !is_here {
            ways.far = case.far;
        }
        let case_before = ways.case(self, case.parted, &links, None, distances)?;
        let into = self.servers(&case_before, &links, &before, depth, distances);
        let [into] = &into[..] else { return None };
        // Of a server that stands for several it is not known how long it is busy.
        if !into.is_one {
            return None;
        }
        let next: Vec<&Server> = next.iter().collect();
        let relayed = relayed(&case.space, into, &next, &[false, is_here, true], &mut distances.left)?;
        let alone = case.space.earliest_end(&next);
        Some(relayed.into_iter().zip(alone).map(|(relayed, alone)| relayed.max(alone)).collect())
    }

    /// For each number of chunks, when a rank can have so many sums of what the ranks of `among` contribute, over these only. With
    /// `only`, what this rank contributes instead.
    fn collected(
        &mut self,
        at: Rank,
        among: &Rc<[bool]>,
        only: Option<Rank>,
        depth: u32,
        distances: &mut Distances<'_>,
    ) -> Rc<[f64]> {
        let key = (among.clone(), at, only, depth);
        if let Some(known) = self.collected.get(&key) {
            return known.clone();
        }
        let (before, links) = ServedLinks::to_one(distances.problem, among, at);
        let all = self.chunks.len();
        let mut earliest = vec![f64::INFINITY; all + 1];
        earliest[0] = 0.0;
        let ways = ContributionWays::new(self, &links, &before, only, distances);
        // There is nothing to wait for, or no time to find out for how long.
        if ways.is_none() {
            earliest.fill(0.0);
        }
        // What one rank contributes has no parts.
        let cases = if only.is_some() { 1 } else { self.spaces.len() };
        for parted in 0..cases {
            let case = ways.as_ref().and_then(|ways| ways.case(self, parted, &links, None, distances));
            let Some(case) = case else {
                earliest.fill(0.0);
                break;
            };
            let servers = self.servers(&case, &links, &before, depth, distances);
            let table = case.space.earliest(&servers);
            for (state, &time) in table.iter().enumerate() {
                let digits = case.space.digits(state);
                if digits[1] == digits[2] {
                    let count = (digits[0] + digits[1]) as usize;
                    earliest[count] = earliest[count].min(time);
                }
            }
        }
        let earliest: Rc<[f64]> = earliest.into();
        self.collected.insert(key, earliest.clone());
        earliest
    }
}

/// How far contributions have to go to what sends them across.
struct ContributionWays {
    only: Option<Rank>,
    /// For each rank, the time until all contributions can be there.
    whole: Vec<f64>,
    /// For each rank, the time until one can be there.
    some: Vec<f64>,
    /// The rank whose contributions have the farthest way.
    far: Rank,
    /// For each contributor the time until its contributions can be at each rank.
    from: BTreeMap<Rank, Rc<[f64]>>,
}

impl ContributionWays {
    /// Over the ranks of `among`; `None` where nobody there contributes, or there is no time.
    fn new(
        sums: &SharedSums,
        across: &[ServedLinks],
        among: &Rc<[bool]>,
        only: Option<Rank>,
        distances: &mut Distances<'_>,
    ) -> Option<Self> {
        let problem = distances.problem;
        let counts = |rank: &Rank| among[rank.index()] && only.is_none_or(|only| only == *rank);
        let contributors = sums.ranks.iter().copied().filter(counts);
        let from: BTreeMap<Rank, Rc<[f64]>> =
            contributors.map(|rank| (rank, distances.from(among, &RankSet::one(rank), sums.bytes))).collect();
        distances.left -= LOOK * from.len() as f64;
        if from.is_empty() || distances.left <= 0.0 {
            return None;
        }
        let at = |of: fn(f64, f64) -> f64, start: f64| -> Vec<f64> {
            (0..among.len()).map(|rank| from.values().map(|from| from[rank]).fold(start, of)).collect()
        };
        let nearest = |from: &Rc<[f64]>| {
            across
                .iter()
                .map(|links| links.least(problem, |link| from[link.from.index()]))
                .fold(f64::INFINITY, f64::min)
        };
        let far_ways = from.iter().map(|(&rank, from)| (nearest(from), rank));
        let (_, far) = far_ways.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Self { only, whole: at(f64::max, 0.0), some: at(f64::min, f64::INFINITY), far, from })
    }

    /// What crosses over `across` where `parted` chunks cross in parts, with `on` as the ways behind; `None` if there is no time.
    fn case(
        &self,
        sums: &SharedSums,
        parted: usize,
        across: &[ServedLinks],
        on: Option<&[f64]>,
        distances: &mut Distances<'_>,
    ) -> Option<PartedCase> {
        let problem = distances.problem;
        distances.left -= LOOK * across.len() as f64;
        let class = |count: usize, head: &dyn Fn(usize) -> f64| {
            let heads = across.iter().map(|links| links.least(problem, |link| head(link.from.index()))).collect();
            let tail = |links: &ServedLinks| on.map_or(0.0, |on| links.least(problem, |link| on[link.to.index()]));
            let (chunks, holders) = (sums.chunks[..count].to_vec(), sums.ranks.clone());
            ChunkClass { chunks, bytes: sums.bytes, holders, heads, tails: across.iter().map(tail).collect() }
        };
        let far_times = self.from.get(&self.far)?;
        let classes = vec![
            class(sums.chunks.len() - parted, &|rank| self.whole[rank]),
            class(parted, &|rank| far_times[rank]),
            class(parted, &|rank| self.some[rank]),
        ];
        let (only, far, space) = (self.only, self.far, sums.spaces[parted].clone());
        (distances.left > 0.0).then_some(PartedCase { parted, only, far, space, classes })
    }
}
