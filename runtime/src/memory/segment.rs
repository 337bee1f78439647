//! The memory that the ranks of one machine share.
//!
//! The principal type is [`Segment`]: it owns the layout and lends its parts, each of which has one job. Behind them is
//! room in which every trial places its rings and flags. All processes compute the same layout from the same
//! [`SegmentShape`], so no address is ever exchanged. Every machine of a job has a segment of its own, with places for
//! all ranks; what ranks of other machines do is told by the control plane.
//!
//! ```text
//! | verdict | barrier: released, start, lead; elsewhere | lock | per rank, and for the relay:                      | clocks   | room |
//! |         |                                           |      | bell; beats, progress, phase, arrived, heap, moves |          |      |
//!   0         64                                          128    256, 128 bytes each                                  8 B each
//! ```

use crate::error::{RunError, RunResult};
use crate::memory::activity::Activity;
use crate::memory::barrier::Barrier;
use crate::memory::clocks::EmulatedClocks;
use crate::memory::doorbell::{BELL_BYTES, Doorbell, Patience};
use crate::memory::heaps::Heaps;
use crate::memory::region::{Place, Region};
use crate::memory::stop::StopFlag;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use topology::Rank;

/// Words of the whole job, by their offsets.
pub(super) const VERDICT: usize = 0;
pub(super) const RELEASED: usize = 64;
pub(super) const START: usize = 72;
pub(super) const LEAD: usize = 80;
pub(super) const ELSEWHERE: usize = 88;
pub(super) const CLOCK_LOCK: usize = 128;
const RANKS: usize = 256;
/// Words of each rank, by their offsets in its part.
pub(super) const BEATS: usize = BELL_BYTES;
pub(super) const PROGRESS: usize = BELL_BYTES + 8;
pub(super) const PHASE: usize = BELL_BYTES + 16;
pub(super) const ARRIVED: usize = BELL_BYTES + 24;
pub(super) const HEAP: usize = BELL_BYTES + 32;
pub(super) const HEAP_INODE: usize = BELL_BYTES + 40;
pub(super) const MOVES: usize = BELL_BYTES + 48;
const RANK_BYTES: usize = BELL_BYTES + 64;

/// What must be equal for two processes to compute the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SegmentShape {
    pub(crate) ranks: usize,
    /// Links and resources of the emulated cluster; 0 without one.
    pub(crate) clocks: usize,
    /// The bytes for rings and flags.
    pub(crate) room: usize,
    /// Whether ranks of other machines take part, so that not rank 0 but a relay starts everybody.
    pub(crate) spread: bool,
}

impl SegmentShape {
    fn clocks_start(self) -> usize {
        RANKS + (self.ranks + 1) * RANK_BYTES
    }

    fn room_start(self) -> usize {
        (self.clocks_start() + self.clocks * 8).next_multiple_of(64)
    }

    fn bytes(self) -> usize {
        self.room_start() + self.room
    }
}

/// Finds the words of a segment.
#[derive(Clone)]
pub(super) struct Words {
    region: Arc<Region>,
    ranks: usize,
}

impl Words {
    /// A word of the whole job.
    pub(super) fn of_all(&self, offset: usize) -> &AtomicU64 {
        self.region.word64(offset)
    }

    /// A word of one rank.
    pub(super) fn of_rank(&self, rank: Rank, field: usize) -> &AtomicU64 {
        assert!(rank.index() < self.ranks, "the segment was made for this job");
        self.region.word64(RANKS + rank.index() * RANK_BYTES + field)
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.ranks).map(Rank::from_index)
    }
}

/// The bells of a segment.
#[derive(Clone)]
pub(crate) struct Bells {
    region: Arc<Region>,
    ranks: usize,
}

impl Bells {
    fn at(&self, index: usize) -> Doorbell {
        Doorbell::new(self.region.clone(), RANKS + index * RANK_BYTES)
    }

    /// The bell that wakes `rank`.
    pub(crate) fn of(&self, rank: Rank) -> Doorbell {
        assert!(rank.index() < self.ranks, "the segment was made for this job");
        self.at(rank.index())
    }

    /// The bell that wakes the relay, which waits for the ranks of this machine to arrive at a barrier.
    pub(super) fn relay(&self) -> Doorbell {
        self.at(self.ranks)
    }

    /// Wakes everybody.
    pub(super) fn ring_all(&self) {
        (0..=self.ranks).for_each(|index| self.at(index).ring());
    }
}

/// The shared memory of one machine of a job.
#[derive(Clone)]
pub(crate) struct Segment {
    region: Arc<Region>,
    shape: SegmentShape,
    /// Asked once: the kernel reads files to say how many cores there are, which takes longer than a small message.
    patience: Patience,
    /// How ranks wake each other.
    pub(crate) bells: Bells,
    /// Whether the job has ended, and why.
    pub(crate) verdict: StopFlag,
    /// What each rank is doing.
    pub(crate) activity: Activity,
    /// Where ranks wait for each other.
    pub(crate) barrier: Barrier,
    /// Where ranks find each other's buffers.
    pub(crate) heaps: Heaps,
    /// Until when links and resources of an emulated machine are busy.
    pub(crate) clocks: EmulatedClocks,
}

impl Segment {
    pub(crate) fn create(shape: SegmentShape) -> RunResult<Self> {
        let region = Region::create(shape.bytes()).map_err(RunError::system("creating shared memory"))?;
        Ok(Self::over(region, shape))
    }

    pub(crate) fn open(descriptor: OwnedFd, shape: SegmentShape) -> RunResult<Self> {
        let region = Region::open(descriptor).map_err(RunError::system("mapping shared memory"))?;
        if region.len() != shape.bytes() {
            let what = format!("the shared memory has {} bytes, which is not what its shape gives", region.len());
            return Err(RunError::Mismatch { what });
        }
        Ok(Self::over(region, shape))
    }

    fn over(region: Region, shape: SegmentShape) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let patience = Patience::of(shape.ranks, cores);
        let region = Arc::new(region);
        let words = Words { region: region.clone(), ranks: shape.ranks };
        let bells = Bells { region: region.clone(), ranks: shape.ranks };
        let verdict = StopFlag::new(words.clone(), bells.clone());
        let activity = Activity::new(words.clone());
        let barrier =
            Barrier::new(words.clone(), bells.clone(), verdict.clone(), activity.clone(), patience, shape.spread);
        let clocks = EmulatedClocks::new(region.clone(), shape.clocks_start(), shape.clocks);
        Self { region, shape, patience, bells, verdict, activity, barrier, heaps: Heaps::new(words), clocks }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.region.descriptor()
    }

    /// Where other processes of this machine find it.
    pub(crate) fn place(&self) -> RunResult<Place> {
        Place::of(self.descriptor()).map_err(RunError::system("publishing shared memory"))
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where rings and flags may lie.
    pub(crate) fn room(&self) -> Range<usize> {
        self.shape.room_start()..self.shape.bytes()
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.shape.ranks
    }

    pub(crate) fn shape(&self) -> SegmentShape {
        self.shape
    }

    /// What an idle rank does before it sleeps.
    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }
}
