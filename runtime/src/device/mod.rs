//! Programs as the interpreter kernel for GPUs runs them.
//!
//! The principal types are [`KernelPlan`] and [`GpuRanks`](cuda::GpuRanks). From a program and a size a plan makes the tables that
//! `runtime/cuda/interpreter.cu` reads. No GPU is needed for that. `cuda` has what needs one: it allocates the memory that
//! [`KernelPlan::needs`] says, copies the tables to the device, and launches [`kernel_name`] of [`KERNEL_PTX`] with the address
//! of the blocks as its only parameter. All blocks of a launch must be resident at the same time.
//!
//! [`KernelPlan`]: kernel_plan::KernelPlan
//! [`KernelPlan::needs`]: kernel_plan::KernelPlan::needs

#[expect(unsafe_code, reason = "launches kernels")]
pub(crate) mod cuda;
pub(crate) mod kernel_plan;
#[expect(unsafe_code, reason = "loads a library and calls its functions")]
pub(crate) mod nccl;
mod rank_tables;
pub(crate) mod rounds;
pub(crate) mod tables;

use crate::dtype::DType;

/// The interpreter kernel as PTX, from which a driver makes code for its GPU. NVRTC has made it from `interpreter.cu`.
pub const KERNEL_PTX: &str = include_str!("../../cuda/interpreter.ptx");

/// The source of the kernel.
pub const KERNEL_SOURCE: &str = include_str!("../../cuda/interpreter.cu");

/// The entry point for elements of a type.
pub fn kernel_name(dtype: DType) -> String {
    format!("antiphon_{}", dtype.as_str())
}

#[cfg(test)]
mod tests;
