//! Streams: work that is done one after the other by a thread, some time after it was asked for.
//!
//! The principal type is [`Stream`].

use crate::device::draw;
use crate::events::Event;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type Work = Box<dyn FnOnce() + Send>;

/// The longest delay before a piece of work, in turns that the thread gives to others.
const DELAY: u64 = 64;

/// A stream, and the thread that does its work.
pub(crate) struct Stream {
    queue: Mutex<Option<Sender<Work>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Stream {
    /// A stream whose delays follow from a seed.
    pub(crate) fn new(mut seed: u64) -> Self {
        let (queue, work) = channel::<Work>();
        let thread = std::thread::spawn(move || {
            for piece in work {
                for _ in 0..draw(&mut seed) % DELAY {
                    std::thread::yield_now();
                }
                piece();
            }
        });
        Self { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)) }
    }

    /// Puts work at the end.
    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(queue) = &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            // The thread ends only after the queue was taken away.
            let _ = queue.send(Box::new(work));
        }
    }

    /// Records an event at the end.
    pub(crate) fn record(&self, event: &Arc<Event>) {
        let (record, event) = (event.record(), event.clone());
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
