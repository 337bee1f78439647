//! `milp`: 0/1 models decided by HiGHS, in two formulations that race.
//!
//! The principal type is [`Milp`]. [`expanded`] cuts time into equal epochs and asks for a schedule within a horizon;
//! [`pipeline`] chooses routes first, then orders, then which chunks share a message and when each leaves. Each has a
//! core, a thread and a HiGHS ([`solver`]) of its own; they exchange nothing and stop by counting work, so that the
//! answer does not depend on who is faster. The planner judges both and keeps the better.

mod expanded;
mod pipeline;

use crate::problem::reach::check_reachable;
use crate::problem::{Problem, SynthError};
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};

/// The name of the strategy; its two formulations have their own.
const NAME: &str = "milp";

/// More chunks × links than this are not expanded: no model of them would be small enough, or, where nobody asked for one, solved
/// in the time that it gets.
const MAX_ROUTES: [usize; 2] = [400_000, 100_000];

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
        if routes > MAX_ROUTES[usize::from(context.options.strategy.is_none())] {
            let why = format!("its models start at {routes} 0/1 columns; symmetric or local methods go further");
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        race(problem, context)
    }
}

/// Both formulations, side by side unless one thread is all there is.
fn race(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    let (expanded, pipeline) = if context.options.threads == Some(1) {
        (expanded::attempt(problem, context), pipeline::attempt(problem, context))
    } else {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pipeline::attempt(problem, context));
            let expanded = expanded::attempt(problem, context);
            (expanded, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    };
    Ok(vec![expanded?, pipeline?])
}
