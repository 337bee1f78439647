//! The bound by cuts: the data that must leave a set of ranks, over the capacity of all links that leave it together.
//!
//! Any set of ranks gives a valid bound. So finding good sets is kept apart from measuring them. Candidates are the
//! unions of machines, and the minimum cuts of ForestColl's flow problem [1]. In that problem a source feeds every rank
//! with x times what it holds, and every sink must receive everything. A cut that forbids this has a ratio of bytes to
//! capacity above 1/x; that ratio gives the next x (Dinkelbach). The ratio grows with every round, so few rounds are
//! needed. Sparsest cuts, which bound AllToAll, are found by [`sweeps`] over orders of the ranks.
//!
//! `cut_tail` adds the way that the last chunk to cross still has to go [2].
//!
//! [1] Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics".
//! [2] If that chunk crosses once, it spreads from one head of the cut: the tail is the way from the best head to its
//! farthest rank. If it crosses twice, the cut carries one chunk more, and every rank is reached from its nearest head.

use super::capacity::capacity;
use super::classes::RankClasses;
use super::feeding::{Feeding, GROWS};
use super::flow::WorkBudget;
use super::sweep::sweeps;
use super::{Bound, Certificate, Scope, Tail};
use crate::problem::distance::PathTree;
use crate::problem::{Deadline, Problem};
use schedule::{Chunk, ChunkId};
use std::collections::BTreeSet;
use topology::{LinkId, Micros, MicrosPerByte, Rank};

/// The most machines for which all unions are tried; for more machines, single machines and their complements.
const MACHINES: usize = 6;
/// The most work of all flows of one search for a cut: a few tenths of a second.
const WORK: WorkBudget = WorkBudget::new(60_000_000);
/// The same for ranks whose class has a flow already.
const WORK_AGAIN: WorkBudget = WorkBudget::new(6_000_000);
/// The most work of local search around the best cut, in links visited: a few milliseconds.
const CLIMBING: usize = 400_000;
/// The most heads of a cut for which distances are computed.
const HEADS: usize = 64;

/// The strongest cut, and the strongest cut with its tail, of those found before `deadline`.
pub(super) fn cut(problem: &Problem, classes: &RankClasses, deadline: &Deadline) -> Vec<Bound> {
    let spans = Spans::new(problem);
    let mut cuts: Vec<Cut> = Vec::new();
    let mut measure = |inside: Vec<bool>| {
        let is_in_time = !deadline.has_passed();
        cuts.extend(is_in_time.then(|| Cut::measure(problem, &spans, inside)).flatten());
    };
    machine_unions(problem, classes).into_iter().for_each(&mut measure);
    tightest(problem, classes, deadline).into_iter().for_each(&mut measure);
    narrowest(problem, deadline).into_iter().for_each(&mut measure);
    sweeps(problem, deadline).into_iter().for_each(&mut measure);
    cuts.extend(climb(problem, &spans, &cuts, deadline));
    let strongest = |name, scope, values: Vec<(Micros, &Cut, Option<Tail>)>| {
        let (value, cut, tail) = values.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Bound { name, scope, value, certificate: cut.certificate(tail) })
    };
    let plain = cuts.iter().map(|cut| (cut.time(), cut, None)).collect();
    let with_tail = cuts.iter().filter_map(|cut| cut.tail(problem).map(|it| (cut.time() + it.value, cut, Some(it))));
    let with_tail = strongest("cut_tail", Scope::ThisChunking, with_tail.collect());
    let plain = strongest("cut", Scope::AnyChunking, plain);
    plain.into_iter().chain(with_tail).collect()
}

/// A set of ranks, the data that must leave it, and the rate at which it can leave.
struct Cut {
    inside: Vec<bool>,
    /// The links that leave the set and may be used.
    links: Vec<LinkId>,
    chunks: Vec<ChunkId>,
    bytes: f64,
    /// Bytes per µs.
    capacity: f64,
    /// The least α of the links.
    alpha: f64,
}

/// For each chunk its holder and its receiver, if each chunk has one of each. Many cuts are measured, and this table is
/// faster than the sets of the demand.
struct Spans(Option<Vec<(Rank, Rank)>>);

impl Spans {
    fn new(problem: &Problem) -> Self {
        let span = |chunk: &Chunk| match (&chunk.holders[..], &chunk.wanted_by[..]) {
            (&[from], &[to]) if !chunk.combine => Some((from, to)),
            _ => None,
        };
        Self(problem.demand.chunks().iter().map(span).collect())
    }
}

impl Cut {
    /// Measures the cut around a set of ranks; `None` if nothing must leave it, or nothing can.
    fn measure(problem: &Problem, spans: &Spans, inside: Vec<bool>) -> Option<Self> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let must_leave = |&id: &ChunkId| match &spans.0 {
            Some(spans) => inside[spans[id.index()].0.index()] && !inside[spans[id.index()].1.index()],
            None => must_leave(demand.chunk(id), &inside),
        };
        let chunks: Vec<ChunkId> = demand.chunk_ids().filter(must_leave).collect();
        let links = leaving(problem, &inside);
        if chunks.is_empty() || links.is_empty() {
            return None;
        }
        let alpha = links.iter().map(|&link| topology.link(link).alpha.0).fold(f64::INFINITY, f64::min);
        let (bytes, capacity) = (demand.message_bytes(&chunks).0, capacity(topology, &links));
        Some(Self { inside, links, chunks, bytes, capacity, alpha })
    }

    fn time(&self) -> Micros {
        Micros(self.alpha + self.bytes / self.capacity)
    }

    fn certificate(&self, tail: Option<Tail>) -> Certificate {
        let ranks = self.inside.iter().enumerate().filter(|(_, inside)| **inside);
        let ranks = ranks.map(|(rank, _)| Rank::from_index(rank)).collect();
        Certificate::Cut { ranks, capacity: MicrosPerByte(1.0 / self.capacity), tail, whole: None }
    }

    /// The way that the last chunk to cross still has to go. `None` if sums are formed on the way, or if the cut has
    /// too many heads.
    fn tail(&self, problem: &Problem) -> Option<Tail> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        if self.chunks.iter().any(|&id| demand.chunk(id).combine) {
            return None;
        }
        let mut heads: Vec<Rank> = self.links.iter().map(|&link| topology.link(link).to).collect();
        heads.sort_unstable();
        heads.dedup();
        if heads.len() > HEADS {
            return None;
        }
        // Any of the chunks may be the last, so only ranks that want all of them are sure to wait for it.
        let outside = topology.ranks().filter(|rank| !self.inside[rank.index()]);
        let waiting: Vec<Rank> =
            outside.filter(|&rank| self.chunks.iter().all(|&id| demand.chunk(id).wanted_by.has(rank))).collect();
        let smallest = self.chunks.iter().map(|&id| demand.bytes_of(id)).min_by(|a, b| a.total_cmp(b))?;
        let length = |id: LinkId| problem.allows_link(id).then(|| topology.link(id).transfer_time(smallest).0);
        let trees: Vec<PathTree> = heads.iter().map(|&head| PathTree::new(topology, [head], length)).collect();
        // The farthest waiting rank; if several are equally far, the last of them; if none waits, the head itself.
        let farthest = |head: Rank, tree: &PathTree| {
            let all = waiting.iter().map(|&rank| (tree.distance[rank.index()], rank));
            all.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, head))
        };
        let ways: Vec<(f64, Rank)> = heads.iter().zip(&trees).map(|(&head, tree)| farthest(head, tree)).collect();
        let from_one = ways.iter().map(|(time, _)| *time).fold(f64::INFINITY, f64::min);
        let nearest = |rank: &Rank| trees.iter().map(|tree| tree.distance[rank.index()]).fold(f64::INFINITY, f64::min);
        let far = waiting.iter().map(|rank| (nearest(rank), *rank)).max_by(|a, b| a.0.total_cmp(&b.0));
        let crossing_twice = f64::max(far.map_or(0.0, |(time, _)| time), smallest.0 / self.capacity);
        Some(Tail {
            chunk_bytes: smallest,
            value: Micros(from_one.min(crossing_twice)),
            heads: heads.iter().copied().zip(ways.iter().map(|(_, rank)| *rank)).collect(),
            far: far.map(|(_, rank)| rank),
        })
    }
}

/// Whether at least one copy of (or contribution to) a chunk must leave a set of ranks.
fn must_leave(chunk: &Chunk, inside: &[bool]) -> bool {
    let is_inside = |rank: &Rank| inside[rank.index()];
    let starts_inside = match chunk.combine {
        true => chunk.holders.iter().any(is_inside),
        false => chunk.holders.iter().all(is_inside),
    };
    starts_inside && !chunk.wanted_by.iter().all(is_inside)
}

/// The best cut that is reached by moving single ranks, from the best cut so far or from the best cut around a single
/// rank. Where several ports share a resource, the flow network has paths that do not exist, so that its cuts are not
/// the tightest.
fn climb(problem: &Problem, spans: &Spans, cuts: &[Cut], deadline: &Deadline) -> Option<Cut> {
    let topology = &*problem.topology;
    let ranks = topology.rank_count();
    if topology.resources().is_empty() || ranks < 3 {
        return None;
    }
    let mut left = CLIMBING / topology.links().len().max(1);
    let around = topology.ranks().map(|one| topology.ranks().map(|rank| rank != one).collect());
    let around = around.take(left / 2).take_while(|_| !deadline.has_passed());
    let starts: Vec<Cut> = around.filter_map(|inside| Cut::measure(problem, spans, inside)).collect();
    left = left.saturating_sub(starts.len());
    let mut best = cuts.iter().chain(&starts).max_by(|a, b| a.time().total_cmp(&b.time()))?.inside.clone();
    let mut found: Option<Cut> = None;
    let mut time = Cut::measure(problem, spans, best.clone())?.time();
    let mut stale = 0;
    for rank in (0..ranks).cycle().take(left).take_while(|_| !deadline.has_passed()) {
        best[rank] = !best[rank];
        match Cut::measure(problem, spans, best.clone()).filter(|cut| cut.time().0 > time.0 * (1.0 + GROWS)) {
            Some(cut) => {
                (time, stale) = (cut.time(), 0);
                found = Some(cut);
            }
            None => {
                best[rank] = !best[rank];
                stale += 1;
            }
        }
        if stale == ranks {
            break;
        }
    }
    found
}

/// All unions of machines where there are few machines, else single machines of different classes, and their
/// complements.
pub(super) fn machine_unions(problem: &Problem, classes: &RankClasses) -> Vec<Vec<bool>> {
    let topology = &*problem.topology;
    let machines = topology.machines().len();
    let set = |chosen: &dyn Fn(usize) -> bool| topology.ranks().map(|rank| chosen(topology.machine_of(rank))).collect();
    if machines <= MACHINES {
        return (1..(1usize << machines) - 1).map(|union| set(&|machine| union >> machine & 1 == 1)).collect();
    }
    let mut seen = BTreeSet::new();
    let differs = |machine: &usize| {
        let mut ranks: Vec<u32> = topology.machines()[*machine].iter().map(|&rank| classes.of(rank)).collect();
        ranks.sort_unstable();
        seen.insert(ranks)
    };
    let each = (0..machines).filter(differs).take(64);
    each.flat_map(|one| [set(&|machine| machine == one), set(&|machine| machine != one)]).collect()
}

/// The cut found by flows with the largest ratio of held bytes to capacity. `None` where the links of one rank are
/// already the tightest, or no rank alone holds anything.
fn tightest(problem: &Problem, classes: &RankClasses, deadline: &Deadline) -> Option<Vec<bool>> {
    let topology = &*problem.topology;
    let held = held_bytes(problem);
    let total: f64 = held.iter().sum();
    // One rank of each class first.
    let (mut order, again) = classes.split(spread_out(&sinks(problem)));
    if total <= 0.0 || order.is_empty() {
        return None;
    }
    let first = order.len();
    order.extend(again);
    // Start from the ratio of the cuts around single sinks, which are often the tightest.
    let around = |&sink: &Rank| {
        let links: Vec<LinkId> =
            topology.incoming(sink).iter().copied().filter(|&link| problem.allows_link(link)).collect();
        (total - held[sink.index()]) / capacity(topology, &links)
    };
    let in_time = order.iter().take_while(|_| !deadline.has_passed());
    let mut ratio = in_time.map(around).fold(f64::MIN_POSITIVE, f64::max);
    if deadline.has_passed() {
        return None;
    }
    let mut flow = Feeding::new(problem, &held);
    let mut best = None;
    for (tried, work) in [(first, WORK), (order.len(), WORK_AGAIN)] {
        let mut work = work.until(deadline.instant());
        let (mut next, mut proven) = (0, 0);
        while proven < tried && ratio.is_finite() {
            let Ok(inside) = flow.cut(1.0 / ratio, order[next], &mut work) else { break };
            let found = inside.as_ref().map_or(0.0, |inside| self::ratio(problem, &held, inside));
            if found > ratio * (1.0 + GROWS) {
                (ratio, best, proven) = (found, inside, 0);
            } else {
                proven += 1;
                next = (next + 1) % tried;
            }
        }
        if first == order.len() {
            break;
        }
    }
    best
}

/// The cut of the least capacity between contributors to a sum that several ranks want (AllReduce). A whole sum has to
/// cross it, however few ranks are inside.
fn narrowest(problem: &Problem, deadline: &Deadline) -> Option<Vec<bool>> {
    let sum = problem.demand.chunks().iter().find(|chunk| chunk.combine && chunk.wanted_by.len() > 1)?;
    let root = *sum.holders.first()?;
    let others: Vec<Rank> = sum.holders.iter().copied().filter(|&rank| rank != root).collect();
    let mut flow = Feeding::new(problem, &vec![0.0; problem.topology.rank_count()]);
    let mut work = WORK.until(deadline.instant());
    let mut best: Option<(f64, Vec<bool>)> = None;
    for rank in spread_out(&others) {
        for (from, to) in [(root, rank), (rank, root)] {
            let Ok((capacity, inside)) = flow.between(from, to, &mut work) else {
                return best.map(|(_, inside)| inside);
            };
            if best.as_ref().is_none_or(|best| capacity < best.0 * (1.0 - GROWS)) {
                best = Some((capacity, inside));
            }
        }
    }
    best.map(|(_, inside)| inside)
}

/// `sinks` in an order of which every prefix is spread evenly, because the work may end early.
fn spread_out(sinks: &[Rank]) -> Vec<Rank> {
    let bits = sinks.len().next_power_of_two().trailing_zeros();
    let reversed = |index: usize| index.reverse_bits() >> (usize::BITS - bits);
    let order = (0..1usize << bits).map(|index| if bits == 0 { 0 } else { reversed(index) });
    order.filter_map(|index| sinks.get(index).copied()).collect()
}

/// The bytes that each rank alone holds and others want; for sums, each contributor holds an equal share.
pub(super) fn held_bytes(problem: &Problem) -> Vec<f64> {
    let mut held = vec![0.0; problem.topology.rank_count()];
    for (id, chunk) in problem.demand.chunk_ids().zip(problem.demand.chunks()) {
        let alone = chunk.combine || chunk.holders.len() == 1;
        if alone && chunk.wanted_by.iter().any(|rank| chunk.combine || !chunk.holders.has(*rank)) {
            let share = problem.demand.bytes_of(id).0 / chunk.holders.len() as f64;
            chunk.holders.iter().for_each(|rank| held[rank.index()] += share);
        }
    }
    held
}

/// The ranks that want something, ascending.
pub(super) fn sinks(problem: &Problem) -> Vec<Rank> {
    let mut wants = vec![false; problem.topology.rank_count()];
    // Chunks that all ranks want share one list.
    for chunks in problem.demand.chunks().chunk_by(|a, b| a.wanted_by.as_ptr() == b.wanted_by.as_ptr()) {
        chunks[0].wanted_by.iter().for_each(|rank| wants[rank.index()] = true);
    }
    problem.topology.ranks().filter(|rank| wants[rank.index()]).collect()
}

/// The bytes held in a set of ranks, over the capacity of the links that leave it.
fn ratio(problem: &Problem, held: &[f64], inside: &[bool]) -> f64 {
    let bytes: f64 = held.iter().zip(inside).filter(|(_, inside)| **inside).map(|(bytes, _)| bytes).sum();
    bytes / capacity(&problem.topology, &leaving(problem, inside))
}

/// The links that leave a set of ranks and may be used.
fn leaving(problem: &Problem, inside: &[bool]) -> Vec<LinkId> {
    let topology = &*problem.topology;
    let leaves = |&id: &LinkId| {
        let link = topology.link(id);
        inside[link.from.index()] && !inside[link.to.index()] && problem.allows_link(id)
    };
    topology.link_ids().filter(leaves).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_beginning_of_the_sinks_is_spread_out() {
        for count in [0, 1, 2, 5, 8, 13] {
            let all: Vec<Rank> = (0..count).map(Rank).collect();
            let mut order = spread_out(&all);
            if count == 8 {
                assert_eq!(order[..4].iter().map(|rank| rank.0).collect::<Vec<_>>(), [0, 4, 2, 6]);
            }
            order.sort_unstable();
            assert_eq!(order, all);
        }
    }
}
