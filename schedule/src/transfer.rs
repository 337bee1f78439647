//! The answer of the planner: a [`Schedule`] of timed [`Transfer`]s, and its provenance.

use crate::{ChunkId, Demand};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{LinkId, Micros, Rank, Topology};

/// The chunks of one message; up to four need no allocation.
pub type ChunkList = SmallVec<[ChunkId; 4]>;

/// The effect of a transfer at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferKind {
    /// The receiver's value is replaced by the sender's value at departure.
    Copy,
    /// The sender's value at departure is added to the receiver's (stored where the receiver has none).
    Reduce,
}

/// A message of one or more chunks over one link.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    /// What it carries; all of it arrives at `end`.
    pub chunks: ChunkList,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The link, from `from` to `to`.
    pub link: LinkId,
    /// Copy or reduce.
    pub kind: TransferKind,
    /// Departure.
    pub start: Micros,
    /// Arrival: start + α + β·bytes.
    pub end: Micros,
}

/// Which topology a schedule was made for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyRef {
    /// Its name (a SPEC, or what its file says).
    pub name: String,
    /// Its digest, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl TopologyRef {
    /// A reference to `topology`, with its digest.
    pub fn to(topology: &Topology) -> Self {
        Self { name: topology.name().to_owned(), digest: Some(topology.digest()) }
    }
}

/// How a schedule was made, so that it can be made again.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The strategy, such as `classic/ring` or `milp`.
    pub strategy: String,
    /// The seed.
    #[serde(default)]
    pub seed: u64,
    /// The options that influenced it.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// All strategies that tried, and their results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateOutcome>,
    /// The version of Antiphon.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

/// A strategy's attempt at the same collective; it shows why this schedule won.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CandidateOutcome {
    /// The strategy, such as `classic/ring`.
    pub strategy: String,
    /// Chunks per rank it used.
    pub chunks_per_rank: u32,
    /// Its verified makespan; absent if it found no schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub makespan_us: Option<f64>,
    /// Why it stopped, such as `optimal` or `time limit`.
    #[serde(alias = "stopped")]
    pub stop_reason: String,
    /// A note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The best proven lower bound on the makespan.
#[derive(Clone, PartialEq, Debug)]
pub struct LowerBound {
    /// No valid schedule is faster.
    pub value: Micros,
    /// Which bound it is, such as `cut`.
    pub name: String,
}

/// Timed transfers that claim to meet a demand on a topology. Until verified it is only a claim.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// The machine it was made for.
    pub topology: TopologyRef,
    /// What it must move.
    pub demand: Arc<Demand>,
    /// The messages, sorted by start.
    pub transfers: Vec<Transfer>,
    /// The bound it is compared with, if one was computed.
    pub bound: Option<LowerBound>,
    /// How it was made.
    pub produced_by: Provenance,
}

impl Schedule {
    /// A schedule of `transfers`, which are sorted by start here. Those that start together keep their order, because
    /// transfers that take no time depend on each other in that order.
    pub fn new(topology: &Topology, demand: Arc<Demand>, mut transfers: Vec<Transfer>, strategy: &str) -> Self {
        transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
        let produced_by = Provenance {
            strategy: strategy.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Provenance::default()
        };
        Self { topology: TopologyRef::to(topology), demand, transfers, bound: None, produced_by }
    }

    /// When the last transfer has arrived; zero where there are none.
    pub fn makespan(&self) -> Micros {
        makespan(&self.transfers)
    }

    /// How often a chunk passes a link: a transfer may carry many chunks.
    pub fn deliveries(&self) -> usize {
        self.transfers.iter().map(|transfer| transfer.chunks.len()).sum()
    }

    /// makespan / bound − 1, where a bound above zero is known.
    pub fn gap(&self) -> Option<f64> {
        let bound = self.bound.as_ref()?.value;
        (bound > Micros::ZERO).then(|| self.makespan() / bound - 1.0)
    }
}

/// When the last of `transfers` has arrived; zero where there are none.
pub fn makespan(transfers: &[Transfer]) -> Micros {
    transfers.iter().map(|transfer| transfer.end).fold(Micros::ZERO, Micros::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, Request};
    use topology::{Latency, Link, MicrosPerByte, TopologyParts};

    fn schedule(starts: &[f64]) -> Schedule {
        let link = Link {
            from: Rank(0),
            to: Rank(1),
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.0),
            latency: Latency::Occupies,
            resources: [].into(),
        };
        let topology =
            Topology::new(TopologyParts { ranks: 2, links: vec![link], ..TopologyParts::default() }).unwrap();
        let transfer = |(chunk, &start): (u32, &f64)| Transfer {
            chunks: [ChunkId(chunk)].into_iter().collect(),
            from: Rank(0),
            to: Rank(1),
            link: LinkId(0),
            kind: TransferKind::Copy,
            start: Micros(start),
            end: Micros(start + 1.0),
        };
        let demand = Demand::new(Request::new(Collective::Broadcast, 2, 8)).unwrap();
        Schedule::new(&topology, Arc::new(demand), (0..).zip(starts).map(transfer).collect(), "test")
    }

    #[test]
    fn transfers_are_sorted_by_start_and_otherwise_stay() {
        let order: Vec<_> = schedule(&[2.0, 0.0, 2.0, 1.0]).transfers.iter().map(|t| t.chunks[0].0).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn the_gap_is_relative_to_a_bound_above_zero() {
        let with = |bound: Option<f64>| {
            let bound = bound.map(|value| LowerBound { value: Micros(value), name: "cut".to_owned() });
            Schedule { bound, ..schedule(&[0.0, 2.0]) }
        };
        assert_eq!(with(None).gap(), None);
        assert_eq!(with(Some(0.0)).gap(), None);
        assert_eq!(with(Some(2.0)).gap(), Some(0.5));
        assert_eq!(schedule(&[]).makespan(), Micros::ZERO);
    }
}
