//! Events: whether what came before them in a stream is done.
//!
//! The principal type is [`Event`]. The functions for events have the names and arguments that they have in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::clock;
use crate::device::{CAPTURED_EVENT, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::driver::{EVENTS, STREAMS, current, find, give, initialized, insert, remove};
use crate::graphs;
use crate::recordings::RecordedPlace;
use crate::streams::Stream;
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> Code {
    current(|_| {
        let (stream, event) = (find(&STREAMS, stream)?, find(&EVENTS, event)?);
        if is_external(&stream, flags)? {
            stream.push_repeatable(Arc::new(move || event.wait(event.latest())));
            return Ok(());
        }
        if let Some(place) = event.place() {
            return if stream.wait_in(&place) { Ok(()) } else { Err(CAPTURED_EVENT) };
        }
        // A graph that is being recorded is spoilt by an event that is none of it.
        let record = event.latest();
        stream.push(move || event.wait(record));
        Ok(())
    })
}

/// Whether a node of a graph is for an event outside of it. Only a stream that records can have one.
fn is_external(stream: &Stream, flags: c_uint) -> Result<bool, Code> {
    match flags {
        0 => Ok(false),
        1 if stream.is_recording() => Ok(true),
        _ => Err(INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) -> Code {
    current(|_| {
        let (stream, event) = (find(&STREAMS, stream)?, find(&EVENTS, event)?);
        if is_external(&stream, flags)? {
            event.set_place(None);
            stream.push_repeatable(Arc::new(move || event.reach(event.record())));
        } else {
            stream.record(&event);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> Code {
    // SAFETY: as the caller of the driver promises.
    current(|_| unsafe { give(event, insert(&EVENTS, Arc::default())) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    initialized(|| remove(&EVENTS, event).map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Code {
    current(|_| {
        find(&STREAMS, stream)?.record(&find(&EVENTS, event)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Code {
    current(|_| {
        graphs::check_unsafe()?;
        let event = find(&EVENTS, event)?;
        match event.place() {
            Some(_) => Err(CAPTURED_EVENT),
            None if event.is_done() => Ok(()),
            None => Err(NOT_READY),
        }
    })
}

/// Milliseconds between two events that were made to measure time, as all are here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(millis: *mut f32, begin: usize, end: usize) -> Code {
    current(|_| {
        let (begin, end) = (find(&EVENTS, begin)?, find(&EVENTS, end)?);
        let counted = end.counted_at().saturating_sub(begin.counted_at());
        let (Some(begin), Some(end)) = (begin.reached_at(), end.reached_at()) else { return Err(INVALID_HANDLE) };
        let elapsed = match clock::counts() {
            true => counted as f32 / 1e6,
            false => end.saturating_duration_since(begin).as_secs_f32() * 1e3,
        };
        // SAFETY: as the caller of the driver promises.
        unsafe { give(millis, elapsed) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Code {
    current(|_| {
        graphs::check_unsafe()?;
        let event = find(&EVENTS, event)?;
        if event.place().is_some() {
            return Err(CAPTURED_EVENT);
        }
        event.wait(event.latest());
        Ok(())
    })
}
