//! Results, and what they say.
//!
//! The principal functions are [`guarded`], through which all functions of the interface go, and [`antiphon_last_error`].

use crate::types::{antiphon_result, antiphon_result_t};
use comm::{CommError, RunError, RunErrorKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a function did not do its work.
#[derive(Debug)]
pub(crate) struct Refusal {
    result: antiphon_result,
    text: String,
}

impl Refusal {
    /// A value of the caller makes no sense.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { result: antiphon_result::ANTIPHON_INVALID_ARGUMENT, text: text.into() }
    }
}

impl From<CommError> for Refusal {
    fn from(error: CommError) -> Self {
        let result = match &error {
            CommError::Argument(_) | CommError::Launch(_) => antiphon_result::ANTIPHON_INVALID_ARGUMENT,
            CommError::Run(error) => result_of(error),
            _ => antiphon_result::ANTIPHON_INTERNAL,
        };
        Self { result, text: chain(&error) }
    }
}

fn result_of(error: &RunError) -> antiphon_result {
    match error.kind() {
        RunErrorKind::PeerLost => antiphon_result::ANTIPHON_PEER_LOST,
        RunErrorKind::Late => antiphon_result::ANTIPHON_TIMEOUT,
        RunErrorKind::Mismatch => antiphon_result::ANTIPHON_MISMATCH,
        RunErrorKind::Aborted => antiphon_result::ANTIPHON_ABORTED,
        RunErrorKind::Argument => antiphon_result::ANTIPHON_INVALID_ARGUMENT,
        RunErrorKind::System => antiphon_result::ANTIPHON_SYSTEM,
        _ => antiphon_result::ANTIPHON_INTERNAL,
    }
}

/// The error and everything that caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |cause| cause.source()) {
        let text = cause.to_string();
        // A transparent error says what its cause says.
        if texts.last() != Some(&text) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A text for C; what follows a zero byte is left out.
pub(crate) fn text(of: &str) -> CString {
    let end = of.find('\0').unwrap_or(of.len());
    CString::new(&of.as_bytes()[..end]).unwrap_or_default()
}

/// Does the work of a function of the interface. A panic, which would be a defect, ends here.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Refusal>) -> antiphon_result_t {
    let refusal = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return antiphon_result::ANTIPHON_SUCCESS as antiphon_result_t,
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let text = format!("a defect of the library: {}", said.unwrap_or("it does not say which"));
            Refusal { result: antiphon_result::ANTIPHON_INTERNAL, text }
        }
    };
    LAST.with(|last| *last.borrow_mut() = text(&refusal.text));
    refusal.result as antiphon_result_t
}

/// What went wrong the last time in this thread: what, which rank, where, and what to do. Valid until the next failure in this
/// thread. Empty if nothing went wrong.
#[unsafe(no_mangle)]
pub extern "C" fn antiphon_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn antiphon_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
