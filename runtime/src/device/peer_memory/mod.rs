//! Memory that GPUs of other processes map, with one GPU for each process of a computer.
//!
//! The principal types are [`PeerMemory`] and [`GpuRankAllReduce`]. All ranks allocate as many bytes, tell each other how to get at
//! them, map what the others have allocated, and unmap it at the end. How they tell each other is theirs ([`PeerExchange`]).

mod allreduce;
mod driver;
mod error;
mod exchange;
mod memory;
mod sockets;

pub use allreduce::GpuRankAllReduce;
pub use error::PeerMemoryError;
pub use exchange::PeerExchange;
pub use memory::{PeerMemory, PeerTerms, PeerWay};
