//! The rules that an execution plan can break, with the place.
//!
//! The principal type is [`PlanViolation`]: a [`PlanLocation`] in the plan and a [`PlanFault`].

use super::document::{OpName, PlanBuffer};
use serde::Serialize;
use std::fmt;
use topology::document::PathSegment;

/// A place in a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanLocation {
    /// The plan as a whole.
    Plan,
    /// A rank.
    Gpu(u32),
    /// A rank and one of its channel declarations.
    Channel(u32, u32),
    /// A rank and one of its remote buffers.
    RemoteBuffer(u32, u32),
    /// A rank and one of its threadblocks.
    Threadblock(u32, u32),
    /// An operation.
    Op(OpAt),
}

impl PlanLocation {
    /// The rank it is in.
    pub fn rank(self) -> Option<u32> {
        match self {
            Self::Plan => None,
            Self::Gpu(rank) | Self::Channel(rank, _) | Self::RemoteBuffer(rank, _) | Self::Threadblock(rank, _) => {
                Some(rank)
            }
            Self::Op(at) => Some(at.rank),
        }
    }
}

/// An operation's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct OpAt {
    /// The rank.
    pub rank: u32,
    /// The threadblock.
    pub threadblock: u32,
    /// The operation, from 0.
    pub op: u32,
    /// The operation inside a pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner: Option<u32>,
}

impl fmt::Display for OpAt {
    /// `rank 1 threadblock 0 op 3`, or `op 3.2` inside a pipeline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, threadblock, op, inner } = self;
        write!(f, "rank {rank} threadblock {threadblock} op {op}")?;
        inner.map_or(Ok(()), |inner| write!(f, ".{inner}"))
    }
}

impl fmt::Display for PlanLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan => f.write_str("plan"),
            Self::Gpu(rank) => write!(f, "rank {rank}"),
            Self::Channel(rank, entry) => write!(f, "rank {rank} channels[{entry}]"),
            Self::RemoteBuffer(rank, entry) => write!(f, "rank {rank} remote_buffers[{entry}]"),
            Self::Threadblock(rank, threadblock) => write!(f, "rank {rank} threadblock {threadblock}"),
            Self::Op(at) => at.fmt(f),
        }
    }
}

impl PlanLocation {
    /// The path to it in the JSON.
    pub(super) fn path(self) -> Vec<PathSegment<'static>> {
        let mut path = Vec::new();
        let mut enter = |key, index: u32| path.extend([PathSegment::Key(key), PathSegment::Index(index as usize)]);
        match self {
            Self::Plan => {}
            Self::Gpu(rank) => enter("gpus", rank),
            Self::Channel(rank, entry) => {
                enter("gpus", rank);
                enter("channels", entry);
            }
            Self::RemoteBuffer(rank, entry) => {
                enter("gpus", rank);
                enter("remote_buffers", entry);
            }
            Self::Threadblock(rank, threadblock) => {
                enter("gpus", rank);
                enter("threadblocks", threadblock);
            }
            Self::Op(OpAt { rank, threadblock, op, inner }) => {
                enter("gpus", rank);
                enter("threadblocks", threadblock);
                enter("ops", op);
                if let Some(inner) = inner {
                    enter("ops", inner);
                }
            }
        }
        path
    }
}

/// One chunk of one rank's buffer, for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ChunkAt {
    /// The rank.
    pub rank: u32,
    /// The buffer.
    pub buffer: PlanBuffer,
    /// The chunk.
    pub chunk: u32,
}

impl fmt::Display for ChunkAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] of rank {}", self.buffer, self.chunk, self.rank)
    }
}

/// A violation: a broken rule and its place.
#[derive(Clone, PartialEq, Debug, thiserror::Error, Serialize)]
#[error("{at}: {fault}")]
pub struct PlanViolation {
    /// The place.
    pub at: PlanLocation,
    /// The broken rule.
    #[serde(flatten)]
    pub fault: PlanFault,
}

/// The broken rule with its evidence.
#[derive(Clone, PartialEq, Debug, thiserror::Error, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PlanFault {
    /// More than a limit of the executor.
    #[error("{found} {what}, the executor has room for {limit} ({name})")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// The number in the plan.
        found: u64,
        /// The limit.
        limit: u64,
        /// The executor's name of the limit.
        name: &'static str,
    },
    /// A value with which the executor cannot work.
    #[error("{reason}")]
    Invalid {
        /// The reason.
        reason: String,
    },
    /// An index beyond what is declared.
    #[error("{what} {index} does not exist, there are {count}")]
    OutOfRange {
        /// The kind of object.
        what: &'static str,
        /// The index.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// Chunks beyond the end of a buffer.
    #[error("chunks {index}..{end} of `{buffer}` of rank {rank}, which has {chunks}{packets}")]
    Chunks {
        /// The rank.
        rank: u32,
        /// The buffer.
        buffer: PlanBuffer,
        /// The first chunk.
        index: u64,
        /// The end.
        end: u64,
        /// How many the buffer has.
        chunks: u64,
        /// A remark where packets are concerned.
        packets: &'static str,
    },
    /// The operation lacks an operand, or has one that it cannot have.
    #[error("`{op}` {reason}")]
    Form {
        /// The operation.
        op: OpName,
        /// The missing or superfluous part.
        reason: String,
    },
    /// The plan may be correct, but this importer cannot judge it.
    #[error("not supported: {reason}")]
    Unsupported {
        /// The unsupported part.
        reason: String,
    },
    /// An operation waits for ever.
    #[error("waits for ever for {what}")]
    Deadlock {
        /// The event that never comes.
        what: String,
    },
    /// More signals than waits, so the next call starts with one too many.
    #[error("{what} ends with {left} that nobody took, so the next call takes them for its own")]
    Leftover {
        /// The counter.
        what: String,
        /// The number of signals left over.
        left: i64,
    },
    /// It is not determined which of several signals a wait takes.
    #[error("{what}: which {which} comes first is not fixed, {other} may be before or after it")]
    Ambiguous {
        /// The counter.
        what: String,
        /// Signals or waits.
        which: &'static str,
        /// The other operation.
        other: OpAt,
    },
    /// Two conflicting accesses are not ordered.
    #[error("{access} {chunk}, which {other} {other_access}; nothing orders the two{hint}")]
    Race {
        /// `reads` or `writes`.
        access: &'static str,
        /// The chunk.
        chunk: ChunkAt,
        /// The other operation.
        other: OpAt,
        /// The access of the other operation.
        other_access: &'static str,
        /// What would order them.
        hint: &'static str,
    },
    /// An access to a rank that may not have begun.
    #[error("{access} {chunk} before anything says that rank {} has begun the call", chunk.rank)]
    BeforeStart {
        /// `reads` or `writes`.
        access: &'static str,
        /// The chunk.
        chunk: ChunkAt,
    },
    /// An access to a rank that may have ended.
    #[error("{access} {chunk}, whose rank may end the call before that")]
    AfterEnd {
        /// `reads` or `writes`.
        access: &'static str,
        /// The chunk.
        chunk: ChunkAt,
    },
    /// The next call may start too early.
    #[error("writes {chunk} in the next call before {other} of this one is done with it")]
    NextCall {
        /// The chunk.
        chunk: ChunkAt,
        /// The operation that still uses it.
        other: OpAt,
    },
    /// Operands of one operation that overlap.
    #[error("an operand of `{op}` overlaps another without being the same chunks")]
    Overlap {
        /// The operation.
        op: OpName,
    },
    /// Packets are read as data, or data as packets.
    #[error("{access} {chunk} as {found}, but it holds {held} of {other}")]
    Mixed {
        /// `reads`.
        access: &'static str,
        /// The chunk.
        chunk: ChunkAt,
        /// The form in which it is read.
        found: &'static str,
        /// The form in which it was written.
        held: &'static str,
        /// The operation that wrote it.
        other: OpAt,
    },
    /// A packet written twice in one call, so that its flag says nothing.
    #[error("writes packet {chunk}, which {other} has written in this call; its flag cannot tell the two apart")]
    PacketTwice {
        /// The chunk.
        chunk: ChunkAt,
        /// The operation that wrote it first.
        other: OpAt,
    },
    /// A pipeline reads a value that another iteration wrote.
    #[error("reads {chunk} as another iteration of {other} left it")]
    Stale {
        /// The chunk.
        chunk: ChunkAt,
        /// The operation that wrote it.
        other: OpAt,
    },
    /// The operations do not compute the collective.
    #[error("{text}")]
    Result {
        /// The violation of the converted program.
        text: String,
    },
}

/// A note for readers of the plan; it is not a violation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Note {
    /// The place.
    pub at: PlanLocation,
    /// The text.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.text)
    }
}
