//! Where the parts of a lane lie.
//!
//! The principal type is [`LanePlace`].
//!
//! ```text
//! | lines that were released | offers: 64 × (state, address, bytes, segment) | ring of lines: sequence, bytes; communicator; stamp; tag; payload |
//!   64 bytes                   64 × 64 bytes                          256 to 1024 × 64 bytes
//! ```
//!
//! The more lines, the longer the messages that lie in the lane itself, and the more memory: lanes go from each rank to each. So
//! lanes between few ranks are longer.

use crate::memory::atomics::{AtomicU32, AtomicU64};
use crate::memory::region::Region;
use std::sync::Arc;

/// Bytes of a line.
pub(super) const LINE: usize = 64;
/// The fewest lines of a ring.
const FEWEST_LINES: u32 = if cfg!(feature = "model") { 4 } else { 256 };
/// In sessions of up to so many ranks, rings have so many lines.
const MORE_LINES: [(usize, u32); 2] = [(16, 1024), (64, 512)];
/// How many offers of a lane may be open.
pub(super) const OFFERS: usize = if cfg!(feature = "model") { 1 } else { 64 };
pub(super) const OFFERS_AT: usize = LINE;
pub(super) const LINES_AT: usize = OFFERS_AT + OFFERS * LINE;
/// Bytes of the payload in the first line of a message, and in each that follows.
pub(crate) const FIRST: usize = LINE - 32;
pub(super) const NEXT: usize = LINE - 8;
/// The longest message that lies in the lane itself, in every lane.
pub(crate) const SHORTEST_LIMIT: usize = longest_message(FEWEST_LINES);

/// How many lines the lanes between so many ranks have: a power of two, so that sequence numbers can wrap.
pub(crate) fn lines_between(ranks: usize) -> u32 {
    let more = MORE_LINES.iter().find(|(most, _)| ranks <= *most && !cfg!(feature = "model"));
    more.map_or(FEWEST_LINES, |(_, lines)| *lines)
}

/// The bytes of a lane with so many lines.
pub(crate) const fn lane_bytes(lines: u32) -> usize {
    LINES_AT + lines as usize * LINE
}

/// The longest message that lies in a lane of so many lines: three fit.
const fn longest_message(lines: u32) -> usize {
    FIRST + (lines as usize * 3 / 10 - 1) * NEXT
}

/// Where a lane lies.
pub(crate) struct LanePlace {
    /// The first byte of the lane.
    start: *mut u8,
    /// Keeps the memory mapped.
    region: Arc<Region>,
    offset: usize,
    /// How many lines its ring has: a power of two.
    lines: u32,
}

// SAFETY: all that two threads may use at the same time is atomic; the rest belongs to one end at a time (`publish`, `release`).
unsafe impl Send for LanePlace {}

impl LanePlace {
    /// A lane of so many lines, a power of two, that begins at `offset`.
    pub(crate) fn new(region: Arc<Region>, offset: usize, lines: u32) -> Self {
        let start = region.pointer(offset, lane_bytes(lines));
        assert!(start.cast::<u64>().is_aligned() && lines.is_power_of_two(), "lanes begin at a line");
        Self { start, region, offset, lines }
    }

    /// How many lines its ring has.
    pub(super) fn lines(&self) -> u32 {
        self.lines
    }

    /// The longest message that lies in the lane itself.
    pub(super) fn longest(&self) -> usize {
        longest_message(self.lines)
    }

    /// A word of the lane.
    pub(super) fn word32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= lane_bytes(self.lines), "inside the lane");
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
        debug_assert!(offset + 8 <= lane_bytes(self.lines), "inside the lane");
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
    fn line_at(&self, number: u32) -> usize {
        LINES_AT + (number & (self.lines - 1)) as usize * LINE
    }

    /// The address of a line that the sender writes, or the receiver reads.
    pub(super) fn line(&self, number: u32, writes: bool) -> *mut u8 {
        let at = self.line_at(number);
        self.region.touch(self.offset + at, writes);
        // SAFETY: inside the lane.
        unsafe { self.start.add(at) }
    }

    /// The first word of a line: its sequence number, and how long the message is that begins in it.
    pub(super) fn front(&self, number: u32) -> &AtomicU64 {
        self.word64(self.line_at(number))
    }

    pub(super) fn state(&self, slot: usize) -> &AtomicU32 {
        self.word32(OFFERS_AT + slot % OFFERS * LINE)
    }

    /// Address and length of what is offered, and the name of its segment.
    pub(super) fn offered(&self, slot: usize) -> [&AtomicU64; 3] {
        [8, 16, 24].map(|word| self.word64(OFFERS_AT + slot % OFFERS * LINE + word))
    }
}
