//! Waits that let Ctrl-C through.
//!
//! Python's lock is free while a rank waits, so that other threads go on. A thread that waits asks every 50 ms whether a signal
//! came, because only Python's main thread may run the handlers of signals.

use crate::errors::raised;
use comm::{BegunCall, CommResult, Communicator};
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long Ctrl-C may have to wait.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// Begins a call and waits for its end. If a handler of a signal raises an exception, the call is given up, and its
/// communicator makes no calls any more.
pub(crate) fn complete(py: Python<'_>, begin: impl Send + FnOnce() -> CommResult<BegunCall>) -> PyResult<()> {
    let first = py.detach(|| {
        let mut begun = begin()?;
        Ok((wait_a_while(&mut begun)?, begun))
    });
    let (mut is_over, mut begun) = first.map_err(|error| raised(&error))?;
    while !is_over {
        py.check_signals()?;
        is_over = py.detach(|| wait_a_while(&mut begun)).map_err(|error| raised(&error))?;
    }
    Ok(())
}

/// Makes a call that is given up when its argument says no: when a handler of a signal raises an exception.
pub(crate) fn while_no_signal(
    py: Python<'_>,
    run: impl Send + FnOnce(&dyn Fn() -> bool) -> CommResult<()>,
) -> PyResult<()> {
    let (result, handled) = py.detach(|| {
        let (looked, handled) = (Cell::new(Instant::now()), RefCell::new(Ok(())));
        let goes_on = || {
            if looked.get().elapsed() < SIGNALS {
                return true;
            }
            looked.set(Instant::now());
            *handled.borrow_mut() = Python::attach(|py| py.check_signals());
            handled.borrow().is_ok()
        };
        (run(&goes_on), handled.into_inner())
    });
    handled?;
    result.map_err(|error| raised(&error))
}

fn wait_a_while(begun: &mut BegunCall) -> CommResult<bool> {
    let since = Instant::now();
    begun.wait_while(|| since.elapsed() < SIGNALS)
}

/// The rank whose next message has come; `None` if there is none until a moment.
pub(crate) fn wait_for_sender(
    py: Python<'_>,
    communicator: &Communicator,
    until: Option<Instant>,
) -> PyResult<Option<usize>> {
    let since = Instant::now();
    loop {
        let now = Instant::now();
        let next = until.map_or(now + SIGNALS, |until| until.min(now + SIGNALS));
        let found = py.detach(|| communicator.wait_for_sender(since, || Instant::now() < next));
        let found = found.map_err(|error| raised(&error))?;
        if found.is_some() || until.is_some_and(|until| until <= next) {
            return Ok(found);
        }
        py.check_signals()?;
    }
}

/// Does something long in a thread of its own. If a handler of a signal raises an exception, nobody waits for the end.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    work: impl Send + 'static + FnOnce() -> CommResult<T>,
) -> PyResult<T> {
    let (tell, told) = channel();
    std::thread::Builder::new().name("antiphon-join".to_owned()).spawn(move || {
        // Nobody listens any more after Ctrl-C.
        let _ = tell.send(work());
    })?;
    let told = std::sync::Mutex::new(told);
    loop {
        let result = py.detach(|| {
            let told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            told.recv_timeout(SIGNALS)
        });
        match result {
            Ok(result) => return result.map_err(|error| raised(&error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(pyo3::exceptions::PyRuntimeError::new_err("a thread of the library ended: a defect"));
            }
        }
    }
}
