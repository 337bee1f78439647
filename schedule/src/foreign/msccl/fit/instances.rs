//! The same work by n times as many threadblocks, each on its part of every slot.
//!
//! Slot s becomes the slots s·n … s·n + n − 1, and instance i moves the i-th of each. Every instance thus does
//! exactly what the program did, on its own slots and connections, so instances never meet and nothing has to be
//! proved anew. (Dealing out ranges instead, with one message for several slots, makes instances depend on each
//! other.)

use super::rewrite::{expand, resliced, row};
use crate::program::{Connection, ConnectionId, Layout, LowerError, Program, RankProgram, Slice, Step};
use crate::{Demand, Request};
use std::sync::Arc;

/// `n` instances of a standard collective.
///
/// # Errors
/// Where the finer demand has too many slots.
pub(in super::super) fn replicate(program: Program, n: u32) -> Result<Program, LowerError> {
    if n <= 1 {
        return Ok(program);
    }
    let request = program.demand.request();
    let request = Request { chunks_per_rank: request.chunks_per_rank.saturating_mul(n), ..request.clone() };
    let slots = request.chunk_count();
    let too_many = LowerError::TooManySlots { slots, limit: crate::MAX_CHUNKS as u64 };
    let demand = Arc::new(Demand::new(request).map_err(|_| too_many)?);
    let layout = Layout::new(demand.clone(), program.in_place)?;
    let lanes = program.connections.len() as u32;
    let channels = program.connections.iter().map(|lane| lane.channel + 1).max().unwrap_or(0);
    let instance = |i: u32| {
        let lanes = program.connections.iter();
        lanes.map(move |lane| Connection { channel: lane.channel + channels * i, ..*lane })
    };
    let connections = (0..n).flat_map(instance).collect();
    let ranks = program.ranks.iter().map(|rank| replicated(rank, n, lanes)).collect();
    Ok(Program { shape: layout.shape().clone(), demand, connections, ranks, ..program })
}

fn replicated(rank: &RankProgram, n: u32, lanes: u32) -> RankProgram {
    let finer = |parts: &[u32]| parts.iter().flat_map(|&part| (0..n).map(move |i| part * n + i)).collect();
    let blocks = rank.threadblocks.len() as u32;
    let instance = |i: u32| {
        let mut threadblocks = expand(rank, |step| {
            let count = step.instruction.shape().count;
            row((0..count).map(|k| {
                let slot = |slice: Slice| Slice { index: (slice.index + k) * n + i, count: 1, ..slice };
                moved(resliced(step, slot), i * lanes, |transfer| transfer.saturating_mul(n).saturating_add(i))
            }))
        });
        let waits = threadblocks.iter_mut().flat_map(|block| &mut block.steps).flat_map(|step| &mut step.after);
        waits.for_each(|on| on.threadblock += i * blocks);
        threadblocks
    };
    RankProgram {
        input_parts: finer(&rank.input_parts),
        output_parts: finer(&rank.output_parts),
        scratch_parts: finer(&rank.scratch_parts),
        threadblocks: (0..n).flat_map(instance).collect(),
    }
}

/// The step over the connections of another instance.
fn moved(mut step: Step, by: u32, number: impl Fn(u32) -> u32) -> Step {
    let lane = |lane: ConnectionId| ConnectionId(lane.0 + by);
    step.instruction = step.instruction.mapped(|slice| slice, lane, lane);
    step.transfer = step.transfer.map(&number);
    step.forwards = step.forwards.map(&number);
    step
}
