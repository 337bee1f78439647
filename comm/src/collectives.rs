//! The collectives of a communicator, for vectors of typed elements.
//!
//! Every method checks the lengths of its buffers, and hands their bytes on.

use crate::call_state::CallState;
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::request::BegunCall;
use crate::stock::CallKind;
use bytemuck::{cast_slice, cast_slice_mut};
use runtime::{Call, CallPlace, Element, Prepared, RawCall};
use schedule::{Collective, ReduceOp};
use std::ops::Range;
use std::sync::MutexGuard;
use topology::Rank;

/// The bytes of two buffers.
fn apart<'a, T: Element>(send: &'a [T], receive: &'a mut [T]) -> Call<'a> {
    Call::OutOfPlace { input: cast_slice(send), output: cast_slice_mut(receive) }
}

/// # Errors
/// If a buffer has another length than the call needs.
fn check_length(what: &str, given: usize, needed: usize) -> CommResult<()> {
    match given == needed {
        true => Ok(()),
        false => {
            Err(CommError::Argument(format!("the {what} buffer has {given} elements, but the call needs {needed}")))
        }
    }
}

impl Communicator {
    /// Every rank gets the sum (or another reduction) of all ranks' vectors, in place.
    ///
    /// # Errors
    /// [`CommError`]; so do all calls.
    pub fn all_reduce<T: Element>(&self, vector: &mut [T], op: ReduceOp) -> CommResult<()> {
        let kind = CallKind { op: Some(op), in_place: true, ..CallKind::plain(Collective::AllReduce) };
        self.collective(kind, vector.len(), T::DTYPE, Call::InPlace(cast_slice_mut(vector)))
    }

    /// The same into another buffer.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn all_reduce_into<T: Element>(&self, send: &[T], receive: &mut [T], op: ReduceOp) -> CommResult<()> {
        check_length("receive", receive.len(), send.len())?;
        let kind = CallKind { op: Some(op), ..CallKind::plain(Collective::AllReduce) };
        self.collective(kind, send.len(), T::DTYPE, apart(send, receive))
    }

    /// Every rank gets the vectors of all, in the order of ranks.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn all_gather<T: Element>(&self, send: &[T], receive: &mut [T]) -> CommResult<()> {
        check_length("receive", receive.len(), send.len() * self.size())?;
        self.collective(CallKind::plain(Collective::AllGather), send.len(), T::DTYPE, apart(send, receive))
    }

    /// Rank i gets the reduction of all ranks' i-th blocks.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn reduce_scatter<T: Element>(&self, send: &[T], receive: &mut [T], op: ReduceOp) -> CommResult<()> {
        check_length("send", send.len(), receive.len() * self.size())?;
        let kind = CallKind { op: Some(op), ..CallKind::plain(Collective::ReduceScatter) };
        let count = receive.len();
        self.collective(kind, count, T::DTYPE, apart(send, receive))
    }

    /// Rank i gets the i-th block of every rank, in the order of ranks.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn all_to_all<T: Element>(&self, send: &[T], receive: &mut [T]) -> CommResult<()> {
        check_length("receive", receive.len(), send.len())?;
        let count = self.block_length(send.len())?;
        self.collective(CallKind::plain(Collective::AllToAll), count, T::DTYPE, apart(send, receive))
    }

    /// How long each of as many equal blocks as there are ranks is.
    pub(crate) fn block_length(&self, length: usize) -> CommResult<usize> {
        let size = self.size();
        match length.is_multiple_of(size) {
            true => Ok(length / size),
            false => Err(CommError::Argument(format!("{length} elements are no {size} equal blocks"))),
        }
    }

    /// Rank i gets from every rank the block that it has for i; `sends[i]` and `receives[i]` say where in the buffers the
    /// blocks for and from rank i are. What one rank sends to another is as long as what that one receives.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        sends: &[Range<usize>],
        receive: &mut [T],
        receives: &[Range<usize>],
    ) -> CommResult<()> {
        let [sent, received] = self.exchanged::<T>([(sends, send.len()), (receives, receive.len())])?;
        let prepared = self.prepare_exchange(&sent, &received)?;
        let [input, output] = prepared.lengths();
        let (send, receive) = (cast_slice(send), cast_slice_mut(receive));
        let buffers = Call::OutOfPlace { input: &send[..input], output: &mut receive[..output] };
        let (state, at) = self.place_of_exchange(&prepared)?;
        let result = self.shared.session.call_holding((state, prepared), |held| &held.1, at, buffers, self.limit());
        result.map_err(|error| self.refused(at, error))
    }

    /// The place of an exchange among all calls, with the lock of this communicator. The exchange is counted.
    pub(crate) fn place_of_exchange(&self, prepared: &Prepared) -> CommResult<(MutexGuard<'_, CallState>, CallPlace)> {
        let mut state = self.usable_state()?;
        let [input, output] = prepared.lengths();
        state.plans.exchange(input.max(output));
        let at = CallPlace::collective(self.shared.id, state.next_call());
        Ok((state, at))
    }

    /// The blocks that are sent and received, in bytes, for buffers of so many elements.
    pub(crate) fn exchanged<T: Element>(
        &self,
        [sends, receives]: [(&[Range<usize>], usize); 2],
    ) -> CommResult<[Vec<Range<usize>>; 2]> {
        let size = self.size();
        for (what, (blocks, length)) in [("send", sends), ("receive", receives)] {
            let is_wrong = |block: &Range<usize>| block.start > block.end || block.end > length;
            if blocks.len() != size || blocks.iter().any(is_wrong) {
                let what = format!("the {what} blocks are not {size} parts of the buffer");
                return Err(CommError::Argument(what));
            }
        }
        let bytes = |block: &Range<usize>| block.start * size_of::<T>()..block.end * size_of::<T>();
        Ok([sends, receives].map(|(blocks, _)| blocks.iter().map(bytes).collect()))
    }

    /// Begins an exchange of blocks, which are bytes of buffers that `arrange` is told the lengths of. See
    /// [`Self::all_to_all_v`].
    ///
    /// # Errors
    /// [`CommError`].
    pub fn begin_exchange(
        &self,
        sends: &[Range<usize>],
        receives: &[Range<usize>],
        arrange: impl FnOnce([usize; 2]) -> RawCall,
    ) -> CommResult<BegunCall> {
        let prepared = self.prepare_exchange(sends, receives)?;
        let (state, at) = self.place_of_exchange(&prepared)?;
        let started = self.shared.session.start(&prepared, at, arrange(prepared.lengths()));
        drop(state);
        Ok(BegunCall::new(self.clone(), started.map_err(|error| self.refused(at, error))?))
    }

    /// An exchange of blocks of bytes, one for each member both ways.
    pub(crate) fn prepare_exchange(&self, sends: &[Range<usize>], receives: &[Range<usize>]) -> CommResult<Prepared> {
        let (size, own) = (self.size(), self.rank());
        if sends.len() != size || receives.len() != size {
            return Err(CommError::Argument(format!("there are not {size} blocks each way")));
        }
        if sends[own].len() != receives[own].len() {
            return Err(CommError::Argument("what this rank sends to itself is not what it receives".to_owned()));
        }
        let mut filled: Vec<&Range<usize>> = receives.iter().filter(|block| !block.is_empty()).collect();
        filled.sort_by_key(|block| block.start);
        if filled.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(CommError::Argument("two blocks that are received overlap".to_owned()));
        }
        let of_members = |blocks: &[Range<usize>]| -> Vec<(Rank, Range<usize>)> {
            self.shared.members.iter().copied().zip(blocks.iter().cloned()).collect()
        };
        Ok(self.shared.session.prepare_exchange(&of_members(sends), &of_members(receives)))
    }

    /// Every rank gets the root's vector.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn broadcast<T: Element>(&self, vector: &mut [T], root: usize) -> CommResult<()> {
        self.member(root)?;
        let kind =
            CallKind { root: Some(Rank::from_index(root)), in_place: true, ..CallKind::plain(Collective::Broadcast) };
        self.collective(kind, vector.len(), T::DTYPE, Call::InPlace(cast_slice_mut(vector)))
    }

    /// The root gets the reduction of all ranks' vectors. `receive` is empty on the others.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn reduce<T: Element>(&self, send: &[T], receive: &mut [T], op: ReduceOp, root: usize) -> CommResult<()> {
        self.member(root)?;
        check_length("receive", receive.len(), if self.rank() == root { send.len() } else { 0 })?;
        let kind = CallKind { root: Some(Rank::from_index(root)), op: Some(op), ..CallKind::plain(Collective::Reduce) };
        self.collective(kind, send.len(), T::DTYPE, apart(send, receive))
    }

    /// The root gets the vectors of all ranks, in their order. `receive` is empty on the others.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn gather<T: Element>(&self, send: &[T], receive: &mut [T], root: usize) -> CommResult<()> {
        self.member(root)?;
        check_length("receive", receive.len(), if self.rank() == root { send.len() * self.size() } else { 0 })?;
        let kind = CallKind { root: Some(Rank::from_index(root)), ..CallKind::plain(Collective::Gather) };
        self.collective(kind, send.len(), T::DTYPE, apart(send, receive))
    }

    /// Rank i gets the root's i-th block. `send` is empty on the others.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn scatter<T: Element>(&self, send: &[T], receive: &mut [T], root: usize) -> CommResult<()> {
        self.member(root)?;
        check_length("send", send.len(), if self.rank() == root { receive.len() * self.size() } else { 0 })?;
        let kind = CallKind { root: Some(Rank::from_index(root)), ..CallKind::plain(Collective::Scatter) };
        let count = receive.len();
        self.collective(kind, count, T::DTYPE, apart(send, receive))
    }

    /// Returns when all ranks have called it: [`CollectiveCall::BARRIER`](crate::CollectiveCall::BARRIER).
    ///
    /// # Errors
    /// [`CommError`].
    pub fn barrier(&self) -> CommResult<()> {
        self.all_reduce_into(&[0_u8], &mut [0], ReduceOp::Max)
    }
}
