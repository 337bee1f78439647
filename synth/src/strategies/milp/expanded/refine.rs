//! Improvement near the best schedule: free a part of it, keep the rest nearly as it is, solve, repeat.
//!
//! The principal function is [`improve`]. A fine grid over the whole problem has too many columns, but most of a good
//! schedule is right. Each round keeps every transfer on its link within a few epochs of its time, and frees either the
//! end of the schedule or some chunks. It minimises the arrivals in the last epoch of the schedule. The schedule itself
//! is a solution, from which HiGHS starts. Exact timing judges the result, so a round that is better on the grid only
//! changes nothing.

use super::grid::Grid;
use super::search::{HorizonSearch, ModelScope};
use crate::epochs::routes::{Leeway, Routes};
use crate::problem::SynthError;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use schedule::{ChunkId, Schedule};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use topology::LinkId;

/// What a round frees, reduced until its model is small enough.
#[derive(Clone, Debug)]
enum Freed {
    /// Everything that departs in the last part of the schedule; the value is the fraction.
    Ending(f64),
    /// These chunks, during the whole schedule.
    Chunks(Vec<ChunkId>),
}

/// The search ends after this many failures in a row for each grid.
const PATIENCE: usize = 4;
/// The most columns of a round's model, so that it is solved quickly.
const MAX_COLUMNS: usize = 5_000;
/// The most chunks that a round frees, besides the one that arrives last.
const OTHERS: usize = 7;

/// Improves the best schedule until the bound, the limits, or too many failures in a row.
pub(super) fn improve(search: &mut HorizonSearch<'_>, grids: &[Grid]) -> Result<(), SynthError> {
    let mut random = Pcg64Mcg::seed_from_u64(search.seed());
    let mut failures = 0;
    while failures < PATIENCE * grids.len() && !search.is_over() {
        let Some(schedule) = search.best_schedule() else { return Ok(()) };
        let grid = grids[failures % grids.len()];
        // With little slack, more can be freed.
        let (freed, slack) = match failures / grids.len() {
            0 => (Freed::Ending(0.75), 1),
            1 => (Freed::Chunks(late_and_random_chunks(&schedule, &mut random)), 4),
            2 => (Freed::Ending(0.75), 4),
            _ => (Freed::Chunks(late_and_random_chunks(&schedule, &mut random)), 1),
        };
        let round = RefinementRound::new(search, grid, &schedule, slack);
        let horizon = round.horizon;
        if let Some(leeway) = round.neighbourhood(freed) {
            search.attempt(&grid, horizon, &leeway, ModelScope::Nearby)?;
        }
        let improved = search.best.is_some_and(|best| best < schedule.makespan());
        failures = if improved { 0 } else { failures + 1 };
    }
    Ok(())
}

/// A chunk that arrives last, and random others.
fn late_and_random_chunks(schedule: &Schedule, random: &mut Pcg64Mcg) -> Vec<ChunkId> {
    let all = schedule.demand.chunks().len() as u32;
    let last = schedule.transfers.iter().max_by(|a, b| a.end.total_cmp(&b.end));
    let last = last.and_then(|transfer| transfer.chunks.first().copied());
    let others = (0..OTHERS).map(|_| ChunkId(random.random_range(0..all)));
    let mut seen = BTreeSet::new();
    last.into_iter().chain(others).filter(|chunk| seen.insert(*chunk)).collect()
}

/// One round: the schedule, the grid, and the slack that transfers keep.
struct RefinementRound<'a, 'b> {
    search: &'a HorizonSearch<'b>,
    grid: Grid,
    horizon: u32,
    schedule: &'a Schedule,
    slack: u32,
}

impl<'a, 'b> RefinementRound<'a, 'b> {
    fn new(search: &'a HorizonSearch<'b>, grid: Grid, schedule: &'a Schedule, slack: u32) -> Self {
        Self { search, grid, horizon: grid.epochs_over(schedule.makespan()), schedule, slack }
    }

    /// The leeway of the round, with as much of `freed` as fits; `None` if even the least is too much.
    fn neighbourhood(&self, mut freed: Freed) -> Option<Vec<Leeway>> {
        loop {
            let leeway = self.leeway(&freed);
            let routes =
                Routes::new(self.search.problem, &|link, bytes| self.grid.latency(link, bytes), self.horizon, &leeway);
            if routes?.departures() <= MAX_COLUMNS {
                return Some(leeway);
            }
            match &mut freed {
                Freed::Chunks(chunks) if chunks.len() > 1 => chunks.truncate(chunks.len() * 2 / 3),
                Freed::Ending(share) if *share > 0.1 => *share *= 0.75,
                _ => return None,
            }
        }
    }

    fn leeway(&self, freed: &Freed) -> Vec<Leeway> {
        let problem = self.search.problem;
        let mut near: Vec<BTreeMap<LinkId, RangeInclusive<u32>>> = vec![BTreeMap::new(); problem.demand.chunks().len()];
        for transfer in &self.schedule.transfers {
            // The cast saturates. A start is at most the makespan, whose epochs fit.
            let epoch = (transfer.start / self.grid.epoch).round() as u32;
            for chunk in &transfer.chunks {
                let window = epoch.saturating_sub(self.slack)..=epoch + self.slack;
                near[chunk.index()].insert(transfer.link, window);
            }
        }
        if let Freed::Ending(share) = *freed {
            let first = (f64::from(self.horizon) * (1.0 - share)) as u32;
            for links in &mut near {
                for link in problem.topology.link_ids() {
                    let start = links.get(&link).map_or(first, |kept| first.min(*kept.start()));
                    links.insert(link, start..=self.horizon);
                }
            }
        }
        let mut leeway: Vec<Leeway> = near.into_iter().map(Leeway::Near).collect();
        if let Freed::Chunks(chunks) = freed {
            chunks.iter().for_each(|chunk| leeway[chunk.index()] = Leeway::Free);
        }
        leeway
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epochs::timing::schedule_of;
    use crate::problem::{Deadline, Problem, SearchOptions};
    use crate::solver::{Controls, Ending, solve};
    use crate::strategies::Context;
    use crate::strategies::Strategy;
    use crate::strategies::matching::Matching;
    use crate::strategies::milp::expanded::model::Expansion;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::{Micros, resolve};

    #[test]
    fn the_best_schedule_is_a_start_that_the_solver_accepts() {
        for (spec, epochs) in [("torus2d:3x3,alpha=0us,bandwidth=1GBps", 2), ("ring:6,alpha=0us,bandwidth=1GBps", 5)] {
            let topology = Arc::new(resolve(spec).unwrap());
            let request =
                Request::new(Collective::AllGather, topology.rank_count(), 1000 * topology.rank_count() as u64);
            let problem = Problem::new(topology, Arc::new(Demand::new(request).unwrap()));
            let (options, deadline) = (SearchOptions::default(), Deadline::default());
            let context = Context::of_test(&options, &deadline, Micros::ZERO);
            let schedule = Matching.propose(&problem, &context).unwrap().remove(0).schedule.unwrap();
            // A chunk takes one epoch.
            let grid = Grid::new(&problem, Micros(1.0));
            assert_eq!(grid.epochs_over(schedule.makespan()), epochs, "{spec}");
            let search = HorizonSearch::new(&problem, &context);
            let round = RefinementRound::new(&search, grid, &schedule, 1);
            let leeway = round.neighbourhood(Freed::Ending(0.75)).unwrap();
            let latency = |link: &topology::Link, bytes| grid.latency(link, bytes);
            let routes = Routes::new(&problem, &latency, round.horizon, &leeway).unwrap();
            let mut expansion = Expansion::new(&problem, &grid, round.horizon, &routes, None);
            for (column, value) in expansion.start(&schedule, &grid) {
                expansion.model.fix(column, value);
            }
            let ending = solve(&expansion.model, &[], &Controls::unlimited(&deadline), &mut |_| {}).unwrap().ending;
            let Ending::Optimal(solution) = ending else { panic!("{spec}: {ending:?}") };
            let again = schedule_of(&problem, expansion.departures(&solution), "milp").unwrap();
            assert_eq!(again.makespan(), schedule.makespan(), "{spec}");
        }
    }
}
