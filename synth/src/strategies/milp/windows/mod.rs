//! Windows of a schedule, solved in exact time one after the other.
//!
//! The principal function is [`improved`]. It frees a few messages of the best schedule so far, those that decide the
//! makespan at some time and their neighbours, and lets HiGHS find better routes and a better order for them
//! ([`model`]). The schedule is a solution of every window, so that the result is never worse. A window that is solved
//! without a gain is followed by a larger one, and one that a limit left open by a smaller one.

mod model;

use super::is_better;
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::beats;
use crate::problem::{Problem, SynthError};
use crate::sketch::obey;
use crate::solver::{Controls, Ending, solve};
use crate::strategies::Context;
use model::FreedWindow;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use schedule::{Schedule, Transfer, replay};
use std::collections::BTreeSet;
use topology::Micros;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-windows";

/// The most messages of a schedule: all of them are in every model.
const MOST_MESSAGES: usize = 1500;
/// The messages that a window frees: at first, at least and at most.
const FREE: usize = 10;
const LEAST: usize = 4;
const MOST: usize = 40;
/// Windows in a row without a gain, after which the search ends.
const PATIENCE: u32 = 12;
/// The part of the iterations of a solve that one window may take.
const WINDOW_PART: u64 = 4;
/// The nodes of the search tree of one window.
const NODES: u64 = 1_000;

/// A better schedule than `schedule`, if windows find one, and how many windows were solved.
///
/// # Errors
/// Failures of the solver.
pub(super) fn improved(
    problem: &Problem,
    schedule: &Schedule,
    context: &Context<'_>,
) -> Result<(Option<Schedule>, u32), SynthError> {
    let is_plain = !problem.constraints.exceeds(&RuleKind::OF_WAYS) && !problem.demand.has_sums();
    if !is_plain || schedule.transfers.len() > MOST_MESSAGES {
        return Ok((None, 0));
    }
    let limits = context.options.limits;
    let mut random = Pcg64Mcg::seed_from_u64(context.options.seed ^ 0x57_1D_0D);
    let (mut best, mut gained) = (schedule.clone(), false);
    let (mut size, mut stale, mut solved) = (FREE, 0, 0);
    while stale < PATIENCE && solved < limits.solver_calls * 4 && !context.deadline.has_passed() {
        if context.is_enough(best.makespan()) {
            break;
        }
        let free = chosen(&best, size.min(best.transfers.len()), &mut random);
        let Some(window) = FreedWindow::new(problem, &best, &free) else {
            (size, stale) = ((size / 2).max(LEAST), stale + 1);
            continue;
        };
        let controls = Controls {
            iterations: limits.solver_iterations / WINDOW_PART,
            nodes: NODES,
            relative_gap: 1e-6,
            cutoff: None,
            seed: random.next_u64() >> 33,
            deadline: context.deadline,
        };
        solved += 1;
        let outcome = solve(&window.model, &window.start(), &controls, &mut |_| {})?;
        let (solution, is_proven) = match outcome.ending {
            Ending::Optimal(solution) => (Some(solution), true),
            Ending::Limit { incumbent, .. } => (incumbent, false),
            Ending::Infeasible | Ending::Unbounded => (None, true),
        };
        let played = solution.and_then(|it| replay(&problem.demand, &problem.topology, &window.messages(&it)).ok());
        let found = played.map(|it| Schedule::new(&problem.topology, problem.demand.clone(), it, NAME));
        let obeys = |found: &Schedule| obey(found, &problem.topology, &problem.constraints).is_empty();
        match found.filter(|found| is_better(found, &best, |_| 1.0) && obeys(found)) {
            Some(found) => {
                stale = if beats(found.makespan(), best.makespan()) { 0 } else { stale + 1 };
                gained |= beats(found.makespan(), schedule.makespan());
                best = found;
            }
            None => stale += 1,
        }
        size = if is_proven { (size + 2).min(MOST) } else { (size * 3 / 4).max(LEAST) };
    }
    Ok((gained.then_some(best), solved))
}

/// About `size` messages to free: one that ends late, and others near it in time, at its ranks first.
fn chosen(schedule: &Schedule, size: usize, random: &mut Pcg64Mcg) -> BTreeSet<usize> {
    let transfers = &schedule.transfers;
    let mut late: Vec<usize> = (0..transfers.len()).collect();
    late.sort_by(|&a, &b| transfers[b].end.total_cmp(&transfers[a].end).then(a.cmp(&b)));
    // From one of the last messages, go back a random number of steps along what made it late.
    let mut pivot = late[random.next_u64() as usize % (late.len() / 4).clamp(1, 8)];
    for _ in 0..random.next_u64() % 6 {
        let waited_for = |it: &&usize| {
            let (other, own) = (&transfers[**it], &transfers[pivot]);
            let touches = other.to == own.from || other.from == own.from || other.to == own.to;
            touches && other.start < own.start
        };
        let Some(&before) = late.iter().find(waited_for) else { break };
        pivot = before;
    }
    let near = |index: usize| {
        let (other, own): (&Transfer, &Transfer) = (&transfers[index], &transfers[pivot]);
        let shared = [own.from, own.to].iter().filter(|&&rank| other.from == rank || other.to == rank).count();
        let apart = Micros((other.start.0 - own.start.0).abs());
        let blur = 1.0 + (random_unit(index, pivot) - 0.5) * 0.5;
        apart.0 * blur + schedule.makespan().0 * 0.25 * (2 - shared) as f64
    };
    let mut order: Vec<usize> = (0..transfers.len()).collect();
    order.sort_by(|&a, &b| near(a).total_cmp(&near(b)).then(a.cmp(&b)));
    order.into_iter().take(size).collect()
}

/// A number from 0 to 1 that differs from pair to pair.
fn random_unit(one: usize, other: usize) -> f64 {
    let mixed = (one as u64 * 0x9E37_79B9 + other as u64).wrapping_mul(0xD1B5_4A32_D192_ED03);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
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
    use schedule::{Collective, verify};
    use topology::resolve;

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
                let free = chosen(&schedule, 6.min(schedule.transfers.len()), &mut random);
                let Some(window) = FreedWindow::new(&problem, &schedule, &free) else { continue };
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
                let (found, _) = improved(&problem, &schedule, &context).expect("HiGHS works");
                if let Some(found) = found {
                    assert!(found.makespan() < schedule.makespan());
                    assert!(found.makespan().0 >= context.bound.0 * (1.0 - 1e-9));
                    verify(found, &problem.topology).expect("a right schedule");
                    better += 1;
                }
            }
        }
        assert!(better >= 1, "only {better} of 9 textbook schedules got better");
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
