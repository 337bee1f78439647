//! Python's exceptions, whose classes are in `antiphon/_errors.py`.
//!
//! The principal function is [`raised`].

use comm::{CommError, RunError, RunErrorKind, explained};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// An exception of a class of `antiphon._errors`, about a rank or about none.
fn exception(class: &str, text: String, rank: Option<u32>) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let import = || PyModule::import(py, "antiphon._errors").map(Bound::unbind);
        let made = ERRORS.get_or_try_init(py, import).and_then(|errors| {
            let value = errors.bind(py).getattr(class)?.call1((text,))?;
            value.setattr("rank", rank)?;
            Ok(value)
        });
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// A value of the caller makes no sense.
pub(crate) fn argument(text: impl Into<String>) -> PyErr {
    exception("ArgumentError", text.into(), None)
}

/// A call is not over yet.
pub(crate) fn not_over(seconds: f64) -> PyErr {
    exception("TimeoutError_", format!("the call was not over after {seconds} s; it goes on"), None)
}

/// The exception for an error of a communicator.
pub(crate) fn raised(error: &CommError) -> PyErr {
    let (class, rank) = match error {
        CommError::Argument(_) | CommError::Launch(_) => ("ArgumentError", None),
        CommError::Run(error) => (class_of(error.kind()), rank_of(error)),
        _ => ("InternalError", None),
    };
    exception(class, explained(error), rank)
}

fn class_of(kind: RunErrorKind) -> &'static str {
    match kind {
        RunErrorKind::PeerLost => "PeerLostError",
        RunErrorKind::Late => "TimeoutError_",
        RunErrorKind::Mismatch => "MismatchError",
        RunErrorKind::Aborted => "AbortedError",
        RunErrorKind::Argument => "ArgumentError",
        RunErrorKind::System => "SystemError_",
        _ => "InternalError",
    }
}

/// The rank that an error is about.
fn rank_of(error: &RunError) -> Option<u32> {
    let rank = match error {
        RunError::Verdict(verdict) | RunError::Ended { verdict, .. } => Some(verdict.rank),
        RunError::Deadline { peer, .. } => *peer,
        RunError::OtherCall { peer, .. } | RunError::MessageLength { peer, .. } | RunError::Lane { peer, .. } => {
            Some(*peer)
        }
        RunError::Broken(breach) => Some(breach.by),
        RunError::Placed { error, .. } => return rank_of(error),
        RunError::Absent { missing, .. } => missing.first().copied(),
        _ => None,
    };
    rank.map(|rank| rank.0)
}
