//! How threads that carry calls on reach Python.
//!
//! The principal function is [`with_python`]. A thread that is in Python when Python ends is torn out of it, which ends the process
//! with an error. So Python tells this module that it is about to end ([`end`]), and waits for those that are inside.

use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long Python's end waits for a thread that is inside, which may be in code of the user.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

struct PythonVisits {
    threads: usize,
    is_over: bool,
}

static VISITS: Mutex<PythonVisits> = Mutex::new(PythonVisits { threads: 0, is_over: false });
static LEFT: Condvar = Condvar::new();

fn visits() -> MutexGuard<'static, PythonVisits> {
    VISITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something in Python, from a thread of the library; not if Python is about to end.
pub(crate) fn with_python(work: impl FnOnce(Python<'_>)) -> bool {
    {
        let mut visits = visits();
        if visits.is_over {
            return false;
        }
        visits.threads += 1;
    }
    let done = Python::try_attach(work).is_some();
    visits().threads -= 1;
    LEFT.notify_all();
    done
}

/// Python is about to end: no thread of the library reaches it any more.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    py.detach(|| {
        let mut visits = visits();
        visits.is_over = true;
        let is_inside = |visits: &mut PythonVisits| visits.threads > 0;
        let _ = LEFT.wait_timeout_while(visits, LONGEST_WAIT, is_inside);
    });
}
