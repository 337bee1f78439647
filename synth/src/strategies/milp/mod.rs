//! `milp`: 0/1 models solved with HiGHS, in two formulations.
//!
//! The principal type is [`Milp`]. [`expanded`] cuts time into equal epochs and searches a schedule within a horizon.
//! [`pipeline`] chooses routes first, then orders, then which chunks share a message and when each leaves. Both run at
//! the same time, each with its own thread and HiGHS ([`solver`]). They exchange nothing and are limited by counted
//! work, so the result does not depend on which is faster. The planner judges both and keeps the better. Then
//! [`windows`] of the best schedule are solved in exact time.

mod expanded;
mod pipeline;
mod windows;

use crate::problem::constraints::RuleKind;
use crate::problem::reach::check_reachable;
use crate::problem::tolerance::beats;
use crate::problem::{Limits, Problem, SearchOptions, StopReason, StrategyKind, SynthError};
use crate::strategies::matching::Matching;
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};
use schedule::Schedule;
use topology::Micros;

/// The name of the strategy; its two formulations have their own.
const NAME: &str = StrategyKind::Milp.as_str();

/// The most chunks × links; with more, no model would be small enough.
const MAX_ROUTES: usize = 400_000;
/// The same in a portfolio: larger models would not be solved in their share of the limits.
const MAX_AMONG_OTHERS: usize = 100_000;

/// Both formulations together get one part in this many of a limited time; the windows get the rest.
const RACE_PART: u32 = 8;
/// The restarts of the greedy search that gives windows a start.
const GREEDY: u32 = 8;
/// How patient windows are, the first time and in restarts.
const PATIENCE: u32 = 16;
const LONG_PATIENCE: u32 = 120;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Milp;

impl Strategy for Milp {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Milp
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_ORDER
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, NAME)?;
        check_reachable(problem)?;
        let routes = problem.demand.chunks().len().saturating_mul(problem.topology.links().len());
        if routes > context.most(MAX_ROUTES, MAX_AMONG_OTHERS) {
            let why = format!("its models start at {routes} 0/1 columns; symmetric or local methods go further");
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        if context.is_alone && context.incumbent.is_some() {
            return with_windows(problem, context, Ok(Vec::new()));
        }
        let deadline = context.deadline.part(RACE_PART);
        let raced = race(problem, &Context { deadline: &deadline, ..*context });
        with_windows(problem, context, raced)
    }
}

/// The attempts of both formulations, and what windows make of the best schedule. Where the strategy runs alone, windows begin
/// with a greedy schedule, too, if that is better then, so that there always is an answer. Half of the restarts begin with one.
///
/// # Errors
/// Those of the formulations if there is no schedule at all, and failures of the solver.
fn with_windows(
    problem: &Problem,
    context: &Context<'_>,
    raced: Result<Vec<Attempt>, SynthError>,
) -> Result<Vec<Attempt>, SynthError> {
    let (mut attempts, failure) = match raced {
        Ok(attempts) => (attempts, None),
        Err(error @ SynthError::Infeasible { .. }) => return Err(error),
        Err(error) => (Vec::new(), Some(error)),
    };
    let own = attempts.iter().filter_map(|attempt| attempt.schedule.as_ref());
    let best = own.chain(context.incumbent).min_by(|a, b| a.makespan().total_cmp(&b.makespan())).cloned();
    let is_restart = context.is_alone && context.incumbent.is_some();
    let patience = if is_restart { LONG_PATIENCE } else { PATIENCE };
    let is_greedy_turn = is_restart && context.options.seed.count_ones() % 2 == 1;
    let mut reached = best.as_ref().map_or(Micros(f64::INFINITY), Schedule::makespan);
    if let Some(best) = best.filter(|_| !is_greedy_turn) {
        let attempt = match windows::attempt(problem, &best, context, patience) {
            Ok(attempt) => attempt,
            // What the models have found stays found.
            Err(error) if !attempts.is_empty() => {
                tracing::info!("the windows of milp failed: {error}");
                return Ok(attempts);
            }
            Err(error) => return Err(error),
        };
        reached = attempt.schedule.as_ref().map_or(reached, Schedule::makespan);
        attempts.push(attempt);
    }
    let wants_greedy = context.is_alone && (!is_restart || is_greedy_turn) && !context.is_enough(reached);
    let greedy = if wants_greedy { greedy(problem, context)? } else { None };
    let Some(greedy) = greedy.filter(|greedy| is_greedy_turn || beats(greedy.makespan(), reached)) else {
        return if attempts.is_empty() { failure.map_or(Ok(attempts), Err) } else { Ok(attempts) };
    };
    let mut attempt = windows::attempt(problem, &greedy, context, patience)?;
    attempt.note = attempt.note.map(|note| format!("{note} from the greedy schedule"));
    if attempt.schedule.is_none() {
        // A schedule that no model has made better goes by the name of the strategy that has made it.
        let note = Some("the start of the windows, which no model has made better".to_owned());
        let (name, stop) = (StrategyKind::Matching.as_str().to_owned(), attempt.stop);
        attempts.push(Attempt { name, schedule: Some(greedy), stop, note });
    }
    attempts.push(attempt);
    Ok(attempts)
}

/// A schedule of the greedy search, with few restarts.
fn greedy(problem: &Problem, context: &Context<'_>) -> Result<Option<Schedule>, SynthError> {
    let limits = Limits { restarts: GREEDY, ..context.options.limits };
    let options = SearchOptions { limits, ..context.options.clone() };
    let found = Matching.propose(problem, &Context { options: &options, ..*context })?;
    Ok(found.into_iter().find_map(|attempt| attempt.schedule))
}

/// Runs both formulations, in parallel unless only one thread is allowed.
fn race(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    if context.options.threads == Some(1) {
        return both(expanded::attempt(problem, context), pipeline::attempt(problem, context));
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| pipeline::attempt(problem, context));
        let expanded = expanded::attempt(problem, context);
        both(expanded, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The attempts of both formulations. If one failed, its attempt carries the error as a note.
///
/// # Errors
/// The error of the first formulation, if both failed.
fn both(
    expanded: Result<Attempt, SynthError>,
    pipeline: Result<Attempt, SynthError>,
) -> Result<Vec<Attempt>, SynthError> {
    let failed = |name: &str, error: &SynthError| Attempt {
        name: name.to_owned(),
        schedule: None,
        stop: StopReason::Failed,
        note: Some(error.to_string()),
    };
    match (expanded, pipeline) {
        (Ok(expanded), Ok(pipeline)) => Ok(vec![expanded, pipeline]),
        (Ok(expanded), Err(error)) => Ok(vec![expanded, failed(pipeline::NAME, &error)]),
        (Err(error), Ok(pipeline)) => Ok(vec![failed(expanded::NAME, &error), pipeline]),
        (Err(error), Err(_)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_formulation_finds_survives_the_failure_of_the_other() {
        let found =
            |name: &str| Ok(Attempt { name: name.to_owned(), schedule: None, stop: StopReason::Optimal, note: None });
        let failed = || Err(SynthError::Solver("out of memory".to_owned()));
        for (attempts, names) in
            [(both(found("a"), failed()), ["a", pipeline::NAME]), (both(failed(), found("b")), [expanded::NAME, "b"])]
        {
            let attempts = attempts.expect("one of them has an answer");
            assert_eq!([&*attempts[0].name, &*attempts[1].name], names);
            let told = attempts.iter().find(|attempt| attempt.stop != StopReason::Optimal);
            assert_eq!(told.and_then(|it| it.note.as_deref()), Some("solver: out of memory"));
        }
        assert_eq!(both(failed(), failed()).err(), Some(SynthError::Solver("out of memory".to_owned())));
    }
}
