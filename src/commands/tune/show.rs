//! What tables say, for people.

use super::winners::{self, WinnerMap};
use crate::failure::{Failure, Outcome, write_to};
use crate::screen::{Screen, bytes, table as columns, time};
use schedule::Collective;
use serde::Serialize;
use std::path::Path;
use topology::counted;
use tune::{ChoiceRange, Evidence, FunctionRange, GuidelineViolation, STOCK, TuningTable};

/// A range of a table, as it is shown.
#[derive(Serialize)]
pub(super) struct ShownRange {
    collective: Collective,
    from_bytes: u64,
    to_bytes: Option<u64>,
    choice: String,
    /// Whether the choice is a function, which serves in programs that have it; another range says what else does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_function: bool,
    /// Stock's median by that of the choice, at the measured size of the range where it is the least.
    #[serde(skip_serializing_if = "Option::is_none")]
    least_speedup: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    most_speedup: Option<f64>,
    /// Samples of the choice, at all measured sizes.
    samples: usize,
}

pub(super) fn read(path: &Path) -> Outcome<TuningTable> {
    TuningTable::read(path).map_err(Failure::bad_input)
}

pub(super) fn rows(table: &TuningTable) -> Vec<ShownRange> {
    let rows = table.cells.iter().flat_map(|cell| {
        let ranges = cell.ranges.iter().map(|range| shown(cell.collective, range));
        ranges.chain(cell.functions.iter().map(|range| shown_function(cell.collective, range)))
    });
    rows.collect()
}

fn shown(collective: Collective, range: &ChoiceRange) -> ShownRange {
    let ChoiceRange { from_bytes, to_bytes, plan, evidence } = range;
    let choice = plan.clone().unwrap_or_else(|| STOCK.to_owned());
    ShownRange::new(collective, (*from_bytes, *to_bytes), choice, evidence)
}

fn shown_function(collective: Collective, range: &FunctionRange) -> ShownRange {
    let FunctionRange { from_bytes, to_bytes, function, evidence, .. } = range;
    let shown = ShownRange::new(collective, (*from_bytes, Some(*to_bytes)), function.clone(), evidence);
    ShownRange { is_function: true, ..shown }
}

impl ShownRange {
    fn new(
        collective: Collective,
        (from_bytes, to_bytes): (u64, Option<u64>),
        choice: String,
        evidence: &[Evidence],
    ) -> Self {
        let is_stock = choice == STOCK;
        let speedups = || {
            let measured = evidence.iter().filter(|_| !is_stock);
            measured.map(|evidence| evidence.stock.median_us / evidence.choice.median_us)
        };
        Self {
            collective,
            from_bytes,
            to_bytes,
            choice,
            is_function: false,
            least_speedup: speedups().reduce(f64::min),
            most_speedup: speedups().reduce(f64::max),
            samples: evidence.iter().map(|evidence| evidence.choice.samples).sum(),
        }
    }
}

/// The table as text.
pub(super) fn text(table: &TuningTable) -> String {
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |range: ShownRange| {
        let gain = range.least_speedup.zip(range.most_speedup);
        vec![
            range.collective.to_string(),
            bytes(range.from_bytes),
            range.to_bytes.map_or_else(|| "∞".to_owned(), |end| bytes(end - 1)),
            if range.is_function { format!("{} (function)", range.choice) } else { range.choice },
            dash(gain.map(|(least, most)| format!("{least:.2}–{most:.2}×"))),
            range.samples.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = rows(table).into_iter().map(row).collect();
    columns(&["collective", "from", "to", "choice", "faster than stock", "samples"], &rows)
}

pub(super) fn show(path: &Path, svg: Option<&Path>, screen: &Screen) -> Outcome {
    let table = read(path)?;
    let map = WinnerMap::new(&table);
    let machines = table.key.machines.iter().max().map_or(0, |last| last + 1);
    let title = format!("{} on {}", counted(table.key.ranks, "rank"), counted(machines as usize, "machine"));
    if let Some(svg) = svg {
        screen.may_write([&svg.to_owned()])?;
        write_to(svg, |out| out.write_all(winners::svg(&map, &title).as_bytes()))?;
    }
    let violations = tune::violations(&table);
    screen.result(
        &serde_json::json!({
            "format": "antiphon-tune-show/1", "key": table.key, "rows": rows(&table), "violations": violations,
        }),
        || {
            let drawn = if map.is_empty() {
                String::new()
            } else {
                format!("\n{}\n", map.terminal(screen.has_colours(), screen.width()))
            };
            format!("{title}\n{drawn}\n{}\n\n{}", text(&table), guidelines(&violations))
        },
    )
}

/// What the table's times should obey and do not.
pub(super) fn guidelines(violations: &[GuidelineViolation]) -> String {
    if violations.is_empty() {
        return "no call takes longer than others that do the same".to_owned();
    }
    let line = |of: &GuidelineViolation| {
        let (own, limit) = (time(of.time_us), time(of.limit_us));
        format!("{} {} takes {own}; {} would take {limit}", of.collective, bytes(of.bytes), of.guideline)
    };
    violations.iter().map(line).collect::<Vec<_>>().join("\n")
}
