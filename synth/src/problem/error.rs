//! Why there is no answer.

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
        /// Who needs it.
        rank: Rank,
        /// Who has it.
        holders: Vec<Rank>,
        /// The sketch line whose removal would open a path; `None` if even the bare topology has none.
        relax: Option<Hindrance>,
    },
    /// A strategy emitted an order that cannot be played: a defect of ours.
    #[error("internal: {strategy} emitted an impossible order: {error}")]
    Order {
        /// Who.
        strategy: &'static str,
        /// What is wrong with it.
        error: ReplayError,
    },
    /// The solver reported an error, rather than an outcome.
    #[error("solver: {0}")]
    Solver(String),
    /// Nothing applies: the named strategy has no algorithm for this problem.
    #[error("{strategy} has no schedule for this problem: {why}")]
    NotApplicable {
        /// Who.
        strategy: &'static str,
        /// Why.
        why: String,
    },
    /// The time was up, or the user interrupted, before anything was found.
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
