//! What can be wrong with a request, and with an order of messages.

use crate::{ChunkId, Collective, RankSet, ReduceOp};
use topology::{Bytes, Micros, Rank};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DemandError {
    /// A rank beyond the topology.
    #[error("rank {rank} does not exist; ranks are 0-{}", ranks.saturating_sub(1))]
    UnknownRank {
        /// The rank.
        rank: Rank,
        /// How many there are.
        ranks: usize,
    },
    /// More ranks than this build accepts; nothing was allocated.
    #[error("{ranks} ranks are more than the {limit} that are supported")]
    TooManyRanks {
        /// How many were asked for.
        ranks: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// Nobody takes part.
    #[error("a collective needs at least one member")]
    NoMembers,
    /// A root is missing, or given where there is none.
    #[error("{collective} {}", if *needed { "needs a root" } else { "has no root" })]
    Root {
        /// The collective.
        collective: Collective,
        /// Whether it needs one.
        needed: bool,
    },
    /// The root does not take part.
    #[error("root {root} is not among the members, which are {members}")]
    RootNotAMember {
        /// The root.
        root: Rank,
        /// Who takes part.
        members: RankSet,
    },
    /// A reduction is missing, or given where nothing is reduced.
    #[error("{collective} {}", if *needed { "needs a reduction (op)" } else { "reduces nothing, so it takes no op" })]
    Op {
        /// The collective.
        collective: Collective,
        /// Whether it needs one.
        needed: bool,
    },
    /// Collectives that are planned together reduce in different ways.
    #[error("collectives that are planned together need the same reduction, not {one} and {other}")]
    UnequalOps {
        /// The reduction of one of them.
        one: ReduceOp,
        /// The reduction of another one.
        other: ReduceOp,
    },
    /// The buffer is larger than planning is exact for.
    #[error("{size_bytes} bytes are more than the {limit} that are supported")]
    TooLarge {
        /// The size asked for.
        size_bytes: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// Zero chunks.
    #[error("a rank's data is cut into at least one chunk")]
    NoChunks,
    /// More chunks than this build accepts; nothing was allocated.
    #[error("the request has {count} chunks, more than the {limit} that are supported")]
    TooManyChunks {
        /// How many there would be.
        count: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// More chunks, counted at every rank that holds or wants them, than this build accepts.
    #[error("the chunks are at {count} ranks in all, more than the {limit} that are supported")]
    TooManyPlaces {
        /// How many there would be.
        count: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// The chunks of this collective do not follow from the request.
    #[error("{collective} needs its chunks listed (a byte matrix or a demand file)")]
    NeedsChunks {
        /// The collective.
        collective: Collective,
    },
    /// A listed chunk without a holder.
    #[error("chunk {chunk} has no holder")]
    NoHolder {
        /// Position in the list.
        chunk: usize,
    },
    /// A listed chunk of a rank that does not take part.
    #[error("chunk {chunk} names rank {rank}, which is not a member")]
    NotAMember {
        /// Position in the list.
        chunk: usize,
        /// The rank.
        rank: Rank,
    },
    /// A chunk that belongs to no entry of a byte matrix.
    #[error(
        "chunk {chunk} is no part of an alltoallv: each of its chunks goes from one member to one member and is not reduced"
    )]
    NotOnePair {
        /// Position in the list.
        chunk: usize,
    },
    /// The data of a pair is cut into another number of chunks than the request says.
    #[error(
        "the chunks from rank {from} to rank {to} are {count}, but the request cuts what a pair exchanges into {expected}"
    )]
    PairChunks {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// How many chunks are listed.
        count: u32,
        /// How many the request makes it.
        expected: u32,
    },
    /// The data of a pair is cut into unequal chunks.
    #[error("the chunks from rank {from} to rank {to} are of different sizes; each is an equal part of a matrix entry")]
    UnequalPair {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// A listed chunk whose size is negative, not a number or over the limit.
    #[error("chunk {chunk} has {bytes}; a size is between 0 and {} bytes", crate::MAX_SIZE)]
    ChunkSize {
        /// Position in the list.
        chunk: usize,
        /// The size given.
        bytes: Bytes,
    },
    /// A chunk whose release is negative, not a number or over the limit, which is zero except for custom collectives.
    #[error("chunk {chunk} is released at {release}; that is between 0 and {latest} for this collective")]
    Release {
        /// Position in the list.
        chunk: usize,
        /// The time given.
        release: Micros,
        /// The latest that is accepted.
        latest: Micros,
    },
    /// The byte matrix has the wrong shape.
    #[error("the byte matrix must have one row and one column for each of the {members} members")]
    BadMatrix {
        /// How many members there are.
        members: usize,
    },
    /// A chunk size that does not follow from the request.
    #[error("chunk_bytes is {given}, but size and chunks give {quotient} (up to one byte more is accepted)")]
    ChunkBytes {
        /// What was given.
        given: Bytes,
        /// What follows from the request.
        quotient: Bytes,
    },
}

/// Why an order of messages cannot be played.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A message sends a chunk that no earlier message of the order brought to its sender.
    #[error("message {message} sends chunk {chunk} from rank {rank}, which no earlier message brought there")]
    NotHeld {
        /// Position in the order.
        message: usize,
        /// The chunk.
        chunk: ChunkId,
        /// The sender.
        rank: Rank,
    },
    /// A sum always arrives before the receiver's own value of the same round has left, even if it is delayed.
    #[error("message {message} arrives before its receiver could send what it had when the round began")]
    Exchange {
        /// Position in the order.
        message: usize,
    },
}
