//! The clocks of an emulated machine: until when each link and each resource is busy.
//!
//! The principal type is [`EmulatedClocks`]; [`Pacer`](crate::pacing::pace::Pacer) decides what the clocks say.

use crate::memory::atomics::AtomicU64;
use crate::memory::region::Region;
use crate::memory::segment::CLOCK_LOCK;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One clock for each link and each resource, and one lock for all of them.
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

    /// The time until which the `index`-th link or resource is busy, in nanoseconds of [`Moment`](crate::Moment).
    pub(crate) fn of(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "the segment was made for this topology");
        self.region.word64(self.start + index * 8)
    }

    /// Runs `claim` while no other rank runs one; `None` if another rank does so now.
    pub(crate) fn try_exclusive<T>(&self, claim: impl FnOnce() -> T) -> Option<T> {
        let lock = self.region.word32(CLOCK_LOCK);
        lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let result = claim();
        lock.store(0, Ordering::Release);
        Some(result)
    }
}
