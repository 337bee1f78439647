//! An order for fabrics in which every pair has a link and links share up-links: no rank waits for its turn on a
//! switch.
//!
//! The principal function is [`phases`]. A message passes a fast up-link in a part of the time that it takes at a port.
//! So the ranks below a switch send one after the other, each a little later than the one before. A constant lag costs
//! its length once. If a receiver gets messages of changing lags, it costs again and again. Therefore the ranks of a
//! group are numbered by lag, with neighbours on a switch as far apart as possible. A receiver gets messages from all
//! ranks of one lag, group by group, before those of the next lag.

use super::staged::chains;
use crate::problem::Problem;
use schedule::{ChunkId, ChunkList, Message, TransferKind};
use topology::{LinkId, Rank};

/// For each chunk that moves, the fastest link directly to its destination; `None` where a chunk has no such link.
pub(super) fn direct(problem: &Problem) -> Option<Vec<Option<LinkId>>> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let mut previous: Option<((Rank, Rank), LinkId)> = None;
    let straight = |id: ChunkId| {
        let chunk = demand.chunk(id);
        let Some(to) = chunk.lacking().next() else { return Some(None) };
        let ends = (chunk.holders[0], to);
        if let Some((_, link)) = previous.filter(|(like, _)| *like == ends) {
            return Some(Some(link));
        }
        let usable = topology.between(ends.0, to).filter(|&link| problem.allows(id, link));
        let link = usable.min_by(|&a, &b| topology.link(a).beta.total_cmp(&topology.link(b).beta))?;
        previous = Some((ends, link));
        Some(Some(link))
    };
    demand.chunk_ids().map(straight).collect()
}

/// All chunks over their `direct` links, in phases: one order for each way of grouping ranks.
pub(super) fn phases(problem: &Problem, direct: &[Option<LinkId>]) -> Vec<Vec<Message>> {
    let mut known: Vec<Lags> = Vec::new();
    for chain in chains(problem).into_iter().filter(|chain| !chain.is_empty()) {
        let lags = Lags::new(&chain, problem.topology.rank_count());
        if !known.contains(&lags) {
            known.push(lags);
        }
    }
    known.iter().map(|lags| lags.messages(problem, direct)).collect()
}

/// The groups, and the lag of each rank behind the first of its group.
#[derive(PartialEq, Eq)]
struct Lags {
    groups: u32,
    /// The group of each rank.
    group: Vec<u32>,
    /// The lag of each rank, in parts of the time at a port.
    lag: Vec<u32>,
    /// One more than the largest lag.
    parts: u32,
}

impl Lags {
    /// The lags for the largest groups of a chain. Ranks that share the lowest switch get lags as far apart as
    /// possible.
    fn new(chain: &[Vec<Vec<Rank>>], ranks: usize) -> Self {
        let places: Vec<Vec<u32>> = (0..chain.len()).map(|level| places(chain, level, ranks)).collect();
        let mut lags = Self { groups: 0, group: vec![0; ranks], lag: vec![0; ranks], parts: 1 };
        for group in chain.last().into_iter().flatten() {
            let mut order = group.clone();
            order.sort_by_key(|rank| (places.iter().map(|place| place[rank.index()]).collect::<Vec<u32>>(), *rank));
            for (lag, rank) in (0..).zip(order) {
                lags.lag[rank.index()] = lag;
                lags.group[rank.index()] = lags.groups;
                lags.parts = lags.parts.max(lag + 1);
            }
            lags.groups += 1;
        }
        lags
    }

    fn messages(&self, problem: &Problem, direct: &[Option<LinkId>]) -> Vec<Message> {
        let mut turns: Vec<([u32; 4], LinkId, ChunkId)> = Vec::with_capacity(direct.len());
        let mut part = 0;
        let mut previous = None;
        for (id, link) in problem.demand.chunk_ids().zip(direct) {
            let Some(link) = *link else { continue };
            part = if previous == Some(link) { part + 1 } else { 0 };
            previous = Some(link);
            let ends = problem.topology.link(link);
            let [from, to] = [ends.from.index(), ends.to.index()];
            let phase = (self.lag[to] + self.parts - self.lag[from]) % self.parts;
            let across = (self.group[to] + self.groups - self.group[from]) % self.groups.max(1);
            // The ranks of a group are shifted by their lag, so that some send within the group while others leave it:
            // all at once would exceed the up-links. In phase 0 sender and receiver have equal lags, so that no rank
            // sends within its group. Without a shift that phase needs one round less.
            let shift = if phase == 0 { 0 } else { self.lag[from] % self.groups.max(1) };
            let round = (across + self.groups - shift) % self.groups.max(1);
            turns.push(([phase, round, part, self.lag[from]], link, id));
        }
        turns.sort_unstable();
        let message = |(_, link, id): ([u32; 4], LinkId, ChunkId)| Message {
            chunks: ChunkList::from_slice(&[id]),
            link,
            kind: TransferKind::Copy,
        };
        turns.into_iter().map(message).collect()
    }
}

/// For each rank, the place of its group of a level (below the lowest level, of the rank itself) within its group of
/// the next level.
fn places(chain: &[Vec<Vec<Rank>>], level: usize, ranks: usize) -> Vec<u32> {
    let mut place = vec![0; ranks];
    for group in &chain[level] {
        let Some(below) = level.checked_sub(1) else {
            (0..).zip(group).for_each(|(position, rank)| place[rank.index()] = position);
            continue;
        };
        let inside = chain[below].iter().filter(|lower| lower.first().is_some_and(|rank| group.contains(rank)));
        for (position, lower) in (0..).zip(inside) {
            lower.iter().for_each(|rank| place[rank.index()] = position);
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use schedule::{Collective, Demand, Request, Schedule, makespan, replay, verify};
    use std::sync::Arc;
    use topology::resolve;

    fn all_to_all(spec: &str, chunks: u32) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let request = Request::new(Collective::AllToAll, topology.rank_count(), 1 << 36).with_chunks(chunks);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// The best verified makespan divided by the bound.
    fn excess(problem: &Problem) -> f64 {
        let direct = direct(problem).expect("a link for every pair");
        let time = |messages: Vec<Message>| {
            let mut transfers = replay(&problem.demand, &problem.topology, &messages).expect("everybody sends his own");
            transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
            let makespan = makespan(&transfers).0;
            let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "phases");
            verify(schedule, &problem.topology).expect("a right schedule");
            makespan
        };
        let best = phases(problem, &direct).into_iter().map(time).fold(f64::INFINITY, f64::min);
        best / bounds(problem, &crate::problem::Deadline::default()).best().value.0
    }

    #[test]
    fn lags_cost_once_however_many_switches_there_are() {
        for spec in ["fat-tree:4x4", "fat-tree:2x3x5", "fat-tree:3x3x3", "fat-tree:4x4x4"] {
            let [one, eight] = [1, 8].map(|chunks| excess(&all_to_all(spec, chunks)));
            assert!(eight < 1.0 + (one - 1.0) / 2.0 + 1e-3, "{spec}: {one}, in eight chunks {eight}");
            assert!(one < 1.25, "{spec}: {one}");
        }
    }

    #[test]
    fn without_a_link_for_every_pair_there_is_nothing_to_order() {
        assert_eq!(direct(&all_to_all("ring:5", 1)), None);
    }
}
