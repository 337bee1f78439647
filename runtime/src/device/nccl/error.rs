//! Why there is no NCCL to use, and what goes wrong with it.

use super::version::NcclVersion;
use crate::device::cuda::GpuError;
use crate::device::peer_memory::PeerMemoryError;
use std::path::PathBuf;
use std::time::Duration;
use topology::Rank;

/// Why a library is not the NCCL that is looked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NcclLibraryError {
    /// Nothing was found.
    #[error(
        "there is no libnccl.so.2 (hint: ANTIPHON_NCCL=/path/to/libnccl.so.2 names it; PyTorch's lies in \
         site-packages/nvidia/nccl/lib): {}",
        .tried.join("; ")
    )]
    Missing {
        /// What was tried, and what came of it.
        tried: Vec<String>,
    },
    /// The system cannot load it.
    #[error("{} cannot be loaded: {why}", .path.display())]
    Unusable {
        /// The library.
        path: PathBuf,
        /// What the loader of the system says.
        why: String,
    },
    /// It is Antiphon's library, which would ask itself.
    #[error("{} is Antiphon's own library, not NCCL (hint: ANTIPHON_NCCL names the real one)", .path.display())]
    Ourselves {
        /// The library.
        path: PathBuf,
    },
    /// It is some other library.
    #[error("{} is no NCCL: {what}", .path.display())]
    Odd {
        /// The library.
        path: PathBuf,
        /// What it lacks, or does.
        what: String,
    },
    /// It is too old to run plans.
    #[error("{} is NCCL {version}, and plans need {} or newer", .path.display(), NcclVersion::OLDEST)]
    Old {
        /// The library.
        path: PathBuf,
        /// Its version.
        version: NcclVersion,
    },
}

/// NCCL's number for the end of another rank.
const REMOTE_ERROR: i32 = 6;

/// Why something did not run over NCCL.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NcclError {
    /// The library does not do.
    #[error(transparent)]
    Library(#[from] NcclLibraryError),
    /// The library lacks a function.
    #[error("this NCCL has no {name}")]
    Lacks {
        /// The function.
        name: &'static str,
    },
    /// NCCL refuses something.
    #[error("{doing}: NCCL gives the result {code}, {what}")]
    Refused {
        /// What was tried.
        doing: &'static str,
        /// NCCL's number.
        code: i32,
        /// What NCCL says.
        what: String,
    },
    /// Not all ranks have come in time.
    #[error("{doing}: not done after {}; the communicator was aborted", shown(.limit))]
    Late {
        /// What was tried.
        doing: &'static str,
        /// How long it was allowed to take.
        limit: Duration,
    },
    /// A round did not end, or failed.
    #[error(
        "rank {}, round {} of {rounds}, with {}: {why}; the communicator was aborted",
        .rank.0, .round + 1, named(.peers)
    )]
    Round {
        /// This rank.
        rank: Rank,
        /// The first round that is not known to be done, counted from 0.
        round: usize,
        /// How many rounds there are.
        rounds: usize,
        /// The ranks with which it exchanges messages in this round.
        peers: Vec<Rank>,
        /// What happened.
        why: RoundFailure,
    },
    /// The communicator was aborted, after an error.
    #[error("the communicator was aborted after an error (hint: make a new one)")]
    Aborted,
    /// Ranks have different plans.
    #[error("rank {} has another plan than rank {} (hint: all ranks need the same files and versions)", .other.0, .rank.0)]
    Disagree {
        /// This rank.
        rank: Rank,
        /// The first one that differs.
        other: Rank,
    },
    /// Memory cannot be shared, or a call does not fit into it.
    #[error("nothing over mapped memory: {why}")]
    Unfit {
        /// Why.
        why: String,
    },
    /// Ranks do not map each other's memory.
    #[error(transparent)]
    Peers(PeerMemoryError),
    /// There are no such messages.
    #[error("messages from rank {} to rank {} of {ranks} cannot be timed", .from.0, .to.0)]
    NoExchange {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// How many ranks there are.
        ranks: usize,
    },
    /// The GPU.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl NcclError {
    /// Whether this rank has only waited for others, or heard of their end.
    pub fn is_of_others(&self) -> bool {
        match self {
            Self::Late { .. } | Self::Aborted | Self::Round { why: RoundFailure::Late { .. }, .. } => true,
            Self::Refused { code, .. } | Self::Round { why: RoundFailure::Failed { code, .. }, .. } => {
                *code == REMOTE_ERROR
            }
            Self::Library(_) | Self::Lacks { .. } | Self::Disagree { .. } | Self::NoExchange { .. } => false,
            Self::Gpu(GpuError::PeerMissing(_) | GpuError::PeerGone { .. }) => true,
            Self::Gpu(_) | Self::Unfit { .. } | Self::Peers(_) => false,
        }
    }
}

/// What ended a round.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RoundFailure {
    /// It took too long.
    #[error("not done after {}", shown(.limit))]
    Late {
        /// How long the call was allowed to take.
        limit: Duration,
    },
    /// NCCL says so.
    #[error("NCCL gives the result {code}, {what}")]
    Failed {
        /// NCCL's number.
        code: i32,
        /// What NCCL says.
        what: String,
    },
}

fn shown(limit: &Duration) -> String {
    topology::quantity::show_duration(topology::Micros(limit.as_secs_f64() * 1e6))
}

fn named(ranks: &[Rank]) -> String {
    let list: Vec<_> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    match list.as_slice() {
        [] => "nobody".to_owned(),
        [one] => format!("rank {one}"),
        _ => format!("ranks {}", list.join(", ")),
    }
}
