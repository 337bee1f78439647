//! How a thread waits for a call.

use super::engine::{Driver, Engine};
use super::{Session, Ticket, forked};
use crate::clock::Moment;
use crate::error::{RunError, RunResult};
use crate::memory::doorbell::Waiter;
use crate::transport::notice::BreachNotice;
use crate::transport::port::PortRelief;
use crate::verdict::Phase;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use topology::Rank;

/// How long after the last progress a call fails because the rank that it waits for has left.
const LEAVE_GRACE: Duration = Duration::from_millis(100);
/// How long to wait for the reason why a peer has given up: on a busy machine, longer than those who watch need.
const EXPLAINING: Duration = Duration::from_millis(500);
/// Who waits for the reason of a failure looks for notices so often.
const NOTICE_PAUSE: Duration = Duration::from_millis(1);
/// A thread that lets another one carry on its call looks around at least this often.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// The turn of a thread that carries calls on. If that panics, and so drops this, another thread takes its turn. Otherwise
/// the thread forgets this, and gives the turn back itself.
pub(super) struct DriverTurn<'a> {
    pub(super) session: &'a Session,
    /// The call that it waits for. Its memory may be gone when the caller goes on.
    pub(super) ticket: Option<Ticket>,
}

impl Drop for DriverTurn<'_> {
    fn drop(&mut self) {
        let Self { session, ticket } = *self;
        let mut engine = session.engine();
        engine.driver = Driver::Nobody;
        if let Some(ticket) = ticket {
            engine.give_up(ticket, &session.given_up());
        }
        drop(engine);
        session.shared.turn.notify_all();
        if let Some(ticket) = ticket {
            let fault = "a thread has panicked while it carried calls on".to_owned();
            session.break_off(ticket.communicator, &RunError::Program { rank: session.rank(), fault });
        }
    }
}

/// What a thread does again and again while it waits.
pub type IdleWork = dyn Fn() + Send + Sync;

impl Session {
    /// Threads that wait for a call do this between two looks, and do not sleep: something else that has to go on meanwhile. Of
    /// threads that wait at the same time one does it. It must not make calls of this session, nor wait. It can be set once; whether
    /// it was.
    pub fn set_idle_work(&self, work: Arc<IdleWork>) -> bool {
        self.shared.idle_work.set(work).is_ok()
    }

    /// The same as in another session.
    pub(crate) fn idle_as(&self, other: &Self) {
        if let Some(work) = other.shared.idle_work.get() {
            self.set_idle_work(work.clone());
        }
    }

    /// Waits until a call is over, while it carries on all calls of this rank, or another thread does.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn wait(&self, ticket: Ticket, limit: Duration) -> RunResult<()> {
        self.wait_while(ticket, limit, || true).unwrap_or(Ok(()))
    }

    /// The same, but it gives up waiting when `goes_on` says no, and the call stays under way. It is asked after each look that
    /// found the call not over, at least every 50 ms.
    pub fn wait_while(&self, ticket: Ticket, limit: Duration, goes_on: impl Fn() -> bool) -> Option<RunResult<()>> {
        if !self.shared.mark.is_here() {
            return Some(Err(forked()));
        }
        let mut engine = self.engine();
        let result = loop {
            if let Some(result) = engine.take(ticket) {
                break result;
            }
            if engine.driver == Driver::Nobody {
                engine.driver = Driver::Caller;
                drop(engine);
                let turn = DriverTurn { session: self, ticket: Some(ticket) };
                let result = self.drive(ticket, limit, &goes_on);
                std::mem::forget(turn);
                engine = self.engine();
                engine.driver = Driver::Nobody;
                if engine.followers > 0 {
                    self.shared.turn.notify_all();
                }
                break result?;
            }
            if let Some(error) = self.overdue(&mut engine, ticket, Moment::now(), limit) {
                engine.give_up(ticket, &error);
                break Err(error);
            }
            if !goes_on() {
                return None;
            }
            engine.followers += 1;
            if engine.driver == Driver::ProgressThread {
                // It gives way to whoever waits.
                self.shared.memory.bell().ring();
            }
            let waited = self.shared.turn.wait_timeout(engine, LONGEST_SLEEP);
            engine = waited.unwrap_or_else(PoisonError::into_inner).0;
            engine.followers -= 1;
        };
        drop(engine);
        Some(result.map_err(|error| self.explain(ticket.communicator, error)))
    }

    /// Carries all calls on until one is over, or until `goes_on` says no.
    fn drive(&self, ticket: Ticket, limit: Duration, goes_on: &impl Fn() -> bool) -> Option<RunResult<()>> {
        let waiter = Waiter::new(self.shared.memory.bell(), self.shared.patience);
        let mut waiter = waiter.with_poller(self.shared.poller.as_ref());
        loop {
            waiter.refresh();
            let mut engine = self.engine();
            let now = Moment::now();
            let (mut moved, mut looks) = (engine.carry_on(now), 1);
            while !moved && looks < self.looks(engine.asks_system(now)) && !engine.is_shared() {
                std::hint::spin_loop();
                (moved, looks) = (engine.carry_on(now), looks + 1);
            }
            if moved && engine.followers > 0 {
                self.shared.turn.notify_all();
            }
            if let Some(result) = engine.take(ticket) {
                waiter.progressed();
                return Some(result);
            }
            if moved {
                waiter.progressed();
                continue;
            }
            if let Some(error) = self.overdue(&mut engine, ticket, now, limit) {
                waiter.progressed();
                engine.give_up(ticket, &error);
                return Some(Err(error));
            }
            let until = engine.idle_until(now.after(limit));
            drop(engine);
            if !goes_on() {
                waiter.progressed();
                return None;
            }
            match self.shared.idle_work.get() {
                Some(work) => {
                    work();
                    waiter.stay_awake(now);
                }
                None => waiter.idle(now, until),
            }
        }
    }

    /// What is wrong if a call has not moved for longer than `limit`, or the session is over.
    pub(super) fn overdue(
        &self,
        engine: &mut Engine,
        ticket: Ticket,
        now: Moment,
        limit: Duration,
    ) -> Option<RunError> {
        if let Some(error) = self.broken(ticket.communicator) {
            return Some(error);
        }
        let standing = engine.standing(ticket)?;
        if let Some(notice) = engine.ports.told(standing.peer, ticket.communicator) {
            return Some(RunError::Broken(notice.breach()));
        }
        let waited = now.since(standing.since);
        // Its last messages may have arrived after the last look.
        if waited > LEAVE_GRACE && self.shared.status.has_left(standing.peer) {
            let source = std::io::Error::other("it has left the session");
            return Some(RunError::Lane { rank: self.shared.rank, peer: standing.peer, source });
        }
        if waited <= limit / 2 {
            return None;
        }
        // The others need to know before their limits end.
        engine.tell_wait(ticket);
        if waited <= limit {
            return None;
        }
        let rank = self.shared.rank;
        let [by, late] = match ticket.is_collective() {
            true => engine.late(ticket.communicator, rank, standing.peer),
            false => [rank, standing.peer],
        };
        Some(match by == rank {
            true => RunError::Deadline {
                rank,
                peer: Some(late),
                phase: Phase::Work,
                place: format!("step {}", standing.finished),
                waited_ms: waited.as_millis() as u64,
                finished: standing.finished,
            },
            false => RunError::Broken(BreachNotice::late(ticket.communicator, by, late).breach()),
        })
    }

    /// Why a peer has given up, or cannot be reached. The peer's own reason, or that of those who watch, comes a little later.
    fn reason_of(&self, communicator: u64, peer: Rank) -> Option<RunError> {
        let deadline = Moment::now().after(EXPLAINING);
        loop {
            let told = || {
                let ports = &mut self.engine().ports;
                // Notices between machines lie among messages.
                ports.relieve(PortRelief::Network);
                ports.told(peer, communicator).map(|notice| RunError::Broken(notice.breach()))
            };
            let reason = self.broken(communicator).or_else(told);
            // What a peer tells before it leaves is known by then, and the others wait for the reason of this rank.
            let is_last = self.shared.watch.is_none() || self.shared.status.has_left(peer) || Moment::now() >= deadline;
            if reason.is_some() || is_last {
                return reason;
            }
            // Notices wake nobody.
            self.shared.status.wait(NOTICE_PAUSE, || self.broken(communicator).is_some());
        }
    }

    /// What to tell of an error. That a peer is gone may have a reason which those who watch the ranks find out a little later.
    pub(super) fn explain(&self, communicator: u64, error: RunError) -> RunError {
        match error {
            RunError::Lane { peer, .. } => self.reason_of(communicator, peer).unwrap_or(error),
            // After a failure, calls of a communicator no longer match.
            RunError::Deadline { .. } | RunError::OtherCall { .. } | RunError::MessageLength { .. } => {
                self.broken(communicator).unwrap_or(error)
            }
            _ => error,
        }
    }
}
