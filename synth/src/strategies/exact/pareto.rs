//! SCCL's Pareto points: the useful combinations of chunks, steps and rounds, each with a proof.
//!
//! The principal function is [`pareto`]. From the fewest steps upward, and for each number of chunks, it finds the
//! fewest rounds. A point is useful if it has fewer rounds per chunk than all points of fewer steps or chunks. It is
//! certified if two neighbours are refuted: one round less, and one step less with as many rounds. A refutation uses
//! the length of the shortest paths, the linear relaxation (which holds for any number of chunks), or a completed
//! search.
//!
//! Let L be the bytes of a chunk where each rank has one chunk, and β that of the slowest link. A point of C chunks, S
//! steps and R rounds takes S·α + R/C·β·L if all ranks wait for the end of each step. As a schedule, where no rank
//! waits, it is slower only by the α of further messages in a step.

use super::synchronous::{Rates, StepsVerdict, SynchronousPlan, decide, least_rounds, routes};
use super::{NAME, not_applicable};
use crate::bounds::bounds;
use crate::epochs::timing::{Departure, schedule_of};
use crate::problem::constraints::RuleKind;
use crate::problem::reversed::reversed_spreading;
use crate::problem::{
    Deadline, Problem, Progress, SearchOptions, StopReason, StrategyKind, SynthError, check_reachable,
};
use crate::solver::Controls;
use crate::strategies::reversal::propose;
use crate::strategies::{Attempt, Context, Strategy};
use crate::symmetry::{PairOrbits, Symmetries};
use schedule::{Demand, VerifiedSchedule, verify};
use serde::Serialize;
use std::sync::Arc;
use topology::{Micros, MicrosPerByte};

/// How far to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// The most chunks per rank.
    pub chunks: u32,
    /// How many steps more than the fewest are tried.
    pub more_steps: u32,
}

impl Default for Reach {
    fn default() -> Self {
        Self { chunks: 6, more_steps: 4 }
    }
}

/// Why a combination is impossible.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Reason {
    /// Some chunk has farther to go than the number of steps.
    Distance,
    /// Every step has at least one round.
    RoundPerStep,
    /// Even if chunks may be split arbitrarily, this number of steps needs more rounds.
    Relaxation {
        /// The fewest rounds per chunk in this number of steps, for any number of chunks.
        least_rounds_per_chunk: f64,
    },
    /// The 0/1 model has no solution: the solver's search was completed.
    Search,
}

/// A combination of chunks, steps and rounds that no plan has.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Refuted {
    /// Chunks per rank.
    pub chunks: u32,
    /// Steps.
    pub steps: u32,
    /// Rounds in all steps together.
    pub rounds: u32,
    /// Why it is impossible.
    #[serde(flatten)]
    pub reason: Reason,
}

/// A plan in synchronous steps.
#[derive(Clone, Debug, Serialize)]
pub struct ParetoPoint {
    /// Chunks per rank.
    pub chunks: u32,
    /// Steps.
    pub steps: u32,
    /// Rounds in all steps together.
    pub rounds: u32,
    /// Rounds of each step.
    pub rounds_per_step: Vec<u32>,
    /// Its cost at the requested size if all ranks wait for the end of each step, and each message has the largest α.
    #[serde(rename = "synchronous_us")]
    pub synchronous: Micros,
    /// The makespan of the schedule at the requested size.
    #[serde(rename = "makespan_us")]
    pub makespan: Micros,
    /// The refuted neighbours: one round less, and one step less.
    pub refuted: Vec<Refuted>,
    /// Whether both neighbours are refuted.
    pub certified: bool,
    /// The plan.
    #[serde(skip)]
    pub schedule: VerifiedSchedule,
}

/// A lower bound for one number of steps.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Relaxation {
    /// Steps.
    pub steps: u32,
    /// The fewest rounds per chunk, for any number of chunks.
    pub least_rounds_per_chunk: f64,
}

/// All useful points within reach.
#[derive(Clone, Debug, Serialize)]
pub struct Front {
    /// The time per byte on the slowest link: a round lasts as long as a chunk takes there.
    #[serde(rename = "slowest_us_per_byte")]
    pub slowest: MicrosPerByte,
    /// The points, by steps, then by chunks.
    pub points: Vec<ParetoPoint>,
    /// The relaxations, by steps.
    pub relaxations: Vec<Relaxation>,
}

/// The difference up to which two ratios are equal.
const EQUAL: f64 = 1e-6;
/// The most departures of a model; larger models are not solved.
const MOST_DEPARTURES: usize = 60_000;

/// The Pareto points of `problem`; its own number of chunks is ignored.
///
/// # Errors
/// [`SynthError::NotApplicable`] if the sketch has rules beyond which links may be used, if some link takes no time, if
/// several ranks want one sum, or if models would be too large; failures of the solver.
pub fn pareto(
    problem: &Problem,
    reach: Reach,
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Front, SynthError> {
    super::refuse_rules(problem)?;
    check_reachable(problem)?;
    let deadline = Deadline::after(options.time_limit, options.cancel.clone());
    let mut search = ParetoSearch::new(problem, options, &deadline, progress)?;
    let fewest = (1..=problem.topology.rank_count() as u32).find(|&steps| routes(&search.whole, steps).is_some());
    let Some(fewest) = fewest else { return Ok(search.front) };
    for steps in fewest..=fewest + reach.more_steps {
        if search.is_over() {
            break;
        }
        search.try_steps(steps, reach.chunks)?;
    }
    Ok(search.front)
}

struct ParetoSearch<'a> {
    problem: &'a Problem,
    /// The spreading problem, with one chunk per rank.
    whole: Problem,
    rates: Rates,
    options: &'a SearchOptions,
    deadline: &'a Deadline,
    symmetries: Symmetries,
    progress: &'a (dyn Fn(Progress) + Sync),
    /// The fewest rounds per chunk for any number of steps, from lower bounds.
    least: f64,
    front: Front,
}

impl<'a> ParetoSearch<'a> {
    fn new(
        problem: &'a Problem,
        options: &'a SearchOptions,
        deadline: &'a Deadline,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Result<Self, SynthError> {
        let problem_of_one = recut(problem, 1)?;
        let whole = spreading(&problem_of_one)?;
        if super::routes(&whole) > MOST_DEPARTURES {
            return Err(not_applicable("its models would have too many columns"));
        }
        let rates = Rates::new(&whole).ok_or_else(|| not_applicable("some link takes no time for a byte"))?;
        // Without α, the bounds count the time of a chunk on the slowest link.
        let round = rates.slowest * whole.demand.chunk_bytes();
        if round <= Micros::ZERO {
            return Err(not_applicable("there is nothing to move"));
        }
        let least = bounds(&free_of_alpha(&whole), deadline).best_at_any_chunking().value.0 / round.0;
        let front = Front { slowest: rates.slowest, points: Vec::new(), relaxations: Vec::new() };
        let symmetries = Symmetries::default();
        Ok(Self { problem, whole, rates, options, deadline, symmetries, progress, least, front })
    }

    /// Whether the best ratio is proven optimal, or the time is up.
    fn is_over(&self) -> bool {
        self.best_ratio() <= self.least * (1.0 + EQUAL) || self.deadline.has_passed()
    }

    /// The fewest rounds per chunk so far.
    fn best_ratio(&self) -> f64 {
        self.front
            .points
            .iter()
            .map(|point| f64::from(point.rounds) / f64::from(point.chunks))
            .fold(f64::INFINITY, f64::min)
    }

    fn controls(&self) -> Controls<'a> {
        Controls { seed: self.options.seed, ..Controls::within(self.options.limits.solver_iterations, self.deadline) }
    }

    /// Finds the useful points of `steps` steps.
    fn try_steps(&mut self, steps: u32, most_chunks: u32) -> Result<(), SynthError> {
        let departures = routes(&self.whole, steps).map_or(0, |routes| routes.departures());
        if departures > MOST_DEPARTURES {
            return Err(not_applicable("its models would be too large"));
        }
        let Some(least) = least_rounds(&self.whole, &self.rates, steps, &self.controls())? else { return Ok(()) };
        self.front.relaxations.push(Relaxation { steps, least_rounds_per_chunk: least });
        for chunks in 1..=most_chunks {
            if departures * chunks as usize > MOST_DEPARTURES || self.is_over() {
                break;
            }
            let best = self.best_ratio() * (1.0 - EQUAL);
            let fewest = ((least * f64::from(chunks) - EQUAL).ceil() as u32).max(steps);
            // Only numbers of rounds that improve the ratio.
            let candidates = (fewest..).take_while(|&rounds| f64::from(rounds) < best * f64::from(chunks));
            let most = if best.is_finite() { u32::MAX } else { fewest * 4 };
            self.try_chunks(steps, chunks, candidates.take_while(|&rounds| rounds <= most))?;
        }
        Ok(())
    }

    /// Finds the fewest rounds among `candidates`.
    fn try_chunks(&mut self, steps: u32, chunks: u32, candidates: impl Iterator<Item = u32>) -> Result<(), SynthError> {
        let original = recut(self.problem, chunks)?;
        let problem = spreading(&original)?;
        let orbits = PairOrbits::new(&problem, &self.symmetries, self.deadline);
        let mut below = None;
        for rounds in candidates {
            self.announce(chunks, steps, rounds);
            let verdict = match &orbits {
                Some(orbits) => self.ask(&problem, (steps, rounds), Some(orbits))?,
                None => StepsVerdict::Undecided,
            };
            let verdict = match verdict {
                StepsVerdict::Plan(_) => verdict,
                StepsVerdict::Refuted | StepsVerdict::Undecided => self.ask(&problem, (steps, rounds), None)?,
            };
            below = match verdict {
                StepsVerdict::Plan(plan) => {
                    let fewer_rounds = below.or_else(|| self.evidently_refuted(chunks, steps, rounds - 1));
                    let refuted = [fewer_rounds, self.fewer_steps(&problem, chunks, steps - 1, rounds)?];
                    let point = self.point(&original, plan, refuted)?;
                    self.front.points.push(point);
                    return Ok(());
                }
                StepsVerdict::Refuted => Some(Refuted { chunks, steps, rounds, reason: Reason::Search }),
                StepsVerdict::Undecided => None,
            };
        }
        Ok(())
    }

    fn ask(
        &self,
        problem: &Problem,
        size: (u32, u32),
        orbits: Option<&PairOrbits>,
    ) -> Result<StepsVerdict, SynthError> {
        decide(problem, &self.rates, size, orbits, &self.controls())
    }

    /// Why a combination is impossible, if that is known without a search.
    fn evidently_refuted(&self, chunks: u32, steps: u32, rounds: u32) -> Option<Refuted> {
        let refuted = |reason| Some(Refuted { chunks, steps, rounds, reason });
        if rounds < steps {
            return refuted(Reason::RoundPerStep);
        }
        if routes(&self.whole, steps).is_none() {
            return refuted(Reason::Distance);
        }
        let known = self.front.relaxations.iter().find(|it| it.steps == steps)?;
        let least_rounds_per_chunk = known.least_rounds_per_chunk;
        let impossible = f64::from(rounds) < least_rounds_per_chunk * f64::from(chunks) - EQUAL;
        if impossible { refuted(Reason::Relaxation { least_rounds_per_chunk }) } else { None }
    }

    /// The proof that one step less is impossible with as many rounds, if there is one.
    fn fewer_steps(
        &self,
        problem: &Problem,
        chunks: u32,
        steps: u32,
        rounds: u32,
    ) -> Result<Option<Refuted>, SynthError> {
        if let Some(refuted) = self.evidently_refuted(chunks, steps, rounds) {
            return Ok(Some(refuted));
        }
        let verdict = self.ask(problem, (steps, rounds), None)?;
        let refuted = Refuted { chunks, steps, rounds, reason: Reason::Search };
        Ok((verdict == StepsVerdict::Refuted).then_some(refuted))
    }

    /// Turns a plan into a point, with a verified schedule of `original`.
    fn point(
        &self,
        original: &Problem,
        plan: SynchronousPlan,
        refuted: [Option<Refuted>; 2],
    ) -> Result<ParetoPoint, SynthError> {
        let (steps, rounds) = (plan.rounds.len() as u32, plan.rounds.iter().sum::<u32>());
        let given = Given(plan.departures);
        let context = Context::alone(self.options, self.deadline, &self.symmetries, self.progress);
        let attempt = propose(original, &context, &given)?.into_iter().find_map(|attempt| attempt.schedule);
        let mut schedule = attempt.ok_or(SynthError::NothingYet)?;
        schedule.bound = Some(bounds(original, self.deadline).best());
        schedule.produced_by.strategy = NAME.to_owned();
        schedule.produced_by.seed = self.options.seed;
        let chunks = original.demand.request().chunks_per_rank;
        let makespan = schedule.makespan();
        let refused = |rejection: schedule::Rejection| not_applicable(&format!("its plan was refused: {rejection}"));
        let schedule = verify(schedule, &original.topology).map_err(refused)?;
        let alpha = original.topology.links().iter().map(|link| link.alpha).fold(Micros::ZERO, Micros::max);
        let round = self.rates.slowest * original.demand.chunk_bytes();
        Ok(ParetoPoint {
            chunks,
            steps,
            rounds,
            rounds_per_step: plan.rounds,
            synchronous: alpha * f64::from(steps) + round * f64::from(rounds),
            makespan,
            certified: refuted.iter().all(Option::is_some),
            refuted: refuted.into_iter().flatten().collect(),
            schedule,
        })
    }

    fn announce(&self, chunks: u32, steps: u32, rounds: u32) {
        let activity = format!("{chunks} chunks, {steps} steps, {rounds} rounds");
        (self.progress)(Progress { strategy: NAME, incumbent: None, bound: None, activity });
    }
}

/// The problem with another number of chunks per rank.
fn recut(problem: &Problem, chunks: u32) -> Result<Problem, SynthError> {
    let demand = Demand::new(problem.demand.request().clone().with_chunks(chunks))?;
    Ok(Problem { demand: Arc::new(demand), ..problem.clone() })
}

/// The spreading problem: the problem itself or, where sums are made for one rank each, its reversal.
fn spreading(problem: &Problem) -> Result<Problem, SynthError> {
    if !problem.demand.chunks().iter().any(|chunk| chunk.combine) {
        return Ok(problem.clone());
    }
    let why = "sums that several ranks want have no points of their own; those of their halves add up";
    reversed_spreading(problem).ok_or_else(|| not_applicable(why))
}

/// The same problem on links without α.
fn free_of_alpha(problem: &Problem) -> Problem {
    Problem { topology: Arc::new(problem.topology.without_alpha()), ..problem.clone() }
}

/// A plan that was found already, as a strategy, so that `reversal` can make sums from it.
struct Given(Vec<Departure>);

impl Strategy for Given {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Exact
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_LINKS
    }

    fn propose(&self, problem: &Problem, _: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        let schedule = schedule_of(problem, self.0.clone(), NAME)?;
        let name = NAME.to_owned();
        Ok(vec![Attempt { name, schedule: Some(schedule), stop: StopReason::Done, note: None }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Request};

    fn front(spec: &str, collective: Collective, reach: Reach) -> Front {
        let topology = Arc::new(topology::resolve(spec).unwrap());
        let request = Request::new(collective, topology.rank_count(), 1_000_000_000);
        let problem = Problem::new(topology, Arc::new(Demand::new(request).unwrap()));
        pareto(&problem, reach, &SearchOptions::default(), &|_| {}).unwrap()
    }

    /// The (chunks, steps, rounds) of all points; checks that all are certified.
    fn certified(spec: &str, collective: Collective, chunks: u32) -> Vec<(u32, u32, u32)> {
        let front = front(spec, collective, Reach { chunks, ..Reach::default() });
        for point in &front.points {
            assert!(point.certified, "{point:?}");
            assert_eq!(point.rounds_per_step.iter().sum::<u32>(), point.rounds);
            assert!(point.makespan.0 <= point.synchronous.0 * (1.0 + 1e-9), "{point:?}");
        }
        front.points.iter().map(|point| (point.chunks, point.steps, point.rounds)).collect()
    }

    /// The points for the DGX-1 in SCCL's paper.
    #[test]
    fn published_points_of_dgx1_are_found_and_certified() {
        let points = certified("dgx1", Collective::AllGather, 2);
        assert_eq!(points, [(1, 2, 2), (2, 2, 3)]);
    }

    #[test]
    fn long_the_point_of_most_bandwidth_of_dgx1_is_certified() {
        if std::env::var("ANTIPHON_TEST_EFFORT").as_deref() != Ok("long") {
            return;
        }
        let points = certified("dgx1", Collective::AllGather, 6);
        assert!([(1, 2, 2), (2, 2, 3), (6, 3, 7)].iter().all(|point| points.contains(point)), "{points:?}");
    }

    #[test]
    fn points_of_small_machines_are_those_of_arithmetic() {
        // A one-way ring passes everything on: N − 1 steps of one round.
        assert_eq!(certified("ring:4", Collective::AllGather, 3), [(1, 3, 3)]);
        // In both directions two halves meet: two steps, and 3/2 rounds per chunk.
        assert_eq!(certified("ring:4,direction=both", Collective::AllGather, 2), [(1, 2, 2), (2, 2, 3)]);
        // Every rank sends to all others at once.
        assert_eq!(certified("clique:4", Collective::AllGather, 2), [(1, 1, 1)]);
        // Sums take the same steps in reverse.
        assert_eq!(certified("ring:4", Collective::ReduceScatter, 2), [(1, 3, 3)]);
        // The root has one link: a pipeline with one more step has more bandwidth.
        assert_eq!(certified("line:3", Collective::Broadcast, 2), [(1, 2, 2), (2, 3, 3)]);
    }

    #[test]
    fn sums_for_all_have_no_points() {
        let topology = Arc::new(topology::resolve("ring:3").unwrap());
        let demand = Demand::new(Request::new(Collective::AllReduce, 3, 300)).unwrap();
        let problem = Problem::new(topology, Arc::new(demand));
        let refused = pareto(&problem, Reach::default(), &SearchOptions::default(), &|_| {});
        assert!(matches!(refused, Err(SynthError::NotApplicable { .. })), "{refused:?}");
    }
}
