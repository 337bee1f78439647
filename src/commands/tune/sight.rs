//! What the ranks of a launch say in their files, and which of them is lost.
//!
//! The principal type is [`RankSight`], the principal function [`fault_among`].

use super::log::RankLog;
use comm::{CellSamples, LaunchEnd, TrialMark, TuneWord};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long the others may take to notice that a rank is lost, before what they say counts.
const GRACE: Duration = Duration::from_millis(500);
/// A rank that lives says so five times in a second; who says nothing for this long does not run.
const SILENT: Duration = Duration::from_secs(3);

/// How a rank was lost.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) rank: usize,
    pub(super) why: String,
    /// The function of a user's that was under way, if there was one.
    pub(super) mark: Option<TrialMark>,
    /// If it ended as a process does whose memory is spoiled: the functions that it has called before.
    pub(super) suspects: BTreeSet<String>,
}

/// A rank, as far as its file tells.
pub(super) struct RankSight {
    path: PathBuf,
    log: Option<RankLog>,
    read: u64,
    /// The beginning of a line.
    rest: String,
    mark: Option<TrialMark>,
    /// Calls of functions that have begun, and that have returned.
    calls: (u64, u64),
    /// Since when mark and calls are what they are.
    since: Instant,
    /// When it said anything the last time.
    heard: Option<Instant>,
    end: Option<LaunchEnd>,
    /// Functions that it has called.
    functions: BTreeSet<String>,
    is_through: bool,
    failed: Option<(String, Instant)>,
}

impl RankSight {
    pub(super) fn new(path: PathBuf, log: Option<RankLog>) -> Self {
        let since = Instant::now();
        let (rest, calls, functions, is_through) = (String::new(), (0, 0), BTreeSet::new(), false);
        let (mark, heard, end, failed) = (None, None, None, None);
        Self { path, log, read: 0, rest, mark, calls, since, heard, end, functions, is_through, failed }
    }

    /// Reads what is new, and returns the cells.
    pub(super) fn look(&mut self) -> Vec<CellSamples> {
        let mut cells = Vec::new();
        // The file is there once the rank has joined the others.
        let Ok(mut file) = File::open(&self.path) else { return cells };
        let mut new = Vec::new();
        let found = file.seek(SeekFrom::Start(self.read)).and_then(|_| file.read_to_end(&mut new));
        if found.is_err() || new.is_empty() {
            return cells;
        }
        self.read += new.len() as u64;
        let now = Instant::now();
        self.heard = Some(now);
        self.rest.push_str(&String::from_utf8_lossy(&new));
        let lines = std::mem::take(&mut self.rest);
        let mut lines = lines.split('\n').peekable();
        while let Some(line) = lines.next() {
            if lines.peek().is_none() {
                self.rest = line.to_owned();
            } else if let Ok(word) = serde_json::from_str(line) {
                cells.extend(self.hear(word, now));
            }
        }
        cells
    }

    fn hear(&mut self, word: TuneWord, now: Instant) -> Option<CellSamples> {
        match word {
            TuneWord::Trial(mark) => {
                if mark.is_function {
                    self.functions.insert(mark.candidate.clone());
                }
                (self.mark, self.since) = (Some(mark), now);
            }
            TuneWord::Beat { begun, ended } if self.calls != (begun, ended) => {
                (self.calls, self.since) = ((begun, ended), now);
            }
            TuneWord::Beat { .. } => {}
            TuneWord::Cell(cell) => {
                self.log.iter_mut().for_each(|log| log.add(&cell));
                return Some(cell);
            }
            TuneWord::Begin(end) => self.end = Some(end),
            TuneWord::End => self.is_through = true,
            TuneWord::Failed(why) => self.failed = Some((why, now)),
        }
        None
    }

    /// What it is measuring.
    pub(super) fn mark(&self) -> Option<&TrialMark> {
        self.mark.as_ref()
    }

    /// Whether it has measured all that it had to.
    pub(super) fn is_through(&self) -> bool {
        self.is_through
    }

    /// Whether it never said anything.
    pub(super) fn is_unheard(&self) -> bool {
        self.heard.is_none()
    }

    /// What rank 0 knows besides the cells.
    pub(super) fn take_end(&mut self) -> Option<LaunchEnd> {
        self.end.take()
    }

    /// The function of a user's whose turn it is.
    fn function(&self) -> Option<&TrialMark> {
        self.mark.as_ref().filter(|mark| mark.is_function)
    }

    /// For how long a function of a user's has not returned.
    fn inside(&self, now: Instant) -> Option<Duration> {
        let (begun, ended) = self.calls;
        (begun > ended && self.function().is_some()).then(|| now.saturating_duration_since(self.since))
    }

    /// For how long it has said nothing, if it ever did and has not ended by itself.
    fn silence(&self, now: Instant) -> Option<Duration> {
        let is_under_way = !self.is_through && self.failed.is_none();
        self.heard.filter(|_| is_under_way).map(|heard| now.saturating_duration_since(heard))
    }
}

/// The rank that is lost, if one is. The one that is to blame comes first: a process that has ended, a function that does not
/// return, a process that does not run, and last a rank that only noticed.
pub(super) fn fault_among(ranks: &[RankSight], ended: &[Option<ExitStatus>], patience: Duration) -> Option<Fault> {
    let now = Instant::now();
    let of = |rank: usize, why: String| Fault {
        rank,
        why,
        mark: ranks[rank].function().cloned(),
        suspects: BTreeSet::new(),
    };
    for (rank, sight) in ranks.iter().enumerate() {
        if let Some(status) = ended.get(rank).copied().flatten()
            && !sight.is_through
            && sight.failed.is_none()
            && !sight.is_unheard()
        {
            let fault = of(rank, format!("its process ended: {status}"));
            let suspects = if is_of_spoiled_memory(status) { sight.functions.clone() } else { BTreeSet::new() };
            return Some(Fault { suspects, ..fault });
        }
    }
    let inside: Vec<usize> =
        (0..ranks.len()).filter(|&rank| ranks[rank].inside(now).is_some_and(|time| time > patience)).collect();
    if let Some(&rank) = inside.first() {
        let others = if inside.len() > 1 { format!(", nor on {} others", inside.len() - 1) } else { String::new() };
        return Some(of(rank, format!("it did not return within {patience:?}{others}")));
    }
    // If nobody says anything, it is the computer that does not run.
    let silent = |sight: &RankSight| sight.silence(now).is_some_and(|time| time > SILENT.max(patience));
    let heard = |sight: &RankSight| sight.heard.is_some_and(|heard| now.saturating_duration_since(heard) < SILENT);
    let has_failed = ranks.iter().any(|sight| sight.failed.as_ref().is_some_and(|(_, at)| now - *at > GRACE));
    let stopped = |sight: &RankSight| has_failed && sight.silence(now).is_some_and(|time| time > SILENT);
    if let Some(rank) = ranks.iter().position(|sight| silent(sight) && ranks.iter().any(heard) || stopped(sight)) {
        return Some(of(rank, "its process does not run".to_owned()));
    }
    None
}

/// Whether a process has ended as one does that finds its memory spoiled: some time after it was.
fn is_of_spoiled_memory(status: ExitStatus) -> bool {
    let spoiled = [Signal::ABORT, Signal::BUS, Signal::FPE, Signal::ILL, Signal::SEGV];
    status.signal().is_some_and(|ended_by| spoiled.iter().any(|signal| signal.as_raw() == ended_by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::{Collective, TrialPhase};

    fn sight() -> RankSight {
        let mut sight = RankSight::new(PathBuf::from("nowhere"), None);
        sight.heard = Some(Instant::now());
        sight
    }

    fn at(sight: &mut RankSight, candidate: &str, is_function: bool) {
        let (candidate, phase) = (candidate.to_owned(), TrialPhase::Time);
        let mark = TrialMark { collective: Collective::AllReduce, bytes: 64, candidate, is_function, phase };
        sight.hear(TuneWord::Trial(mark), Instant::now());
    }

    const PATIENCE: Duration = Duration::from_secs(10);

    fn ended(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code))
    }

    #[test]
    fn whoever_is_to_blame_is_named_and_not_who_noticed() {
        let mut ranks = [sight(), sight(), sight()];
        ranks.iter_mut().for_each(|sight| at(sight, "mine", true));
        assert_eq!(fault_among(&ranks, &[None; 3], PATIENCE), None);
        ranks[0].hear(TuneWord::Failed("rank 2 is gone".to_owned()), Instant::now());
        let fault = fault_among(&ranks, &[ended(1 << 8), None, ended(9)], PATIENCE).unwrap();
        assert_eq!((fault.rank, fault.mark.unwrap().candidate.as_str()), (2, "mine"));
    }

    #[test]
    fn a_plan_is_not_to_blame_for_a_rank_that_was_killed() {
        let mut ranks = [sight(), sight()];
        ranks.iter_mut().for_each(|sight| at(sight, "stock", false));
        let fault = fault_among(&ranks, &[None, ended(9)], PATIENCE).unwrap();
        assert_eq!((fault.rank, fault.mark), (1, None));
    }

    #[test]
    fn functions_that_may_have_spoiled_the_memory_are_named() {
        let mut ranks = [sight(), sight()];
        for candidate in ["one", "two"] {
            ranks.iter_mut().for_each(|sight| at(sight, candidate, true));
        }
        ranks.iter_mut().for_each(|sight| at(sight, "stock", false));
        for (signal, expected) in [(6, 2), (9, 0), (11, 2), (15, 0)] {
            let fault = fault_among(&ranks, &[None, ended(signal)], PATIENCE).unwrap();
            assert_eq!((fault.rank, fault.mark, fault.suspects.len()), (1, None, expected), "signal {signal}");
        }
    }

    #[test]
    fn a_function_that_does_not_return_is_noticed_where_it_hangs() {
        let mut ranks = [sight(), sight()];
        ranks.iter_mut().for_each(|sight| at(sight, "mine", true));
        let long_ago = Instant::now().checked_sub(2 * PATIENCE).unwrap();
        ranks[0].hear(TuneWord::Beat { begun: 3, ended: 3 }, long_ago);
        ranks[1].hear(TuneWord::Beat { begun: 3, ended: 2 }, long_ago);
        assert_eq!(fault_among(&ranks, &[None; 2], PATIENCE).unwrap().rank, 1);
    }

    #[test]
    fn a_stopped_rank_is_noticed_unless_the_whole_computer_stood_still() {
        let mut ranks = [sight(), sight()];
        ranks[1].heard = Instant::now().checked_sub(2 * PATIENCE);
        assert_eq!(fault_among(&ranks, &[None; 2], PATIENCE).unwrap().rank, 1);
        ranks[0].heard = ranks[1].heard;
        assert_eq!(fault_among(&ranks, &[None; 2], PATIENCE), None);
    }
}
