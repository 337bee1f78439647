//! What a running rank does between two polls: it checks for a verdict, publishes its progress, and sleeps. The
//! principal type is [`RankWatch`].

use crate::clock::Moment;
use crate::error::RunResult;
use crate::memory::doorbell::Waiter;
use crate::memory::poller::Poller;
use crate::memory::segment::Segment;
use std::sync::atomic::Ordering;
use std::time::Duration;
use topology::Rank;

/// One rank's view of its job while it runs.
pub(crate) struct RankWatch<'a> {
    segment: &'a Segment,
    rank: Rank,
    waiter: Waiter<'a>,
    /// Steps that earlier runs finished.
    before: u64,
    /// The activity of all ranks at the last look, and the time of the look that found it changed.
    activity: (u64, Moment),
    looked: Moment,
}

impl<'a> RankWatch<'a> {
    pub(crate) fn new(segment: &'a Segment, rank: Rank, poller: Option<&'a Poller>) -> Self {
        let waiter = Waiter::new(segment.bells.of(rank), segment.patience()).with_poller(poller);
        let before = segment.activity.progress(rank).load(Ordering::Relaxed);
        Self { segment, rank, waiter, before, activity: (0, Moment(0)), looked: Moment(0) }
    }

    /// The last moment at which any rank moved, found by a look in every quarter of `limit`. A rank that waits for a
    /// slow rank does not miss its deadline.
    pub(crate) fn moved_anywhere(&mut self, now: Moment, limit: Duration) -> Moment {
        if now.since(self.looked) >= limit / 4 {
            self.looked = now;
            let activity = self.segment.activity.sum();
            if activity != self.activity.0 {
                self.activity = (activity, now);
            }
        }
        self.activity.1
    }

    /// Call before a round: learns which sockets have changed.
    pub(crate) fn refresh(&self) {
        self.waiter.refresh();
    }

    /// # Errors
    /// The coordinator's verdict, if there is one.
    pub(crate) fn check(&self) -> RunResult<()> {
        self.segment.verdict.check()
    }

    /// Call when something moved. This run has finished `finished` steps.
    pub(crate) fn progressed(&mut self, finished: u64) {
        self.waiter.progressed();
        self.segment.activity.progress(self.rank).store(self.before + finished, Ordering::Relaxed);
        self.segment.activity.moves(self.rank).fetch_add(1, Ordering::Relaxed);
    }

    /// Call when nothing moved, and nothing will before `until` unless a peer rings.
    pub(crate) fn idle(&mut self, now: Moment, until: Moment) {
        self.waiter.idle(now, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::segment::SegmentShape;

    #[test]
    fn a_watch_is_made_without_asking_the_kernel() {
        let segment = Segment::create(SegmentShape { ranks: 2, clocks: 0, room: 64, spread: false }).unwrap();
        let make = |_| {
            let begin = Moment::now();
            let _watch = RankWatch::new(&segment, Rank(0), None);
            Moment::now().since(begin)
        };
        // The best of many, because other tests share the cores. Counting cores reads files: tens of µs.
        let best = (0..200).map(make).min().unwrap();
        assert!(best < Duration::from_micros(10), "{best:?}");
    }
}
