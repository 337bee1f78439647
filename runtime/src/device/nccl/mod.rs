//! NCCL, found at run time: nothing is linked, so everything builds and runs where there is no NCCL.
//!
//! The principal types are [`NcclLibrary`], [`NcclCommunicator`] and [`NcclRounds`].

mod calls;
mod communicator;
mod error;
mod exports;
mod library;
mod recorded;
mod rounds;
mod version;

pub use calls::NcclId;
pub use communicator::NcclCommunicator;
pub use error::{NcclError, NcclLibraryError, RoundFailure};
pub use library::{NcclLibrary, NcclSearch};
pub use rounds::NcclRounds;
pub use version::NcclVersion;
