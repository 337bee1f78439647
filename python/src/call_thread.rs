//! The thread that carries on the calls that are under way.
//!
//! The principal type is [`CallThread`]: one for each communicator that Python has begun a call of. Its thread begins with the first
//! such call, and ends when Python has dropped the communicator and all its calls are over.

use crate::carrying;
use crate::ongoing::OngoingCall;
use comm::{BegunCall, CommResult};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread waits for the oldest call before it looks at calls that do not wait for that one.
const TURN: Duration = Duration::from_micros(500);
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
    is_closed: bool,
}

impl Drop for CallThread {
    fn drop(&mut self) {
        self.work().is_closed = true;
        self.shared.news.notify_all();
    }
}

impl CallThread {
    fn work(&self) -> MutexGuard<'_, ThreadWork> {
        self.shared.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call and carries it on.
    pub(crate) fn begin(
        &self,
        begin: impl FnOnce() -> CommResult<BegunCall>,
        ongoing: impl FnOnce(BegunCall) -> OngoingCall,
    ) -> CommResult<Arc<OngoingCall>> {
        // Calls stand in the queue in the order in which they were begun.
        let mut work = self.work();
        let ongoing = Arc::new(ongoing(begin()?));
        work.calls.push_back(ongoing.clone());
        if !std::mem::replace(&mut work.has_thread, true) {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new().name("antiphon".to_owned()).spawn(move || shared.carry_on());
            if let Err(error) = started {
                work.has_thread = false;
                work.calls.pop_back();
                return Err(comm::CommError::Argument(format!("no thread could be started: {error}")));
            }
        }
        self.shared.is_news.store(true, Ordering::Release);
        self.shared.news.notify_one();
        Ok(ongoing)
    }
}

impl ThreadState {
    fn carry_on(&self) {
        carrying::begin();
        loop {
            let Some(firsts) = self.firsts() else { return };
            let mut over: Vec<&Arc<OngoingCall>> = firsts.iter().filter(|ongoing| ongoing.is_over()).collect();
            if over.is_empty() {
                let since = Instant::now();
                let goes_on = || !self.is_news.load(Ordering::Acquire) && (firsts.len() == 1 || since.elapsed() < TURN);
                over.extend(firsts.first().filter(|first| first.wait_while(goes_on)));
            }
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            work.calls.retain(|ongoing| !over.iter().any(|ended| Arc::ptr_eq(ended, ongoing)));
        }
    }

    /// The oldest call of each stream; none if there will be no more.
    fn firsts(&self) -> Option<Vec<Arc<OngoingCall>>> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        while work.calls.is_empty() {
            if work.is_closed {
                return None;
            }
            work = self.news.wait_timeout(work, LONGEST_SLEEP).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.is_news.store(false, Ordering::Release);
        let mut streams = BTreeSet::new();
        Some(work.calls.iter().filter(|ongoing| streams.insert(ongoing.stream)).cloned().collect())
    }
}
