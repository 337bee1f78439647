//! The search over horizons: coarse grids first, each from its lowest possible horizon upward.
//!
//! The principal type is [`HorizonSearch`], which keeps the best schedule so far and counts solver calls. On one grid,
//! the horizon grows from the bound with doubling steps, as long as models are infeasible or undecided. Then bisection
//! finds the smallest horizon with a schedule. Finer grids follow as long as their models are small enough.

use super::NAME;
use super::grid::{Grid, distinct_costs, natural_epochs};
use super::model::Expansion;
use super::refine::improve;
use crate::epochs::routes::{Leeway, Routes};
use crate::epochs::timing::schedule_of;
use crate::problem::tolerance::beats;
use crate::problem::{Problem, Progress, SynthError};
use crate::solver::{Controls, Ending, solve};
use crate::strategies::Context;
use crate::symmetry::PairOrbits;
use schedule::Schedule;
use std::ops::RangeInclusive;
use topology::Micros;

/// The most 0/1 columns of a model. HiGHS solves models up to about this size in seconds, and hardly any larger ones.
const MAX_BINARIES: usize = 15_000;
/// A model of at most this many columns gets all iterations of a call. Iterations on larger models take longer, so
/// these get proportionally fewer.
const FULL_COLUMNS: u64 = 500;
/// A model that would get fewer iterations than this is not tried. They would not solve it. The work of HiGHS before
/// the first iteration (presolve, probing) is not counted, and takes seconds on large models.
const FEWEST_ITERATIONS: u64 = 400;
/// The same where the solver is one of several strategies: on 7,000 columns it took eight seconds and found nothing.
const FEWEST_AMONG_OTHERS: u64 = 1_600;
/// All calls together may do as much work as this many calls that use all their iterations.
const FULL_CALLS: u64 = 6;
/// The ranges of horizons; one grid is picked from each, so that each is about twice as fine as the one before.
const HORIZON_RANGES: [RangeInclusive<u32>; 5] = [2..=5, 6..=11, 12..=23, 24..=47, 48..=96];

/// The result of one model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelVerdict {
    /// It has a schedule, which was timed and compared with the best.
    Feasible,
    /// It has no schedule.
    Infeasible,
    /// A limit was reached before the answer.
    Undecided,
    /// It was not tried: it is too large for the limits, or no solver calls are left.
    Skipped,
}

/// The state of the search on one problem.
pub(super) struct HorizonSearch<'a> {
    pub(super) problem: &'a Problem,
    context: &'a Context<'a>,
    orbits: Option<PairOrbits>,
    /// The best schedule found, if it is better than the incumbent.
    pub(super) found: Option<Schedule>,
    /// The makespan to beat.
    pub(super) best: Option<Micros>,
    calls_left: u32,
    /// The work that is left, in iterations × columns.
    work_left: u64,
    /// Findings for the report.
    pub(super) findings: Vec<String>,
}

impl<'a> HorizonSearch<'a> {
    pub(super) fn new(problem: &'a Problem, context: &'a Context<'a>) -> Self {
        Self {
            problem,
            context,
            orbits: PairOrbits::new(problem, context.symmetries, context.deadline),
            found: None,
            best: context.incumbent.map(Schedule::makespan),
            calls_left: 0,
            work_left: 0,
            findings: Vec::new(),
        }
    }

    /// Whether the search ends: the schedule is good enough, or a limit is reached.
    pub(super) fn is_over(&self) -> bool {
        self.is_good_enough() || self.calls_left == 0 || self.work_left == 0 || self.context.deadline.has_passed()
    }

    /// Whether the best makespan is good enough.
    pub(super) fn is_good_enough(&self) -> bool {
        self.best.is_some_and(|best| self.context.is_enough(best))
    }

    /// The best schedule so far: one found here, or the incumbent.
    pub(super) fn best_schedule(&self) -> Option<Schedule> {
        self.found.clone().or_else(|| self.context.incumbent.cloned())
    }

    pub(super) fn seed(&self) -> u64 {
        self.context.options.seed
    }

    /// Searches the horizon on every grid, coarse to fine, and then around the best schedule.
    pub(super) fn run(&mut self) -> Result<(), SynthError> {
        let grids = self.grids();
        self.grant_half();
        for grid in &grids {
            if self.is_over() {
                break;
            }
            if self.orbits.is_some() {
                self.search_horizon(grid, ModelScope::Symmetric)?;
            }
            if !self.is_over() {
                self.search_horizon(grid, ModelScope::Whole)?;
            }
        }
        self.grant_half();
        improve(self, &grids)
    }

    /// Grants half of the limits: the first half is for whole models, the second for improving their schedules.
    fn grant_half(&mut self) {
        let limits = self.context.options.limits;
        self.calls_left += limits.solver_calls.div_ceil(2);
        self.work_left += limits.solver_iterations.saturating_mul(FULL_COLUMNS * FULL_CALLS / 2);
    }

    /// The grids to try: for each range of horizons, the one that fits the durations best.
    fn grids(&self) -> Vec<Grid> {
        let costs = distinct_costs(self.problem);
        let epochs = natural_epochs(self.problem, &costs);
        let Some(&longest) = epochs.first() else { return Vec::new() };
        let expected = self.best.unwrap_or(self.context.bound * 1.25).max(longest);
        let mut grids = Vec::new();
        for range in HORIZON_RANGES {
            let fitting = epochs.iter().map(|&epoch| Grid::new(self.problem, epoch));
            let mut fitting: Vec<Grid> = fitting.filter(|grid| range.contains(&grid.epochs_over(expected))).collect();
            fitting.sort_by(|a, b| a.misfit(&costs).total_cmp(&b.misfit(&costs)));
            grids.extend(fitting.into_iter().next());
        }
        grids
    }

    /// Searches the smallest horizon with a schedule on one grid.
    fn search_horizon(&mut self, grid: &Grid, scope: ModelScope) -> Result<(), SynthError> {
        let free = vec![Leeway::Free; self.problem.demand.chunks().len()];
        let lowest = grid.epochs_over(self.context.bound * 0.9).max(1);
        // The horizon of the best itself is included: durations are rounded to the nearest epoch, so a schedule with as
        // many epochs can still be faster.
        let highest = self.best.map_or(lowest.saturating_mul(4).max(16), |best| grid.epochs_over(best));
        let (mut below, mut above, mut refuted) = (lowest - 1, None, None);
        let (mut horizon, mut step) = (lowest, 1);
        while horizon > below && !self.is_over() {
            match self.attempt(grid, horizon, &free, scope)? {
                ModelVerdict::Feasible => above = Some(horizon),
                ModelVerdict::Skipped => break,
                ModelVerdict::Infeasible if scope == ModelScope::Whole => (below, refuted) = (horizon, Some(horizon)),
                ModelVerdict::Infeasible | ModelVerdict::Undecided => below = horizon,
            }
            horizon = match above {
                Some(above) => below + (above - below) / 2,
                None => horizon.saturating_add(step).min(highest),
            };
            step = step.saturating_mul(2);
        }
        // This holds for this grid only: rounding may have made the problem harder or easier.
        if let Some(refuted) = refuted {
            self.findings.push(format!("no schedule in {refuted} epochs of {:.3}", grid.epoch));
        }
        Ok(())
    }

    /// Builds and solves one model, times its schedule, and keeps it if it is the best so far.
    pub(super) fn attempt(
        &mut self,
        grid: &Grid,
        horizon: u32,
        leeway: &[Leeway],
        scope: ModelScope,
    ) -> Result<ModelVerdict, SynthError> {
        let Some(routes) = Routes::new(self.problem, &|link, bytes| grid.latency(link, bytes), horizon, leeway) else {
            return Ok(ModelVerdict::Infeasible);
        };
        let orbits = self.orbits.as_ref().filter(|_| scope == ModelScope::Symmetric);
        if routes.columns(orbits) > MAX_BINARIES || self.calls_left == 0 {
            return Ok(ModelVerdict::Skipped);
        }
        let mut expansion = Expansion::new(self.problem, grid, horizon, &routes, orbits);
        if scope == ModelScope::Nearby {
            expansion.empty_the_last_epoch(&routes, horizon);
        }
        let options = self.context.options;
        let columns = (expansion.model.columns() as u64).max(FULL_COLUMNS);
        let full = options.limits.solver_iterations.saturating_mul(FULL_COLUMNS).min(self.work_left);
        let iterations = full / columns;
        let fewest = if self.context.is_alone { FEWEST_ITERATIONS } else { FEWEST_AMONG_OTHERS };
        if iterations < fewest.min(options.limits.solver_iterations) {
            return Ok(ModelVerdict::Skipped);
        }
        self.calls_left -= 1;
        let activity = format!("{horizon} epochs of {:.3}, {} columns", grid.epoch, expansion.model.columns());
        self.announce(activity.clone());
        let controls = Controls { seed: options.seed, ..Controls::within(iterations, self.context.deadline) };
        // Only the models near the best schedule contain it.
        let best = self.found.as_ref().or(self.context.incumbent).filter(|_| scope == ModelScope::Nearby);
        let start = best.map_or_else(Vec::new, |best| expansion.start(best, grid));
        let outcome = solve(&expansion.model, &start, &controls, &mut |found| {
            self.announce(format!("{activity}, {} to {} arrivals in the last", found.bound.max(0.0), found.objective));
        })?;
        self.work_left = self.work_left.saturating_sub(outcome.iterations * columns);
        let verdict = match outcome.ending {
            Ending::Infeasible | Ending::Unbounded => ModelVerdict::Infeasible,
            Ending::Limit { incumbent: None, .. } => ModelVerdict::Undecided,
            Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. } => {
                self.consider(schedule_of(self.problem, expansion.departures(&solution), "milp")?);
                ModelVerdict::Feasible
            }
        };
        tracing::debug!(epoch = grid.epoch.0, horizon, columns, ?verdict, best = ?self.best);
        Ok(verdict)
    }

    fn consider(&mut self, schedule: Schedule) {
        let makespan = schedule.makespan();
        if self.best.is_none_or(|best| beats(makespan, best)) {
            self.best = Some(makespan);
            self.found = Some(schedule);
        }
    }

    fn announce(&self, activity: String) {
        (self.context.progress)(Progress { strategy: NAME, incumbent: self.best, bound: None, activity });
    }
}

/// The part of the problem that a model covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelScope {
    /// All of it, with symmetric departures merged.
    Symmetric,
    Whole,
    /// The neighbourhood of the best schedule.
    Nearby,
}
