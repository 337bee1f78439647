//! Where functions of a user's were faster than everything that a table can hold.

use comm::CellSamples;
use schedule::Collective;
use serde::Serialize;
use std::collections::BTreeSet;

/// A size at which a function of the user's was faster than all plans.
#[derive(Serialize)]
pub(super) struct FastestFunction {
    pub(super) collective: Collective,
    pub(super) bytes: u64,
    pub(super) name: String,
    /// Stock's time over its own.
    pub(super) speedup: f64,
}

/// Where a function of the user's was the fastest of all: no file can hold it.
pub(super) fn fastest_functions(launches: &[Vec<CellSamples>], functions: &BTreeSet<String>) -> Vec<FastestFunction> {
    let mut found = Vec::new();
    for cell in launches.first().into_iter().flatten() {
        let ranking = cell.ranking();
        let stock = ranking.iter().find(|(name, _)| name == tune::STOCK).map(|(_, times)| *times);
        if let (Some((name, times)), Some(stock)) = (ranking.first(), stock)
            && functions.contains(name)
            && tune::decide(&stock, times).choice == tune::Choice::Candidate
        {
            let speedup = stock.median_us / times.median_us;
            found.push(FastestFunction { collective: cell.collective, bytes: cell.bytes, name: name.clone(), speedup });
        }
    }
    found
}
