//! Parts of a search side by side, on all cores.
//!
//! The principal function is [`Planning::side_by_side`]. Each part searches on its own: it begins with what was known
//! before, and sees nothing of what the others find meanwhile. Then their findings are put together in the order of the
//! parts. A part after whose end nobody has to go on ends those that come later in that order; what these have found
//! by then does not count. So the result is the same on any number of cores, and in any timing, unless a time limit ends
//! a part.
//!
//! The parts run on the pool that their own restarts use, so there are never more busy threads than cores. Large problems
//! are searched part after part, because each part keeps schedules of its own.

use super::again::FoundSoFar;
use super::portfolio::{SearchTrack, StrategyLine, Wave};
use super::search::CountSearch;
use super::{LARGE, Planning, SynthError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A part of a search. It returns whether nobody has to go on.
type SearchPart<'p, 'a> =
    Box<dyn FnOnce(&Planning<'a, '_>, &mut Vec<CountSearch<'a>>) -> Result<bool, SynthError> + Send + 'p>;

/// What a part has found, and whether nobody has to go on.
struct TrackFindings<'a> {
    searches: Vec<CountSearch<'a>>,
    outcome: Result<bool, SynthError>,
}

impl<'a> Planning<'a, '_> {
    /// Runs the strategies of a wave.
    ///
    /// # Errors
    /// As [`super::synthesize`].
    pub(super) fn run_wave(&self, searches: &mut Vec<CountSearch<'a>>, wave: &Wave) -> Result<(), SynthError> {
        if wave.len() == 1 || self.goes_in_turn() {
            return wave.iter().try_for_each(|track| self.run_track(searches, track).map(|_| ()));
        }
        let parts = wave.iter().map(|track| -> SearchPart<'_, 'a> { Box::new(|part, own| part.run_track(own, track)) });
        self.side_by_side(searches, parts.collect())
    }

    /// Runs `solvers` beside the restarts. Returns whether the search ended because restarts gain little.
    ///
    /// # Errors
    /// As [`super::synthesize`].
    pub(super) fn restart_beside(
        &self,
        searches: &mut Vec<CountSearch<'a>>,
        mut found: FoundSoFar,
        solvers: &SearchTrack,
    ) -> Result<bool, SynthError> {
        let is_limited = self.options.time_limit.is_some();
        let is_idle = solvers.iter().all(|line| self.is_over(searches, line));
        // Under a limit, restarts would leave no time to solvers that come after them.
        if is_idle || self.goes_in_turn() || is_limited && self.threads() == 1 {
            self.run_track(searches, solvers)?;
            return self.search_again(searches, &mut found, None);
        }
        let (mut settled, ended) = (false, AtomicBool::new(false));
        let restarts: SearchPart<'_, 'a> = Box::new(|part, own| {
            settled = part.search_again(own, &mut found, is_limited.then_some(&ended))?;
            Ok(part.is_done(own))
        });
        let solving: SearchPart<'_, 'a> = Box::new(|part, own| {
            let outcome = part.run_track(own, solvers);
            ended.store(true, Ordering::Relaxed);
            outcome
        });
        self.side_by_side(searches, vec![restarts, solving])?;
        if is_limited { self.search_again(searches, &mut found, None) } else { Ok(settled) }
    }

    /// Runs strategies one after the other. Returns whether nobody has to go on.
    fn run_track(&self, searches: &mut Vec<CountSearch<'a>>, track: &[&StrategyLine]) -> Result<bool, SynthError> {
        for line in track {
            if !self.is_over(searches, line) {
                self.run(searches, line)?;
            }
        }
        Ok(searches.iter().any(CountSearch::is_good_enough))
    }

    /// Whether a strategy is not needed any more.
    fn is_over(&self, searches: &[CountSearch<'_>], line: &StrategyLine) -> bool {
        searches.iter().any(|search| search.is_good_enough() || self.is_spared(line, search))
    }

    /// Whether parts of the search run one after the other: on large problems, and when the time is up.
    pub(super) fn goes_in_turn(&self) -> bool {
        let weight = |problem: &crate::problem::Problem| {
            let chunks = problem.demand.chunks().iter();
            let messages = chunks.map(|chunk| chunk.holders.len().max(chunk.wanted_by.len())).sum::<usize>();
            messages + problem.topology.links().len()
        };
        self.problems.first().is_none_or(|problem| weight(problem) > LARGE) || self.deadline.has_passed()
    }

    pub(super) fn threads(&self) -> usize {
        self.options.threads.unwrap_or(usize::MAX).min(rayon::current_num_threads())
    }

    /// Runs parts of a search side by side, and adds what they found to `searches`.
    ///
    /// # Errors
    /// The first error in the order of the parts, unless a part before it made it superfluous.
    fn side_by_side(
        &self,
        searches: &mut Vec<CountSearch<'a>>,
        parts: Vec<SearchPart<'_, 'a>>,
    ) -> Result<(), SynthError> {
        let known: &[CountSearch<'a>] = searches;
        let ends: Vec<_> = parts.iter().map(|_| self.deadline.of_part()).collect();
        let found: Vec<Mutex<Option<TrackFindings<'a>>>> = parts.iter().map(|_| Mutex::new(None)).collect();
        let runners = self.threads().clamp(1, parts.len());
        let waiting = Mutex::new(parts.into_iter().enumerate());
        let work = || {
            while let Some((index, part)) = next_of(&waiting) {
                let (deadline, cancel) = &ends[index];
                if index > 0 && cancel.is_cancelled() && !self.options.cancel.is_cancelled() {
                    continue;
                }
                let mut own = known.iter().map(CountSearch::fork).collect();
                let outcome = part(&Planning { deadline, ..*self }, &mut own);
                if !matches!(outcome, Ok(false)) {
                    ends[index + 1..].iter().for_each(|(_, cancel)| cancel.cancel());
                }
                *found[index].lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(TrackFindings { searches: own, outcome });
            }
        };
        rayon::scope(|scope| (0..runners).for_each(|_| scope.spawn(|_| work())));
        for findings in found {
            let Some(TrackFindings { searches: own, outcome }) =
                findings.into_inner().unwrap_or_else(PoisonError::into_inner)
            else {
                break;
            };
            let is_last = outcome?;
            for (index, search) in own.into_iter().enumerate() {
                match searches.get_mut(index) {
                    Some(known) => known.absorb(search),
                    None => searches.push(search),
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }
}

/// The next part that waits; the lock is free again when it is returned.
fn next_of<T>(waiting: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::again::SearchRound;
    use crate::planner::{Synthesis, opened, synthesize};
    use crate::problem::by_hand::asked;
    use crate::problem::{Deadline, Limits, Problem, SearchOptions};
    use crate::symmetry::Symmetries;
    use schedule::Collective;
    use std::time::Instant;

    fn problem(spec: &str, collective: Collective) -> Problem {
        asked(topology::resolve(spec).expect("a known topology"), collective, 1_000_000)
    }

    #[test]
    fn threads_do_not_change_the_answer() {
        for (spec, collective) in [
            ("mesh2d:3x3", Collective::AllGather),
            ("fat-tree:2x3", Collective::AllToAll),
            ("dgx1", Collective::AllReduce),
            ("ring:5", Collective::AllReduce),
            ("line:4", Collective::Broadcast),
        ] {
            let problem = problem(spec, collective);
            let planned = |threads| {
                let limits = Limits { restarts: 4, solver_iterations: 600, solver_calls: 4 };
                let options = SearchOptions { limits, threads: Some(threads), ..SearchOptions::default() };
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
                let problems = std::slice::from_ref(&problem);
                let Synthesis { schedule, report, .. } =
                    pool.install(|| synthesize(problems, &options, &|_| {})).expect("a schedule");
                let told = report.candidates.into_iter().map(|it| (it.strategy, it.makespan_us, it.stop_reason));
                (schedule.into_schedule(), report.stop_reason, told.collect::<Vec<_>>())
            };
            assert_eq!(planned(1), planned(3), "{spec} {collective}");
        }
    }

    #[test]
    fn who_is_superfluous_is_ended_and_does_not_count() {
        let problems = [problem("ring:4", Collective::AllGather)];
        let (options, deadline, symmetries) = (SearchOptions::default(), Deadline::default(), Symmetries::default());
        let planning = Planning {
            problems: &problems,
            bounds: &opened(&problems),
            warm: &[],
            started: Instant::now(),
            options: &options,
            deadline: &deadline,
            symmetries: &symmetries,
            progress: &|_| {},
            round: SearchRound::First,
        };
        let mut searches = Vec::new();
        assert!(planning.open_next(&mut searches));
        let told = |own: &mut Vec<CountSearch<'_>>, name| {
            own[0].refuse(name, planning.started, SynthError::NothingYet, &options.cancel);
        };
        let told = &told;
        let parts: Vec<SearchPart<'_, '_>> = vec![
            Box::new(move |_, own| {
                told(own, "first");
                Ok(false)
            }),
            Box::new(move |_, own| {
                told(own, "second");
                Ok(true)
            }),
            Box::new(move |part, own| {
                // It would go on for ever.
                while !part.deadline.has_passed() {
                    std::thread::yield_now();
                }
                told(own, "third");
                Err(SynthError::NothingYet)
            }),
        ];
        planning.side_by_side(&mut searches, parts).expect("no error that counts");
        let names: Vec<&str> = searches[0].candidates.iter().map(|it| it.strategy.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
        assert!(!deadline.has_passed(), "the whole goes on");
    }
}
