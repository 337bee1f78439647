//! One launch: the ranks of a job as processes of this computer, each a program that uses the library. A rank that hangs or
//! ends is noticed from here, whatever the candidate under way has done to it; the launch then goes on with new processes, and
//! without that candidate.
//!
//! The principal function is [`measure`].

use super::log::RankLog;
use super::sight::{Fault, RankSight, fault_among};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::library::{LOOK, LibraryRanks};
use comm::{CandidateRefusal, CandidateSamples, CellSamples, LaunchEnd, TrialMark, TuneJob};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much longer than its budget a launch may take: it joins, plans and checks.
const SLACK: Duration = Duration::from_secs(180);
/// How long ranks may go on when one has ended before it has joined them.
const MISSING: Duration = Duration::from_secs(3);
/// So often ranks may be lost in a launch for which no candidate is to blame.
const MOST_LOST: usize = 3;

/// A rank that was lost, and no function of a user's was under way.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LostRank {
    /// The rank.
    pub(super) rank: usize,
    /// The launch, from 1.
    pub(super) launch: u32,
    /// How it was noticed.
    pub(super) why: String,
    /// What was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) during: Option<TrialMark>,
}

/// What a launch has measured.
pub(super) struct LaunchSamples {
    pub(super) cells: Vec<CellSamples>,
    /// What a table needs besides, if the ranks came so far.
    pub(super) end: Option<LaunchEnd>,
    /// Why it was ended early, if it was.
    pub(super) ended_early: Option<String>,
}

/// Who the ranks are, and where they leave what they say.
pub(super) struct LaunchSetting<'a> {
    pub(super) ranks: usize,
    /// A program of the user's and its arguments; if empty, our own.
    pub(super) program: &'a [OsString],
    /// A folder for the launch.
    pub(super) folder: &'a Path,
    /// The folder of `--log`.
    pub(super) log: Option<&'a Path>,
}

/// Starts the ranks, and returns what they have measured. Candidates that hang or crash join the quarantine of the job, and ranks
/// that are lost without one join `lost`; a launch in which that happens again and again ends early.
///
/// # Errors
/// What the first process that failed says.
pub(super) fn measure(
    setting: &LaunchSetting<'_>,
    job: &mut TuneJob,
    lost: &mut Vec<LostRank>,
    mut progress: impl FnMut(&CellSamples),
) -> Outcome<LaunchSamples> {
    let work = job.work.take().unwrap_or_else(|| job.options.grid());
    let mut deadline = Instant::now() + job.options.budget;
    let (mut cells, mut end): (Vec<CellSamples>, Option<LaunchEnd>) = (Vec::new(), None);
    let mut refused: Vec<(TrialMark, CandidateRefusal)> = Vec::new();
    let lost_before = lost.len();
    let ended_early = loop {
        job.work = Some(work.get(cells.len()..).unwrap_or_default().to_vec());
        job.options.budget = deadline.saturating_duration_since(Instant::now());
        let attempt = LaunchAttempt::start(setting, job)?.watch(&mut progress)?;
        cells.extend(attempt.cells);
        // What a fault has cost is not taken from the other cells.
        deadline += attempt.lost_time;
        end = attempt.end.or(end);
        let Some(Fault { rank, why, mark, suspects }) = attempt.fault else { break None };
        let blamed = blamed(mark, attempt.during.as_ref(), suspects);
        if blamed.is_empty() {
            lost.push(LostRank { rank, launch: job.launch, why: why.clone(), during: attempt.during });
        }
        for mark in blamed {
            job.quarantine.insert(mark.candidate.clone());
            let why = if mark.is_function { why.clone() } else { format!("{why}, after it was called") };
            refused.push((mark.clone(), CandidateRefusal { rank, phase: mark.phase, why, is_wrong: true }));
        }
        if lost.len() - lost_before >= MOST_LOST {
            let all = lost[lost_before..].iter().map(|lost| format!("rank {}: {}", lost.rank, lost.why));
            break Some(format!("ranks were lost again and again: {}", all.collect::<Vec<_>>().join("; ")));
        }
    };
    for (mark, refusal) in refused {
        let is_it = |cell: &CellSamples| (cell.collective, cell.bytes) == (mark.collective, mark.bytes);
        let place = cells.iter().position(is_it).or(cells.len().checked_sub(1));
        if let Some(cell) = place.map(|place| &mut cells[place]) {
            let refusal = Some(refusal);
            cell.candidates.push(CandidateSamples { name: mark.candidate, refusal, ..CandidateSamples::default() });
        }
    }
    Ok(LaunchSamples { cells, end, ended_early })
}

/// Whom a lost rank is blamed on: the function that was under way, or those that may have spoiled the memory of the process, at the
/// place where it ended.
fn blamed(mark: Option<TrialMark>, during: Option<&TrialMark>, suspects: BTreeSet<String>) -> Vec<TrialMark> {
    match (mark.filter(|mark| mark.is_function), during) {
        (Some(mark), _) => vec![mark],
        (None, None) => Vec::new(),
        (None, Some(during)) => {
            suspects.into_iter().map(|candidate| TrialMark { candidate, ..during.clone() }).collect()
        }
    }
}

/// Processes that measure what is left of a launch.
struct LaunchAttempt {
    processes: LibraryRanks,
    ranks: Vec<RankSight>,
    deadline: Instant,
    /// How long a call of a function may take, and a rank may be silent.
    patience: Duration,
}

/// What came out of it.
struct AttemptEnd {
    cells: Vec<CellSamples>,
    end: Option<LaunchEnd>,
    /// The rank that was lost, if one was.
    fault: Option<Fault>,
    /// How long no cell was completed before the fault.
    lost_time: Duration,
    /// What the lost rank was measuring.
    during: Option<TrialMark>,
}

impl LaunchAttempt {
    fn start(setting: &LaunchSetting<'_>, job: &mut TuneJob) -> Outcome<Self> {
        // Each attempt has files of its own: a process of an earlier one may still be ending.
        let reports = tempfile::tempdir_in(setting.folder).map_err(Failure::no)?.keep();
        job.reports = reports;
        let path: PathBuf = job.reports.join("job.json");
        std::fs::write(&path, serde_json::to_vec(job).map_err(Failure::no)?).map_err(Failure::no)?;
        let log = |rank| setting.log.map(|folder| RankLog::open(folder, job.launch, rank)).transpose();
        let ranks = (0..setting.ranks).map(|rank| Ok(RankSight::new(job.report_of(rank), log(rank)?)));
        let ranks = ranks.collect::<Outcome<Vec<_>>>()?;
        let processes = match setting.program.split_first() {
            None => LibraryRanks::start(setting.ranks, |command| {
                command.arg("tune-rank").env(TuneJob::VARIABLE, &path);
            })?,
            Some((program, arguments)) => LibraryRanks::start_program(program, setting.ranks, |command| {
                command.args(arguments).env(TuneJob::VARIABLE, &path);
            })?,
        };
        let deadline = Instant::now() + job.options.budget + job.options.limit + SLACK;
        Ok(Self { processes, ranks, deadline, patience: job.options.limit.saturating_mul(2) })
    }

    /// Waits for the end, or for a rank that is lost.
    ///
    /// # Errors
    /// If the ranks say why they cannot go on, or the user has interrupted this program.
    fn watch(mut self, progress: &mut impl FnMut(&CellSamples)) -> Outcome<AttemptEnd> {
        let mut cells = Vec::new();
        let (mut progressed, mut missing) = (Instant::now(), None);
        loop {
            let has_ended: Vec<_> = (0..self.ranks.len()).map(|rank| self.processes.ended(rank)).collect();
            for (rank, sight) in self.ranks.iter_mut().enumerate() {
                for cell in sight.look() {
                    if rank == 0 {
                        progress(&cell);
                        cells.push(cell);
                        progressed = Instant::now();
                    }
                }
            }
            let is_missing = |(sight, ended): (&RankSight, &Option<_>)| ended.is_some() && sight.is_unheard();
            let fault = fault_among(&self.ranks, &has_ended, self.patience).or_else(|| {
                // One that was killed before it has joined the others; one that ends by itself then says why.
                let rank = self.ranks.iter().zip(&has_ended).position(is_missing)?;
                let status = has_ended[rank].filter(|status| status.signal().is_some())?;
                let why = format!("its process ended before it had joined the others: {status}");
                Some(Fault { rank, why, mark: None, suspects: BTreeSet::new() })
            });
            if fault.is_some() || self.ranks.iter().all(RankSight::is_through) {
                let end = self.ranks.iter_mut().find_map(RankSight::take_end);
                let during = fault.as_ref().and_then(|fault| self.ranks[fault.rank].mark().cloned());
                return Ok(AttemptEnd { cells, end, fault, lost_time: progressed.elapsed(), during });
            }
            // The others wait for a rank that has ended before it has joined them.
            if self.ranks.iter().zip(&has_ended).any(is_missing) {
                missing.get_or_insert_with(Instant::now);
            }
            let is_incomplete = missing.is_some_and(|since: Instant| since.elapsed() > MISSING);
            if is_incomplete || has_ended.iter().all(Option::is_some) {
                return Err(Failure::no(anyhow::anyhow!(self.complaint())));
            }
            if interrupt::was_raised() {
                return Err(Failure::interrupted());
            }
            if Instant::now() > self.deadline {
                return Err(Failure::no(anyhow::anyhow!("the ranks did not end in time: {}", self.whereabouts())));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn complaint(&mut self) -> String {
        let said = self.processes.complaints();
        match self.ranks.iter().any(RankSight::is_unheard) {
            true => format!("the ranks ended before they measured anything (does the program call tune?): {said}"),
            false => said,
        }
    }

    fn whereabouts(&self) -> String {
        let all = self.ranks.iter().enumerate().map(|(rank, sight)| match sight.mark() {
            Some(mark) => format!("rank {rank} was at {} of {} bytes, {}", mark.collective, mark.bytes, mark.candidate),
            None => format!("rank {rank} had not begun"),
        });
        all.collect::<Vec<_>>().join("; ")
    }
}
