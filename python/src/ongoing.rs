//! A call under way, that a thread of the library carries on, or whoever waits for it.
//!
//! The principal types are [`OngoingCall`], which the thread and the caller share, and [`CoreHandle`], what Python has of it. Whoever
//! waits carries the call on if the thread does not: a wait that begins at once is over before the thread has woken up.

use crate::carrying;
use crate::errors::{argument, not_over, raised};
use crate::memory::LentMemory;
use crate::waiting::SIGNALS;
use comm::{BegunCall, CommError, CommResult};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// What belongs to a call until it is over.
#[derive(Default)]
#[expect(dead_code, reason = "it only has to live")]
pub(crate) struct HeldMemory {
    pub(crate) lent: Vec<LentMemory>,
    pub(crate) objects: Vec<Py<PyAny>>,
    pub(crate) temporary: Vec<u8>,
}

/// A call under way.
pub(crate) struct OngoingCall {
    /// Calls with the same number are over in the order in which they were made.
    pub(crate) stream: u64,
    /// It takes so little time that it is worth waking nobody for it.
    pub(crate) is_short: bool,
    /// Held by the thread that carries the call on.
    begun: Mutex<BegunCall>,
    outcome: Mutex<Option<CommResult<()>>>,
    /// The call is over, or nobody carries it on any more.
    news: Condvar,
    /// The callers that wait for it.
    waiting: AtomicUsize,
    held: Mutex<Option<HeldMemory>>,
    /// What Python wants to have called when it is over.
    listeners: Mutex<Vec<Py<PyAny>>>,
    /// A fork of the process has no thread that carries the call on.
    process: u32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OngoingCall {
    pub(crate) fn new(begun: BegunCall, (stream, is_short): (u64, bool), held: HeldMemory) -> Self {
        Self {
            stream,
            is_short,
            begun: Mutex::new(begun),
            outcome: Mutex::new(None),
            news: Condvar::new(),
            waiting: AtomicUsize::new(0),
            held: Mutex::new(Some(held)),
            listeners: Mutex::default(),
            process: std::process::id(),
        }
    }

    /// Looks whether the call is over. The call goes on if somebody else carries it on.
    pub(crate) fn is_over(&self) -> bool {
        self.advance(BegunCall::test) == Some(true)
    }

    /// Carries the call on until it is over or `goes_on` says no. Whether it is over; `None` if somebody else carries it on.
    pub(crate) fn wait_while(&self, goes_on: impl Fn() -> bool) -> Option<bool> {
        self.advance(|begun| begun.wait_while(goes_on))
    }

    /// Whether a caller waits for it, and so carries it on.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn advance(&self, work: impl FnOnce(&mut BegunCall) -> CommResult<bool>) -> Option<bool> {
        {
            let mut begun = match self.begun.try_lock() {
                Ok(begun) => begun,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            if locked(&self.outcome).is_some() {
                return Some(true);
            }
            let result = work(&mut begun);
            let is_over = !matches!(result, Ok(false));
            if is_over {
                *locked(&self.outcome) = Some(result.map(|_| ()));
            }
            drop(begun);
            // Whoever found it held begins to wait for news under this lock.
            let outcome = locked(&self.outcome);
            self.news.notify_all();
            drop(outcome);
            if !is_over {
                return Some(false);
            }
        }
        // If Python is about to end, there is nobody left to tell, and its objects are gone with it.
        let is_told = carrying::with_python(|py| {
            self.release();
            self.tell(py);
        });
        if !is_told {
            std::mem::forget(locked(&self.held).take());
        }
        Some(true)
    }

    /// Gives the memory of a call that is over back to Python.
    fn release(&self) {
        // The lock must be free again before objects end: PyTorch's tensors let other threads run meanwhile, which may want it.
        let held = locked(&self.held).take();
        drop(held);
    }

    /// Tells all who listen that the call is over.
    fn tell(&self, py: Python<'_>) {
        let listeners = std::mem::take(&mut *locked(&self.listeners));
        for listener in listeners {
            if let Err(error) = listener.call0(py) {
                error.write_unraisable(py, Some(listener.bind(py)));
            }
        }
    }

    /// What the call has come to, if it is over.
    fn outcome(&self) -> Option<Result<(), CommError>> {
        locked(&self.outcome).clone()
    }

    /// The same, after a wait.
    fn outcome_until(&self, until: Instant) -> Option<Result<(), CommError>> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let outcome = loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_carried = self.wait_while(|| Instant::now() < until).is_some();
            let outcome = locked(&self.outcome);
            if outcome.is_some() || left.is_zero() {
                break outcome.clone();
            }
            // Whoever leaves the call tells it under the lock that is held here.
            if !is_carried && matches!(self.begun.try_lock(), Err(TryLockError::WouldBlock)) {
                drop(self.news.wait_timeout(outcome, left));
            }
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        outcome
    }
}

/// Wakes a thread.
pub(crate) type ThreadWaker = Box<dyn Fn() + Send + Sync>;

/// A call under way.
#[pyclass(frozen, module = "antiphon._core", name = "Handle")]
pub(crate) struct CoreHandle {
    ongoing: Arc<OngoingCall>,
    /// Wakes the thread that carries calls on.
    wake: ThreadWaker,
}

impl CoreHandle {
    pub(crate) fn new(ongoing: Arc<OngoingCall>, wake: ThreadWaker) -> Self {
        Self { ongoing, wake }
    }

    fn check_process(&self) -> PyResult<()> {
        match self.ongoing.process == std::process::id() {
            true => Ok(()),
            false => Err(argument("this process is a fork of the one that began the call, and cannot wait for it")),
        }
    }
}

#[pymethods]
impl CoreHandle {
    /// Whether the call is over; raises what went wrong.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process()?;
        py.detach(|| self.ongoing.is_over());
        match self.ongoing.outcome() {
            None => Ok(false),
            Some(outcome) => {
                self.ongoing.release();
                outcome.map(|()| true).map_err(|error| raised(&error))
            }
        }
    }

    /// Waits until the call is over; raises what went wrong.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.check_process()?;
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let next = Instant::now() + SIGNALS;
            let next = until.map_or(next, |until| until.min(next));
            let outcome = py.detach(|| self.ongoing.outcome_until(next));
            if let Some(outcome) = outcome {
                self.ongoing.release();
                return outcome.map_err(|error| raised(&error));
            }
            py.check_signals()?;
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(not_over(timeout.unwrap_or_default()));
            }
        }
    }

    /// Has `listener()` called when the call is over, in some thread; at once if it is over already.
    fn when_over(&self, py: Python<'_>, listener: Py<PyAny>) -> PyResult<()> {
        self.check_process()?;
        locked(&self.ongoing.listeners).push(listener);
        // Nobody else may carry it on any more.
        (self.wake)();
        // The thread that carries the call on looks for listeners after it has told the outcome.
        if self.ongoing.outcome().is_some() {
            self.ongoing.tell(py);
        }
        Ok(())
    }
}
