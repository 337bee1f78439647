//! A fake CUDA driver: the functions of `libcuda.so` that our code for GPUs uses, on a computer without a GPU.
//!
//! It is as unkind as a real driver may be, so that code which is right here has not only been lucky. Streams run on threads of
//! their own, with random delays from a seed. Addresses of device memory are such that a use on the host faults. Copies and kernels are
//! checked against the bounds of allocations, and freed memory is gone. A cooperative launch whose blocks would not all be
//! resident is refused. A kernel runs as the PTX that was loaded, on [`ptx::Machine`], which finds races and deadlocks. After a
//! fault, all calls fail. The name of its device says that it is a fake.
//!
//! Every process has a GPU of its own, and memory can be mapped into other processes: as file descriptors (`cuMemCreate` and what
//! belongs to it), and as handles (`cuIpcGetMemHandle`). The bytes are really shared. Each process sees them at other addresses, and not
//! before access was given; after they were unmapped or closed, a use is a fault. A plain allocation that another process has open
//! must not be freed. A kernel that waits for another process goes on a piece at a time, and copies and other kernels of its own process
//! may come in between.
//!
//! What it is not: races between processes, and between kernels that run at the same time, are not seen, because each process knows the
//! order of its own accesses only. Memory of other processes is as near as one's own, in the order of a CPU; there is no NVLink, and
//! neither P2P nor its attributes have any other effect than an answer. There are no handles for a fabric, no sizes of pages, no part
//! of an allocation is mapped, and there are no events between processes.

#![expect(unsafe_code, reason = "its callers give addresses, as to any driver")]

mod clock;
mod copies;
mod device;
mod driver;
mod events;
mod faults;
mod graphs;
mod handles;
mod kernels;
mod recordings;
mod shared;
mod streams;
mod virtual_memory;

pub use clock::{fakeCudaAdvance, fakeCudaClock};
pub use copies::*;
pub use driver::*;
pub use events::*;
pub use graphs::*;
pub use handles::*;
pub use kernels::*;
pub use virtual_memory::*;
