//! The memory that the ranks of one machine share.
//!
//! The principal type is [`Segment`]: it owns the layout and lends its parts, each for one purpose. Behind them is room
//! in which every trial places its rings and flags. All processes compute the same layout from the same
//! [`SegmentShape`], so they exchange no addresses. Every machine of a job has its own segment, with places for all
//! ranks. The control plane fills in what ranks of other machines do.
//!
//! ```text
//! offset       content
//! 0            verdict
//! 64           barrier: released, start, lead; activity elsewhere
//! 128          lock of the clocks
//! 256          128 bytes per rank, and for the relay: bell; beats, progress, phase, arrived, heap (two words), moves
//! behind it    clocks of the emulated machine, 8 bytes each
//! behind it    room for rings and flags, aligned to 64 bytes
//! ```

use crate::error::{RunError, RunResult};
use crate::memory::activity::Activity;
use crate::memory::atomics::AtomicU64;
use crate::memory::barrier::Barrier;
use crate::memory::clocks::EmulatedClocks;
use crate::memory::doorbell::{BELL_BYTES, Doorbell, Patience};
use crate::memory::heaps::Heaps;
use crate::memory::region::{OpenFilePlace, Region};
use crate::memory::stop::StopFlag;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use topology::Rank;

/// Offsets of the words of the whole job.
pub(super) const VERDICT: usize = 0;
pub(super) const RELEASED: usize = 64;
pub(super) const START: usize = 72;
pub(super) const LEAD: usize = 80;
pub(super) const ELSEWHERE: usize = 88;
pub(super) const CLOCK_LOCK: usize = 128;
const RANKS: usize = 256;
/// Offsets of the words of a rank, in the part of that rank.
pub(super) const BEATS: usize = BELL_BYTES;
pub(super) const PROGRESS: usize = BELL_BYTES + 8;
pub(super) const PHASE: usize = BELL_BYTES + 16;
pub(super) const ARRIVED: usize = BELL_BYTES + 24;
pub(super) const HEAP: usize = BELL_BYTES + 32;
pub(super) const HEAP_INODE: usize = BELL_BYTES + 40;
pub(super) const MOVES: usize = BELL_BYTES + 48;
const RANK_BYTES: usize = BELL_BYTES + 64;

/// What two processes must agree on to compute the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SegmentShape {
    pub(crate) ranks: usize,
    /// The number of links and resources of the emulated machine; 0 without emulation.
    pub(crate) clocks: usize,
    /// The bytes for rings and flags.
    pub(crate) room: usize,
    /// Whether ranks of other machines take part. Then a relay releases the barrier, not rank 0.
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

    /// The bell of the relay, which waits for the ranks of this machine to arrive at a barrier.
    pub(super) fn relay(&self) -> Doorbell {
        self.at(self.ranks)
    }

    /// Wakes all ranks and the relay.
    pub(super) fn ring_all(&self) {
        (0..=self.ranks).for_each(|index| self.at(index).ring());
    }
}

/// The shared memory of one machine of a job.
#[derive(Clone)]
pub(crate) struct Segment {
    region: Arc<Region>,
    shape: SegmentShape,
    /// Computed once: the kernel reads files to count the cores, which takes longer than a small message.
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
    /// Until when the links and resources of an emulated machine are busy.
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
        let patience = Patience::here(shape.ranks);
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

    /// The place of the segment, for other processes of this machine.
    pub(crate) fn place(&self) -> RunResult<OpenFilePlace> {
        OpenFilePlace::of(self.descriptor()).map_err(RunError::system("publishing shared memory"))
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The offsets in which rings and flags may lie.
    pub(crate) fn room(&self) -> Range<usize> {
        self.shape.room_start()..self.shape.bytes()
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.shape.ranks
    }

    pub(crate) fn shape(&self) -> SegmentShape {
        self.shape
    }

    /// How long an idle rank polls before it sleeps.
    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }
}
