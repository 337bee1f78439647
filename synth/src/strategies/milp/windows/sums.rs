//! Sums turned around in time.
//!
//! The principal type is [`TurnedSums`]: on the reversed topology, what spreads a sum adds it up, and what adds it up spreads it. So a
//! window that frees what is copied can free what is added, too.

use crate::ordering::{SumTrees, copies_last, played, without_exchanges};
use crate::problem::Problem;
use schedule::{Message, Schedule, Transfer, turned_around};
use std::sync::Arc;

/// A schedule of sums, turned around in time.
pub(super) struct TurnedSums {
    pub(super) problem: Problem,
    pub(super) schedule: Schedule,
}

impl TurnedSums {
    /// `None` where not every chunk is a sum along trees that the same ranks contribute to and want.
    pub(super) fn of(problem: &Problem, schedule: &Schedule, trees: &SumTrees) -> Option<Self> {
        let turns = problem.demand.chunks().iter().all(|chunk| chunk.is_sum() && chunk.wanted_by == chunk.holders);
        if !turns || !trees.has_all(problem) {
            return None;
        }
        let problem = Problem { topology: Arc::new(problem.topology.reversed()), ..problem.clone() };
        let transfers = along_trees(&problem, turned_around(&schedule.transfers))?;
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, super::NAME);
        Some(Self { problem, schedule })
    }

    /// Messages of the turned problem, turned back.
    pub(super) fn back(&self, messages: &[Message]) -> Option<Vec<Message>> {
        Some(turned_around(&along_trees(&self.problem, messages.to_vec())?))
    }
}

/// Messages along trees with their times, in which ranks exchange sums where that is sooner; but of an exchange, the second message copies
/// here. `None` if they have no order.
fn along_trees(problem: &Problem, messages: Vec<Message>) -> Option<Vec<Transfer>> {
    Some(without_exchanges(&played(problem, &copies_last(problem, messages), true).ok()?))
}
