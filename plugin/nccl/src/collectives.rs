//! NCCL's collectives: each is looked at, and a plan serves it, or it goes on to NCCL's own.

use crate::choices::NcclReason;
use crate::counters::count_call;
use crate::groups;
use crate::names::NcclName;
use crate::plans::AskedCall;
use crate::prepared::PlanRefusal;
use crate::real::{address, inside, is_inside};
use schedule::Collective;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An `ncclComm_t`. It stays NCCL's own, because NCCL and others look into it.
pub(crate) type NcclComm = *mut c_void;

/// Runs a call by a plan, or says why not; counts it if anybody wants to know. The result for the caller, if NCCL need not be called.
/// `fixed` is why NCCL serves it in any case.
fn look_at(call: &AskedCall, fixed: Option<NcclReason>) -> Option<c_int> {
    if is_inside() {
        return None;
    }
    if let Some(refused) = groups::refused_as_busy(call.comm) {
        return Some(refused);
    }
    let refused = match &fixed {
        Some(_) => PlanRefusal::NotChosen,
        None => match groups::run(call) {
            Ok(code) => return Some(code),
            Err(why) => why,
        },
    };
    groups::note_stream(call.comm, call.stream);
    count_call(call, fixed, &Err(refused));
    None
}

/// Defines functions of NCCL: their arguments, and which of them say what is called.
macro_rules! collectives {
    ($($name:ident($($argument:ident: $type:ty),+)
        = $collective:ident($count:ident $dtype:ident $comm:ident $fixed:expr; $send:expr, $recv:expr, $op:expr, $root:expr, $stream:ident);
    )+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),+) -> c_int {
            let call = AskedCall {
                collective: Collective::$collective, count: $count, dtype: $dtype, op: $op, root: $root, send: $send, recv: $recv,
                comm: $comm, stream: $stream,
            };
            // A defect of this library is no reason to end the job.
            if let Ok(Some(code)) = catch_unwind(AssertUnwindSafe(|| look_at(&call, $fixed))) {
                return code;
            }
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
        = Broadcast(count dtype comm None; buffer, buffer, 0, root, stream);
    ncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void)
        = AllReduce(count dtype comm None; send, recv, op, 0, stream);
    ncclAllReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = AllReduce(count dtype comm Some(NcclReason::Configured); send, recv, op, 0, stream);
    ncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void)
        = AllGather(count dtype comm None; send, recv, 0, 0, stream);
    ncclAllGatherConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = AllGather(count dtype comm Some(NcclReason::Configured); send, recv, 0, 0, stream);
    ncclReduceScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void)
        = ReduceScatter(count dtype comm None; send, recv, op, 0, stream);
    ncclReduceScatterConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = ReduceScatter(count dtype comm Some(NcclReason::Configured); send, recv, op, 0, stream);
    ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Broadcast(count dtype comm None; send, recv, 0, root, stream);
    ncclBroadcastConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Broadcast(count dtype comm Some(NcclReason::Configured); send, recv, 0, root, stream);
    ncclReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Reduce(count dtype comm None; send, recv, op, root, stream);
    ncclReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Reduce(count dtype comm Some(NcclReason::Configured); send, recv, op, root, stream);
    ncclAlltoAll(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void)
        = AllToAll(count dtype comm None; send, recv, 0, 0, stream);
    ncclAlltoAllConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = AllToAll(count dtype comm Some(NcclReason::Configured); send, recv, 0, 0, stream);
    ncclGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Gather(count dtype comm None; send, recv, 0, root, stream);
    ncclGatherConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Gather(count dtype comm Some(NcclReason::Configured); send, recv, 0, root, stream);
    ncclScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void)
        = Scatter(count dtype comm None; send, recv, 0, root, stream);
    ncclScatterConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int,
        comm: NcclComm, stream: *mut c_void, config: *const c_void)
        = Scatter(count dtype comm Some(NcclReason::Configured); send, recv, 0, root, stream);
}

macro_rules! messages {
    ($($name:ident($($argument:ident: $type:ty),+);)+) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),+, comm: NcclComm, stream: *mut c_void) -> c_int {
            if let Ok(Some(refused)) = catch_unwind(|| groups::noted(comm, stream)) {
                return refused;
            }
            // SAFETY: it is NCCL's function of this name, and the caller has given its arguments.
            inside(|| unsafe {
                let function: unsafe extern "C" fn($($type),+, NcclComm, *mut c_void) -> c_int =
                    std::mem::transmute(address(NcclName::$name));
                function($($argument),+, comm, stream)
            })
        }
    )+ };
}

messages! {
    ncclSend(send: *const c_void, count: usize, dtype: c_int, peer: c_int);
    ncclRecv(recv: *mut c_void, count: usize, dtype: c_int, peer: c_int);
}
