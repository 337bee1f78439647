//! One launch: the ranks of a job as processes of this computer, each a program that uses the library.
//!
//! The principal function is [`measure`].

use super::rank::{LaunchEnd, RankWord, TuneJob};
use crate::failure::{Failure, Outcome};
use crate::launch::library::LibraryRanks;
use comm::CellSamples;
use std::path::Path;
use std::time::Duration;

/// How much longer than its budget a launch may take: it joins, plans and checks.
const SLACK: Duration = Duration::from_secs(180);

/// Starts `ranks` processes, and returns what they have measured.
///
/// # Errors
/// What the first process that failed says.
pub(super) fn measure(
    ranks: usize,
    job: &TuneJob,
    folder: &Path,
    mut progress: impl FnMut(&CellSamples),
) -> Outcome<(Vec<CellSamples>, LaunchEnd)> {
    let path = folder.join("job.json");
    std::fs::write(&path, serde_json::to_vec(job).map_err(Failure::no)?).map_err(Failure::no)?;
    let mut processes = LibraryRanks::start(ranks, |command| {
        command.arg("tune-rank").arg(&path);
    })?;
    let (mut cells, mut end) = (Vec::new(), None);
    processes.finish(job.options.budget + job.options.limit + SLACK, |line| match serde_json::from_str(line) {
        Ok(RankWord::Cell(cell)) => {
            progress(&cell);
            cells.push(cell);
        }
        Ok(RankWord::End(told)) => end = Some(told),
        Err(_) => {}
    })?;
    match end {
        Some(end) => Ok((cells, end)),
        None => Err(Failure::no(anyhow::anyhow!(processes.complaints()))),
    }
}
