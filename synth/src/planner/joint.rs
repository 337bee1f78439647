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
use crate::bounds::{Bounds, bounds, bounds_like, counted_from, thorough_bounds};
use crate::ordering::replayed;
use crate::problem::{Constraints, Deadline, Problem, Progress, SearchOptions, SynthError, chunk_counts};
use crate::symmetry::Symmetries;
use rayon::prelude::*;
use schedule::{ChunkId, Demand, GroupRequest, Message, Request, Schedule, Transfer};
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
    /// The collectives and when they start; their chunk counts are ignored.
    pub groups: Vec<GroupRequest>,
    /// The chunk count; `None` if it is searched.
    pub chunks: Option<u32>,
}

impl JointTask {
    /// The problems of the whole, one for each chunk count worth trying for the largest collective.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn problems(&self) -> Result<Vec<Problem>, SynthError> {
        let cut_one = |count, GroupRequest { request, start }: &GroupRequest| GroupRequest {
            request: request.clone().with_chunks(count),
            start: *start,
        };
        let cut = |count| self.groups.iter().map(|group| cut_one(count, group)).collect::<Vec<_>>();
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
        let (distinct, which) = distinct(&self.groups);
        for (index, request) in distinct.into_iter().enumerate() {
            let alone = self.problem(Demand::new(request.clone().with_chunks(count))?);
            let mut of_one = bounds(&alone, deadline);
            of_one.list.extend(thorough_bounds(&alone, &of_one, deadline));
            self.raise(&mut of_all, &of_one, |group| which[group] == index);
        }
        Ok(of_all)
    }

    /// Adds those bounds of a collective alone that are higher than those of the whole, counted from its last start: what
    /// holds for one holds for all together. `is_it` says which groups are that collective.
    fn raise(&self, of_all: &mut Bounds, alone: &Bounds, is_it: impl Fn(usize) -> bool) {
        // Where nothing has to move, nothing waits for the start.
        if alone.best().value <= Micros::ZERO {
            return;
        }
        let starts = self.groups.iter().enumerate().filter(|(group, _)| is_it(*group)).map(|(_, group)| group.start);
        let start = starts.fold(Micros::ZERO, Micros::max);
        of_all.add_higher(alone.list.iter().map(|bound| counted_from(start, bound.clone())));
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
        let largest = self.groups.iter().map(|group| &group.request).max_by_key(|request| request.size_bytes);
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
    let (distinct, which) = distinct(&task.groups);
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
    let warm: Vec<Schedule> =
        warm.iter().cloned().chain(together(&problems, (&plans, &task.groups), &deadline)).collect();
    raise(&planning, task, (&alone, &which));
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

/// The requests without repetitions, and which of them each group makes.
fn distinct(groups: &[GroupRequest]) -> (Vec<&Request>, Vec<usize>) {
    let mut distinct: Vec<&Request> = Vec::new();
    let which = groups.iter().map(|GroupRequest { request, .. }| {
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
fn together(
    problems: &[Problem],
    (plans, groups): (&[&[PartialPlan]], &[GroupRequest]),
    deadline: &Deadline,
) -> Vec<Schedule> {
    let mut found: Vec<Schedule> = Vec::new();
    for problem in problems {
        let is_large = found.iter().any(|schedule| schedule.transfers.len() > LARGE);
        if !found.is_empty() && (is_large || deadline.has_passed()) {
            break;
        }
        let Some(parts) = parts_of(problem, plans) else { continue };
        let mut parts: Vec<PlanPart> = parts
            .into_iter()
            .zip(groups)
            .map(|(transfers, group)| PlanPart { transfers, start: group.start })
            .collect();
        // The sort is stable: groups that start together stay in their order.
        parts.sort_by(|one, other| one.start.total_cmp(&other.start));
        let ways = [("in-turn", true), ("overlaid", false)];
        let both = ways.into_iter().filter_map(|(name, in_turn)| joined(problem, &parts, in_turn, name));
        found.extend(both.min_by(|one, other| one.makespan().total_cmp(&other.makespan())));
    }
    found.sort_by(|one, other| one.makespan().total_cmp(&other.makespan()));
    found.truncate(TOGETHER);
    found
}

/// The plan of one collective, with the chunks of the whole, and when it may begin.
struct PlanPart {
    transfers: Vec<Transfer>,
    start: Micros,
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

/// The messages of all `parts` in the order of their departures, where each part begins when it may and, in turn, when
/// the one before it has ended.
fn joined(problem: &Problem, parts: &[PlanPart], in_turn: bool, name: &str) -> Option<Schedule> {
    let mut ended = Micros::ZERO;
    let mut all: Vec<(Micros, &Transfer)> = Vec::new();
    for PlanPart { transfers, start } in parts {
        let from = if in_turn { ended.max(*start) } else { *start };
        all.extend(transfers.iter().map(|transfer| (from + transfer.start, transfer)));
        ended = from + transfers.iter().map(|transfer| transfer.end).fold(Micros::ZERO, Micros::max);
    }
    // The sort is stable: messages of one plan stay in its order.
    all.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let messages: Vec<Message> = all.into_iter().map(|(_, transfer)| Message::from(transfer)).collect();
    let transfers = replayed(problem, &messages).ok()?;
    Some(Schedule::new(&problem.topology, problem.demand.clone(), transfers, &format!("together/{name}")))
}

/// Keeps the bounds of the whole at every chunk count: its own, and those of each collective `alone` that are higher.
/// `which` of those each group is.
fn raise(planning: &Planning<'_, '_>, task: &JointTask, (alone, which): (&[Vec<CountSearch<'_>>], &[usize])) {
    let mut first: Option<Bounds> = None;
    for (index, problem) in planning.problems.iter().enumerate() {
        let mut of_all = match &first {
            Some(first) if planning.options.time_limit.is_some() => bounds_like(first, problem, planning.deadline),
            _ => bounds(problem, &planning.deadline.part(super::BOUNDS_PART)),
        };
        first = first.or_else(|| Some(of_all.clone()));
        let count = problem.demand.request().chunks_per_rank;
        for (place, searches) in alone.iter().enumerate() {
            let same_count = |search: &&CountSearch<'_>| search.problem.demand.request().chunks_per_rank == count;
            for search in searches.iter().filter(same_count) {
                task.raise(&mut of_all, &search.bounds, |group| which[group] == place);
            }
        }
        drop(planning.bounds[index].set(of_all));
    }
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
        let groups = groups.iter().map(request).map(GroupRequest::from).collect();
        JointTask { topology, constraints: Arc::new(Constraints::none()), groups, chunks: None }
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
            for GroupRequest { request, .. } in &task.groups {
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
        let (distinct, which) = distinct(&task.groups);
        assert_eq!((distinct.len(), which), (3, vec![0, 1, 0, 2]));
    }

    #[test]
    fn plans_put_together_are_right_and_what_is_left_out_of_them_is_missed() {
        for task in tasks() {
            let problems = task.problems().expect("valid requests");
            let (distinct, which) = distinct(&task.groups);
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
            let found = together(&problems, (&plans, &task.groups), &deadline);
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

    /// Groups drawn at random, with starts between zero and a little more than a group takes.
    fn started_task(seed: u64) -> JointTask {
        use rand_pcg::Pcg64Mcg;
        use rand_pcg::rand_core::{Rng, SeedableRng};
        const SPECS: [&str; 5] = ["ring:6", "mesh2d:2x3", "switch:6", "fat-tree:2x3", "clique:6"];
        const COLLECTIVES: [Collective; 6] = [
            Collective::AllGather,
            Collective::Broadcast,
            Collective::AllToAll,
            Collective::Reduce,
            Collective::ReduceScatter,
            Collective::AllReduce,
        ];
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut below = |count: u32| random.next_u32() % count;
        // Every other task only copies, so that the strategies that know starts themselves meet it.
        let kinds = if seed.is_multiple_of(2) { 3 } else { 6 };
        let groups: Vec<(Collective, Vec<u32>, u64, f64)> = (0..2 + below(2))
            .map(|_| {
                let (first, step) = (below(3), 1 + below(2));
                let members = (0..3).map(|place| (first + place * step) % 6).collect();
                let start = if below(3) == 0 { 0.0 } else { f64::from(below(8)) * 0.75 };
                (COLLECTIVES[below(kinds) as usize], members, 1 << (12 + below(5)), start)
            })
            .collect();
        let listed: Vec<(Collective, &[u32], u64)> =
            groups.iter().map(|(collective, members, size, _)| (*collective, &members[..], *size)).collect();
        let mut task = task(SPECS[below(5) as usize], &listed);
        task.groups.iter_mut().zip(&groups).for_each(|(group, it)| group.start = Micros(it.3));
        task.groups[0].start = task.groups[0].start.max(Micros(0.25));
        task
    }

    /// The starts of a task in terms of chunks, without `Demand`: the chunks of its groups follow each other.
    fn starts_of_chunks(task: &JointTask, count: u32) -> Vec<Micros> {
        let of_group = |group: &GroupRequest| {
            let chunks = group.request.clone().with_chunks(count).chunk_count() as usize;
            std::iter::repeat_n(group.start, chunks)
        };
        task.groups.iter().flat_map(of_group).collect()
    }

    #[test]
    fn groups_that_start_later_are_planned_by_every_strategy_and_never_below_the_bound() {
        let mut planned = std::collections::BTreeMap::new();
        for seed in 0..24 {
            let task = JointTask { chunks: Some(1), ..started_task(seed) };
            let problem = task.problems().expect("valid requests").remove(0);
            let bound = task.bounds(&problem, &Deadline::default()).expect("valid requests").best().value;
            let starts = starts_of_chunks(&task, 1);
            let named = crate::problem::StrategyKind::ALL.iter().copied().map(Some);
            for strategy in named.chain([None]) {
                let options = SearchOptions { strategy, ..quick() };
                let found = match synthesize_joint(&task, &[], &options, &|_| {}) {
                    Ok(found) => found,
                    Err(SynthError::NotApplicable { .. }) if strategy.is_some() => continue,
                    Err(error) => panic!("seed {seed}, {strategy:?}: {error}"),
                };
                let schedule = found.schedule.schedule();
                let is_in_time = |transfer: &Transfer| {
                    transfer.chunks.iter().all(|chunk| transfer.start >= starts[chunk.index()] * (1.0 - 1e-9))
                };
                assert!(schedule.transfers.iter().all(is_in_time), "seed {seed}, {strategy:?}");
                let makespan = schedule.makespan();
                assert!(makespan.0 >= bound.0 * (1.0 - 1e-9), "seed {seed}, {strategy:?}: {makespan} beats {bound}");
                assert!(found.bounds.best().value.0 <= makespan.0 * (1.0 + 1e-9), "seed {seed}, {strategy:?}");
                *planned.entry(strategy.map_or("auto", |it| it.as_str())).or_insert(0) += 1;
            }
        }
        assert_eq!(planned["auto"], 24, "{planned:?}");
        for strategy in ["classic", "trees", "matching", "improve"] {
            assert!(planned.get(strategy).is_some_and(|&count| count >= 8), "{strategy}: {planned:?}");
        }
        assert!(!planned.contains_key("milp") && !planned.contains_key("exact"), "{planned:?}");
    }

    /// All ways to put the things `rest` into messages that leave one after the other.
    fn sequences(rest: &[u32]) -> Vec<Vec<Vec<u32>>> {
        let mut found = if rest.is_empty() { vec![Vec::new()] } else { Vec::new() };
        for first in 1_u32..1 << rest.len() {
            let part = |is_now: bool| {
                let is_in = |place: &(usize, &u32)| (first >> place.0 & 1 == 1) == is_now;
                rest.iter().enumerate().filter(is_in).map(|(_, &thing)| thing).collect::<Vec<_>>()
            };
            let [now, later] = [part(true), part(false)];
            found.extend(sequences(&later).into_iter().map(|rest| [vec![now.clone()], rest].concat()));
        }
        found
    }

    /// Three broadcasts down a line: a schedule is what each of the two links carries in which messages in which order.
    #[test]
    fn a_tiny_task_with_starts_is_planned_as_well_as_by_trying_everything() {
        let (mut reached, mut tight) = (0, 0);
        for (seed, sizes, starts) in [
            (0, [1000, 1000, 1000], [0.0, 0.5, 1.0]),
            (1, [4000, 1000, 2000], [0.0, 3.0, 0.0]),
            (2, [4000, 1000, 2000], [6.0, 0.0, 2.5]),
            (3, [500, 6000, 500], [0.0, 0.0, 4.0]),
            (4, [3000, 3000, 100], [2.0, 20.0, 0.0]),
        ] {
            let spec = "line:3,alpha=1us,bandwidth=1GBps";
            let mut task = task(spec, &sizes.map(|size| (Collective::Broadcast, &[0, 1, 2][..], size)));
            task.chunks = Some(1);
            task.groups.iter_mut().zip(starts).for_each(|(group, start)| group.start = Micros(start));
            let problem = task.problems().expect("valid requests").remove(0);
            // The times of a line of links, without `replay`: a message leaves when its link is free and all of it is there.
            let play = |first: &[Vec<u32>], second: &[Vec<u32>]| {
                let mut there = starts;
                let mut end = 0.0_f64;
                for messages in [first, second] {
                    let mut free = 0.0_f64;
                    let mut came = there;
                    for message in messages {
                        let ready = message.iter().map(|&it| there[it as usize]).fold(free, f64::max);
                        let bytes: u64 = message.iter().map(|&it| sizes[it as usize]).sum();
                        free = ready + 1.0 + bytes as f64 / 1000.0;
                        message.iter().for_each(|&it| came[it as usize] = free);
                        end = end.max(free);
                    }
                    there = came;
                }
                end
            };
            let all = sequences(&[0, 1, 2]);
            assert_eq!(all.len(), 13);
            let best =
                all.iter().flat_map(|first| all.iter().map(|second| play(first, second))).fold(f64::MAX, f64::min);
            let bound = task.bounds(&problem, &Deadline::default()).expect("valid requests").best().value;
            let found = synthesize_joint(&task, &[], &quick(), &|_| {}).expect("a schedule");
            let makespan = found.schedule.schedule().makespan();
            assert!(bound.0 <= best * (1.0 + 1e-9), "task {seed}: {bound} is above {best}");
            assert!(makespan.0 >= best * (1.0 - 1e-9), "task {seed}: {makespan} is below {best}");
            assert!(makespan.0 <= best * 1.15, "task {seed}: {makespan}, but {best} is possible");
            reached += usize::from(makespan.0 <= best * (1.0 + 1e-9));
            tight += usize::from(bound.0 >= best * 0.8);
        }
        assert!(reached >= 3 && tight >= 2, "{reached} {tight}");
    }
}
