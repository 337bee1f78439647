//! Columns of trees: which of many trees each chunk takes.
//!
//! The principal function is [`attempt`]. A pool begins with packed trees ([`trees`](crate::strategies::trees)) and grows: the linear
//! program over the pool ([`master`]) prices links, resources and late arrivals, and trees that are cheap at these prices join, until
//! it gets no better. Then HiGHS chooses a whole number of trees for each kind of chunk, such that neither the busiest link
//! nor the highest tree takes long, and the chosen trees are scheduled. For chunks with one destination trees are paths, and the
//! linear program is that of a multicommodity flow.

mod master;
mod pool;

use crate::problem::constraints::RuleKind;
use crate::problem::{Problem, StopReason, SynthError};
use crate::solver::{Controls, Ending, prices, solve};
use crate::strategies::trees::choice::{ChunkTree, TreeChoice, TreePrices};
use crate::strategies::{Attempt, Context};
use master::ColumnMaster;
use pool::TreePool;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use schedule::Schedule;

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-columns";

/// The loads (relative to the target) up to which packed trees use links freely.
const STYLES: [f64; 3] = [1.1, 0.9, 0.6];
/// The most trees of the pool, and the most rounds of pricing.
const MOST_COLUMNS: usize = 20_000;
const ROUNDS: usize = 60;
/// After so many rounds in which the linear program did not get better, pricing ends.
const PATIENCE: usize = 8;
/// What is better by less (relative) is as good.
const EQUAL: f64 = 1e-6;
/// Prices of late arrivals that are tried in turn: parts of the price of a tree's height, and of the prices of all links.
const LATENESS: [(f64, f64); 4] = [(1.0, 0.0), (0.3, 0.02), (0.1, 0.2), (0.03, 0.0)];
/// How much the mean height of trees counts beside the end, in the models that are solved one after the other.
const HEIGHTS: [f64; 3] = [0.02, 0.2, 1.0];
/// The parts of the iterations of a call for each linear program and for each model, and the nodes of a model.
const LINEAR_PART: u64 = 8;
const WHOLE_PART: u64 = 2;
const NODES: u64 = 2000;
/// A model is solved up to this relative gap: the schedule decides between what is closer.
const CLOSE: f64 = 1e-3;

/// The best schedule of trees that the models choose.
///
/// # Errors
/// [`SynthError::NotApplicable`] where trees cannot be chosen freely, and failures of the solver.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let refused = |why: &str| Err(SynthError::NotApplicable { strategy: NAME, why: why.to_owned() });
    if !context.is_alone {
        return refused("among others, trees and flow choose as well and more quickly");
    }
    if problem.constraints.exceeds(&RuleKind::OF_WAYS) {
        return refused("the sketch rules more than the links and ways of chunks");
    }
    let choice = TreeChoice::new(problem);
    let mut random = Pcg64Mcg::seed_from_u64(context.options.seed ^ 0xC0_1A_35);
    let Some(mut pool) = TreePool::packed(&choice, &STYLES, context, &mut random) else {
        return refused("no tree reaches everybody who wants a chunk");
    };
    if pool.trees() > MOST_COLUMNS {
        return refused("its models would have too many columns");
    }
    // Trees that are as low as they can be.
    let lowest = TreePrices { slots: vec![0.0; choice.slots()], lateness: vec![1.0; pool.classes.len()] };
    if let Some(trees) = choice.cheapest(pool.firsts(), lowest, &mut random) {
        pool.add(trees);
    }
    let rounds = price(&choice, &mut pool, context, &mut random)?;
    let mut best: Option<Schedule> = None;
    for weight in HEIGHTS {
        if best.is_some() && context.deadline.has_passed() {
            break;
        }
        let trees = chosen(&pool, weight, context)?;
        let found = choice.schedule(trees, context, NAME, &mut random);
        best = [best, found].into_iter().flatten().min_by(|a, b| a.makespan().total_cmp(&b.makespan()));
    }
    let stop = match () {
        () if best.as_ref().is_some_and(|best| context.is_enough(best.makespan())) => StopReason::Optimal,
        () if context.deadline.has_passed() => StopReason::TimeLimit,
        () => StopReason::Done,
    };
    let note = Some(format!("{} trees after {rounds} rounds of pricing", pool.trees()));
    Ok(Attempt { name: NAME.to_owned(), schedule: best, stop, note })
}

/// Adds trees that are cheap at the prices of the linear program; the number of rounds.
fn price(
    choice: &TreeChoice<'_>,
    pool: &mut TreePool<'_>,
    context: &Context<'_>,
    random: &mut Pcg64Mcg,
) -> Result<usize, SynthError> {
    let (mut stale, mut lowest) = (0, f64::INFINITY);
    for round in 0..ROUNDS {
        if stale == PATIENCE || pool.trees() > MOST_COLUMNS || context.deadline.has_passed() {
            return Ok(round);
        }
        let master = ColumnMaster::new(pool, 0.0);
        let Some((solution, duals)) = prices(&master.model, &controls(context, LINEAR_PART))? else {
            return Ok(round);
        };
        stale = if solution.objective < lowest * (1.0 - EQUAL) { 0 } else { stale + 1 };
        lowest = lowest.min(solution.objective);
        let (slots, heights) = master.prices(&duals);
        let (own, of_all) = LATENESS[round % LATENESS.len()];
        let all = of_all * slots.iter().sum::<f64>();
        let lateness = heights.iter().map(|height| own * height + all).collect();
        let Some(trees) = choice.cheapest(pool.firsts(), TreePrices { slots, lateness }, random) else {
            return Ok(round);
        };
        pool.add(trees);
    }
    Ok(ROUNDS)
}

/// A tree of the pool for each unit.
fn chosen(pool: &TreePool<'_>, weight: f64, context: &Context<'_>) -> Result<Vec<ChunkTree>, SynthError> {
    let master = ColumnMaster::new(pool, weight);
    let outcome = solve(&master.model, &master.start(), &controls(context, WHOLE_PART), &mut |_| {})?;
    let solution = match outcome.ending {
        Ending::Optimal(solution) => Some(solution),
        Ending::Limit { incumbent, .. } => incumbent,
        Ending::Infeasible | Ending::Unbounded => None,
    };
    // Without a solution the packed trees stay, which are the start.
    Ok(pool.trees_of(|class, tree| match &solution {
        Some(solution) => master.count(solution, class, tree),
        None => pool.packed_count(class, tree),
    }))
}

fn controls<'a>(context: &Context<'a>, part: u64) -> Controls<'a> {
    let iterations = context.options.limits.solver_iterations / part;
    Controls { nodes: NODES, relative_gap: CLOSE, ..Controls::within(iterations, context.deadline) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Deadline, SearchOptions};
    use schedule::{Collective, verify};
    use topology::Micros;

    /// The verified makespan of a problem, and its bound.
    fn makespan(problem: &Problem) -> (Micros, Micros) {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::of_test(&options, &deadline, bounds(problem, &deadline).best().value);
        let schedule = attempt(problem, &context).expect("HiGHS works").schedule.expect("a schedule");
        (verify(schedule, &problem.topology).expect("a right schedule").schedule().makespan(), context.bound)
    }

    #[test]
    fn trees_and_paths_are_chosen_on_machines_of_all_kinds() {
        let (mut ratios, mut count) = (0.0, 0);
        for seed in 0..8 {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Broadcast, Collective::Scatter]
            {
                let (found, bound) = makespan(&asked(random_machine(seed), collective, 60_000));
                assert!(found.0 >= bound.0 * (1.0 - 1e-9), "{collective} {seed}: {found} below {bound}");
                ratios += found / bound;
                count += 1;
            }
        }
        let mean = ratios / f64::from(count);
        assert!(mean < 1.25, "{mean} times the bounds");
    }

    #[test]
    fn what_one_link_cannot_carry_in_time_is_spread_over_two_ways() {
        // Rank 0 has four chunks for rank 2: a direct link, and a way over rank 1 that is as fast.
        let machine = topology::resolve("clique:3,alpha=0us,bandwidth=1GBps").expect("a family");
        let mut problem = asked(machine, Collective::SendRecv, 4_000);
        let mut request = schedule::Request::new(Collective::SendRecv, 3, 4_000).with_chunks(4);
        request.members = [topology::Rank(0), topology::Rank(2)].into_iter().collect();
        problem.demand = std::sync::Arc::new(schedule::Demand::new(request).expect("a valid request"));
        // Two chunks go directly, and two over rank 1, where the second one waits for the first.
        let (found, _) = makespan(&problem);
        assert!((found.0 - 3.0).abs() < 1e-6, "{found}");
    }
}
