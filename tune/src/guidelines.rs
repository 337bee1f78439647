//! What a table's times must obey if every call is served well.
//!
//! The principal function is [`violations`]. A collective must not take longer than others that do its work together, nor
//! longer than itself for more bytes, nor longer than itself called several times for parts of them [1]. A violation says that
//! something faster is known already, and which.
//!
//! [1] Träff, Gropp, Thakur, "Self-consistent MPI performance guidelines", IEEE TPDS 21(5), 2010.

use crate::store::{Evidence, TuningTable};
use crate::{Composition, Summary};
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

/// Collectives that may do the work of another one in less time, as far as their times are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Substitution {
    /// The collective that takes long.
    pub collective: Collective,
    /// The size in bytes, as it counts them.
    pub bytes: u64,
    /// What may do its work, one after the other.
    pub parts: Vec<Collective>,
    /// Those of them that were not measured at this size.
    pub missing: Vec<Collective>,
}

/// The times of what serves calls of a size, with this type of elements.
#[derive(Clone, Copy)]
struct ServedSize<'a> {
    bytes: u64,
    dtype: &'a str,
    time: Summary,
}

impl ServedSize<'_> {
    /// Whether it takes longer than that, beyond the noise of both.
    fn exceeds(&self, high_us: f64, median_us: f64) -> bool {
        self.time.low_us > high_us && self.time.median_us > LEAST_EXCESS * median_us
    }
}

/// The measured sizes of a collective in ascending order. Where a function of the library's own serves, the times are those of it;
/// a user's function serves only in programs that have it.
fn measured(table: &TuningTable, collective: Collective) -> Vec<ServedSize<'_>> {
    let composed = |bytes: u64, dtype: &str| {
        let own = table
            .functions()
            .filter(|(of, range)| *of == collective && Composition::of_name(&range.function).is_some());
        let mut evidence = own.flat_map(|(_, range)| &range.evidence);
        evidence.find(|of| of.bytes == bytes && of.dtype == dtype).map(|of| of.choice)
    };
    let ranges = table.ranges().filter(|(of, _)| *of == collective);
    let served = ranges.flat_map(|(_, range)| &range.evidence).map(|Evidence { bytes, choice, dtype, .. }| {
        ServedSize { bytes: *bytes, dtype, time: composed(*bytes, dtype).unwrap_or(*choice) }
    });
    served.filter(|of| of.time.samples > 0).collect()
}

/// All violations in a table, by collective and size. Times between which the noise does not decide violate nothing, and times of
/// different types of elements say nothing about each other.
pub fn violations(table: &TuningTable) -> Vec<GuidelineViolation> {
    let mut found = Vec::new();
    for cell in &table.cells {
        let own = measured(table, cell.collective);
        for (index, served) in own.iter().enumerate() {
            let mut check = |guideline: Guideline, high_us: f64, limit_us: f64| {
                if served.exceeds(high_us, limit_us) {
                    let (collective, bytes, time_us) = (cell.collective, served.bytes, served.time.median_us);
                    found.push(GuidelineViolation { collective, bytes, time_us, guideline, limit_us });
                }
            };
            for parts in substitutes(cell.collective) {
                let times: Option<Vec<Summary>> = parts.iter().map(|part| time_at(table, *part, served)).collect();
                if let Some(times) = times {
                    check(Guideline::Substitute(parts.to_vec()), high_us(&times), median_us(&times));
                }
            }
            let comparable = |of: &&ServedSize<'_>| of.dtype == served.dtype;
            let larger = own[index + 1..].iter().filter(comparable);
            if let Some(larger) = larger.min_by(|one, other| one.time.median_us.total_cmp(&other.time.median_us)) {
                check(Guideline::Larger(larger.bytes), larger.time.high_us, larger.time.median_us);
            }
            let smaller = own[..index].iter().filter(comparable).filter(|of| of.bytes > 0);
            let parts = smaller.map(|of| (of, served.bytes.div_ceil(of.bytes)));
            let whole = |(of, times): &(&ServedSize<'_>, u64)| *times as f64 * of.time.median_us;
            if let Some(best) = parts.min_by(|one, other| whole(one).total_cmp(&whole(other))) {
                let (ServedSize { bytes, time, .. }, times) = best;
                let guideline = Guideline::Parts { bytes: *bytes, times };
                check(guideline, times as f64 * time.high_us, whole(&best));
            }
        }
    }
    found
}

/// What may do the work of a collective in less time: where that violates a guideline, and where it may, because a part was not
/// measured and the others leave time for it.
pub fn substitutions(table: &TuningTable) -> Vec<Substitution> {
    let mut found = Vec::new();
    for cell in &table.cells {
        for served in measured(table, cell.collective) {
            for parts in substitutes(cell.collective) {
                let time = |part: &Collective| time_at(table, *part, &served);
                let known: Vec<Summary> = parts.iter().filter_map(time).collect();
                if !known.is_empty() && served.exceeds(high_us(&known), median_us(&known)) {
                    let missing = parts.iter().copied().filter(|part| time(part).is_none()).collect();
                    let (collective, bytes, parts) = (cell.collective, served.bytes, parts.to_vec());
                    found.push(Substitution { collective, bytes, parts, missing });
                }
            }
        }
    }
    found
}

fn substitutes(collective: Collective) -> impl Iterator<Item = &'static [Collective]> {
    SUBSTITUTES.iter().filter(move |(of, _)| *of == collective).map(|(_, parts)| *parts)
}

fn high_us(times: &[Summary]) -> f64 {
    times.iter().map(|time| time.high_us).sum()
}

fn median_us(times: &[Summary]) -> f64 {
    times.iter().map(|time| time.median_us).sum()
}

/// The time of a collective at about a size, with the same type of elements.
fn time_at(table: &TuningTable, collective: Collective, of: &ServedSize<'_>) -> Option<Summary> {
    let ratio = |size: u64| (size.max(1) as f64 / of.bytes.max(1) as f64).ln().abs();
    let sizes = measured(table, collective).into_iter().filter(|served| served.dtype == of.dtype);
    let nearest = sizes.min_by(|one, other| ratio(one.bytes).total_cmp(&ratio(other.bytes)))?;
    (ratio(nearest.bytes) <= SAME_SIZE.ln()).then_some(nearest.time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableKey;
    use crate::store::{ChoiceRange, FunctionRange, TableCell};
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
            TableCell::of_any(*collective, ranges)
        };
        TuningTable::new(TableKey::of(vec![0; 3], ""), cells.iter().map(cell).collect(), [].into())
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

    /// Each size takes a little less than the one before, which is no violation; together it is one.
    #[test]
    fn times_that_fall_slowly_are_compared_with_the_least_of_all_larger_sizes() {
        let times: Vec<(u64, f64)> = (0..8).map(|step| (1024 << step, 100.0 * 0.96_f64.powi(step))).collect();
        let found = violations(&table(&[(Collective::AllReduce, &times)]));
        let rules: Vec<(u64, Guideline)> = found.iter().map(|of| (of.bytes, of.guideline.clone())).collect();
        let expected: Vec<_> = (0..6).map(|step| (1024 << step, Guideline::Larger(1024 << 7))).collect();
        assert_eq!(rules, expected);
        // The best parts need not be the next smaller ones.
        let times = [(64, 10.0), (128, 25.0), (256, 60.0)];
        let found = violations(&table(&[(Collective::AllToAll, &times)]));
        let parts: Vec<Guideline> = found.into_iter().map(|found| found.guideline).collect();
        assert_eq!(parts, [2, 4].map(|times| Guideline::Parts { bytes: 64, times }));
    }

    #[test]
    fn times_of_different_elements_are_not_compared() {
        let times: &[(Collective, &[(u64, f64)])] = &[
            (Collective::AllReduce, &[(1024, 100.0), (2048, 50.0)]),
            (Collective::ReduceScatter, &[(1024, 20.0)]),
            (Collective::AllGather, &[(1024, 20.0)]),
        ];
        let mut mixed = table(times);
        assert_eq!(violations(&mixed).len(), 2);
        mixed.cells[0].ranges[0].evidence[0].dtype = "u8".to_owned();
        assert_eq!((violations(&mixed), substitutions(&mixed)), (vec![], vec![]));
    }

    #[test]
    fn what_the_composed_function_serves_is_no_violation() {
        let times: &[(Collective, &[(u64, f64)])] = &[
            (Collective::AllReduce, &[(1024, 100.0)]),
            (Collective::ReduceScatter, &[(1024, 20.0)]),
            (Collective::AllGather, &[(1024, 20.0)]),
        ];
        let mut served = table(times);
        assert_eq!(substitutions(&served)[0].missing, []);
        let mut evidence = served.cells[0].ranges[0].evidence.clone();
        evidence[0].choice = around(41.0);
        for (name, expected) in [("stock reducescatter + allgather", 0), ("mine", 1)] {
            let (function, dtype) = (name.to_owned(), "f32".to_owned());
            let (from_bytes, to_bytes, evidence) = (1024, 1025, evidence.clone());
            served.cells[0].functions =
                vec![FunctionRange { from_bytes, to_bytes, function, dtype, op: None, evidence }];
            assert_eq!([violations(&served).len(), substitutions(&served).len()], [expected; 2], "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_may_be_asked_for_where_the_rest_leaves_time_for_it() {
        let times: &[(Collective, &[(u64, f64)])] = &[
            (Collective::Broadcast, &[(1024, 100.0), (4096, 21.0)]),
            (Collective::AllGather, &[(1024, 20.0), (4096, 20.5)]),
        ];
        let found = substitutions(&table(times));
        let parts = vec![Collective::Scatter, Collective::AllGather];
        let missing = vec![Collective::Scatter];
        assert_eq!(found.clone(), [Substitution { collective: Collective::Broadcast, bytes: 1024, parts, missing }]);
        let is_substitute = |of: &GuidelineViolation| of.guideline == Guideline::Substitute(found[0].parts.clone());
        assert!(!violations(&table(times)).iter().any(is_substitute));
    }
}
