//! Where the parts of a lane lie.
//!
//! The principal type is [`LanePlace`].
//!
//! ```text
//! | lines that were released | offers: 64 × (state, address, bytes, segment) | ring of lines: sequence, bytes; communicator; stamp; tag; payload |
//!   64 bytes                   64 × 64 bytes                          256 × 64 bytes
//! ```

use crate::memory::atomics::{AtomicU32, AtomicU64};
use crate::memory::region::Region;
use std::sync::Arc;

/// Bytes of a line.
pub(super) const LINE: usize = 64;
/// Lines of a ring: a power of two, so that sequence numbers can wrap.
pub(super) const LINES: u32 = if cfg!(feature = "model") { 4 } else { 256 };
/// How many offers of a lane may be open.
pub(super) const OFFERS: usize = if cfg!(feature = "model") { 1 } else { 64 };
pub(super) const OFFERS_AT: usize = LINE;
pub(super) const LINES_AT: usize = OFFERS_AT + OFFERS * LINE;
/// The bytes of a lane.
pub(crate) const LANE_BYTES: usize = LINES_AT + LINES as usize * LINE;

/// Where a lane lies.
pub(super) struct LanePlace {
    /// The first byte of the lane.
    start: *mut u8,
    /// Keeps the memory mapped.
    region: Arc<Region>,
    offset: usize,
}

// SAFETY: all that two threads may use at the same time is atomic; the rest belongs to one end at a time (`publish`, `release`).
unsafe impl Send for LanePlace {}

impl LanePlace {
    pub(super) fn new(region: Arc<Region>, offset: usize) -> Self {
        let start = region.pointer(offset, LANE_BYTES);
        assert!(start.cast::<u64>().is_aligned(), "lanes begin at a line");
        Self { start, region, offset }
    }

    /// A word of the lane.
    pub(super) fn word32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= LANE_BYTES, "inside the lane");
        #[cfg(feature = "model")]
        return self.region.word32(self.offset + offset);
        // SAFETY: inside the lane, which is mapped while `self` lives; all offsets are multiples of 8. Both ends access words
        // only as atomics.
        #[cfg(not(feature = "model"))]
        unsafe {
            AtomicU32::from_ptr(self.start.add(offset).cast())
        }
    }

    /// A long word of the lane.
    pub(super) fn word64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= LANE_BYTES, "inside the lane");
        #[cfg(feature = "model")]
        return self.region.word64(self.offset + offset);
        // SAFETY: as for `word32`.
        #[cfg(not(feature = "model"))]
        unsafe {
            AtomicU64::from_ptr(self.start.add(offset).cast())
        }
    }

    pub(super) fn released(&self) -> &AtomicU32 {
        self.word32(0)
    }

    /// Where a line begins.
    pub(super) fn offset(number: u32) -> usize {
        LINES_AT + (number % LINES) as usize * LINE
    }

    /// The address of a line that the sender writes, or the receiver reads.
    pub(super) fn line(&self, number: u32, writes: bool) -> *mut u8 {
        self.region.touch(self.offset + Self::offset(number), writes);
        // SAFETY: inside the lane.
        unsafe { self.start.add(Self::offset(number)) }
    }

    /// The first word of a line: its sequence number, and how long the message is that begins in it.
    pub(super) fn front(&self, number: u32) -> &AtomicU64 {
        self.word64(Self::offset(number))
    }

    pub(super) fn state(&self, slot: usize) -> &AtomicU32 {
        self.word32(OFFERS_AT + slot % OFFERS * LINE)
    }

    /// Address and length of what is offered, and the name of its segment.
    pub(super) fn offered(&self, slot: usize) -> [&AtomicU64; 3] {
        [8, 16, 24].map(|word| self.word64(OFFERS_AT + slot % OFFERS * LINE + word))
    }
}
