//! Cuts steps that move more chunks than the runtimes allow.

use super::super::limits::MAX_COUNT;
use program::rewrite::{expand, resliced, row};
use program::{Program, Slice, Step};

/// Cuts each step that moves more chunks than a step can.
pub(in super::super) fn bounded(mut program: Program) -> Program {
    let long = |step: &Step| step.instruction.shape().count > MAX_COUNT;
    for rank in &mut program.ranks {
        if rank.threadblocks.iter().flat_map(|block| &block.steps).any(long) {
            rank.threadblocks = expand(rank, |step| {
                let count = step.instruction.shape().count;
                row((0..count).step_by(MAX_COUNT as usize).map(|start| {
                    let piece = |slice: Slice| Slice {
                        index: slice.index + start,
                        count: MAX_COUNT.min(count - start),
                        ..slice
                    };
                    resliced(step, piece)
                }))
            });
        }
    }
    program
}
