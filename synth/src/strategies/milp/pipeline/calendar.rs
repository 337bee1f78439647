//! The periods into which the models of this formulation cut time.
//!
//! The principal type is [`PeriodCalendar`]. Crossings are long, and leave and arrive at given times; what happens
//! around them is short. So periods are not counted from zero. The early periods end when the first crossing leaves
//! that waits for a chunk. The late periods are counted back from the end. So no fraction of a period is lost between
//! the last arrivals and the end, where time is short.

use topology::Micros;

/// Times this close (relative to a period) are equal.
const TOLERANCE: f64 = 1e-6;

/// Periods in order of time. Nothing starts in the gaps between them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PeriodCalendar {
    periods: Vec<(Micros, Micros)>,
    tolerance: Micros,
}

impl PeriodCalendar {
    /// As many periods of `early` as fit before `anchor`, then as many of `late` as fit between `anchor` and `end`.
    ///
    /// `None` if there are more than `most`.
    pub(super) fn new(anchor: Micros, early: Micros, end: Micros, late: Micros, most: usize) -> Option<Self> {
        let tolerance = early.min(late) * TOLERANCE;
        // The casts saturate.
        let fitting = |time: Micros, period: Micros| ((time + tolerance) / period).floor().max(0.0) as usize;
        let (before, after) = (fitting(anchor, early), fitting(end - anchor, late));
        if before.saturating_add(after) > most {
            return None;
        }
        let back = |from: Micros, period: Micros, count: usize| {
            (0..count).rev().map(move |index| {
                let end = from - period * index as f64;
                (end - period, end)
            })
        };
        let periods = back(anchor, early, before).chain(back(end, late, after)).collect();
        Some(Self { periods, tolerance })
    }

    pub(super) fn len(&self) -> usize {
        self.periods.len()
    }

    pub(super) fn start(&self, period: usize) -> Micros {
        self.periods[period].0
    }

    /// The time from the start of one period to the end of another.
    pub(super) fn between(&self, first: usize, last: usize) -> Micros {
        self.periods[last].1 - self.periods[first].0
    }

    /// The period in which a message ends that starts with `first` and takes `time`; `None` if that is after the end.
    pub(super) fn last_of(&self, first: usize, time: Micros) -> Option<usize> {
        (first..self.len()).find(|&last| self.between(first, last) + self.tolerance >= time)
    }

    /// The last period with which a message of length `time` can start and end before period `before` starts.
    pub(super) fn latest_start(&self, before: usize, time: Micros) -> Option<usize> {
        (0..before).rev().find(|&first| self.between(first, before - 1) + self.tolerance >= time)
    }

    /// The first period that does not start before `time`; [`PeriodCalendar::len`] if none does.
    pub(super) fn first_from(&self, time: Micros) -> usize {
        self.periods.partition_point(|&(start, _)| start + self.tolerance < time)
    }

    /// The number of periods that have ended by `time`.
    pub(super) fn over_by(&self, time: Micros) -> usize {
        self.periods.partition_point(|&(_, end)| end <= time + self.tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar() -> PeriodCalendar {
        // 1…3…5 | 5.5…9.5…13.5
        PeriodCalendar::new(Micros(5.0), Micros(2.0), Micros(13.5), Micros(4.0), 10).unwrap()
    }

    #[test]
    fn periods_touch_the_anchor_and_the_end() {
        let calendar = calendar();
        assert_eq!(calendar.len(), 4);
        assert_eq!(calendar.periods[0], (Micros(1.0), Micros(3.0)));
        assert_eq!(calendar.periods[2], (Micros(5.5), Micros(9.5)));
        assert_eq!(calendar.periods[3], (Micros(9.5), Micros(13.5)));
        assert_eq!(PeriodCalendar::new(Micros(5.0), Micros(2.0), Micros(13.5), Micros(4.0), 3), None);
    }

    #[test]
    fn a_send_takes_as_many_periods_as_it_needs() {
        let calendar = calendar();
        assert_eq!(calendar.last_of(0, Micros(2.0)), Some(0));
        assert_eq!(calendar.last_of(0, Micros(2.1)), Some(1));
        assert_eq!(calendar.last_of(1, Micros(4.0)), Some(2));
        assert_eq!(calendar.last_of(3, Micros(4.1)), None);
        assert_eq!(calendar.latest_start(4, Micros(4.0)), Some(3));
        assert_eq!(calendar.latest_start(2, Micros(3.0)), Some(0));
        assert_eq!(calendar.latest_start(2, Micros(4.5)), None);
        assert_eq!(calendar.latest_start(0, Micros(1.0)), None);
    }

    #[test]
    fn what_comes_within_a_period_is_there_for_the_next() {
        let calendar = calendar();
        assert_eq!([0.0, 1.0, 1.1, 5.0, 5.6, 13.5].map(|at| calendar.first_from(Micros(at))), [0, 0, 1, 2, 3, 4]);
        assert_eq!([0.0, 2.9, 3.0, 5.0, 9.4, 13.5].map(|at| calendar.over_by(Micros(at))), [0, 0, 1, 2, 2, 4]);
    }
}
