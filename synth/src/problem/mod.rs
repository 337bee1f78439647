//! What a strategy is asked to solve: a topology, a demand, and what a sketch permits.
//!
//! The principal type is [`Problem`].

mod chunking;
pub(crate) mod constraints;
pub(crate) mod distance;
mod error;
pub(crate) mod groupings;
pub mod matrix;
pub(crate) mod merging;
pub(crate) mod options;
pub(crate) mod passages;
pub(crate) mod reach;
mod report;
pub(crate) mod reversed;
pub(crate) mod sets;
mod strategy_kind;
pub(crate) mod tolerance;

pub use chunking::chunk_counts;
pub(crate) use chunking::is_for_all_strategies;
pub use constraints::{ConnectionPolicy, ConnectionWish, Constraints, Hindrance, Objective, RuleKind, Stages, Way};
pub use error::SynthError;
pub use options::{Cancel, DEFAULT_GAP, Deadline, Limits, SearchOptions};
pub use passages::{passages, verification_time};
pub use reach::check_reachable;
pub use report::{Candidate, Milestone, Progress, Report, StopReason};
use schedule::{ChunkId, Demand};
use std::sync::Arc;
pub use strategy_kind::StrategyKind;
use topology::{LinkId, Topology};

/// A topology, a demand on it, and the freedom left.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The machine.
    pub topology: Arc<Topology>,
    /// What must move.
    pub demand: Arc<Demand>,
    /// What the sketch permits; [`Constraints::none`] without a sketch.
    pub constraints: Arc<Constraints>,
}

impl Problem {
    /// A problem without a sketch.
    pub fn new(topology: Arc<Topology>, demand: Arc<Demand>) -> Self {
        Self { topology, demand, constraints: Arc::new(Constraints::none()) }
    }

    /// Whether a chunk may travel over a link.
    pub fn allows(&self, chunk: ChunkId, link: LinkId) -> bool {
        self.constraints.hindrance(&self.demand, chunk, link).is_none()
    }

    /// Whether a link may be used at all.
    pub fn allows_link(&self, link: LinkId) -> bool {
        self.constraints.allows_link(link)
    }
}

#[cfg(test)]
pub(crate) mod by_hand;
