//! NCCL, found at run time: nothing is linked, so everything builds and runs where there is no NCCL.
//!
//! The principal types are [`NcclLibrary`], [`NcclCommunicator`], [`NcclRounds`], [`DomainMemory`], [`NcclTrials`] and
//! [`StagedAllReduce`].

mod calls;
mod collectives;
mod communicator;
mod domain;
mod error;
mod exchanges;
mod exports;
mod gather;
mod library;
mod recorded;
mod round_ends;
mod rounds;
mod staged;
mod trials;
mod version;
mod watched;

pub use calls::NcclId;
pub use collectives::NcclStockCall;
pub use communicator::NcclCommunicator;
pub use domain::{DOMAIN_BYTES, DomainMemory, DomainPlace, DomainRegion, DomainTerms};
pub use error::{NcclError, NcclLibraryError, RoundFailure};
pub use gather::NcclGather;
pub use library::{NcclLibrary, NcclSearch};
pub use rounds::NcclRounds;
pub use staged::{MOST_STAGED_BYTES, StagedAllReduce, StagedCall, StagedTerms};
pub use trials::{NcclTrials, NcclWork};
pub use version::NcclVersion;
