//! Demands whose groups start at different times, for strategies that plan as if all contents were there at once.
//!
//! The principal function is [`propose`]; the planner calls every strategy through it. A schedule that ignores starts is
//! an order of messages. Played with the releases of the demand, each message as early as the order allows, it is a right
//! schedule of the whole. Which order is best depends on the starts, so several are tried: the order as it is, the order
//! in which every group is as late as it starts, and those of list scheduling, which knows releases.
//!
//! `improve` knows them too. The solvers' strategies refuse: their models have no time at which a chunk comes to be.

use super::reversal;
use crate::ordering::{interleaved, plain_messages, replayed};
use crate::problem::{Deadline, Problem, StopReason, StrategyKind, SynthError};
use crate::sketch::obey;
use crate::strategies::{Attempt, Context, Strategy};
use schedule::{Message, Schedule, Transfer, makespan, verify};
use std::sync::Arc;
use topology::Micros;

/// What `strategy` proposes for `problem`, whose groups may start at different times.
///
/// # Errors
/// Those of the strategy; [`SynthError::NotApplicable`] if it cannot plan starts.
pub(crate) fn propose(
    problem: &Problem,
    context: &Context<'_>,
    strategy: &dyn Strategy,
) -> Result<Vec<Attempt>, SynthError> {
    if !problem.demand.starts_later() {
        return reversal::propose(problem, context, strategy);
    }
    match strategy.kind() {
        StrategyKind::Improve if !problem.demand.has_sums() => reversal::propose(problem, context, strategy),
        StrategyKind::Milp | StrategyKind::Exact => {
            let why = "its models do not know groups that start later".to_owned();
            Err(SynthError::NotApplicable { strategy: strategy.name(), why })
        }
        StrategyKind::Orbits
        | StrategyKind::Classic
        | StrategyKind::Flow
        | StrategyKind::Levels
        | StrategyKind::Trees
        | StrategyKind::Symmetric
        | StrategyKind::Matching
        | StrategyKind::Improve => propose_at_once(problem, context, strategy),
    }
}

/// What `strategy` proposes as if all groups started at once, with times at which they do start.
fn propose_at_once(
    problem: &Problem,
    context: &Context<'_>,
    strategy: &dyn Strategy,
) -> Result<Vec<Attempt>, SynthError> {
    let at_once = Problem { demand: Arc::new((*problem.demand).clone().without_starts()), ..problem.clone() };
    let incumbent = context.incumbent.and_then(|incumbent| {
        let messages: Vec<Message> = incumbent.transfers.iter().map(Message::from).collect();
        let transfers = replayed(&at_once, &messages).ok()?;
        Some(Schedule::new(&at_once.topology, at_once.demand.clone(), transfers, &incumbent.produced_by.strategy))
    });
    // A bound of the whole says nothing of when a plan of another demand is good enough.
    let ignoring = Context { incumbent: incumbent.as_ref(), runner_up: None, bound: Micros::ZERO, ..*context };
    let attempts = reversal::propose(&at_once, &ignoring, strategy)?;
    Ok(attempts.into_iter().map(|attempt| started(problem, attempt, context.deadline)).collect())
}

/// An attempt that ignores starts, with the times that the starts leave.
fn started(problem: &Problem, attempt: Attempt, deadline: &Deadline) -> Attempt {
    let Attempt { name, schedule, stop, note } = attempt;
    let stop = match stop {
        StopReason::Optimal | StopReason::GapLimit => StopReason::Done,
        stop => stop,
    };
    let Some(schedule) = schedule else { return Attempt { name, schedule: None, stop, note } };
    let Some(transfers) = timed(problem, &schedule.transfers, deadline) else {
        let note = Some("its order of messages is not one where groups start later".to_owned());
        return Attempt { name, schedule: None, stop: StopReason::Failed, note };
    };
    let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, &schedule.produced_by.strategy);
    Attempt { name, schedule: Some(schedule), stop, note }
}

/// The messages of `transfers` in the best of several orders; `None` if none of them can be played.
fn timed(problem: &Problem, transfers: &[Transfer], deadline: &Deadline) -> Option<Vec<Transfer>> {
    let Problem { topology, demand, .. } = problem;
    let as_it_is: Vec<&Transfer> = transfers.iter().collect();
    let mut shifted = as_it_is.clone();
    let departure = |transfer: &Transfer| transfer.start + demand.release(&transfer.chunks);
    shifted.sort_by(|one, other| departure(one).total_cmp(&departure(other)));
    let orders = [as_it_is, shifted].map(|order| {
        let messages: Vec<Message> = order.into_iter().map(Message::from).collect();
        plain_messages(problem, &messages)
    });
    let is_right = |transfers: &[Transfer]| {
        let schedule = Schedule::new(topology, demand.clone(), transfers.to_vec(), "starts");
        obey(&schedule, topology, &problem.constraints).is_empty() && verify(schedule, topology).is_ok()
    };
    // Another order may leave a part of a sum behind, which makes it faster, or may be one that the sketch does not want.
    let mut played: Vec<(Vec<Transfer>, &Vec<Message>)> = Vec::new();
    for (at, order) in orders.iter().enumerate() {
        let transfers = replayed(problem, order).ok().filter(|transfers| at == 0 || is_right(transfers));
        played.extend(transfers.map(|transfers| (transfers, order)));
    }
    let played = played.into_iter();
    let (best, order) = played.min_by(|(one, _), (other, _)| makespan(one).total_cmp(&makespan(other)))?;
    let listed = if deadline.has_passed() { None } else { interleaved(problem, order, deadline).ok() };
    Some(listed.filter(|listed| makespan(listed) < makespan(&best)).unwrap_or(best))
}
