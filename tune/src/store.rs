//! The tuning table: for each collective a map from all sizes to a plan or stock, with what was measured.
//!
//! The principal type is [`TuningTable`], a file of format `antiphon-table/1`. It holds its plans, so it needs no other file.
//! Its ranges are disjoint and total: every size is in exactly one. Where nothing was measured, stock is the choice.

use crate::files::{self, TableError};
use crate::key::{self, TableKey};
use crate::links::MachineLinks;
use crate::{Choice, Summary, decide};
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// The most characters of a plan's name.
const LONGEST_NAME: usize = 200;

/// The most measurements of one size: nobody makes so many, and their sums over all sizes of a file are numbers.
const MOST_SAMPLES: usize = 1 << 32;

/// The name of stock where a table is shown.
pub const STOCK: &str = "stock";

/// What was measured at one size of a range.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The size, in bytes as the collective counts them.
    pub bytes: u64,
    /// The choice's times.
    pub choice: Summary,
    /// Stock's times.
    pub stock: Summary,
    /// In how many launches of the ranks.
    pub launches: u32,
    /// What was measured: the type of elements.
    pub dtype: String,
    /// All candidates that were timed, the fastest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranking: Vec<RankedTime>,
}

/// The place of a candidate among all at one size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankedTime {
    /// The candidate.
    pub name: String,
    /// Its median in microseconds.
    pub median_us: f64,
    /// How many measurements; 0 for a candidate that took so long in a few calls that it was measured no further.
    pub samples: usize,
    /// Of stock: the name of the plan that served its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

impl Evidence {
    /// Why it cannot have been measured for these sizes, if that is so.
    fn fault(&self, from_bytes: u64, to_bytes: Option<u64>) -> Option<String> {
        if self.bytes < from_bytes || to_bytes.is_some_and(|end| self.bytes >= end) {
            return Some(format!("what was measured at {} bytes does not belong here", self.bytes));
        }
        if self.launches == 0 {
            return Some(format!("what was measured at {} bytes comes from no launch", self.bytes));
        }
        // A choice may reach over a size at which it was not measured itself.
        let is_possible = |of: &Summary| {
            let times = [of.min_us, of.median_us, of.max_us, of.low_us, of.high_us, of.p99_us];
            let in_order =
                [of.min_us, of.low_us, of.median_us, of.high_us, of.max_us].is_sorted() && of.p99_us <= of.max_us;
            let is_measured = of.samples > 0 && in_order && times.iter().all(|time| time.is_finite() && *time > 0.0);
            is_measured || *of == Summary::default()
        };
        let counts =
            [self.choice.samples, self.stock.samples].into_iter().chain(self.ranking.iter().map(|of| of.samples));
        if counts.max().is_some_and(|most| most > MOST_SAMPLES) {
            return Some(format!("what was measured at {} bytes has more samples than anybody measures", self.bytes));
        }
        let in_order = self.ranking.is_sorted_by(|one, other| one.median_us <= other.median_us);
        let all = is_possible(&self.choice) && is_possible(&self.stock) && in_order;
        (!all).then(|| format!("the times that were measured at {} bytes contradict each other", self.bytes))
    }

    /// Why a choice other than stock cannot rest on it, if that is so.
    fn loss(&self) -> Option<String> {
        let is_slower = decide(&self.stock, &self.choice).choice == Choice::Stock;
        is_slower.then(|| format!("at {} bytes it was measured to be slower than stock", self.bytes))
    }
}

/// Sizes that have the same choice.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChoiceRange {
    /// From this size on (inclusive), in bytes as the collective counts them.
    pub from_bytes: u64,
    /// Up to this size (exclusive); `None` for no end.
    pub to_bytes: Option<u64>,
    /// The name of a plan in [`TuningTable::plans`]; `None` for stock.
    pub plan: Option<String>,
    /// The sizes that were measured.
    pub evidence: Vec<Evidence>,
}

#[cfg(test)]
impl ChoiceRange {
    /// A range of which nothing was measured.
    pub(crate) fn unmeasured(from_bytes: u64, to_bytes: Option<u64>, plan: Option<&str>) -> Self {
        Self { from_bytes, to_bytes, plan: plan.map(str::to_owned), evidence: Vec::new() }
    }
}

/// Sizes at which a function was faster than everything that a file can hold. It serves calls like those that were measured, in a
/// program that has given it to the library under this name on all ranks; other calls are served by [`TableCell::ranges`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionRange {
    /// From this size on (inclusive), in bytes as the collective counts them.
    pub from_bytes: u64,
    /// Up to this size (exclusive).
    pub to_bytes: u64,
    /// The name of the function.
    pub function: String,
    /// The type of elements.
    pub dtype: String,
    /// How they are reduced, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<ReduceOp>,
    /// The sizes that were measured.
    pub evidence: Vec<Evidence>,
}

/// Which calls a cell was measured for. Of each, a table has one cell at most.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CellClass {
    /// The operation.
    pub collective: Collective,
    /// How elements are reduced; `None` for any reduction.
    pub op: Option<ReduceOp>,
    /// The type of elements; `None` for any.
    pub dtype: Option<String>,
    /// Whether calls are in place; `None` for both.
    pub in_place: Option<bool>,
}

/// The ranges of one class of calls. They also serve calls of the same collective for which a table has no cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableCell {
    /// The operation.
    pub collective: Collective,
    /// How elements were reduced; absent for any reduction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<ReduceOp>,
    /// The type of elements; absent for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Whether calls were in place; absent for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<bool>,
    /// In ascending order.
    pub ranges: Vec<ChoiceRange>,
    /// Where functions are faster than these; in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionRange>,
}

impl TableCell {
    /// The cell of calls of any kind.
    pub fn of_any(collective: Collective, ranges: Vec<ChoiceRange>) -> Self {
        Self { collective, op: None, dtype: None, in_place: None, ranges, functions: Vec::new() }
    }

    /// The calls for which it was measured.
    pub fn class(&self) -> CellClass {
        let Self { collective, op, dtype, in_place, .. } = self;
        CellClass { collective: *collective, op: *op, dtype: dtype.clone(), in_place: *in_place }
    }
}

impl fmt::Display for CellClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, op, dtype, in_place } = self;
        write!(f, "{collective}")?;
        op.iter().try_for_each(|op| write!(f, " {op}"))?;
        dtype.iter().try_for_each(|dtype| write!(f, " {dtype}"))?;
        in_place.iter().try_for_each(|is| f.write_str(if *is { " in place" } else { " out of place" }))
    }
}

/// Measured choices for the calls of some ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningTable {
    /// Always [`TuningTable::FORMAT`].
    pub format: String,
    /// For whom.
    pub key: TableKey,
    /// What messages between machines cost, where the ranks are on several; stock follows from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<MachineLinks>,
    /// By collective.
    pub cells: Vec<TableCell>,
    /// The plans by their names, as `antiphon-schedule/1`.
    #[serde(deserialize_with = "files::each_name_once")]
    pub plans: BTreeMap<String, Value>,
}

impl TuningTable {
    /// The format of the files.
    pub const FORMAT: &str = "antiphon-table/1";
    /// The rules of measuring and choosing. A table that other rules have made is not used.
    pub const POLICY: u32 = key::POLICY;

    /// A table of choices, with the plans that they name.
    pub fn new(key: TableKey, cells: Vec<TableCell>, plans: BTreeMap<String, Value>) -> Self {
        Self { format: Self::FORMAT.to_owned(), key, links: None, cells, plans }
    }

    /// All ranges, each with its collective.
    pub fn ranges(&self) -> impl Iterator<Item = (Collective, &ChoiceRange)> {
        self.cells.iter().flat_map(|cell| cell.ranges.iter().map(move |range| (cell.collective, range)))
    }

    /// All ranges of functions, each with its collective.
    pub fn functions(&self) -> impl Iterator<Item = (Collective, &FunctionRange)> {
        self.cells.iter().flat_map(|cell| cell.functions.iter().map(move |range| (cell.collective, range)))
    }

    /// The range of a size, in the first cell of a collective.
    pub fn find(&self, collective: Collective, bytes: u64) -> Option<&ChoiceRange> {
        let cell = self.cells.iter().find(|cell| cell.collective == collective)?;
        let after = cell.ranges.partition_point(|range| range.from_bytes <= bytes);
        cell.ranges.get(after.checked_sub(1)?)
    }

    /// Checks that every size of a collective is in exactly one range, and that all plans are there.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.format != Self::FORMAT {
            return Err(format!("the format is `{}`, and not `{}`", self.format, Self::FORMAT));
        }
        self.key.check()?;
        self.links.iter().try_for_each(|links| links.check(self.key.machine_count()))?;
        self.check_names()?;
        let mut seen = BTreeSet::new();
        if let Some(class) = self.cells.iter().map(TableCell::class).find(|class| !seen.insert(class.clone())) {
            return Err(format!("{class} comes twice"));
        }
        for TableCell { collective, op, ranges, functions, .. } in &self.cells {
            if op.is_some() && !collective.combines() {
                return Err(format!("{collective} reduces nothing"));
            }
            let mut next = Some(0);
            for range in ranges {
                let ChoiceRange { from_bytes, to_bytes, plan, evidence } = range;
                if next != Some(*from_bytes) || to_bytes.is_some_and(|end| end <= *from_bytes) {
                    return Err(format!("{collective}: the ranges have a gap or overlap at {from_bytes} bytes"));
                }
                next = *to_bytes;
                if let Some(plan) = plan.as_ref().filter(|plan| !self.plans.contains_key(*plan)) {
                    return Err(format!(
                        "{collective}, {from_bytes} bytes: there is no plan `{}`",
                        topology::shorten(plan)
                    ));
                }
                let loss = || evidence.iter().filter(|_| plan.is_some()).find_map(Evidence::loss);
                let fault = evidence.iter().find_map(|evidence| evidence.fault(*from_bytes, *to_bytes));
                if let Some(fault) = fault.or_else(loss) {
                    return Err(format!("{collective}, {from_bytes} bytes: {fault}"));
                }
            }
            if let Some(end) = next {
                return Err(format!("{collective}: no range holds {end} bytes"));
            }
            let mut end = 0;
            for FunctionRange { from_bytes, to_bytes, evidence, .. } in functions {
                if *from_bytes < end || to_bytes <= from_bytes {
                    return Err(format!("{collective}: functions overlap at {from_bytes} bytes"));
                }
                end = *to_bytes;
                let loss = || evidence.iter().find_map(Evidence::loss);
                let fault = evidence.iter().find_map(|of| of.fault(*from_bytes, Some(*to_bytes)));
                if let Some(fault) = fault.or_else(loss) {
                    return Err(format!("{collective}, functions from {from_bytes} bytes on: {fault}"));
                }
            }
        }
        Ok(())
    }

    /// # Errors
    /// A name that is none.
    fn check_names(&self) -> Result<(), String> {
        let is_name = |name: &str| name.chars().all(topology::is_printable) && name.chars().count() <= LONGEST_NAME;
        let ranked = self.ranges().flat_map(|(_, range)| &range.evidence).flat_map(|evidence| &evidence.ranking);
        let functions = self.functions().map(|(_, range)| &range.function);
        let mut names = self.plans.keys().chain(functions).chain(ranked.map(|of| &of.name));
        if let Some(name) = names.find(|name| !is_name(name)) {
            let name = topology::shorten(name);
            return Err(format!(
                "`{name}` is no name of a plan: it is too long, or has characters that are not printable"
            ));
        }
        let mut named = self.plans.keys().chain(self.functions().map(|(_, range)| &range.function));
        if named.any(|name| name == STOCK) {
            return Err(format!("`{STOCK}` is no name of a plan: it means that there is none"));
        }
        Ok(())
    }

    /// Reads a table from its text; `origin` names the source in errors.
    ///
    /// # Errors
    /// [`TableError`] with the position of the mistake.
    pub fn parse(text: &str, origin: &str) -> Result<Self, TableError> {
        let table: Self = files::parse(text, origin)?;
        table.sensible(origin)
    }

    /// Reads and checks a table.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let table: Self = files::read(path)?;
        table.sensible(&path.display().to_string())
    }

    fn sensible(self, origin: &str) -> Result<Self, TableError> {
        match self.check() {
            Ok(()) => Ok(self),
            Err(what) => Err(TableError::Senseless { path: origin.to_owned(), what }),
        }
    }

    /// Whether a table can be written to a file, before it is there.
    ///
    /// # Errors
    /// [`TableError::Io`].
    pub fn can_write(path: &Path) -> Result<(), TableError> {
        files::can_write(path)
    }

    /// Writes the table so that a reader sees the old one or the new one, never a mixture.
    ///
    /// # Errors
    /// [`TableError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        files::write(self, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summarize;

    fn table() -> TuningTable {
        let times = summarize(&[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]).unwrap();
        let evidence = |bytes| Evidence {
            bytes,
            choice: times,
            stock: times,
            launches: 3,
            dtype: "f32".to_owned(),
            ranking: Vec::new(),
        };
        let range = |from_bytes, to_bytes, plan: Option<&str>| ChoiceRange {
            from_bytes,
            to_bytes,
            plan: plan.map(str::to_owned),
            evidence: vec![evidence(from_bytes)],
        };
        let ranges = vec![range(0, Some(64), None), range(64, Some(4096), Some("ring")), range(4096, None, None)];
        let function = FunctionRange {
            from_bytes: 256,
            to_bytes: 1025,
            function: "mine".to_owned(),
            dtype: "f32".to_owned(),
            op: Some(ReduceOp::Sum),
            evidence: vec![evidence(1024)],
        };
        TuningTable::new(
            TableKey::of(vec![0, 1], "1"),
            vec![TableCell { functions: vec![function], ..TableCell::of_any(Collective::AllReduce, ranges) }],
            [("ring".to_owned(), Value::from(1))].into(),
        )
    }

    fn measured(table: &mut TuningTable) -> &mut Evidence {
        &mut table.cells[0].ranges[1].evidence[0]
    }

    fn ranked(samples: usize) -> RankedTime {
        RankedTime { name: "ring".to_owned(), median_us: 1.0, samples, plan: None }
    }

    #[test]
    fn a_collective_has_a_cell_for_each_class_of_calls() {
        let mut table = table();
        let plain = TableCell::of_any(Collective::AllReduce, table.cells[0].ranges.clone());
        table.cells.extend([
            TableCell { op: Some(ReduceOp::Max), ..plain.clone() },
            TableCell { dtype: Some("f64".to_owned()), ..plain.clone() },
            TableCell { in_place: Some(true), ..plain },
        ]);
        assert_eq!(TuningTable::parse(&files::text(&table).unwrap(), "t").unwrap(), table);
    }

    #[test]
    fn every_size_has_one_range() {
        let table = table();
        assert_eq!(table.check(), Ok(()));
        let plan = |bytes| table.find(Collective::AllReduce, bytes).unwrap().plan.as_deref();
        assert_eq!([0, 63, 64, 4095, 4096, u64::MAX].map(plan), [None, None, Some("ring"), Some("ring"), None, None]);
        assert!(table.find(Collective::AllGather, 1).is_none());
    }

    #[test]
    fn tables_that_contradict_themselves_are_refused() {
        type Change = fn(&mut TuningTable);
        let changes: [(Change, &str); 27] = [
            (|table| table.cells[0].ranges[1].from_bytes = 65, "a gap or overlap at 65"),
            (|table| table.cells[0].ranges[1].from_bytes = 63, "a gap or overlap at 63"),
            (|table| table.cells[0].ranges[2].to_bytes = Some(5000), "no range holds 5000 bytes"),
            (|table| table.cells[0].ranges[1].plan = Some("tree".to_owned()), "no plan `tree`"),
            (|table| table.cells.push(table.cells[0].clone()), "allreduce comes twice"),
            (|table| table.key.ranks = 3, "has 3 ranks, and the machines of 2"),
            (|table| table.key.machines[1] = u32::MAX, "machine 4294967295 of rank 1"),
            (|table| measured(table).choice.samples = 10_000_000_000_000_000_000, "more samples than anybody measures"),
            (|table| table.cells[0].ranges[0].evidence[0].ranking = vec![ranked(usize::MAX)], "more samples"),
            (
                |table| {
                    table.cells[0].op = Some(ReduceOp::Max);
                    table.cells.push(table.cells[0].clone());
                },
                "allreduce max comes twice",
            ),
            (
                |table| {
                    let ranges = table.cells[0].ranges.clone();
                    let cell = TableCell::of_any(Collective::AllGather, ranges);
                    table.cells.push(TableCell { op: Some(ReduceOp::Sum), ..cell });
                },
                "allgather reduces nothing",
            ),
            (|table| table.cells[0].ranges.clear(), "no range holds 0 bytes"),
            (|table| measured(table).bytes = 1 << 40, "does not belong here"),
            (|table| measured(table).launches = 0, "comes from no launch"),
            (|table| measured(table).choice.median_us = -5.0, "contradict each other"),
            (|table| measured(table).stock.low_us = 1e9, "contradict each other"),
            (|table| measured(table).stock.samples = 0, "contradict each other"),
            (|table| measured(table).choice.low_us = 2.5, "contradict each other"),
            (|table| measured(table).choice = summarize(&[9.0; 20]).unwrap(), "slower than stock"),
            (
                |table| table.cells[0].functions[0].evidence[0].choice = summarize(&[9.0; 20]).unwrap(),
                "slower than stock",
            ),
            (|table| drop(table.plans.insert(STOCK.to_owned(), Value::Null)), "`stock` is no name"),
            (|table| table.cells[0].functions[0].function = STOCK.to_owned(), "`stock` is no name"),
            (|table| table.cells[0].functions[0].to_bytes = 256, "functions overlap at 256"),
            (
                |table| {
                    table.cells[0].functions =
                        [table.cells[0].functions.clone(), table.cells[0].functions.clone()].concat()
                },
                "functions overlap at 256",
            ),
            (|table| table.cells[0].functions[0].evidence[0].bytes = 2000, "does not belong here"),
            (|table| table.cells[0].functions[0].function.push('\n'), "is no name of a plan"),
            (|table| drop(table.plans.insert("\u{1b}[31m\u{202e}".to_owned(), Value::Null)), "\\u{1b}[31m\\u{202e}"),
        ];
        for (change, expected) in changes {
            let mut table = table();
            change(&mut table);
            let error = TuningTable::parse(&files::text(&table).unwrap(), "t.json").unwrap_err().to_string();
            assert!(error.starts_with("t.json: ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_plan_that_comes_twice_is_refused() {
        let text = files::text(&table()).unwrap().replace("\"ring\": 1", "\"ring\": 1, \"ring\": 2");
        let error = TuningTable::parse(&text, "t.json").unwrap_err().to_string();
        assert!(error.contains("`ring` comes twice"), "{error}");
    }

    #[test]
    fn what_is_written_is_read_and_a_part_of_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        table().write(&path).unwrap();
        table().write(&path).unwrap();
        assert_eq!(TuningTable::read(&path).unwrap(), table());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        let text = std::fs::read_to_string(&path).unwrap();
        for length in (0..text.len() - 2).step_by(17) {
            assert!(matches!(TuningTable::parse(&text[..length], "x"), Err(TableError::Syntax { .. })), "{length}");
        }
        assert!(TuningTable::read(&folder.path().join("none.json")).is_err());
    }
}
