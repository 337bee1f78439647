//! Programs as the interpreter kernel for GPUs runs them.
//!
//! The principal type is [`KernelPlan`]: from a program and a size it makes the tables that `runtime/cuda/interpreter.cu` reads. No
//! GPU is needed for that. Whoever has one allocates the memory that [`KernelPlan::needs`] says, maps the shared part of every
//! rank into its peers, copies [`KernelTables`] to the device, and launches [`kernel_name`] of [`KERNEL_PTX`] with the address of the
//! blocks as its only parameter. All blocks of a launch must be resident at the same time.

pub(crate) mod kernel_plan;
#[expect(unsafe_code, reason = "loads a library and calls its functions")]
pub(crate) mod nccl;
mod rank_tables;
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
