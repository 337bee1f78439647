//! Placeholder of the verifier: the type that proves a schedule was verified.

use crate::Schedule;
use topology::Topology;

/// A schedule that the verifier accepted; the only kind that can be simulated, lowered, saved or run.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifiedSchedule {
    schedule: Schedule,
}

impl VerifiedSchedule {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }
}

/// Checks `schedule` against its demand and `topology`.
///
/// # Errors
/// Every violation, with evidence.
pub fn verify(schedule: Schedule, _topology: &Topology) -> Result<VerifiedSchedule, Rejection> {
    Ok(VerifiedSchedule { schedule })
}

/// A schedule that was refused.
#[derive(Clone, PartialEq, Debug)]
pub struct Rejection {
    /// The schedule.
    pub schedule: Schedule,
}
