//! The planner: bounds first, then strategies from cheap to dear, every candidate judged by the verifier.
//!
//! The principal function is [`synthesize`]. It takes one [`Problem`] per chunk count worth trying, because the
//! number of chunks is a search variable: fewer chunks pay less α, more chunks pipeline better. The expensive
//! strategies run only on the chunk count that the cheap ones liked best.
//!
//! The planner trusts nobody: a proposal counts only after `schedule::verify` and the sketch's own check have
//! accepted it, and its makespan is the one the verifier saw.

use crate::bounds::{Bounds, bounds};
use crate::classic::Classic;
use crate::improve::Improve;
use crate::matching::{Matching, Symmetric};
use crate::milp::Milp;
use crate::prefer::{reluctance, suit};
use crate::reversal::propose;
use crate::sketch::obey;
use crate::{
    Attempt, Candidate, Context, Deadline, Options, Problem, Progress, Report, StopReason, Strategy, StrategyKind,
    SynthError,
};
use schedule::{LowerBound, Schedule, VerifiedSchedule, verify};
use std::time::{Duration, Instant};
use topology::Micros;

/// A plan and the account of how it was found.
#[derive(Clone, Debug)]
pub struct Synthesis {
    /// The best verified schedule, with its bound filled in.
    pub schedule: VerifiedSchedule,
    /// Every candidate, and why each stopped.
    pub report: Report,
    /// All bounds for the winner's chunk count.
    pub bounds: Bounds,
}

/// Two makespans this close (relative) are equal: the comparison tolerance of the file format.
const EQUAL: f64 = 1e-7;

/// How many chunk counts, those with the best makespans so far, the dear strategies try as well.
const REFINED: usize = 1;
/// Schedules of more transfers take so long to verify that those which cannot win are not.
const LARGE: usize = 1 << 17;
/// A finer cut is worth its time if it gains this much; after so many in a row that do not, no finer ones are
/// tried.
const GAIN: f64 = 2e-3;
const PATIENT_CUTS: u32 = 4;
/// How long the solver may take where the user sets no limit and asked for it, or did not ask. Its work is counted
/// and nearly always ends long before; this catches the models on which HiGHS overshoots.
const PATIENCE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(15)];

/// Plans the demand of `problems`: the same request, one problem per chunk count worth trying.
///
/// `progress` is called now and then, from any thread.
///
/// # Errors
/// [`SynthError::Infeasible`] if the constraints admit no schedule, [`SynthError::NotApplicable`] if the one
/// strategy asked for has none, [`SynthError::NothingYet`] if the time was up before anything was found,
/// [`SynthError::NoProblem`] if `problems` is empty.
pub fn synthesize(
    problems: &[Problem],
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Synthesis, SynthError> {
    let started = Instant::now();
    let deadline = Deadline::after(options.time_limit, options.cancel.clone());
    let session = Session { options, deadline: &deadline, progress };
    let mut searches: Vec<Search<'_>> = Vec::with_capacity(problems.len());
    let (cheapest, dearer) = portfolio(options);
    for problem in problems {
        // The first chunk count always gets the cheapest strategy: most often that is an answer.
        if !searches.is_empty() && deadline.has_passed() {
            break;
        }
        let mut search = Search::new(problem, problems.len(), options.gap);
        session.attempt(&mut search, cheapest)?;
        let is_good_enough = search.is_good_enough();
        searches.push(search);
        if is_good_enough {
            break;
        }
    }
    for &kind in dearer {
        if searches.iter().any(Search::is_good_enough) {
            break;
        }
        match kind {
            StrategyKind::Improve | StrategyKind::Milp => session.refine(&mut searches, kind)?,
            _ => session.sweep(&mut searches, kind)?,
        }
    }
    let report_seconds = || started.elapsed().as_secs_f64();
    conclude(searches, options, &deadline, report_seconds)
}

/// The strategies to run: the first, and those after it. A named `milp` gets the cheap ones before it as a warm
/// start.
fn portfolio(options: &Options) -> (StrategyKind, &'static [StrategyKind]) {
    match options.strategy {
        None | Some(StrategyKind::Milp) => {
            let dearer = &[StrategyKind::Symmetric, StrategyKind::Matching, StrategyKind::Improve, StrategyKind::Milp];
            (StrategyKind::Classic, dearer)
        }
        Some(named) => (named, &[]),
    }
}

fn strategy_of(kind: StrategyKind) -> &'static dyn Strategy {
    match kind {
        StrategyKind::Classic => &Classic,
        StrategyKind::Symmetric => &Symmetric,
        StrategyKind::Matching => &Matching,
        StrategyKind::Improve => &Improve,
        StrategyKind::Milp => &Milp,
    }
}

/// The state of the search at one chunk count.
struct Search<'a> {
    problem: &'a Problem,
    bounds: Bounds,
    /// For this chunk count; reaching it ends the search here.
    bound: LowerBound,
    /// What the answer is compared with: for any chunk count, where the count is searched.
    claim: LowerBound,
    /// How far above the claim (relative) is good enough.
    gap: f64,
    best: Option<Incumbent>,
    candidates: Vec<Candidate>,
    refusals: Vec<SynthError>,
}

/// The best verified schedule of a search.
struct Incumbent {
    schedule: VerifiedSchedule,
    makespan: Micros,
    stop: StopReason,
}

impl<'a> Search<'a> {
    /// A search at one of `counts` chunk counts that ends where the gap is at most `gap`.
    fn new(problem: &'a Problem, counts: usize, gap: f64) -> Self {
        let bounds = bounds(problem);
        let bound = bounds.best();
        let claim = if counts > 1 { bounds.best_at_any_chunking() } else { bound.clone() };
        Self { problem, bounds, bound, claim, gap, best: None, candidates: Vec::new(), refusals: Vec::new() }
    }

    fn makespan(&self) -> Option<Micros> {
        self.best.as_ref().map(|best| best.makespan)
    }

    fn reaches(&self, bound: &LowerBound) -> bool {
        self.makespan().is_some_and(|makespan| makespan.0 <= bound.value.0 * (1.0 + EQUAL))
    }

    /// Whether the gap is small enough: nothing needs to be tried any more, at any chunk count.
    fn is_good_enough(&self) -> bool {
        self.makespan().is_some_and(|makespan| makespan.0 <= self.claim.value.0 * (1.0 + self.gap) * (1.0 + EQUAL))
    }

    /// How far above the bound for this chunk count (relative) a strategy may stop.
    fn slack(&self) -> f64 {
        let goal = self.claim.value * (1.0 + self.gap);
        if self.bound.value > Micros::ZERO { (goal / self.bound.value - 1.0).max(0.0) } else { self.gap }
    }

    /// Whether a schedule beats the incumbent: faster, or as fast and rather what the sketch prefers, which without
    /// preferences are fewer transfers.
    fn improves(&self, schedule: &Schedule) -> bool {
        let Some(best) = &self.best else { return true };
        let (makespan, tolerance) = (schedule.makespan(), best.makespan.0 * EQUAL);
        let graded = |schedule: &Schedule| reluctance(schedule, &self.problem.topology, &self.problem.constraints);
        makespan.0 < best.makespan.0 - tolerance
            || (makespan.0 <= best.makespan.0 + tolerance && graded(schedule) < graded(best.schedule.schedule()))
    }
}

/// The searches with the best makespans so far, best first.
fn most_promising(searches: &[Search<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..searches.len()).collect();
    let makespan = |index: usize| searches[index].makespan().map_or(f64::INFINITY, |makespan| makespan.0);
    order.sort_by(|&a, &b| makespan(a).total_cmp(&makespan(b)));
    order.truncate(REFINED);
    order
}

/// What stays the same during one call of [`synthesize`].
struct Session<'a> {
    options: &'a Options,
    deadline: &'a Deadline,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Session<'_> {
    /// Lets a strategy try the chunk counts, coarse cuts first, while finer ones gain.
    fn sweep(&self, searches: &mut [Search<'_>], kind: StrategyKind) -> Result<(), SynthError> {
        let mut best = f64::INFINITY;
        let mut stale = 0;
        for search in searches {
            if self.deadline.has_passed() || stale == PATIENT_CUTS {
                break;
            }
            self.attempt(search, kind)?;
            if search.is_good_enough() {
                break;
            }
            let makespan = search.makespan().map_or(f64::INFINITY, |makespan| makespan.0);
            stale = if makespan < best * (1.0 - GAIN) { 0 } else { stale + 1 };
            best = best.min(makespan);
        }
        Ok(())
    }

    /// Lets a strategy try the chunk counts that did best.
    fn refine(&self, searches: &mut [Search<'_>], kind: StrategyKind) -> Result<(), SynthError> {
        for index in most_promising(searches) {
            if !self.deadline.has_passed() {
                self.attempt(&mut searches[index], kind)?;
            }
        }
        Ok(())
    }

    /// Until when a strategy may search.
    fn deadline_of(&self, kind: StrategyKind) -> Deadline {
        if kind != StrategyKind::Milp || self.options.time_limit.is_some() {
            return self.deadline.clone();
        }
        let [asked, unasked] = PATIENCE;
        let patience = if self.options.strategy.is_some() { asked } else { unasked };
        Deadline::after(Some(patience), self.options.cancel.clone())
    }

    /// Lets one strategy try one chunk count, and judges what it proposes.
    fn attempt(&self, search: &mut Search<'_>, kind: StrategyKind) -> Result<(), SynthError> {
        if search.reaches(&search.bound) {
            return Ok(());
        }
        let strategy = strategy_of(kind);
        let started = Instant::now();
        self.announce(search, strategy.name());
        let mut options = Options { gap: search.slack(), ..self.options.clone() };
        if options.strategy.is_none() {
            options.limits = options.limits.brief();
        }
        let deadline = self.deadline_of(kind);
        let context = Context {
            options: &options,
            deadline: &deadline,
            incumbent: search.best.as_ref().map(|best| best.schedule.schedule()),
            bound: search.bound.value,
            progress: self.progress,
        };
        let attempts = match propose(search.problem, &context, strategy) {
            Ok(attempts) => attempts,
            Err(error @ SynthError::Infeasible { .. }) => return Err(error),
            Err(error) => {
                search.candidates.push(refused(strategy.name(), search.problem, started, &error));
                search.refusals.push(error);
                return Ok(());
            }
        };
        let seconds = started.elapsed().as_secs_f64() / attempts.len().max(1) as f64;
        self.judge_all(search, attempts, seconds);
        Ok(())
    }

    /// Judges what a strategy proposes, the fastest first: where the time is up, or a large schedule is no faster than the
    /// incumbent, the others are only listed.
    fn judge_all(&self, search: &mut Search<'_>, attempts: Vec<Attempt>, seconds: f64) {
        let claim = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
        let mut order: Vec<(usize, f64, Attempt)> =
            attempts.into_iter().enumerate().map(|(index, attempt)| (index, claim(&attempt), attempt)).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut candidates = Vec::with_capacity(order.len());
        for (index, claim, mut attempt) in order {
            let worse = search.makespan().is_some_and(|best| claim > best.0 * (1.0 + EQUAL));
            let large = attempt.schedule.as_ref().is_some_and(|it| it.transfers.len() > LARGE);
            if large && (worse || search.best.is_some() && self.deadline.has_passed()) {
                attempt.schedule = None;
                attempt.note = Some(format!("claims {claim} µs, which was not verified"));
            }
            candidates.push((index, judge(search, attempt, seconds, self.options.seed)));
        }
        candidates.sort_by_key(|(index, _)| *index);
        search.candidates.extend(candidates.into_iter().map(|(_, candidate)| candidate));
    }

    fn announce(&self, search: &Search<'_>, strategy: &'static str) {
        (self.progress)(Progress {
            strategy,
            incumbent: search.makespan(),
            bound: Some(search.claim.clone()),
            activity: format!("{} chunks per rank", search.problem.demand.request().chunks_per_rank),
        });
    }
}

fn refused(strategy: &str, problem: &Problem, started: Instant, error: &SynthError) -> Candidate {
    let stop_reason = match error {
        SynthError::NothingYet => StopReason::TimeLimit,
        _ => StopReason::Exhausted,
    };
    Candidate {
        strategy: strategy.to_owned(),
        chunks_per_rank: problem.demand.request().chunks_per_rank,
        makespan_us: None,
        transfers: 0,
        stop_reason,
        seconds: started.elapsed().as_secs_f64(),
        note: Some(error.to_string()),
    }
}

/// Verifies a proposal, checks it against the sketch, and keeps it if it is the best so far.
fn judge(search: &mut Search<'_>, attempt: Attempt, seconds: f64, seed: u64) -> Candidate {
    let problem = search.problem;
    let mut candidate = Candidate {
        strategy: attempt.name.clone(),
        chunks_per_rank: problem.demand.request().chunks_per_rank,
        makespan_us: None,
        transfers: 0,
        stop_reason: attempt.stop,
        seconds,
        note: attempt.note,
    };
    let Some(mut schedule) = attempt.schedule else { return candidate };
    candidate.transfers = schedule.transfers.len();
    schedule.produced_by.strategy = attempt.name;
    schedule.produced_by.seed = seed;
    schedule.bound = Some(bound_below(&search.claim, schedule.makespan()));
    match accept(schedule, problem) {
        Ok(verified) => {
            let makespan = verified.schedule().makespan();
            candidate.makespan_us = Some(makespan.0);
            if search.improves(verified.schedule()) {
                search.best = Some(Incumbent { schedule: verified, makespan, stop: attempt.stop });
            }
        }
        Err(reason) => candidate.note = Some(format!("refused: {reason}")),
    }
    candidate
}

/// The bound, rounded down to a makespan that equals it: nobody should read that a bound was beaten by 10⁻¹².
fn bound_below(bound: &LowerBound, makespan: Micros) -> LowerBound {
    let equal = (bound.value.0 - makespan.0).abs() <= bound.value.0 * EQUAL;
    let value = if equal { bound.value.min(makespan) } else { bound.value };
    LowerBound { value, name: bound.name.clone() }
}

/// Both independent checks: the verifier, and the sketch.
fn accept(schedule: Schedule, problem: &Problem) -> Result<VerifiedSchedule, String> {
    let verified = verify(schedule, &problem.topology).map_err(|rejection| rejection.to_string())?;
    match obey(verified.schedule(), &problem.topology, &problem.constraints).first() {
        Some(violation) => Err(violation.to_string()),
        None => Ok(verified),
    }
}

fn conclude(
    mut searches: Vec<Search<'_>>,
    options: &Options,
    deadline: &Deadline,
    seconds: impl Fn() -> f64,
) -> Result<Synthesis, SynthError> {
    let out_of_time = deadline.has_passed();
    let winner = *most_promising(&searches).first().ok_or(SynthError::NoProblem)?;
    let candidates = searches.iter().flat_map(|search| search.candidates.clone()).collect();
    let search = searches.swap_remove(winner);
    let (optimal, is_good_enough) = (search.reaches(&search.claim), search.is_good_enough());
    let Some(best) = search.best else {
        // Why one strategy has nothing is not why there is no answer if others were left untried.
        let refusal = search.refusals.into_iter().next().filter(|_| !out_of_time);
        return Err(refusal.unwrap_or(SynthError::NothingYet));
    };
    let stop_reason = match best.stop {
        _ if optimal => StopReason::Optimal,
        _ if is_good_enough => StopReason::GapLimit,
        _ if out_of_time => StopReason::TimeLimit,
        // At its own chunk count, while others were open.
        StopReason::Optimal => StopReason::Exhausted,
        stop => stop,
    };
    let suited = suit(search.problem, best.schedule.schedule()).and_then(|it| accept(it, search.problem).ok());
    let best_schedule = credited(suited.unwrap_or(best.schedule), search.problem, options);
    let schedule = best_schedule.schedule();
    let report = Report {
        makespan_us: schedule.makespan().0,
        lower_bound_us: schedule.bound.as_ref().map_or(0.0, |bound| bound.value.0),
        bound: search.claim.name.clone(),
        gap: schedule.gap(),
        strategy: schedule.produced_by.strategy.clone(),
        stop_reason,
        seconds: seconds(),
        candidates,
    };
    Ok(Synthesis { schedule: best_schedule, report, bounds: search.bounds })
}

/// The schedule with what was asked of the planner. Where a strategy was asked for and its warm start stands, the
/// schedule is its answer, and says whose it was.
fn credited(schedule: VerifiedSchedule, problem: &Problem, options: &Options) -> VerifiedSchedule {
    let asked = options.strategy.map_or("auto", StrategyKind::as_str);
    let mut provenance = schedule.schedule().produced_by.clone();
    provenance.options.insert("strategy".to_owned(), asked.to_owned());
    let placement = &problem.constraints.placement;
    if !placement.is_empty() {
        let ranks: Vec<String> = placement.iter().map(ToString::to_string).collect();
        provenance.options.insert("placement".to_owned(), ranks.join(" "));
    }
    if options.strategy.is_some() && !provenance.strategy.starts_with(asked) {
        let finder = std::mem::replace(&mut provenance.strategy, asked.to_owned());
        provenance.options.insert("warm_start_stands".to_owned(), finder);
    }
    schedule.produced_by(provenance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cancel;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;

    fn problems(spec: &str, chunks: &[u32]) -> Vec<Problem> {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(Collective::AllGather, topology.rank_count(), 1 << 30);
        let demand = |&count: &u32| Demand::new(request.clone().with_chunks(count)).expect("a valid request");
        chunks.iter().map(|count| Problem::new(topology.clone(), Arc::new(demand(count)))).collect()
    }

    #[test]
    fn no_problem_is_an_error() {
        let refused = synthesize(&[], &Options::default(), &|_| {});
        assert!(matches!(refused, Err(SynthError::NoProblem)), "{refused:?}");
    }

    #[test]
    fn an_interrupt_leaves_the_rest_untried() {
        let cancel = Cancel::default();
        let options = Options { cancel: cancel.clone(), ..Options::default() };
        let problems = problems("dgx1", &[1, 2, 4]);
        // Raised when the first strategy says that it begins.
        let found = synthesize(&problems, &options, &|_| cancel.cancel()).expect("a textbook schedule");
        let tried: Vec<_> =
            found.report.candidates.iter().map(|it| (it.strategy.as_str(), it.chunks_per_rank)).collect();
        assert!(tried.iter().all(|(name, chunks)| name.starts_with("classic") && *chunks == 1), "{tried:?}");
        assert_eq!(found.report.stop_reason, StopReason::TimeLimit);
    }

    #[test]
    fn an_interrupt_before_there_is_anything_is_said() {
        let options = Options::default();
        options.cancel.cancel();
        // So many deliveries that no textbook algorithm writes them down.
        let refused = synthesize(&problems("ring:3000", &[1]), &options, &|_| {});
        assert!(matches!(refused, Err(SynthError::NothingYet)), "{refused:?}");
    }

    #[test]
    fn the_dear_strategies_refine_one_chunk_count() {
        let found = synthesize(&problems("dgx1", &[1, 2]), &Options::default(), &|_| {}).expect("a schedule");
        let of = |name: &str| found.report.candidates.iter().filter(|it| it.strategy.starts_with(name)).count();
        assert_eq!((of("matching"), of("milp")), (2, 2));
    }
}
