//! Events: whether what came before them in a stream is done.
//!
//! The principal type is [`Event`].

use crate::clock;
use crate::recordings::RecordedPlace;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// How often an event was recorded, and how many of these records a stream has reached.
#[derive(Default)]
struct EventState {
    recorded: u64,
    reached: u64,
    at: Option<Instant>,
    /// The clock of the stream that has reached it last.
    clock: u64,
    /// Where it is in a graph, if it was recorded there last.
    place: Option<RecordedPlace>,
}

/// An event. One that was never recorded counts as done.
#[derive(Default)]
pub(crate) struct Event {
    state: Mutex<EventState>,
    changed: Condvar,
}

impl Event {
    /// Its next record; a stream reaches it later.
    pub(crate) fn record(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.recorded += 1;
        state.recorded
    }

    pub(crate) fn reach(&self, record: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reached = state.reached.max(record);
        (state.at, state.clock) = (Some(Instant::now()), clock::now());
        self.changed.notify_all();
    }

    /// When a stream has reached it last.
    pub(crate) fn reached_at(&self) -> Option<Instant> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).at
    }

    /// The same by the clock that is counted.
    pub(crate) fn counted_at(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clock
    }

    /// The latest record.
    pub(crate) fn latest(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).recorded
    }

    /// It was recorded in a graph, or outside of all.
    pub(crate) fn set_place(&self, place: Option<RecordedPlace>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).place = place;
    }

    /// Where it is in a graph, if it was recorded there last.
    pub(crate) fn place(&self) -> Option<RecordedPlace> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).place.clone()
    }

    pub(crate) fn is_done(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reached >= state.recorded
    }

    /// Waits until a stream has reached a record.
    pub(crate) fn wait(&self, record: u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |state| state.reached < record);
        clock::advance(waited.unwrap_or_else(PoisonError::into_inner).clock);
    }
}
