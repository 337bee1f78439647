//! The barrier of a job's ranks, and the common moment at which they start.
//!
//! The principal type is [`Barrier`]. On one machine rank 0 releases the ranks. With several machines, a relay on each
//! machine tells the coordinator when all ranks of that machine have arrived, and the coordinator releases all.

use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::memory::activity::Activity;
use crate::memory::doorbell::{Patience, Waiter};
use crate::memory::segment::{ARRIVED, Bells, LEAD, RELEASED, START, Words};
use crate::memory::stop::StopFlag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use topology::Rank;

/// The barrier of one machine. Round numbers rise and are the same on all ranks.
#[derive(Clone)]
pub(crate) struct Barrier {
    words: Words,
    bells: Bells,
    verdict: StopFlag,
    activity: Activity,
    patience: Patience,
    /// Whether ranks of other machines take part.
    spread: bool,
}

impl Barrier {
    pub(super) fn new(
        words: Words,
        bells: Bells,
        verdict: StopFlag,
        activity: Activity,
        patience: Patience,
        spread: bool,
    ) -> Self {
        Self { words, bells, verdict, activity, patience, spread }
    }

    fn arrived(&self, rank: Rank) -> u64 {
        self.words.of_rank(rank, ARRIVED).load(Ordering::Acquire)
    }

    /// Waits until all ranks have arrived. Returns the common start, at least `lead` after the last arrival.
    ///
    /// # Errors
    /// The verdict, if there is one. [`RunError::Deadline`] if no rank made progress for twice `limit`. The limit is
    /// doubled because a rank that is stuck itself fails after `limit`, with a better reason.
    pub(crate) fn wait(&self, rank: Rank, round: u64, lead: Duration, limit: Duration) -> RunResult<Moment> {
        if self.spread {
            self.words.of_all(LEAD).store(lead.as_nanos() as u64, Ordering::Relaxed);
        }
        self.words.of_rank(rank, ARRIVED).store(round, Ordering::Release);
        if self.spread {
            self.bells.relay().ring()
        } else {
            self.bells.of(Rank(0)).ring()
        }
        let released = self.words.of_all(RELEASED);
        let mut waiter = Waiter::new(self.bells.of(rank), self.patience);
        let begin = Moment::now();
        let (mut moved, mut activity) = (begin, self.activity.sum());
        loop {
            let missing = self.words.ranks().find(|&peer| self.arrived(peer) < round);
            if rank == Rank(0) && missing.is_none() && !self.spread {
                self.release(round, Moment::now().after(lead));
            }
            if released.load(Ordering::Acquire) >= round {
                waiter.progressed();
                return Ok(Moment(self.words.of_all(START).load(Ordering::Relaxed)));
            }
            self.verdict.check()?;
            let now = Moment::now();
            let current = self.activity.sum();
            if current != activity {
                (moved, activity) = (now, current);
            }
            if now.since(moved) > 2 * limit {
                let (phase, place) = (self.activity.phase(rank), "the barrier".to_owned());
                let waited_ms = now.since(begin).as_millis() as u64;
                return Err(RunError::Deadline { rank, peer: missing, phase, place, waited_ms, finished: 0 });
            }
            waiter.idle(now, moved.after(2 * limit));
        }
    }

    /// Releases all ranks of this machine that have arrived at `round`, with a common `start`.
    pub(crate) fn release(&self, round: u64, start: Moment) {
        self.words.of_all(START).store(start.0, Ordering::Relaxed);
        self.words.of_all(RELEASED).store(round, Ordering::Release);
        self.bells.ring_all();
    }

    /// Counts these ranks as arrived in every round: they wait at the barrier of another machine.
    pub(crate) fn excuse(&self, absent: impl IntoIterator<Item = Rank>) {
        let arrive = |rank| self.words.of_rank(rank, ARRIVED).store(u64::MAX, Ordering::Release);
        absent.into_iter().for_each(arrive);
    }

    /// The work of the relay. Calls `arrived` with each round at which all ranks of this machine have arrived, and with
    /// the lead that they want. Returns when there is a verdict or `over` is set.
    pub(crate) fn relay(&self, over: &AtomicBool, mut arrived: impl FnMut(u64, Duration)) {
        let mut waiter = Waiter::new(self.bells.relay(), Patience::NONE);
        let mut told = 0;
        while self.verdict.check().is_ok() && !over.load(Ordering::Relaxed) {
            let round = self.words.ranks().map(|rank| self.arrived(rank)).min().unwrap_or_default();
            if round > told && round < u64::MAX {
                waiter.progressed();
                told = round;
                arrived(round, Duration::from_nanos(self.words.of_all(LEAD).load(Ordering::Relaxed)));
            } else {
                let now = Moment::now();
                waiter.idle(now, now.after(Duration::from_secs(1)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::segment::{Segment, SegmentShape};
    use crate::verdict::Phase;
    use std::sync::atomic::AtomicU64;

    fn segment(ranks: usize) -> Segment {
        Segment::create(SegmentShape { ranks, clocks: 3, room: 1 << 17, spread: false }).unwrap()
    }

    #[test]
    fn nobody_starts_before_the_last_has_come() {
        let segment = segment(4);
        let arrivals = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let (segment, arrivals) = (&segment, &arrivals);
                scope.spawn(move || {
                    for round in 1..50 {
                        arrivals.fetch_add(1, Ordering::Relaxed);
                        segment.barrier.wait(Rank(rank), round, Duration::ZERO, Duration::from_secs(20)).unwrap();
                        assert!(arrivals.load(Ordering::Relaxed) >= 4 * round);
                    }
                });
            }
        });
    }

    #[test]
    fn a_barrier_names_the_rank_that_did_not_come() {
        let segment = segment(2);
        segment.activity.enter(Rank(0), Phase::Start);
        let error = segment.barrier.wait(Rank(0), 1, Duration::ZERO, Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, RunError::Deadline { peer: Some(Rank(1)), phase: Phase::Start, .. }), "{error}");
    }
}
