//! What each rank does: the physical plan that the interpreter runs.
//!
//! The principal type is [`Program`]: per rank, threadblocks of steps over three buffers, with explicit
//! dependencies, in the sense of MSCCL \[1\] but free of its limits (no step cap, any number of dependencies).
//!
//! Decisions:
//! * Buffers are addressed in **slots** (one chunk each), never in bytes, so one program serves every count.
//!   A block of `count` elements is cut into [`Program::parts`] slots; slot p covers the elements
//!   `count·p/parts .. count·(p+1)/parts`, which places remainders without padding.
//! * Large slots are cut into tiles; the whole program repeats for every tile, and a dependency means *the same
//!   tile of that step*. That pipelines every hop without a second mechanism, as MSCCL's slice loop does.
//! * In-place programs name one buffer only (the larger one), so neither verifier nor interpreter reasons
//!   about aliases.
//! * Only a [`VerifiedProgram`] is executed: [`lower`] makes a program, [`check`] proves it without its help.
//! * Every wait points at a message that arrives earlier in the schedule, so no interleaving deadlocks.
//!
//! \[1\] Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023.

mod check;
mod digest;
mod layout;
mod listing;
mod lower;

pub use check::{ProgramViolation, StepAt, VerifiedProgram, check};
pub use digest::digest;
pub use layout::{Layout, OwnBlock, Slot, part_elements, slot_elements};
pub use lower::{LowerError, LowerOptions, lower};

use crate::{Demand, ReduceOp};
use serde::Serialize;
use std::sync::Arc;
use topology::{LinkId, Rank};

/// Which of a rank's buffers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Buffer {
    /// What the caller sends; never written unless the call is in place.
    Input,
    /// What the caller receives.
    Output,
    /// Private to the program.
    Scratch,
}

/// `count` consecutive slots of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// The first slot.
    pub index: u32,
    /// How many slots.
    pub count: u32,
}

/// Index of a connection in [`Program::connections`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u32);

impl ConnectionId {
    /// The id as an index into [`Program::connections`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An ordered lane of bytes from one rank to another. Sends and receives on it match in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Connection {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Distinguishes lanes between the same two ranks.
    pub channel: u32,
    /// The topology's link this lane stands for (what an emulated cluster paces).
    pub link: LinkId,
}

/// One instruction. `⊕` is the program's reduction; slices of one instruction have equal slot shapes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// Send `src`.
    Send {
        /// Over which connection.
        to: ConnectionId,
        /// What.
        src: Slice,
    },
    /// Receive into `dst`.
    Receive {
        /// From which connection.
        from: ConnectionId,
        /// Where to.
        dst: Slice,
    },
    /// `dst = src ⊕ received`.
    ReceiveReduce {
        /// From which connection.
        from: ConnectionId,
        /// The local operand.
        src: Slice,
        /// Where the result goes (may equal `src`).
        dst: Slice,
    },
    /// `dst = src`, locally.
    Copy {
        /// From.
        src: Slice,
        /// To.
        dst: Slice,
    },
}

impl Instruction {
    /// The connection that it sends over.
    pub fn sends_to(&self) -> Option<ConnectionId> {
        match *self {
            Self::Send { to, .. } => Some(to),
            Self::Receive { .. } | Self::ReceiveReduce { .. } | Self::Copy { .. } => None,
        }
    }

    /// The connection that it receives from.
    pub fn receives_from(&self) -> Option<ConnectionId> {
        match *self {
            Self::Receive { from, .. } | Self::ReceiveReduce { from, .. } => Some(from),
            Self::Send { .. } | Self::Copy { .. } => None,
        }
    }

    /// The connection that it uses; none uses two.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.sends_to().or(self.receives_from())
    }

    /// What it reads.
    pub fn source(&self) -> Option<Slice> {
        match *self {
            Self::Send { src, .. } | Self::ReceiveReduce { src, .. } | Self::Copy { src, .. } => Some(src),
            Self::Receive { .. } => None,
        }
    }

    /// What it writes.
    pub fn destination(&self) -> Option<Slice> {
        match *self {
            Self::Receive { dst, .. } | Self::ReceiveReduce { dst, .. } | Self::Copy { dst, .. } => Some(dst),
            Self::Send { .. } => None,
        }
    }

    /// A slice with the shape of all its slices.
    pub fn shape(&self) -> Slice {
        match *self {
            Self::Send { src, .. } => src,
            Self::Receive { dst, .. } | Self::ReceiveReduce { dst, .. } | Self::Copy { dst, .. } => dst,
        }
    }
}

/// What happens to a payload between buffer and wire. Identity today; compression and fused epilogues later
/// change no format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transform {
    /// The bytes as they are.
    #[default]
    Identity,
}

/// A step of a threadblock on the same rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct StepRef {
    /// The threadblock.
    pub threadblock: u32,
    /// The step in it.
    pub step: u32,
}

/// An instruction and what must have finished before it (for the same tile).
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Step {
    /// What to do.
    pub instruction: Instruction,
    /// Steps of *other* threadblocks of this rank that must have finished this tile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<StepRef>,
    /// Payload transform.
    pub transform: Transform,
    /// Index of the schedule's transfer this step carries out; `None` for local steps. Consecutive steps of
    /// one transfer are one message (one α).
    pub transfer: Option<u32>,
}

/// Steps that run one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Threadblock {
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// What one rank does.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RankProgram {
    /// Slots of the input buffer.
    pub input_slots: u32,
    /// Slots of the output buffer.
    pub output_slots: u32,
    /// For each scratch slot, the part p whose shape it has.
    pub scratch_parts: Vec<u32>,
    /// Threadblocks; they run concurrently.
    pub threadblocks: Vec<Threadblock>,
}

/// A lowered collective: what every rank does, for any element count.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// What it must achieve.
    pub demand: Arc<Demand>,
    /// The reduction, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// Whether input and output are the same memory (nccl-tests' in-place convention).
    pub in_place: bool,
    /// Into how many slots a block of `count` elements is cut.
    pub parts: u32,
    /// The lanes between ranks.
    pub connections: Vec<Connection>,
    /// One per rank of the topology; ranks without work have no threadblocks.
    pub ranks: Vec<RankProgram>,
}

#[cfg(test)]
mod tests;
