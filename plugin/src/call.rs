//! What all collectives of the C interface have in common.
//!
//! The principal function is [`operate`].

use crate::buffers::{Arranged, GivenBuffers, arrange};
use crate::handles::{antiphon_comm_t, antiphon_dtype_t, antiphon_op_t, antiphon_request_t};
use crate::handles::{communicator, dtype, op};
use crate::requests::give;
use crate::status::{CallRefusal, antiphon_result_t, check, guarded, number_of};
use comm::{Collective, CollectiveCall};
use std::ffi::c_int;

/// What a call says besides its memory and its communicator.
#[derive(Clone, Copy)]
pub(crate) struct CallArguments {
    pub(crate) collective: Collective,
    pub(crate) count: usize,
    pub(crate) dtype: antiphon_dtype_t,
    pub(crate) op: Option<antiphon_op_t>,
    pub(crate) root: Option<c_int>,
}

impl CallArguments {
    #[inline]
    fn operation(self) -> Result<CollectiveCall, CallRefusal> {
        let Self { collective, count, .. } = self;
        Ok(CollectiveCall {
            collective,
            root: self.root.map(number_of).transpose()?,
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
    arguments: CallArguments,
    given: GivenBuffers,
    request: Option<*mut antiphon_request_t>,
) -> antiphon_result_t {
    guarded(|| {
        request.map(check).transpose()?;
        // SAFETY: the caller's promise.
        let communicator = &unsafe { communicator(comm)? }.communicator;
        // SAFETY: the same.
        let Arranged { operation, buffers, temporary } =
            unsafe { arrange(communicator, arguments.operation()?, given)? };
        match request {
            None => Ok(communicator.run(&operation, buffers)?),
            // SAFETY: the same.
            Some(out) => unsafe { give(communicator.begin(&operation, buffers)?, temporary, out) },
        }
    })
}
