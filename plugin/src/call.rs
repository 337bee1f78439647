//! What all collectives of the C interface have in common.
//!
//! The principal function is [`operate`].

use crate::buffers::{Arranged, GivenBuffers, arrange};
use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_op_t, antiphon_request_t};
use crate::handles::{communicator, dtype, op};
use crate::requests::{check, give};
use crate::status::{CallRefusal, antiphon_result_t, guarded};
use comm::{Collective, CollectiveCall};
use std::ffi::c_int;

/// What a call says besides its memory and its communicator.
#[derive(Clone, Copy)]
pub(crate) struct Said {
    pub(crate) collective: Collective,
    pub(crate) count: usize,
    pub(crate) dtype: antiphon_dtype_t,
    pub(crate) op: Option<antiphon_op_t>,
    pub(crate) root: Option<c_int>,
}

impl Said {
    fn operation(self) -> Result<CollectiveCall, CallRefusal> {
        let Self { collective, count, .. } = self;
        let root = |root: c_int| {
            usize::try_from(root).map_err(|_| CallRefusal::argument(format!("rank {root}: ranks are counted from 0")))
        };
        Ok(CollectiveCall {
            collective,
            root: self.root.map(root).transpose()?,
            op: self.op.map(op).transpose()?,
            count,
            dtype: dtype(self.dtype)?,
            in_place: false,
        })
    }
}

/// Makes a call, or begins it if there is a place for a request.
///
/// # Safety
/// The handle is a communicator that was not freed. The buffers are as long as the call says, and nobody else uses them until
/// the call is over.
pub(crate) unsafe fn operate(
    comm: antiphon_comm_t,
    said: Said,
    given: GivenBuffers,
    request: Option<*mut antiphon_request_t>,
) -> antiphon_result_t {
    guarded(|| {
        request.map(check).transpose()?;
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        // SAFETY: the same.
        let Arranged { operation, buffers, temporary } = unsafe { arrange(communicator, said.operation()?, given)? };
        match request {
            None => Ok(communicator.run(&operation, buffers)?),
            // SAFETY: the same.
            Some(out) => unsafe { give(communicator.begin(&operation, buffers)?, temporary, out) },
        }
    })
}
