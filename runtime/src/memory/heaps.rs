//! Where ranks find the buffers of other ranks of their machine.
//!
//! The principal type is [`Heaps`].

use crate::memory::region::Place;
use crate::memory::segment::{HEAP, HEAP_INODE, Words};
use std::sync::atomic::Ordering;
use topology::Rank;

/// The places of all ranks' heaps ([`crate::memory::heap`]).
#[derive(Clone)]
pub(crate) struct Heaps {
    words: Words,
}

impl Heaps {
    pub(super) fn new(words: Words) -> Self {
        Self { words }
    }

    /// Says where others find the heap of a rank; the barrier that follows makes it visible.
    pub(crate) fn publish(&self, rank: Rank, place: Place) {
        self.words.of_rank(rank, HEAP_INODE).store(place.inode, Ordering::Relaxed);
        let word = u64::from(place.process) << 32 | u64::from(place.descriptor);
        self.words.of_rank(rank, HEAP).store(word, Ordering::Relaxed);
    }

    /// Where the heap of a rank is; after a barrier to which that rank came with what it had published.
    pub(crate) fn of(&self, rank: Rank) -> Place {
        let word = self.words.of_rank(rank, HEAP).load(Ordering::Relaxed);
        let inode = self.words.of_rank(rank, HEAP_INODE).load(Ordering::Relaxed);
        Place { process: (word >> 32) as u32, descriptor: word as u32, inode }
    }
}
