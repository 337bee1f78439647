//! NCCL's collectives: each is looked at, and goes on to NCCL's own.

use crate::choices::NcclReason;
use crate::counters::{Counters, SeenCall};
use crate::names::NcclName;
use crate::real::address;
use schedule::Collective;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An `ncclComm_t`. It stays NCCL's own, because NCCL and others look into it.
type NcclComm = *mut c_void;

thread_local! {
    /// Whether this thread is inside of NCCL, which calls some of its own functions by names that are defined here.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The bytes of an element, by NCCL's number of its type (`ncclDataType_t`).
const SIZES: [u64; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];

/// A number that a function of NCCL tells about a communicator.
fn asked(name: NcclName, comm: NcclComm) -> Option<usize> {
    let mut number: c_int = -1;
    // SAFETY: both functions that this module asks take a communicator and the address of a number.
    let result = unsafe {
        let function: unsafe extern "C" fn(NcclComm, *mut c_int) -> c_int = std::mem::transmute(address(name));
        function(comm, &raw mut number)
    };
    if result == 0 { usize::try_from(number).ok() } else { None }
}

/// Counts a call if anybody wants to know. `count` elements are one block of the collective.
fn look_at(collective: Collective, count: usize, dtype: c_int, comm: NcclComm, fixed: Option<NcclReason>) {
    if IS_INSIDE.get() {
        return;
    }
    let Some(counters) = Counters::of_process() else { return };
    let facts = (asked(NcclName::ncclCommCount, comm), asked(NcclName::ncclCommUserRank, comm));
    let size = usize::try_from(dtype).ok().and_then(|dtype| SIZES.get(dtype));
    let ((Some(ranks), Some(rank)), Some(size)) = (facts, size) else {
        let call = SeenCall { collective, bytes: 0, ranks: 0, rank: 0 };
        return counters.count(call, Some(NcclReason::Unknown));
    };
    let bytes = (count as u64).saturating_mul(*size).saturating_mul(collective.blocks(ranks));
    counters.count(SeenCall { collective, bytes, ranks, rank }, fixed);
}

/// Calls NCCL, and remembers meanwhile that this thread is inside of it.
fn inside(call: impl FnOnce() -> c_int) -> c_int {
    let was_inside = IS_INSIDE.replace(true);
    let result = call();
    IS_INSIDE.set(was_inside);
    result
}

/// Defines functions of NCCL: their arguments, and which of them say what is called.
macro_rules! collectives {
    ($($name:ident($($argument:ident: $type:ty),+) = $collective:ident($($said:expr),+);)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            // A defect of this library is no reason to end the job.
            let _ = catch_unwind(AssertUnwindSafe(|| look_at(Collective::$collective, $($said),+)));
            // SAFETY: it is NCCL's function of this name, and the caller has given its arguments.
            inside(|| unsafe {
                let function: unsafe extern "C" fn($($type),+) -> c_int = std::mem::transmute(address(NcclName::$name));
                function($($argument),+)
            })
        }
    )+ };
}

collectives! {
    ncclBcast(buffer: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: NcclComm, stream: *mut c_void)
        = Broadcast(count, dtype, comm, None);
    ncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void)
        = AllReduce(count, dtype, comm, None);
    ncclAllReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = AllReduce(count, dtype, comm, Some(NcclReason::Configured));
    ncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void)
        = AllGather(count, dtype, comm, None);
    ncclAllGatherConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = AllGather(count, dtype, comm, Some(NcclReason::Configured));
    ncclReduceScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void)
        = ReduceScatter(count, dtype, comm, None);
    ncclReduceScatterConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = ReduceScatter(count, dtype, comm, Some(NcclReason::Configured));
    ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Broadcast(count, dtype, comm, None);
    ncclBroadcastConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Broadcast(count, dtype, comm, Some(NcclReason::Configured));
    ncclReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Reduce(count, dtype, comm, None);
    ncclReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Reduce(count, dtype, comm, Some(NcclReason::Configured));
    ncclAlltoAll(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void)
        = AllToAll(count, dtype, comm, None);
    ncclAlltoAllConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = AllToAll(count, dtype, comm, Some(NcclReason::Configured));
    ncclGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Gather(count, dtype, comm, None);
    ncclGatherConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Gather(count, dtype, comm, Some(NcclReason::Configured));
    ncclScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Scatter(count, dtype, comm, None);
    ncclScatterConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Scatter(count, dtype, comm, Some(NcclReason::Configured));
}
