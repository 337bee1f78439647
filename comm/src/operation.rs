//! Collectives on memory that is given by addresses, for callers in other languages.
//!
//! The principal type is [`CollectiveCall`].

use crate::call_state::ChosenCall;
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::plan_store::CallKey;
use crate::request::BegunCall;
use crate::stock::CallKind;
use runtime::{DType, RawCall};
use schedule::{Collective, ReduceOp};
use topology::Rank;

/// A collective call, without its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveCall {
    /// Which collective.
    pub collective: Collective,
    /// The root, where there is one.
    pub root: Option<usize>,
    /// How it reduces, where it does.
    pub op: Option<ReduceOp>,
    /// Elements as MPI counts them: per rank for allgather, gather, scatter and alltoall, what is received for reducescatter,
    /// the vector's length otherwise.
    pub count: usize,
    /// Their type.
    pub dtype: DType,
    /// Whether input and output are the same memory, on all ranks. It is laid out like the larger of the two; a rank's own
    /// block lies at its place.
    pub in_place: bool,
}

impl CollectiveCall {
    /// What a barrier is: a reduction of one byte. In one of no bytes, sends that need nothing from others would go out before
    /// their turn.
    pub const BARRIER: Self = Self {
        collective: Collective::AllReduce,
        root: None,
        op: Some(ReduceOp::Max),
        count: 1,
        dtype: DType::U8,
        in_place: false,
    };
}

impl Communicator {
    #[inline]
    fn kind(&self, operation: &CollectiveCall) -> CommResult<CallKind> {
        let CollectiveCall { collective, root, op, in_place, .. } = *operation;
        let root = root.map(|root| self.member(root).map(|_| Rank::from_index(root))).transpose()?;
        Ok(CallKind { collective, root, op, in_place })
    }

    /// Bytes of this rank's input and output buffers, as out of place.
    ///
    /// # Errors
    /// If the communicator is broken, or there is no plan.
    #[inline]
    pub fn buffer_bytes(&self, operation: &CollectiveCall) -> CommResult<[usize; 2]> {
        let kind = CallKind { in_place: false, ..self.kind(operation)? };
        let (own, each) = (self.rank(), operation.count.saturating_mul(operation.dtype.size()));
        let all = each.saturating_mul(self.size());
        if isize::try_from(all).is_err() {
            let what = format!("{} elements of {} are more than can be addressed", operation.count, operation.dtype);
            return Err(CommError::Argument(what));
        }
        let at_root = |bytes| if kind.root == Some(Rank::from_index(own)) { bytes } else { 0 };
        Ok(match kind.collective {
            Collective::AllReduce => [each, each],
            Collective::Broadcast => [at_root(each), each],
            Collective::Reduce => [each, at_root(each)],
            Collective::AllGather => [each, all],
            Collective::ReduceScatter => [all, each],
            Collective::Gather => [each, at_root(all)],
            Collective::Scatter => [at_root(all), each],
            Collective::AllToAll => [all, all],
            Collective::AllToAllV | Collective::SendRecv | Collective::Custom => {
                let what = format!("{} has no vectors of one length", kind.collective);
                return Err(CommError::Argument(what));
            }
        })
    }

    /// Makes a call.
    ///
    /// # Errors
    /// [`CommError`].
    #[inline]
    pub fn run(&self, operation: &CollectiveCall, buffers: RawCall) -> CommResult<()> {
        self.run_while(operation, buffers, || true)
    }

    /// The same, but it is given up when `goes_on` says no, and the communicator makes no calls any more. It is asked at least every
    /// 50 ms, and not while a function serves the call.
    ///
    /// # Errors
    /// [`CommError`].
    #[inline]
    pub fn run_while(
        &self,
        operation: &CollectiveCall,
        buffers: RawCall,
        goes_on: impl Fn() -> bool,
    ) -> CommResult<()> {
        let kind = self.kind(operation)?;
        let key = CallKey { kind, count: operation.count, dtype: operation.dtype };
        if let Some(served) = self.function_for(key) {
            let overlap = || Err(CommError::Argument("the buffers overlap".to_owned()));
            return buffers.lend(|memory| self.call_function(&served, memory)).unwrap_or_else(overlap);
        }
        self.blocking(key, |session, chosen, at, limit| {
            session.call_raw_while(chosen, ChosenCall::prepared, at, buffers, limit, goes_on)
        })
    }

    /// Begins a call. It goes on while this rank waits for any call, or tests one.
    ///
    /// # Errors
    /// [`CommError`].
    pub fn begin(&self, operation: &CollectiveCall, buffers: RawCall) -> CommResult<BegunCall> {
        let kind = self.kind(operation)?;
        let mut state = self.usable_state()?;
        let (prepared, at) = self.ready(&mut state, kind, operation.count, operation.dtype)?;
        let started = self.shared.session.start(prepared, at, buffers);
        drop(state);
        Ok(BegunCall::new(self.clone(), started.map_err(|error| self.refused(at, error))?))
    }
}
