//! The memory in which others leave messages for a rank.
//!
//! The principal type is [`RankMemory`], which one rank owns and all ranks of its machine write to.
//!
//! ```text
//! rank memory:   | bell | notices | segments | a lane for each rank of the session, for its messages to this one |
//!                  64 B   192 B     1536 B     `lane_bytes` each; only what is used costs memory
//! ```

use super::lane_place::{LanePlace, lane_bytes, lines_between};
use super::process_memory::WordProbe;
use super::segments::{SEGMENT_BOARD_BYTES, SegmentBoard};
use crate::memory::doorbell::{BELL_BYTES, Doorbell};
use crate::memory::region::{OpenFilePlace, Region};
use crate::transport::notice::{BOARD_BYTES, NoticeBoard};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use topology::Rank;

const SEGMENTS_AT: usize = BELL_BYTES + BOARD_BYTES;
const LANES_AT: usize = SEGMENTS_AT + SEGMENT_BOARD_BYTES;

/// The memory of one rank.
#[derive(Clone)]
pub(crate) struct RankMemory {
    region: Arc<Region>,
    offset: usize,
    ranks: usize,
}

impl RankMemory {
    fn bytes(ranks: usize) -> io::Result<usize> {
        let bytes = ranks.checked_mul(lane_bytes(lines_between(ranks))).and_then(|lanes| lanes.checked_add(LANES_AT));
        bytes.ok_or_else(|| io::Error::other("too many ranks for one machine"))
    }

    /// Memory for one rank of so many.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub(crate) fn new(ranks: usize) -> io::Result<Self> {
        Ok(Self { region: Arc::new(Region::create(Self::bytes(ranks)?)?), offset: 0, ranks })
    }

    /// Memory for each of so many ranks of one process, by rank.
    ///
    /// # Errors
    /// If the operating system has no shared memory.
    pub(crate) fn of_threads(ranks: usize) -> io::Result<Vec<Self>> {
        let each = Self::bytes(ranks)?;
        let all = each.checked_mul(ranks).ok_or_else(|| io::Error::other("too many ranks for one machine"))?;
        let region = Arc::new(Region::create(all)?);
        Ok((0..ranks).map(|rank| Self { region: region.clone(), offset: rank * each, ranks }).collect())
    }

    /// Where another process finds it.
    ///
    /// # Errors
    /// If the system gives no path.
    pub(crate) fn place(&self) -> io::Result<OpenFilePlace> {
        OpenFilePlace::of(self.region.descriptor())
    }

    /// The memory of a rank in another process of this machine.
    pub(crate) fn open(place: OpenFilePlace, ranks: usize) -> io::Result<Self> {
        let region = Region::open(OwnedFd::from(place.open(OFlags::RDWR)?))?;
        if region.len() != Self::bytes(ranks)? {
            return Err(io::Error::other("the shared memory of a peer has another size"));
        }
        Ok(Self { region: Arc::new(region), offset: 0, ranks })
    }

    /// Wakes the owner.
    pub(crate) fn bell(&self) -> Doorbell {
        Doorbell::new(self.region.clone(), self.offset)
    }

    /// The owner's notices about broken communicators.
    pub(crate) fn notices(&self) -> NoticeBoard {
        NoticeBoard::new(self.region.clone(), self.offset + BELL_BYTES)
    }

    /// Which memory of the owner others can map.
    pub(crate) fn segments(&self) -> SegmentBoard {
        SegmentBoard::new(self.region.clone(), self.offset + SEGMENTS_AT)
    }

    /// The lane for messages from a rank to the owner.
    pub(crate) fn lane(&self, from: Rank) -> LanePlace {
        assert!(from.index() < self.ranks, "the session has this rank");
        let lines = lines_between(self.ranks);
        LanePlace::new(self.region.clone(), self.offset + LANES_AT + from.index() * lane_bytes(lines), lines)
    }
}

/// How a process tells the others where it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessPlace {
    /// Its rank memory.
    pub(crate) memory: OpenFilePlace,
    /// How a peer finds out whether it can read the process's memory.
    pub(crate) probe: WordProbe,
}
