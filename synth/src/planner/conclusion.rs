//! The conclusion of the planner: the best schedule of all searches, and the report.

use super::Synthesis;
use super::search::{CountSearch, accept, leader};
use crate::polish::ease::eased;
use crate::polish::prefer::prefer;
use crate::problem::tolerance::bound_below;
use crate::problem::{
    Candidate, Deadline, Milestone, Problem, Report, SearchOptions, StopReason, StrategyKind, SynthError,
};
use schedule::{CandidateOutcome, LowerBound, Schedule, VerifiedSchedule};

/// For so few transfers, preferences take milliseconds, so they are considered even if the time is up.
const QUICK: usize = 1 << 14;

/// The best schedule of all searches, which began with the schedule of the strategy `warm_start` and ended, if they are
/// `settled`, because restarts gained little.
///
/// # Errors
/// As [`super::synthesize`].
pub(super) fn conclude(
    mut searches: Vec<CountSearch<'_>>,
    (warm_start, settled): (Option<String>, bool),
    options: &SearchOptions,
    deadline: &Deadline,
    seconds: impl Fn() -> f64,
) -> Result<Synthesis, SynthError> {
    let out_of_time = deadline.has_passed();
    let winner = leader(&searches).ok_or(SynthError::NoProblem)?;
    let candidates: Vec<Candidate> = searches.iter().flat_map(|search| search.candidates.clone()).collect();
    let milestones = milestones(&searches);
    let search = searches.swap_remove(winner);
    let (optimal, is_good_enough) = (search.reaches(&search.claim), search.is_within(options.gap));
    let Some(best) = search.best else {
        // A strategy's refusal explains the missing schedule only if no strategy was left untried.
        if out_of_time {
            return Err(SynthError::NothingYet);
        }
        // Some refuse as a whole, others each of their algorithms.
        let refusal = search.refusals.into_iter().next();
        let strategy = options.strategy.map_or("the planner", StrategyKind::as_str);
        let note = candidates.iter().find_map(|candidate| candidate.note.clone());
        let why = note.unwrap_or_else(|| "none was found".to_owned());
        return Err(refusal.unwrap_or(SynthError::NotApplicable { strategy, why }));
    };
    let stop_reason = match best.stop {
        _ if optimal => StopReason::Optimal,
        _ if is_good_enough => StopReason::GapLimit,
        _ if out_of_time => StopReason::out_of_time(&options.cancel),
        _ if settled => StopReason::Settled,
        // It was optimal at its own chunk count only, while other counts were open.
        StopReason::Optimal => StopReason::Done,
        stop => stop,
    };
    let mut best = with_bound(best.schedule, search.problem, &search.claim);
    // Each of the two is verified.
    let has_time = deadline.leaves_time_for(2 * best.schedule().deliveries());
    if has_time || best.schedule().transfers.len() <= QUICK {
        let suited = prefer(search.problem, best.schedule()).and_then(|it| accept(it, search.problem).ok());
        best = suited.unwrap_or(best);
        let eased = eased(search.problem, best.schedule()).and_then(|it| accept(it, search.problem).ok());
        best = eased.unwrap_or(best);
    }
    let best_schedule = credited(best, search.problem, options, warm_start.as_deref(), &candidates);
    let schedule = best_schedule.schedule();
    let report = Report {
        makespan_us: schedule.makespan().0,
        lower_bound_us: schedule.bound.as_ref().map_or(0.0, |bound| bound.value.0),
        bound: search.claim.name.clone(),
        gap: schedule.gap(),
        strategy: schedule.produced_by.strategy.clone(),
        warm_start,
        stop_reason,
        seconds: seconds(),
        candidates,
        milestones,
    };
    Ok(Synthesis { schedule: best_schedule, report, bounds: search.bounds })
}

/// The schedule with a bound that was proven after it had been found.
fn with_bound(best: VerifiedSchedule, problem: &Problem, claim: &LowerBound) -> VerifiedSchedule {
    let bound = bound_below(claim, best.schedule().makespan());
    if best.schedule().bound.as_ref().is_some_and(|stated| stated.value >= bound.value) {
        return best;
    }
    let bounded = Schedule { bound: Some(bound), ..best.schedule().clone() };
    accept(bounded, problem).unwrap_or(best)
}

/// How the best makespan of all searches improved over time.
fn milestones(searches: &[CountSearch<'_>]) -> Vec<Milestone> {
    let mut all: Vec<Milestone> = searches.iter().flat_map(|search| search.milestones.clone()).collect();
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let mut best = f64::INFINITY;
    all.retain(|it| {
        let before = best;
        best = before.min(it.makespan_us);
        it.makespan_us < before
    });
    all
}

/// The schedule with its provenance: the options of the planner, the warm start and the candidates.
fn credited(
    schedule: VerifiedSchedule,
    problem: &Problem,
    options: &SearchOptions,
    warm_start: Option<&str>,
    candidates: &[Candidate],
) -> VerifiedSchedule {
    let mut provenance = schedule.schedule().produced_by.clone();
    let mut note = |key: &str, value: String| provenance.options.insert(key.to_owned(), value);
    note("strategy", options.strategy.map_or("auto", StrategyKind::as_str).to_owned());
    let placement = &problem.constraints.placement;
    if !placement.is_empty() {
        let ranks: Vec<String> = placement.iter().map(ToString::to_string).collect();
        note("placement", ranks.join(" "));
    }
    if let Some(warm_start) = warm_start {
        note("warm_start", warm_start.to_owned());
    }
    provenance.candidates = candidates.iter().map(outcome_of).collect();
    schedule.produced_by(provenance)
}

/// A candidate as a file stores it: without times of the search, so that the same search gives the same bytes.
fn outcome_of(candidate: &Candidate) -> CandidateOutcome {
    CandidateOutcome {
        strategy: candidate.strategy.clone(),
        chunks_per_rank: candidate.chunks_per_rank,
        makespan_us: candidate.makespan_us,
        stop_reason: candidate.stop_reason.to_string(),
        note: candidate.note.clone(),
    }
}
