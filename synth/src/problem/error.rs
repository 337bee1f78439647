//! Why a synthesis has no schedule to return.

use crate::problem::Hindrance;
use schedule::{ChunkId, DemandError, ReplayError};
use topology::Rank;

/// What can go wrong while planning.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// The request itself is wrong.
    #[error(transparent)]
    Demand(#[from] DemandError),
    /// No allowed path brings a chunk where it is wanted.
    #[error("rank {rank} needs chunk {chunk}, but no allowed path leads there from {}", named(.holders))]
    Infeasible {
        /// The chunk.
        chunk: ChunkId,
        /// The rank that needs it.
        rank: Rank,
        /// The ranks that hold it.
        holders: Vec<Rank>,
        /// The sketch line whose removal would open a path; `None` if the topology has no path even without the sketch.
        relax: Option<Hindrance>,
    },
    /// A strategy emitted an order that cannot be replayed: a defect of this program.
    #[error("internal: {strategy} emitted an impossible order: {error}")]
    Order {
        /// The strategy.
        strategy: &'static str,
        /// What is wrong with it.
        error: ReplayError,
    },
    /// The solver reported an error instead of a result.
    #[error("solver: {0}")]
    Solver(String),
    /// The strategy has no algorithm for this problem.
    #[error("{strategy} has no schedule for this problem: {why}")]
    NotApplicable {
        /// The strategy.
        strategy: &'static str,
        /// Why.
        why: String,
    },
    /// The time was up, or the user interrupted, before a schedule was found.
    #[error("stopped before a schedule was found")]
    NothingYet,
    /// There is nothing to plan.
    #[error("no problem was given")]
    NoProblem,
}

fn named(holders: &[Rank]) -> String {
    let names: Vec<_> = holders.iter().take(4).map(ToString::to_string).collect();
    let more = if holders.len() > 4 { ", …" } else { "" };
    let noun = if holders.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}{more}", names.join(", "))
}
