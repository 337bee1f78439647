//! Plans in the formats of other people's runtimes, read and written.
//!
//! One folder per format. Each has a typed document with the place of everything in the file, the limits of the
//! runtimes that execute it, and the way from and to a [`crate::program::Program`]; what a foreign plan means is judged by
//! [`crate::program::check`] like everything else.

pub mod msccl;
pub mod mscclpp;
