//! Streams: work that is done one after the other by a thread, some time after it was asked for.
//!
//! The principal type is [`Stream`].

use crate::clock;
use crate::device::{CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, Code, ILLEGAL_STATE, draw};
use crate::events::Event;
use crate::recordings::{RecordedGraph, RecordedPlace, Recording};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Work = Box<dyn FnOnce() + Send>;

/// Work that a graph can repeat.
pub(crate) type RepeatableWork = Arc<dyn Fn() + Send + Sync>;

/// The longest delay before a piece of work, in turns that the thread gives to others. There is none where the clock is counted.
const DELAY: u64 = 64;

/// A stream, and the thread that does its work.
pub(crate) struct Stream {
    queue: Mutex<Option<Sender<Work>>>,
    /// Where it is in what it records instead of doing it, while it does.
    recording: Mutex<Option<RecordedPlace>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Stream {
    /// A stream whose delays follow from a seed.
    pub(crate) fn new(mut seed: u64) -> Self {
        let (queue, work) = channel::<Work>();
        let thread = std::thread::spawn(move || {
            for piece in work {
                let delay = if clock::counts() { 0 } else { draw(&mut seed) % DELAY };
                for _ in 0..delay {
                    std::thread::yield_now();
                }
                piece();
            }
        });
        Self { queue: Mutex::new(Some(queue)), recording: Mutex::default(), thread: Mutex::new(Some(thread)) }
    }

    fn place(&self) -> MutexGuard<'_, Option<RecordedPlace>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it records is of no use any more.
    pub(crate) fn spoil(&self) {
        self.place().iter().for_each(|place| place.recording.spoil());
    }

    /// Begins to record. False: it does so already.
    pub(crate) fn begin_recording(self: &Arc<Self>) -> bool {
        let mut place = self.place();
        let is_free = place.is_none();
        place.get_or_insert_with(|| Recording::begin(self));
        is_free
    }

    /// What this stream and those that have joined it have recorded.
    ///
    /// # Errors
    /// As `cuStreamEndCapture`.
    pub(crate) fn end_recording(self: &Arc<Self>) -> Result<RecordedGraph, Code> {
        let place = self.place().clone().ok_or(ILLEGAL_STATE)?;
        if !place.recording.is_begun_by(self) {
            return Err(CAPTURE_UNMATCHED);
        }
        match place.recording.end(&place) {
            (None, _) => Err(CAPTURE_INVALIDATED),
            (Some(_), false) => Err(CAPTURE_UNJOINED),
            (Some(graph), true) => Ok(graph),
        }
    }

    pub(crate) fn leave_recording(&self) {
        *self.place() = None;
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.place().is_some()
    }

    /// The number of what it records, and the nodes after which it goes on.
    pub(crate) fn recorded_place(&self) -> Option<RecordedPlace> {
        self.place().clone()
    }

    /// Goes on after an event of a recording: a stream that does not record joins it. False: the recording has ended.
    pub(crate) fn wait_in(self: &Arc<Self>, event: &RecordedPlace) -> bool {
        let mut place = self.place();
        if !event.recording.is_open() {
            return false;
        }
        match &mut *place {
            Some(own) if Arc::ptr_eq(&own.recording, &event.recording) => own.add(&event.after),
            Some(own) => own.recording.spoil(),
            None => {
                event.recording.is_joined_by(self);
                *place = Some(event.clone());
            }
        }
        true
    }

    /// Puts work that graphs can have at the end, or records it.
    pub(crate) fn push_repeatable(&self, work: RepeatableWork) {
        match &mut *self.place() {
            Some(place) => place.push(work),
            None => self.do_later(move || work()),
        }
    }

    /// Puts work at the end. A graph that is being recorded is spoilt by it.
    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) {
        match &*self.place() {
            Some(place) => place.recording.spoil(),
            None => self.do_later(work),
        }
    }

    fn do_later(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(queue) = &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            // The thread ends only after the queue was taken away.
            let _ = queue.send(Box::new(work));
        }
    }

    /// Records an event at the end. If the stream records a graph, the event is one of the graph.
    pub(crate) fn record(&self, event: &Arc<Event>) {
        let place = self.recorded_place();
        event.set_place(place.clone());
        if place.is_none() {
            let (record, event) = (event.record(), event.clone());
            self.push(move || event.reach(record));
        }
    }

    /// Waits until everything is done that was asked for so far.
    pub(crate) fn synchronize(&self) {
        let event = Arc::new(Event::default());
        self.record(&event);
        event.wait(event.latest());
    }

    /// Does the rest, and ends the thread.
    pub(crate) fn end(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}
