//! What one step of a threadblock does.
//!
//! The principal type is [`Instruction`], a closed set: the executor has one match arm for each. A fused instruction is
//! exactly two others one after the other ([`Instruction::halves`]); most code uses the halves.

use super::ConnectionId;
use serde::{Deserialize, Serialize};

/// The buffers of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Buffer {
    /// The data that the caller sends; never written unless the call is in place.
    Input,
    /// The data that the caller receives.
    Output,
    /// Private to the program.
    Scratch,
}

/// `count` consecutive slots of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// The first slot.
    pub index: u32,
    /// How many slots.
    pub count: u32,
}

/// One instruction. `⊕` is the program's reduction; slices of one instruction have equal slot shapes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instruction {
    /// Send `src`.
    Send {
        /// Over which connection.
        to: ConnectionId,
        /// The data.
        src: Slice,
    },
    /// Receive into `dst`.
    Receive {
        /// From which connection.
        from: ConnectionId,
        /// The place of the data.
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
        /// The source.
        src: Slice,
        /// The destination.
        dst: Slice,
    },
    /// `dst = dst ⊕ src`, locally.
    Reduce {
        /// The value that is added.
        src: Slice,
        /// The value that it is added to.
        dst: Slice,
    },
    /// `Receive` into `dst`, then `Send` of `dst`.
    ReceiveSend {
        /// From which connection.
        from: ConnectionId,
        /// Over which connection.
        to: ConnectionId,
        /// The place where the data is stored, and from which it is sent on.
        dst: Slice,
    },
    /// `ReceiveReduce` of `src` into `dst`, then `Send` of `dst`.
    ReceiveReduceSend {
        /// From which connection.
        from: ConnectionId,
        /// Over which connection.
        to: ConnectionId,
        /// The local operand.
        src: Slice,
        /// Where the result goes (may equal `src`); it is sent on.
        dst: Slice,
    },
}

impl Instruction {
    /// A fused instruction as two: without its send, and the send. Another instruction is returned as it is.
    pub fn halves(self) -> (Self, Option<Self>) {
        match self {
            Self::ReceiveSend { from, to, dst } => (Self::Receive { from, dst }, Some(Self::Send { to, src: dst })),
            Self::ReceiveReduceSend { from, to, src, dst } => {
                (Self::ReceiveReduce { from, src, dst }, Some(Self::Send { to, src: dst }))
            }
            Self::Send { .. }
            | Self::Receive { .. }
            | Self::ReceiveReduce { .. }
            | Self::Copy { .. }
            | Self::Reduce { .. } => (self, None),
        }
    }

    /// The same with other slices and connections: `slice` maps slices, `out` the connections that it sends over, and
    /// `into` those that it receives from.
    #[must_use]
    pub fn mapped(
        self,
        slice: impl Fn(Slice) -> Slice,
        out: impl Fn(ConnectionId) -> ConnectionId,
        into: impl Fn(ConnectionId) -> ConnectionId,
    ) -> Self {
        match self {
            Self::Send { to, src } => Self::Send { to: out(to), src: slice(src) },
            Self::Receive { from, dst } => Self::Receive { from: into(from), dst: slice(dst) },
            Self::ReceiveReduce { from, src, dst } => {
                Self::ReceiveReduce { from: into(from), src: slice(src), dst: slice(dst) }
            }
            Self::Copy { src, dst } => Self::Copy { src: slice(src), dst: slice(dst) },
            Self::Reduce { src, dst } => Self::Reduce { src: slice(src), dst: slice(dst) },
            Self::ReceiveSend { from, to, dst } => Self::ReceiveSend { from: into(from), to: out(to), dst: slice(dst) },
            Self::ReceiveReduceSend { from, to, src, dst } => {
                Self::ReceiveReduceSend { from: into(from), to: out(to), src: slice(src), dst: slice(dst) }
            }
        }
    }

    /// Whether it is a fused instruction.
    pub fn is_fused(self) -> bool {
        self.halves().1.is_some()
    }

    /// The connection that it sends over.
    pub fn sends_to(&self) -> Option<ConnectionId> {
        match *self {
            Self::Send { to, .. } | Self::ReceiveSend { to, .. } | Self::ReceiveReduceSend { to, .. } => Some(to),
            Self::Receive { .. } | Self::ReceiveReduce { .. } | Self::Copy { .. } | Self::Reduce { .. } => None,
        }
    }

    /// The connection that it receives from.
    pub fn receives_from(&self) -> Option<ConnectionId> {
        match *self {
            Self::Receive { from, .. }
            | Self::ReceiveReduce { from, .. }
            | Self::ReceiveSend { from, .. }
            | Self::ReceiveReduceSend { from, .. } => Some(from),
            Self::Send { .. } | Self::Copy { .. } | Self::Reduce { .. } => None,
        }
    }

    /// The slice whose old content it reads; a `Reduce` also reads [`Self::destination`].
    pub fn source(&self) -> Option<Slice> {
        match *self {
            Self::Send { src, .. }
            | Self::ReceiveReduce { src, .. }
            | Self::ReceiveReduceSend { src, .. }
            | Self::Copy { src, .. }
            | Self::Reduce { src, .. } => Some(src),
            Self::Receive { .. } | Self::ReceiveSend { .. } => None,
        }
    }

    /// The slice that it writes.
    pub fn destination(&self) -> Option<Slice> {
        match *self {
            Self::Receive { dst, .. }
            | Self::ReceiveReduce { dst, .. }
            | Self::ReceiveSend { dst, .. }
            | Self::ReceiveReduceSend { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. } => Some(dst),
            Self::Send { .. } => None,
        }
    }

    /// Whether it combines values, and so needs the program's reduction.
    pub fn reduces(&self) -> bool {
        match self {
            Self::ReceiveReduce { .. } | Self::ReceiveReduceSend { .. } | Self::Reduce { .. } => true,
            Self::Send { .. } | Self::Receive { .. } | Self::Copy { .. } | Self::ReceiveSend { .. } => false,
        }
    }

    /// Whether the rank copies or adds locally, in addition to sending and receiving.
    pub fn works(&self) -> bool {
        match self {
            Self::ReceiveReduce { .. } | Self::ReceiveReduceSend { .. } | Self::Copy { .. } | Self::Reduce { .. } => {
                true
            }
            Self::Send { .. } | Self::Receive { .. } | Self::ReceiveSend { .. } => false,
        }
    }

    /// One of its slices; all have the same shape.
    pub fn shape(&self) -> Slice {
        match *self {
            Self::Send { src, .. } => src,
            Self::Receive { dst, .. }
            | Self::ReceiveReduce { dst, .. }
            | Self::ReceiveSend { dst, .. }
            | Self::ReceiveReduceSend { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. } => dst,
        }
    }
}
