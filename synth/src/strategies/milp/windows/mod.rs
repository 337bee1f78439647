//! Windows of a schedule, solved in exact time.
//!
//! The principal function is [`attempt`]. There are two kinds of windows ([`kinds`]). One frees a few messages of the best
//! schedule so far, those that decide the makespan at some time and their neighbours ([`choice`]), and lets HiGHS find better
//! routes, messages and turns for what they deliver ([`deliveries`], [`model`]). The other one keeps all messages, and frees what
//! they carry ([`contents`]). Where all cannot arrive earlier, fewer deliveries are late, so that later windows have fewer to
//! free. The schedule is a solution of every window, so that the result is never worse. Sums go along trees ([`sums`]). To free
//! single messages that add, the schedule is turned around in time.

mod choice;
mod contents;
mod deliveries;
mod kinds;
mod model;
mod places;
mod sums;
mod turns;

use crate::ordering::{self, SumTrees, may_exchange, without_exchanges, without_idle_copies};
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::beats;
use crate::problem::{Problem, StopReason, SynthError};
use crate::sketch::obey;
use crate::solver::{Column, Controls, Ending, Model, Solution, solve};
use crate::strategies::{Attempt, Context};
use choice::{chosen, chosen_groups};
use contents::{ChunkGroups, ContentsWindow, FreeContents};
use kinds::{WindowEnd, WindowKind, WindowKinds};
use model::FreedWindow;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use schedule::{Chunk, Message, Schedule, verify};
use std::collections::BTreeSet;
use sums::TurnedSums;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-windows";

/// The most messages of a schedule: all of them are in every model.
const MOST_MESSAGES: usize = 1500;
/// Windows that are solved at the same time, from the same schedule. Not the number of cores: the answer must not depend on it.
const SIDE_BY_SIDE: usize = 4;
/// The most windows for each call of the solver that the limits allow: windows are small.
const WINDOWS_PER_CALL: u32 = 12;
/// The most nodes of the search tree of a window.
const NODES: u64 = 300;
/// What is better by less (relative) is as good.
const EQUAL: f64 = 1e-6;
/// What arrives in the last part of the time above the bound is late.
const LATE: f64 = 0.1;

/// Whether the schedule is small enough, its sums go along trees, and solutions can be judged by all rules that the models do not know.
pub(super) fn can_free(problem: &Problem, schedule: &Schedule) -> bool {
    let is_plain = !problem.constraints.exceeds(&RuleKind::OF_WAYS);
    let is_small = schedule.transfers.len() <= MOST_MESSAGES;
    is_plain && is_small && SumTrees::of(problem, &messages_of(&plain(schedule))).has_all(problem)
}

/// The same, as far as it is known without a schedule: for one whose messages carry one chunk each.
pub(super) fn may_free(problem: &Problem) -> bool {
    let deliveries = |chunk: &Chunk| chunk.wanted_by.len() + if chunk.is_sum() { chunk.holders.len() } else { 0 };
    let deliveries: usize = problem.demand.chunks().iter().map(deliveries).sum();
    !problem.constraints.exceeds(&RuleKind::OF_WAYS) && deliveries <= MOST_MESSAGES
}

/// What windows make of a schedule: a faster one, or one that is as fast and less late in its last messages, if they find one.
///
/// # Errors
/// Failures of the solver.
pub(super) fn attempt(
    problem: &Problem,
    schedule: &Schedule,
    context: &Context<'_>,
    patience: u32,
) -> Result<Attempt, SynthError> {
    let (found, solved) = improved(problem, schedule, context, patience)?;
    let stop = match () {
        () if found.as_ref().is_some_and(|found| context.is_enough(found.makespan())) => StopReason::Optimal,
        () if context.deadline.has_passed() => StopReason::TimeLimit,
        () => StopReason::Done,
    };
    Ok(Attempt { name: NAME.to_owned(), schedule: found, stop, note: Some(format!("{solved} windows")) })
}

/// A better schedule than `schedule` ([`WindowSearch::is_better`]), if windows find one, and how many windows were solved. The
/// search ends after `patience` times [`SIDE_BY_SIDE`] windows in a row without a gain.
///
/// # Errors
/// Failures of the solver.
fn improved(
    problem: &Problem,
    schedule: &Schedule,
    context: &Context<'_>,
    patience: u32,
) -> Result<(Option<Schedule>, u32), SynthError> {
    if !can_free(problem, schedule) || context.deadline.has_passed() || context.is_enough(schedule.makespan()) {
        return Ok((None, 0));
    }
    let most = context.options.limits.solver_calls.saturating_mul(WINDOWS_PER_CALL);
    let mut random = Pcg64Mcg::seed_from_u64(context.options.seed ^ 0x57_1D_0D);
    // Models of contents have no place for a delivery that nobody needs.
    let first = played(problem, &messages_of(&plain(schedule))).filter(|first| first.makespan() <= schedule.makespan());
    let first = first.unwrap_or_else(|| schedule.clone());
    let mut best = first.clone();
    let groups = ChunkGroups::new(problem);
    let mut kinds = WindowKinds::new(&groups);
    let (mut stale, mut solved) = (0, 0);
    while stale < patience && solved < most && !context.deadline.has_passed() && !context.is_enough(best.makespan()) {
        let searching = WindowSearch::of(problem, context, &best, &groups);
        let windows: Vec<DrawnWindow> = (0..SIDE_BY_SIDE).map(|_| searching.draw(&kinds, &mut random)).collect();
        let found = windows.par_iter().map(|window| searching.solve(window)).collect::<Result<Vec<_>, _>>()?;
        solved += SIDE_BY_SIDE as u32;
        for (window, found) in windows.iter().zip(&found) {
            let is_gain = found.found.as_ref().is_some_and(|found| searching.is_better(found));
            kinds.hear(window.kind(), found.end, is_gain);
        }
        let next = found.into_iter().filter_map(|found| found.found).min_by(|a, b| {
            a.makespan().total_cmp(&b.makespan()).then(searching.lateness(a).total_cmp(&searching.lateness(b)))
        });
        stale = if next.as_ref().is_some_and(|next| beats(next.makespan(), best.makespan())) { 0 } else { stale + 1 };
        best = next.unwrap_or(best);
    }
    let is_better = WindowSearch::of(problem, context, &first, &groups).is_better(&best);
    Ok((is_better.then_some(best), solved))
}

/// What one window frees.
enum DrawnWindow {
    /// These messages, of the schedule turned around or as it is; and the seed of its costs.
    Deliveries {
        free: BTreeSet<usize>,
        is_turned: bool,
        seed: u64,
    },
    Contents(FreeContents),
}

impl DrawnWindow {
    fn kind(&self) -> WindowKind {
        match self {
            Self::Deliveries { .. } => WindowKind::Deliveries,
            Self::Contents(_) => WindowKind::Contents,
        }
    }
}

/// One schedule whose windows are solved.
struct WindowSearch<'a> {
    problem: &'a Problem,
    context: &'a Context<'a>,
    best: &'a Schedule,
    /// The same with its sums along trees.
    plain: Schedule,
    groups: &'a ChunkGroups,
    sums: SumTrees,
    /// Of sums: the same schedule turned around in time.
    turned: Option<TurnedSums>,
    /// From then on, what arrives is late.
    begin: f64,
}

/// What a window has found.
struct SolvedWindow {
    /// A schedule that is no worse: to go on from one that is only different leads out of places where no window gains.
    found: Option<Schedule>,
    end: WindowEnd,
}

impl<'a> WindowSearch<'a> {
    fn of(problem: &'a Problem, context: &'a Context<'a>, best: &'a Schedule, groups: &'a ChunkGroups) -> Self {
        let makespan = best.makespan().0;
        let begin = makespan - LATE * (makespan - context.bound.0).max(0.0);
        let plain = plain(best);
        let sums = SumTrees::of(problem, &messages_of(&plain));
        let turned = TurnedSums::of(problem, &plain, &sums);
        Self { problem, context, best, plain, groups, sums, turned, begin }
    }

    /// The next window.
    fn draw(&self, kinds: &WindowKinds, random: &mut Pcg64Mcg) -> DrawnWindow {
        let (kind, size) = kinds.draw(random);
        match kind {
            WindowKind::Deliveries => {
                let own = size / 2 + random.next_u64() as usize % (size / 2 + 1);
                let turned = self.turned.as_ref().filter(|_| random.next_u64().is_multiple_of(2));
                let schedule = turned.map_or(&self.plain, |turned| &turned.schedule);
                let free = chosen(schedule, self.begin, own.min(schedule.transfers.len()), random);
                DrawnWindow::Deliveries { free, is_turned: turned.is_some(), seed: random.next_u64() }
            }
            WindowKind::Contents => {
                let links = self.problem.topology.links().len();
                DrawnWindow::Contents(chosen_groups(&self.plain, self.begin, self.groups, (size, links), random))
            }
        }
    }

    /// How late the chunks are together.
    fn lateness(&self, schedule: &Schedule) -> f64 {
        sum_over_chunks(schedule, |end| (end - self.begin).max(0.0))
    }

    /// Whether a schedule is faster, or as fast with no more that is late.
    fn is_no_worse(&self, found: &Schedule) -> bool {
        let is_no_later = || self.lateness(found) <= self.lateness(self.best) * (1.0 + EQUAL);
        beats(found.makespan(), self.best.makespan()) || found.makespan() <= self.best.makespan() && is_no_later()
    }

    /// Whether a schedule is faster, or as fast with less that is late, or with as little that is late and earlier arrivals.
    fn is_better(&self, found: &Schedule) -> bool {
        let best = self.best;
        let is_less = |new: f64, old: f64| new < old * (1.0 - EQUAL);
        let is_earlier = || is_less(self.lateness(found), self.lateness(best));
        let comes_earlier = || is_less(sum_over_chunks(found, |end| end), sum_over_chunks(best, |end| end));
        beats(found.makespan(), best.makespan()) || self.is_no_worse(found) && (is_earlier() || comes_earlier())
    }

    fn solve(&self, window: &DrawnWindow) -> Result<SolvedWindow, SynthError> {
        let Self { problem, ref plain, begin, groups, ref sums, .. } = *self;
        let kind = window.kind();
        let too_large = Ok(SolvedWindow { found: None, end: WindowEnd::TooLarge });
        match window {
            DrawnWindow::Deliveries { free, is_turned, seed } => {
                let turned = self.turned.as_ref().filter(|_| *is_turned);
                let (problem, plain) = turned.map_or((problem, plain), |turned| (&turned.problem, &turned.schedule));
                let window = FreedWindow::new(problem, plain, sums, free, begin, *seed);
                let Some(window) = window else { return too_large };
                let (model, start) = (&window.model, window.start());
                self.solved(kind, (model, &start), turned.is_some(), |solution| {
                    let messages = window.messages(solution);
                    turned.map_or(Some(messages.clone()), |turned| turned.back(&messages))
                })
            }
            DrawnWindow::Contents(free) => {
                let window = ContentsWindow::new(problem, plain, (groups, sums), free, begin);
                let Some(window) = window else { return too_large };
                self.solved(kind, (&window.model, &window.start()), false, |solution| window.messages(solution))
            }
        }
    }

    /// Solves a model from a start, and looks whether the messages of its solution are no slower.
    fn solved(
        &self,
        kind: WindowKind,
        (model, start): (&Model, &[(Column, f64)]),
        is_turned: bool,
        messages: impl Fn(&Solution) -> Option<Vec<Message>>,
    ) -> Result<SolvedWindow, SynthError> {
        let Self { problem, context, .. } = *self;
        let iterations = context.options.limits.solver_iterations / kind.part();
        let controls = Controls {
            nodes: NODES,
            relative_gap: EQUAL,
            has_inner_models: kind == WindowKind::Contents,
            ..Controls::within(iterations, context.deadline)
        };
        let (solution, end) = match solve(model, start, &controls, &mut |_| {})?.ending {
            Ending::Optimal(solution) => (Some(solution), WindowEnd::Proven),
            Ending::Limit { incumbent, .. } => (incumbent, WindowEnd::Limited),
            Ending::Infeasible | Ending::Unbounded => (None, WindowEnd::Proven),
        };
        let found = solution.and_then(|solution| messages(&solution)).and_then(|messages| played(problem, &messages));
        // Where the schedule is turned around, what is late is something else.
        let is_as_fast = |found: &Schedule| is_turned && found.makespan() <= self.best.makespan();
        let is_right = |found: &Schedule| {
            let adds_up = || {
                let sums = SumTrees::of(problem, &messages_of(&plain(found)));
                sums.has_all(problem) && verify(found.clone(), &problem.topology).is_ok()
            };
            obey(found, &problem.topology, &problem.constraints).is_empty() && (!problem.demand.has_sums() || adds_up())
        };
        let found = found.filter(|found| (self.is_no_worse(found) || is_as_fast(found)) && is_right(found));
        Ok(SolvedWindow { found, end })
    }
}

/// The schedule of messages, without deliveries that nobody needs; `None` if it has no order.
fn played(problem: &Problem, messages: &[Message]) -> Option<Schedule> {
    let (topology, demand) = (&problem.topology, &problem.demand);
    let messages = without_idle_copies(messages, topology, demand);
    let transfers = ordering::played(problem, &messages, may_exchange(problem, &messages)).ok()?;
    Some(Schedule::new(topology, demand.clone(), transfers, NAME))
}

/// A schedule whose sums go along trees: of two messages that exchange parts, the second one copies.
fn plain(schedule: &Schedule) -> Schedule {
    Schedule { transfers: without_exchanges(&schedule.transfers), ..schedule.clone() }
}

fn messages_of(schedule: &Schedule) -> Vec<Message> {
    schedule.transfers.iter().map(Message::from).collect()
}

/// The sum over all chunks of all messages of something that depends on their arrival.
fn sum_over_chunks(schedule: &Schedule, of: impl Fn(f64) -> f64) -> f64 {
    schedule.transfers.iter().map(|transfer| of(transfer.end.0) * transfer.chunks.len() as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::planner::synthesize;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Candidate, Deadline, Limits, SearchOptions, StrategyKind};
    use crate::strategies::Strategy;
    use crate::strategies::classic::Classic;
    use crate::strategies::milp::Milp;
    use crate::strategies::reversal;
    use schedule::{ChunkId, Collective, Demand, Message, Request, TransferKind};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Topology, TopologyParts, resolve};

    /// The worst textbook algorithm, of sums one along trees.
    fn poor(problem: &Problem) -> Schedule {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::of_test(&options, &deadline, Micros::ZERO);
        let attempts = reversal::propose(problem, &context, &Classic).expect("textbook algorithms").into_iter();
        let all = attempts.filter_map(|attempt| attempt.schedule).filter(|schedule| can_free(problem, schedule));
        plain(&all.max_by(|a, b| a.makespan().total_cmp(&b.makespan())).expect("at least one"))
    }

    /// Looks whether a schedule is a solution of the window that frees `free`.
    fn solves_window_of_deliveries(problem: &Problem, schedule: &Schedule, free: &BTreeSet<usize>, seed: u64) -> bool {
        let schedule = plain(schedule);
        let sums = SumTrees::of(problem, &messages_of(&schedule));
        let Some(window) = FreedWindow::new(problem, &schedule, &sums, free, 0.0, seed) else { return false };
        // With its routes and orders as they are, the model has a solution no later than the schedule.
        let mut fixed = window.model.clone();
        let orders = window.whole_columns();
        for (column, value) in window.start().into_iter().filter(|(column, _)| orders.contains(column)) {
            assert!(value == 0.0 || value == 1.0);
            fixed.fix(column, value);
        }
        let Ending::Optimal(solution) = crate::solver::solved(&fixed, &[]) else {
            panic!("seed {seed}: the schedule is no solution")
        };
        let found = played(problem, &window.messages(&solution)).expect("an order");
        assert!(found.makespan().0 <= schedule.makespan().0 * (1.0 + 1e-6), "seed {seed}");
        verify(found, &problem.topology).expect("a right schedule");
        true
    }

    #[test]
    fn the_schedule_itself_solves_each_of_its_windows() {
        let mut solved = 0;
        for seed in 0..6 {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Scatter, Collective::AllReduce]
            {
                let problem = asked(random_machine(seed), collective, 6_000);
                let schedule = poor(&problem);
                let mut random = Pcg64Mcg::seed_from_u64(seed);
                let free = chosen(&schedule, 0.0, 6.min(schedule.transfers.len()), &mut random);
                solved += usize::from(solves_window_of_deliveries(&problem, &schedule, &free, seed));
                let turned = TurnedSums::of(&problem, &schedule, &SumTrees::of(&problem, &messages_of(&schedule)));
                assert_eq!(turned.is_some(), collective == Collective::AllReduce);
                if let Some(turned) = turned {
                    let free = chosen(&turned.schedule, 0.0, 6, &mut random);
                    solved += usize::from(solves_window_of_deliveries(&turned.problem, &turned.schedule, &free, seed));
                }
            }
        }
        assert!(solved >= 24, "only {solved} windows");
    }

    #[test]
    fn sums_that_are_turned_around_twice_are_as_before() {
        for seed in 0..6 {
            let problem = asked(random_machine(seed), Collective::AllReduce, 6_000);
            let schedule = poor(&problem);
            let turned =
                TurnedSums::of(&problem, &schedule, &SumTrees::of(&problem, &messages_of(&schedule))).expect("trees");
            let messages = messages_of(&turned.schedule);
            let exchanging = played(&turned.problem, &messages).expect("an order");
            verify(exchanging, &turned.problem.topology).expect("a right schedule");
            let back = played(&problem, &turned.back(&messages).expect("an order")).expect("an order");
            let all = |schedule: &Schedule| {
                let of = |transfer: &schedule::Transfer| (transfer.link, transfer.chunks.to_vec());
                schedule.transfers.iter().map(of).collect::<BTreeSet<_>>()
            };
            assert_eq!(all(&back), all(&schedule));
            verify(back, &problem.topology).expect("a right schedule");
        }
    }

    #[test]
    fn sums_of_some_ranks_stay_right_where_others_could_relay_them() {
        for (spec, members) in [("mesh2d:3x3", 0..8), ("torus2d:3x3", 0..7), ("hypercube:3", 0..6)] {
            let topology = Arc::new(resolve(spec).expect("a family"));
            let members = members.map(Rank).collect();
            let request = Request { members, ..Request::new(Collective::AllReduce, topology.rank_count(), 64_000) };
            let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
            let options = SearchOptions { strategy: Some(StrategyKind::Milp), ..SearchOptions::default() };
            let time_limit = Some(Duration::from_secs(4));
            let options = SearchOptions { time_limit, ..options };
            let started = Instant::now();
            let found = synthesize(std::slice::from_ref(&problem), &options, &|_| {}).expect("a plan");
            let failed = |it: &&Candidate| it.note.as_deref().is_some_and(|note| note.contains("impossible"));
            assert!(found.report.candidates.iter().find(failed).is_none(), "{spec}: {:?}", found.report.candidates);
            let is_done = found.report.gap.is_some_and(|gap| gap < 1e-3);
            assert!(is_done || started.elapsed().as_secs_f64() > 3.6, "{spec}: {:?}", started.elapsed());
        }
    }

    #[test]
    fn windows_of_sums_move_their_roots_and_make_them_faster() {
        let (mut faster, mut moved) = (0, 0);
        for seed in 0..4 {
            let problem = asked(random_machine(seed), Collective::AllReduce, 6_000);
            let schedule = poor(&problem);
            let (options, deadline) = (SearchOptions::default(), Deadline::default());
            let context = Context::of_test(&options, &deadline, Micros::ZERO);
            let Some(found) = improved(&problem, &schedule, &context, 6).expect("HiGHS works").0 else { continue };
            verify(found.clone(), &problem.topology).expect("a right schedule");
            faster += usize::from(beats(found.makespan(), schedule.makespan()));
            let roots = |schedule: &Schedule| {
                let sums = SumTrees::of(&problem, &messages_of(&plain(schedule)));
                problem.demand.chunk_ids().map(|chunk| sums.collector(chunk)).collect::<Vec<_>>()
            };
            moved += usize::from(roots(&found) != roots(&schedule));
        }
        assert!(faster >= 2 && moved >= 1, "{faster} faster, {moved} with other roots");
    }

    /// Whether a schedule is a solution of a window of contents, if the model is not too large.
    fn solves_its_window(problem: &Problem, schedule: &Schedule, free: &FreeContents) -> bool {
        let (groups, sums) = (ChunkGroups::new(problem), SumTrees::of(problem, &messages_of(schedule)));
        let Some(window) = ContentsWindow::new(problem, schedule, (&groups, &sums), free, 0.0) else { return false };
        let mut fixed = window.model.clone();
        window.start().into_iter().for_each(|(column, value)| fixed.fix(column, value));
        let Ending::Optimal(solution) = crate::solver::solved(&fixed, &[]) else {
            panic!("the schedule is no solution, {} messages added", free.added)
        };
        let messages = window.messages(&solution).expect("ways for all chunks");
        let found = played(problem, &messages).expect("an order");
        assert!(found.makespan().0 <= schedule.makespan().0 * (1.0 + 1e-6));
        verify(found, &problem.topology).expect("a right schedule");
        true
    }

    #[test]
    fn the_schedule_itself_solves_each_window_of_contents() {
        let mut solved = 0;
        for seed in 0..6 {
            for collective in [
                Collective::AllGather,
                Collective::AllToAll,
                Collective::Scatter,
                Collective::Broadcast,
                Collective::AllReduce,
            ] {
                let problem = asked(random_machine(seed), collective, 6_000);
                let schedule = poor(&problem);
                let groups = ChunkGroups::new(&problem);
                let mut random = Pcg64Mcg::seed_from_u64(seed);
                for size in 1..=groups.all.len() + 1 {
                    let links = problem.topology.links().len();
                    let free = chosen_groups(&schedule, 0.0, &groups, (size, links), &mut random);
                    solved += usize::from(solves_its_window(&problem, &schedule, &free));
                }
            }
        }
        assert!(solved >= 60, "only {solved} windows");
    }

    #[test]
    fn the_schedule_stays_a_solution_where_messages_are_added_behind_ports_and_on_links_that_pipeline() {
        let mut solved = 0;
        for spec in ["fat-tree:2x3", "dgx2x1", "ndv2x2"] {
            let machine = resolve(spec).expect("a family");
            let mut parts = TopologyParts {
                ranks: machine.rank_count(),
                links: machine.links().to_vec(),
                resources: machine.resources().to_vec(),
                ..TopologyParts::default()
            };
            parts.links.iter_mut().for_each(|link| link.latency = Latency::Pipelines);
            let pipelined = Topology::new(parts).expect("a valid machine");
            for machine in [machine, pipelined] {
                for collective in [Collective::AllGather, Collective::AllToAll, Collective::AllReduce] {
                    let problem = asked(machine.clone(), collective, 64_000);
                    let schedule = poor(&problem);
                    let groups = ChunkGroups::new(&problem);
                    let margin = schedule.makespan().0 * 0.02;
                    for seed in 0..3 {
                        let groups = (0..groups.all.len().min(2)).collect();
                        let free = FreeContents { groups, margin, added: 30, seed };
                        solved += usize::from(solves_its_window(&problem, &schedule, &free));
                    }
                }
            }
        }
        assert!(solved >= 18, "only {solved} windows");
    }

    #[test]
    fn chunks_of_different_sizes_are_no_group() {
        let matrix = [vec![0, 10, 20], vec![30, 0, 30], vec![5, 5, 0]];
        let demand =
            Arc::new(Demand::from_matrix(Request::new(Collective::AllToAllV, 3, 100), &matrix).expect("sizes"));
        let problem = Problem::new(Arc::new(resolve("ring:3").expect("a family")), demand);
        let schedule = poor(&problem);
        let groups = ChunkGroups::new(&problem);
        assert_eq!(groups.all.len(), 4, "only ranks 1 and 2 send chunks that are alike");
        let free = FreeContents { groups: (0..4).collect(), margin: schedule.makespan().0, added: 6, seed: 1 };
        assert!(solves_its_window(&problem, &schedule, &free));
    }

    /// Solves windows of contents only, each from the schedule itself, and counts those that make it faster.
    #[test]
    fn other_contents_of_the_same_messages_make_poor_schedules_faster() {
        let deadline = Deadline::default();
        let mut faster = 0;
        for seed in 0..4 {
            let problem = asked(random_machine(seed), Collective::AllToAll, 6_000);
            let schedule = poor(&problem);
            let groups = ChunkGroups::new(&problem);
            assert_eq!(groups.all.len(), problem.topology.rank_count(), "the chunks of a rank are one group");
            let options = SearchOptions::default();
            let context = Context::of_test(&options, &deadline, Micros::ZERO);
            let searching = WindowSearch::of(&problem, &context, &schedule, &groups);
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            for size in [2, 4] {
                let links = problem.topology.links().len();
                let free = chosen_groups(&schedule, 0.0, &groups, (size, links), &mut random);
                let found = searching.solve(&DrawnWindow::Contents(free)).expect("HiGHS works").found;
                if let Some(found) = found.filter(|found| beats(found.makespan(), schedule.makespan())) {
                    verify(found, &problem.topology).expect("a right schedule");
                    faster += 1;
                }
            }
        }
        assert!(faster >= 2, "only {faster} of 8 windows made a schedule faster");
    }

    #[test]
    fn poor_schedules_get_better_and_stay_right() {
        let mut better = 0;
        for seed in 0..3 {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Broadcast] {
                let problem = asked(random_machine(seed), collective, 6_000);
                let schedule = poor(&problem);
                let limits = Limits { solver_iterations: 8_000, solver_calls: 3, ..Limits::default() };
                let (options, deadline) = (SearchOptions { limits, ..SearchOptions::default() }, Deadline::default());
                let context = Context::of_test(&options, &deadline, bounds(&problem, &deadline).best().value);
                let (found, _) = improved(&problem, &schedule, &context, 12).expect("HiGHS works");
                if let Some(found) = found.filter(|found| found.makespan() < schedule.makespan()) {
                    assert!(found.makespan().0 >= context.bound.0 * (1.0 - 1e-9));
                    verify(found, &problem.topology).expect("a right schedule");
                    better += 1;
                }
            }
        }
        assert!(better >= 1, "only {better} of 9 textbook schedules got better");
    }

    /// The schedule of messages of single chunks over these links, and what windows make of it.
    fn from_single_chunks(
        links: &[(u32, u32, f64, f64)],
        ranks: usize,
        request: Request,
        messages: &[(u32, usize)],
    ) -> (Schedule, Schedule) {
        let link = |&(from, to, alpha, beta): &(u32, u32, f64, f64)| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(alpha),
            beta: MicrosPerByte(beta),
            latency: Latency::Occupies,
            resources: topology::ResourceIds::default(),
        };
        let parts = TopologyParts { ranks, links: links.iter().map(link).collect(), ..TopologyParts::default() };
        let topology = Arc::new(Topology::new(parts).expect("a valid machine"));
        let demand = Arc::new(Demand::new(request).expect("a valid request"));
        let problem = Problem::new(topology.clone(), demand.clone());
        let message = |&(chunk, link): &(u32, usize)| Message {
            chunks: [ChunkId(chunk)].into_iter().collect(),
            link: LinkId::from_index(link),
            kind: TransferKind::Copy,
        };
        let messages: Vec<Message> = messages.iter().map(message).collect();
        let schedule = played(&problem, &messages).expect("an order");
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::of_test(&options, &deadline, Micros::ZERO);
        let found = improved(&problem, &schedule, &context, 12).expect("HiGHS works").0.expect("a better schedule");
        verify(found.clone(), &topology).expect("a right schedule");
        (schedule, found)
    }

    #[test]
    fn chunks_join_one_message_where_each_message_costs_much() {
        let request = Request::new(Collective::Broadcast, 2, 4000).with_chunks(4);
        let messages = [(0, 0), (1, 0), (2, 0), (3, 0)];
        let (before, after) = from_single_chunks(&[(0, 1, 10.0, 0.001), (1, 0, 10.0, 0.001)], 2, request, &messages);
        assert!((before.makespan().0 - 44.0).abs() < 1e-9, "{}", before.makespan());
        assert!((after.makespan().0 - 14.0).abs() < 1e-6, "{}", after.makespan());
        assert_eq!(after.transfers.len(), 1);
    }

    #[test]
    fn a_rank_that_lacked_a_chunk_relays_it_where_the_direct_link_is_slow() {
        let request = Request::new(Collective::Scatter, 3, 3000);
        // From rank 0: directly to rank 2 in 11 µs, over rank 1 in 4 µs.
        let links = [(0, 1, 1.0, 0.001), (1, 2, 1.0, 0.001), (0, 2, 1.0, 0.01), (2, 0, 1.0, 0.001)];
        let (before, after) = from_single_chunks(&links, 3, request, &[(1, 0), (2, 2)]);
        assert!((before.makespan().0 - 11.0).abs() < 1e-9, "{}", before.makespan());
        assert!(after.makespan().0 <= 5.0 + 1e-6, "{}", after.makespan());
    }

    #[test]
    fn the_strategy_alone_always_has_a_schedule_of_its_own() {
        // So little work that neither formulation finds anything.
        let limits = Limits { restarts: 2, solver_iterations: 1, solver_calls: 1 };
        let options = SearchOptions { limits, ..SearchOptions::default() };
        let deadline = Deadline::default();
        for spec in ["mesh2d:3x4", "fat-tree:2x4", "ndv2x2"] {
            let problem = asked(resolve(spec).expect("a family"), Collective::AllGather, 1_000_000);
            let context = Context::of_test(&options, &deadline, bounds(&problem, &deadline).best().value);
            let attempts = Milp.propose(&problem, &context).expect("an answer");
            let schedules: Vec<Schedule> = attempts.into_iter().filter_map(|attempt| attempt.schedule).collect();
            assert!(!schedules.is_empty(), "{spec}");
            schedules.into_iter().for_each(|schedule| {
                verify(schedule, &problem.topology).expect("a right schedule");
            });
        }
    }
}
