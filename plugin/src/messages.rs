//! Messages between two ranks, in the C interface.

use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_request_t, communicator, dtype};
use crate::requests::give;
use crate::status::{CallRefusal, antiphon_result_t, check, guarded, number_of};
use comm::RawCall;
use std::ffi::{c_int, c_void};

/// # Safety
/// The handle is a communicator that was not freed. The buffer has `count` elements, and nobody else uses it until the call is
/// over.
unsafe fn message(
    buffer: *mut c_void,
    (count, of): (usize, antiphon_dtype_t),
    peer: c_int,
    comm: antiphon_comm_t,
    is_sent: bool,
    request: Option<*mut antiphon_request_t>,
) -> antiphon_result_t {
    guarded(|| {
        request.map(check).transpose()?;
        let bytes = count.checked_mul(dtype(of)?.size());
        let bytes = bytes.ok_or_else(|| CallRefusal::argument("the buffer ends beyond all addresses"))?;
        if bytes > 0 && buffer.is_null() {
            return Err(CallRefusal::argument("the buffer is NULL"));
        }
        let peer = number_of(peer)?;
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        let (data, none) = ((buffer.cast::<u8>(), bytes), (std::ptr::null_mut(), 0));
        // SAFETY: the same.
        let buffers = unsafe {
            match is_sent {
                true => RawCall::out_of_place((data.0.cast_const(), data.1), none),
                false => RawCall::out_of_place((none.0.cast_const(), none.1), data),
            }
        };
        let mut begun = communicator.begin_message(buffers, bytes, peer, is_sent)?;
        match request {
            None => Ok(begun.wait()?),
            // SAFETY: the same.
            Some(out) => unsafe { give(begun, Vec::new(), out) },
        }
    })
}

/// Sends a message to a rank. It returns when the buffer may be changed again, which may be before the message is received.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffer has `count` elements, and nobody writes to it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_send(
    buffer: *const c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    peer: c_int,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise; what is sent is only read.
    unsafe { message(buffer.cast_mut(), (count, dtype), peer, comm, true, None) }
}

/// Begins to send a message.
///
/// # Safety
/// As for `antiphon_send`, until the request is done; `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_send_start(
    buffer: *const c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    peer: c_int,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise; what is sent is only read.
    unsafe { message(buffer.cast_mut(), (count, dtype), peer, comm, true, Some(request)) }
}

/// Receives a message from a rank; it must have `count` elements. Messages from one rank arrive in the order in which they
/// were sent.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffer has `count` elements, and nobody else uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_recv(
    buffer: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    peer: c_int,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { message(buffer, (count, dtype), peer, comm, false, None) }
}

/// Begins to receive a message.
///
/// # Safety
/// As for `antiphon_recv`, until the request is done; `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_recv_start(
    buffer: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    peer: c_int,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    // SAFETY: the caller's promise.
    unsafe { message(buffer, (count, dtype), peer, comm, false, Some(request)) }
}
