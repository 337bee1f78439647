//! The contract between the planner and its strategies.
//!
//! A strategy proposes schedules; it never judges them. To add one: a folder here with a type that implements
//! [`Strategy`], its name in `StrategyKind`, and one line in the planner's table.

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
mod shuffle;
pub(crate) mod starts;
pub(crate) mod trees;

use crate::bounds::{Bound, Bounds};
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::reaches;
use crate::problem::{Deadline, Problem, Progress, SearchOptions, StopReason, StrategyKind, SynthError};
use crate::symmetry::Symmetries;
use schedule::Schedule;
use topology::Micros;

/// What the planner gives a strategy for one attempt.
pub struct Context<'a> {
    /// Seed, limits, threads.
    pub options: &'a SearchOptions,
    /// When the strategy has to return what it has.
    pub deadline: &'a Deadline,
    /// The best schedule so far for the *same* demand, as warm start and cutoff.
    pub incumbent: Option<&'a Schedule>,
    /// The best schedule by another name (`classic/ring`, say) for the same demand. It may be a better start than the best one.
    pub(crate) runner_up: Option<&'a Schedule>,
    /// The best proven lower bound: no schedule is faster.
    pub bound: Micros,
    /// Whether the strategy need not share the time with others, as where the user named it. Then it runs even where it is not
    /// [worthwhile](Strategy::is_worthwhile), and tries [larger](Self::most) problems.
    pub is_alone: bool,
    /// Whether it has run for this problem before, with another seed.
    pub(crate) is_restart: bool,
    /// How halves of reductions are joined.
    pub(crate) joining: Joining,
    /// Whether the strategy has already proposed [directly](Strategy::propose_directly) for this problem.
    pub(crate) was_planned_as_one: bool,
    /// The symmetries of the machines of this synthesis.
    pub(crate) symmetries: &'a Symmetries,
    /// Called now and then to report progress; it must be cheap.
    pub progress: &'a (dyn Fn(Progress) + Sync),
}

impl<'a> Context<'a> {
    /// Lent to a strategy that runs alone, without an incumbent and with no bound but zero.
    pub(crate) fn alone(
        options: &'a SearchOptions,
        deadline: &'a Deadline,
        symmetries: &'a Symmetries,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Self {
        Self {
            options,
            deadline,
            incumbent: None,
            runner_up: None,
            bound: Micros::ZERO,
            is_alone: true,
            is_restart: false,
            joining: Joining::Exchanging,
            was_planned_as_one: false,
            symmetries,
            progress,
        }
    }

    /// The most of what grows with the problem: `alone` where the strategy runs alone, else `among_others`.
    pub(crate) fn most(&self, alone: usize, among_others: usize) -> usize {
        if self.is_alone { alone } else { among_others }
    }

    /// A makespan that is good enough: a search that reaches it stops.
    pub fn goal(&self) -> Micros {
        self.bound * (1.0 + self.options.gap)
    }

    /// Whether a makespan is [good enough](Self::goal).
    pub(crate) fn is_enough(&self, makespan: Micros) -> bool {
        reaches(makespan, self.goal())
    }
}

/// How two halves of reductions become one schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joining {
    /// At once: without a bound of each, and one after the other.
    AsTheyAre,
    /// In the best order of all messages.
    Ordered,
    /// In the best order of all messages, where neighbours may exchange sums.
    Exchanging,
}

/// A proposal, or the reason there is none.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The name of the attempt, more precise than the strategy's name, such as `classic/ring`.
    pub name: String,
    /// The proposal; not yet verified. `None` if the strategy found nothing better than the incumbent.
    pub schedule: Option<Schedule>,
    /// Why the search ended.
    pub stop: StopReason,
    /// A remark for the user.
    pub note: Option<String>,
}

/// A way of finding schedules.
pub trait Strategy: Sync {
    /// Which one it is.
    fn kind(&self) -> StrategyKind;

    /// The kinds of rules of a sketch that its schedules obey. The planner asks it nothing where there are others.
    fn honours(&self) -> &'static [RuleKind];

    /// The name in reports.
    fn name(&self) -> &'static str {
        self.kind().as_str()
    }

    /// Where the strategy is one of several: whether it may find something that is worth its part of the time.
    ///
    /// # Errors
    /// [`SynthError::NotApplicable`] if not.
    fn is_worthwhile(&self, _problem: &Problem, _context: &Context<'_>) -> Result<(), SynthError> {
        Ok(())
    }

    /// Whether it uses all the time that it is given, so that each half of a sum needs a part of its own.
    fn uses_all_time(&self) -> bool {
        false
    }

    /// Whether [`Self::propose_directly`] goes on from the best plan of all sums, so that the halves have to leave it time.
    fn goes_on_from_whole(&self, _problem: &Problem, _context: &Context<'_>) -> bool {
        false
    }

    /// Whether the halves of sums that several ranks want are planned at all, where [`Self::goes_on_from_whole`].
    fn plans_halves(&self, _context: &Context<'_>) -> bool {
        true
    }

    /// Proposes schedules for `problem`, one or more (ring, tree, …). The demand of `problem` reduces nothing.
    ///
    /// # Errors
    /// [`SynthError::Infeasible`] where no schedule exists under the constraints; solver failures.
    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError>;

    /// Where [`Self::propose_directly`] can tell before which of `problems` (one for each chunk count) promises most within
    /// the time: the place of that problem.
    fn promising_count(&self, _problems: &[Problem], _deadline: &Deadline) -> Option<usize> {
        None
    }

    /// Proposes schedules for a demand that reduces, besides those that `reversal` makes from [`Self::propose`].
    fn propose_directly(&self, _problem: &Problem, _context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        Ok(Vec::new())
    }

    /// Whether [`Self::propose_directly`] takes little time, so that it comes before the halves, after which there may be none left.
    fn is_quick_directly(&self) -> bool {
        false
    }

    /// Bounds of `problem` above those `known` that it can prove; asked after it proposed.
    ///
    /// # Errors
    /// Solver failures.
    fn prove(&self, _problem: &Problem, _known: &Bounds, _deadline: &Deadline) -> Result<Vec<Bound>, SynthError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
impl<'a> Context<'a> {
    /// Lent to a strategy of a test that runs alone, without an incumbent.
    pub(crate) fn of_test(options: &'a SearchOptions, deadline: &'a Deadline, bound: Micros) -> Self {
        Self { bound, ..Self::alone(options, deadline, Box::leak(Box::default()), &|_| {}) }
    }

    /// Lent to a strategy of a test that is one of many.
    pub(crate) fn among_others(options: &'a SearchOptions, deadline: &'a Deadline, bound: Micros) -> Self {
        Self { is_alone: false, ..Self::of_test(options, deadline, bound) }
    }
}
