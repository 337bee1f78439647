//! GPUs by CUDA's driver, which is loaded at run time: everything builds and runs where there is none.
//!
//! The principal types are [`GpuDevice`], [`GpuRanks`] and [`GpuAllReduce`].

mod allreduce;
mod buffers;
mod calls;
mod error;
mod gate;
mod gpu;
mod memory;
mod ranks;
mod recording;

pub use allreduce::GpuAllReduce;
pub use buffers::{GpuBuffer, GpuRankBuffers};
pub(in crate::device) use buffers::{bytes_of, memory};
pub(in crate::device) use calls::GpuCalls;
pub use calls::GpuLaunch;
pub use error::GpuError;
pub(in crate::device) use gate::StreamGate;
pub(in crate::device) use gpu::RelaxedCapture;
pub use gpu::{CurrentGpu, GpuDevice};
pub use memory::GpuMemory;
pub use ranks::GpuRanks;
pub(in crate::device) use recording::RecordedOrder;
