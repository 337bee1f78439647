//! What one rank executes of a program, and where it lies in the rank's buffers.
//!
//! The principal type is [`RankPlan`].

pub(crate) mod geometry;

use crate::dtype::{DType, Kernel};
use geometry::Geometry;
use program::{Buffer, Connection, Program, RankProgram, Step};
use std::ops::Range;
use topology::Rank;

/// A range of bytes in a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ByteSpan {
    pub(crate) buffer: Buffer,
    pub(crate) bytes: Range<usize>,
}

/// What a rank executes in every call.
pub(crate) struct RankPlan<'a> {
    /// This rank's number in the job; `number` is its number in the program.
    pub(crate) rank: Rank,
    pub(crate) number: Rank,
    pub(crate) program: &'a Program,
    /// The program's connections, between ranks of the job.
    pub(crate) connections: Vec<Connection>,
    pub(crate) geometry: Geometry,
    pub(crate) dtype: DType,
    /// Absent where nothing is reduced.
    pub(crate) kernel: Option<Kernel>,
    /// What is divided after the program, and by which number.
    pub(crate) averages: Vec<(ByteSpan, u64)>,
}

impl<'a> RankPlan<'a> {
    pub(crate) fn own(&self) -> &'a RankProgram {
        &self.program.ranks[self.number.index()]
    }

    /// The bytes of one tile of the message with these steps.
    pub(crate) fn message_bytes(&self, steps: &[Step], tile: usize) -> usize {
        steps.iter().map(|step| self.geometry.slice_bytes(step.instruction.shape(), tile)).sum()
    }
}
