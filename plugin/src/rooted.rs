//! The collectives of the C interface that have a root.
//!
//! Each has a twin whose name ends with `_start`, which begins the call and returns a request.

use crate::buffers::GivenBuffers;
use crate::call::{CallArguments, operate};
use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_op_t, antiphon_request_t};
use crate::status::antiphon_result_t;
use comm::Collective;
use std::ffi::{c_int, c_void};

/// Every rank gets the root's `count` elements.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_broadcast(
    buffer: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    root: c_int,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Broadcast, count, dtype, op: None, root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send: buffer, receive: buffer }, None) }
}

/// Every rank gets the root's `count` elements.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_broadcast_start(
    buffer: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    root: c_int,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Broadcast, count, dtype, op: None, root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send: buffer, receive: buffer }, Some(request)) }
}

/// The root gets the reduction of all ranks' vectors of `count` elements. `recv` matters on the root only; there,
/// `send == recv` means in place.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    op: antiphon_op_t,
    root: c_int,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Reduce, count, dtype, op: Some(op), root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// The root gets the reduction of all ranks' vectors of `count` elements. `recv` matters on the root only; there,
/// `send == recv` means in place.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_reduce_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    op: antiphon_op_t,
    root: c_int,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Reduce, count, dtype, op: Some(op), root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}

/// The root gets the `count` elements of each rank, in the order of ranks. `recv` matters on the root only; there,
/// `send == recv` means in place: its own elements lie at their place.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    root: c_int,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Gather, count, dtype, op: None, root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// The root gets the `count` elements of each rank, in the order of ranks. `recv` matters on the root only; there,
/// `send == recv` means in place: its own elements lie at their place.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_gather_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    root: c_int,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Gather, count, dtype, op: None, root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}

/// Rank i gets the root's i-th block of `count` elements. `send` matters on the root only; there, `send == recv` means in
/// place: its own block stays where it is.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    root: c_int,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Scatter, count, dtype, op: None, root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// Rank i gets the root's i-th block of `count` elements. `send` matters on the root only; there, `send == recv` means in
/// place: its own block stays where it is.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_scatter_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    root: c_int,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::Scatter, count, dtype, op: None, root: Some(root) };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}
