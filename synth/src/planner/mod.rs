//! The planner: it computes bounds, runs the strategies, cheapest first, and judges every candidate.
//!
//! The principal function is [`synthesize`]. It takes one [`Problem`] per chunk count worth trying, because the number
//! of chunks is a search variable: fewer chunks pay less α, more chunks pipeline better. The expensive strategies run
//! only at the chunk count with the best makespan so far.
//!
//! A proposal counts only after `schedule::verify` and the check against the sketch have accepted it. Its makespan is
//! the one that the verifier computed.

mod again;
mod conclusion;
mod halves;
mod joint;
mod pieces;
mod portfolio;
mod repair;
mod search;
mod sizes;
mod textbook;
mod tracks;
mod whole;

use crate::bounds::{Bounds, bounds, bounds_like};
use crate::problem::is_for_all_strategies;
use crate::problem::tolerance::reaches;
use crate::problem::{Deadline, Problem, Progress, Report, SearchOptions, StopReason, StrategyKind, SynthError};
use crate::strategies::starts::propose;
use crate::strategies::{Attempt, Context, Joining};
use crate::symmetry::Symmetries;
use again::{FoundSoFar, SearchRound, best_makespan};
use conclusion::conclude;
pub use joint::{JointTask, synthesize_joint};
pub use pieces::in_pieces;
use portfolio::{Auto, Begins, ChunkCounts, Due, LimitedTime, StrategyLine, chosen, waves};
pub use repair::{Repaired, repaired};
use schedule::{Schedule, VerifiedSchedule};
pub(crate) use search::accept;
use search::{CountSearch, best_so_far, most_promising};
pub use sizes::{
    AtSize, FROM_BYTES, SizeSweep, SizeTask, TO_BYTES, TOLERANCE, Windowed, retimed, select_sizes, synthesize_sizes,
};
use std::sync::OnceLock;
use std::time::Instant;
pub use textbook::{textbook, textbook_at_once, textbook_sums};
use topology::{Micros, counted};

/// A plan, its report and its bounds.
#[derive(Clone, Debug)]
pub struct Synthesis {
    /// The best verified schedule, with its bound filled in.
    pub schedule: VerifiedSchedule,
    /// Every candidate, and why its search ended.
    pub report: Report,
    /// All bounds for the winner's chunk count.
    pub bounds: Bounds,
}

/// Larger schedules (in transfers) take long to verify. So they are not verified if they cannot win.
const LARGE: usize = 1 << 17;
/// A finer cut is worthwhile if it gains this much (relative). After `PATIENT_CUTS` cuts in a row that do not, no finer
/// ones are tried.
const GAIN: f64 = 2e-3;
const PATIENT_CUTS: u32 = 4;
/// A strategy that does not apply to this many chunk counts in a row is not asked about finer ones, because even a
/// refusal takes time.
const REFUSALS: u32 = 2;
/// The bounds may take one part in this many of a limited time.
const BOUNDS_PART: u32 = 5;

/// After this strategy, the halves of sums are planned: early, because composing textbook algorithms for both halves
/// takes longer than planning one of them.
const BEFORE_HALVES: StrategyKind = StrategyKind::Orbits;

/// Plans the demand of `problems`: the same request, one problem per chunk count worth trying.
///
/// `progress` is called now and then, from any thread.
///
/// # Errors
/// [`SynthError::Infeasible`] if the constraints admit no schedule, [`SynthError::NotApplicable`] if the strategy that
/// was named has no schedule, [`SynthError::NothingYet`] if the time was up before a schedule was found,
/// [`SynthError::NoProblem`] if `problems` is empty.
pub fn synthesize(
    problems: &[Problem],
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Synthesis, SynthError> {
    synthesize_from(problems, &[], options, progress)
}

/// The same from a warm start: schedules of the same requests, which the strategies have to beat. Schedules of other
/// demands in `warm` are ignored.
///
/// # Errors
/// As [`synthesize`].
pub fn synthesize_from(
    problems: &[Problem],
    warm: &[Schedule],
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Synthesis, SynthError> {
    synthesize_among(problems, warm, (&Symmetries::default(), SearchRound::First), options, progress)
}

/// The same, where several requests on one machine share their `symmetries`.
fn synthesize_among(
    problems: &[Problem],
    warm: &[Schedule],
    (symmetries, round): (&Symmetries, SearchRound),
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Synthesis, SynthError> {
    let started = Instant::now();
    let deadline = Deadline::after(options.time_limit, options.cancel.clone());
    let bounds = &opened(problems);
    let planning =
        Planning { problems, bounds, warm, options, deadline: &deadline, symmetries, started, progress, round };
    let Searched { searches, warm_start, settled } = planning.searched()?;
    conclude(searches, (warm_start, settled), options, &deadline, || started.elapsed().as_secs_f64())
}

/// The searches when nothing more is tried.
struct Searched<'a> {
    searches: Vec<CountSearch<'a>>,
    /// The strategy of the schedule that they began with.
    warm_start: Option<String>,
    /// Whether they ended because restarts gained little.
    settled: bool,
}

/// Where the bounds of each problem will be kept.
fn opened(problems: &[Problem]) -> Vec<OnceLock<Bounds>> {
    problems.iter().map(|_| OnceLock::new()).collect()
}

/// The inputs of one call of [`synthesize`], which stay the same.
#[derive(Clone, Copy)]
struct Planning<'a, 'o> {
    problems: &'a [Problem],
    /// Of each problem, once somebody needs them: parts of the search that run side by side share them.
    bounds: &'o [OnceLock<Bounds>],
    warm: &'a [Schedule],
    started: Instant,
    options: &'o SearchOptions,
    deadline: &'o Deadline,
    symmetries: &'a Symmetries,
    progress: &'a (dyn Fn(Progress) + Sync),
    round: SearchRound,
}

impl<'a> Planning<'a, '_> {
    /// The searches after all strategies.
    ///
    /// # Errors
    /// As [`synthesize`], except that there may be no schedule.
    fn searched(&self) -> Result<Searched<'a>, SynthError> {
        let mut searches: Vec<CountSearch<'_>> = Vec::with_capacity(self.problems.len());
        // The schedules of a warm start may have any chunk count.
        while !self.warm.is_empty() && self.open_next(&mut searches) {}
        let warm_start = best_so_far(&searches).map(|best| best.schedule.schedule().produced_by.strategy.clone());
        let mut found = FoundSoFar::default();
        let lines = chosen(self.options.strategy).filter(|line| self.round.includes(line, self.is_alone()));
        let (beside, lines): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.begins == Begins::WithRestarts && self.restarts() && !self.is_alone());
        // A single chunk count is the one that the strategy tries anyway.
        if self.is_alone() && self.problems.len() > 1 {
            self.plan_as_one(&mut searches)?;
        }
        for wave in waves(lines.into_iter()) {
            if searches.iter().any(CountSearch::is_good_enough) {
                break;
            }
            let before = best_makespan(&searches);
            self.run_wave(&mut searches, &wave)?;
            let contains = |kind| wave.iter().flatten().any(|line| line.kind() == kind);
            if contains(StrategyKind::Improve) {
                found.gain = 1.0 - best_makespan(&searches) / before;
            }
            if contains(BEFORE_HALVES) && !self.is_alone() {
                self.join_halves(&mut searches, &mut found)?;
            }
        }
        self.prove_more(&mut searches);
        let settled = self.restart_beside(&mut searches, found, &beside)?;
        Ok(Searched { searches, warm_start, settled })
    }

    /// Begins the search at the next chunk count, if there is one.
    fn open_next(&self, searches: &mut Vec<CountSearch<'a>>) -> bool {
        let Some(problem) = self.problems.get(searches.len()) else { return false };
        let bounds = self.bounds[searches.len()].get_or_init(|| match (searches.first(), self.options.time_limit) {
            (Some(first), Some(_)) => bounds_like(&first.bounds, problem, self.deadline),
            (None, Some(limit)) => bounds(problem, &self.deadline.within(limit / BOUNDS_PART)),
            (_, None) => bounds(problem, self.deadline),
        });
        let mut search = CountSearch::new(problem, bounds.clone(), self.problems.len(), self.options.gap, self.started);
        search.welcome(self.warm, self.options.seed);
        searches.push(search);
        true
    }

    /// Whether strategies run again and again after all of them.
    fn restarts(&self) -> bool {
        let is_named = self.is_alone();
        let mut again = chosen(self.options.strategy).filter(|line| line.restarts(is_named));
        self.round != SearchRound::Only && (!is_named || self.options.time_limit.is_some()) && again.next().is_some()
    }

    /// Whether the user named a strategy, which then runs alone.
    fn is_alone(&self) -> bool {
        self.options.strategy.is_some()
    }

    /// Whether a strategy is skipped, because `search` is close enough to the bound.
    fn is_spared(&self, line: &StrategyLine, search: &CountSearch<'_>) -> bool {
        line.auto == Auto::UnlessClose && !self.is_alone() && search.is_within(self.options.gap)
    }

    /// Lets a strategy try the chunk counts of its line in the table.
    fn run(&self, searches: &mut Vec<CountSearch<'a>>, line: &StrategyLine) -> Result<(), SynthError> {
        let is_best_only = match line.counts {
            ChunkCounts::All => false,
            ChunkCounts::BestIfLedBy(kind) => search::is_led_by(searches, kind),
            // Without a schedule so far, each chunk count is as promising as any other.
            ChunkCounts::Best => !self.is_alone() || best_so_far(searches).is_some(),
        };
        if is_best_only { self.refine(searches, line) } else { self.sweep(searches, line) }
    }

    /// Lets a strategy try the chunk counts, coarse cuts first, as long as finer ones gain.
    fn sweep(&self, searches: &mut Vec<CountSearch<'a>>, line: &StrategyLine) -> Result<(), SynthError> {
        let (mut best, mut stale, mut refusals) = (f64::INFINITY, 0, 0);
        if searches.is_empty() {
            // Bounds have a time of their own, which is no part of the time of a strategy.
            self.open_next(searches);
        }
        let deadline = self.deadline_of(line);
        for index in 0..self.problems.len() {
            let is_due = index == 0 && self.is_due(searches, line);
            let is_other = index > 0 && !is_for_all_strategies(&self.problems[index]);
            if is_other || !is_due && deadline.has_passed() || stale == PATIENT_CUTS || refusals == REFUSALS {
                break;
            }
            if index == searches.len() {
                self.open_next(searches);
            }
            let search = &mut searches[index];
            // A chunk count that is finished already does not show what this strategy can gain at finer ones.
            let is_done = search.reaches(&search.bound);
            let before = search.refusals.len();
            let is_divided = self.options.time_limit.is_some()
                && matches!(line.time, LimitedTime::Rest(_))
                && index + 1 < self.problems.len();
            self.attempt(search, line, if is_divided { deadline.part(2) } else { deadline.clone() })?;
            refusals = if search.refusals.len() > before { refusals + 1 } else { 0 };
            if search.is_good_enough() {
                break;
            }
            let makespan = search.makespan().map_or(f64::INFINITY, |makespan| makespan.0);
            let gains = makespan < best * (1.0 - GAIN);
            stale = if gains || is_done { 0 } else { stale + 1 };
            best = best.min(makespan);
        }
        Ok(())
    }

    /// Whether a strategy must run even if the time is up, because no schedule was found yet.
    fn is_due(&self, searches: &[CountSearch<'_>], line: &StrategyLine) -> bool {
        let is_in_time = !self.deadline.has_passed_for_all();
        let is_willing = match line.due {
            _ if self.options.strategy == Some(line.kind()) => is_in_time,
            Due::Never => false,
            Due::UnlessInterrupted => is_in_time && !self.options.cancel.is_cancelled(),
            // However late it is: a limit too short for the machine gives the first answer as early as possible.
            Due::EvenInterrupted => true,
        };
        is_willing && best_so_far(searches).is_none()
    }

    /// Lets a strategy try the chunk counts with the best makespans.
    fn refine(&self, searches: &mut [CountSearch<'a>], line: &StrategyLine) -> Result<(), SynthError> {
        for index in most_promising(searches) {
            if !self.deadline.has_passed() || self.is_due(searches, line) {
                self.attempt(&mut searches[index], line, self.deadline_of(line))?;
            }
        }
        Ok(())
    }

    fn deadline_of(&self, line: &StrategyLine) -> Deadline {
        match (self.options.time_limit, line.longest, line.time) {
            (None, None, _) => self.deadline.clone(),
            (None, Some(longest), _) if self.is_alone() => self.deadline.within(longest.alone),
            (None, Some(longest), _) => self.deadline.within(longest.among_others),
            (Some(_), ..) if self.is_alone() => self.deadline.clone(),
            (Some(limit), _, LimitedTime::Opening(parts)) => self.deadline.within(limit / parts),
            (Some(_), _, LimitedTime::Rest(parts)) => self.deadline.part(parts),
        }
    }

    /// What a strategy is lent that goes on from what `search` has found.
    fn context<'b>(
        &'b self,
        search: &'b CountSearch<'_>,
        options: &'b SearchOptions,
        deadline: &'b Deadline,
    ) -> Context<'b> {
        Context {
            incumbent: search.best.as_ref().map(|best| best.schedule.schedule()),
            runner_up: search.runner_up.as_ref(),
            bound: search.bound.value,
            joining: self.joining(),
            ..Context::alone(options, deadline, self.symmetries, self.progress)
        }
    }

    /// Who asks for textbook algorithms alone gets them as textbooks have them.
    fn joining(&self) -> Joining {
        match self.options.strategy {
            Some(StrategyKind::Classic) => Joining::Ordered,
            _ => Joining::Exchanging,
        }
    }

    /// Runs one strategy at one chunk count, and judges its proposals.
    fn attempt(&self, search: &mut CountSearch<'_>, line: &StrategyLine, deadline: Deadline) -> Result<(), SynthError> {
        if search.reaches(&search.bound) {
            return Ok(());
        }
        let strategy = line.strategy;
        let started = Instant::now();
        self.announce(search, strategy.name());
        let mut options = SearchOptions { gap: search.slack(), ..self.options.clone() };
        if !self.is_alone() {
            options.limits = options.limits.brief();
        }
        let has_answer = search.best.is_some();
        let deadline = if has_answer { deadline.strict() } else { deadline };
        let context = Context {
            is_alone: self.is_alone(),
            is_restart: matches!(self.round, SearchRound::Again(_)),
            was_planned_as_one: search.planned_as_one.contains(&line.kind()),
            ..self.context(search, &options, &deadline)
        };
        let mut attempts = match propose(search.problem, &context, strategy) {
            Ok(attempts) => attempts,
            Err(error @ SynthError::Infeasible { .. }) => return Err(error),
            Err(error) => {
                search.refuse(strategy.name(), started, error, &self.options.cancel);
                return Ok(());
            }
        };
        for attempt in attempts.iter_mut().filter(|attempt| attempt.stop == StopReason::TimeLimit) {
            attempt.stop = StopReason::out_of_time(&self.options.cancel);
        }
        match strategy.prove(search.problem, &search.bounds, &deadline) {
            Ok(proven) => search.raise_bounds(proven),
            // Schedules need no proof that nothing is faster.
            Err(error) => tracing::info!("{} has proven nothing: {error}", strategy.name()),
        }
        let seconds = started.elapsed().as_secs_f64() / attempts.len().max(1) as f64;
        self.judge_all(search, attempts, seconds);
        Ok(())
    }

    /// Judges the proposals of a strategy, the fastest first. A large schedule is only listed if it is no faster than
    /// the incumbent, or if there is no time to verify it.
    fn judge_all(&self, search: &mut CountSearch<'_>, attempts: Vec<Attempt>, seconds: f64) {
        let claim = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
        let is_late = |schedule: &Schedule| !self.deadline.leaves_time_to_verify(schedule.deliveries());
        let mut order: Vec<(usize, f64, Attempt)> =
            attempts.into_iter().enumerate().map(|(index, attempt)| (index, claim(&attempt), attempt)).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut candidates = Vec::with_capacity(order.len());
        for (index, claim, mut attempt) in order {
            let worse = search.makespan().is_some_and(|best| !reaches(Micros(claim), best));
            let large = attempt.schedule.as_ref().filter(|it| it.transfers.len() > LARGE);
            if large.is_some_and(|it| worse || search.best.is_some() && is_late(it)) {
                attempt.schedule = None;
                attempt.note = Some(format!("claims {claim} µs, which was not verified"));
            }
            candidates.push((index, search.judge(attempt, seconds, self.options.seed)));
        }
        candidates.sort_by_key(|(index, _)| *index);
        search.candidates.extend(candidates.into_iter().map(|(_, candidate)| candidate));
    }

    fn announce(&self, search: &CountSearch<'_>, strategy: &'static str) {
        (self.progress)(Progress {
            strategy,
            incumbent: search.makespan(),
            bound: Some(search.claim.clone()),
            activity: format!(
                "{} per rank",
                counted(search.problem.demand.request().chunks_per_rank as usize, "chunk")
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Cancel;
    use schedule::{Collective, Demand, Request};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    fn problems(spec: &str, chunks: &[u32]) -> Vec<Problem> {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(Collective::AllGather, topology.rank_count(), 1 << 30);
        let demand = |&count: &u32| Demand::new(request.clone().with_chunks(count)).expect("a valid request");
        chunks.iter().map(|count| Problem::new(topology.clone(), Arc::new(demand(count)))).collect()
    }

    #[test]
    fn no_problem_is_an_error() {
        let refused = synthesize(&[], &SearchOptions::default(), &|_| {});
        assert!(matches!(refused, Err(SynthError::NoProblem)), "{refused:?}");
    }

    #[test]
    fn an_interrupt_leaves_the_rest_untried() {
        let cancel = Cancel::default();
        let options = SearchOptions { cancel: cancel.clone(), ..SearchOptions::default() };
        let problems = problems("dgx1", &[1, 2, 4]);
        // The interrupt comes when the first strategy announces its start.
        let found = synthesize(&problems, &options, &|_| cancel.cancel()).expect("an early schedule");
        let tried: Vec<_> =
            found.report.candidates.iter().map(|it| (it.strategy.as_str(), it.chunks_per_rank)).collect();
        let is_early = |name: &str| name.starts_with("orbits") || name.starts_with("classic");
        assert!(tried.iter().all(|(name, chunks)| is_early(name) && *chunks == 1), "{tried:?}");
        assert_eq!(found.report.stop_reason, StopReason::Interrupted);
        assert!(found.report.candidates.iter().all(|it| it.stop_reason != StopReason::TimeLimit));
    }

    #[test]
    fn an_interrupt_before_there_is_anything_is_said() {
        let options = SearchOptions::default();
        options.cancel.cancel();
        // So many deliveries that no strategy writes them down.
        let refused = synthesize(&problems("ring:3000", &[1]), &options, &|_| {});
        assert!(matches!(refused, Err(SynthError::NothingYet)), "{refused:?}");
    }

    #[test]
    fn without_any_time_there_is_still_an_answer() {
        let options = SearchOptions { time_limit: Some(Duration::ZERO), ..SearchOptions::default() };
        for spec in ["line:3", "mesh2d:9x11", "torus2d:16x16", "ndv2x4", "fat-tree:3x3x4", "dragonfly:3x3x3", "h800x4"]
        {
            let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
            let ranks = topology.rank_count();
            let request = |collective| Request::new(collective, ranks, 1 << 26);
            let matrix: Vec<Vec<u64>> = (0..ranks as u64)
                .map(|from| (0..ranks as u64).map(|to| (from * 7 + to * 3) % 5 * 1000 + from + to).collect())
                .collect();
            let uneven = Demand::from_matrix(request(Collective::AllToAllV), &matrix).expect("a valid matrix");
            let standard = [
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::AllReduce,
                Collective::AllToAll,
                Collective::Broadcast,
                Collective::Gather,
                Collective::Scatter,
            ];
            let standard = standard.map(|collective| Demand::new(request(collective)).expect("a valid request"));
            for demand in standard.into_iter().chain([uneven]) {
                let collective = demand.request().collective;
                let problem = Problem::new(topology.clone(), Arc::new(demand));
                let found = synthesize(std::slice::from_ref(&problem), &options, &|_| {});
                let found = found.unwrap_or_else(|error| panic!("{spec} {collective}: {error}"));
                // After the first schedule, no other strategy starts.
                let strategies: BTreeSet<&str> =
                    found.report.candidates.iter().map(|it| family(&it.strategy)).collect();
                assert!(strategies.len() <= 2, "{spec} {collective}: {strategies:?}");
                let bound = found.bounds.best().value;
                assert!(
                    bound.0 > 0.0 && bound.0 <= found.report.makespan_us * (1.0 + 1e-9),
                    "{spec} {collective}: {bound}"
                );
            }
        }
    }

    /// The strategy of a candidate: the part of its name before the first slash.
    fn family(name: &str) -> &str {
        name.split('/').next().unwrap_or(name)
    }

    /// The bounds of a million links take longer than the opening has; the orbits began with no time left.
    #[test]
    fn the_time_of_bounds_is_no_time_of_strategies() {
        let options = SearchOptions { time_limit: Some(Duration::from_millis(500)), ..SearchOptions::default() };
        let found = synthesize(&problems("clique:1000", &[1]), &options, &|_| {}).expect("a schedule").report;
        assert_eq!((found.strategy.as_str(), found.stop_reason), ("orbits/1000", StopReason::Optimal));
    }

    #[test]
    fn a_gap_that_is_small_enough_ends_the_search() {
        let gap = 0.2;
        let options = SearchOptions { gap, ..SearchOptions::default() };
        let found = synthesize(&problems("dgx1", &[1, 2, 4]), &options, &|_| {}).expect("a schedule").report;
        assert_eq!(found.stop_reason, StopReason::GapLimit);
        assert!(found.gap.is_some_and(|found| found > 0.0 && found <= gap), "{:?}", found.gap);
        assert!(found.candidates.iter().all(|it| it.strategy != "milp-expanded"), "{:?}", found.candidates);
    }

    #[test]
    fn the_dear_strategies_refine_one_chunk_count() {
        let found = synthesize(&problems("dgx1", &[1, 2]), &SearchOptions::default(), &|_| {}).expect("a schedule");
        let of = |name: &str| found.report.candidates.iter().filter(|it| it.strategy.starts_with(name)).count();
        // The MILP has three formulations, and windows.
        assert_eq!((of("matching"), of("milp")), (1, 4));
    }
}
