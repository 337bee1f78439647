//! Sums that are added up along a tree and spread along another one.
//!
//! The principal types are [`SumTrees`], which says at which rank each sum is complete, and [`TurnedSums`]: turned around in time, on
//! the reversed topology, what spreads a sum adds it up, and what adds it up spreads it. So a window that frees what is copied can
//! free what is added, too.

use crate::problem::Problem;
use schedule::{ChunkId, Message, Schedule, TransferKind, replay, turned_around};
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::Rank;

/// The rank at which each sum is complete, of those that go along trees: each rank that contributes, but that one, sends the chunk once
/// to be added, and each other one that wants the sum gets it once.
#[derive(Default)]
pub(super) struct SumTrees {
    collectors: BTreeMap<ChunkId, Rank>,
    /// Whether anything is sent to be added that is no sum.
    adds_others: bool,
}

impl SumTrees {
    pub(super) fn of(problem: &Problem, schedule: &Schedule) -> Self {
        let mut ways: BTreeMap<ChunkId, SumWays> = BTreeMap::new();
        for transfer in &schedule.transfers {
            for &chunk in transfer.chunks.iter().filter(|&&chunk| problem.demand.chunk(chunk).is_sum()) {
                let SumWays { adds, copies } = ways.entry(chunk).or_default();
                match transfer.kind {
                    TransferKind::Reduce => adds.push((transfer.from, transfer.to)),
                    TransferKind::Copy => copies.push(transfer.to),
                }
            }
        }
        let collector = |(chunk, ways): (ChunkId, SumWays)| Some((chunk, ways.collector(problem, chunk)?));
        let is_other = |&chunk: &ChunkId| !problem.demand.chunk(chunk).is_sum();
        let adds = schedule.transfers.iter().filter(|transfer| transfer.kind == TransferKind::Reduce);
        let adds_others = adds.flat_map(|transfer| &transfer.chunks).any(is_other);
        Self { collectors: ways.into_iter().filter_map(collector).collect(), adds_others }
    }

    /// Where a chunk is complete; `None` if it is no sum, or goes along no tree.
    pub(super) fn collector(&self, chunk: ChunkId) -> Option<Rank> {
        self.collectors.get(&chunk).copied()
    }

    /// Whether all sums go along trees, and nothing else is added.
    pub(super) fn has_all(&self, problem: &Problem) -> bool {
        !self.adds_others
            && problem.demand.chunks().iter().filter(|chunk| chunk.is_sum()).count() == self.collectors.len()
    }
}

/// Who sends a chunk to whom to be added, and who gets its sum.
#[derive(Default)]
struct SumWays {
    adds: Vec<(Rank, Rank)>,
    copies: Vec<Rank>,
}

impl SumWays {
    fn collector(mut self, problem: &Problem, chunk: ChunkId) -> Option<Rank> {
        let chunk = problem.demand.chunk(chunk);
        let mut senders: Vec<Rank> = self.adds.iter().map(|&(from, _)| from).collect();
        senders.sort_unstable();
        let collector = chunk.holders.iter().copied().find(|rank| senders.binary_search(rank).is_err())?;
        let adds = chunk.holders.iter().copied().filter(|&rank| rank != collector);
        let receives = self.adds.iter().all(|&(_, to)| chunk.holders.has(to));
        self.copies.sort_unstable();
        let wants = chunk.wanted_by.iter().copied().filter(|&rank| rank != collector);
        (adds.eq(senders) && receives && wants.eq(self.copies)).then_some(collector)
    }
}

/// A schedule of sums, turned around in time.
pub(super) struct TurnedSums {
    pub(super) problem: Problem,
    pub(super) schedule: Schedule,
}

impl TurnedSums {
    /// `None` where not every chunk is a sum along trees that the same ranks contribute to and want.
    pub(super) fn of(problem: &Problem, schedule: &Schedule, trees: &SumTrees) -> Option<Self> {
        let turns = problem.demand.chunks().iter().all(|chunk| chunk.is_sum() && chunk.wanted_by == chunk.holders);
        if !turns || !trees.has_all(problem) {
            return None;
        }
        let problem = Problem { topology: Arc::new(problem.topology.reversed()), ..problem.clone() };
        let transfers = replay(&problem.demand, &problem.topology, &turned_around(&schedule.transfers)).ok()?;
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, super::NAME);
        Some(Self { problem, schedule })
    }

    /// Messages of the turned problem, turned back.
    pub(super) fn back(&self, messages: &[Message]) -> Option<Vec<Message>> {
        Some(turned_around(&replay(&self.problem.demand, &self.problem.topology, messages).ok()?))
    }
}
