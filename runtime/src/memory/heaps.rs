//! The places of the ranks' buffers, for other ranks of the same machine.
//!
//! The principal type is [`Heaps`].

use crate::memory::region::OpenFilePlace;
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

    /// Publishes the place of a rank's heap. The next barrier makes it visible to other ranks.
    pub(crate) fn publish(&self, rank: Rank, place: OpenFilePlace) {
        self.words.of_rank(rank, HEAP_INODE).store(place.inode, Ordering::Relaxed);
        let word = u64::from(place.process) << 32 | u64::from(place.descriptor);
        self.words.of_rank(rank, HEAP).store(word, Ordering::Relaxed);
    }

    /// The place of a rank's heap. Valid after a barrier at which that rank arrived after [`Self::publish`].
    pub(crate) fn of(&self, rank: Rank) -> OpenFilePlace {
        let word = self.words.of_rank(rank, HEAP).load(Ordering::Relaxed);
        let inode = self.words.of_rank(rank, HEAP_INODE).load(Ordering::Relaxed);
        OpenFilePlace { process: (word >> 32) as u32, descriptor: word as u32, inode }
    }
}
