//! NCCL, found at run time: nothing is linked, so everything builds and runs where there is no NCCL.
//!
//! The principal type is [`library::NcclLibrary`].

mod error;
mod exports;
mod library;
mod version;

pub use error::NcclLibraryError;
pub use library::{NcclLibrary, NcclSearch};
pub use version::NcclVersion;
