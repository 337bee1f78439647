//! A chunk: what moves as one, and its id.

use crate::RankSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use topology::{Bytes, Micros, Rank};

/// The largest buffer, in bytes (one PiB): sizes stay exact as `f64`.
pub const MAX_SIZE: u64 = 1 << 50;
/// The latest release of a chunk, 100 ms: the tolerance of times, which is relative, stays far shorter than messages are.
pub const MAX_RELEASE: Micros = Micros(1e5);
/// The most chunks a demand may have.
pub const MAX_CHUNKS: usize = 1 << 24;

/// The id of a chunk: its position in [`Demand::chunks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// The id as an index into a dense table.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A piece of data that moves as one.
#[derive(Clone, PartialEq, Debug)]
pub struct Chunk {
    /// The ranks that start with it; for a combining chunk, the ranks that contribute a value.
    pub holders: RankSet,
    /// The ranks that must end with it, including those that start with it.
    pub wanted_by: RankSet,
    /// Whether the holders' values are reduced into one.
    pub combine: bool,
    /// Its size where that differs from the demand's `chunk_bytes` (alltoallv, custom).
    pub bytes: Option<Bytes>,
    /// The earliest time at which its values are at its holders: zero, or the start of its group. No message carries it
    /// before that time.
    pub release: Micros,
}

impl Chunk {
    /// The ranks that want it and do not start with it, in ascending order.
    pub fn lacking(&self) -> impl Iterator<Item = Rank> + '_ {
        self.wanted_by.iter().copied().filter(|&rank| !self.holders.has(rank))
    }

    /// Whether several values become one.
    pub fn is_sum(&self) -> bool {
        self.combine && self.holders.len() > 1
    }
}
