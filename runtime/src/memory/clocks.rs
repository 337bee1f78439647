//! Until when the links and resources of an emulated machine are busy.
//!
//! The principal type is [`EmulatedClocks`]; [`Pacer`](crate::pacing::pace::Pacer) decides what they say.

use crate::memory::region::Region;
use crate::memory::segment::CLOCK_LOCK;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One clock for each link and each resource, and a lock over all.
#[derive(Clone)]
pub(crate) struct EmulatedClocks {
    region: Arc<Region>,
    start: usize,
    count: usize,
}

impl EmulatedClocks {
    pub(super) fn new(region: Arc<Region>, start: usize, count: usize) -> Self {
        Self { region, start, count }
    }

    /// Until when the `index`-th link or resource is busy (nanoseconds of [`Moment`](crate::Moment)).
    pub(crate) fn of(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "the segment was made for this topology");
        self.region.word64(self.start + index * 8)
    }

    /// Runs `claim` alone among all ranks; `None` if another rank is inside right now.
    pub(crate) fn try_exclusive<T>(&self, claim: impl FnOnce() -> T) -> Option<T> {
        let lock = self.region.word32(CLOCK_LOCK);
        lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let result = claim();
        lock.store(0, Ordering::Release);
        Some(result)
    }
}
