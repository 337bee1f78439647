//! The search at one chunk count: its bounds, its best verified schedule, and all candidates.
//!
//! The principal type is [`CountSearch`]. A proposal counts only after `schedule::verify` and the check against the
//! sketch have accepted it. Its makespan is the one that the verifier computed.

use crate::bounds::{Bound, Bounds};
use crate::polish::prefer::preference_grade;
use crate::problem::tolerance::{beats, bound_below, reaches};
use crate::problem::{Cancel, Candidate, DEFAULT_GAP, Milestone, Problem, StopReason, StrategyKind, SynthError};
use crate::sketch::obey;
use crate::strategies::Attempt;
use schedule::{LowerBound, Schedule, VerifiedSchedule, verify};
use std::time::Instant;
use topology::Micros;

/// At how many chunk counts, the most promising ones, the expensive strategies run.
const REFINED: usize = 1;

/// Local search goes on only from schedules with so few deliveries.
const MOST_DELIVERIES: usize = 1 << 13;

/// The state of the search at one chunk count.
pub(super) struct CountSearch<'a> {
    pub(super) problem: &'a Problem,
    pub(super) bounds: Bounds,
    /// The bound for this chunk count; a schedule that reaches it ends the search here.
    pub(super) bound: LowerBound,
    /// The bound that the answer is compared with. It holds for any chunk count if there are several.
    pub(super) claim: LowerBound,
    /// Whether this chunk count is the only one.
    is_alone: bool,
    /// The gap to `claim` (relative) that is good enough.
    gap: f64,
    pub(super) best: Option<Incumbent>,
    /// The best schedule by another name than that of the best one, if local search can go on from it.
    pub(super) runner_up: Option<Schedule>,
    /// The strategies that have planned sums as one here.
    pub(super) planned_as_one: Vec<StrategyKind>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) refusals: Vec<SynthError>,
    /// The improvements of its best makespan.
    pub(super) milestones: Vec<Milestone>,
    started: Instant,
}

#[derive(Clone)]
pub(super) struct Incumbent {
    pub(super) schedule: VerifiedSchedule,
    pub(super) makespan: Micros,
    pub(super) stop: StopReason,
}

impl<'a> CountSearch<'a> {
    /// A search at one of `counts` chunk counts that ends where the gap is at most `gap`; the synthesis began at
    /// `started`.
    pub(super) fn new(problem: &'a Problem, bounds: Bounds, counts: usize, gap: f64, started: Instant) -> Self {
        let bound = bounds.best();
        // A gap up to the default ends no search, but `Planning::is_spared` may skip a strategy for it.
        let gap = if gap <= DEFAULT_GAP { 0.0 } else { gap };
        let claim = if counts > 1 { bounds.best_at_any_chunking() } else { bound.clone() };
        Self {
            problem,
            bounds,
            bound,
            claim,
            is_alone: counts == 1,
            gap,
            best: None,
            runner_up: None,
            planned_as_one: Vec::new(),
            candidates: Vec::new(),
            refusals: Vec::new(),
            milestones: Vec::new(),
            started,
        }
    }

    /// A search that begins with what this one knows, and lists only what it finds itself.
    pub(super) fn fork(&self) -> Self {
        Self {
            bounds: self.bounds.clone(),
            bound: self.bound.clone(),
            claim: self.claim.clone(),
            best: self.best.clone(),
            runner_up: self.runner_up.clone(),
            planned_as_one: self.planned_as_one.clone(),
            candidates: Vec::new(),
            refusals: Vec::new(),
            milestones: Vec::new(),
            ..*self
        }
    }

    /// Adds what a search of the same problem has found.
    pub(super) fn absorb(&mut self, other: Self) {
        let proven = other.bounds.list.into_iter().filter(|bound| !self.bounds.list.contains(bound)).collect();
        self.raise_bounds(proven);
        self.candidates.extend(other.candidates);
        self.refusals.extend(other.refusals);
        self.milestones.extend(other.milestones);
        if let Some(found) = other.best {
            self.keep(found);
        }
        if let Some(found) = other.runner_up {
            self.keep_runner_up(found);
        }
    }

    /// Keeps a schedule if it is the best, or the best by another name; returns whether it is the best.
    fn keep(&mut self, found: Incumbent) -> bool {
        let improves = self.improves(found.schedule.schedule());
        let other = if improves { self.best.replace(found) } else { Some(found) };
        if let Some(other) = other {
            self.keep_runner_up(other.schedule.into_schedule());
        }
        improves
    }

    fn keep_runner_up(&mut self, found: Schedule) {
        let name = |schedule: &Schedule| schedule.produced_by.strategy.clone();
        let best = self.best.as_ref().map(|best| name(best.schedule.schedule()));
        // What was second may go by the name of the best one by now.
        let kept = self.runner_up.take().filter(|kept| Some(name(kept)) != best);
        let is_other = Some(name(&found)) != best && found.deliveries() <= MOST_DELIVERIES;
        let is_better = kept.as_ref().is_none_or(|kept| beats(found.makespan(), kept.makespan()));
        self.runner_up = if is_other && is_better { Some(found) } else { kept };
    }

    pub(super) fn raise_bounds(&mut self, proven: Vec<Bound>) {
        if proven.is_empty() {
            return;
        }
        self.bounds.list.extend(proven);
        self.bound = self.bounds.best();
        if self.is_alone {
            self.claim = self.bound.clone();
        }
    }

    pub(super) fn makespan(&self) -> Option<Micros> {
        self.best.as_ref().map(|best| best.makespan)
    }

    pub(super) fn reaches(&self, bound: &LowerBound) -> bool {
        self.makespan().is_some_and(|makespan| reaches(makespan, bound.value))
    }

    /// Whether the gap is small enough to end the search at all chunk counts.
    pub(super) fn is_good_enough(&self) -> bool {
        self.is_within(self.gap)
    }

    /// Whether the best makespan is within this gap (relative) of `claim`.
    pub(super) fn is_within(&self, gap: f64) -> bool {
        self.makespan().is_some_and(|makespan| reaches(makespan, self.claim.value * (1.0 + gap)))
    }

    /// The gap (relative) to the bound for this chunk count at which a strategy may stop.
    pub(super) fn slack(&self) -> f64 {
        let goal = self.claim.value * (1.0 + self.gap);
        if self.bound.value > Micros::ZERO { (goal / self.bound.value - 1.0).max(0.0) } else { self.gap }
    }

    /// Whether a schedule beats the incumbent: it is faster, or as fast and preferred by the sketch. Without
    /// preferences, fewer transfers decide.
    fn improves(&self, schedule: &Schedule) -> bool {
        let Some(best) = &self.best else { return true };
        let makespan = schedule.makespan();
        let graded =
            |schedule: &Schedule| preference_grade(schedule, &self.problem.topology, &self.problem.constraints);
        beats(makespan, best.makespan)
            || reaches(makespan, best.makespan) && graded(schedule) < graded(best.schedule.schedule())
    }

    /// Judges the schedules of a warm start that solve this problem.
    pub(super) fn welcome(&mut self, warm: &[Schedule], seed: u64) {
        for schedule in warm.iter().filter(|schedule| schedule.demand == self.problem.demand) {
            let attempt = Attempt {
                name: schedule.produced_by.strategy.clone(),
                schedule: Some(schedule.clone()),
                stop: StopReason::Done,
                note: Some("was there before".to_owned()),
            };
            let candidate = self.judge(attempt, 0.0, seed);
            self.candidates.push(candidate);
        }
    }

    /// Records why a strategy has no schedule.
    pub(super) fn refuse(&mut self, strategy: &str, started: Instant, error: SynthError, cancel: &Cancel) {
        let stop_reason = match error {
            SynthError::NothingYet => StopReason::out_of_time(cancel),
            SynthError::NotApplicable { .. } => StopReason::NotApplicable,
            SynthError::Infeasible { .. } => StopReason::Infeasible,
            _ => StopReason::Failed,
        };
        self.candidates.push(Candidate {
            strategy: strategy.to_owned(),
            chunks_per_rank: self.problem.demand.request().chunks_per_rank,
            makespan_us: None,
            transfers: 0,
            stop_reason,
            seconds: started.elapsed().as_secs_f64(),
            note: Some(error.to_string()),
        });
        self.refusals.push(error);
    }

    /// Verifies a proposal, checks it against the sketch, and keeps it if it is the best so far.
    pub(super) fn judge(&mut self, attempt: Attempt, seconds: f64, seed: u64) -> Candidate {
        let problem = self.problem;
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
        schedule.bound = Some(bound_below(&self.claim, schedule.makespan()));
        match accept(schedule, problem) {
            Ok(verified) => {
                let makespan = verified.schedule().makespan();
                candidate.makespan_us = Some(makespan.0);
                // A strategy reports its goal as optimal, but the goal may be above the bound by the gap.
                let is_optimal = reaches(makespan, self.bound.value);
                let mut stop = attempt.stop;
                if stop == StopReason::Optimal && !is_optimal {
                    stop = StopReason::GapLimit;
                }
                candidate.stop_reason = stop;
                if stop == StopReason::Optimal && !reaches(makespan, self.claim.value) {
                    // The bound that it reaches holds for this number of chunks only.
                    candidate.stop_reason = StopReason::Done;
                    candidate.note.get_or_insert_with(|| "none is faster with as many chunks".to_owned());
                }
                if self.keep(Incumbent { schedule: verified, makespan, stop }) {
                    self.milestones.push(Milestone {
                        seconds: self.started.elapsed().as_secs_f64(),
                        makespan_us: makespan.0,
                        strategy: candidate.strategy.clone(),
                    });
                }
            }
            Err(reason) => candidate.note = Some(format!("refused: {reason}")),
        }
        candidate
    }
}

/// The search with the best makespan so far.
pub(super) fn leader(searches: &[CountSearch<'_>]) -> Option<usize> {
    by_makespan(searches).first().copied()
}

pub(super) fn best_so_far<'b>(searches: &'b [CountSearch<'_>]) -> Option<&'b Incumbent> {
    leader(searches).and_then(|index| searches[index].best.as_ref())
}

/// Whether a strategy found the best schedule so far.
pub(super) fn is_led_by(searches: &[CountSearch<'_>], kind: StrategyKind) -> bool {
    let finder = best_so_far(searches).map(|best| best.schedule.schedule().produced_by.strategy.as_str());
    finder.and_then(|finder| finder.split('/').next()) == Some(kind.as_str())
}

/// The searches worth refining, the best makespan first: those whose bound is below the best makespan of all.
pub(super) fn most_promising(searches: &[CountSearch<'_>]) -> Vec<usize> {
    let mut order = promising(searches);
    order.truncate(REFINED);
    order
}

/// All searches that may still beat the best makespan of all, the best makespan first.
pub(super) fn promising(searches: &[CountSearch<'_>]) -> Vec<usize> {
    let mut order = by_makespan(searches);
    let best = order.first().map_or(f64::INFINITY, |&index| reached(&searches[index]));
    order.retain(|&index| {
        let search = &searches[index];
        !search.reaches(&search.bound) && beats(search.bound.value, Micros(best))
    });
    order
}

fn by_makespan(searches: &[CountSearch<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..searches.len()).collect();
    order.sort_by(|&a, &b| reached(&searches[a]).total_cmp(&reached(&searches[b])));
    order
}

fn reached(search: &CountSearch<'_>) -> f64 {
    search.makespan().map_or(f64::INFINITY, |makespan| makespan.0)
}

/// Applies both independent checks: the verifier, and the check against the sketch.
pub(crate) fn accept(schedule: Schedule, problem: &Problem) -> Result<VerifiedSchedule, String> {
    let verified = verify(schedule, &problem.topology).map_err(|rejection| rejection.to_string())?;
    match obey(verified.schedule(), &problem.topology, &problem.constraints).first() {
        Some(violation) => Err(violation.to_string()),
        None => Ok(verified),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::planner::textbook;
    use crate::problem::Deadline;
    use crate::problem::by_hand::asked;
    use schedule::Collective;

    #[test]
    fn the_runner_up_is_the_best_by_another_name() {
        let machine = topology::resolve("dgx1").expect("a known topology");
        let problem = asked(machine, Collective::AllGather, 1_000_000);
        let mut plans = textbook(&problem).expect("textbook algorithms");
        plans.sort_by(|a, b| b.makespan().total_cmp(&a.makespan()));
        plans.dedup_by(|a, b| a.makespan() == b.makespan());
        let [slow, middle, fast] = [0, plans.len() / 2, plans.len() - 1].map(|at| plans[at].clone());
        let mut search = CountSearch::new(&problem, bounds(&problem, &Deadline::default()), 1, 0.0, Instant::now());
        let named = |schedule: &Schedule, name: &str| Attempt {
            name: name.to_owned(),
            schedule: Some(schedule.clone()),
            stop: StopReason::Done,
            note: None,
        };
        let runner_up = |search: &CountSearch<'_>| search.runner_up.as_ref().map(Schedule::makespan);
        search.judge(named(&middle, "a"), 0.0, 0);
        assert_eq!(runner_up(&search), None);
        search.judge(named(&slow, "a"), 0.0, 0);
        assert_eq!(runner_up(&search), None, "both go by one name");
        search.judge(named(&slow, "b"), 0.0, 0);
        assert_eq!(runner_up(&search), Some(slow.makespan()));
        // What was the best one comes second; its own slower plan does not.
        search.judge(named(&fast, "b"), 0.0, 0);
        assert_eq!(runner_up(&search), Some(middle.makespan()));
        let mut other = search.fork();
        other.judge(named(&middle, "c"), 0.0, 0);
        search.absorb(other);
        assert_eq!((search.makespan(), runner_up(&search)), (Some(fast.makespan()), Some(middle.makespan())));
    }
}
