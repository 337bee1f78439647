//! The same candidates beside a program that computes: a plan that needs more of the processor may lose there.

use crate::screen::{bytes, table as columns};
use comm::CellSamples;
use schedule::Collective;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tune::{Choice, Summary, decide};

/// How many of a ranking are shown.
const SHOWN: usize = 3;

/// A thread that computes until this is dropped.
pub(super) struct Burner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Burner {
    /// Begins to compute.
    pub(super) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut values = [1.0_f32; 1024];
            while !seen.load(Ordering::Relaxed) {
                for value in &mut values {
                    *value = value.mul_add(0.999, 0.001);
                }
                black_box(&mut values);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The candidates of a cell in the order of their times, alone and beside computing.
#[derive(Serialize)]
pub(super) struct LoadedCell {
    collective: Collective,
    bytes: u64,
    alone: Vec<String>,
    loaded: Vec<String>,
    /// Whether the fastest alone is slower than another one beside computing, beyond the noise of both.
    flips: bool,
}

/// Compares what was measured alone with what was measured beside computing.
pub(super) fn compared(alone: &[CellSamples], loaded: &[CellSamples]) -> Vec<LoadedCell> {
    let cells = alone.iter().filter_map(|cell| {
        let of = |other: &&CellSamples| (other.collective, other.bytes) == (cell.collective, cell.bytes);
        let (alone, loaded) = (cell.ranking(), loaded.iter().find(of)?.ranking());
        let time = |name: &str| loaded.iter().find(|(other, _)| other == name).map(|(_, times)| *times);
        let fastest: Option<(&String, Summary)> = loaded.first().map(|(name, times)| (name, *times));
        let flips = alone.first().zip(fastest).is_some_and(|((name, _), (winner, times))| {
            name != winner && time(name).is_some_and(|own| decide(&own, &times).choice == Choice::Candidate)
        });
        let names = |ranking: Vec<(String, Summary)>| ranking.into_iter().map(|(name, _)| name).collect();
        let (collective, bytes) = (cell.collective, cell.bytes);
        Some(LoadedCell { collective, bytes, alone: names(alone), loaded: names(loaded), flips })
    });
    cells.collect()
}

/// Both rankings of every cell, as text.
pub(super) fn text(cells: &[LoadedCell]) -> String {
    let first = |names: &[String]| names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" < ");
    let row = |cell: &LoadedCell| {
        let flips = if cell.flips { "yes" } else { "" };
        vec![cell.collective.to_string(), bytes(cell.bytes), flips.to_owned(), first(&cell.alone), first(&cell.loaded)]
    };
    let rows: Vec<Vec<String>> = cells.iter().map(row).collect();
    let header = ["collective", "size", "another wins", "fastest alone", "fastest beside computing"];
    columns(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::CandidateSamples;

    fn cell(times: &[(&str, f64)]) -> CellSamples {
        let around = |centre: f64| (0..20).map(|step| centre * (1.0 + f64::from(step - 10) * 0.002)).collect();
        let sample = |(name, centre): &(&str, f64)| CandidateSamples {
            name: (*name).to_owned(),
            spans_us: around(*centre),
            ..CandidateSamples::default()
        };
        let candidates = times.iter().map(sample).collect();
        CellSamples { collective: Collective::AllReduce, bytes: 64, op: None, stock_plan: None, candidates }
    }

    #[test]
    fn a_flip_is_a_fastest_that_loses_beyond_the_noise() {
        let alone = [cell(&[("stock", 10.0), ("ring", 5.0)])];
        for (loaded, flips) in [
            ([("stock", 10.0), ("ring", 20.0)], true),
            ([("stock", 10.0), ("ring", 10.1)], false),
            ([("stock", 10.0), ("ring", 9.0)], false),
        ] {
            let cells = compared(&alone, &[cell(&loaded)]);
            assert_eq!((cells.len(), cells[0].flips), (1, flips));
            assert_eq!(cells[0].alone, ["ring", "stock"]);
        }
        assert!(compared(&alone, &[]).is_empty());
    }
}
