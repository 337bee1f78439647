//! Which memory a call uses.
//!
//! The principal function is [`arrange`]. The plan of a call must be the same on all ranks, and an in-place plan differs from
//! another one. For an allreduce, an allgather and an alltoall, all ranks must say the same. For the other collectives the
//! plan is never in place: a rank whose buffers overlap uses a copy of its input. An allreduce, allgather or alltoall of
//! no elements is not in place either, whatever the pointers are.

use crate::status::CallRefusal;
use comm::{Collective, CollectiveCall, Communicator, RawCall};
use std::ffi::c_void;

/// A call's memory.
pub(crate) struct Arranged {
    pub(crate) operation: CollectiveCall,
    pub(crate) buffers: RawCall,
    /// Memory that the call uses instead of the caller's, until it is over.
    pub(crate) temporary: Vec<u8>,
}

/// Where the caller's buffers are.
#[derive(Clone, Copy)]
pub(crate) struct GivenBuffers {
    pub(crate) send: *const c_void,
    pub(crate) receive: *mut c_void,
}

/// Arranges the memory of a call. `operation` says nothing of `in_place` yet.
///
/// # Errors
/// If a buffer that is needed is null.
///
/// # Safety
/// The buffers are as long as the operation says, and the caller's until the call is over.
#[inline]
pub(crate) unsafe fn arrange(
    communicator: &Communicator,
    mut operation: CollectiveCall,
    GivenBuffers { send, receive }: GivenBuffers,
) -> Result<Arranged, CallRefusal> {
    let [input, output] = communicator.buffer_bytes(&operation)?;
    let (send, receive) = (send.cast::<u8>(), receive.cast::<u8>());
    if input > 0 && send.is_null() || output > 0 && receive.is_null() {
        return Err(CallRefusal::argument("a buffer is NULL"));
    }
    let each = operation.count * operation.dtype.size();
    let at_own_block = |start: *const u8| start.wrapping_add(communicator.rank() * each);
    // SAFETY: the caller's promise, for all buffers below.
    let apart = |input, output| unsafe { RawCall::out_of_place(input, output) };
    // SAFETY: the same.
    let both = |start, bytes| unsafe { RawCall::in_place(start, bytes) };
    // SAFETY: the same.
    let copy = |start: *const u8, bytes: usize| unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec();
    let is_same = input > 0 && output > 0 && send == receive.cast_const();
    let separate = || apart((send, input), (receive, output));
    let mut temporary = Vec::new();
    let buffers = match operation.collective {
        Collective::Broadcast => {
            operation.in_place = true;
            both(receive, output)
        }
        Collective::AllReduce | Collective::AllToAll if is_same => {
            operation.in_place = true;
            both(receive, output)
        }
        Collective::AllGather if is_same || input > 0 && send == at_own_block(receive) => {
            operation.in_place = true;
            both(receive, output)
        }
        Collective::ReduceScatter if is_same || output > 0 && receive.cast_const() == at_own_block(send) => {
            temporary = copy(send, input);
            apart((temporary.as_ptr(), input), (receive, output))
        }
        Collective::Reduce if is_same => {
            temporary = copy(send, input);
            apart((temporary.as_ptr(), input), (receive, output))
        }
        // The root's own block lies at its place.
        Collective::Gather if is_same || output > 0 && input > 0 && send == at_own_block(receive) => {
            temporary = copy(at_own_block(receive), input);
            apart((temporary.as_ptr(), input), (receive, output))
        }
        // The root's own block stays where it is.
        Collective::Scatter if is_same || input > 0 && output > 0 && receive.cast_const() == at_own_block(send) => {
            temporary = vec![0; output];
            apart((send, input), (temporary.as_mut_ptr(), output))
        }
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => separate(),
        Collective::AllToAllV | Collective::Reduce | Collective::Gather | Collective::Scatter => separate(),
        Collective::SendRecv | Collective::Custom => separate(),
    };
    Ok(Arranged { operation, buffers, temporary })
}
