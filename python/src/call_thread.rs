//! The thread that carries on the calls that are under way.
//!
//! The principal type is [`CallThread`]: one for each communicator that Python has begun a call of. Its thread begins with the first
//! such call, and ends when Python has dropped the communicator and all its calls are over.

use crate::ongoing::{OngoingCall, ThreadWaker};
use comm::{BegunCall, CommResult};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread waits for the oldest call before it looks at calls that do not wait for that one.
const TURN: Duration = Duration::from_micros(500);
/// How long it leaves calls alone that their callers carry on.
const REST: Duration = Duration::from_millis(2);
/// How long after the last call it still looks around that often, so that short calls need not wake it.
const WAKEFUL: Duration = Duration::from_millis(20);
/// A thread without work looks around at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The calls of a communicator that are under way.
#[derive(Default)]
pub(crate) struct CallThread {
    shared: Arc<ThreadState>,
}

#[derive(Default)]
struct ThreadState {
    work: Mutex<ThreadWork>,
    /// There is work, or never will be.
    news: Condvar,
    /// A call has begun since the thread looked for them.
    is_news: AtomicBool,
}

#[derive(Default)]
struct ThreadWork {
    calls: VecDeque<Arc<OngoingCall>>,
    has_thread: bool,
    /// The thread looks around within [`REST`].
    rests: bool,
    is_closed: bool,
}

impl Drop for CallThread {
    fn drop(&mut self) {
        self.work().is_closed = true;
        self.shared.news.notify_all();
    }
}

impl CallThread {
    /// What wakes the thread, because somebody wants to be told of the end of a call, and waits for nothing.
    pub(crate) fn waker(&self) -> ThreadWaker {
        let shared = self.shared.clone();
        Box::new(move || {
            shared.is_news.store(true, Ordering::Release);
            shared.news.notify_one();
        })
    }

    fn work(&self) -> MutexGuard<'_, ThreadWork> {
        self.shared.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, and carries it on unless it is over at once or its caller waits for it.
    pub(crate) fn begin(
        &self,
        begin: impl FnOnce() -> CommResult<BegunCall>,
        ongoing: impl FnOnce(BegunCall) -> OngoingCall,
    ) -> CommResult<Arc<OngoingCall>> {
        let ongoing = {
            // Calls stand in the queue in the order in which they were begun.
            let mut work = self.work();
            let ongoing = Arc::new(ongoing(begin()?));
            work.calls.push_back(ongoing.clone());
            ongoing
        };
        // Outside the lock, because what it holds may end with it.
        let is_over = ongoing.is_over();
        let mut work = self.work();
        if is_over {
            work.calls.retain(|other| !Arc::ptr_eq(other, &ongoing));
            return Ok(ongoing);
        }
        if !work.has_thread {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new().name("antiphon".to_owned()).spawn(move || shared.carry_on());
            if let Err(error) = started {
                work.calls.retain(|other| !Arc::ptr_eq(other, &ongoing));
                return Err(comm::CommError::Argument(format!("no thread could be started: {error}")));
            }
            work.has_thread = true;
        }
        // Most callers wait for a short call at once, and carry it on.
        if !(ongoing.is_short && work.rests) {
            self.shared.is_news.store(true, Ordering::Release);
            self.shared.news.notify_one();
        }
        Ok(ongoing)
    }
}

impl ThreadState {
    fn carry_on(&self) {
        while let Some(firsts) = self.firsts() {
            let mut over: Vec<&Arc<OngoingCall>> = firsts.iter().filter(|ongoing| ongoing.is_over()).collect();
            if over.is_empty() {
                let since = Instant::now();
                let left = firsts.iter().find(|ongoing| !ongoing.is_awaited());
                let goes_on = |ongoing: &OngoingCall| {
                    let alone = firsts.len() == 1 || since.elapsed() < TURN;
                    alone && !self.is_news.load(Ordering::Acquire) && !ongoing.is_awaited()
                };
                match left.map(|ongoing| (ongoing, ongoing.wait_while(|| goes_on(ongoing)))) {
                    Some((ongoing, Some(true))) => over.push(ongoing),
                    Some((_, Some(false))) => {}
                    _ => self.rest(),
                }
            }
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            work.calls.retain(|ongoing| !over.iter().any(|ended| Arc::ptr_eq(ended, ongoing)));
        }
    }

    /// Waits a while for new calls.
    fn rest(&self) {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_news.load(Ordering::Acquire) {
            drop(self.rest_with(work));
        }
    }

    fn rest_with<'a>(&self, mut work: MutexGuard<'a, ThreadWork>) -> MutexGuard<'a, ThreadWork> {
        work.rests = true;
        work = self.news.wait_timeout(work, REST).unwrap_or_else(PoisonError::into_inner).0;
        work.rests = false;
        work
    }

    /// The oldest call of each stream; none if there will be no more.
    fn firsts(&self) -> Option<Vec<Arc<OngoingCall>>> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let since = Instant::now();
        while work.calls.is_empty() {
            if work.is_closed {
                return None;
            }
            work = match since.elapsed() < WAKEFUL {
                true => self.rest_with(work),
                false => self.news.wait_timeout(work, LONGEST_SLEEP).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        self.is_news.store(false, Ordering::Release);
        let mut streams = BTreeSet::new();
        Some(work.calls.iter().filter(|ongoing| streams.insert(ongoing.stream)).cloned().collect())
    }
}
