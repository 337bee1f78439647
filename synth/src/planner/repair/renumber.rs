//! Which rank and chunk of the old plan is which now.
//!
//! The principal type is [`Renumbering`].

use super::detours::OldMessage;
use crate::problem::Problem;
use schedule::{ChunkId, RankSet, Schedule};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use topology::{Rank, Topology};

/// The ranks and chunks of an old plan on the machine as it is now.
pub(super) struct Renumbering {
    /// `None` for ranks that are gone.
    ranks: Vec<Option<Rank>>,
    /// `None` for chunks that nobody needs any more.
    chunks: Vec<Option<ChunkId>>,
}

impl Renumbering {
    /// `None` if the machine has more ranks than before.
    pub(super) fn of(plan: &Schedule, problem: &Problem) -> Option<Self> {
        let old = plan.demand.request().ranks;
        let gone = old.checked_sub(problem.topology.rank_count())?;
        let pairs: BTreeSet<(Rank, Rank)> =
            plan.transfers.iter().map(|transfer| (transfer.from, transfer.to)).collect();
        let without = |first: usize| -> Vec<Option<Rank>> {
            let number = |rank: usize| match rank {
                rank if rank < first => Some(Rank::from_index(rank)),
                rank if rank < first + gone => None,
                rank => Some(Rank::from_index(rank - gone)),
            };
            (0..old).map(number).collect()
        };
        let last = if gone == 0 { 0 } else { old - gone };
        let ranks = (0..=last).map(without).min_by_key(|ranks| missing(&pairs, ranks, &problem.topology))?;
        let chunks = chunks(plan, problem, &ranks);
        Some(Self { ranks, chunks })
    }

    /// The old ranks that are gone.
    pub(super) fn gone(&self) -> Vec<Rank> {
        let gone = self.ranks.iter().enumerate().filter(|(_, now)| now.is_none());
        gone.map(|(rank, _)| Rank::from_index(rank)).collect()
    }

    /// The messages of the plan between ranks that are still there, in the order in which they arrive. Where times are
    /// equal, the order is that of the plan.
    pub(super) fn messages(&self, plan: &Schedule) -> Vec<OldMessage> {
        let mut order: Vec<usize> = (0..plan.transfers.len()).collect();
        order.sort_by(|&a, &b| plan.transfers[a].end.total_cmp(&plan.transfers[b].end));
        let message = |index: usize| {
            let transfer = &plan.transfers[index];
            let chunks: Vec<ChunkId> = transfer.chunks.iter().filter_map(|chunk| self.chunks[chunk.index()]).collect();
            let (from, to) = (self.ranks[transfer.from.index()]?, self.ranks[transfer.to.index()]?);
            (!chunks.is_empty()).then_some(OldMessage { chunks, from, to, kind: transfer.kind })
        };
        order.into_iter().filter_map(message).collect()
    }
}

/// How many of the pairs of ranks that exchange messages have no link any more.
fn missing(pairs: &BTreeSet<(Rank, Rank)>, ranks: &[Option<Rank>], topology: &Topology) -> usize {
    let is_missing = |(from, to): &&(Rank, Rank)| match (ranks[from.index()], ranks[to.index()]) {
        (Some(from), Some(to)) => topology.between(from, to).next().is_none(),
        _ => false,
    };
    pairs.iter().filter(is_missing).count()
}

/// For each chunk of the plan the one with the same holders and receivers, as far as these still take part.
fn chunks(plan: &Schedule, problem: &Problem, ranks: &[Option<Rank>]) -> Vec<Option<ChunkId>> {
    let demand = &problem.demand;
    let members = &demand.request().members;
    let mut alike: BTreeMap<(RankSet, RankSet, bool), VecDeque<ChunkId>> = BTreeMap::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        alike.entry((chunk.holders.clone(), chunk.wanted_by.clone(), chunk.combine)).or_default().push_back(id);
    }
    let now = |set: &RankSet| -> RankSet {
        set.iter().filter_map(|rank| ranks[rank.index()]).filter(|&rank| members.has(rank)).collect()
    };
    // Most chunks share the set of all members.
    let mut last: Option<(RankSet, RankSet)> = None;
    let mut now = |set: &RankSet| match &last {
        Some((before, after)) if before == set => after.clone(),
        _ => {
            let after = now(set);
            last = Some((set.clone(), after.clone()));
            after
        }
    };
    let chunk = |chunk: &schedule::Chunk| {
        let (holders, wanted_by) = (now(&chunk.holders), now(&chunk.wanted_by));
        alike.get_mut(&(holders, wanted_by, chunk.combine))?.pop_front()
    };
    plan.demand.chunks().iter().map(chunk).collect()
}
