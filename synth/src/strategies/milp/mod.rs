//! `milp`: 0/1 models decided by HiGHS, in two formulations that race.
//!
//! The principal type is [`Milp`]. [`expanded`] cuts time into equal epochs and asks for a schedule within a horizon;
//! [`pipeline`] chooses routes first, then orders, then which chunks share a message and when each leaves. Each has a
//! core, a thread and a HiGHS ([`solver`]) of its own; they exchange nothing and stop by counting work, so that the
//! answer does not depend on who is faster. The planner judges both and keeps the better.

mod expanded;
mod pipeline;

use crate::problem::reach::check_reachable;
use crate::problem::{Problem, StopReason, SynthError};
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};

/// The name of the strategy; its two formulations have their own.
const NAME: &str = "milp";

/// More chunks × links than this are not expanded: no model of them would be small enough.
const MAX_ROUTES: usize = 400_000;
/// The same where this strategy is one of many: none would be solved in the time that it gets.
const MAX_AMONG_OTHERS: usize = 100_000;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Milp;

impl Strategy for Milp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, NAME)?;
        check_reachable(problem)?;
        let routes = problem.demand.chunks().len().saturating_mul(problem.topology.links().len());
        if routes > if context.is_alone { MAX_ROUTES } else { MAX_AMONG_OTHERS } {
            let why = format!("its models start at {routes} 0/1 columns; symmetric or local methods go further");
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        race(problem, context)
    }
}

/// Both formulations, side by side unless one thread is all there is.
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

/// What both have: where one failed, the other's answer counts, and why the one failed is told.
///
/// # Errors
/// The first, where both failed.
fn both(
    expanded: Result<Attempt, SynthError>,
    pipeline: Result<Attempt, SynthError>,
) -> Result<Vec<Attempt>, SynthError> {
    let failed = |name: &str, error: &SynthError| Attempt {
        name: name.to_owned(),
        schedule: None,
        stop: StopReason::Exhausted,
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
