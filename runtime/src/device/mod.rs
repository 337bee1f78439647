//! Programs as the interpreter kernel for GPUs runs them.
//!
//! The principal types are [`KernelPlan`] and [`GpuRanks`](cuda::GpuRanks). From a program and a size a plan makes the tables that
//! `runtime/cuda/interpreter.cu` reads. No GPU is needed for that. `cuda` has what needs one: it allocates the memory that
//! [`KernelPlan::needs`] says, copies the tables to the device, and launches [`kernel_name`] of [`KERNEL_PTX`] with the address
//! of the blocks as its only parameter. All blocks of a launch must be resident at the same time. [`PeerAllReduce`] does the same
//! for the AllReduce on registered buffers, which needs no program. `peer_memory` maps memory between GPUs of several processes.
//!
//! [`KernelPlan`]: kernel_plan::KernelPlan
//! [`KernelPlan::needs`]: kernel_plan::KernelPlan::needs
//! [`PeerAllReduce`]: peers::PeerAllReduce

#[expect(unsafe_code, reason = "launches kernels")]
pub(crate) mod cuda;
mod images;
pub(crate) mod kernel_plan;
#[expect(unsafe_code, reason = "loads a library and calls its functions")]
pub(crate) mod nccl;
#[expect(unsafe_code, reason = "loads a library and calls its functions")]
pub(crate) mod nvml;
#[expect(unsafe_code, reason = "maps memory of other processes")]
pub(crate) mod peer_memory;
pub(crate) mod peers;
mod rank_tables;
pub(crate) mod rounds;
pub(crate) mod tables;

use crate::dtype::DType;

/// The interpreter kernel as PTX, from which a driver makes code for GPUs of kinds for which there is none. NVRTC has made it from
/// `interpreter.cu`.
pub const KERNEL_PTX: &str = include_str!("../../cuda/interpreter.ptx");

/// The kernels of [`PeerAllReduce`](peers::PeerAllReduce) as PTX. NVRTC has made it from `allreduce.cu`.
pub const ALLREDUCE_PTX: &str = include_str!("../../cuda/allreduce.ptx");

/// The entry point for elements of a type.
pub fn kernel_name(dtype: DType) -> String {
    format!("antiphon_{}", dtype.as_str())
}

#[cfg(test)]
mod tests;
