//! The real NCCL behind the names of this library, and where each of its functions is.
//!
//! Nothing happens before the first call of a program, because a library that is preloaded is in every child process too.

use crate::names::{NcclName, NcclReturn};
use crate::settings::{Settings, say};
use runtime::{NcclLibrary, NcclLibraryError, NcclSearch};
use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// How many functions there are.
pub(crate) const COUNT: usize = NcclName::ALL.len();

/// Where each function is; null before its first call.
pub(crate) static ADDRESSES: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

thread_local! {
    /// Whether this thread is inside of NCCL, which calls some of its own functions by names that are defined here.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside of NCCL, whose own calls are none of a program.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// Calls NCCL, and remembers meanwhile that this thread is inside of it.
pub(crate) fn inside(call: impl FnOnce() -> c_int) -> c_int {
    let was_inside = IS_INSIDE.replace(true);
    let result = call();
    IS_INSIDE.set(was_inside);
    result
}

/// What functions without NCCL return: `ncclSystemError`, and `ncclInvalidUsage` if only this one is missing.
const SYSTEM_ERROR: c_int = 2;
const INVALID_USAGE: c_int = 5;

/// NCCL, looked for once.
///
/// # Errors
/// Why there is none.
pub(crate) fn real() -> Result<&'static NcclLibrary, &'static NcclLibraryError> {
    static REAL: OnceLock<Result<NcclLibrary, NcclLibraryError>> = OnceLock::new();
    let found = REAL.get_or_init(|| {
        let found = NcclLibrary::find(&NcclSearch::from_environment());
        match &found {
            Ok(library) => introduce(library),
            Err(why) => say(&format!("every call of NCCL fails: {why}")),
        }
        found
    });
    found.as_ref()
}

/// For those who want to know: which library it is, and what it has that this one does not know.
fn introduce(library: &NcclLibrary) {
    if !Settings::of_process().says_decisions {
        return;
    }
    say(&format!("NCCL {} of {} is behind this library", library.version(), library.path().display()));
    if let Err(why) = library.can_run_plans() {
        say(&why.to_string());
    }
    let is_known = |name: &str| NcclName::ALL.iter().any(|(_, known, _)| *known == name);
    match library.exports() {
        Err(why) => say(&format!("{}: {why}", library.path().display())),
        Ok(names) => {
            let news: Vec<_> = names.iter().filter(|name| name.starts_with("nccl") && !is_known(name)).collect();
            if !news.is_empty() {
                say(&format!(
                    "this NCCL is newer than this library, which lacks {news:?}; a program that needs them can preload this \
                     library, but not load it instead of NCCL"
                ));
            }
        }
    }
}

/// Where a function is, or what does its part where it is missing.
pub(crate) fn address(name: NcclName) -> *const c_void {
    let slot = &ADDRESSES[name as usize];
    let known = slot.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = match real() {
        Ok(library) => match library.function(name.as_str()) {
            Some(function) => function.as_ptr(),
            None => {
                say(&format!("a call of {} fails: NCCL {} does not have it", name.as_str(), library.version()));
                substitute(name, INVALID_USAGE)
            }
        },
        Err(_) => substitute(name, SYSTEM_ERROR),
    };
    slot.store(found, Ordering::Release);
    found
}

/// Whether NCCL does not have a function.
pub(crate) fn is_missing(name: NcclName) -> bool {
    real().as_ref().map_or(true, |library| library.function(name.as_str()).is_none())
}

/// A function that does nothing and says so. It may be called with any arguments.
fn substitute(name: NcclName, result: c_int) -> *mut c_void {
    let function: *const () = match (name.returns(), result) {
        (NcclReturn::Result, SYSTEM_ERROR) => system_error as *const (),
        (NcclReturn::Result, _) => invalid_usage as *const (),
        (NcclReturn::Text, _) => what_is_missing as *const (),
        (NcclReturn::Other, _) => nothing as *const (),
    };
    function.cast_mut().cast()
}

extern "C" fn system_error() -> c_int {
    SYSTEM_ERROR
}

extern "C" fn invalid_usage() -> c_int {
    INVALID_USAGE
}

extern "C" fn nothing() -> usize {
    0
}

extern "C" fn what_is_missing() -> *const c_char {
    static TEXT: OnceLock<CString> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let why = real().err().map_or_else(|| "NCCL does not have this function".to_owned(), ToString::to_string);
        CString::new(why.replace('\0', "?")).unwrap_or_default()
    });
    text.as_ptr()
}
