//! Executes PTX without a GPU, to test kernels whose blocks wait for each other.
//!
//! The principal type is [`Machine`]. All blocks of a launch are resident, every thread has its own program counter, and a seed
//! decides whose turn it is. Vector clocks follow what happens before what: by barriers, and by releases and acquires whose
//! scopes include each other. The machine reports races with both lines of the PTX, deadlocks, accesses outside of memory or
//! without alignment, and barriers that some threads of a block do not reach. It executes memory operations in the order in
//! which threads take their turns: without a race, weaker orders give no other results.
//!
//! Memory may be shared with others than the machine, such as other processes ([`OutsideMemory`]). A launch that waits for them goes on a
//! piece at a time ([`Running`]), so that the host can use the machine meanwhile. Races with others, and between launches that run at
//! the same time, are not seen.
//!
//! It knows the part of PTX that NVRTC makes of our kernels, and refuses everything else by name.

mod arithmetic;
mod clocks;
mod code;
mod host;
mod machine;
mod memory;
mod parse;
mod report;
mod running;

pub use code::Module;
pub use machine::{Launch, Machine, Ran};
pub use memory::OutsideMemory;
pub use parse::PtxError;
pub use report::{Fault, Place};
pub use running::{Progress, Running};
