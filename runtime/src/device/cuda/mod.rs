//! GPUs by CUDA's driver, which is loaded at run time: everything builds and runs where there is none.
//!
//! The principal types are [`GpuDevice`] and [`GpuRanks`].

mod error;
mod gpu;
mod ranks;

pub use error::GpuError;
pub(in crate::device) use gpu::RelaxedCapture;
pub use gpu::{CurrentGpu, GpuDevice};
pub use ranks::{GpuBuffer, GpuLaunch, GpuRankBuffers, GpuRanks};
