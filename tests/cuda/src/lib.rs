//! A fake CUDA driver: the functions of `libcuda.so` that our code for GPUs uses, on a computer without a GPU.
//!
//! It is as unkind as a real driver may be, so that code which is right here has not only been lucky. Streams run on threads of
//! their own, with random delays from a seed. Addresses of device memory are such that a use on the host faults. Copies and kernels are
//! checked against the bounds of allocations, and freed memory is gone. A cooperative launch whose blocks would not all be
//! resident is refused. A kernel runs as the PTX that was loaded, on [`ptx::Machine`], which finds races and deadlocks. After a
//! fault, all calls fail. The name of its device says that it is a fake.
//!
//! What it is not: kernels never run at the same time, copies do not overtake them, graphs have one stream, and there are neither peers nor
//! memory of other processes.

#![expect(unsafe_code, reason = "its callers give addresses, as to any driver")]

mod clock;
mod copies;
mod device;
mod driver;
mod events;
mod graphs;
mod kernels;
mod streams;

pub use clock::{fakeCudaAdvance, fakeCudaClock};
pub use copies::*;
pub use driver::*;
pub use graphs::*;
pub use kernels::*;
