//! A plan for a machine that has changed: links or ranks are gone, or slower than they were.
//!
//! The principal function is [`repaired`]. The messages of the old plan are played in their order on the machine as it
//! is now. Where a link is gone, what it carried takes the way that arrives first; so do chunks that their receiver
//! would lack at the end. The result is a plan like any other: the planner judges it, and the strategies try to beat it.
//!
//! Sums are repaired as they are planned, in halves: what is collected is spread backwards on the reversed machine.

mod detours;
mod renumber;

use crate::ordering::without_exchanges;
use crate::problem::constraints::RuleKind;
use crate::problem::reversed::{Collectors, Halves};
use crate::problem::{Deadline, Problem, SynthError};
use crate::strategies::Joining;
use crate::strategies::reversal::joined;
use detours::{Detours, OldMessage};
use renumber::Renumbering;
use schedule::{Schedule, TransferKind};
use topology::Rank;

const NAME: &str = "repair";

/// A repaired plan, and what was done to it.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The plan for the machine as it is now; it is not verified.
    pub schedule: Schedule,
    /// The ranks of the old machine that are gone.
    pub gone: Vec<Rank>,
    /// How many chunks take another way to a rank than in the old plan.
    pub rerouted: usize,
}

/// A plan for `problem` from `plan`, which solves the same request on the machine as it was before, perhaps with more
/// ranks. If ranks are gone and the others have new numbers, those are taken to be gone without which most links of the
/// plan are there.
///
/// # Errors
/// [`SynthError::Infeasible`] if some chunk reaches a rank no more; [`SynthError::NotApplicable`] if the plan is of
/// another kind, if the machine has grown, or if the sketch limits ways.
pub fn repaired(problem: &Problem, plan: &Schedule, deadline: &Deadline) -> Result<Repaired, SynthError> {
    let refused = |why: &str| SynthError::NotApplicable { strategy: NAME, why: why.to_owned() };
    if problem.constraints.exceeds(&[RuleKind::ForbiddenLinks, RuleKind::Owners, RuleKind::OwnChunksFirst]) {
        return Err(refused("the sketch limits the ways of chunks"));
    }
    if plan.demand.request().collective != problem.demand.request().collective {
        return Err(refused("the plan is for another collective"));
    }
    let Some(renumbering) = Renumbering::of(plan, problem) else {
        return Err(refused("the machine has more ranks than the plan"));
    };
    // Halves exchange nothing; that comes back when they are joined.
    let messages = renumbering.messages(&Schedule { transfers: without_exchanges(&plan.transfers), ..plan.clone() });
    let (schedule, rerouted) = if problem.demand.chunks().iter().any(|chunk| chunk.combine) {
        sums(problem, &messages, deadline)?
    } else {
        let mut detours = Detours::new(problem);
        detours.play(&messages)?;
        (Schedule::new(&problem.topology, problem.demand.clone(), detours.transfers, NAME), detours.rerouted)
    };
    Ok(Repaired { schedule, gone: renumbering.gone(), rerouted })
}

/// Repairs both halves of a demand with sums.
fn sums(problem: &Problem, messages: &[OldMessage], deadline: &Deadline) -> Result<(Schedule, usize), SynthError> {
    let halves = Halves::new(problem, &collectors(problem, messages))?;
    let backwards = |message: &OldMessage| OldMessage { from: message.to, to: message.from, ..message.clone() };
    let of_kind = |kind| messages.iter().filter(move |message| message.kind == kind);
    let collected: Vec<OldMessage> = of_kind(TransferKind::Reduce).rev().map(backwards).collect();
    let mut collect = Detours::new(&halves.collect);
    collect.play(&collected)?;
    let mut rerouted = collect.rerouted;
    let mut copies = Vec::new();
    if let Some(half) = &halves.spread {
        let mut spread = Detours::new(half);
        spread.play(&of_kind(TransferKind::Copy).cloned().collect::<Vec<_>>())?;
        rerouted += spread.rerouted;
        copies = spread.transfers;
    }
    Ok((joined(&halves, [&collect.transfers, &copies], Joining::Exchanging, deadline, NAME)?, rerouted))
}

/// Where the old plan completes each sum: where the last of its parts arrives.
fn collectors(problem: &Problem, messages: &[OldMessage]) -> Collectors {
    let mut last: Vec<Option<Rank>> = vec![None; problem.demand.chunks().len()];
    for message in messages.iter().filter(|message| message.kind == TransferKind::Reduce) {
        message.chunks.iter().for_each(|chunk| last[chunk.index()] = Some(message.to));
    }
    Collectors::preferring(&problem.demand, &last)
}

#[cfg(test)]
mod tests;
