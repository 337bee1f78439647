//! A call under way, that a thread of the library carries on.
//!
//! The principal types are [`OngoingCall`], which that thread and the caller share, and [`CoreHandle`], what Python has of it.

use crate::carrying;
use crate::errors::{argument, not_over, raised};
use crate::memory::LentMemory;
use crate::waiting::SIGNALS;
use comm::{BegunCall, CommError, CommResult};
use pyo3::prelude::*;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    begun: Mutex<BegunCall>,
    outcome: Mutex<Option<CommResult<()>>>,
    is_over: Condvar,
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
    pub(crate) fn new(begun: BegunCall, stream: u64, held: HeldMemory) -> Self {
        Self {
            stream,
            begun: Mutex::new(begun),
            outcome: Mutex::new(None),
            is_over: Condvar::new(),
            held: Mutex::new(Some(held)),
            listeners: Mutex::default(),
            process: std::process::id(),
        }
    }

    /// Looks whether the call is over.
    pub(crate) fn is_over(&self) -> bool {
        self.advance(BegunCall::test)
    }

    /// Carries the call on until it is over or `goes_on` says no.
    pub(crate) fn wait_while(&self, goes_on: impl Fn() -> bool) -> bool {
        self.advance(|begun| begun.wait_while(goes_on))
    }

    fn advance(&self, work: impl FnOnce(&mut BegunCall) -> CommResult<bool>) -> bool {
        {
            let mut begun = locked(&self.begun);
            if locked(&self.outcome).is_some() {
                return true;
            }
            let result = work(&mut begun);
            if matches!(result, Ok(false)) {
                return false;
            }
            *locked(&self.outcome) = Some(result.map(|_| ()));
            self.is_over.notify_all();
        }
        // If Python is about to end, there is nobody left to tell, and its objects are gone with it.
        let is_told = carrying::with_python(|py| {
            self.release();
            self.tell(py);
        });
        if !is_told {
            std::mem::forget(locked(&self.held).take());
        }
        true
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
        let mut outcome = locked(&self.outcome);
        while outcome.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            outcome = self.is_over.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        outcome.clone()
    }
}

/// A call under way.
#[pyclass(frozen, module = "antiphon._core", name = "Handle")]
pub(crate) struct CoreHandle {
    ongoing: Arc<OngoingCall>,
}

impl CoreHandle {
    pub(crate) fn new(ongoing: Arc<OngoingCall>) -> Self {
        Self { ongoing }
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
        match self.ongoing.outcome() {
            None => Ok(false),
            Some(outcome) => {
                self.ongoing.release();
                // Who asks in a loop lets the thread that has to tell others go first.
                py.detach(|| ());
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
            let outcome = py.detach(|| {
                if carrying::is_here() {
                    // A listener waits in the thread that it would wait for.
                    self.ongoing.wait_while(|| Instant::now() < next);
                }
                self.ongoing.outcome_until(next)
            });
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
        // The thread that carries the call on looks for listeners after it has told the outcome.
        if self.ongoing.outcome().is_some() {
            self.ongoing.tell(py);
        }
        Ok(())
    }
}
