//! When two makespans are equal: the one rule of the planner and of all strategies.

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
