//! `exact`: certificates for small machines.
//!
//! The principal type is [`Exact`]. It asks whether a schedule can end before a time, from the bound upward
//! ([`horizon`]; [`periods`] defines how time is cut). Each answer is either a schedule, which is then timed exactly,
//! or a higher bound. Where all durations are whole numbers of periods, the first schedule is optimal. [`pareto`] does
//! the same for SCCL's synchronous steps ([`synchronous`]), where the questions are numbers of steps and rounds.

mod horizon;
mod pareto;
mod periods;
mod synchronous;
#[cfg(test)]
mod tests;

pub use horizon::{HorizonEffort, horizon};
pub use pareto::{Front, ParetoPoint, Reach, Reason, Refuted, Relaxation, pareto};

use crate::bounds::{Bound, Bounds, Proof};
use crate::epochs::timing::schedule_of;
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::{beats, reaches};
use crate::problem::{Deadline, Problem, Progress, StopReason, StrategyKind, SynthError, check_reachable};
use crate::solver::Controls;
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};
use horizon::{EndVerdict, decide};
use periods::{MessageCapacity, Periods, cuts};
use schedule::Schedule;
use topology::Micros;

/// The name in reports.
const NAME: &str = StrategyKind::Exact.as_str();

/// The most departures of a model.
const MOST_DEPARTURES: usize = 80_000;
/// The most ends that are tried for one cut of time.
const MOST_ENDS: usize = 24;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl Strategy for Exact {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Exact
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_LINKS
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, NAME)?;
        let mut search = ExactSearch::new(problem, context);
        if routes(problem) > MOST_DEPARTURES {
            return Err(not_applicable(
                "its models would have too many columns; symmetric or local methods go further",
            ));
        }
        check_reachable(problem)?;
        search.run()?;
        search.attempt().map(|attempt| vec![attempt])
    }

    fn prove(&self, problem: &Problem, known: &Bounds, deadline: &Deadline) -> Result<Vec<Bound>, SynthError> {
        horizon(problem, known, HorizonEffort::default(), deadline)
    }
}

struct ExactSearch<'a> {
    problem: &'a Problem,
    context: &'a Context<'a>,
    /// The best schedule found, if it is better than the incumbent.
    found: Option<Schedule>,
    /// The makespan to beat.
    best: Option<Micros>,
    /// No schedule with one chunk per message ends before this time.
    proven: Micros,
    how: String,
    tried: bool,
}

impl<'a> ExactSearch<'a> {
    fn new(problem: &'a Problem, context: &'a Context<'a>) -> Self {
        Self {
            problem,
            context,
            found: None,
            best: context.incumbent.map(Schedule::makespan),
            proven: Micros::ZERO,
            how: String::new(),
            tried: false,
        }
    }

    fn run(&mut self) -> Result<(), SynthError> {
        let about = self.best.unwrap_or(self.context.bound * 1.1);
        for periods in cuts(self.problem, MessageCapacity::Single, about) {
            if self.is_over() {
                break;
            }
            self.climb(&periods)?;
        }
        Ok(())
    }

    /// Asks about one end after the other, two at a time unless only one thread is allowed, until there is a schedule.
    fn climb(&mut self, periods: &Periods<'_>) -> Result<(), SynthError> {
        // Start slightly below the bound: what the bound already refutes is cheap to refute, and gives a certificate.
        let from = self.context.bound.max(self.proven) - periods.period * 0.5;
        let highest = self.best.unwrap_or(from * 4.0 + periods.period * 4.0);
        let ends = periods.ends(from.max(Micros::ZERO), highest + periods.period, MOST_ENDS);
        for pair in ends.chunks(2) {
            if self.is_over() || self.best.is_some_and(|best| !reaches(pair[0], best)) {
                break;
            }
            for (&end, verdict) in pair.iter().zip(self.ask(periods, pair)?) {
                match verdict {
                    EndVerdict::Refuted(proof) => self.learn(periods, end, &proof),
                    EndVerdict::Possible(departures) => {
                        self.tried = true;
                        self.consider(schedule_of(self.problem, departures, NAME)?);
                        return Ok(());
                    }
                    EndVerdict::Undecided => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// The answers to up to two questions, asked in parallel unless only one thread is allowed.
    fn ask(&self, periods: &Periods<'_>, ends: &[Micros]) -> Result<Vec<EndVerdict>, SynthError> {
        let controls = Controls {
            seed: self.context.options.seed,
            ..Controls::within(self.context.options.limits.solver_iterations, self.context.deadline)
        };
        let activity = format!("can it end before {:.3} µs", ends[0].0);
        (self.context.progress)(Progress { strategy: NAME, incumbent: self.best, bound: None, activity });
        let ask = |&end: &Micros| decide(periods, false, end, MOST_DEPARTURES, &controls);
        match ends {
            [one, other] if self.context.options.threads != Some(1) => std::thread::scope(|scope| {
                let other = scope.spawn(|| ask(other));
                let one = ask(one)?;
                Ok(vec![one, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?])
            }),
            _ => ends.iter().map(ask).collect(),
        }
    }

    fn learn(&mut self, periods: &Periods<'_>, end: Micros, proof: &Proof) {
        self.tried = true;
        let raised = horizon::bound(periods, false, end, proof.clone()).value;
        if raised > self.proven {
            self.proven = raised;
            self.how = match proof {
                Proof::Distance => "distance".to_owned(),
                Proof::Linear { .. } => "linear relaxation".to_owned(),
                Proof::Search { nodes } => format!("search, {nodes} nodes"),
            };
        }
    }

    fn consider(&mut self, schedule: Schedule) {
        let makespan = schedule.makespan();
        if self.best.is_none_or(|best| beats(makespan, best)) {
            self.best = Some(makespan);
            self.found = Some(schedule);
        }
    }

    /// Whether the schedule is good enough, or the time is up.
    fn is_over(&self) -> bool {
        let goal = self.context.goal().max(self.proven * (1.0 + self.context.options.gap));
        self.best.is_some_and(|best| reaches(best, goal)) || self.context.deadline.has_passed()
    }

    fn attempt(self) -> Result<Attempt, SynthError> {
        if !self.tried && self.found.is_none() && !self.context.deadline.has_passed() {
            return Err(not_applicable("chunks of unequal sizes, or too many of them for an exact model"));
        }
        let bound = self.context.bound.max(self.proven);
        let stop = match self.best {
            Some(best) if reaches(best, bound) => StopReason::Optimal,
            _ if self.context.deadline.has_passed() => StopReason::TimeLimit,
            _ => StopReason::Done,
        };
        let note = (self.proven > Micros::ZERO).then(|| {
            let Self { proven, how, .. } = &self;
            format!("with one chunk a message, none ends before {:.4} µs ({how})", proven.0)
        });
        Ok(Attempt { name: NAME.to_owned(), schedule: self.found, stop, note })
    }
}

fn not_applicable(why: &str) -> SynthError {
    SynthError::NotApplicable { strategy: NAME, why: why.to_owned() }
}

/// The fewest departures of any model of `problem`.
fn routes(problem: &Problem) -> usize {
    problem.demand.chunks().len().saturating_mul(problem.topology.links().len())
}

/// Refuses sketches with rules beyond which links may be used.
fn refuse_rules(problem: &Problem) -> Result<(), SynthError> {
    match problem.constraints.exceeds(&RuleKind::OF_LINKS) {
        true => Err(not_applicable("its models know no hop limits, stages, or rules about who goes first")),
        false => Ok(()),
    }
}
