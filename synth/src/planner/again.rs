//! Restarts after all strategies have run: new seeds and more effort, while there is time.
//!
//! The principal function is [`Planning::search_again`]. The strategies that draw random numbers run once with the
//! seed of the options. If there is time left, they run again and again, each round with another seed and, every few
//! rounds, with twice the effort. With a time limit, this goes on until the limit, or until the gap is small enough.
//! Without one, it goes on as long as a round gains something; then the report says that the search is settled.

use super::halves::PartialPlan;
use super::portfolio::{Auto, StrategyLine, chosen};
use super::search::{CountSearch, most_promising, promising};
use super::{Planning, SynthError};
use crate::bounds::thorough_bounds;
use crate::problem::{Limits, SearchOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Stronger bounds may take one part in this many of the time that is left for restarts.
const PROVING_PART: u32 = 4;
/// Without a time limit, a round that gains less (relative) is the last one.
const SMALL_GAIN: f64 = 2e-3;
/// After so many rounds, the effort of each is doubled, and so often at most.
const SAME_EFFORT: u32 = 2;
const DOUBLINGS: u32 = 4;
/// In less time than this, no round begins.
const SHORT: Duration = Duration::from_millis(5);

/// Which strategies run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SearchRound {
    /// All, and then those that draw random numbers again.
    First,
    /// All, once.
    Only,
    /// As [`Self::First`], but without the solver: for a half of a sum, which the solver meets again in the whole.
    Half,
    /// Only those that draw random numbers, with seeds of this round.
    Again(u32),
}

impl SearchRound {
    pub(super) fn includes(self, line: &StrategyLine, is_alone: bool) -> bool {
        match self {
            Self::First | Self::Only => true,
            Self::Half => line.auto != Auto::UnlessClose,
            Self::Again(_) => line.restarts(is_alone),
        }
    }
}

/// What the strategies found that restarts begin with.
#[derive(Default)]
pub(super) struct FoundSoFar {
    /// By how much (relative) local search improved the best schedule.
    pub(super) gain: f64,
    /// The best schedules of the halves of sums.
    pub(super) collect: Vec<PartialPlan>,
    pub(super) spread: Vec<PartialPlan>,
    /// The rounds so far.
    pub(super) rounds: u32,
}

/// The best makespan so far.
pub(super) fn best_makespan(searches: &[CountSearch<'_>]) -> f64 {
    searches.iter().filter_map(CountSearch::makespan).fold(f64::INFINITY, |best, makespan| best.min(makespan.0))
}

impl<'a> Planning<'a, '_> {
    /// Looks for stronger bounds, before restarts take the rest of the time: they may show that nothing is left to find.
    pub(super) fn prove_more(&self, searches: &mut [CountSearch<'a>]) {
        let [search] = searches else { return };
        let is_whole = matches!(self.round, SearchRound::First);
        if is_whole && self.restarts() && !search.is_good_enough() && !self.deadline.has_passed() {
            let proven = thorough_bounds(search.problem, &search.bounds, &self.deadline.part(PROVING_PART));
            search.raise_bounds(proven);
        }
    }

    /// Runs the strategies that draw random numbers again. Returns whether the search ended because they gain little.
    /// No round begins once `until` is set.
    ///
    /// # Errors
    /// As [`super::synthesize`].
    pub(super) fn search_again(
        &self,
        searches: &mut Vec<CountSearch<'a>>,
        found: &mut FoundSoFar,
        until: Option<&AtomicBool>,
    ) -> Result<bool, SynthError> {
        if !self.restarts() || searches.iter().all(|search| search.best.is_none()) {
            return Ok(false);
        }
        let first = if let SearchRound::Again(round) = self.round { round << 10 } else { 0 };
        loop {
            let is_settled = self.options.time_limit.is_none() && found.gain < SMALL_GAIN;
            let is_over = until.is_some_and(|until| until.load(Ordering::Relaxed))
                || self.deadline.has_passed()
                || self.deadline.remaining().is_some_and(|left| left < SHORT);
            if is_settled || is_over || self.is_done(searches) {
                return Ok(is_settled);
            }
            found.rounds += 1;
            let (before, round) = (best_makespan(searches), found.rounds);
            let options = self.options_of(first + round, round);
            let again = Planning { options: &options, round: SearchRound::Again(first + round), ..*self };
            if !again.round_of(searches, round, found)? {
                return Ok(false);
            }
            found.gain = 1.0 - best_makespan(searches) / before;
        }
    }

    /// Whether no chunk count can do better, or the best schedule is close enough to the bound.
    pub(super) fn is_done(&self, searches: &[CountSearch<'_>]) -> bool {
        searches.iter().any(|search| search.is_good_enough() || search.is_within(self.options.gap))
            || most_promising(searches).is_empty()
    }

    /// The options of a round: another seed, and more effort in later rounds.
    fn options_of(&self, number: u32, round: u32) -> SearchOptions {
        let SearchOptions { limits, seed, .. } = *self.options;
        let effort = 1 << (round / SAME_EFFORT).min(DOUBLINGS);
        let limits = Limits { restarts: limits.restarts.saturating_mul(effort), ..limits };
        let seed = seed.wrapping_add(u64::from(number).wrapping_mul(0xD1B5_4A32_D192_ED03));
        SearchOptions { limits, seed, ..self.options.clone() }
    }

    /// One round, at the best chunk count or, in every other round, at the next best. Returns whether any strategy
    /// applies.
    fn round_of(
        &self,
        searches: &mut Vec<CountSearch<'a>>,
        round: u32,
        found: &mut FoundSoFar,
    ) -> Result<bool, SynthError> {
        let mut applies = !found.spread.is_empty();
        if applies {
            self.join_halves(searches, found)?;
        }
        let order = promising(searches);
        let Some(&index) = order.get(round as usize % order.len().clamp(1, 2)) else { return Ok(false) };
        for line in chosen(self.options.strategy).filter(|line| line.restarts(self.is_alone())) {
            if self.deadline.has_passed() {
                return Ok(true);
            }
            let search = &mut searches[index];
            let (refused, listed) = (search.refusals.len(), search.candidates.len());
            let best = search.makespan();
            // Many rounds would fill the report: only what improves is listed.
            self.attempt(search, line, self.deadline.clone())?;
            applies |= search.refusals.len() == refused;
            search.refusals.truncate(refused);
            if search.makespan() == best {
                search.candidates.truncate(listed);
            }
        }
        Ok(applies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::synthesize;
    use crate::problem::by_hand::asked;
    use crate::problem::{DEFAULT_GAP, Problem, StopReason, StrategyKind};
    use schedule::Collective;
    use std::time::Instant;

    fn problem(spec: &str, collective: Collective, size: u64) -> Problem {
        asked(topology::resolve(spec).expect("a known topology"), collective, size)
    }

    #[test]
    fn while_there_is_time_the_search_goes_on() {
        // Local search ends on this machine long before the limit, and above the bound.
        let problem = problem("mesh2d:3x5", Collective::AllToAll, 15_000);
        let limit = Duration::from_millis(2500);
        for strategy in [None, Some(StrategyKind::Milp), Some(StrategyKind::Improve), Some(StrategyKind::Matching)] {
            let time_limit = Some(limit);
            let options = SearchOptions { strategy, time_limit, gap: DEFAULT_GAP, ..SearchOptions::default() };
            let started = Instant::now();
            let found = synthesize(std::slice::from_ref(&problem), &options, &|_| {}).expect("a schedule").report;
            let is_proven = found.gap.is_some_and(|gap| gap <= DEFAULT_GAP * (1.0 + 1e-9));
            assert!(is_proven || found.stop_reason == StopReason::TimeLimit, "{strategy:?}: {:?}", found.stop_reason);
            assert!(is_proven || started.elapsed() >= limit.mul_f64(0.9), "{strategy:?}: {:?}", started.elapsed());
        }
    }

    #[test]
    fn without_a_limit_the_search_ends_when_rounds_gain_little_and_says_so() {
        let problem = problem("mesh2d:3x3", Collective::AllToAll, 9_000);
        let found =
            synthesize(std::slice::from_ref(&problem), &SearchOptions::default(), &|_| {}).expect("a schedule").report;
        assert!(matches!(found.stop_reason, StopReason::Settled | StopReason::Optimal), "{:?}", found.stop_reason);
        let again =
            synthesize(std::slice::from_ref(&problem), &SearchOptions::default(), &|_| {}).expect("a schedule").report;
        assert_eq!((found.makespan_us, found.stop_reason), (again.makespan_us, again.stop_reason));
    }

    #[test]
    fn every_round_has_a_seed_of_its_own_and_later_ones_more_effort() {
        let options = SearchOptions::default();
        let (deadline, symmetries) = (crate::problem::Deadline::default(), crate::symmetry::Symmetries::default());
        let planning = Planning {
            problems: &[],
            bounds: &[],
            warm: &[],
            started: Instant::now(),
            options: &options,
            deadline: &deadline,
            symmetries: &symmetries,
            progress: &|_| {},
            round: SearchRound::First,
        };
        let rounds: Vec<SearchOptions> = (1..12).map(|round| planning.options_of(round, round)).collect();
        let mut seeds: Vec<u64> = rounds.iter().map(|options| options.seed).chain([options.seed]).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 12);
        assert_eq!(rounds[0].limits.restarts, options.limits.restarts);
        assert_eq!(rounds[10].limits.restarts, options.limits.restarts * 16);
    }
}
