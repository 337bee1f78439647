//! Which memory a call uses.
//!
//! The principal function is [`arrange`]. The plan of a call must be the same on all ranks, and an in-place plan differs from
//! another one. For an allreduce, an allgather and an alltoall, all ranks must say the same. For the other collectives the
//! plan is never in place: a rank whose buffers are the same uses a copy of its input.

use comm::{Collective, CollectiveCall, Communicator, RawCall};

/// A call's memory.
pub(crate) struct ArrangedCall {
    pub(crate) operation: CollectiveCall,
    pub(crate) buffers: RawCall,
    /// Memory that the call uses instead of the caller's, until it is over.
    pub(crate) temporary: Vec<u8>,
}

// SAFETY: addresses of memory that whoever made it lends to the call, whichever thread carries it on.
unsafe impl Send for ArrangedCall {}

// SAFETY: the same; a shared reference only reads addresses.
unsafe impl Sync for ArrangedCall {}

/// Addresses and lengths of what a call reads, and of what it writes.
#[derive(Clone, Copy)]
pub(crate) struct GivenMemory {
    pub(crate) send: (*mut u8, usize),
    pub(crate) receive: (*mut u8, usize),
}

/// Arranges the memory of a call. `operation` says nothing of `in_place` yet.
///
/// # Safety
/// The memory is as long as it says, and the caller's until the call is over. Lengths are those that the call needs.
pub(crate) unsafe fn arrange(
    communicator: &Communicator,
    mut operation: CollectiveCall,
    GivenMemory { send: (send, input), receive: (receive, output) }: GivenMemory,
) -> ArrangedCall {
    let each = operation.count * operation.dtype.size();
    let at_own_block = |start: *mut u8| start.wrapping_add(communicator.rank() * each);
    // SAFETY: the caller's promise, for all buffers below.
    let apart =
        |input: (*mut u8, usize), output| unsafe { RawCall::out_of_place((input.0.cast_const(), input.1), output) };
    // SAFETY: the same.
    let both = |start, bytes| unsafe { RawCall::in_place(start, bytes) };
    // SAFETY: the same; it is not null, as it is as long as it says.
    let copy = |start: *mut u8, bytes: usize| unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec();
    let is_same = input > 0 && output > 0 && send == receive;
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
        Collective::AllGather if input > 0 && send == at_own_block(receive) => {
            operation.in_place = true;
            both(receive, output)
        }
        Collective::ReduceScatter if output > 0 && (is_same || receive == at_own_block(send)) => {
            temporary = copy(send, input);
            apart((temporary.as_mut_ptr(), input), (receive, output))
        }
        Collective::Reduce if is_same => {
            temporary = copy(send, input);
            apart((temporary.as_mut_ptr(), input), (receive, output))
        }
        // The root's own block lies at its place.
        Collective::Gather if output > 0 && input > 0 && send == at_own_block(receive) => {
            temporary = copy(send, input);
            apart((temporary.as_mut_ptr(), input), (receive, output))
        }
        // The root's own block stays where it is.
        Collective::Scatter if input > 0 && output > 0 && receive == at_own_block(send) => {
            temporary = vec![0; output];
            apart((send, input), (temporary.as_mut_ptr(), output))
        }
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => separate(),
        Collective::AllToAllV | Collective::Reduce | Collective::Gather | Collective::Scatter => separate(),
        Collective::SendRecv | Collective::Custom => separate(),
    };
    ArrangedCall { operation, buffers, temporary }
}
