//! What a table's times must obey if every call is served well.
//!
//! The principal function is [`violations`]. A collective must not take longer than others that do its work together, nor
//! longer than itself for more bytes, nor longer than itself called several times for parts of them [1]. A violation says that
//! something faster is known already, and which.
//!
//! [1] Träff, Gropp, Thakur, "Self-consistent MPI performance guidelines", IEEE TPDS 21(5), 2010.

use crate::Summary;
use crate::store::TuningTable;
use schedule::Collective;
use serde::Serialize;
use std::fmt;

/// A time that is this much longer than its limit violates a guideline, if it is beyond the noise of both.
const LEAST_EXCESS: f64 = 1.05;
/// Sizes are a whole number of elements of each rank, so those of two collectives may differ by this factor.
const SAME_SIZE: f64 = 1.03;

/// What must not take longer than what together.
const SUBSTITUTES: &[(Collective, &[Collective])] = &[
    (Collective::AllReduce, &[Collective::ReduceScatter, Collective::AllGather]),
    (Collective::AllReduce, &[Collective::Reduce, Collective::Broadcast]),
    (Collective::AllGather, &[Collective::Gather, Collective::Broadcast]),
    (Collective::AllGather, &[Collective::AllToAll]),
    (Collective::ReduceScatter, &[Collective::AllReduce]),
    (Collective::ReduceScatter, &[Collective::Reduce, Collective::Scatter]),
    (Collective::Broadcast, &[Collective::Scatter, Collective::AllGather]),
    (Collective::Broadcast, &[Collective::AllReduce]),
    (Collective::Reduce, &[Collective::AllReduce]),
    (Collective::Reduce, &[Collective::ReduceScatter, Collective::Gather]),
    (Collective::Gather, &[Collective::AllGather]),
    (Collective::Gather, &[Collective::Reduce]),
    (Collective::Scatter, &[Collective::Broadcast]),
];

/// What does the same work as a collective in less time.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guideline {
    /// These collectives, one after the other.
    Substitute(Vec<Collective>),
    /// The same collective of so many bytes, which are more.
    Larger(u64),
    /// The same collective of fewer bytes, several times.
    Parts {
        /// The size of a part in bytes.
        bytes: u64,
        /// How many.
        times: u64,
    },
}

impl fmt::Display for Guideline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Substitute(parts) => {
                let names: Vec<String> = parts.iter().map(Collective::to_string).collect();
                f.write_str(&names.join(" + "))
            }
            Self::Larger(bytes) => write!(f, "the same of {bytes} bytes"),
            Self::Parts { bytes, times } => write!(f, "{times} times the same of {bytes} bytes"),
        }
    }
}

/// A time that a guideline does not allow.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GuidelineViolation {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as the collective counts them.
    pub bytes: u64,
    /// The median of its choice, in microseconds.
    pub time_us: f64,
    /// What would take less.
    pub guideline: Guideline,
    /// The median of that, in microseconds.
    pub limit_us: f64,
}

/// The measured sizes of a collective in ascending order, with the times of what was chosen.
fn measured(table: &TuningTable, collective: Collective) -> Vec<(u64, Summary)> {
    let cell = table.cells.iter().find(|cell| cell.collective == collective);
    let evidence = cell.into_iter().flat_map(|cell| &cell.ranges).flat_map(|range| &range.evidence);
    evidence.map(|evidence| (evidence.bytes, evidence.choice)).collect()
}

/// All violations in a table, by collective and size. Times between which the noise does not decide violate nothing.
pub fn violations(table: &TuningTable) -> Vec<GuidelineViolation> {
    let mut found = Vec::new();
    for cell in &table.cells {
        let own = measured(table, cell.collective);
        for (index, (bytes, time)) in own.iter().enumerate() {
            let mut check = |guideline: Guideline, low_us: f64, limit_us: f64| {
                if time.low_us > low_us && time.median_us > LEAST_EXCESS * limit_us {
                    let (collective, bytes, time_us) = (cell.collective, *bytes, time.median_us);
                    found.push(GuidelineViolation { collective, bytes, time_us, guideline, limit_us });
                }
            };
            for (_, parts) in SUBSTITUTES.iter().filter(|(of, _)| *of == cell.collective) {
                let times: Option<Vec<Summary>> = parts.iter().map(|part| time_at(table, *part, *bytes)).collect();
                let Some(times) = times else { continue };
                let sum = |of: fn(&Summary) -> f64| times.iter().map(of).sum::<f64>();
                check(Guideline::Substitute(parts.to_vec()), sum(|time| time.high_us), sum(|time| time.median_us));
            }
            if let Some((larger, limit)) = own.get(index + 1) {
                check(Guideline::Larger(*larger), limit.high_us, limit.median_us);
            }
            if let Some((part, limit)) = index.checked_sub(1).map(|before| &own[before]).filter(|(part, _)| *part > 0) {
                let times = bytes.div_ceil(*part);
                let guideline = Guideline::Parts { bytes: *part, times };
                check(guideline, times as f64 * limit.high_us, times as f64 * limit.median_us);
            }
        }
    }
    found
}

/// The time of a collective at about a size.
fn time_at(table: &TuningTable, collective: Collective, bytes: u64) -> Option<Summary> {
    let ratio = |size: u64| (size.max(1) as f64 / bytes.max(1) as f64).ln().abs();
    let sizes = measured(table, collective).into_iter();
    let (size, time) = sizes.min_by(|one, other| ratio(one.0).total_cmp(&ratio(other.0)))?;
    (ratio(size) <= SAME_SIZE.ln()).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ChoiceRange, Evidence, TableCell, TableKey};
    use crate::summarize;

    fn around(centre: f64) -> Summary {
        let times: Vec<f64> = (0..21).map(|step| centre * (1.0 + f64::from(step - 10) * 0.002)).collect();
        summarize(&times).unwrap()
    }

    fn table(cells: &[(Collective, &[(u64, f64)])]) -> TuningTable {
        let cell = |(collective, times): &(Collective, &[(u64, f64)])| {
            let evidence = |&(bytes, time): &(u64, f64)| Evidence {
                bytes,
                choice: around(time),
                stock: around(time),
                launches: 1,
                dtype: "f32".to_owned(),
                ranking: Vec::new(),
            };
            let evidence = times.iter().map(evidence).collect();
            let ranges = vec![ChoiceRange { from_bytes: 0, to_bytes: None, plan: None, evidence }];
            TableCell { collective: *collective, ranges, functions: Vec::new() }
        };
        TuningTable {
            format: TuningTable::FORMAT.to_owned(),
            key: TableKey { ranks: 3, machines: vec![0; 3], topology: None, version: String::new(), policy: 1 },
            cells: cells.iter().map(cell).collect(),
            plans: [].into(),
        }
    }

    #[test]
    fn what_others_do_together_in_less_time_is_named() {
        let times: &[(Collective, &[(u64, f64)])] = &[
            (Collective::AllReduce, &[(1024, 30.0), (4096, 41.0)]),
            // Three ranks: not quite the same size.
            (Collective::ReduceScatter, &[(1020, 10.0), (4092, 20.0)]),
            (Collective::AllGather, &[(1020, 10.0), (4092, 20.0)]),
        ];
        let found = violations(&table(times));
        assert_eq!(found.len(), 1, "2.5 % are no violation: {found:?}");
        let expected = Guideline::Substitute(vec![Collective::ReduceScatter, Collective::AllGather]);
        assert_eq!((found[0].bytes, &found[0].guideline), (1024, &expected));
        assert!((found[0].limit_us - 20.0).abs() < 1e-9 && expected.to_string() == "reducescatter + allgather");
    }

    #[test]
    fn times_grow_with_sizes_but_not_faster() {
        let found = violations(&table(&[(Collective::AllToAll, &[(64, 10.0), (128, 7.0), (256, 9.0), (512, 30.0)])]));
        let rules: Vec<(u64, Guideline)> = found.into_iter().map(|found| (found.bytes, found.guideline)).collect();
        assert_eq!(rules, [(64, Guideline::Larger(128)), (512, Guideline::Parts { bytes: 256, times: 2 })]);
        assert_eq!(violations(&table(&[(Collective::AllToAll, &[(64, 10.0), (128, 10.0), (256, 20.0)])])), []);
    }
}
