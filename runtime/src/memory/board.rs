//! The memory that the ranks of a job share, and the little that they agree on through it.
//!
//! The principal type is [`Board`]: doorbells, progress counters, the common start, the coordinator's verdict and
//! the clocks of an emulated cluster, followed by an arena in which every trial lays out its rings and flags. Both sides
//! compute the same layout from the same numbers, so no address is ever exchanged. Every machine of a job has a board of
//! its own with places for all ranks; what ranks of other machines do is told by the control plane.
//!
//! ```text
//! | verdict | start: released, moment, lead, elsewhere | pace lock | per rank, and for the courier:              | clocks | arena |
//! |         |                                          |           | bell; beat, progress, phase, arrived, heap, moves |        |       |
//!   0         64                                         128         256, 128 bytes each                          8 B each
//! ```

use crate::clock::Moment;
use crate::error::{Phase, RunError, RunResult};
use crate::memory::arena::Arena;
use crate::memory::doorbell::{BELL_BYTES, Doorbell, Patience, Waiter};
use crate::memory::region::{Place, Region};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use topology::Rank;

const VERDICT: usize = 0;
const RELEASED: usize = 64;
const START: usize = 72;
const LEAD: usize = 80;
const ELSEWHERE: usize = 88;
const PACE_LOCK: usize = 128;
const RANKS: usize = 256;
const RANK_BYTES: usize = BELL_BYTES + 64;
const BEAT: usize = BELL_BYTES;
const PROGRESS: usize = BELL_BYTES + 8;
const PHASE: usize = BELL_BYTES + 16;
const ARRIVED: usize = BELL_BYTES + 24;
const HEAP: usize = BELL_BYTES + 32;
const HEAP_INODE: usize = BELL_BYTES + 40;
const MOVES: usize = BELL_BYTES + 48;

/// Why the coordinator ended a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Its process ended.
    Died,
    /// Its process exists but does not run (stopped, or starved).
    Silent,
    /// It runs, but did not finish before the deadline.
    Late,
    /// It reported an error.
    Failed,
    /// It executes another plan, or speaks another protocol version.
    Disagrees,
    /// The launcher is gone, or does not run, so nobody can decide any more.
    Orphaned,
    /// It and others lost each other, and none of them died.
    Cut,
    /// The connection with the process that looks after it has ended: that process has, or the connection was cut.
    Lost,
}

/// The coordinator's decision that a job is over: whose fault, and where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Whose fault it is.
    pub rank: Rank,
    /// What it did.
    pub cause: Cause,
    /// Where it was.
    pub phase: Phase,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, cause, phase } = self;
        match cause {
            Cause::Died => write!(f, "rank {rank} died during {phase}"),
            Cause::Silent => write!(f, "rank {rank} stopped responding during {phase}"),
            Cause::Late => write!(f, "rank {rank} did not finish {phase} before the deadline"),
            Cause::Failed => write!(f, "rank {rank} failed during {phase}"),
            Cause::Disagrees => write!(f, "rank {rank} disagrees about the plan or the protocol, in {phase}"),
            Cause::Cut => write!(f, "rank {rank} was cut off from others during {phase}"),
            Cause::Orphaned => write!(f, "the launcher is gone or stopped; noticed by rank {rank} during {phase}"),
            Cause::Lost => write!(f, "rank {rank} was lost during {phase}: its process ended, or its connection"),
        }
    }
}

const CAUSES: [Cause; 8] = {
    use Cause::{Cut, Died, Disagrees, Failed, Late, Lost, Orphaned, Silent};
    [Died, Silent, Late, Failed, Disagrees, Orphaned, Cut, Lost]
};
const PHASES: [Phase; 4] = [Phase::Prepare, Phase::Start, Phase::Work, Phase::Report];

impl Verdict {
    /// Never zero, which means that there is no verdict.
    fn to_word(self) -> u64 {
        1 + ((u64::from(self.rank.0) * 16 + self.cause as u64) * 16 + self.phase as u64)
    }

    fn from_word(word: u64) -> Option<Self> {
        let code = word.checked_sub(1)?;
        let cause = CAUSES[(code / 16 % 16) as usize % CAUSES.len()];
        Some(Self { rank: Rank((code / 256) as u32), cause, phase: PHASES[(code % 16) as usize % PHASES.len()] })
    }
}

/// What must be equal for two processes to compute the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct BoardShape {
    pub(crate) ranks: usize,
    /// Links and resources of the emulated cluster; 0 without one.
    pub(crate) clocks: usize,
    /// The bytes for rings.
    pub(crate) arena: usize,
    /// Whether ranks of other machines take part, so that not rank 0 but a courier starts everybody.
    pub(crate) spread: bool,
}

impl BoardShape {
    fn arena_start(self) -> usize {
        (self.clocks_start() + self.clocks * 8).next_multiple_of(64)
    }

    fn clocks_start(self) -> usize {
        RANKS + (self.ranks + 1) * RANK_BYTES
    }

    /// The place behind the last rank.
    fn courier(self) -> Rank {
        Rank::from_index(self.ranks)
    }
}

/// The shared memory of a job.
#[derive(Clone)]
pub(crate) struct Board {
    region: Arc<Region>,
    shape: BoardShape,
    /// Why this process has given up, if it has: a verdict's word, or zero.
    abandoned: Arc<AtomicU64>,
    /// Asked once: the kernel reads files to say how many cores there are, which takes longer than a small message.
    patience: Patience,
}

impl Board {
    pub(crate) fn create(shape: BoardShape) -> RunResult<Self> {
        let bytes = shape.arena_start() + shape.arena;
        let region = Region::create(bytes).map_err(RunError::system("creating shared memory"))?;
        Ok(Self::over(region, shape))
    }

    pub(crate) fn open(descriptor: OwnedFd, shape: BoardShape) -> RunResult<Self> {
        let region = Region::open(descriptor).map_err(RunError::system("mapping shared memory"))?;
        if region.len() != shape.arena_start() + shape.arena {
            let what = format!("the shared memory has {} bytes, which is not what its shape gives", region.len());
            return Err(RunError::Mismatch { what });
        }
        Ok(Self::over(region, shape))
    }

    fn over(region: Region, shape: BoardShape) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let patience = Patience::of(shape.ranks, cores);
        Self { region: Arc::new(region), shape, abandoned: Arc::default(), patience }
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

    pub(crate) fn rank_count(&self) -> usize {
        self.shape.ranks
    }

    pub(crate) fn shape(&self) -> BoardShape {
        self.shape
    }

    fn of_rank(&self, rank: Rank, field: usize) -> &AtomicU64 {
        self.region.word64(RANKS + rank.index() * RANK_BYTES + field)
    }

    /// The bell that wakes `rank`.
    pub(crate) fn bell(&self, rank: Rank) -> Doorbell {
        Doorbell::new(self.region.clone(), RANKS + rank.index() * RANK_BYTES)
    }

    /// Says where others find the memory of a rank.
    pub(crate) fn publish_heap(&self, rank: Rank, place: Place) {
        self.of_rank(rank, HEAP_INODE).store(place.inode, Ordering::Relaxed);
        let word = u64::from(place.process) << 32 | u64::from(place.descriptor);
        self.of_rank(rank, HEAP).store(word, Ordering::Relaxed);
    }

    /// Where the memory of a rank is found; after a meeting to which it came with what it had published.
    pub(crate) fn heap(&self, rank: Rank) -> Place {
        let word = self.of_rank(rank, HEAP).load(Ordering::Relaxed);
        let inode = self.of_rank(rank, HEAP_INODE).load(Ordering::Relaxed);
        Place { process: (word >> 32) as u32, descriptor: word as u32, inode }
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.shape.ranks).map(Rank::from_index)
    }

    fn ring_all(&self) {
        self.ranks().chain([self.shape.courier()]).for_each(|rank| self.bell(rank).ring());
    }

    /// A sign of life; how many there were so far.
    pub(crate) fn beats(&self, rank: Rank) -> &AtomicU64 {
        self.of_rank(rank, BEAT)
    }

    /// How many steps a rank has finished since the job began.
    pub(crate) fn progress(&self, rank: Rank) -> &AtomicU64 {
        self.of_rank(rank, PROGRESS)
    }

    /// How often a rank has moved anything.
    pub(crate) fn moves(&self, rank: Rank) -> &AtomicU64 {
        self.of_rank(rank, MOVES)
    }

    /// Notes what a rank of another machine is doing.
    pub(crate) fn mirror(&self, rank: Rank, beats: u64, (moves, progress): (u64, u64), phase: Phase) {
        // What is older than the last sign of life says nothing.
        if beats >= self.beats(rank).fetch_max(beats, Ordering::Relaxed) {
            self.moves(rank).store(moves, Ordering::Relaxed);
            self.progress(rank).store(progress, Ordering::Relaxed);
            self.enter(rank, phase);
        }
    }

    /// Notes the activity of the whole job, as whoever hears all ranks counts it.
    pub(crate) fn heard_of(&self, activity: u64) {
        self.region.word64(ELSEWHERE).store(activity, Ordering::Relaxed);
    }

    /// Changes whenever any rank moves anything or enters a phase; for ranks of other machines, when that is heard.
    pub(crate) fn activity(&self) -> u64 {
        let of =
            |rank| self.moves(rank).load(Ordering::Relaxed) * 8 + self.of_rank(rank, PHASE).load(Ordering::Relaxed);
        self.ranks().map(of).fold(self.region.word64(ELSEWHERE).load(Ordering::Relaxed), u64::wrapping_add)
    }

    pub(crate) fn phase(&self, rank: Rank) -> Phase {
        PHASES[self.of_rank(rank, PHASE).load(Ordering::Relaxed) as usize % PHASES.len()]
    }

    pub(crate) fn enter(&self, rank: Rank, phase: Phase) {
        self.of_rank(rank, PHASE).store(phase as u64, Ordering::Relaxed);
    }

    /// Publishes a verdict and wakes everybody. The first one stands; it is returned.
    pub(crate) fn pronounce(&self, verdict: Verdict) -> Verdict {
        let word = self.region.word64(VERDICT);
        let first = word.compare_exchange(0, verdict.to_word(), Ordering::AcqRel, Ordering::Acquire);
        self.ring_all();
        first.err().and_then(Verdict::from_word).unwrap_or(verdict)
    }

    /// Ends every wait of this process, and of no other: a rank that nobody looks after decides for itself only.
    pub(crate) fn abandon(&self, verdict: Verdict) {
        self.abandoned.store(verdict.to_word(), Ordering::Release);
        self.ring_all();
    }

    /// # Errors
    /// The verdict, if there is one.
    pub(crate) fn check_verdict(&self) -> RunResult<()> {
        let words = [self.region.word64(VERDICT), &self.abandoned];
        match words.into_iter().find_map(|word| Verdict::from_word(word.load(Ordering::Acquire))) {
            Some(verdict) => Err(RunError::Verdict(verdict)),
            None => Ok(()),
        }
    }

    /// Waits until all ranks are here; returns the moment that rank 0, or the coordinator through the courier, announces
    /// for what follows, at least `lead` after the last arrival. Rounds count upwards and are the same on all ranks. Gives up when nobody has made progress for
    /// twice `limit`: a rank that is stuck itself gives up after `limit`, and knows better why.
    pub(crate) fn meet(&self, rank: Rank, round: u64, lead: Duration, limit: Duration) -> RunResult<Moment> {
        if self.shape.spread {
            self.region.word64(LEAD).store(lead.as_nanos() as u64, Ordering::Relaxed);
        }
        self.of_rank(rank, ARRIVED).store(round, Ordering::Release);
        self.bell(if self.shape.spread { self.shape.courier() } else { Rank(0) }).ring();
        let released = self.region.word64(RELEASED);
        let mut waiter = Waiter::new(self.bell(rank), self.patience());
        let begin = Moment::now();
        let (mut moved, mut activity) = (begin, self.activity());
        loop {
            let missing = self.ranks().find(|&peer| self.arrived(peer) < round);
            if rank == Rank(0) && missing.is_none() && !self.shape.spread {
                self.release(round, Moment::now().after(lead));
            }
            if released.load(Ordering::Acquire) >= round {
                waiter.progressed();
                return Ok(Moment(self.region.word64(START).load(Ordering::Relaxed)));
            }
            self.check_verdict()?;
            let now = Moment::now();
            let current = self.activity();
            if current != activity {
                (moved, activity) = (now, current);
            }
            if now.since(moved) > 2 * limit {
                let (phase, place) = (self.phase(rank), "the barrier".to_owned());
                let waited_ms = now.since(begin).as_millis() as u64;
                return Err(RunError::Deadline { rank, peer: missing, phase, place, waited_ms, finished: 0 });
            }
            waiter.idle(now, moved.after(2 * limit));
        }
    }

    fn arrived(&self, rank: Rank) -> u64 {
        self.of_rank(rank, ARRIVED).load(Ordering::Acquire)
    }

    /// Lets everybody here go who has come to `round`.
    pub(crate) fn release(&self, round: u64, start: Moment) {
        self.region.word64(START).store(start.0, Ordering::Relaxed);
        self.region.word64(RELEASED).store(round, Ordering::Release);
        self.ring_all();
    }

    /// Nobody waits here for these ranks, which meet on another machine.
    pub(crate) fn excuse(&self, absent: impl IntoIterator<Item = Rank>) {
        absent.into_iter().for_each(|rank| self.of_rank(rank, ARRIVED).store(u64::MAX, Ordering::Release));
    }

    /// Calls `arrived` with every round to which all ranks of this machine have come, and the lead that they want, until
    /// there is a verdict or `over` says so.
    pub(crate) fn carry(&self, over: &AtomicBool, mut arrived: impl FnMut(u64, Duration)) {
        let mut waiter = Waiter::new(self.bell(self.shape.courier()), Patience::NONE);
        let mut carried = 0;
        while self.check_verdict().is_ok() && !over.load(Ordering::Relaxed) {
            let round = self.ranks().map(|rank| self.arrived(rank)).min().unwrap_or_default();
            if round > carried && round < u64::MAX {
                waiter.progressed();
                carried = round;
                arrived(round, Duration::from_nanos(self.region.word64(LEAD).load(Ordering::Relaxed)));
            } else {
                let now = Moment::now();
                waiter.idle(now, now.after(Duration::from_secs(1)));
            }
        }
    }

    /// What an idle rank does before it sleeps.
    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// Lays out the arena for a trial; see [`Arena::lay_out`].
    pub(crate) fn lay_out(&self, lanes: &[bool], [least, most]: [usize; 2], flags: usize) -> RunResult<Arena> {
        let start = self.shape.arena_start();
        Arena::lay_out(start..start + self.shape.arena, lanes, [least, most], flags)
    }

    /// Empties all rings and clears all flags. Only while every rank is idle.
    pub(crate) fn reset(&self, arena: &Arena) {
        arena.rings().for_each(|ring| ring.reset(&self.region));
        (0..arena.flag_count()).for_each(|index| self.flag(arena, index).store(0, Ordering::Release));
    }

    /// In which epoch the message of the `index`-th transfer has claimed its resources.
    pub(crate) fn flag(&self, arena: &Arena, index: usize) -> &AtomicU64 {
        self.region.word64(arena.flag(index))
    }

    /// Until when the `index`-th link or resource of the emulated cluster is busy (nanoseconds).
    pub(crate) fn clock(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.shape.clocks, "the board was made for this topology");
        self.region.word64(self.shape.clocks_start() + index * 8)
    }

    /// Runs `claim` alone among all ranks; `None` if another rank is inside right now.
    pub(crate) fn try_exclusive<T>(&self, claim: impl FnOnce() -> T) -> Option<T> {
        let lock = self.region.word32(PACE_LOCK);
        lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let result = claim();
        lock.store(0, Ordering::Release);
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(ranks: usize) -> Board {
        Board::create(BoardShape { ranks, clocks: 3, arena: 1 << 17, spread: false }).unwrap()
    }

    #[test]
    fn the_first_verdict_stands() {
        let board = board(300);
        assert!(board.check_verdict().is_ok());
        for cause in CAUSES {
            for phase in PHASES {
                let verdict = Verdict { rank: Rank(299), cause, phase };
                assert_eq!(Verdict::from_word(verdict.to_word()), Some(verdict));
            }
        }
        let first = Verdict { rank: Rank(2), cause: Cause::Died, phase: Phase::Work };
        assert_eq!(board.pronounce(first), first);
        assert_eq!(board.pronounce(Verdict { rank: Rank(1), ..first }), first);
        assert!(matches!(board.check_verdict(), Err(RunError::Verdict(verdict)) if verdict == first));
    }

    #[test]
    fn who_is_abandoned_ends_alone() {
        let here = board(2);
        let there = Board::open(here.descriptor().try_clone_to_owned().unwrap(), here.shape()).unwrap();
        let orphaned = Verdict { rank: Rank(1), cause: Cause::Orphaned, phase: Phase::Work };
        there.abandon(orphaned);
        assert!(here.check_verdict().is_ok());
        assert!(matches!(there.check_verdict(), Err(RunError::Verdict(verdict)) if verdict == orphaned));
        // Whoever decides for all is still heard.
        let verdict = Verdict { cause: Cause::Died, ..orphaned };
        assert_eq!(here.pronounce(verdict), verdict);
        assert!(matches!(there.check_verdict(), Err(RunError::Verdict(last)) if last == verdict));
    }

    #[test]
    fn nobody_starts_before_the_last_has_come() {
        let board = board(4);
        let arrivals = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let (board, arrivals) = (&board, &arrivals);
                scope.spawn(move || {
                    for round in 1..50 {
                        arrivals.fetch_add(1, Ordering::Relaxed);
                        board.meet(Rank(rank), round, Duration::ZERO, Duration::from_secs(20)).unwrap();
                        assert!(arrivals.load(Ordering::Relaxed) >= 4 * round);
                    }
                });
            }
        });
    }

    #[test]
    fn a_barrier_names_the_rank_that_did_not_come() {
        let board = board(2);
        board.enter(Rank(0), Phase::Start);
        let error = board.meet(Rank(0), 1, Duration::ZERO, Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, RunError::Deadline { peer: Some(Rank(1)), phase: Phase::Start, .. }), "{error}");
    }
}
