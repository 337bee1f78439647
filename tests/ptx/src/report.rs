//! What the machine reports.

use std::fmt;

/// Where something happened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The line of the PTX, from 1.
    pub line: u32,
    /// The block of the grid.
    pub block: u32,
    /// The thread in its block.
    pub thread: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} (block {}, thread {})", self.line, self.block, self.thread)
    }
}

/// Why a launch has stopped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Two accesses of one byte, one of them a write, without an order.
    #[error("race at address {address:#x}: {first} and {second}")]
    Race {
        /// The byte.
        address: u64,
        /// The access that came first this time.
        first: Place,
        /// The other one.
        second: Place,
    },
    /// Threads only wait, and nobody changes what they wait for.
    #[error("deadlock: {} threads are left, such as {}", .waiting.len(), .waiting.first().map(ToString::to_string).unwrap_or_default())]
    Deadlock {
        /// Where they wait.
        waiting: Vec<Place>,
    },
    /// An access where there is no memory.
    #[error("{place}: {bytes} bytes at {address:#x} are outside of all memory")]
    OutOfBounds {
        /// Who.
        place: Place,
        /// Where.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// An access at an address that is not a multiple of its size.
    #[error("{place}: {bytes} bytes at {address:#x} are not aligned")]
    Misaligned {
        /// Who.
        place: Place,
        /// Where.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Threads of one block wait at different barriers, or have ended while others wait.
    #[error("{place}: some threads of the block do not come to this barrier")]
    Divergence {
        /// A thread that waits.
        place: Place,
    },
    /// An instruction without a result, such as a division by zero.
    #[error("{place}: no result")]
    NoResult {
        /// Who.
        place: Place,
    },
    /// A launch that cannot begin.
    #[error("{0}")]
    Launch(String),
}
