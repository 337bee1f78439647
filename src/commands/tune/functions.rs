//! The places of a user's functions among all candidates.

use crate::screen::{bytes, table as columns, time};
use comm::CellSamples;
use schedule::Collective;
use serde::Serialize;
use std::collections::BTreeSet;

/// The place of a function at one size, in the first launch, which measures all candidates.
#[derive(Serialize)]
pub(super) struct FunctionPlace {
    pub(super) collective: Collective,
    pub(super) bytes: u64,
    pub(super) name: String,
    /// From 1, the fastest.
    pub(super) place: usize,
    /// Of so many that were timed.
    pub(super) of: usize,
    /// Its median, in microseconds.
    pub(super) median_us: f64,
    /// Stock's time over its own.
    pub(super) speedup: f64,
    /// How many measurements; 0 for one that took so long in a few calls that it was measured no further.
    pub(super) samples: usize,
}

/// The places of all functions in all cells. One that was refused has none.
pub(super) fn places(launches: &[Vec<CellSamples>], functions: &BTreeSet<String>) -> Vec<FunctionPlace> {
    let mut found = Vec::new();
    for cell in launches.first().into_iter().flatten() {
        let ranking = cell.ranking();
        let Some((_, stock)) = ranking.iter().find(|(name, _)| name == tune::STOCK) else { continue };
        for (index, (name, times)) in ranking.iter().enumerate().filter(|(_, (name, _))| functions.contains(name)) {
            found.push(FunctionPlace {
                collective: cell.collective,
                bytes: cell.bytes,
                name: name.clone(),
                place: index + 1,
                of: ranking.len(),
                median_us: times.median_us,
                speedup: stock.median_us / times.median_us,
                samples: times.samples,
            });
        }
    }
    found
}

/// The places as text.
pub(super) fn text(places: &[FunctionPlace]) -> String {
    let row = |of: &FunctionPlace| {
        let samples = if of.samples == 0 { "a look".to_owned() } else { of.samples.to_string() };
        let place = format!("{} of {}", of.place, of.of);
        let (size, gain) = (bytes(of.bytes), format!("{:.2}×", of.speedup));
        vec![of.name.clone(), of.collective.to_string(), size, place, time(of.median_us), gain, samples]
    };
    let rows: Vec<Vec<String>> = places.iter().map(row).collect();
    columns(&["function", "collective", "size", "place", "time", "stock / it", "samples"], &rows)
}
