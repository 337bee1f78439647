//! Time that all processes of one computer can compare.
//!
//! The principal type is [`Moment`]: nanoseconds of `CLOCK_MONOTONIC`. `std::time::Instant` reads the same clock but
//! hides the number, and ranks in different processes must compare their times.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use topology::Micros;

/// How long a wake-up from sleep may take.
const WAKING_UP: Duration = Duration::from_micros(150);

/// A point in time, in nanoseconds of `CLOCK_MONOTONIC`; comparable between the processes of one computer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

/// Whether something has to wait, and for what. Ordered: the shortest wait comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WaitFor {
    /// No wait.
    Nothing,
    /// Until this moment, or until a peer acts earlier.
    Moment(Moment),
    /// Until a peer acts.
    Peer,
}

impl WaitFor {
    /// Whether the wait is over at `now`.
    pub(crate) fn is_over(self, now: Moment) -> bool {
        self.end(Moment(u64::MAX)) <= now
    }

    /// The end of the wait, at most `latest`.
    pub(crate) fn end(self, latest: Moment) -> Moment {
        match self {
            Self::Nothing => Moment::default(),
            Self::Moment(moment) => moment.min(latest),
            Self::Peer => latest,
        }
    }
}

impl Moment {
    /// The present.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        Self(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// The moment `delay` later; saturates.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Waits until this moment and returns the present. Near the end it yields, because a wake-up from sleep is late.
    pub fn wait(self) -> Self {
        loop {
            let now = Self::now();
            if now >= self {
                return now;
            }
            match self.since(now).checked_sub(WAKING_UP) {
                Some(early) => std::thread::sleep(early),
                // Yield, not spin: other threads may need this core.
                None => std::thread::yield_now(),
            }
        }
    }

    /// The time from `earlier` to this moment; zero if this moment is earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// [`Self::since`] in the unit of the cost model.
    pub fn micros_since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0) as f64 / 1e3)
    }
}
