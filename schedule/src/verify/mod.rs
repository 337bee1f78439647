//! The verifier: proves that a schedule does what its collective means, on the machine it claims.
//!
//! The principal type is [`VerifiedSchedule`]; [`verify`] is its only constructor. So all code that simulates, lowers,
//! saves or runs a schedule has a verified one. The verifier shares no code with the strategies or with
//! [`crate::replay`]: it reads the stated times and checks them against the cost model.
//!
//! | file | rule |
//! |---|---|
//! | `asked` | chunks that a file lists itself are those of a matrix or demand that somebody asked for |
//! | `structure` | ids exist, links join the stated ranks, every time follows from the cost model |
//! | `moments` | (what comes first: departures and landings in one order) |
//! | `traffic` | (who sends each chunk to whom) |
//! | `causality` | nobody sends what he does not hold; everybody ends with what he wants |
//! | `sums` | every contribution counts exactly once |
//! | `contributions` | (the contributions that a value counts) |
//! | `ties` | messages that take no time follow what they wait for; no cycle of waits |
//! | `exact` | everything takes its time; one message at a time on every link and every resource |
//! | `orbits` | all of this for one of each orbit, where symmetries repeat a base |
//!
//! Every violation is reported. A transfer that sends a chunk which its sender does not hold delivers nothing, so its
//! consequences are reported too. The earliest violation is the cause.

mod asked;
mod causality;
mod contributions;
mod evidence;
mod exact;
mod moments;
mod orbits;
mod structure;
mod sums;
mod ties;
mod traffic;
mod violation;

pub use asked::check_asked;
pub use orbits::verify_compressed;
pub use violation::Violation;

use crate::{CausalOrder, Findings, Provenance, Schedule};
use moments::Moments;
use std::fmt;
use std::sync::Arc;
use topology::Topology;
use traffic::{Plain, Tracks, Traffic};

/// A schedule that the verifier accepted; the only kind that can be simulated, lowered, saved or run.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifiedSchedule {
    schedule: Schedule,
    topology: Arc<Topology>,
    order: Arc<CausalOrder>,
}

impl VerifiedSchedule {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The machine for which it was verified.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The order of its messages.
    pub fn order(&self) -> &CausalOrder {
        &self.order
    }

    /// The same schedule with another provenance, which is no part of the proof.
    #[must_use]
    pub fn produced_by(mut self, provenance: Provenance) -> Self {
        self.schedule.produced_by = provenance;
        self
    }

    /// Gives the schedule back for changes; the changed schedule must be verified again.
    pub fn into_schedule(self) -> Schedule {
        self.schedule
    }
}

/// Checks `schedule` against its demand and `topology`.
///
/// Takes O(n log n) for n chunks carried, and for one combining chunk at a time one bit per pair of a
/// contributing rank and a rank that takes part.
///
/// # Errors
/// The violations, with evidence; the order of the list is deterministic, and a long one ends with how many more there are.
pub fn verify(schedule: Schedule, topology: &Arc<Topology>) -> Result<VerifiedSchedule, Rejection> {
    let mut violations = Findings::default();
    structure::check(&schedule, topology, &mut violations);
    let ranks = topology.rank_count().max(schedule.demand.request().ranks);
    let PlayedMessages { moments, landings, tracks } =
        play(&Plain { schedule: &schedule, topology }, topology, ranks, &mut violations);
    if violations.is_empty() {
        let order = CausalOrder::new(moments.into_departures(), &landings, tracks.starts, tracks.deliveries);
        return Ok(VerifiedSchedule { schedule, topology: topology.clone(), order: Arc::new(order) });
    }
    Err(Rejection { violations, schedule: Box::new(schedule) })
}

/// The result of playing all messages.
struct PlayedMessages {
    moments: Moments,
    landings: Vec<u32>,
    tracks: Tracks,
}

/// Plays messages in their causal order, and reports violations.
fn play(
    traffic: &impl Traffic,
    topology: &Topology,
    ranks: usize,
    violations: &mut Findings<Violation>,
) -> PlayedMessages {
    let stated = traffic::stated(traffic.schedule(), topology, ranks);
    let mut tracks = Tracks::of(traffic, &stated);
    let mut found = causality::play(traffic, ranks, &stated, &mut tracks);
    let mut moved = None;
    if found.iter().any(|violation| matches!(violation, Violation::SentBeforeHeld { .. })) {
        moved = ties::in_causal_order(traffic, &stated, &tracks);
    }
    if let Some(moments) = &moved {
        tracks = Tracks::of(traffic, moments);
        found = causality::play(traffic, ranks, moments, &mut tracks);
    }
    violations.append(found);
    let landings = moved.as_ref().unwrap_or(&stated).landings();
    exact::check(traffic, topology, &stated, moved.as_ref().unwrap_or(&stated), &landings, &tracks, violations);
    PlayedMessages { moments: moved.unwrap_or(stated), landings, tracks }
}

/// A schedule that was refused, with the reasons.
#[derive(Clone, PartialEq, Debug)]
pub struct Rejection {
    /// The violations; never empty.
    pub violations: Findings<Violation>,
    /// The schedule.
    pub schedule: Box<Schedule>,
}

impl fmt::Display for Rejection {
    /// The first few violations, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "the schedule breaks the rules in {} places", self.violations.total())?;
        for violation in self.violations.iter().take(SHOWN) {
            write!(f, "\n  {}: {violation}", violation.kind())?;
        }
        match self.violations.total().saturating_sub(SHOWN as u64) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for Rejection {}
