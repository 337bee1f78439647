//! Results, and what they say.
//!
//! The principal functions are [`guarded`], through which all functions of the interface go, and [`antiphon_last_error`].

#![allow(non_camel_case_types, reason = "these are the names of the C interface")]

use comm::{CommError, RunError, RunErrorKind, explained};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function returns: one of `enum antiphon_result`.
pub type antiphon_result_t = c_int;

/// Results.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum antiphon_result {
    /// The call is done, or has begun.
    ANTIPHON_SUCCESS,
    /// A value makes no sense. Nothing was sent, and the communicator stays as it is.
    ANTIPHON_INVALID_ARGUMENT,
    /// The library does not do this.
    ANTIPHON_UNSUPPORTED,
    /// The operating system refused something.
    ANTIPHON_SYSTEM,
    /// A rank is gone. This call and all later ones of the communicator fail.
    ANTIPHON_PEER_LOST,
    /// A rank did not do its part in time. This call and all later ones of the communicator fail.
    ANTIPHON_TIMEOUT,
    /// Ranks do not make the same call. This call and all later ones of the communicator fail.
    ANTIPHON_MISMATCH,
    /// A rank has called `antiphon_comm_abort`.
    ANTIPHON_ABORTED,
    /// A defect of the library.
    ANTIPHON_INTERNAL,
}

/// Why a function did not do its work.
#[derive(Debug)]
pub(crate) struct CallRefusal {
    result: antiphon_result,
    text: String,
}

impl CallRefusal {
    /// A value of the caller makes no sense.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { result: antiphon_result::ANTIPHON_INVALID_ARGUMENT, text: text.into() }
    }
}

impl CallRefusal {
    /// The operating system refused something.
    pub(crate) fn system(text: impl Into<String>) -> Self {
        Self { result: antiphon_result::ANTIPHON_SYSTEM, text: text.into() }
    }
}

impl From<CommError> for CallRefusal {
    fn from(error: CommError) -> Self {
        let result = match &error {
            CommError::Argument(_) | CommError::Launch(_) => antiphon_result::ANTIPHON_INVALID_ARGUMENT,
            CommError::Run(error) => result_of(error),
            _ => antiphon_result::ANTIPHON_INTERNAL,
        };
        Self { result, text: explained(&error) }
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

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A text for C; what follows a zero byte is left out.
pub(crate) fn text(of: &str) -> CString {
    let end = of.find('\0').unwrap_or(of.len());
    CString::new(&of.as_bytes()[..end]).unwrap_or_default()
}

/// # Errors
/// If the place for an answer is null.
pub(crate) fn check<T>(out: *mut T) -> Result<(), CallRefusal> {
    if out.is_null() { Err(CallRefusal::argument("the place for the answer is NULL")) } else { Ok(()) }
}

/// # Errors
/// If a number of a rank is negative.
pub(crate) fn number_of(rank: c_int) -> Result<usize, CallRefusal> {
    usize::try_from(rank).map_err(|_| CallRefusal::argument(format!("rank {rank}: ranks are counted from 0")))
}

/// Does the work of a function of the interface. A panic, which would be a defect, ends here.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), CallRefusal>) -> antiphon_result_t {
    let refusal = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return antiphon_result::ANTIPHON_SUCCESS as antiphon_result_t,
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let text = format!("a defect of the library: {}", said.unwrap_or("it does not say which"));
            CallRefusal { result: antiphon_result::ANTIPHON_INTERNAL, text }
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
