//! The clock of another machine.
//!
//! The principal type is [`RemoteClock`]: the difference between two monotonic clocks, measured with questions and
//! answers. A fast answer gives a tight bound on the difference. The bound of an old answer is loose, because clocks
//! drift. The answer with the tightest bound at present counts.

use crate::clock::Moment;
use std::time::Duration;

/// How much two clocks may drift apart: 50 parts per million each.
const DRIFT_PPM: u64 = 100;

/// One question and its answer.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// How many nanoseconds the other clock is ahead.
    ahead: i64,
    round_trip: Duration,
    at: Moment,
}

impl Reading {
    /// The largest possible error of the difference at `now`, in nanoseconds.
    fn doubt(&self, now: Moment) -> u64 {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        nanos(self.round_trip) / 2 + nanos(now.since(self.at)) / (1_000_000 / DRIFT_PPM)
    }
}

/// Another machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RemoteClock(Option<Reading>);

impl RemoteClock {
    /// Records that a question of the moment `asked` was answered at `there`, and that the answer arrived at `heard`.
    pub(crate) fn read(&mut self, asked: Moment, there: Moment, heard: Moment) {
        let middle = asked.0 + heard.0.saturating_sub(asked.0) / 2;
        let reading = Reading { ahead: there.0.wrapping_sub(middle) as i64, round_trip: heard.since(asked), at: heard };
        if self.0.is_none_or(|best| reading.doubt(heard) <= best.doubt(heard)) {
            self.0 = Some(reading);
        }
    }

    /// The time of the other clock when this machine's clock shows `here`.
    pub(crate) fn there(&self, here: Moment) -> Moment {
        Moment(here.0.saturating_add_signed(self.0.map_or(0, |best| best.ahead)))
    }

    /// The time of this machine's clock when the other clock shows `there`.
    pub(crate) fn here(&self, there: Moment) -> Moment {
        Moment(there.0.saturating_add_signed(self.0.map_or(0, |best| -best.ahead)))
    }

    /// The round trip of the answer that counts; zero if there is none.
    pub(crate) fn round_trip(&self) -> Duration {
        self.0.map_or(Duration::ZERO, |best| best.round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// The other clock is `ahead` ns ahead at the start and gains `ppm`. Delays are asymmetric and heavy-tailed.
    fn estimated(ahead: i64, ppm: i64, seconds: u64) -> (RemoteClock, u64) {
        let mut clock = RemoteClock::default();
        let (mut now, mut random) = (100 * SECOND, 7_u64);
        let shows = |at: u64| Moment(at.saturating_add_signed(ahead + (at - 100 * SECOND) as i64 / 1_000_000 * ppm));
        while now < (100 + seconds) * SECOND {
            let mut delay = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let tail = if random >> 60 == 0 { 3_000_000 } else { 0 };
                20_000 + (random >> 33) % 30_000 + tail
            };
            let (there, back) = (delay(), delay());
            clock.read(Moment(now), shows(now + there), Moment(now + there + back));
            now += SECOND / 10;
        }
        (clock, now)
    }

    #[test]
    fn offsets_are_found_between_lopsided_delays_and_followed_as_clocks_drift() {
        for (ahead, ppm) in [(0, 0), (-90_000_000_000, 20), (123_456_789_012, -20), (5_000, 50)] {
            let (clock, now) = estimated(ahead, ppm, 600);
            let truth = ahead + (now - 100 * SECOND) as i64 / 1_000_000 * ppm;
            let error = clock.there(Moment(now)).0 as i64 - now as i64 - truth;
            assert!(error.abs() < 30_000, "{ahead} ns ahead, {ppm} ppm: wrong by {error} ns");
            assert_eq!(clock.here(clock.there(Moment(now))), Moment(now));
        }
    }

    #[test]
    fn a_slow_answer_does_not_replace_a_fast_one_before_its_time() {
        let mut clock = RemoteClock::default();
        clock.read(Moment(1000), Moment(51_000), Moment(3000));
        clock.read(Moment(10_000), Moment(0), Moment(90_000_000));
        assert_eq!(clock.there(Moment(2000)), Moment(51_000));
        assert_eq!(clock.round_trip(), Duration::from_nanos(2000));
    }
}
