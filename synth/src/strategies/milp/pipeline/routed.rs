//! The solution of the routing model, and its start.

use super::routing::RoutingModel;
use crate::problem::SynthError;
use crate::solver::{Column, Controls, Ending, Solution, solve};
use schedule::{ChunkId, Schedule};
use std::collections::{BTreeMap, BTreeSet};
use topology::{LinkId, Micros};

/// A chunk on a slow link in a routing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Routed {
    pub(super) chunk: ChunkId,
    pub(super) link: LinkId,
    pub(super) departure: Micros,
}

/// The result of a routing model.
pub(super) struct RoutingResult {
    pub(super) routes: Option<Vec<Routed>>,
    /// Whether a limit was reached before the answer.
    pub(super) stopped: bool,
    /// A finding for the report.
    pub(super) finding: String,
}

impl RoutingModel<'_> {
    /// Solves the model, from the crossings of `incumbent` if there is one.
    pub(super) fn solve(
        &self,
        incumbent: Option<&Schedule>,
        controls: &Controls<'_>,
    ) -> Result<RoutingResult, SynthError> {
        let start = incumbent.map_or_else(Vec::new, |incumbent| self.start(incumbent));
        let outcome = solve(&self.model, &start, controls, &mut |_| {})?;
        let (solution, stopped) = match outcome.ending {
            Ending::Optimal(solution) => (Some(solution), false),
            Ending::Limit { incumbent, .. } => (incumbent, true),
            Ending::Infeasible | Ending::Unbounded => (None, false),
        };
        let columns = self.model.columns();
        let finding = match (&solution, stopped) {
            (Some(solution), _) => format!("ends at {:.3} µs or later", solution.value(self.end)),
            (None, true) => "left open at a limit".to_owned(),
            (None, false) => format!("none ends by {:.3} µs", self.fineness.horizon.0),
        };
        tracing::debug!(
            turn = self.fineness.turn.0,
            columns,
            rows = self.model.rows(),
            iterations = outcome.iterations,
            %finding
        );
        let symmetric = if self.is_symmetric() { "symmetric " } else { "" };
        let finding = format!("{symmetric}routing in {columns} columns: {finding}");
        Ok(RoutingResult { routes: solution.map(|solution| self.routes(&solution)), stopped, finding })
    }

    pub(super) fn routes(&self, solution: &Solution) -> Vec<Routed> {
        let taken = self.uses.iter().filter(|(_, column)| solution.is_set(*column));
        taken.map(|(it, _)| Routed { chunk: it.chunk, link: it.link, departure: it.departure }).collect()
    }

    /// A start for the solver: the ways of `schedule`, with each use no later than there. If its ways are not
    /// symmetric, or two messages fall into one turn, it may break a constraint; then the solver ignores it.
    pub(super) fn start(&self, schedule: &Schedule) -> Vec<(Column, f64)> {
        let mut left: BTreeMap<(ChunkId, LinkId), Micros> = BTreeMap::new();
        for transfer in &schedule.transfers {
            left.extend(transfer.chunks.iter().map(|&chunk| ((chunk, transfer.link), transfer.start)));
        }
        let mut reached: BTreeSet<(ChunkId, usize)> = BTreeSet::new();
        let mut taken: BTreeMap<Column, bool> = self.uses.iter().map(|(_, column)| (*column, false)).collect();
        // The uses of a chunk are in the order of their labels, so a use that brings it comes before those that send it
        // on.
        for of_chunk in self.uses.chunk_by(|a, b| a.0.chunk == b.0.chunk) {
            for leaving in of_chunk.chunk_by(|a, b| (a.0.from, a.0.link) == (b.0.from, b.0.link)) {
                let Some(start) = left.get(&(leaving[0].0.chunk, leaving[0].0.link)) else { continue };
                let there = leaving[0].0.from.is_none_or(|from| reached.contains(&(leaving[0].0.chunk, from)));
                let in_time = leaving.iter().rev().find(|(it, _)| it.departure.0 <= start.0 * (1.0 + 1e-9));
                if let Some((it, column)) = in_time.filter(|_| there) {
                    reached.insert((it.chunk, it.to));
                    taken.insert(*column, true);
                }
            }
        }
        taken.into_iter().map(|(column, taken)| (column, f64::from(u8::from(taken)))).collect()
    }
}
