//! Several collectives at once, on the links that they share.
//!
//! The principal function is [`synthesize_joint`]. The demand of a [`JointTask`] has the chunks of all its collectives,
//! so bounds, strategies and verifier treat it as any other. But each collective alone is far easier to plan. So each
//! is planned alone first, equal ones once, and the plans are put together in two ways: one after the other, and all at once,
//! where each link takes messages in the order of their departures. The better one is where the search begins: the answer is
//! no slower than either. What holds for one collective holds for all together, so the bounds of each are bounds of the
//! whole.

use super::again::SearchRound;
use super::conclusion::conclude;
use super::halves::PartialPlan;
use super::search::CountSearch;
use super::{LARGE, Planning, Searched, Synthesis, opened};
use crate::bounds::{Bound, Bounds, Scope, bounds, bounds_like};
use crate::problem::{Constraints, Deadline, Problem, Progress, SearchOptions, SynthError, chunk_counts};
use crate::symmetry::Symmetries;
use rayon::prelude::*;
use schedule::{ChunkId, Demand, Message, Request, Schedule, Transfer, replay};
use std::sync::Arc;
use std::time::Instant;
use topology::{Micros, Topology};

/// The plans of all collectives alone may take one part in this many of a limited time.
const ALONE_PART: u32 = 3;
/// At how many chunk counts plans are put together, the fastest first.
const TOGETHER: usize = 2;

/// Collectives that are planned together; all are cut into the same number of chunks per rank.
#[derive(Clone, Debug)]
pub struct JointTask {
    /// The machine.
    pub topology: Arc<Topology>,
    /// What a sketch permits.
    pub constraints: Arc<Constraints>,
    /// The collectives; their chunk counts are ignored.
    pub requests: Vec<Request>,
    /// The chunk count; `None` if it is searched.
    pub chunks: Option<u32>,
}

impl JointTask {
    /// The problems of the whole, one for each chunk count worth trying for the largest collective.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn problems(&self) -> Result<Vec<Problem>, SynthError> {
        let cut = |count| self.requests.iter().map(|request| request.clone().with_chunks(count)).collect::<Vec<_>>();
        self.counts().into_iter().map(|count| Ok(self.problem(Demand::joint(&cut(count))?))).collect()
    }

    /// The bounds of the whole for `problem`, one of [`Self::problems`]: its own, and those of each collective alone that
    /// are higher.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn bounds(&self, problem: &Problem, deadline: &Deadline) -> Result<Bounds, SynthError> {
        let mut of_all = bounds(problem, deadline);
        let count = problem.demand.request().chunks_per_rank;
        for request in distinct(&self.requests).0 {
            let alone = self.problem(Demand::new(request.clone().with_chunks(count))?);
            add_higher(&mut of_all, bounds(&alone, deadline).list);
        }
        Ok(of_all)
    }

    /// The problems of one collective alone.
    fn alone(&self, request: &Request) -> Result<Vec<Problem>, SynthError> {
        let demand = |count| Demand::new(request.clone().with_chunks(count));
        self.counts().into_iter().map(|count| Ok(self.problem(demand(count)?))).collect()
    }

    fn problem(&self, demand: Demand) -> Problem {
        let (topology, constraints) = (self.topology.clone(), self.constraints.clone());
        Problem { topology, demand: Arc::new(demand), constraints }
    }

    fn counts(&self) -> Vec<u32> {
        let largest = self.requests.iter().max_by_key(|request| request.size_bytes);
        let searched = || largest.map_or_else(Vec::new, |largest| chunk_counts(&self.topology, largest));
        self.chunks.map_or_else(searched, |count| vec![count])
    }
}

/// Plans the collectives of `task` together. `warm` are schedules of the whole, which the strategies have to beat.
///
/// # Errors
/// As [`super::synthesize`].
pub fn synthesize_joint(
    task: &JointTask,
    warm: &[Schedule],
    options: &SearchOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Synthesis, SynthError> {
    let started = Instant::now();
    let deadline = Deadline::after(options.time_limit, options.cancel.clone());
    let (problems, symmetries) = (task.problems()?, Symmetries::default());
    let (distinct, which) = distinct(&task.requests);
    let alone = distinct.iter().map(|request| task.alone(request)).collect::<Result<Vec<_>, _>>()?;
    let bounds_of_all = opened(&problems);
    let planning = Planning {
        problems: &problems,
        bounds: &bounds_of_all,
        warm: &[],
        started,
        options,
        deadline: &deadline,
        symmetries: &symmetries,
        progress,
        round: SearchRound::First,
    };
    // A named strategy runs alone, so it begins with nothing.
    let alone = if options.strategy.is_some() { Vec::new() } else { planning.each_alone(&alone) };
    let planned: Vec<Vec<PartialPlan>> = alone.iter().map(|searches| planned(searches)).collect();
    let plans: Vec<&[PartialPlan]> = which.iter().filter_map(|&index| Some(&**planned.get(index)?)).collect();
    let warm: Vec<Schedule> = warm.iter().cloned().chain(together(&problems, &plans, &deadline)).collect();
    raise(&planning, &alone);
    let planning = Planning { warm: &warm, ..planning };
    let Searched { searches, warm_start, settled } = planning.searched()?;
    conclude(searches, (warm_start, settled), options, &deadline, || started.elapsed().as_secs_f64())
}

impl<'a> Planning<'a, '_> {
    /// The searches of each collective alone, at all its chunk counts. What has no schedule has no searches.
    fn each_alone(&self, alone: &'a [Vec<Problem>]) -> Vec<Vec<CountSearch<'a>>> {
        let in_turn = self.goes_in_turn();
        let tracks = if in_turn { 1 } else { self.threads() };
        let turns = alone.len().div_ceil(tracks) as u32;
        let window = self.deadline.part(ALONE_PART);
        let search = |problems: &'a Vec<Problem>| {
            let deadline = window.part(turns);
            let options = SearchOptions { time_limit: deadline.remaining(), ..self.options.clone() };
            let planning = Planning {
                problems,
                bounds: &opened(problems),
                warm: &[],
                options: &options,
                deadline: &deadline,
                symmetries: self.symmetries,
                progress: self.progress,
                started: self.started,
                round: SearchRound::Half,
            };
            planning.searched().map_or_else(|_| Vec::new(), |found| found.searches)
        };
        if in_turn { alone.iter().map(search).collect() } else { alone.par_iter().map(search).collect() }
    }
}

/// The requests without repetitions, and which of them each request is.
fn distinct(requests: &[Request]) -> (Vec<&Request>, Vec<usize>) {
    let mut distinct: Vec<&Request> = Vec::new();
    let which = requests.iter().map(|request| {
        distinct.iter().position(|known| *known == request).unwrap_or_else(|| {
            distinct.push(request);
            distinct.len() - 1
        })
    });
    let which = which.collect();
    (distinct, which)
}

/// The best schedules of one collective, with their chunk counts.
fn planned(searches: &[CountSearch<'_>]) -> Vec<PartialPlan> {
    let best = searches.iter().filter_map(|search| search.best.as_ref());
    best.map(|best| PartialPlan::of(best.schedule.schedule().clone())).collect()
}

/// The plans of the collectives put together, at the chunk counts where that is fastest.
fn together(problems: &[Problem], plans: &[&[PartialPlan]], deadline: &Deadline) -> Vec<Schedule> {
    let mut found: Vec<Schedule> = Vec::new();
    for problem in problems {
        let is_large = found.iter().any(|schedule| schedule.transfers.len() > LARGE);
        if !found.is_empty() && (is_large || deadline.has_passed()) {
            break;
        }
        let Some(parts) = parts_of(problem, plans) else { continue };
        let ways = [("in-turn", true), ("overlaid", false)];
        let both = ways.into_iter().filter_map(|(name, in_turn)| joined(problem, &parts, in_turn, name));
        found.extend(both.min_by(|one, other| one.makespan().total_cmp(&other.makespan())));
    }
    found.sort_by(|one, other| one.makespan().total_cmp(&other.makespan()));
    found.truncate(TOGETHER);
    found
}

/// The transfers of the fastest plan of each collective at the chunk count of the whole, with the chunks of the whole;
/// `None` if some collective has no plan.
fn parts_of(problem: &Problem, plans: &[&[PartialPlan]]) -> Option<Vec<Vec<Transfer>>> {
    let count = problem.demand.request().chunks_per_rank;
    let mut first = 0;
    let part = |plans: &&[PartialPlan]| {
        let fitting = plans.iter().filter(|plan| count.is_multiple_of(plan.chunks));
        let best = fitting.min_by(|one, other| one.schedule.makespan().total_cmp(&other.schedule.makespan()))?;
        let mut transfers = best.cut(count);
        transfers.iter_mut().flat_map(|it| it.chunks.iter_mut()).for_each(|chunk| *chunk = ChunkId(chunk.0 + first));
        first += best.schedule.demand.chunks().len() as u32 / best.chunks * count;
        Some(transfers)
    };
    let parts: Vec<Vec<Transfer>> = plans.iter().map(part).collect::<Option<_>>()?;
    (!parts.is_empty()).then_some(parts)
}

/// The messages of all `parts` in the order of their departures, where each part begins when the one before it has
/// ended, or all at once.
fn joined(problem: &Problem, parts: &[Vec<Transfer>], in_turn: bool, name: &str) -> Option<Schedule> {
    let mut from = Micros::ZERO;
    let mut all: Vec<(Micros, &Transfer)> = Vec::new();
    for part in parts {
        all.extend(part.iter().map(|transfer| (from + transfer.start, transfer)));
        let end = part.iter().map(|transfer| transfer.end).fold(Micros::ZERO, Micros::max);
        from = if in_turn { from + end } else { from };
    }
    // The sort is stable: messages of one plan stay in its order.
    all.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let messages: Vec<Message> = all.into_iter().map(|(_, transfer)| Message::from(transfer)).collect();
    let transfers = replay(&problem.demand, &problem.topology, &messages).ok()?;
    Some(Schedule::new(&problem.topology, problem.demand.clone(), transfers, &format!("together/{name}")))
}

/// Keeps the bounds of the whole at every chunk count: its own, and those of each collective that are higher.
fn raise(planning: &Planning<'_, '_>, alone: &[Vec<CountSearch<'_>>]) {
    let mut first: Option<Bounds> = None;
    for (index, problem) in planning.problems.iter().enumerate() {
        let mut of_all = match &first {
            Some(first) if planning.options.time_limit.is_some() => bounds_like(first, problem, planning.deadline),
            _ => bounds(problem, &planning.deadline.part(super::BOUNDS_PART)),
        };
        first = first.or_else(|| Some(of_all.clone()));
        let count = problem.demand.request().chunks_per_rank;
        let same_count = |search: &&CountSearch<'_>| search.problem.demand.request().chunks_per_rank == count;
        for search in alone.iter().flatten().filter(same_count) {
            add_higher(&mut of_all, search.bounds.list.iter().cloned());
        }
        drop(planning.bounds[index].set(of_all));
    }
}

/// Adds the bounds of one collective that are higher than those of the whole: what holds for one holds for all together.
fn add_higher(of_all: &mut Bounds, of_one: impl IntoIterator<Item = Bound>) {
    let known = (of_all.best().value, of_all.best_at_any_chunking().value);
    let is_higher = |bound: &Bound| match bound.scope {
        Scope::AnyChunking => bound.value > known.1,
        Scope::ThisChunking => bound.value > known.0,
        Scope::OneChunkPerMessage => false,
    };
    of_all.list.extend(of_one.into_iter().filter(is_higher));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::synthesize_from;
    use crate::problem::Limits;
    use schedule::{Collective, verify};
    use topology::Rank;

    fn task(spec: &str, groups: &[(Collective, &[u32], u64)]) -> JointTask {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = |&(collective, members, size): &(Collective, &[u32], u64)| {
            let standard = Request::new(collective, topology.rank_count(), size);
            let root = standard.root.map(|_| Rank(members[0]));
            Request { members: members.iter().copied().map(Rank).collect(), root, ..standard }
        };
        let requests = groups.iter().map(request).collect();
        JointTask { topology, constraints: Arc::new(Constraints::none()), requests, chunks: None }
    }

    fn quick() -> SearchOptions {
        let limits = Limits { restarts: 4, solver_iterations: 600, solver_calls: 2 };
        SearchOptions { limits, ..SearchOptions::default() }
    }

    fn tasks() -> Vec<JointTask> {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce};
        vec![
            task("dgx1", &[(AllGather, &[0, 2, 4, 6], 1 << 20), (AllGather, &[1, 3, 5, 7], 1 << 20)]),
            task("mesh2d:2x4", &[(AllReduce, &[0, 3, 5], 1 << 16), (Broadcast, &[6, 1, 2], 1 << 18)]),
            task("fat-tree:2x4", &[(AllToAll, &[0, 2, 4, 6], 1 << 18), (AllReduce, &[1, 3, 5, 7], 1 << 18)]),
            task("ring:6", &[(Reduce, &[0, 1, 2, 3], 1 << 14), (AllGather, &[2, 3, 4, 5], 1 << 14)]),
            task("ring:4", &[(AllGather, &[0, 1, 2, 3], 1 << 14), (AllGather, &[0, 1, 2, 3], 1 << 14)]),
        ]
    }

    #[test]
    fn together_is_never_slower_than_in_turn_and_never_below_the_bound_of_one() {
        for task in tasks() {
            let name = task.topology.name().to_owned();
            let found = synthesize_joint(&task, &[], &quick(), &|_| {}).expect("a schedule");
            let makespan = found.schedule.schedule().makespan();
            assert!(found.bounds.best().value.0 <= makespan.0 * (1.0 + 1e-9), "{name}");
            let mut sum = Micros::ZERO;
            for request in &task.requests {
                let problems = task.alone(request).expect("valid requests");
                let alone = synthesize_from(&problems, &[], &quick(), &|_| {}).expect("a schedule");
                let bound = alone.report.lower_bound_us;
                assert!(found.report.lower_bound_us >= bound * (1.0 - 1e-9), "{name}: {bound}");
                sum += alone.schedule.schedule().makespan();
            }
            assert!(makespan.0 <= sum.0 * (1.0 + 1e-9), "{name}: {makespan} is more than {sum} in turn");
        }
    }

    #[test]
    fn equal_requests_are_planned_once() {
        use Collective::{AllGather, AllToAll};
        let groups: [(Collective, &[u32], u64); 4] =
            [(AllGather, &[0, 1], 8), (AllToAll, &[0, 1], 8), (AllGather, &[0, 1], 8), (AllGather, &[0, 2], 8)];
        let task = task("clique:3", &groups);
        let (distinct, which) = distinct(&task.requests);
        assert_eq!((distinct.len(), which), (3, vec![0, 1, 0, 2]));
    }

    #[test]
    fn plans_put_together_are_right_and_what_is_left_out_of_them_is_missed() {
        for task in tasks() {
            let problems = task.problems().expect("valid requests");
            let (distinct, which) = distinct(&task.requests);
            let alone = distinct.iter().map(|request| task.alone(request)).collect::<Result<Vec<_>, _>>();
            let alone = alone.expect("valid requests");
            let (options, deadline, symmetries) = (quick(), Deadline::default(), Symmetries::default());
            let planning = Planning {
                problems: &problems,
                bounds: &opened(&problems),
                warm: &[],
                started: Instant::now(),
                options: &options,
                deadline: &deadline,
                symmetries: &symmetries,
                progress: &|_| {},
                round: SearchRound::Only,
            };
            let plans: Vec<_> = planning.each_alone(&alone).iter().map(|searches| planned(searches)).collect();
            let plans: Vec<&[PartialPlan]> = which.iter().map(|&index| plans[index].as_slice()).collect();
            let found = together(&problems, &plans, &deadline);
            assert_eq!(found.len(), TOGETHER.min(problems.len()));
            for schedule in found {
                let verified = verify(schedule.clone(), &task.topology).expect("a right schedule");
                for left_out in (0..schedule.transfers.len()).step_by(7) {
                    let mut mutant = verified.schedule().clone();
                    mutant.transfers.remove(left_out);
                    assert!(verify(mutant, &task.topology).is_err(), "{}: {left_out}", task.topology.name());
                }
            }
        }
    }
}
