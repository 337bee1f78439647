//! Sums that are added up along a tree and spread along another one.
//!
//! The principal type is [`SumTrees`], which says at which rank each sum is complete.

use crate::problem::Problem;
use schedule::{ChunkId, Message, TransferKind};
use std::collections::BTreeMap;
use topology::Rank;

/// The rank at which each sum is complete, of those that go along trees: each rank that contributes, but that one, sends the chunk once
/// to be added, and each other one that wants the sum gets it once.
#[derive(Default)]
pub(crate) struct SumTrees {
    collectors: BTreeMap<ChunkId, Rank>,
    /// Whether anything is sent to be added that is no sum.
    adds_others: bool,
}

impl SumTrees {
    pub(crate) fn of<'m>(problem: &Problem, messages: impl IntoIterator<Item = &'m Message>) -> Self {
        let mut ways: BTreeMap<ChunkId, SumWays> = BTreeMap::new();
        let mut adds_others = false;
        for message in messages {
            let link = problem.topology.link(message.link);
            for &chunk in &message.chunks {
                let is_sum = problem.demand.chunk(chunk).is_sum();
                match message.kind {
                    TransferKind::Reduce if is_sum => ways.entry(chunk).or_default().adds.push((link.from, link.to)),
                    TransferKind::Copy if is_sum => ways.entry(chunk).or_default().copies.push(link.to),
                    TransferKind::Reduce => adds_others = true,
                    TransferKind::Copy => {}
                }
            }
        }
        let collector = |(chunk, ways): (ChunkId, SumWays)| Some((chunk, ways.collector(problem, chunk)?));
        Self { collectors: ways.into_iter().filter_map(collector).collect(), adds_others }
    }

    /// Where a chunk is complete; `None` if it is no sum, or goes along no tree.
    pub(crate) fn collector(&self, chunk: ChunkId) -> Option<Rank> {
        self.collectors.get(&chunk).copied()
    }

    /// Whether all sums go along trees, and nothing else is added.
    pub(crate) fn has_all(&self, problem: &Problem) -> bool {
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
