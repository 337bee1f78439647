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
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much longer than its budget a launch may take: it joins, plans and checks.
const SLACK: Duration = Duration::from_secs(180);
/// How long ranks may go on when one has ended before it has joined them.
const MISSING: Duration = Duration::from_secs(3);
/// So often ranks may be lost for which no candidate is to blame.
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
    pub(super) end: LaunchEnd,
    /// Ranks that were lost meanwhile.
    pub(super) lost: Vec<LostRank>,
    /// Whether the user has interrupted it: some cells are not there.
    pub(super) is_interrupted: bool,
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

/// Starts the ranks, and returns what they have measured. Candidates that hang or crash join the quarantine of the job.
///
/// # Errors
/// What the first process that failed says, or which rank was lost again and again.
pub(super) fn measure(
    setting: &LaunchSetting<'_>,
    job: &mut TuneJob,
    mut progress: impl FnMut(&CellSamples),
) -> Outcome<LaunchSamples> {
    let work = job.work.take().unwrap_or_else(|| job.options.grid(setting.ranks));
    let mut deadline = Instant::now() + job.options.budget;
    let (mut cells, mut lost): (Vec<CellSamples>, Vec<LostRank>) = (Vec::new(), Vec::new());
    let mut refused: Vec<(TrialMark, CandidateRefusal)> = Vec::new();
    let (end, is_interrupted) = loop {
        job.work = Some(work.get(cells.len()..).unwrap_or_default().to_vec());
        job.options.budget = deadline.saturating_duration_since(Instant::now());
        let attempt = LaunchAttempt::start(setting, job)?.watch(&mut progress)?;
        cells.extend(attempt.cells);
        // What a fault has cost is not taken from the other cells.
        deadline += attempt.lost_time;
        match attempt.ended {
            Ok(end) => break (end, attempt.is_interrupted),
            Err(Fault { rank, why, mark }) => match mark.filter(|mark| mark.is_function) {
                Some(mark) => {
                    job.quarantine.insert(mark.candidate.clone());
                    let phase = mark.phase;
                    refused.push((mark, CandidateRefusal { rank, phase, why }));
                }
                None => lost.push(LostRank { rank, launch: job.launch, why, during: attempt.during }),
            },
        }
        if lost.len() >= MOST_LOST {
            let all: Vec<String> = lost.iter().map(|lost| format!("rank {}: {}", lost.rank, lost.why)).collect();
            return Err(Failure::no(anyhow::anyhow!("ranks were lost again and again: {}", all.join("; "))));
        }
    };
    for (mark, refusal) in refused {
        let is_it = |cell: &&mut CellSamples| (cell.collective, cell.bytes) == (mark.collective, mark.bytes);
        if let Some(cell) = cells.iter_mut().find(is_it) {
            let refusal = Some(refusal);
            cell.candidates.push(CandidateSamples { name: mark.candidate, refusal, ..CandidateSamples::default() });
        }
    }
    Ok(LaunchSamples { cells, end, lost, is_interrupted })
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
    ended: Result<LaunchEnd, Fault>,
    /// How long no cell was completed before the fault.
    lost_time: Duration,
    /// What the lost rank was measuring.
    during: Option<TrialMark>,
    /// Whether the user has interrupted it.
    is_interrupted: bool,
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
    /// If the ranks say why they cannot go on, or the user has interrupted this program before rank 0 has begun.
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
            // Before any fault: Ctrl-C may have ended the ranks too.
            if interrupt::was_raised() {
                let end = self.ranks.iter_mut().find_map(RankSight::take_end).ok_or_else(Failure::interrupted)?;
                let (during, lost_time) = (None, Duration::ZERO);
                return Ok(AttemptEnd { cells, ended: Ok(end), lost_time, during, is_interrupted: true });
            }
            if let Some(fault) = fault_among(&self.ranks, &has_ended, self.patience) {
                let during = self.ranks[fault.rank].mark().cloned();
                let (ended, lost_time) = (Err(fault), progressed.elapsed());
                return Ok(AttemptEnd { cells, ended, lost_time, during, is_interrupted: false });
            }
            if self.ranks.iter().all(RankSight::is_through) {
                let end = self.ranks.iter_mut().find_map(RankSight::take_end);
                let none = || Failure::no(anyhow::anyhow!("rank 0 ended without a result"));
                let ended = Ok(end.ok_or_else(none)?);
                let (during, lost_time) = (None, Duration::ZERO);
                return Ok(AttemptEnd { cells, ended, lost_time, during, is_interrupted: false });
            }
            // The others wait for a rank that has ended before it has joined them.
            let is_missing = |(sight, ended): (&RankSight, &Option<_>)| ended.is_some() && sight.is_unheard();
            if self.ranks.iter().zip(&has_ended).any(is_missing) {
                missing.get_or_insert_with(Instant::now);
            }
            let is_incomplete = missing.is_some_and(|since: Instant| since.elapsed() > MISSING);
            if is_incomplete || has_ended.iter().all(Option::is_some) {
                return Err(Failure::no(anyhow::anyhow!(self.complaint())));
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
