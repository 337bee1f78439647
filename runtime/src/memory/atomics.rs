//! The atomics of shared memory: those of the processor, or those of the model checker `loom`.
//!
//! With the feature `model`, all words of regions are loom's, which tries all orders of what threads do and all values that a load
//! may see (C11 memory model). Only `runtime/tests/models.rs` runs then.

#[cfg(feature = "model")]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(feature = "model"))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(feature = "model")]
pub(crate) use loom::thread::yield_now;
#[cfg(not(feature = "model"))]
pub(crate) use std::thread::yield_now;

/// The words of a region while it is modelled. All are made with the region, because loom takes that for a write.
#[cfg(feature = "model")]
pub(crate) struct ModelWords(Vec<ModelWord>);

#[cfg(feature = "model")]
struct ModelWord {
    narrow: AtomicU32,
    wide: AtomicU64,
    /// What plain reads and writes of the line that begins here are told to.
    line: loom::cell::UnsafeCell<()>,
}

// SAFETY: the cell has no contents, and loom complains if two threads use it at the same time.
#[cfg(feature = "model")]
unsafe impl Sync for ModelWord {}

#[cfg(feature = "model")]
impl ModelWords {
    /// The words of so many bytes, each 0. A word begins at a multiple of 4.
    pub(crate) fn new(bytes: usize) -> Self {
        let word =
            |_| ModelWord { narrow: AtomicU32::new(0), wide: AtomicU64::new(0), line: loom::cell::UnsafeCell::new(()) };
        Self((0..bytes.div_ceil(4)).map(word).collect())
    }

    fn at(&self, offset: usize) -> &ModelWord {
        &self.0[offset / 4]
    }

    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        &self.at(offset).narrow
    }

    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        &self.at(offset).wide
    }

    /// Tells the model checker that plain memory is read or written, which no other thread may write meanwhile.
    pub(crate) fn touch(&self, offset: usize, writes: bool) {
        let cell = &self.at(offset).line;
        if writes { cell.with_mut(|_| ()) } else { cell.with(|_| ()) }
    }
}
