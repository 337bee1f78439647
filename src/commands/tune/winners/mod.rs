//! What a table has measured, as a picture: who won at each size, by how much, and how sure that is.
//!
//! The principal type is [`WinnerMap`]. A collective has a row, a size a column. Sizes of two collectives that differ only
//! because each is a whole number of elements of all ranks are in one column.

mod svg;

pub(super) use svg::svg;

use crate::heatmap::colour;
use crate::screen::{bytes, table as columns, time};
use schedule::Collective;
use std::collections::BTreeSet;
use tune::{Evidence, STOCK, TuningTable};

/// Sizes that differ by at most this factor are in one column.
const SAME_COLUMN: f64 = 1.03;
/// From these gains on, a cell of the terminal is darker: the least that counts, and three steps more.
const STEPS: [(f64, char); 4] = [(1.0, '░'), (1.2, '▒'), (1.5, '▓'), (2.0, '█')];
/// The gain that has the brightest colour; larger ones have it too.
const MOST: f64 = 4.0;

/// What was measured at one size of a collective.
pub(super) struct WinnerCell {
    /// By its place among [`WinnerMap::names`]; `None` for stock.
    winner: Option<usize>,
    /// Stock's median by the winner's.
    gain: f64,
    /// Half of the interval of the gain, as a share of the gain.
    uncertainty: f64,
    /// All of it in words.
    words: String,
}

/// All that was measured, by collective and size.
pub(super) struct WinnerMap {
    /// The plans that won somewhere.
    names: Vec<String>,
    /// The sizes, one for each column, in bytes.
    sizes: Vec<u64>,
    rows: Vec<(Collective, Vec<Option<WinnerCell>>)>,
}

impl WinnerMap {
    pub(super) fn new(table: &TuningTable) -> Self {
        let evidence = || table.ranges().flat_map(|(_, range)| &range.evidence);
        let measured: BTreeSet<u64> = evidence().map(|evidence| evidence.bytes).collect();
        let mut sizes: Vec<u64> = Vec::new();
        for bytes in measured {
            if sizes.last().is_none_or(|last| bytes as f64 > *last as f64 * SAME_COLUMN) {
                sizes.push(bytes);
            }
        }
        let mut names: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for cell in &table.cells {
            let mut row: Vec<Option<WinnerCell>> = sizes.iter().map(|_| None).collect();
            let plans = cell.ranges.iter().map(|range| (range.plan.clone(), &range.evidence));
            // Where there is a function, it won against what the ranges say.
            let function = |name: &str| Some(format!("{name} (function)"));
            let functions = cell.functions.iter().map(|range| (function(&range.function), &range.evidence));
            for (name, measured) in plans.chain(functions) {
                let winner = name.as_ref().map(|name| {
                    names.iter().position(|known| known == name).unwrap_or_else(|| {
                        names.push(name.clone());
                        names.len() - 1
                    })
                });
                for evidence in measured {
                    let column = sizes.partition_point(|size| *size <= evidence.bytes).saturating_sub(1);
                    row[column] = Some(WinnerCell::new(winner, name.as_deref(), cell.collective, evidence));
                }
            }
            rows.push((cell.collective, row));
        }
        Self { names, sizes, rows }
    }

    /// Whether nothing was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The map as text of about `width` columns: if there are more sizes than that, one part below the other.
    pub(super) fn terminal(&self, coloured: bool, width: usize) -> String {
        let short = |cell: &Option<WinnerCell>| cell.as_ref().map_or_else(String::new, WinnerCell::short);
        let cells = self.rows.iter().flat_map(|(_, cells)| cells);
        let widest = cells.map(|cell| short(cell).chars().count()).max().unwrap_or(0) + 2;
        let named = self.rows.iter().map(|(collective, _)| collective.to_string().len()).max().unwrap_or(0);
        let together = (width.saturating_sub(named) / widest).max(1);
        let mut parts: Vec<String> = Vec::new();
        for (part, sizes) in self.sizes.chunks(together).enumerate() {
            let heads: Vec<String> = sizes.iter().map(|size| bytes(*size)).collect();
            let header: Vec<&str> = std::iter::once("").chain(heads.iter().map(String::as_str)).collect();
            let row = |(collective, cells): &(Collective, Vec<Option<WinnerCell>>)| {
                let cells = cells.iter().skip(part * together).take(sizes.len()).map(short);
                std::iter::once(collective.to_string()).chain(cells).collect()
            };
            let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
            parts.push(columns(&header, &rows));
        }
        let mut text = parts.join("\n\n");
        if coloured {
            for (gain, shade) in STEPS {
                let [red, green, blue] = colour(share(gain));
                text = text.replace(shade, &format!("\u{1b}[38;2;{red};{green};{blue}m█\u{1b}[0m"));
            }
        }
        for (index, name) in self.names.iter().enumerate() {
            text.push_str(&format!("\n{} = {name}", index + 1));
        }
        text
    }
}

/// The place of a gain on the scale of colours, from 0 to 1: by its logarithm.
fn share(gain: f64) -> f64 {
    (gain.max(1.0).ln() / MOST.ln()).min(1.0)
}

impl WinnerCell {
    fn new(winner: Option<usize>, name: Option<&str>, collective: Collective, evidence: &Evidence) -> Self {
        let Evidence { choice, stock, launches, .. } = evidence;
        // Stock's gain over itself is 1; its own noise says how sure its time is.
        let (gain, low, high) = match winner {
            Some(_) => {
                (stock.median_us / choice.median_us, stock.low_us / choice.high_us, stock.high_us / choice.low_us)
            }
            None => (1.0, choice.low_us / choice.median_us, choice.high_us / choice.median_us),
        };
        let uncertainty = (high - low) / 2.0 / gain;
        let words = format!(
            "{collective} {}: {}, {} against {} of stock, {gain:.2}× (±{:.0} %), {} samples in {launches} launches",
            bytes(evidence.bytes),
            name.unwrap_or(STOCK),
            time(choice.median_us),
            time(stock.median_us),
            uncertainty * 100.0,
            choice.samples,
        );
        Self { winner, gain, uncertainty, words }
    }

    /// How sure the gain is.
    fn noise(&self) -> String {
        match self.uncertainty {
            sure if sure < 1.0 => format!("±{:.0}%", sure * 100.0),
            _ => ">100%".to_owned(),
        }
    }

    /// In a few characters: the winner's number, its gain, and how sure that is.
    fn short(&self) -> String {
        let noise = self.noise();
        match self.winner {
            None => format!("· stock {noise}"),
            Some(winner) => {
                let shade = STEPS.iter().rev().find(|(from, _)| self.gain >= *from).map_or('░', |(_, shade)| *shade);
                format!("{shade} {} {:.2}× {noise}", winner + 1, self.gain)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{ChoiceRange, FunctionRange, Summary, TableCell, TableKey};

    fn around(centre: f64) -> Summary {
        Summary { median_us: centre, low_us: centre * 0.98, high_us: centre * 1.02, samples: 20, ..Summary::default() }
    }

    /// A table with a measured size of two collectives each, and a plan with a strange name.
    pub(super) fn table() -> TuningTable {
        let evidence = |bytes, choice, stock| {
            let (choice, stock, dtype) = (around(choice), around(stock), "f32".to_owned());
            vec![Evidence { bytes, choice, stock, launches: 2, dtype, ranking: Vec::new() }]
        };
        let range = |from_bytes, to_bytes, plan: Option<&str>, evidence| ChoiceRange {
            from_bytes,
            to_bytes,
            plan: plan.map(str::to_owned),
            evidence,
        };
        let ring = Some("a <ring> & \"b\"");
        TuningTable::new(
            TableKey::of(vec![0; 3], env!("CARGO_PKG_VERSION")),
            vec![
                TableCell::of_any(
                    Collective::AllReduce,
                    vec![
                        range(0, Some(4096), None, evidence(1024, 10.0, 10.0)),
                        range(4096, None, ring, evidence(4096, 10.0, 30.0)),
                    ],
                ),
                TableCell::of_any(Collective::AllGather, vec![range(0, None, ring, evidence(1020, 10.0, 11.0))]),
            ],
            [("a <ring> & \"b\"".to_owned(), 1.into())].into(),
        )
    }

    #[test]
    fn a_function_that_won_stands_in_its_place() {
        let mut table = table();
        let evidence = Evidence { choice: around(5.0), ..table.cells[0].ranges[0].evidence[0].clone() };
        let (function, dtype) = ("mine".to_owned(), "f32".to_owned());
        let range =
            FunctionRange { from_bytes: 1024, to_bytes: 1025, function, dtype, op: None, evidence: vec![evidence] };
        table.cells[0].functions = vec![range];
        let drawn = WinnerMap::new(&table).terminal(false, 200);
        assert!(drawn.contains("2.00×") && drawn.contains(" = mine (function)"), "{drawn}");
    }

    #[test]
    fn rows_are_collectives_and_columns_are_sizes() {
        let map = WinnerMap::new(&table());
        assert_eq!(map.sizes, [1020, 4096]);
        let text = map.terminal(false, 100);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("allreduce") && lines[1].ends_with("█ 1 3.00× ±4%"), "{text}");
        assert!(lines[1].contains("· stock ±2%") && lines[2].ends_with("░ 1 1.10× ±4%"), "{text}");
        assert_eq!(lines[3], "1 = a <ring> & \"b\"");
        let narrow = map.terminal(false, 30);
        assert_eq!(narrow.lines().count(), 8, "two parts of three lines, one between them, and the name: {narrow}");
        let coloured = map.terminal(true, 100);
        assert!(coloured.contains("\u{1b}[38;2;") && !coloured.contains('░'));
    }
}
