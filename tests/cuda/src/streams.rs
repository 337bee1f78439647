//! Streams: work that is done one after the other by a thread, some time after it was asked for.
//!
//! The principal type is [`Stream`].

use crate::clock;
use crate::device::draw;
use crate::events::Event;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type Work = Box<dyn FnOnce() + Send>;

/// Work that a graph can repeat.
pub(crate) type RepeatableWork = Arc<dyn Fn() + Send + Sync>;

/// What a stream has recorded. Nothing, once it was asked for something that graphs here do not have.
type Recording = Option<Vec<RepeatableWork>>;

/// The longest delay before a piece of work, in turns that the thread gives to others. There is none where the clock is counted.
const DELAY: u64 = 64;

/// A stream, and the thread that does its work.
pub(crate) struct Stream {
    queue: Mutex<Option<Sender<Work>>>,
    /// What it records instead of doing it, while it does.
    recording: Mutex<Option<Recording>>,
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

    /// What it records is of no use any more.
    pub(crate) fn spoil(&self) {
        if let Some(recorded) = &mut *self.recording.lock().unwrap_or_else(PoisonError::into_inner) {
            *recorded = None;
        }
    }

    /// Begins to record. False: it does so already.
    pub(crate) fn begin_recording(&self) -> bool {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = recording.is_none();
        recording.get_or_insert_with(|| Some(Vec::new()));
        is_free
    }

    /// What was recorded. The outer None: it did not record.
    pub(crate) fn end_recording(&self) -> Option<Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Puts work that graphs can have at the end, or records it.
    pub(crate) fn push_repeatable(&self, work: RepeatableWork) {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *recording {
            Some(recorded) => recorded.iter_mut().for_each(|recorded| recorded.push(work.clone())),
            None => {
                drop(recording);
                self.push(move || work());
            }
        }
    }

    /// Puts work at the end. A graph that is being recorded is spoilt by it.
    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(recorded) = &mut *self.recording.lock().unwrap_or_else(PoisonError::into_inner) {
            *recorded = None;
            return;
        }
        if let Some(queue) = &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            // The thread ends only after the queue was taken away.
            let _ = queue.send(Box::new(work));
        }
    }

    /// Records an event at the end.
    pub(crate) fn record(&self, event: &Arc<Event>) {
        let (record, event) = (event.record(), event.clone());
        if self.is_recording() {
            // Nobody may wait for it for ever.
            event.reach(record);
        }
        self.push(move || event.reach(record));
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
