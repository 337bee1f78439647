//! Why a session is over.
//!
//! The principal type is [`SessionStatus`].

use crate::error::Breach;
use crate::transport::shared::port::rank_memory::RankMemory;
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use topology::Rank;

/// What a process knows of the ends of a session, its communicators and its ranks.
pub(crate) struct SessionStatus {
    verdict: AtomicU64,
    /// The ranks of this process, which are woken.
    sleepers: Vec<RankMemory>,
    /// Tells other processes of an end that this process has decided.
    teller: OnceLock<EndTeller>,
    /// Ranks that have left the session in order.
    left: Mutex<BTreeSet<Rank>>,
    /// Ranks that have died, or do not run.
    lost: Mutex<BTreeSet<Rank>>,
    /// Communicators of which no call can succeed any more, the latest last.
    breaches: Mutex<VecDeque<(u64, Breach)>>,
    has_breaches: AtomicBool,
    /// Something has ended.
    news: Condvar,
}

/// So many broken communicators are remembered. Their calls fail by themselves as well.
const MOST_BREACHES: usize = 256;

/// What ends a session, or a part of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SessionEnd {
    /// All of it.
    Session(Verdict),
    /// A communicator.
    Communicator(u64, Breach),
    /// A rank has left the session in order. A call that waits for this rank fails.
    Left(Rank),
}

/// Tells other processes of an end.
type EndTeller = Box<dyn Fn(&SessionEnd) + Send + Sync>;

impl SessionStatus {
    /// The status of a session with these ranks in this process.
    pub(crate) fn new(sleepers: Vec<RankMemory>) -> Self {
        Self {
            verdict: AtomicU64::new(0),
            sleepers,
            teller: OnceLock::new(),
            left: Mutex::default(),
            lost: Mutex::default(),
            breaches: Mutex::default(),
            has_breaches: AtomicBool::new(false),
            news: Condvar::new(),
        }
    }

    /// Why the session is over, if it is.
    #[inline]
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        Verdict::from_word(self.verdict.load(Ordering::Acquire))
    }

    /// Has `teller` called for every end that this process decides. The first one stays.
    pub(crate) fn on_end(&self, teller: impl Fn(&SessionEnd) + Send + Sync + 'static) {
        let _ = self.teller.set(Box::new(teller));
    }

    /// This process decides that something ends. If that is new, the others are told first: as soon as the program here
    /// hears of it, this process may end, and the others would take it for the one that was lost.
    pub(crate) fn decide(&self, end: &SessionEnd) {
        if self.is_news(end) {
            if let Some(tell) = self.teller.get() {
                tell(end);
            }
            self.hear(end);
        }
    }

    /// Ends the session, unless it is over already.
    pub(crate) fn end(&self, verdict: Verdict) {
        self.decide(&SessionEnd::Session(verdict));
    }

    /// No call of a communicator can succeed any more.
    pub(crate) fn break_off(&self, communicator: u64, breach: Breach) {
        self.decide(&SessionEnd::Communicator(communicator, breach));
    }

    /// Whether this end is not known here yet.
    pub(crate) fn is_news(&self, end: &SessionEnd) -> bool {
        match end {
            SessionEnd::Session(verdict) => {
                let is_known = !verdict.cause.loses_rank() || locked(&self.lost).contains(&verdict.rank);
                self.verdict().is_none() || !is_known
            }
            SessionEnd::Communicator(communicator, _) => self.breach(*communicator).is_none(),
            SessionEnd::Left(rank) => !self.has_left(*rank),
        }
    }

    /// Something has ended, here or elsewhere: the program here hears of it.
    pub(crate) fn hear(&self, end: &SessionEnd) {
        let is_new = match end {
            SessionEnd::Session(verdict) => {
                let is_lost = verdict.cause.loses_rank() && locked(&self.lost).insert(verdict.rank);
                let word = verdict.to_word();
                self.verdict.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire).is_ok() || is_lost
            }
            SessionEnd::Communicator(communicator, breach) => self.note_breach(*communicator, breach),
            SessionEnd::Left(rank) => locked(&self.left).insert(*rank),
        };
        if is_new {
            // A thread in `wait` holds this lock while it looks, so it misses no news.
            drop(locked(&self.left));
            self.news.notify_all();
            self.sleepers.iter().for_each(|memory| memory.bell().ring());
        }
    }

    /// Waits until something has ended that `is_meant`, for `limit` at most.
    pub(crate) fn wait(&self, limit: Duration, is_meant: impl Fn() -> bool) {
        let left = locked(&self.left);
        drop(self.news.wait_timeout_while(left, limit, |_| !is_meant()));
    }

    fn note_breach(&self, communicator: u64, breach: &Breach) -> bool {
        let mut breaches = locked(&self.breaches);
        let is_new = breaches.iter().all(|(known, _)| *known != communicator);
        if is_new {
            if breaches.len() == MOST_BREACHES {
                breaches.pop_front();
            }
            breaches.push_back((communicator, breach.clone()));
            self.has_breaches.store(true, Ordering::Release);
        }
        is_new
    }

    /// Why no call of a communicator can succeed any more, if that is so.
    #[inline]
    pub(crate) fn breach(&self, communicator: u64) -> Option<Breach> {
        if self.has_breaches.load(Ordering::Acquire) { self.find_breach(communicator) } else { None }
    }

    #[cold]
    fn find_breach(&self, communicator: u64) -> Option<Breach> {
        let breaches = locked(&self.breaches);
        breaches.iter().find(|(known, _)| *known == communicator).map(|(_, breach)| breach.clone())
    }

    /// Whether a rank has left.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        locked(&self.left).contains(&rank)
    }

    /// Whether a rank takes part in nothing any more.
    pub(crate) fn is_gone(&self, rank: Rank) -> bool {
        locked(&self.lost).contains(&rank) || self.has_left(rank)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Cause, Phase};
    use std::sync::Arc;

    /// A process that learns of an end may end itself at once. Those it has not told yet would name this process.
    #[test]
    fn others_are_told_of_an_end_before_the_program_here_hears_of_it() {
        let status = Arc::new(SessionStatus::new(Vec::new()));
        let (told, own) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&status));
        let tells = told.clone();
        status.on_end(move |end| {
            let known = own.upgrade().unwrap().verdict();
            locked(&tells).push((end.clone(), known));
        });
        let verdict = |rank| Verdict { rank: Rank(rank), cause: Cause::Lost, phase: Phase::Work };
        let of = |rank| SessionEnd::Session(verdict(rank));
        [1, 1, 2].into_iter().for_each(|rank| status.end(verdict(rank)));
        assert_eq!(*locked(&told), [(of(1), None), (of(2), Some(verdict(1)))]);
        assert_eq!(status.verdict(), Some(verdict(1)));
        assert!(status.is_gone(Rank(1)) && status.is_gone(Rank(2)) && !status.is_gone(Rank(3)));
    }
}
