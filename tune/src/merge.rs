//! Tables of the same ranks as one table.
//!
//! The principal function is [`merge`]. A size belongs to the table that has measured there. If several have, and chose
//! differently, their evidence decides, and the caller learns what was decided and why.

use crate::store::{CellClass, ChoiceRange, Evidence, FunctionRange, TableCell, TuningTable};
use schedule::Collective;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes for which tables had different choices, and which of them was taken.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MergeConflict {
    /// The operation.
    pub collective: Collective,
    /// From this size on (inclusive), in bytes as the collective counts them.
    pub from_bytes: u64,
    /// Up to this size (exclusive).
    pub to_bytes: Option<u64>,
    /// The plan that was taken; `None` for stock.
    pub taken: Option<String>,
    /// What the other tables chose.
    pub dropped: Vec<Option<String>>,
    /// The table whose choice was taken, by its place among the tables.
    pub from_table: usize,
    /// Why.
    pub why: String,
}

/// What one table says about some sizes: its choice, and the measurement that is nearest to them.
#[derive(Clone, Copy)]
struct SizeClaim<'a> {
    table: usize,
    plan: Option<&'a str>,
    evidence: &'a Evidence,
}

/// Sizes from the first (inclusive) to the second (exclusive).
type SizeSpan = (u64, Option<u64>);

impl<'a> SizeClaim<'a> {
    /// By how much the choice was faster than stock, at least and at most.
    fn gain(&self) -> (f64, f64) {
        let Evidence { choice, stock, .. } = self.evidence;
        (stock.low_us / choice.high_us, stock.high_us / choice.low_us)
    }

    /// How much was measured.
    fn weight(&self) -> (u32, usize) {
        (self.evidence.launches, self.evidence.choice.samples)
    }

    /// Which of two claims holds, and why.
    fn against(self, other: Self) -> (Self, String) {
        let more = |one: Self, two: Self| {
            let [(launches, samples), (fewer_launches, fewer_samples)] = [one.weight(), two.weight()];
            format!(
                "it was measured more: {launches} launches and {samples} samples, against {fewer_launches} and {fewer_samples}"
            )
        };
        if self.plan.is_some() != other.plan.is_some() {
            let (plan, stock) = if self.plan.is_some() { (self, other) } else { (other, self) };
            return match plan.weight() > stock.weight() {
                true => (plan, more(plan, stock)),
                false => (stock, "the table that measured as much or more found nothing faster than stock".to_owned()),
            };
        }
        let [(low, high), (other_low, other_high)] = [self.gain(), other.gain()];
        let faster =
            |low: f64, high: f64| format!("its gain over stock, at least {low:.2}×, exceeds the other's {high:.2}×");
        match () {
            () if low > other_high => (self, faster(low, other_high)),
            () if other_low > high => (other, faster(other_low, high)),
            () if self.weight() > other.weight() => (self, more(self, other)),
            () if other.weight() > self.weight() => (other, more(other, self)),
            () if self.table <= other.table => (self, "both gain as much, and its table comes first".to_owned()),
            () => (other, "both gain as much, and its table comes first".to_owned()),
        }
    }
}

/// The sizes that a range speaks for. Where stock was measured, these are the sizes between the measured ones; where a plan was
/// chosen, the whole range, because its edges were measured.
fn measured_span(range: &ChoiceRange) -> Option<SizeSpan> {
    let sizes = || range.evidence.iter().map(|evidence| evidence.bytes);
    let (first, last) = (sizes().min()?, sizes().max()?);
    match range.plan {
        Some(_) => Some((range.from_bytes, range.to_bytes)),
        None => Some((first, last.checked_add(1))),
    }
}

fn holds((from, to): SizeSpan, bytes: u64) -> bool {
    bytes >= from && to.is_none_or(|end| bytes < end)
}

/// Merges tables of the same ranks, machines, version and rules. The result is disjoint and total, and says for which sizes the
/// tables disagreed.
///
/// # Errors
/// If they are for different ranks or rules, or there are none; what differs.
pub fn merge(tables: &[TuningTable]) -> Result<(TuningTable, Vec<MergeConflict>), String> {
    let first = tables.first().ok_or("there is no table")?;
    for (index, table) in tables.iter().enumerate() {
        table.check()?;
        if let Some(what) = difference(first, table) {
            return Err(format!("table {} is for other ranks or rules than table 1: {what}", index + 1));
        }
    }
    let (plans, tables) = with_common_names(tables);
    let classes: BTreeSet<CellClass> = tables.iter().flat_map(|table| &table.cells).map(TableCell::class).collect();
    let mut conflicts = Vec::new();
    let merged = |class: CellClass| {
        let ranges = ranges_of(&tables, &class, &mut conflicts);
        let functions = functions_of(&tables, &class);
        let CellClass { collective, op, dtype, in_place } = class;
        TableCell { collective, op, dtype, in_place, ranges, functions }
    };
    let cells: Vec<TableCell> = classes.into_iter().map(merged).collect();
    let used: BTreeSet<&String> =
        cells.iter().flat_map(|cell| &cell.ranges).filter_map(|range| range.plan.as_ref()).collect();
    let plans = plans.into_iter().filter(|(name, _)| used.contains(name)).collect();
    // Tables with different costs had different plans of stock, and none of them is right for all ranges.
    let links = first.links.clone().filter(|_| tables.iter().all(|table| table.links == first.links));
    let merged = TuningTable { links, ..TuningTable::new(first.key.clone(), cells, plans) };
    merged.check()?;
    Ok((merged, conflicts))
}

/// Why two tables cannot be one.
fn difference(one: &TuningTable, other: &TuningTable) -> Option<String> {
    if let Some(what) = other_types(one, other) {
        return Some(what);
    }
    let (one, other) = (&one.key, &other.key);
    let emulated = |of: &Option<String>| {
        of.as_deref().map_or("real machines".to_owned(), |digest| format!("the emulated machine {digest}"))
    };
    match () {
        () if one.ranks != other.ranks => Some(format!("{} ranks, and not {}", other.ranks, one.ranks)),
        () if one.machines != other.machines => Some("the ranks are placed on machines in another way".to_owned()),
        () if one.version != other.version => Some(format!("version {}, and not {}", other.version, one.version)),
        () if one.policy != other.policy => Some(format!("rules {}, and not {}", other.policy, one.policy)),
        () if one.topology != other.topology => {
            Some(format!("measured on {}, and not on {}", emulated(&other.topology), emulated(&one.topology)))
        }
        () => None,
    }
}

/// The first collective that two tables have measured with different types of elements, whose times say nothing about each other.
fn other_types(one: &TuningTable, other: &TuningTable) -> Option<String> {
    let types = |table: &TuningTable, collective| -> BTreeSet<String> {
        let of = table.ranges().filter(|(of, _)| *of == collective).flat_map(|(_, range)| &range.evidence);
        of.map(|evidence| evidence.dtype.clone()).collect()
    };
    other.cells.iter().find_map(|cell| {
        let (own, others) = (types(one, cell.collective), types(other, cell.collective));
        let differs = !own.is_empty() && !others.is_empty() && own != others;
        let listed = |of: BTreeSet<String>| of.into_iter().collect::<Vec<_>>().join(" and ");
        differs.then(|| format!("{} was measured with {}, and not {}", cell.collective, listed(others), listed(own)))
    })
}

/// Tables in which a name stands for one plan only: of two plans that share one, the later gets another.
fn with_common_names(tables: &[TuningTable]) -> (BTreeMap<String, Value>, Vec<TuningTable>) {
    let mut plans: BTreeMap<String, Value> = BTreeMap::new();
    let mut renamed = Vec::with_capacity(tables.len());
    for table in tables {
        let mut names: BTreeMap<&str, String> = BTreeMap::new();
        for (name, plan) in &table.plans {
            let numbered = (2..).map(|number| format!("{name} ({number})"));
            let is_free = |own: &String| plans.get(own).is_none_or(|known| known == plan);
            if let Some(own) = std::iter::once(name.clone()).chain(numbered).find(is_free) {
                plans.insert(own.clone(), plan.clone());
                names.insert(name, own);
            }
        }
        let mut table_with_names = table.clone();
        for range in table_with_names.cells.iter_mut().flat_map(|cell| &mut cell.ranges) {
            range.plan = range.plan.as_deref().and_then(|plan| names.get(plan)).cloned();
        }
        renamed.push(table_with_names);
    }
    (plans, renamed)
}

/// The ranges of a class of calls.
fn ranges_of(tables: &[TuningTable], class: &CellClass, conflicts: &mut Vec<MergeConflict>) -> Vec<ChoiceRange> {
    let cells = || {
        let of = tables.iter().enumerate().flat_map(|(at, table)| table.cells.iter().map(move |cell| (at, cell)));
        of.filter(|(_, cell)| cell.class() == *class)
    };
    let spans: Vec<(usize, &ChoiceRange, SizeSpan)> = cells()
        .flat_map(|(at, cell)| cell.ranges.iter().filter_map(move |range| Some((at, range, measured_span(range)?))))
        .collect();
    let edges: BTreeSet<u64> =
        spans.iter().flat_map(|(_, _, (from, to))| [Some(*from), *to]).flatten().chain([0]).collect();
    let edges: Vec<u64> = edges.into_iter().collect();
    let mut ranges: Vec<ChoiceRange> = Vec::new();
    for (index, &from) in edges.iter().enumerate() {
        let to = edges.get(index + 1).copied();
        let claims = spans.iter().filter(|(_, _, span)| holds(*span, from));
        let claims: Vec<SizeClaim<'_>> = claims.filter_map(|(at, range, _)| claim(*at, range, from)).collect();
        let taken = decided(&claims, (class.collective, from, to), conflicts);
        let evidence = taken.map_or_else(Vec::new, |taken| {
            let own = spans.iter().filter(|(at, range, span)| {
                *at == taken.table && holds(*span, from) && holds((range.from_bytes, range.to_bytes), from)
            });
            let inside = |evidence: &&Evidence| holds((from, to), evidence.bytes);
            own.flat_map(|(_, range, _)| &range.evidence).filter(inside).cloned().collect()
        });
        let plan = taken.and_then(|taken| taken.plan.map(str::to_owned));
        push(&mut ranges, ChoiceRange { from_bytes: from, to_bytes: to, plan, evidence });
    }
    // What is left of a plan's range between others may be sizes where it was not measured.
    let mut measured: Vec<ChoiceRange> = Vec::new();
    for mut range in ranges {
        range.plan = range.plan.filter(|_| !range.evidence.is_empty());
        push(&mut measured, range);
    }
    measured
}

/// Adds the range that follows the last one; those of one choice become one.
fn push(ranges: &mut Vec<ChoiceRange>, range: ChoiceRange) {
    match ranges.last_mut() {
        Some(last) if last.plan == range.plan => {
            last.to_bytes = range.to_bytes;
            last.evidence.extend(range.evidence);
        }
        _ => ranges.push(range),
    }
}

/// The functions of a class of calls: of those that several tables name for the same sizes, the one that was measured more.
fn functions_of(tables: &[TuningTable], class: &CellClass) -> Vec<FunctionRange> {
    let cells = tables.iter().flat_map(|table| &table.cells).filter(|cell| cell.class() == *class);
    let mut named: Vec<&FunctionRange> = cells.flat_map(|cell| &cell.functions).collect();
    let weight = |of: &FunctionRange| {
        of.evidence.iter().map(|evidence| (evidence.launches, evidence.choice.samples)).max().unwrap_or_default()
    };
    // Among equals, the earlier table comes first.
    named.sort_by_key(|range| std::cmp::Reverse(weight(range)));
    let mut kept: Vec<FunctionRange> = Vec::new();
    for range in named {
        if kept.iter().all(|other| range.to_bytes <= other.from_bytes || other.to_bytes <= range.from_bytes) {
            kept.push(range.clone());
        }
    }
    kept.sort_by_key(|range| range.from_bytes);
    kept
}

/// What a range says about sizes from `from` on: its measurement that is nearest to them.
fn claim(table: usize, range: &ChoiceRange, from: u64) -> Option<SizeClaim<'_>> {
    let evidence = range.evidence.iter().min_by_key(|evidence| evidence.bytes.abs_diff(from))?;
    Some(SizeClaim { table, plan: range.plan.as_deref(), evidence })
}

/// The claim that holds. If others chose differently, that is a conflict.
fn decided<'a>(
    claims: &[SizeClaim<'a>],
    (collective, from_bytes, to_bytes): (Collective, u64, Option<u64>),
    conflicts: &mut Vec<MergeConflict>,
) -> Option<SizeClaim<'a>> {
    let (&first, others) = claims.split_first()?;
    let (mut taken, mut why) = (first, String::new());
    for &other in others {
        if other.plan != taken.plan {
            (taken, why) = taken.against(other);
        } else if other.weight() > taken.weight() {
            taken = other;
        }
    }
    let mut dropped: Vec<Option<String>> =
        claims.iter().filter(|claim| claim.plan != taken.plan).map(|claim| claim.plan.map(str::to_owned)).collect();
    dropped.dedup();
    if !dropped.is_empty() {
        let chosen = taken.plan.map(str::to_owned);
        conflicts.push(MergeConflict {
            collective,
            from_bytes,
            to_bytes,
            taken: chosen,
            dropped,
            from_table: taken.table,
            why,
        });
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableKey;
    use crate::{STOCK, Summary, summarize};

    fn around(centre: f64, samples: u32) -> Summary {
        let step = |at: u32| centre * (1.0 + (f64::from(at) / f64::from(samples) - 0.5) * 0.02);
        summarize(&(0..samples).map(step).collect::<Vec<_>>()).unwrap()
    }

    /// A table that has measured these sizes: the choice, its gain, and samples.
    /// From, to, plan, and what was measured.
    type RangeParts<'a> = (u64, Option<u64>, &'a str, &'a [(u64, f64, u32)]);

    fn table(ranges: &[RangeParts<'_>]) -> TuningTable {
        let ranges = ranges.iter().map(|(from, to, plan, measured)| ChoiceRange {
            from_bytes: *from,
            to_bytes: *to,
            plan: (*plan != STOCK).then(|| (*plan).to_owned()),
            evidence: measured
                .iter()
                .map(|&(bytes, gain, samples)| Evidence {
                    bytes,
                    choice: around(100.0 / gain, samples),
                    stock: around(100.0, samples),
                    launches: 1,
                    dtype: "f32".to_owned(),
                    ranking: Vec::new(),
                })
                .collect(),
        });
        let ranges: Vec<ChoiceRange> = ranges.collect();
        let plans = ranges.iter().filter_map(|range| range.plan.clone()).map(|plan| (plan.clone(), Value::from(plan)));
        let plans = plans.collect();
        TuningTable::new(TableKey::of(vec![0, 0], "1"), vec![TableCell::of_any(Collective::AllReduce, ranges)], plans)
    }

    #[test]
    fn of_two_functions_for_the_same_sizes_the_one_that_was_measured_more_stays() {
        let named = |name: &str, from_bytes, to_bytes, samples| {
            let (choice, stock, dtype) = (around(1.0, samples), around(2.0, samples), "f32".to_owned());
            let evidence = vec![Evidence { bytes: from_bytes, choice, stock, launches: 1, dtype, ranking: Vec::new() }];
            let (function, dtype) = (name.to_owned(), "f32".to_owned());
            FunctionRange { from_bytes, to_bytes, function, dtype, op: None, evidence }
        };
        let mut tables = [table(&[(0, None, STOCK, &[])]), table(&[(0, None, STOCK, &[])])];
        tables[0].cells[0].functions = vec![named("few", 64, 1024, 10), named("alone", 4096, 8192, 10)];
        tables[1].cells[0].functions = vec![named("many", 512, 2048, 20)];
        let (merged, _) = merge(&tables).unwrap();
        let names: Vec<&str> = merged.functions().map(|(_, range)| range.function.as_str()).collect();
        assert_eq!(names, ["many", "alone"]);
    }

    fn choices(table: &TuningTable, sizes: &[u64]) -> Vec<String> {
        let plan = |&bytes: &u64| table.find(Collective::AllReduce, bytes).unwrap().plan.clone();
        sizes.iter().map(|bytes| plan(bytes).unwrap_or_else(|| STOCK.to_owned())).collect()
    }

    #[test]
    fn tables_of_different_sizes_complete_each_other() {
        let small = table(&[
            (0, Some(64), STOCK, &[]),
            (64, Some(1025), "ring", &[(64, 2.0, 20), (1024, 2.0, 20)]),
            (1025, None, STOCK, &[]),
        ]);
        let large = table(&[
            (0, Some(4096), STOCK, &[]),
            (4096, Some(8193), "tree", &[(4096, 1.5, 20), (8192, 1.5, 20)]),
            (8193, None, STOCK, &[]),
        ]);
        for tables in [[small.clone(), large.clone()], [large, small]] {
            let (merged, conflicts) = merge(&tables).unwrap();
            assert_eq!(conflicts, []);
            let expected = [STOCK, "ring", "ring", STOCK, STOCK, "tree", "tree", STOCK];
            assert_eq!(choices(&merged, &[63, 64, 1024, 1025, 4095, 4096, 8192, 8193]), expected);
            assert_eq!(merged.plans.len(), 2);
            let evidence: usize = merged.cells[0].ranges.iter().map(|range| range.evidence.len()).sum();
            assert_eq!(evidence, 4);
        }
    }

    #[test]
    fn evidence_decides_and_more_of_it_wins_a_tie() {
        let of = |plan, gain, samples| {
            table(&[
                (0, Some(64), STOCK, &[]),
                (64, Some(129), plan, &[(64, gain, samples), (128, gain, samples)]),
                (129, None, STOCK, &[]),
            ])
        };
        for (one, other, expected, why) in [
            (of("ring", 2.0, 20), of("tree", 3.0, 20), "tree", "exceeds"),
            (of("ring", 2.0, 20), of("tree", 1.5, 90), "ring", "exceeds"),
            (of("ring", 2.0, 20), of("tree", 2.0, 90), "tree", "measured more"),
            (of("ring", 2.0, 20), of("tree", 2.0, 20), "ring", "comes first"),
            (of("ring", 2.0, 20), of(STOCK, 1.0, 20), STOCK, "nothing faster than stock"),
            (of("ring", 2.0, 90), of(STOCK, 1.0, 20), "ring", "measured more"),
        ] {
            let (merged, conflicts) = merge(&[one, other]).unwrap();
            assert_eq!(choices(&merged, &[63, 64, 100, 128, 129]), [STOCK, expected, expected, expected, STOCK]);
            assert!(
                !conflicts.is_empty() && conflicts.iter().all(|conflict| conflict.why.contains(why)),
                "{conflicts:?}"
            );
            let dropped: usize = merged.plans.len();
            assert_eq!(dropped, usize::from(expected != STOCK), "plans that nothing uses are gone");
        }
    }

    #[test]
    fn a_name_that_two_plans_have_becomes_two_names() {
        let one = table(&[(0, Some(64), "ring", &[(8, 2.0, 20)]), (64, None, STOCK, &[])]);
        let mut other =
            table(&[(0, Some(64), STOCK, &[]), (64, Some(128), "ring", &[(64, 2.0, 20)]), (128, None, STOCK, &[])]);
        other.plans.insert("ring".to_owned(), Value::from("another"));
        let (merged, _) = merge(&[one.clone(), other.clone()]).unwrap();
        assert_eq!(choices(&merged, &[8, 64]), ["ring", "ring (2)"]);
        assert_eq!(merged.plans["ring (2)"], Value::from("another"));
        // With itself, a table stays as it is.
        assert_eq!(merge(&[other.clone(), other.clone()]).unwrap(), (other, vec![]));
        let (mut elsewhere, mut later) = (one.clone(), one.clone());
        elsewhere.key.machines = vec![0, 1];
        later.key.version = "2".to_owned();
        assert!(merge(&[one.clone(), elsewhere]).unwrap_err().contains("machines"));
        assert!(merge(&[one, later]).unwrap_err().contains("version 2"));
        assert!(merge(&[]).is_err());
    }

    #[test]
    fn what_was_measured_elsewhere_or_with_other_elements_is_not_mixed() {
        let real =
            table(&[(0, Some(64), STOCK, &[]), (64, Some(65), "ring", &[(64, 2.0, 20)]), (65, None, STOCK, &[])]);
        let (mut emulated, mut doubles) = (real.clone(), real.clone());
        emulated.key.topology = Some("ab".repeat(32));
        doubles.cells[0].ranges[1].evidence[0].dtype = "f64".to_owned();
        for tables in [[real.clone(), emulated.clone()], [emulated.clone(), real.clone()]] {
            let refused = merge(&tables).unwrap_err();
            assert!(refused.contains("emulated") && refused.contains("real machines"), "{refused}");
        }
        assert_eq!(merge(&[emulated.clone(), emulated.clone()]).unwrap().0, emulated);
        let refused = merge(&[real.clone(), doubles.clone()]).unwrap_err();
        assert!(refused.contains("allreduce was measured with f64, and not f32"), "{refused}");
        // Other collectives may have other elements.
        doubles.cells[0].collective = Collective::AllGather;
        assert_eq!(merge(&[real, doubles]).unwrap().0.cells.len(), 2);
    }

    #[test]
    fn where_a_plan_has_lost_its_measurements_stock_serves() {
        let plan =
            table(&[(0, Some(64), STOCK, &[]), (64, Some(1025), "ring", &[(64, 2.0, 20)]), (1025, None, STOCK, &[])]);
        let stock = table(&[(0, None, STOCK, &[(64, 1.0, 90)])]);
        let (merged, _) = merge(&[plan, stock]).unwrap();
        assert_eq!(choices(&merged, &[64, 65, 1024]), [STOCK; 3]);
        assert!(merged.plans.is_empty() && merged.cells[0].ranges.len() == 1, "{merged:?}");
    }

    /// Whatever is merged, each size has a choice that some table has measured there, or stock.
    #[test]
    fn every_size_of_random_tables_has_a_choice_that_some_table_measured() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let mut random = || {
                let (low, length) = (1 + next(40), 1 + next(40));
                let plan = ["ring", "tree", STOCK][next(3) as usize];
                let (gain, samples) = (1.1 + next(9) as f64, 8 + next(20) as u32);
                let measured = [(low, gain, samples), (low + length - 1, gain, samples)];
                table(&[
                    (0, Some(low), STOCK, &[]),
                    (low, Some(low + length), plan, &measured),
                    (low + length, None, STOCK, &[]),
                ])
            };
            let tables = [random(), random(), random()];
            let (merged, _) = merge(&tables).unwrap();
            assert_eq!(merged.check(), Ok(()));
            for bytes in 0..90 {
                let claims = |table: &TuningTable| {
                    let middle = &table.cells[0].ranges[1];
                    holds((middle.from_bytes, middle.to_bytes), bytes).then(|| middle.plan.clone())
                };
                let claims: Vec<Option<String>> = tables.iter().filter_map(claims).collect();
                let own = merged.find(Collective::AllReduce, bytes).unwrap().plan.clone();
                assert!(own.is_none() || claims.contains(&own), "{bytes}: {claims:?} {own:?}");
            }
            let plans = merged.cells[0].ranges.iter().filter(|range| range.plan.is_some());
            assert!(plans.clone().all(|range| !range.evidence.is_empty()), "{merged:?}");
        }
    }
}
