//! The alltoallv of the C interface.

use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_request_t, communicator, dtype};
use crate::requests::give;
use crate::status::{CallRefusal, antiphon_result_t, check, guarded};
use comm::RawCall;
use std::ffi::c_void;
use std::ops::Range;

/// The blocks of a buffer, in bytes: block i has `counts[i]` elements, and begins at element `offsets[i]`.
///
/// # Safety
/// Both arrays have `size` entries.
unsafe fn blocks(
    counts: *const usize,
    offsets: *const usize,
    size: usize,
    each: usize,
) -> Result<Vec<Range<usize>>, CallRefusal> {
    if counts.is_null() || offsets.is_null() {
        return Err(CallRefusal::argument("an array of counts or offsets is NULL"));
    }
    // SAFETY: the caller's promise.
    let (counts, offsets) =
        unsafe { (std::slice::from_raw_parts(counts, size), std::slice::from_raw_parts(offsets, size)) };
    let block = |(&count, &offset): (&usize, &usize)| {
        let start = offset.checked_mul(each)?;
        Some(start..start.checked_add(count.checked_mul(each)?)?)
    };
    let too_large = || CallRefusal::argument("a block ends beyond all addresses");
    counts.iter().zip(offsets).map(|pair| block(pair).ok_or_else(too_large)).collect()
}

/// Sends block i of `send` to rank i, and receives block i of `recv` from there: block i has `counts[i]` elements, and begins at
/// element `offsets[i]`. What one rank sends to another is as long as what that one receives.
///
/// # Safety
/// The handle is a communicator that was not freed. All arrays have an entry for each rank. The buffers reach as far as their
/// blocks, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_to_all_v(
    send: *const c_void,
    counts: *const usize,
    offsets: *const usize,
    recv: *mut c_void,
    rcounts: *const usize,
    roffsets: *const usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { exchange((send, counts, offsets), (recv, rcounts, roffsets), dtype, comm, None) }
}

/// The same, but this only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// As for `antiphon_all_to_all_v`, until the request is done; the arrays only until this returns. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_to_all_v_start(
    send: *const c_void,
    counts: *const usize,
    offsets: *const usize,
    recv: *mut c_void,
    rcounts: *const usize,
    roffsets: *const usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { exchange((send, counts, offsets), (recv, rcounts, roffsets), dtype, comm, Some(request)) }
}

/// # Safety
/// As for `antiphon_all_to_all_v_start`.
unsafe fn exchange(
    (send, counts, offsets): (*const c_void, *const usize, *const usize),
    (receive, receive_counts, receive_offsets): (*mut c_void, *const usize, *const usize),
    of: antiphon_dtype_t,
    comm: antiphon_comm_t,
    request: Option<*mut antiphon_request_t>,
) -> antiphon_result_t {
    guarded(|| {
        request.map(check).transpose()?;
        let each = dtype(of)?.size();
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        let size = communicator.size();
        // SAFETY: the same.
        let (sends, receives) =
            unsafe { (blocks(counts, offsets, size, each)?, blocks(receive_counts, receive_offsets, size, each)?) };
        let arranged = |[input, output]: [usize; 2]| {
            // SAFETY: the same: these are the ends of the last blocks.
            unsafe { RawCall::out_of_place((send.cast(), input), (receive.cast(), output)) }
        };
        let mut begun = communicator.begin_exchange(&sends, &receives, arranged)?;
        match request {
            None => Ok(begun.wait()?),
            // SAFETY: the same.
            Some(out) => unsafe { give(begun, Vec::new(), out) },
        }
    })
}
