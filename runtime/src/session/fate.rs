//! Why a session is over.
//!
//! The principal type is [`Fate`].

use super::places::RankMemory;
use crate::verdict::Verdict;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use topology::Rank;

/// What all threads of a process know of the end of a session.
pub(crate) struct Fate {
    verdict: AtomicU64,
    /// Those who are woken when the session ends.
    sleepers: Vec<RankMemory>,
    /// Who else is told.
    heralds: Mutex<Vec<Herald>>,
    /// Ranks that need the session no more. A call that waits for one of them is over.
    left: Mutex<BTreeSet<Rank>>,
}

/// Tells others why a session is over.
type Herald = Box<dyn Fn(Verdict) + Send>;

impl Fate {
    /// That of a session with these ranks in this process.
    pub(crate) fn new(sleepers: Vec<RankMemory>) -> Self {
        Self { verdict: AtomicU64::new(0), sleepers, heralds: Mutex::default(), left: Mutex::default() }
    }

    /// Why the session is over, if it is.
    #[inline]
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        Verdict::from_word(self.verdict.load(Ordering::Acquire))
    }

    /// Has this called when a thread of this process ends the session.
    pub(crate) fn tell(&self, herald: impl Fn(Verdict) + Send + 'static) {
        self.heralds.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(herald));
    }

    /// Ends the session, unless it is over already.
    pub(crate) fn decide(&self, verdict: Verdict) {
        if self.hear(verdict) {
            self.heralds.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|herald| herald(verdict));
        }
    }

    /// The session has ended elsewhere; whether this is new.
    pub(crate) fn hear(&self, verdict: Verdict) -> bool {
        let is_new = self.verdict.compare_exchange(0, verdict.to_word(), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_new {
            self.wake();
        }
        is_new
    }

    /// A rank has left, in order.
    pub(crate) fn note_leave(&self, rank: Rank) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
        self.wake();
    }

    /// Whether a rank has left.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).contains(&rank)
    }

    fn wake(&self) {
        self.sleepers.iter().for_each(|memory| memory.bell().ring());
    }
}
