//! Memory for buffers, in the C interface.

use crate::handles::{RegisteredRanges, antiphon_comm, antiphon_comm_t, communicator};
use crate::status::{CallRefusal, antiphon_result_t, check, guarded};
use comm::{CommError, SharedMemory};
use std::ffi::c_void;
use std::sync::{MutexGuard, PoisonError};

/// Before the memory that the caller gets lies a page that says what it is a part of.
const PAGE: usize = 4096;

/// Memory for buffers, filled with zeroes, that begins at a page. The other processes of this machine read it where it lies, so
/// calls with long buffers take less time than with those of `malloc`. `antiphon_free` frees it.
///
/// # Safety
/// The handle is a communicator that was not freed; `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_alloc(
    comm: antiphon_comm_t,
    bytes: usize,
    out: *mut *mut c_void,
) -> antiphon_result_t {
    guarded(|| {
        check(out)?;
        // SAFETY: the caller's promise.
        let session = unsafe { communicator(comm)? }.communicator.session();
        let all = bytes.checked_add(PAGE).filter(|all| isize::try_from(*all).is_ok());
        let all = all.ok_or_else(|| CallRefusal::argument(format!("{bytes} bytes are more than can be addressed")))?;
        let mut memory = Box::new(session.allocate(all).map_err(CommError::from)?);
        let start = memory.as_mut_ptr();
        // SAFETY: the first page is not the caller's.
        unsafe {
            start.cast::<*mut SharedMemory>().write(Box::into_raw(memory));
            out.write(start.add(PAGE).cast());
        }
        Ok(())
    })
}

/// Frees what `antiphon_alloc` gave, with any communicator of this process; NULL is nothing.
///
/// # Safety
/// The memory came from `antiphon_alloc`, was not freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_free(comm: antiphon_comm_t, memory: *mut c_void) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { communicator(comm)? };
        if !memory.is_null() {
            // SAFETY: the page before says what the memory is a part of (`antiphon_alloc`).
            drop(unsafe { Box::from_raw(memory.cast::<u8>().sub(PAGE).cast::<*mut SharedMemory>().read()) });
        }
        Ok(())
    })
}

/// Lets the other processes of this machine read memory of the caller where it lies, such as that of `malloc`. Calls with long
/// buffers in it then take less time. Its contents and address stay. It should begin at a page, because only whole pages can be
/// registered. A process that is forked meanwhile shares these pages, instead of having copies of them. Memory that is not
/// private memory of this process is refused, and so is what is registered already. It is registered until
/// `antiphon_deregister`, or until the communicator is freed.
///
/// # Safety
/// The handle is a communicator that was not freed. The memory is the caller's, and is not freed before it is deregistered.
/// Nobody uses it during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_register(
    comm: antiphon_comm_t,
    memory: *mut c_void,
    bytes: usize,
) -> antiphon_result_t {
    guarded(|| {
        check(memory)?;
        // SAFETY: the caller's promise.
        let handle = unsafe { communicator(comm)? };
        let mut registered = registered(handle);
        let end = memory.addr().saturating_add(bytes);
        let before = registered.range(..end.max(memory.addr() + 1)).next_back();
        if before.is_some_and(|(start, (length, _))| *start == memory.addr() || start + length > memory.addr()) {
            return Err(CallRefusal::argument("a part of this memory is registered already"));
        }
        // SAFETY: the caller's promise.
        let pages = unsafe { handle.communicator.session().register_raw(memory.cast(), bytes) };
        let pages = pages.map_err(CommError::from)?;
        registered.insert(memory.addr(), (bytes, pages));
        Ok(())
    })
}

/// Makes registered memory ordinary memory again. Its contents and address stay.
///
/// # Safety
/// The handle is a communicator that was not freed, and no call uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_deregister(comm: antiphon_comm_t, memory: *mut c_void) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        let found = registered(unsafe { communicator(comm)? }).remove(&memory.addr());
        found.map(drop).ok_or_else(|| CallRefusal::argument("this memory is not registered with this communicator"))
    })
}

fn registered(handle: &antiphon_comm) -> MutexGuard<'_, RegisteredRanges> {
    handle.registered.lock().unwrap_or_else(PoisonError::into_inner)
}
