//! `antiphon tune diff`: where two tables differ.

use super::show::read;
use crate::failure::Outcome;
use crate::screen::{Screen, bytes, table as columns, time};
use schedule::Collective;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use tune::{STOCK, TuningTable};

/// Something that two tables have, and is not the same.
#[derive(Serialize)]
struct DifferentValue {
    what: String,
    first: String,
    second: String,
}

/// Everything that differs.
#[derive(Serialize)]
struct TableDifferences {
    /// For whom the tables are, by the name of the field.
    key: Vec<DifferentValue>,
    /// Choices: the collective, from which size on, and what each table chooses.
    differences: Vec<[String; 4]>,
    /// Names that both use for different plans.
    plans: Vec<String>,
    /// Sizes at which the choice is the same and was measured otherwise: medians.
    measured: Vec<DifferentValue>,
}

pub(super) fn diff(first: &Path, second: &Path, screen: &Screen) -> Outcome {
    let tables = [read(first)?, read(second)?];
    let [one, other] = &tables;
    let is_other =
        |(name, plan): (&String, _)| other.plans.get(name).is_some_and(|of| of != plan).then(|| name.clone());
    let found = TableDifferences {
        key: keys(&tables),
        differences: choices(&tables),
        plans: one.plans.iter().filter_map(is_other).collect(),
        measured: measured(&tables),
    };
    screen.result(
        &serde_json::json!({
            "format": "antiphon-tune-diff/1", "keys": [&one.key, &other.key], "same_key": found.key.is_empty(),
            "key": found.key, "differences": found.differences, "plans": found.plans, "measured": found.measured,
        }),
        || text(&found),
    )
}

/// The fields of the keys that differ.
fn keys([one, other]: &[TuningTable; 2]) -> Vec<DifferentValue> {
    let fields = |table: &TuningTable| serde_json::to_value(&table.key).ok().and_then(|key| key.as_object().cloned());
    let [one, other] = [one, other].map(|table| fields(table).unwrap_or_default());
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let shown = |of: &serde_json::Map<String, serde_json::Value>, name: &str| {
        let value = of.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        topology::shorten(&value.unwrap_or_else(|| "-".to_owned()))
    };
    let different = names.into_iter().filter(|name| one.get(*name) != other.get(*name));
    let row =
        |name: &String| DifferentValue { what: name.clone(), first: shown(&one, name), second: shown(&other, name) };
    different.map(row).collect()
}

/// What a table chooses: a plan or stock, and a function that serves before it.
struct ChosenWays<'a> {
    plan: Option<&'a String>,
    content: Option<&'a serde_json::Value>,
    function: Option<&'a tune::FunctionRange>,
}

impl<'a> ChosenWays<'a> {
    fn of(table: &'a TuningTable, collective: Collective, at: u64) -> Self {
        let plan = table.find(collective, at).and_then(|range| range.plan.as_ref());
        let holds = |range: &tune::FunctionRange| range.from_bytes <= at && at < range.to_bytes;
        let mut functions = table.functions().filter(|(of, range)| *of == collective && holds(range));
        let content = plan.and_then(|plan| table.plans.get(plan));
        Self { plan, content, function: functions.next().map(|(_, range)| range) }
    }

    fn is_as(&self, other: &Self) -> bool {
        let function = |of: &Self| of.function.map(|range| (range.function.clone(), range.dtype.clone(), range.op));
        // Two names of one plan are no difference.
        self.content == other.content && function(self) == function(other)
    }

    fn text(&self) -> String {
        let plan = self.plan.cloned().unwrap_or_else(|| STOCK.to_owned());
        match self.function {
            Some(tune::FunctionRange { function, dtype, op, .. }) => {
                let op = op.map_or_else(String::new, |op| format!(" {op}"));
                format!("{function} (function, {dtype}{op}), else {plan}")
            }
            None => plan,
        }
    }
}

/// From which sizes on the choices differ, and how.
fn choices([one, other]: &[TuningTable; 2]) -> Vec<[String; 4]> {
    let collectives: BTreeSet<Collective> = one.cells.iter().chain(&other.cells).map(|cell| cell.collective).collect();
    let mut rows: Vec<[String; 4]> = Vec::new();
    for collective in collectives {
        let cells = || one.cells.iter().chain(&other.cells).filter(|cell| cell.collective == collective);
        let ranges = cells().flat_map(|cell| &cell.ranges).map(|range| range.from_bytes);
        let functions = cells().flat_map(|cell| &cell.functions).flat_map(|range| [range.from_bytes, range.to_bytes]);
        let edges: BTreeSet<u64> = ranges.chain(functions).collect();
        for at in edges {
            let [a, b] = [one, other].map(|table| ChosenWays::of(table, collective, at));
            if a.is_as(&b) {
                continue;
            }
            let [first, mut second] = [a.text(), b.text()];
            if first == second {
                second.push_str(" (another plan)");
            }
            rows.push([collective.to_string(), bytes(at), first, second]);
        }
    }
    rows
}

/// Sizes that only one has measured, or both with other results, where they choose the same.
fn measured([one, other]: &[TuningTable; 2]) -> Vec<DifferentValue> {
    let evidence = |table: &TuningTable| -> BTreeSet<(Collective, u64)> {
        table.ranges().flat_map(|(of, range)| range.evidence.iter().map(move |it| (of, it.bytes))).collect()
    };
    let at = |table: &TuningTable, (collective, size)| {
        let range = table.find(collective, size)?;
        range.evidence.iter().find(|evidence| evidence.bytes == size).cloned()
    };
    let mut rows = Vec::new();
    for place in evidence(one).union(&evidence(other)) {
        let ways = [one, other].map(|table| ChosenWays::of(table, place.0, place.1));
        let [a, b] = [one, other].map(|table| at(table, *place));
        if a == b || !ways[0].is_as(&ways[1]) {
            continue;
        }
        let shown = |of: Option<tune::Evidence>| match of {
            None => "-".to_owned(),
            Some(of) => format!("{} ({} times, {})", time(of.choice.median_us), of.choice.samples, of.dtype),
        };
        rows.push(DifferentValue {
            what: format!("{} {}", place.0, bytes(place.1)),
            first: shown(a),
            second: shown(b),
        });
    }
    rows
}

fn text(found: &TableDifferences) -> String {
    let rows = |of: &[DifferentValue]| -> Vec<Vec<String>> {
        of.iter().map(|row| vec![row.what.clone(), row.first.clone(), row.second.clone()]).collect()
    };
    let mut parts: Vec<String> = Vec::new();
    if !found.key.is_empty() {
        let listed = columns(&["key", "first", "second"], &rows(&found.key));
        parts.push(format!("the tables are for different ranks or rules\n{listed}"));
    }
    parts.push(match found.differences.is_empty() {
        true => "no size has another choice".to_owned(),
        false => {
            let differences: Vec<Vec<String>> = found.differences.iter().map(|row| row.to_vec()).collect();
            columns(&["collective", "from", "first", "second"], &differences)
        }
    });
    if !found.measured.is_empty() {
        let listed = columns(&["measured", "first", "second"], &rows(&found.measured));
        parts.push(format!("the same choices were measured otherwise\n{listed}"));
    }
    parts.join("\n\n")
}
