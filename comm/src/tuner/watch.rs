//! What a rank is doing while it measures, in a file, for whoever has started it: a function of a user's may hang or end its
//! process, and then nobody else can say which one it was.
//!
//! The principal type is [`TrialWatch`]. A rank without a launcher that watches it writes nothing.

use super::{CellSamples, LaunchEnd, TrialPhase};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a rank says that it lives.
const BEAT: Duration = Duration::from_millis(200);

/// What a rank says while it measures: lines of JSON in its file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneWord {
    /// It begins with a candidate.
    Trial(TrialMark),
    /// It lives. `begun` counts the calls of functions, `ended` those that have returned.
    Beat {
        /// Calls of functions that have begun.
        begun: u64,
        /// Calls of functions that have returned.
        ended: u64,
    },
    /// A cell is measured.
    Cell(CellSamples),
    /// Rank 0 begins, and says what a table needs besides the cells.
    Begin(LaunchEnd),
    /// All cells are measured.
    End,
    /// This rank cannot go on, and says why.
    Failed(String),
}

/// What is being measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrialMark {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as it is run.
    pub bytes: u64,
    /// Whose turn it is.
    pub candidate: String,
    /// Whether it is a function of a user's, which may do anything.
    pub is_function: bool,
    /// What is done with it.
    pub phase: TrialPhase,
}

/// Writes down what this rank is doing.
#[derive(Default)]
pub(super) struct TrialWatch(Option<Watched>);

struct Watched {
    shared: Arc<WatchedRank>,
    beating: Option<JoinHandle<()>>,
}

struct WatchedRank {
    file: Mutex<File>,
    begun: AtomicU64,
    ended: AtomicU64,
    is_over: AtomicBool,
}

impl WatchedRank {
    /// A line that cannot be written does not end the measuring.
    fn say(&self, word: &TuneWord) {
        if let Ok(mut line) = serde_json::to_string(word) {
            line.push('\n');
            // One write, so that a rank that is killed leaves whole lines.
            drop(self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()));
        }
    }
}

impl TrialWatch {
    /// Writes to a file, which is made.
    ///
    /// # Errors
    /// If it cannot be.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let file = Mutex::new(File::create(path)?);
        let (begun, ended, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(WatchedRank { file, begun, ended, is_over });
        let beating = shared.clone();
        let beat = move || {
            while !beating.is_over.load(Ordering::Acquire) {
                let (ended, begun) = (beating.ended.load(Ordering::Acquire), beating.begun.load(Ordering::Acquire));
                beating.say(&TuneWord::Beat { begun, ended });
                std::thread::park_timeout(BEAT);
            }
        };
        let beating = Some(std::thread::Builder::new().name("antiphon-beat".to_owned()).spawn(beat)?);
        Ok(Self(Some(Watched { shared, beating })))
    }

    pub(super) fn say(&self, word: &TuneWord) {
        if let Some(watched) = &self.0 {
            watched.shared.say(word);
        }
    }

    /// It is the turn of a candidate. `mark` is asked only if somebody watches.
    pub(super) fn enter(&self, mark: impl FnOnce() -> TrialMark) {
        if let Some(watched) = &self.0 {
            watched.shared.say(&TuneWord::Trial(mark()));
        }
    }

    /// Calls a function of a user's.
    pub(super) fn call<T>(&self, function: impl FnOnce() -> T) -> T {
        let Some(Watched { shared, .. }) = &self.0 else { return function() };
        shared.begun.fetch_add(1, Ordering::AcqRel);
        let result = function();
        shared.ended.fetch_add(1, Ordering::AcqRel);
        result
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.beating.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_rank_says_what_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank.jsonl");
        let mark = TrialMark {
            collective: Collective::AllReduce,
            bytes: 64,
            candidate: "mine".to_owned(),
            is_function: true,
            phase: TrialPhase::Check,
        };
        let watch = TrialWatch::open(&path).unwrap();
        watch.enter(|| mark.clone());
        assert_eq!(watch.call(|| 7), 7);
        watch.say(&TuneWord::Failed("no".to_owned()));
        drop(watch);
        let text = std::fs::read_to_string(&path).unwrap();
        let words: Vec<TuneWord> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(words.contains(&TuneWord::Trial(mark)) && words.contains(&TuneWord::Failed("no".to_owned())));
        assert_eq!(TrialWatch::default().call(|| 8), 8, "nobody watches");
    }
}
