//! Why ranks do not map each other's memory.

use crate::device::cuda::GpuError;
use topology::Rank;

/// Why the memory of GPUs is not mapped. All ranks that are left have the same reason, apart from [`Self::Gather`] and
/// [`Self::Gpu`], which are about this one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerMemoryError {
    /// Not all ranks told each other what they have.
    #[error("rank {}: the ranks did not meet for {doing}: {why}", .rank.0)]
    Gather {
        /// This rank.
        rank: Rank,
        /// For what.
        doing: &'static str,
        /// What the gathering says.
        why: String,
    },
    /// A rank speaks another language.
    #[error("rank {} has another version of this library than rank 0", .rank.0)]
    Version {
        /// The first one that has.
        rank: Rank,
    },
    /// Ranks want other things.
    #[error("rank {} asks for other memory, or for another call, than rank 0", .rank.0)]
    Disagree {
        /// The first one that does.
        rank: Rank,
    },
    /// There is no memory in common.
    #[error("rank {} is on another computer than rank {}, or in another container", .rank.0, .other.0)]
    OtherComputer {
        /// The first one that is.
        rank: Rank,
        /// A rank that it would have to share memory with.
        other: Rank,
    },
    /// A process has one GPU here.
    #[error("the ranks {} and {} are in one process", .rank.0, .other.0)]
    SameProcess {
        /// A rank.
        rank: Rank,
        /// Another one.
        other: Rank,
    },
    /// The driver can share memory in no way that all drivers have.
    #[error("the driver of rank {} cannot share memory with other processes in the way that others can", .rank.0)]
    NoWay {
        /// A rank without the way that most others have.
        rank: Rank,
    },
    /// The hardware, or the system, does not connect two GPUs.
    #[error("the GPU of rank {} has no peer access to that of rank {}", .rank.0, .peer.0)]
    NoAccess {
        /// Whose GPU asks.
        rank: Rank,
        /// Whose memory it cannot reach.
        peer: Rank,
    },
    /// A rank has failed.
    #[error("rank {}: {why}", .rank.0)]
    Failed {
        /// The first one that has.
        rank: Rank,
        /// What it says.
        why: String,
    },
    /// The GPU of this rank.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}
