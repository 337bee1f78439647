//! `milp`: 0/1 models solved with HiGHS, in three formulations.
//!
//! The principal type is [`Milp`]. [`expanded`] cuts time into equal epochs and searches a schedule within a horizon.
//! [`pipeline`] chooses routes first, then orders, then which chunks share a message and when each leaves. [`columns`] chooses
//! whole trees for chunks. All run at the same time, each with its own thread and HiGHS ([`solver`]). They exchange nothing and are
//! limited by counted work, so the result does not depend on which is faster. The planner judges all and keeps the best. Then
//! [`windows`] of the best schedule are solved in exact time.

mod columns;
mod expanded;
mod pipeline;
mod windows;

use crate::problem::constraints::RuleKind;
use crate::problem::reach::check_reachable;
use crate::problem::tolerance::beats;
use crate::problem::{Limits, Problem, SearchOptions, StopReason, StrategyKind, SynthError};
use crate::strategies::matching::Matching;
use crate::strategies::reversal::{check_copies, has_shared_sums};
use crate::strategies::{Attempt, Context, Strategy};
use schedule::Schedule;
use topology::Micros;

/// The name of the strategy; its formulations have their own.
const NAME: &str = StrategyKind::Milp.as_str();

/// The most chunks × links; with more, no model would be small enough.
const MAX_ROUTES: usize = 400_000;
/// The same in a portfolio: larger models would not be solved in their share of the limits.
const MAX_AMONG_OTHERS: usize = 100_000;

/// The formulations together get one part in this many of a limited time; the windows get the rest.
const RACE_PART: u32 = 3;
/// One restart in so many begins with a greedy schedule, the others with the best one.
const GREEDY_EVERY: u64 = 4;
/// The most restarts of the greedy search that gives windows a start.
const GREEDY: u32 = 48;
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

    fn uses_all_time(&self) -> bool {
        true
    }

    /// Windows of whole plans of sums take time: without a limit, only where the strategy runs alone.
    fn goes_on_from_whole(&self, problem: &Problem, context: &Context<'_>) -> bool {
        let has_time = context.is_alone || context.options.time_limit.is_some();
        has_time && context.incumbent.map_or(windows::may_free(problem), |whole| windows::can_free(problem, whole))
    }

    fn plans_halves(&self, context: &Context<'_>) -> bool {
        !context.is_restart || context.incumbent.is_none() || is_greedy_turn(context)
    }

    /// Windows of the best plan of sums that several ranks want.
    fn propose_directly(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        let goes_on = has_shared_sums(problem) && self.goes_on_from_whole(problem, context);
        let patience = if context.is_restart { LONG_PATIENCE } else { PATIENCE };
        let whole = context.incumbent.filter(|_| goes_on);
        whole.map(|whole| windows::attempt(problem, whole, context, patience)).into_iter().collect()
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, NAME)?;
        check_reachable(problem)?;
        let routes = problem.demand.chunks().len().saturating_mul(problem.topology.links().len());
        if routes > context.most(MAX_ROUTES, MAX_AMONG_OTHERS) {
            let why = format!("its models start at {routes} 0/1 columns; symmetric or local methods go further");
            return Err(SynthError::NotApplicable { strategy: NAME, why });
        }
        if context.is_restart {
            return again(problem, context);
        }
        let is_limited = context.options.time_limit.is_some();
        let deadline = if is_limited { context.deadline.part(RACE_PART) } else { context.deadline.clone() };
        let raced = race(problem, &Context { deadline: &deadline, ..*context });
        with_windows(problem, context, raced)
    }
}

/// The attempts of the formulations, and what windows make of the best schedule. Where the strategy runs alone, that may be a greedy
/// one, so that there always is an answer.
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
    let reached = best.as_ref().map_or(Micros(f64::INFINITY), Schedule::makespan);
    let mut found = Vec::new();
    if context.is_alone && !context.is_enough(reached) {
        found.push(from_greedy(problem, context, PATIENCE, reached));
    }
    let is_own = |attempt: &Attempt| attempt.name == windows::NAME && attempt.schedule.is_some();
    let has_own = found.iter().flatten().flatten().any(is_own);
    if let Some(best) = best.filter(|_| !has_own) {
        let attempt = windows::attempt(problem, &best, context, PATIENCE);
        // Of plans that are as fast, the first one counts.
        found.insert(0, attempt.map(|attempt| vec![attempt]));
    }
    for found in found {
        match found {
            Ok(found) => attempts.extend(found),
            Err(error) if attempts.is_empty() && failure.is_none() => return Err(error),
            // What the models have found stays found.
            Err(error) => tracing::info!("a part of milp failed: {error}"),
        }
    }
    match failure {
        Some(error) if attempts.is_empty() => Err(error),
        _ => Ok(attempts),
    }
}

/// What windows find with another seed: from the best schedule, or in one of [`GREEDY_EVERY`] restarts from a greedy one, which is the
/// only one for halves of sums.
///
/// # Errors
/// [`SynthError::NotApplicable`] where windows can free nothing, and failures of the solver.
fn again(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    if context.incumbent.is_some_and(|best| !windows::can_free(problem, best)) {
        let why = "its windows cannot free messages of this plan".to_owned();
        return Err(SynthError::NotApplicable { strategy: NAME, why });
    }
    match context.incumbent {
        Some(best) if !is_greedy_turn(context) => Ok(vec![windows::attempt(problem, best, context, LONG_PATIENCE)?]),
        Some(_) => from_greedy(problem, context, LONG_PATIENCE, Micros(f64::INFINITY)),
        None => from_greedy(problem, context, PATIENCE, Micros(f64::INFINITY)),
    }
}

/// Whether a restart begins with a greedy schedule.
fn is_greedy_turn(context: &Context<'_>) -> bool {
    (context.options.seed >> 32).is_multiple_of(GREEDY_EVERY)
}

/// What windows make of a greedy schedule that takes less than `most`.
fn from_greedy(
    problem: &Problem,
    context: &Context<'_>,
    patience: u32,
    most: Micros,
) -> Result<Vec<Attempt>, SynthError> {
    let Some(greedy) = greedy(problem, context)?.filter(|greedy| beats(greedy.makespan(), most)) else {
        return Ok(Vec::new());
    };
    let mut attempt = windows::attempt(problem, &greedy, context, patience)?;
    attempt.note = attempt.note.map(|note| format!("{note} from the greedy schedule"));
    if attempt.schedule.is_some() {
        return Ok(vec![attempt]);
    }
    // A schedule that no model has made better goes by the name of the strategy that has made it.
    let note = Some("the start of the windows, which no model has made better".to_owned());
    let (name, stop) = (StrategyKind::Matching.as_str().to_owned(), attempt.stop);
    Ok(vec![Attempt { name, schedule: Some(greedy), stop, note }, attempt])
}

/// A schedule of the greedy search.
fn greedy(problem: &Problem, context: &Context<'_>) -> Result<Option<Schedule>, SynthError> {
    let restarts = context.options.limits.restarts.min(GREEDY);
    let limits = Limits { restarts, ..context.options.limits };
    let options = SearchOptions { limits, ..context.options.clone() };
    let found = Matching.propose(problem, &Context { options: &options, ..*context })?;
    Ok(found.into_iter().find_map(|attempt| attempt.schedule))
}

/// What a formulation finds for a problem.
type Formulation = fn(&Problem, &Context<'_>) -> Result<Attempt, SynthError>;

/// Runs the formulations, in parallel unless only one thread is allowed.
fn race(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    let formulations: [Formulation; 3] = [expanded::attempt, pipeline::attempt, columns::attempt];
    if context.options.threads == Some(1) {
        return gathered(formulations.map(|attempt| attempt(problem, context)));
    }
    std::thread::scope(|scope| {
        let runs = formulations.map(|attempt| scope.spawn(move || attempt(problem, context)));
        gathered(runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    })
}

/// The attempts of the formulations. If one failed, its attempt carries the error as a note.
///
/// # Errors
/// The error of the first formulation, if all failed.
fn gathered(results: [Result<Attempt, SynthError>; 3]) -> Result<Vec<Attempt>, SynthError> {
    let failed = |name: &str, error: &SynthError| Attempt {
        name: name.to_owned(),
        schedule: None,
        stop: StopReason::Failed,
        note: Some(error.to_string()),
    };
    if results.iter().all(Result::is_err) {
        let [first, ..] = results;
        return first.map(|attempt| vec![attempt]);
    }
    let named = results.into_iter().zip([expanded::NAME, pipeline::NAME, columns::NAME]);
    Ok(named.map(|(result, name)| result.unwrap_or_else(|error| failed(name, &error))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_formulation_finds_survives_the_failure_of_the_others() {
        let found =
            |name: &str| Ok(Attempt { name: name.to_owned(), schedule: None, stop: StopReason::Optimal, note: None });
        let failed = || Err(SynthError::Solver("out of memory".to_owned()));
        let names = ["a", pipeline::NAME, columns::NAME];
        let attempts = gathered([found("a"), failed(), failed()]).expect("one of them has an answer");
        assert_eq!(attempts.iter().map(|attempt| &*attempt.name).collect::<Vec<_>>(), names);
        let told: Vec<_> = attempts.iter().skip(1).map(|attempt| (attempt.stop, attempt.note.as_deref())).collect();
        assert_eq!(told, [(StopReason::Failed, Some("solver: out of memory")); 2]);
        assert_eq!(
            gathered([failed(), failed(), failed()]).err(),
            Some(SynthError::Solver("out of memory".to_owned()))
        );
    }
}
