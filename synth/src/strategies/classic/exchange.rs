//! Algorithms in which members send directly to each other: recursive doubling, Bruck's algorithm, and all pairs.

use super::{Inapplicable, RoundHop, chunks_of};
use crate::problem::Problem;
use schedule::ChunkId;
use topology::Rank;

/// AllGather in ⌈log₂ k⌉ exchanges of everything gathered so far. Where k is no power of two, each member beyond the
/// largest one sends its chunks to a partner first and gets everything from it at the end.
pub(super) fn recursive_doubling(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let members = &problem.demand.request().members;
    let core = 1 << members.len().ilog2();
    let folded = members.len() - core;
    let mut hops = Hops::new(problem);
    for extra in 0..folded {
        hops.blocks(0, [core + extra], core + extra, extra);
    }
    let mut round = 1;
    let mut distance = 1;
    while distance < core {
        for member in 0..core {
            let group = member & !(distance - 1);
            let gathered = (group..group + distance).flat_map(|m| [Some(m), (m < folded).then_some(core + m)]);
            hops.blocks(round, gathered.flatten(), member, member ^ distance);
        }
        distance *= 2;
        round += 1;
    }
    for extra in 0..folded {
        let others = (0..members.len()).filter(|&member| member != core + extra);
        hops.blocks(round, others, extra, core + extra);
    }
    Ok(hops.hops)
}

/// Bruck's AllGather for any number of members: in round r every member sends what it has to the member 2^r below it.
pub(super) fn bruck(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let count = problem.demand.request().members.len();
    let mut hops = Hops::new(problem);
    let mut distance = 1;
    let mut round = 0;
    while distance < count {
        for member in 0..count {
            let blocks = (0..distance.min(count - distance)).map(|block| (member + block) % count);
            hops.blocks(round, blocks, member, (member + count - distance) % count);
        }
        distance *= 2;
        round += 1;
    }
    Ok(hops.hops)
}

/// Every chunk directly from a holder to every rank that wants it; in round r to the rank r places on.
pub(super) fn all_pairs(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let demand = &*problem.demand;
    let ranks = problem.topology.rank_count() as u32;
    let mut hops = Vec::new();
    for (chunk, what) in demand.chunk_ids().zip(demand.chunks()) {
        for to in what.lacking() {
            let has_link = |from: &Rank| problem.topology.between(*from, to).any(|link| problem.allows(chunk, link));
            let from = match what.holders[..] {
                [only] => only,
                _ => what.holders.iter().copied().find(has_link).unwrap_or(what.holders[0]),
            };
            hops.push(RoundHop { round: (to.0 + ranks - from.0) % ranks, chunk, from, to });
        }
    }
    Ok(hops)
}

/// Hops of whole blocks, a block being all chunks of one member.
pub(super) struct Hops<'a> {
    problem: &'a Problem,
    pub(super) hops: Vec<RoundHop>,
}

impl<'a> Hops<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        Self { problem, hops: Vec::new() }
    }

    /// Adds hops of blocks from one member to another; blocks and members are given by position.
    pub(super) fn blocks(&mut self, round: u32, blocks: impl IntoIterator<Item = usize>, from: usize, to: usize) {
        let members = &self.problem.demand.request().members;
        let (from, to) = (members[from], members[to]);
        let chunks = blocks.into_iter().flat_map(|block| chunks_of(self.problem, block));
        self.hops.extend(chunks.map(|chunk: ChunkId| RoundHop { round, chunk, from, to }));
    }
}
