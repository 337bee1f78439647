//! The candidates of the second stage: a plan of crossings, periods, and an end.
//!
//! The principal type is [`CrossingCandidate`].

use super::calendar::PeriodCalendar;
use super::crossings::{CrossingPlan, FastComponents, TimedCrossing, distinct, stretched};
use topology::Micros;

const MAX_PERIODS: usize = 240;
/// By how many periods a chunk may arrive later than possible where it must be. The values are tried in turn, until the
/// model is small enough.
pub(super) const PATIENCE: [usize; 3] = [12, 6, 3];
/// A crossing plan, periods, and the end from which they are counted back.
#[derive(Clone)]
pub(super) struct CrossingCandidate {
    pub(super) crossings: Vec<TimedCrossing>,
    /// When the first crossing leaves that waits for a chunk.
    anchor: Micros,
    /// When the last crossing arrives.
    pub(super) arrival: Micros,
    /// The length of periods before the anchor, and after it.
    early: Micros,
    pub(super) late: Micros,
    /// The number of periods from the last arrival to the end.
    pub(super) rounds: f64,
    pub(super) end: Micros,
    /// How often the end was moved on.
    pub(super) moves: usize,
}

impl CrossingCandidate {
    /// All choices of periods for a plan, each with its earliest end.
    pub(super) fn all(components: &FastComponents<'_>, plan: &CrossingPlan, bound: Micros) -> Vec<Self> {
        let mut candidates = Vec::new();
        for fetching in components.single_units() {
            let crossings = components.time(plan, fetching);
            let anchor = components.first_fetching(&crossings).unwrap_or(Micros::ZERO);
            let arrival = last_arrival(&crossings);
            let early = stretched(fetching, anchor, PATIENCE[0]);
            let lates = components.shared_units().into_iter();
            for late in distinct(lates.map(|late| stretched(late, arrival - anchor, MAX_PERIODS / 2)).collect()) {
                let end = components.earliest_end(&crossings, late).max(bound);
                let rounds = ((end - arrival) / late).round();
                let crossings = crossings.clone();
                candidates.push(Self { crossings, anchor, arrival, early, late, rounds, end, moves: 0 });
            }
        }
        candidates
    }

    /// The periods; `None` if there are too many.
    pub(super) fn calendar(&self) -> Option<PeriodCalendar> {
        PeriodCalendar::new(self.anchor, self.early, self.end, self.late, MAX_PERIODS)
    }

    pub(super) fn move_on(&mut self, steps: u32) {
        self.rounds += f64::from(steps);
        self.end += self.late * f64::from(steps);
        self.moves += 1;
    }

    /// Whether this candidate is infeasible if `other` is: the same last arrival, no more rounds, no longer periods.
    pub(super) fn holds_no_more_than(&self, other: &Self) -> bool {
        self.arrival == other.arrival && self.late <= other.late && self.rounds <= other.rounds
    }
}

fn last_arrival(crossings: &[TimedCrossing]) -> Micros {
    crossings.iter().map(|timed| timed.end).fold(Micros::ZERO, Micros::max)
}
