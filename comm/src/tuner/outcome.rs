//! What a tuning has to say at its end, besides the samples.
//!
//! The principal type is [`MeasuredTable`]: the table, and what does not compete or does not count.

use super::{CandidateRefusal, CandidateSamples, CellSamples, StockPlan};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tune::TuningTable;

/// A table, and what was refused when it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasuredTable {
    /// The table.
    pub table: TuningTable,
    /// Candidates that were refused.
    pub refused: Vec<RefusedCandidate>,
    /// What does not count, because stock was another plan.
    #[serde(default)]
    pub dropped: Vec<DroppedLaunch>,
    /// Candidates that are the same plan as another one, which was measured for both.
    #[serde(default)]
    pub same: Vec<SameCandidate>,
    /// What was not measured because ranks map no memory of each other, if they have tried to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_kernels: Option<String>,
}

/// A candidate that sends the same messages and makes the same steps as another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SameCandidate {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as the collective counts them.
    pub bytes: u64,
    /// Which.
    pub name: String,
    /// The one that was measured: stock, or a candidate.
    pub same_as: String,
}

/// What a launch measured at a size and does not count: times are compared with stock's, and stock was another plan than in the
/// first launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DroppedLaunch {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as the collective counts them.
    pub bytes: u64,
    /// The launch, from 1.
    pub launch: usize,
    /// Stock's plan there.
    pub stock: Option<StockPlan>,
    /// Stock's plan in the first launch.
    pub first: Option<StockPlan>,
}

/// A candidate that was refused: where, and why. It does not compete there in later launches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedCandidate {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as the collective counts them.
    pub bytes: u64,
    /// Which.
    pub name: String,
    /// The launch, from 1.
    pub launch: usize,
    /// Why.
    #[serde(flatten)]
    pub refusal: CandidateRefusal,
}

impl MeasuredTable {
    /// A table of these launches.
    pub(super) fn new(table: TuningTable, launches: &[Vec<CellSamples>]) -> Self {
        let (refused, dropped, same) = (refused(launches), dropped(launches), same(launches));
        Self { table, refused, dropped, same, without_kernels: None }
    }

    /// As JSON: `table`, `refused`, `dropped` and `same`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What launches have measured with another stock plan than the first one.
fn dropped(launches: &[Vec<CellSamples>]) -> Vec<DroppedLaunch> {
    let mut first: BTreeMap<(Collective, u64), Option<StockPlan>> = BTreeMap::new();
    let mut dropped = Vec::new();
    for (index, launch) in launches.iter().enumerate() {
        for cell in launch.iter().filter(|cell| !cell.candidates.is_empty()) {
            let CellSamples { collective, bytes, stock_plan: stock, .. } = cell.clone();
            let first = first.entry((collective, bytes)).or_insert_with(|| stock.clone()).clone();
            if first != stock {
                dropped.push(DroppedLaunch { collective, bytes, launch: index + 1, stock, first });
            }
        }
    }
    dropped
}

fn refused(launches: &[Vec<CellSamples>]) -> Vec<RefusedCandidate> {
    let mut all = Vec::new();
    for (index, cell) in launches.iter().enumerate().flat_map(|(index, cells)| cells.iter().map(move |it| (index, it)))
    {
        for CandidateSamples { name, refusal, .. } in &cell.candidates {
            if let Some(refusal) = refusal.clone() {
                let (collective, bytes, name) = (cell.collective, cell.bytes, name.clone());
                all.push(RefusedCandidate { collective, bytes, name, launch: index + 1, refusal });
            }
        }
    }
    all
}

fn same(launches: &[Vec<CellSamples>]) -> Vec<SameCandidate> {
    let mut all = BTreeSet::new();
    for CellSamples { collective, bytes, candidates, .. } in launches.iter().flatten() {
        let same = candidates.iter().filter_map(|of| {
            let (name, same_as) = (of.name.clone(), of.same_as.clone()?);
            Some(SameCandidate { collective: *collective, bytes: *bytes, name, same_as })
        });
        all.extend(same);
    }
    all.into_iter().collect()
}
