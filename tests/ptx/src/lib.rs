//! Executes PTX without a GPU, to test kernels whose blocks wait for each other.
//!
//! The principal type is [`Machine`]. All blocks of a launch are resident, every thread has its own program counter, and a seed
//! decides whose turn it is. Vector clocks follow what happens before what: by barriers, and by releases and acquires whose
//! scopes include each other. The machine reports races with both lines of the PTX, deadlocks, accesses outside of memory or
//! without alignment, and barriers that some threads of a block do not reach. It executes memory operations in the order in
//! which threads take their turns: without a race, weaker orders give no other results.
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

pub use code::Module;
pub use machine::{Launch, Machine, Ran};
pub use parse::PtxError;
pub use report::{Fault, Place};
