//! A thread that carries calls on while their rank does something else.
//!
//! The principal type is [`ProgressThread`]. Who waits for a call carries it on itself, which is fastest. A call that was only
//! begun would stand still until then, so this thread looks after it: it begins [`GRACE`] after the call, goes on while nobody
//! waits, and gives way at once to a thread that does. It sleeps while no call is under way. It is made with the first call that
//! is begun, and ends with the session.

use super::engine::Driver;
use super::waiting::DriverTurn;
use super::{Session, SessionParts};
use crate::background;
use crate::clock::Moment;
use crate::memory::doorbell::{Doorbell, Patience, Waiter};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a call that was begun is left to its caller. Callers that wait at once never meet the thread.
const GRACE: Duration = Duration::from_micros(200);
/// While another thread carries the calls on, this one looks around so often.
const LOOKING_AROUND: Duration = Duration::from_millis(5);

/// What the thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadUse {
    /// It does not exist.
    Unborn,
    /// It sleeps, because no call is under way.
    Parked,
    /// It looks after calls.
    Active,
    /// It ends, or could not be made.
    Ended,
}

/// What a session and its thread share.
struct Parking {
    state: Mutex<ThreadUse>,
    changed: Condvar,
}

impl Parking {
    fn state(&self) -> MutexGuard<'_, ThreadUse> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps while the thread is parked, and then for a time; false if the thread is to end.
    fn pause(&self, time: Duration) -> bool {
        let parked = |state: &mut ThreadUse| *state == ThreadUse::Parked;
        let state = self.changed.wait_while(self.state(), parked).unwrap_or_else(PoisonError::into_inner);
        let active = |state: &mut ThreadUse| *state == ThreadUse::Active;
        let waited = self.changed.wait_timeout_while(state, time, active);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != ThreadUse::Ended
    }
}

/// The thread of one session.
pub(super) struct ProgressThread {
    parking: Arc<Parking>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ProgressThread {
    /// No thread yet.
    pub(super) fn new() -> Self {
        let parking = Parking { state: Mutex::new(ThreadUse::Unborn), changed: Condvar::new() };
        Self { parking: Arc::new(parking), thread: Mutex::default() }
    }

    /// Says that a call is under way. The caller holds the lock of the engine, so the thread does not park meanwhile.
    pub(super) fn look_after(&self, session: &Arc<SessionParts>) {
        let mut state = self.parking.state();
        match *state {
            ThreadUse::Active | ThreadUse::Ended => {}
            ThreadUse::Parked => {
                *state = ThreadUse::Active;
                self.parking.changed.notify_one();
            }
            ThreadUse::Unborn => {
                let (parking, parts) = (self.parking.clone(), Arc::downgrade(session));
                match background::spawn("antiphon-calls", move || look_after_calls(&parking, &parts)) {
                    Ok(thread) => {
                        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
                        *state = ThreadUse::Active;
                    }
                    // Calls go on while somebody waits for them.
                    Err(error) => {
                        tracing::info!(
                            "calls do not go on by themselves, because there is no thread for them: {error}"
                        );
                        *state = ThreadUse::Ended;
                    }
                }
            }
        }
    }

    /// Ends the thread, which may sleep until this bell rings.
    pub(super) fn end(&self, bell: &Doorbell) {
        *self.parking.state() = ThreadUse::Ended;
        self.parking.changed.notify_one();
        bell.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // What a call gives back may hold the session.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // It has not panicked, or somebody has seen it.
            let _ = thread.join();
        }
    }

    /// Forgets the thread, which does not exist in a fork.
    pub(super) fn forget(&mut self) {
        std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// All users of a session. The last one ends the thread. So it is this user, and not the thread, that drops the parts: then the
/// others have been told that this rank leaves before its process can end.
pub(super) struct SessionUsers(pub(super) Arc<SessionParts>);

impl Drop for SessionUsers {
    fn drop(&mut self) {
        if self.0.mark.is_here() {
            self.0.progress.end(&self.0.memory.bell());
        }
    }
}

/// What the thread found.
#[derive(Clone, Copy)]
enum Outlook {
    /// No call is under way.
    Idle,
    /// Somebody waits for a call, and carries on all.
    Driven,
}

fn look_after_calls(parking: &Parking, parts: &Weak<SessionParts>) {
    let mut pause = GRACE;
    while parking.pause(pause) {
        let Some(shared) = parts.upgrade() else { return };
        pause = match (Session { _users: None, shared }).look_after_calls(parking) {
            Outlook::Idle => GRACE,
            Outlook::Driven => LOOKING_AROUND,
        };
    }
}

impl Session {
    /// Carries all calls on until none is under way, or somebody waits for one.
    fn look_after_calls(&self, parking: &Parking) -> Outlook {
        let mut engine = self.engine();
        if engine.driver != Driver::Nobody || engine.followers > 0 {
            return Outlook::Driven;
        }
        engine.driver = Driver::ProgressThread;
        drop(engine);
        let turn = DriverTurn { session: self, ticket: None };
        let waiter = Waiter::new(self.shared.memory.bell(), Patience::NONE);
        let mut waiter = waiter.with_poller(self.shared.poller.as_ref());
        let mut engine = loop {
            waiter.refresh();
            let mut engine = self.engine();
            let now = Moment::now();
            let moved = engine.carry_on(now);
            let has_ended = *parking.state() == ThreadUse::Ended;
            if has_ended || engine.is_idle() || engine.followers > 0 {
                break engine;
            }
            let until = engine.idle_until(now.after(LOOKING_AROUND));
            drop(engine);
            match moved {
                true => waiter.progressed(),
                false => waiter.idle(now, until),
            }
        };
        // Before the next driver may sleep.
        waiter.progressed();
        std::mem::forget(turn);
        engine.driver = Driver::Nobody;
        let outlook = if engine.is_idle() { Outlook::Idle } else { Outlook::Driven };
        if let (Outlook::Idle, mut state) = (outlook, parking.state())
            && *state == ThreadUse::Active
        {
            *state = ThreadUse::Parked;
        }
        drop(engine);
        self.shared.turn.notify_all();
        outlook
    }
}
