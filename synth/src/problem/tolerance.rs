//! When two makespans are equal: the one rule of the planner and of all strategies.

use schedule::{LowerBound, Transfer, makespan};
use topology::Micros;

/// The relative difference up to which two makespans are equal; the verifier uses the same one.
pub(crate) const EQUAL: f64 = schedule::TIME_TOLERANCE;

/// Whether a makespan is as good as `goal`, or better.
pub(crate) fn reaches(makespan: Micros, goal: Micros) -> bool {
    makespan.0 <= goal.0 * (1.0 + EQUAL)
}

/// Whether a makespan is better than `other`, and not equal to it.
pub(crate) fn beats(makespan: Micros, other: Micros) -> bool {
    makespan.0 < other.0 * (1.0 - EQUAL)
}

/// Whether transfers end earlier than `others`, or at the same time and are fewer.
pub(crate) fn faster_or_fewer(transfers: &[Transfer], others: &[Transfer]) -> bool {
    let (new, old) = (makespan(transfers), makespan(others));
    beats(new, old) || reaches(new, old) && transfers.len() < others.len()
}

/// The bound, rounded down to the makespan if both are equal: no reader should see a bound that is beaten by 10⁻¹².
pub(crate) fn bound_below(bound: &LowerBound, makespan: Micros) -> LowerBound {
    let value = if beats(makespan, bound.value) { bound.value } else { bound.value.min(makespan) };
    LowerBound { value, name: bound.name.clone() }
}
