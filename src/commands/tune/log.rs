//! What every rank writes down while it measures, and the report of all of them.

use super::launch::LostRank;
use crate::failure::{Failure, Outcome, io_failure};
use comm::{CandidateRefusal, CandidateSamples, CellSamples, RefusedCandidate, TrialPhase};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::SystemTime;

/// The report of all ranks.
const REPORT: &str = "report.json";

/// What a rank knows of a candidate in a cell.
#[derive(Serialize, Deserialize)]
struct RankLine {
    launch: u32,
    rank: usize,
    collective: Collective,
    bytes: u64,
    candidate: String,
    /// Times of one call in loops without pauses, in microseconds, on this rank.
    own_us: Vec<f64>,
    refusal: Option<CandidateRefusal>,
}

/// Makes the folder of the logs, without the files of these ranks from an earlier run.
///
/// # Errors
/// If the folder cannot be made.
pub(super) fn prepare(folder: &Path, ranks: usize) -> Outcome {
    std::fs::create_dir_all(folder).map_err(|error| io_failure(folder, error))?;
    // Another rank of a launcher may write already.
    for rank in if ranks > 0 { ranks_in(folder) } else { BTreeSet::new() } {
        drop(std::fs::remove_file(folder.join(format!("rank-{rank}.jsonl"))));
    }
    Ok(())
}

/// The lines of one rank in one launch.
pub(super) struct RankLog {
    file: File,
    launch: u32,
    rank: usize,
}

impl RankLog {
    /// Opens the file of a rank; later launches are added to it.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(super) fn open(folder: &Path, launch: u32, rank: usize) -> Outcome<Self> {
        let path = folder.join(format!("rank-{rank}.jsonl"));
        let file = File::options().create(true).append(true).open(&path).map_err(|error| io_failure(&path, error))?;
        Ok(Self { file, launch, rank })
    }

    /// Adds a cell. A log that cannot be written does not end the measuring.
    pub(super) fn add(&mut self, cell: &CellSamples) {
        for CandidateSamples { name, own_us, refusal, .. } in &cell.candidates {
            let line = RankLine {
                launch: self.launch,
                rank: self.rank,
                collective: cell.collective,
                bytes: cell.bytes,
                candidate: name.clone(),
                own_us: own_us.clone(),
                refusal: refusal.clone(),
            };
            if let Ok(text) = serde_json::to_string(&line) {
                drop(writeln!(self.file, "{text}"));
            }
        }
    }
}

/// A rank on which candidates failed.
#[derive(Serialize)]
struct ProblemRank {
    rank: usize,
    failures: usize,
    phases: BTreeSet<TrialPhase>,
    candidates: BTreeSet<String>,
}

/// The report of all ranks.
#[derive(Serialize)]
struct TuneLogReport<'a> {
    format: &'static str,
    ranks: usize,
    /// Why the measuring ended early, if it did.
    failed: Option<&'a str>,
    /// Lines of each rank.
    lines: BTreeMap<usize, usize>,
    /// Blocks in which each rank was the slowest.
    slowest: BTreeMap<usize, usize>,
    problem_ranks: Vec<ProblemRank>,
    /// Candidates that no longer compete where they failed.
    quarantine: &'a [RefusedCandidate],
    /// Ranks that were lost while no function of the user's was under way.
    lost: &'a [LostRank],
}

/// A block of calls: launch, collective, bytes, candidate, and its number.
type BlockKey = (u32, String, u64, String, usize);

/// Writes a report without a table: why the measuring has failed. Where every rank is a process of a launcher, all of them come
/// here; the first one writes.
///
/// # Errors
/// If the folder cannot be written.
pub(super) fn merge_failed(folder: &Path, began: SystemTime, lost: &[LostRank], why: &str) -> Outcome {
    let written = std::fs::metadata(folder.join(REPORT)).and_then(|about| about.modified());
    match written.is_ok_and(|written| written >= began) {
        true => Ok(()),
        false => merge(folder, (&[], lost), Some(why)),
    }
}

/// The ranks that have written into a folder.
fn ranks_in(folder: &Path) -> BTreeSet<usize> {
    let names =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()).collect()
}

/// Merges the lines of all ranks into `report.json`.
///
/// # Errors
/// If the folder cannot be written.
pub(super) fn merge(
    folder: &Path,
    (refused, lost): (&[RefusedCandidate], &[LostRank]),
    failed: Option<&str>,
) -> Outcome {
    let (mut lines, mut slowest) = (BTreeMap::new(), BTreeMap::new());
    let mut blocks: BTreeMap<BlockKey, Vec<(usize, f64)>> = BTreeMap::new();
    let all = ranks_in(folder);
    for &rank in &all {
        let Ok(file) = File::open(folder.join(format!("rank-{rank}.jsonl"))) else { continue };
        // The last line of a rank that has died may be incomplete.
        let own = BufReader::new(file).lines().map_while(Result::ok);
        for line in own.filter_map(|line| serde_json::from_str::<RankLine>(&line).ok()) {
            *lines.entry(rank).or_insert(0) += 1;
            for (block, time) in line.own_us.iter().enumerate() {
                let key = (line.launch, line.collective.to_string(), line.bytes, line.candidate.clone(), block);
                blocks.entry(key).or_default().push((rank, *time));
            }
        }
    }
    for times in blocks.values() {
        if let Some((rank, _)) = times.iter().max_by(|one, other| one.1.total_cmp(&other.1)) {
            *slowest.entry(*rank).or_insert(0) += 1;
        }
    }
    let mut problems: BTreeMap<usize, ProblemRank> = BTreeMap::new();
    for RefusedCandidate { name, refusal, .. } in refused {
        let new =
            || ProblemRank { rank: refusal.rank, failures: 0, phases: BTreeSet::new(), candidates: BTreeSet::new() };
        let problem = problems.entry(refusal.rank).or_insert_with(new);
        problem.failures += 1;
        problem.phases.insert(refusal.phase);
        problem.candidates.insert(name.clone());
    }
    let problem_ranks = problems.into_values().collect();
    let format = "antiphon-tune-report/1";
    let ranks = all.last().map_or(0, |last| last + 1);
    let report = TuneLogReport { format, ranks, failed, lines, slowest, problem_ranks, quarantine: refused, lost };
    let text = serde_json::to_string_pretty(&report).map_err(Failure::no)? + "\n";
    // Other ranks may write it at the same time.
    let path = folder.join(REPORT);
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.persist(&path).map(drop).map_err(std::io::Error::from)
    });
    written.map_err(|error| io_failure(&path, error))
}

/// One line for each candidate of each cell of each launch.
pub(super) fn write_samples(launches: &[Vec<CellSamples>], path: &Path) -> Outcome {
    #[derive(Serialize)]
    struct SampleLine<'a> {
        launch: usize,
        collective: Collective,
        bytes: u64,
        #[serde(flatten)]
        candidate: &'a CandidateSamples,
    }
    crate::failure::write_to(path, |out: &mut dyn Write| {
        for (launch, cell) in launches.iter().enumerate().flat_map(|(at, cells)| cells.iter().map(move |it| (at, it))) {
            for candidate in &cell.candidates {
                let line = SampleLine { launch: launch + 1, collective: cell.collective, bytes: cell.bytes, candidate };
                serde_json::to_writer(&mut *out, &line)?;
                out.write_all(b"\n")?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_report_names_the_rank_that_failed_and_the_one_that_was_slow() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = CandidateRefusal { rank: 1, phase: TrialPhase::Time, why: "no".to_owned(), is_wrong: false };
        for rank in 0..3 {
            let own_us = vec![1.0 + f64::from(u8::from(rank == 2)); 4];
            let fine = CandidateSamples { name: "stock".to_owned(), own_us, ..CandidateSamples::default() };
            let bad = CandidateSamples {
                name: "mine".to_owned(),
                refusal: Some(refusal.clone()),
                ..CandidateSamples::default()
            };
            let (collective, candidates) = (Collective::AllReduce, vec![fine, bad]);
            let cell = CellSamples { collective, bytes: 64, op: None, candidates };
            for launch in 1..3 {
                RankLog::open(folder.path(), launch, rank).unwrap().add(&cell);
            }
        }
        // A rank that died in the middle of a line.
        let path = folder.path().join("rank-2.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 20]).unwrap();
        let refused = RefusedCandidate {
            collective: Collective::AllReduce,
            bytes: 64,
            name: "mine".to_owned(),
            launch: 1,
            refusal,
        };
        merge(folder.path(), (&[refused], &[]), Some("rank 2 is gone")).unwrap();
        let report: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.path().join("report.json")).unwrap()).unwrap();
        assert_eq!(report["lines"], serde_json::json!({ "0": 4, "1": 4, "2": 3 }));
        assert_eq!(report["slowest"], serde_json::json!({ "2": 8 }));
        assert_eq!(report["problem_ranks"][0]["rank"], 1);
        assert_eq!((&report["quarantine"][0]["phase"], &report["failed"]), (&"time".into(), &"rank 2 is gone".into()));
    }
}
