//! How the ranks that are left after a failure find out who they are.
//!
//! The principal types are [`SurvivorMeeting`], which threads and processes do differently, and [`Rebuilt`], what comes of it.

use super::Session;
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use topology::Rank;

/// What is left of a communicator.
pub struct Rebuilt {
    /// This rank in a session in which nobody has failed.
    pub session: Session,
    /// Ranks of that session: who is left, in the order of before.
    pub members: Vec<Rank>,
    /// Whether it is another session than before.
    pub is_new_session: bool,
    /// How often this communicator was rebuilt before in the same session.
    pub generation: u64,
}

/// What is rebuilt, and how.
#[derive(Clone, Copy)]
pub struct RebuildTerms<'a> {
    /// Of which communicator.
    pub communicator: u64,
    /// Its members, in their order.
    pub members: &'a [Rank],
    /// With fewer ranks nobody goes on.
    pub least: usize,
    /// How long ranks wait for each other.
    pub limit: Duration,
    /// As for [`Session::connect`], for a new session.
    pub patience: Duration,
}

impl RebuildTerms<'_> {
    /// # Errors
    /// [`RunError::Mismatch`] if too few ranks are left.
    pub(crate) fn check(&self, came: usize) -> RunResult<()> {
        let (members, least) = (self.members.len(), self.least);
        match came < least {
            true => Err(RunError::Mismatch {
                what: format!("{came} of {members} ranks are left, and at least {least} are demanded"),
            }),
            false => Ok(()),
        }
    }
}

/// How the ranks that are left meet.
pub(crate) trait SurvivorMeeting: Send + Sync {
    /// See [`Session::rebuild`].
    fn meet(&self, session: &Session, terms: &RebuildTerms<'_>) -> RunResult<Rebuilt>;
}

pub(crate) fn given_up<T>(own: Rank) -> RunResult<T> {
    let what =
        format!("the other ranks have gone on without rank {own}, because it did not run or could not be reached");
    Err(RunError::Mismatch { what })
}

/// Where ranks meet that are threads of one process. Their session goes on.
#[derive(Default)]
pub(crate) struct ThreadMeeting {
    /// By communicator.
    gatherings: Mutex<BTreeMap<u64, Gathering>>,
    news: Condvar,
}

#[derive(Default)]
struct Gathering {
    generation: u64,
    came: BTreeSet<Rank>,
    /// Set by the first who comes.
    deadline: Option<Moment>,
    /// Who has come, once it is decided, and how many of them know it.
    group: Option<(Vec<Rank>, usize)>,
}

impl SurvivorMeeting for ThreadMeeting {
    fn meet(&self, session: &Session, terms: &RebuildTerms<'_>) -> RunResult<Rebuilt> {
        let RebuildTerms { communicator, members, limit, .. } = *terms;
        let own = session.rank();
        let mut all = locked(&self.gatherings);
        // Who comes after a decision waits until all know it, and then begins the next gathering. They are awake.
        while all.get(&communicator).is_some_and(|gathering| gathering.group.is_some()) {
            all = self.news.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
        let gathering = all.entry(communicator).or_default();
        if !gathering.came.insert(own) {
            let what = format!("another thread of rank {own} rebuilds this communicator already");
            return Err(RunError::Mismatch { what });
        }
        let deadline = *gathering.deadline.get_or_insert_with(|| Moment::now().after(limit));
        self.news.notify_all();
        let (group, generation) = loop {
            let gathering = all.entry(communicator).or_default();
            let now = Moment::now();
            if gathering.came.len() == members.len() || now >= deadline {
                let came = &gathering.came;
                let in_order = || members.iter().copied().filter(|member| came.contains(member)).collect();
                let (group, told) = gathering.group.get_or_insert_with(|| (in_order(), 0));
                *told += 1;
                let known = (group.clone(), gathering.generation);
                if *told == group.len() {
                    *gathering = Gathering { generation: gathering.generation + 1, ..Gathering::default() };
                }
                self.news.notify_all();
                break known;
            }
            all = self.news.wait_timeout(all, deadline.since(now)).unwrap_or_else(PoisonError::into_inner).0;
        };
        if !group.contains(&own) {
            return given_up(own);
        }
        terms.check(group.len())?;
        Ok(Rebuilt { session: session.clone(), members: group, is_new_session: false, generation })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
