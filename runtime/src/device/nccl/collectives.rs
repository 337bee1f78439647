//! NCCL's own collectives, as far as plans compete with them.
//!
//! The principal type is [`NcclStockCall`].

use super::calls::{IN_PROGRESS, RawComm, SUCCESS, type_number};
use super::communicator::{NcclCommunicator, NcclDeadline};
use super::error::NcclError;
use super::library::NcclLibrary;
use crate::dtype::DType;
use schedule::{Collective, ReduceOp};
use std::ffi::{c_int, c_void};
use topology::Rank;

/// NCCL's number for a call that makes no sense.
const INVALID_ARGUMENT: c_int = 4;

type Stream = *mut c_void;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int;
type Broadcast = AllReduce;
type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, Stream) -> c_int;
type AllToAll = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, Stream) -> c_int;

/// A call of one of NCCL's collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NcclStockCall {
    /// The collective.
    pub collective: Collective,
    /// The root, of a collective that has one; else rank 0 is taken.
    pub root: Option<Rank>,
    /// The reduction, where something is reduced; else a sum is taken.
    pub op: Option<ReduceOp>,
    /// Elements of one block.
    pub count: usize,
    /// Their type.
    pub dtype: DType,
}

impl NcclStockCall {
    /// The bytes that a rank gives and gets.
    pub(super) fn bytes(&self, rank: Rank, ranks: usize) -> [usize; 2] {
        let [given, got] = self.collective.buffer_blocks(ranks as u64);
        let block = self.count * self.dtype.size();
        let gets = !self.collective.ends_at_root() || rank == self.root.unwrap_or(Rank(0));
        [given as usize * block, if gets { got as usize * block } else { 0 }]
    }
}

/// Where the functions are. NCCL stays loaded, so they stay valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct NcclCollectives {
    all_reduce: AllReduce,
    reduce_scatter: AllReduce,
    broadcast: Broadcast,
    reduce: Reduce,
    /// Since NCCL 2.28.
    all_to_all: Option<AllToAll>,
}

/// NCCL's number of a reduction.
fn op_number(op: Option<ReduceOp>) -> c_int {
    match op {
        None | Some(ReduceOp::Sum) => 0,
        Some(ReduceOp::Prod) => 1,
        Some(ReduceOp::Max) => 2,
        Some(ReduceOp::Min) => 3,
        Some(ReduceOp::Avg) => 4,
    }
}

impl NcclCollectives {
    /// # Errors
    /// [`NcclError::Lacks`] if a function is missing.
    pub(super) fn of(library: &NcclLibrary) -> Result<Self, NcclError> {
        let found = |name| library.function(name).map(|found| found.as_ptr()).ok_or(NcclError::Lacks { name });
        // SAFETY: the function of this name has these arguments and this result.
        let all_reduce = unsafe { std::mem::transmute::<*mut c_void, AllReduce>(found("ncclAllReduce")?) };
        // SAFETY: as above.
        let reduce_scatter = unsafe { std::mem::transmute::<*mut c_void, AllReduce>(found("ncclReduceScatter")?) };
        // SAFETY: as above.
        let broadcast = unsafe { std::mem::transmute::<*mut c_void, Broadcast>(found("ncclBroadcast")?) };
        // SAFETY: as above.
        let reduce = unsafe { std::mem::transmute::<*mut c_void, Reduce>(found("ncclReduce")?) };
        let all_to_all = found("ncclAlltoAll").ok();
        // SAFETY: as above.
        let all_to_all = all_to_all.map(|found| unsafe { std::mem::transmute::<*mut c_void, AllToAll>(found) });
        Ok(Self { all_reduce, reduce_scatter, broadcast, reduce, all_to_all })
    }

    /// Which of NCCL's functions does a collective; `None` if none does.
    pub(super) fn name(&self, collective: Collective) -> Option<&'static str> {
        match collective {
            Collective::AllReduce => Some("ncclAllReduce"),
            Collective::AllGather => Some("ncclAllGather"),
            Collective::ReduceScatter => Some("ncclReduceScatter"),
            Collective::Broadcast => Some("ncclBroadcast"),
            Collective::Reduce => Some("ncclReduce"),
            Collective::AllToAll if self.all_to_all.is_some() => Some("ncclAlltoAll"),
            Collective::AllToAll => Some("ncclSend and ncclRecv"),
            Collective::AllToAllV | Collective::Gather | Collective::Scatter => None,
            Collective::SendRecv | Collective::Custom => None,
        }
    }

    /// Puts a call into a stream.
    ///
    /// # Safety
    /// `stream` is one of the communicator's GPU, and the addresses are those of as many bytes as [`NcclStockCall::bytes`] says, which stay
    /// valid until the stream has done the work.
    pub(super) unsafe fn put(
        &self,
        comm: &mut NcclCommunicator,
        stream: Stream,
        call: &NcclStockCall,
        [input, output]: [u64; 2],
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        comm.check()?;
        let doing = self.name(call.collective).ok_or(NcclError::Lacks { name: "function for this collective" })?;
        let (from, to, count) = (input as *const c_void, output as *mut c_void, call.count);
        let (dtype, op, root) =
            (type_number(call.dtype), op_number(call.op), call.root.map_or(0, |root| root.0 as c_int));
        let handle = comm.handle;
        // SAFETY: as the caller promises, in each case.
        let code = unsafe {
            match call.collective {
                Collective::AllReduce => (self.all_reduce)(from, to, count, dtype, op, handle, stream),
                Collective::ReduceScatter => (self.reduce_scatter)(from, to, count, dtype, op, handle, stream),
                Collective::AllGather => (comm.calls.all_gather)(from, to, count, dtype, handle, stream),
                Collective::Broadcast => (self.broadcast)(from, to, count, dtype, root, handle, stream),
                Collective::Reduce => (self.reduce)(from, to, count, dtype, op, root, handle, stream),
                Collective::AllToAll => match self.all_to_all {
                    Some(all_to_all) => all_to_all(from, to, count, dtype, handle, stream),
                    None => Self::exchange(comm, stream, call, [input, output]),
                },
                // These have no name, and so were refused above.
                Collective::AllToAllV | Collective::Gather | Collective::Scatter => INVALID_ARGUMENT,
                Collective::SendRecv | Collective::Custom => INVALID_ARGUMENT,
            }
        };
        if code != IN_PROGRESS {
            comm.checked(doing, code)?;
        }
        comm.settle(doing, deadline)
    }

    /// An all-to-all as messages, as programs make it for an older NCCL.
    ///
    /// # Safety
    /// As for [`Self::put`].
    unsafe fn exchange(
        comm: &NcclCommunicator,
        stream: Stream,
        call: &NcclStockCall,
        [input, output]: [u64; 2],
    ) -> c_int {
        let (calls, handle, dtype) = (comm.calls, comm.handle, type_number(call.dtype));
        let block = (call.count * call.dtype.size()) as u64;
        // SAFETY: it takes nothing.
        let mut code = unsafe { (calls.group_start)() };
        for peer in 0..comm.ranks() as u64 {
            let (from, to, other) = (input + peer * block, output + peer * block, peer as c_int);
            // SAFETY: as the caller promises.
            let sent = unsafe { (calls.send)(from as _, call.count, dtype, other, handle, stream) };
            // SAFETY: as above.
            let got = unsafe { (calls.receive)(to as _, call.count, dtype, other, handle, stream) };
            let wrong = [sent, got].into_iter().find(|given| ![SUCCESS, IN_PROGRESS].contains(given));
            code = if code == SUCCESS { wrong.unwrap_or(code) } else { code };
        }
        // SAFETY: as above.
        let ended = unsafe { (calls.group_end)() };
        if code == SUCCESS { ended } else { code }
    }
}
