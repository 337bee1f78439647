//! Windows of a schedule, solved in exact time.
//!
//! The principal function is [`attempt`]. It frees a few messages of the best schedule so far, those that decide the
//! makespan at some time and their neighbours ([`choice`]), and lets HiGHS find better routes, messages and turns for what they
//! deliver ([`deliveries`], [`model`]). Where all cannot arrive earlier, fewer deliveries are late, so that later windows have
//! fewer to free. The schedule is a solution of every window, so that the result is never worse. Windows grow while they are solved
//! to the end, and shrink where a limit left them open.

mod choice;
mod deliveries;
mod model;
mod places;
mod turns;

use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::beats;
use crate::problem::{Problem, StopReason, SynthError};
use crate::sketch::obey;
use crate::solver::{Controls, Ending, solve};
use crate::strategies::{Attempt, Context};
use choice::chosen;
use model::FreedWindow;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use schedule::{Schedule, replay};
use std::collections::BTreeSet;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-windows";

/// The most messages of a schedule: all of them are in every model.
const MOST_MESSAGES: usize = 1500;
/// The most deliveries that a window frees: at first, at least and at most. Each window frees about half of it to all.
const FREE: usize = 10;
const LEAST: usize = 6;
const MOST: usize = 60;
/// Windows that are solved at the same time, from the same schedule. Not the number of cores: the answer must not depend on it.
const SIDE_BY_SIDE: usize = 2;
/// The most windows for each call of the solver that the limits allow: windows are small.
const WINDOWS_PER_CALL: u32 = 12;
/// The part of the iterations of a call that one window may take, and its nodes of the search tree.
const WINDOW_PART: u64 = 12;
const NODES: u64 = 300;
/// What is better by less (relative) is as good.
const EQUAL: f64 = 1e-6;
/// What arrives in the last part of the time above the bound is late.
const LATE: f64 = 0.1;

/// Whether the models know all rules, and the schedule is small enough.
pub(super) fn can_free(problem: &Problem, schedule: &Schedule) -> bool {
    let is_plain = !problem.constraints.exceeds(&RuleKind::OF_WAYS) && !problem.demand.has_sums();
    is_plain && schedule.transfers.len() <= MOST_MESSAGES
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

/// A better schedule than `schedule` ([`WindowSearch::is_better`]), if windows find one, and how many windows were solved. The search ends after `patience`
/// times [`SIDE_BY_SIDE`] windows in a row without a gain.
///
/// # Errors
/// Failures of the solver.
fn improved(
    problem: &Problem,
    schedule: &Schedule,
    context: &Context<'_>,
    patience: u32,
) -> Result<(Option<Schedule>, u32), SynthError> {
    if !can_free(problem, schedule) {
        return Ok((None, 0));
    }
    let most = context.options.limits.solver_calls.saturating_mul(WINDOWS_PER_CALL);
    let mut random = Pcg64Mcg::seed_from_u64(context.options.seed ^ 0x57_1D_0D);
    let mut best = schedule.clone();
    let (mut size, mut stale, mut solved, mut is_other) = (FREE, 0, 0, false);
    while stale < patience && solved < most && !context.deadline.has_passed() && !context.is_enough(best.makespan()) {
        let searching = WindowSearch::of(problem, context, &best);
        let windows: Vec<FreeMessages> = (0..SIDE_BY_SIDE).map(|_| searching.draw(size, &mut random)).collect();
        let found = windows.par_iter().map(|window| searching.solve(window)).collect::<Result<Vec<_>, _>>()?;
        solved += SIDE_BY_SIDE as u32;
        let are_proven = found.iter().all(|found| found.is_proven);
        let better = found.into_iter().filter_map(|found| found.better);
        let next = better.min_by(|a, b| {
            a.makespan().total_cmp(&b.makespan()).then(searching.lateness(a).total_cmp(&searching.lateness(b)))
        });
        stale = if next.as_ref().is_some_and(|next| beats(next.makespan(), best.makespan())) { 0 } else { stale + 1 };
        is_other |= next.is_some();
        best = next.unwrap_or(best);
        size = if are_proven { (size + 1).min(MOST) } else { (size * 4 / 5).max(LEAST) };
    }
    Ok((is_other.then_some(best), solved))
}

/// The messages that one window frees, and the seed of its costs.
struct FreeMessages {
    free: BTreeSet<usize>,
    seed: u64,
}

/// One schedule whose windows are solved.
struct WindowSearch<'a> {
    problem: &'a Problem,
    context: &'a Context<'a>,
    best: &'a Schedule,
    /// From then on, what arrives is late.
    begin: f64,
}

/// What a window has found.
struct SolvedWindow {
    better: Option<Schedule>,
    is_proven: bool,
}

impl<'a> WindowSearch<'a> {
    fn of(problem: &'a Problem, context: &'a Context<'a>, best: &'a Schedule) -> Self {
        let makespan = best.makespan().0;
        let begin = makespan - LATE * (makespan - context.bound.0).max(0.0);
        Self { problem, context, best, begin }
    }

    /// A window of about `size` deliveries or fewer.
    fn draw(&self, size: usize, random: &mut Pcg64Mcg) -> FreeMessages {
        let own = size / 2 + random.next_u64() as usize % (size / 2 + 1);
        let free = chosen(self.best, self.begin, own.min(self.best.transfers.len()), random);
        FreeMessages { free, seed: random.next_u64() }
    }

    /// How late the chunks are together.
    fn lateness(&self, schedule: &Schedule) -> f64 {
        sum_over_chunks(schedule, |end| (end - self.begin).max(0.0))
    }

    /// Whether a schedule is faster, or as fast with less that is late, or with as little that is late and earlier arrivals.
    fn is_better(&self, found: &Schedule) -> bool {
        let best = self.best;
        let is_less = |new: f64, old: f64| new < old * (1.0 - EQUAL);
        let (late, late_now) = (self.lateness(found), self.lateness(best));
        let comes_earlier = || is_less(sum_over_chunks(found, |end| end), sum_over_chunks(best, |end| end));
        let is_earlier = || is_less(late, late_now) || late <= late_now * (1.0 + EQUAL) && comes_earlier();
        beats(found.makespan(), best.makespan()) || found.makespan() <= best.makespan() && is_earlier()
    }

    fn solve(&self, FreeMessages { free, seed }: &FreeMessages) -> Result<SolvedWindow, SynthError> {
        let Self { problem, context, best, begin } = *self;
        let Some(window) = FreedWindow::new(problem, best, free, begin, *seed) else {
            return Ok(SolvedWindow { better: None, is_proven: false });
        };
        let iterations = context.options.limits.solver_iterations / WINDOW_PART;
        let controls = Controls {
            iterations,
            nodes: NODES,
            relative_gap: EQUAL,
            cutoff: None,
            seed: 0,
            deadline: context.deadline,
        };
        let outcome = solve(&window.model, &window.start(), &controls, &mut |_| {})?;
        let (solution, is_proven) = match outcome.ending {
            Ending::Optimal(solution) => (Some(solution), true),
            Ending::Limit { incumbent, .. } => (incumbent, false),
            Ending::Infeasible | Ending::Unbounded => (None, true),
        };
        let played = solution.and_then(|it| replay(&problem.demand, &problem.topology, &window.messages(&it)).ok());
        let found = played.map(|it| Schedule::new(&problem.topology, problem.demand.clone(), it, NAME));
        let obeys = |found: &Schedule| obey(found, &problem.topology, &problem.constraints).is_empty();
        Ok(SolvedWindow { better: found.filter(|found| self.is_better(found) && obeys(found)), is_proven })
    }
}

/// The sum over all chunks of all messages of something that depends on their arrival.
fn sum_over_chunks(schedule: &Schedule, of: impl Fn(f64) -> f64) -> f64 {
    schedule.transfers.iter().map(|transfer| of(transfer.end.0) * transfer.chunks.len() as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Deadline, Limits, SearchOptions};
    use crate::strategies::Strategy;
    use crate::strategies::classic::Classic;
    use crate::strategies::milp::Milp;
    use schedule::{ChunkId, Collective, Demand, Message, Request, TransferKind, verify};
    use std::sync::Arc;
    use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Topology, TopologyParts, resolve};

    /// The worst textbook algorithm.
    fn poor(problem: &Problem) -> Schedule {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::of_test(&options, &deadline, Micros::ZERO);
        let attempts = Classic.propose(problem, &context).expect("textbook algorithms").into_iter();
        let all = attempts.filter_map(|attempt| attempt.schedule);
        all.max_by(|a, b| a.makespan().total_cmp(&b.makespan())).expect("at least one")
    }

    #[test]
    fn the_schedule_itself_solves_each_of_its_windows() {
        for seed in 0..6 {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Scatter] {
                let problem = asked(random_machine(seed), collective, 6_000);
                let schedule = poor(&problem);
                let mut random = Pcg64Mcg::seed_from_u64(seed);
                let free = chosen(&schedule, 0.0, 6.min(schedule.transfers.len()), &mut random);
                let Some(window) = FreedWindow::new(&problem, &schedule, &free, 0.0, seed) else {
                    continue;
                };
                // With its routes and orders as they are, the model has a solution no later than the schedule.
                let mut fixed = window.model.clone();
                let is_whole = |value: f64| value == 0.0 || value == 1.0;
                let orders = window.whole_columns();
                for (column, value) in window.start().into_iter().filter(|(column, _)| orders.contains(column)) {
                    assert!(is_whole(value));
                    fixed.fix(column, value);
                }
                let Ending::Optimal(solution) = crate::solver::solved(&fixed, &[]) else {
                    panic!("{collective} {seed}: the schedule is no solution")
                };
                let played = replay(&problem.demand, &problem.topology, &window.messages(&solution)).expect("an order");
                let played = Schedule::new(&problem.topology, problem.demand.clone(), played, NAME);
                assert!(played.makespan().0 <= schedule.makespan().0 * (1.0 + 1e-6), "{collective} {seed}");
            }
        }
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
            resources: Box::default(),
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
        let transfers = replay(&demand, &topology, &messages).expect("an order");
        let schedule = Schedule::new(&topology, demand, transfers, "by hand");
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
