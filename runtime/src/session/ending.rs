//! How a session, or a communicator of it, ends, and what is left of it.

use super::status::SessionStatus;
use super::survivors::{RebuildTerms, Rebuilt};
use super::{Session, forked};
use crate::error::{Breach, RunError, RunErrorKind, RunResult};
use crate::transport::notice::BreachNotice;
use crate::verdict::{Cause, Phase, Verdict};
use std::collections::BTreeSet;

impl Session {
    /// Whether this process is a fork of the one that joined the session. Then nothing of the session is its own: its
    /// calls fail, others hear nothing of them, and locks may be held by threads that a fork does not have.
    pub fn is_in_fork(&self) -> bool {
        !self.shared.mark.is_here()
    }

    /// Why the session is over, if it is.
    #[inline]
    pub fn over(&self) -> Option<Verdict> {
        self.shared.status.verdict()
    }

    /// Why no call of a communicator can succeed any more, if that is so.
    #[inline]
    pub fn broken(&self, communicator: u64) -> Option<RunError> {
        if !self.shared.mark.is_here() {
            return Some(forked());
        }
        let breach = || self.shared.status.breach(communicator);
        self.over().map(RunError::Verdict).or_else(|| Some(RunError::Broken(breach()?)))
    }

    /// Tells all ranks that no call of a communicator can succeed any more, because one of this rank has failed.
    pub fn break_off(&self, communicator: u64, error: &RunError) {
        let breach = match error {
            RunError::Verdict(_) => return,
            RunError::Broken(breach) => breach.clone(),
            _ => Breach::new(self.shared.rank, error),
        };
        self.tell(communicator, breach);
    }

    fn tell(&self, communicator: u64, breach: Breach) {
        if self.is_in_fork() {
            return;
        }
        // Rank 0, which tells all, may have left.
        self.engine().ports.tell(BreachNotice::of_breach(communicator, &breach));
        self.shared.status.break_off(communicator, breach);
    }

    /// Ends all calls of all ranks of the session, under way or to come, with an error that names this rank.
    pub fn abort(&self) {
        if self.is_in_fork() {
            return;
        }
        self.shared.status.end(Verdict { rank: self.shared.rank, cause: Cause::Failed, phase: Phase::Work });
    }

    /// The same for the calls of one communicator.
    pub fn abort_communicator(&self, communicator: u64) {
        // The first cause stays.
        if !self.is_in_fork() && self.broken(communicator).is_none() {
            let (by, kind) = (self.shared.rank, RunErrorKind::Aborted);
            let reason = format!("rank {by} has aborted them");
            self.tell(communicator, Breach { by, cause: Some(by), kind, reason });
        }
    }

    /// A session of those members of a communicator that are left after a failure. All that are left make this call, and wait
    /// for each other: who is dead, or does not come, is left behind.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if too few come, or the others have given this rank up; otherwise as [`Session::connect`]. The
    /// call can be repeated.
    pub fn rebuild(&self, terms: &RebuildTerms<'_>) -> RunResult<Rebuilt> {
        if self.is_in_fork() {
            return Err(forked());
        }
        self.shared.survivors.meet(self, terms)
    }

    pub(crate) fn status(&self) -> &SessionStatus {
        &self.shared.status
    }

    /// Forgets what has failed in streams of messages that this rank sent, and that are gone.
    pub fn forget_sent(&self, streams: impl IntoIterator<Item = u64>) {
        if self.shared.mark.is_here() {
            self.engine().forget(&streams.into_iter().collect());
        }
    }

    /// Forgets what has come, and what will come, for communicators and streams of messages that are gone.
    pub fn forget(&self, streams: impl IntoIterator<Item = u64>) {
        if !self.is_in_fork() {
            let streams: BTreeSet<u64> = streams.into_iter().collect();
            let mut engine = self.engine();
            engine.forget(&streams);
            engine.ports.forget(&streams);
        }
    }

    /// How many bytes of messages this rank keeps that nobody waits for yet.
    pub fn kept_bytes(&self) -> usize {
        self.engine().ports.aside_bytes()
    }
}
