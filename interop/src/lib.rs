//! Plans in the formats of other runtimes, read and written.
//!
//! There is one folder per format. Each has a typed document with the place of everything in the file, the limits of
//! the runtimes that execute it, and the conversion from and to a [`program::Program`]. The meaning of a foreign plan
//! is checked by [`program::check`], like every program.

pub mod msccl;
pub mod mscclpp;
pub mod nccl;
pub mod view;
