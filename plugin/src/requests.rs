//! Calls under way.

use crate::handles::{antiphon_request, antiphon_request_t};
use crate::status::{CallRefusal, antiphon_result_t, check, guarded};
use comm::BegunCall;
use std::ffi::c_int;

/// Hands a call under way to the caller.
///
/// # Safety
/// `out` can be written.
pub(crate) unsafe fn give(
    request: BegunCall,
    temporary: Vec<u8>,
    out: *mut antiphon_request_t,
) -> Result<(), CallRefusal> {
    let handle = Box::new(antiphon_request { request, _temporary: temporary });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(handle)) };
    Ok(())
}

/// Looks whether a call is over. If it is, or has failed, `*done` is 1, and the request is freed and set to NULL. A request that
/// is NULL is done.
///
/// # Safety
/// `request` points to NULL or to a request that was not freed; `done` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_test(request: *mut antiphon_request_t, done: *mut c_int) -> antiphon_result_t {
    guarded(|| {
        check(request)?;
        check(done)?;
        // SAFETY: the caller's promise.
        let tested = match unsafe { (*request).as_mut() } {
            Some(handle) => handle.request.test(),
            None => Ok(true),
        };
        // SAFETY: the same.
        unsafe {
            done.write(c_int::from(!matches!(tested, Ok(false))));
            if !matches!(tested, Ok(false)) {
                free(request);
            }
        }
        tested?;
        Ok(())
    })
}

/// Waits until a call is over. The request is freed and set to NULL, whatever the result.
///
/// # Safety
/// `request` points to NULL or to a request that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_wait(request: *mut antiphon_request_t) -> antiphon_result_t {
    guarded(|| {
        check(request)?;
        // SAFETY: the caller's promise.
        let waited = match unsafe { (*request).as_mut() } {
            Some(handle) => handle.request.wait(),
            None => Ok(()),
        };
        // SAFETY: the same.
        unsafe { free(request) };
        Ok(waited?)
    })
}

/// # Safety
/// `request` points to NULL or to a request that was not freed.
unsafe fn free(request: *mut antiphon_request_t) {
    // SAFETY: the caller's promise; the handle came from a box (`give`).
    unsafe {
        let handle = request.replace(std::ptr::null_mut());
        if !handle.is_null() {
            drop(Box::from_raw(handle));
        }
    }
}
