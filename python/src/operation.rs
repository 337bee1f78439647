//! What a call says, and its beginning.
//!
//! The principal function is [`operate`].

use crate::arrange::{ArrangedCall, GivenMemory, arrange};
use crate::call_thread::CallThread;
use crate::elements::{ElementKind, op_of_name};
use crate::errors::{argument, raised};
use crate::ongoing::{CoreHandle, HeldMemory, OngoingCall};
use crate::waiting::while_no_signal;
use comm::{Collective, CollectiveCall, Communicator, DType, Op};
use pyo3::prelude::*;

/// Collectives of a communicator are one stream.
const COLLECTIVES: u64 = 0;

/// The collective of a name.
///
/// # Errors
/// `ArgumentError` if there is none.
pub(crate) fn collective_of_name(name: &str) -> PyResult<Collective> {
    Ok(match name {
        "all_reduce" => Collective::AllReduce,
        "all_gather" => Collective::AllGather,
        "reduce_scatter" => Collective::ReduceScatter,
        "all_to_all" => Collective::AllToAll,
        "broadcast" => Collective::Broadcast,
        "reduce" => Collective::Reduce,
        "gather" => Collective::Gather,
        "scatter" => Collective::Scatter,
        _ => return Err(argument(format!("there is no collective `{name}`"))),
    })
}

/// The reduction of a name.
///
/// # Errors
/// `ArgumentError` if there is none.
pub(crate) fn op_named(op: &str) -> PyResult<Op> {
    op_of_name(op).ok_or_else(|| argument(format!("there is no reduction `{op}`; one of: sum prod min max avg")))
}

/// As what elements travel, whether or not they are reduced.
///
/// # Errors
/// `ArgumentError` if they cannot be reduced in this way.
pub(crate) fn dtype_of(kind: ElementKind, op: Option<Op>) -> PyResult<DType> {
    let Some(op) = op else { return Ok(kind.moved()) };
    kind.reduced(op).ok_or_else(|| {
        argument(format!(
            "{op} of {kind} is not supported: all reductions take float16, bfloat16, float32, float64, int32, int64 and \
             uint8; sum and prod also uint32, uint64 and int8, min and max also bool, sum and avg also complex64 and complex128"
        ))
    })
}

/// What a call says besides its memory.
pub(crate) struct CallSpec {
    pub(crate) collective: Collective,
    pub(crate) root: Option<usize>,
    pub(crate) op: Option<Op>,
    pub(crate) dtype: DType,
}

impl CallSpec {
    /// The call on buffers of these lengths in bytes.
    fn on(&self, communicator: &Communicator, [send, receive]: [usize; 2]) -> CollectiveCall {
        let bytes = match self.collective {
            Collective::AllToAll => send / communicator.size().max(1),
            Collective::ReduceScatter | Collective::Scatter | Collective::Broadcast => receive,
            Collective::AllGather | Collective::AllReduce | Collective::Reduce | Collective::Gather => send,
            Collective::AllToAllV | Collective::SendRecv | Collective::Custom => send,
        };
        let Self { collective, root, op, dtype } = *self;
        CollectiveCall { collective, root, op, count: bytes / dtype.size(), dtype, in_place: false }
    }
}

/// # Errors
/// `ArgumentError` if a buffer is not as long as the call needs.
fn check_lengths(communicator: &Communicator, call: &CollectiveCall, memory: GivenMemory) -> PyResult<()> {
    let needed = communicator.buffer_bytes(call).map_err(|error| raised(&error))?;
    for (what, given, needed) in [("what is sent", memory.send.1, needed[0]), ("out", memory.receive.1, needed[1])] {
        // A root's own buffer of a broadcast is both.
        if given != needed && call.collective != Collective::Broadcast {
            let (size, own) = (communicator.size(), communicator.rank());
            return Err(argument(format!(
                "{what} has {given} bytes, but in this {} rank {own} of {size} needs {needed}",
                call.collective
            )));
        }
    }
    Ok(())
}

/// Makes a call, or begins it and hands back what tells its end.
///
/// # Safety
/// `held` keeps the memory valid, and nobody else uses it, until the call is over.
pub(crate) unsafe fn operate(
    py: Python<'_>,
    (communicator, thread): (&Communicator, &CallThread),
    spec: &CallSpec,
    memory: GivenMemory,
    held: Option<HeldMemory>,
) -> PyResult<Option<CoreHandle>> {
    let call = spec.on(communicator, [memory.send.1, memory.receive.1]);
    check_lengths(communicator, &call, memory)?;
    // SAFETY: the caller's promise; the lengths were just checked.
    let mut arranged = unsafe { arrange(communicator, call, memory) };
    let Some(mut held) = held else {
        let run = |goes_on: &dyn Fn() -> bool| run(communicator, &arranged, goes_on);
        return while_no_signal(py, run).map(|()| None);
    };
    held.temporary = std::mem::take(&mut arranged.temporary);
    let ongoing = py.detach(|| {
        thread.begin(|| begin(communicator, &arranged), |begun| OngoingCall::new(begun, (COLLECTIVES, false), held))
    });
    Ok(Some(CoreHandle::new(ongoing.map_err(|error| raised(&error))?, thread.waker())))
}

fn run(communicator: &Communicator, arranged: &ArrangedCall, goes_on: &dyn Fn() -> bool) -> comm::CommResult<()> {
    communicator.run_while(&arranged.operation, arranged.buffers, goes_on)
}

fn begin(communicator: &Communicator, arranged: &ArrangedCall) -> comm::CommResult<comm::BegunCall> {
    communicator.begin(&arranged.operation, arranged.buffers)
}
