//! Routes over slow links: which ranks relay, which chunks travel together, and in which order.
//!
//! The principal types are [`FastComponents`], which remain of the machine without its slow links, and
//! [`CrossingPlan`], the messages between fast components. This is TACCL's relay routing [1] with two differences.
//! First, α is paid per message, so it is decided here which chunks travel together. Second, a NIC that several links
//! share is one queue, and its order is decided here too. It is not split into fractions, one for each link.
//!
//! There are few choices, so they are enumerated: whether each chunk of a queue uses the link nearest to it or all use
//! the same link, and how they are divided into messages. One message for all chunks saves α. A first message with the
//! chunks that are there already wastes no time. The last message should be short, with a short way after it.
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.

use crate::problem::Problem;
use crate::problem::distance::PathTree;
use petgraph::unionfind::UnionFind;
use schedule::ChunkId;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, FreeTimes, LinkId, Micros, Rank};

/// The most chunks × slow links for which plans are enumerated.
const MAX_CHOICES: usize = 20_000;
/// A link is slow if it takes at least this many times as long as the next faster kind.
const GAP: f64 = 2.0;

/// The machine without its slow links.
pub(super) struct FastComponents<'a> {
    pub(super) problem: &'a Problem,
    /// For each link, whether the sketch allows it and it is fast.
    pub(super) fast: Vec<bool>,
    /// The slow links that the sketch allows and that join two fast components.
    slow: Vec<LinkId>,
    /// For each rank, the index of its fast component.
    of: Vec<usize>,
}

/// A message between fast components.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Crossing {
    pub(super) link: LinkId,
    pub(super) chunks: Vec<ChunkId>,
}

/// Messages between fast components, in the order in which they leave.
pub(super) type CrossingPlan = Vec<Crossing>;

#[derive(Clone, Debug)]
pub(super) struct TimedCrossing {
    pub(super) crossing: Crossing,
    pub(super) start: Micros,
    pub(super) end: Micros,
}

/// The chunks of each queue between two components.
type QueuedChunks = BTreeMap<(usize, usize, usize), Vec<ChunkId>>;

/// How the chunks of a queue are divided into messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QueueDivision {
    /// All chunks of a link in one message.
    Whole,
    /// First the chunks that the sender holds, then the rest.
    HeadBulk,
    /// The same, with a few chunks of the rest in a last message.
    HeadBulkTail,
    /// Every chunk in its own message.
    Singles,
}

impl<'a> FastComponents<'a> {
    /// Splits the machine at the largest gap between the times of its links. The machine is one component if no kind of
    /// link is much slower than the next faster one, or if every component would be a single rank.
    pub(super) fn new(problem: &'a Problem) -> Self {
        let topology = &problem.topology;
        let bytes = problem.demand.chunk_ids().map(|id| problem.demand.bytes_of(id)).fold(Bytes::ZERO, Bytes::max);
        let time = |id: LinkId| topology.link(id).transfer_time(bytes);
        let allowed: Vec<LinkId> = topology.link_ids().filter(|&id| problem.allows_link(id)).collect();
        let mut times: Vec<Micros> = allowed.iter().map(|&id| time(id)).collect();
        times.sort_by(Micros::total_cmp);
        let gaps = times.windows(2).filter(|pair| pair[0] > Micros::ZERO).map(|pair| (pair[1] / pair[0], pair[1]));
        let limit = gaps.filter(|gap| gap.0 >= GAP).max_by(|a, b| a.0.total_cmp(&b.0)).map(|gap| gap.1);
        let split = limit.map(|limit| Self::split(problem, &allowed, |id| time(id) < limit));
        let joins = |split: &Self| split.of.iter().collect::<BTreeSet<_>>().len() < split.of.len();
        split.filter(joins).unwrap_or_else(|| Self::split(problem, &allowed, |_| true))
    }

    fn split(problem: &'a Problem, allowed: &[LinkId], is_fast: impl Fn(LinkId) -> bool) -> Self {
        let topology = &problem.topology;
        let mut fast = vec![false; topology.links().len()];
        allowed.iter().filter(|&&id| is_fast(id)).for_each(|id| fast[id.index()] = true);
        let quick = allowed.iter().filter(|id| fast[id.index()]).map(|&id| topology.link(id));
        let of = joined(topology.rank_count(), quick.map(|it| (it.from, it.to)));
        let leaves = |id: &LinkId| of[topology.link(*id).from.index()] != of[topology.link(*id).to.index()];
        let slow = allowed.iter().copied().filter(|id| !fast[id.index()]).filter(leaves).collect();
        Self { problem, fast, slow, of }
    }

    /// The components with the given fast links.
    #[cfg(test)]
    pub(super) fn of_fast(problem: &'a Problem, fast: impl Fn(LinkId) -> bool) -> Self {
        Self::split(problem, &problem.topology.link_ids().collect::<Vec<_>>(), fast)
    }

    /// The slow links that the sketch allows and that leave a fast component, ascending.
    pub(super) fn slow(&self) -> &[LinkId] {
        &self.slow
    }

    /// The index of a rank's fast component.
    pub(super) fn of(&self, rank: Rank) -> usize {
        self.of[rank.index()]
    }

    /// Whether some fast link has an α.
    pub(super) fn shares_alpha(&self) -> bool {
        self.fast_links().any(|id| self.problem.topology.link(id).alpha > Micros::ZERO)
    }

    fn fast_links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.problem.topology.link_ids().filter(|id| self.fast[id.index()])
    }

    /// The times of one chunk on fast links, as periods for fetching.
    pub(super) fn single_units(&self) -> Vec<Micros> {
        let bytes = self.problem.demand.chunk_bytes();
        distinct(self.fast_links().map(|id| self.problem.topology.link(id).transfer_time(bytes)).collect())
    }

    /// Periods for spreading: the times of one chunk on fast links, and those of several chunks where α is large.
    pub(super) fn shared_units(&self) -> Vec<Micros> {
        let bytes = self.problem.demand.chunk_bytes();
        let mut lengths = Vec::new();
        for link in self.fast_links().map(|id| self.problem.topology.link(id)) {
            let single = link.transfer_time(bytes);
            let merged = [2.0, 4.0, 8.0, 16.0].into_iter().filter(|_| link.alpha > single * 0.2);
            lengths.extend([1.0].into_iter().chain(merged).map(|count| link.transfer_time(bytes * count)));
        }
        distinct(lengths)
    }

    /// The time over fast links from any of `from` to every rank, with each link rounded up to whole `unit`s.
    pub(super) fn distance(&self, from: &[Rank], chunk: ChunkId, unit: Micros) -> Vec<f64> {
        let bytes = self.problem.demand.bytes_of(chunk);
        let length = |id: LinkId| {
            let time = self.problem.topology.link(id).transfer_time(bytes);
            let usable = self.fast[id.index()] && self.problem.allows(chunk, id);
            usable.then(|| unit.0 * (time / unit - 1e-6).ceil().max(1.0))
        };
        PathTree::new(&self.problem.topology, from.iter().copied(), length).distance
    }

    /// The time from `rank` to the farthest rank of its component that wants `chunk`, rounded likewise.
    fn spread_time(&self, rank: Rank, chunk: ChunkId, unit: Micros) -> f64 {
        let distance = self.distance(&[rank], chunk, unit);
        let wanting = self.problem.demand.chunk(chunk).wanted_by.iter();
        let here = wanting.filter(|other| self.of[other.index()] == self.of[rank.index()]);
        here.map(|other| distance[other.index()]).fold(0.0, f64::max)
    }

    /// All plans worth trying; empty if a chunk has no direct slow link to a component that wants it.
    pub(super) fn plans(&self) -> Vec<CrossingPlan> {
        let choices = self.problem.demand.chunks().len().saturating_mul(self.slow.len());
        if choices == 0 || choices > MAX_CHOICES {
            return Vec::new();
        }
        let mut plans: Vec<CrossingPlan> = Vec::new();
        let Some((apart, queues)) = self.nearest() else { return plans };
        for loads in [self.together(queues), Some(apart)].into_iter().flatten() {
            for plan in self.divisions(&loads) {
                if !plans.contains(&plan) {
                    plans.push(plan);
                }
            }
        }
        plans
    }

    /// The ways to divide the chunks of each slow link into messages.
    pub(super) fn divisions(&self, loads: &BTreeMap<LinkId, Vec<ChunkId>>) -> Vec<CrossingPlan> {
        let shapes =
            [QueueDivision::Whole, QueueDivision::HeadBulk, QueueDivision::HeadBulkTail, QueueDivision::Singles];
        let plans = shapes.iter().map(|&shape| self.sequence(loads, shape));
        plans.filter(|plan| !plan.is_empty()).collect()
    }

    /// The chunks of every slow link where each chunk uses the one with the shortest way, and those of every queue.
    fn nearest(&self) -> Option<(BTreeMap<LinkId, Vec<ChunkId>>, QueuedChunks)> {
        let (topology, demand) = (&self.problem.topology, &self.problem.demand);
        let unit = Micros(1e-9);
        let queue = self.queues();
        let mut by_queue = QueuedChunks::new();
        let mut loads: BTreeMap<LinkId, Vec<ChunkId>> = BTreeMap::new();
        for (chunk, described) in demand.chunk_ids().zip(demand.chunks()) {
            let held: BTreeSet<usize> = described.holders.iter().map(|rank| self.of[rank.index()]).collect();
            let wanted: BTreeSet<usize> = described.wanted_by.iter().map(|rank| self.of[rank.index()]).collect();
            let near = self.distance(&described.holders, chunk, unit);
            for &component in wanted.difference(&held) {
                let usable =
                    self.slow.iter().filter(|&&id| self.ends(id).1 == component && self.problem.allows(chunk, id));
                let nearest = usable
                    .map(|&id| {
                        let way =
                            near[topology.link(id).from.index()] + self.spread_time(topology.link(id).to, chunk, unit);
                        let busy = by_queue.get(&(queue[&id], self.ends(id).0, component)).map_or(0, Vec::len);
                        (way, busy, id)
                    })
                    .filter(|(way, ..)| way.is_finite())
                    .min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))))?
                    .2;
                by_queue.entry((queue[&nearest], self.ends(nearest).0, component)).or_default().push(chunk);
                loads.entry(nearest).or_default().push(chunk);
            }
        }
        Some((loads, by_queue))
    }

    /// The chunks of every slow link where all chunks of a queue between two components use one link.
    fn together(&self, by_queue: QueuedChunks) -> Option<BTreeMap<LinkId, Vec<ChunkId>>> {
        let (topology, demand) = (&self.problem.topology, &self.problem.demand);
        let unit = Micros(1e-9);
        let queue = self.queues();
        let mut loads: BTreeMap<LinkId, Vec<ChunkId>> = BTreeMap::new();
        for ((number, from, to), chunks) in by_queue {
            let links = self.slow.iter().copied().filter(|&id| queue[&id] == number && self.ends(id) == (from, to));
            let common = links.filter(|&id| chunks.iter().all(|&chunk| self.problem.allows(chunk, id)));
            let way = |id: LinkId| {
                let link = topology.link(id);
                let gather = chunks
                    .iter()
                    .map(|&chunk| self.distance(&demand.chunk(chunk).holders, chunk, unit)[link.from.index()]);
                gather.fold(0.0, f64::max) + self.spread_time(link.to, chunks[0], unit)
            };
            let ways = common.map(|id| (way(id), id));
            let (_, best) = ways.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
            loads.entry(best).or_default().extend(chunks);
        }
        Some(loads)
    }

    /// The components at both ends of a link.
    fn ends(&self, id: LinkId) -> (usize, usize) {
        let link = self.problem.topology.link(id);
        (self.of[link.from.index()], self.of[link.to.index()])
    }

    /// For each slow link, the index of its queue: links that leave one component and share a resource.
    fn queues(&self) -> BTreeMap<LinkId, usize> {
        let topology = &self.problem.topology;
        let mut first: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        let mut same = Vec::new();
        for (index, &id) in self.slow.iter().enumerate() {
            let link = topology.link(id);
            for resource in &link.resources {
                let key = (self.of[link.from.index()], resource.0);
                let other = *first.entry(key).or_insert(index);
                same.push((Rank::from_index(other), Rank::from_index(index)));
            }
        }
        let number = joined(self.slow.len(), same.into_iter());
        self.slow.iter().copied().zip(number).collect()
    }

    /// The messages of all queues, each divided by `shape`: the n-th messages of all queues come before the next ones
    /// of any.
    fn sequence(&self, loads: &BTreeMap<LinkId, Vec<ChunkId>>, shape: QueueDivision) -> CrossingPlan {
        let queue = self.queues();
        let topology = &self.problem.topology;
        let mut queues: BTreeMap<usize, Vec<LinkId>> = BTreeMap::new();
        loads.keys().for_each(|&id| queues.entry(queue[&id]).or_default().push(id));
        let components = self.of.iter().max().map_or(1, |most| most + 1);
        let mut placed: Vec<(usize, usize, Crossing)> = Vec::new();
        for (number, mut links) in queues {
            // Every component begins with the component after it, so that no two begin with the same.
            let turn = |id: LinkId| {
                let link = topology.link(id);
                (self.of[link.to.index()] + components - self.of[link.from.index()]) % components
            };
            links.sort_by_key(|&id| (turn(id), id));
            let parts: Vec<Vec<Vec<ChunkId>>> = links.iter().map(|&id| self.parts(id, &loads[&id], shape)).collect();
            let mut messages: Vec<(LinkId, Vec<ChunkId>)> = Vec::new();
            if shape == QueueDivision::Singles {
                for turn in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
                    let nth = links.iter().zip(&parts).filter_map(|(&id, parts)| Some((id, parts.get(turn)?.clone())));
                    messages.extend(nth);
                }
            } else {
                // Only the chunks of the first link are divided. Those of other links leave whole, between its head and
                // its rest.
                let mut first = parts[0].iter().cloned().map(|chunks| (links[0], chunks));
                messages.extend(first.next());
                messages.extend(links.iter().zip(&parts).skip(1).map(|(&id, parts)| (id, parts.concat())));
                messages.extend(first);
            }
            let crossings = messages.into_iter().map(|(link, chunks)| Crossing { link, chunks });
            placed.extend(crossings.enumerate().map(|(place, crossing)| (place, number, crossing)));
        }
        placed.sort_by_key(|&(place, number, _)| (place, number));
        placed.into_iter().map(|(.., crossing)| crossing).collect()
    }

    fn parts(&self, link: LinkId, chunks: &[ChunkId], shape: QueueDivision) -> Vec<Vec<ChunkId>> {
        let ends = self.problem.topology.link(link);
        let unit = Micros(1e-9);
        let holders = |chunk: ChunkId| &self.problem.demand.chunk(chunk).holders;
        let gather = |chunk: ChunkId| self.distance(holders(chunk), chunk, unit)[ends.from.index()];
        let tail = |chunk: ChunkId| self.spread_time(ends.to, chunk, unit);
        // Near chunks come first; of equally near ones, those with the longest way to go.
        let mut order: Vec<(f64, f64, ChunkId)> =
            chunks.iter().map(|&chunk| (gather(chunk), tail(chunk), chunk)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
        let shortest = order.iter().map(|it| it.1).fold(f64::INFINITY, f64::min);
        let ids = |part: &[(f64, f64, ChunkId)]| part.iter().map(|it| it.2).collect::<Vec<_>>();
        let (head, mut rest): (Vec<_>, Vec<_>) = order.iter().copied().partition(|it| it.0 == 0.0);
        let parts = match shape {
            QueueDivision::Whole => vec![ids(&order)],
            QueueDivision::Singles => ids(&order).into_iter().map(|chunk| vec![chunk]).collect(),
            QueueDivision::HeadBulk => vec![ids(&head), ids(&rest)],
            QueueDivision::HeadBulkTail => {
                rest.sort_by(|a, b| b.1.total_cmp(&a.1));
                let near = rest.iter().filter(|it| it.1 == shortest).count();
                let last = if near == rest.len() { 1 } else { near };
                let (bulk, tail) = rest.split_at(rest.len().saturating_sub(last));
                vec![ids(&head), ids(bulk), ids(tail)]
            }
        };
        parts.into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// When the crossings of a plan leave and arrive, if fetched chunks arrive at their distance in `unit`s.
    pub(super) fn time(&self, plan: &CrossingPlan, unit: Micros) -> Vec<TimedCrossing> {
        let (topology, demand) = (&self.problem.topology, &self.problem.demand);
        let mut free = FreeTimes::new(topology);
        let timed = |crossing: &Crossing| {
            let link = topology.link(crossing.link);
            let fetched = crossing
                .chunks
                .iter()
                .map(|&chunk| Micros(self.distance(&demand.chunk(chunk).holders, chunk, unit)[link.from.index()]));
            let start = fetched.fold(free.earliest(topology, crossing.link), Micros::max);
            let bytes = demand.message_bytes(&crossing.chunks);
            free.occupy(topology, crossing.link, start, bytes);
            TimedCrossing { crossing: crossing.clone(), start, end: start + link.transfer_time(bytes) }
        };
        plan.iter().map(timed).collect()
    }

    /// The earliest end at which every crossing has arrived and is spread, at distances in `unit`s.
    pub(super) fn earliest_end(&self, crossings: &[TimedCrossing], unit: Micros) -> Micros {
        let end = |timed: &TimedCrossing| {
            let to = self.problem.topology.link(timed.crossing.link).to;
            let spread = timed.crossing.chunks.iter().map(|&chunk| self.spread_time(to, chunk, unit));
            timed.end + Micros(spread.fold(0.0, f64::max))
        };
        crossings.iter().map(end).fold(Micros::ZERO, Micros::max)
    }

    /// When the first crossing leaves that carries a chunk which its sender does not hold from the start.
    pub(super) fn first_fetching(&self, crossings: &[TimedCrossing]) -> Option<Micros> {
        let fetches = |timed: &&TimedCrossing| {
            let from = self.problem.topology.link(timed.crossing.link).from;
            timed.crossing.chunks.iter().any(|&chunk| !self.problem.demand.chunk(chunk).holders.has(from))
        };
        crossings.iter().filter(fetches).map(|timed| timed.start).min_by(Micros::total_cmp)
    }
}

/// `length`, doubled until at most `most` of it fit into `time`.
pub(super) fn stretched(mut length: Micros, time: Micros, most: usize) -> Micros {
    while length > Micros::ZERO && time / length > most as f64 {
        length = length * 2.0;
    }
    length
}

/// The lengths in ascending order, without nearly equal ones.
pub(super) fn distinct(mut lengths: Vec<Micros>) -> Vec<Micros> {
    lengths.retain(|length| *length > Micros::ZERO);
    lengths.sort_by(Micros::total_cmp);
    lengths.dedup_by(|next, kept| next.0 < kept.0 * 1.02);
    lengths
}

/// For each of `count` items, the number of its set after joining `pairs`; sets are numbered in order of appearance.
fn joined(count: usize, pairs: impl Iterator<Item = (Rank, Rank)>) -> Vec<usize> {
    let mut joined = UnionFind::new(count);
    for (a, b) in pairs {
        joined.union(a.index(), b.index());
    }
    let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
    let of = |set: usize| {
        let next = numbers.len();
        *numbers.entry(set).or_insert(next)
    };
    joined.into_labeling().into_iter().map(of).collect()
}
