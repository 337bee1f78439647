//! The contract between the planner and its strategies.
//!
//! A strategy proposes schedules; it never judges them. To add one: a folder with a type that implements
//! [`Strategy`], and one line in the planner's table.

mod bundles;
pub(crate) mod classic;
pub(crate) mod exact;
pub(crate) mod flow;
pub(crate) mod improve;
pub(crate) mod levels;
pub(crate) mod matching;
pub(crate) mod milp;
pub(crate) mod orbits;
pub(crate) mod reversal;
pub(crate) mod trees;

use crate::problem::{Deadline, Options, Problem, Progress, StopReason, SynthError};
use schedule::Schedule;
use topology::Micros;

/// What the planner lends a strategy for one attempt.
pub struct Context<'a> {
    /// Seed, limits, threads.
    pub options: &'a Options,
    /// When to return with what there is.
    pub deadline: &'a Deadline,
    /// The best schedule so far for the *same* demand, as warm start and cutoff.
    pub incumbent: Option<&'a Schedule>,
    /// The best proven lower bound: nothing faster exists.
    pub bound: Micros,
    /// Called now and then; must be cheap.
    pub progress: &'a (dyn Fn(Progress) + Sync),
}

impl Context<'_> {
    /// A makespan that is good enough: whoever has it stops.
    pub fn goal(&self) -> Micros {
        self.bound * (1.0 + self.options.gap)
    }
}

/// A proposal, or the reason there is none.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// More precise than the strategy's name, such as `classic/ring`.
    pub name: String,
    /// The proposal; not yet verified. `None` if the strategy found nothing better than the incumbent.
    pub schedule: Option<Schedule>,
    /// Why the search ended.
    pub stop: StopReason,
    /// What a person should know.
    pub note: Option<String>,
}

/// A way of finding schedules.
pub trait Strategy: Sync {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Proposes schedules for `problem`; several where it has several (ring, tree, …). Nothing in it is reduced.
    ///
    /// # Errors
    /// [`SynthError::Infeasible`] where no schedule exists under the constraints; solver failures.
    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError>;

    /// What it has for a demand that reduces, besides what `reversal` makes of [`Self::propose`].
    ///
    /// # Errors
    /// As above.
    fn propose_directly(&self, _problem: &Problem, _context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        Ok(Vec::new())
    }
}
