//! Memory that GPUs of other processes map, with one GPU for each process of a computer.
//!
//! The principal types are [`PeerMemory`] and [`GpuRankAllReduce`]. All ranks allocate as many bytes, tell each other how to get at
//! them, map what the others have allocated, and unmap it at the end. How they tell each other is theirs ([`PeerGather`]).

mod allreduce;
mod driver;
mod error;
mod gather;
mod introduction;
mod kept;
mod memory;
mod sockets;
mod watch;

pub use allreduce::GpuRankAllReduce;
pub use error::PeerMemoryError;
pub use gather::PeerGather;
pub(in crate::device) use memory::clear;
pub use memory::{PeerMemory, PeerTerms, PeerWay};
pub use watch::PeerFault;
pub(in crate::device) use watch::PeerWatch;
