//! The collectives of the C interface that have no root.
//!
//! Each has a twin whose name ends with `_start`, which begins the call and returns a request.

use crate::buffers::GivenBuffers;
use crate::call::{CallArguments, operate};
use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_op_t, antiphon_request_t, communicator};
use crate::requests::give;
use crate::status::{antiphon_result_t, check, guarded};
use comm::{Collective, CollectiveCall, RawCall};
use std::ffi::c_void;

/// Every rank gets the reduction of all ranks' vectors of `count` elements. `send == recv` means in place, on all ranks.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    op: antiphon_op_t,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::AllReduce, count, dtype, op: Some(op), root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// Every rank gets the reduction of all ranks' vectors of `count` elements. `send == recv` means in place, on all ranks.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_reduce_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    op: antiphon_op_t,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::AllReduce, count, dtype, op: Some(op), root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}

/// Every rank gets the `count` elements of each rank, in the order of ranks. `send == recv` means in place, on all ranks: a
/// rank's own elements lie at their place in `recv`.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::AllGather, count, dtype, op: None, root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// Every rank gets the `count` elements of each rank, in the order of ranks. `send == recv` means in place, on all ranks: a
/// rank's own elements lie at their place in `recv`.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_gather_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::AllGather, count, dtype, op: None, root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}

/// Rank i gets the reduction of all ranks' i-th blocks of `count` elements. `send == recv` means in place: the result is
/// at the beginning.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    op: antiphon_op_t,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::ReduceScatter, count, dtype, op: Some(op), root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// Rank i gets the reduction of all ranks' i-th blocks of `count` elements. `send == recv` means in place: the result is
/// at the beginning.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_reduce_scatter_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    op: antiphon_op_t,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::ReduceScatter, count, dtype, op: Some(op), root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}

/// Rank i gets the i-th block of `count` elements of each rank, in the order of ranks. `send == recv` means in place, on
/// all ranks.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::AllToAll, count, dtype, op: None, root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, None) }
}

/// Rank i gets the i-th block of `count` elements of each rank, in the order of ranks. `send == recv` means in place, on
/// all ranks.
/// This only begins the call: `antiphon_test` and `antiphon_wait` tell when it is over.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them
/// until the request is done. `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_all_to_all_start(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: antiphon_dtype_t,
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    let arguments = CallArguments { collective: Collective::AllToAll, count, dtype, op: None, root: None };
    // SAFETY: the caller's promise.
    unsafe { operate(comm, arguments, GivenBuffers { send, receive: recv }, Some(request)) }
}

/// Returns when all ranks have called it.
///
/// # Safety
/// The handle is a communicator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_barrier(comm: antiphon_comm_t) -> antiphon_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        Ok(unsafe { communicator(comm)? }.communicator.barrier()?)
    })
}

/// Begins a barrier. It is over when all ranks have begun it.
///
/// # Safety
/// The handle is a communicator that was not freed; `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn antiphon_barrier_start(
    comm: antiphon_comm_t,
    request: *mut antiphon_request_t,
) -> antiphon_result_t {
    guarded(|| {
        check(request)?;
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        static INPUT: u8 = 0;
        let mut output = vec![0];
        // SAFETY: the output lives with the request, until the call is over.
        let buffers = unsafe { RawCall::out_of_place((&raw const INPUT, 1), (output.as_mut_ptr(), 1)) };
        let begun = communicator.begin(&CollectiveCall::BARRIER, buffers)?;
        // SAFETY: the caller's promise.
        unsafe { give(begun, output, request) }
    })
}
