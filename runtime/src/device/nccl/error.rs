//! Why there is no NCCL to use.

use super::version::NcclVersion;
use std::path::PathBuf;

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
