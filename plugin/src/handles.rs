//! The constants and handles of the C interface.

#![allow(non_camel_case_types, reason = "these are the names of the C interface")]

use crate::status::CallRefusal;
use comm::{BegunCall, Communicator, DType, Op, RegisteredMemory, TuneCandidate};
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::Mutex;

/// The type of elements: one of `enum antiphon_dtype`.
pub type antiphon_dtype_t = c_int;
/// How elements are reduced: one of `enum antiphon_op`.
pub type antiphon_op_t = c_int;

/// Types of elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum antiphon_dtype {
    /// IEEE 754, 32 bits.
    ANTIPHON_F32,
    /// IEEE 754, 64 bits.
    ANTIPHON_F64,
    /// Signed integers of 32 bits.
    ANTIPHON_I32,
    /// Signed integers of 64 bits.
    ANTIPHON_I64,
    /// Bytes.
    ANTIPHON_U8,
    /// IEEE 754, 16 bits.
    ANTIPHON_F16,
    /// The upper half of a 32-bit number.
    ANTIPHON_BF16,
}

/// Reductions.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum antiphon_op {
    /// The sum.
    ANTIPHON_SUM,
    /// The product.
    ANTIPHON_PROD,
    /// The least element.
    ANTIPHON_MIN,
    /// The greatest element.
    ANTIPHON_MAX,
    /// The sum, divided by the number of ranks.
    ANTIPHON_AVG,
}

/// A communicator.
pub struct antiphon_comm {
    pub(crate) communicator: Communicator,
    /// What the last call of `antiphon_plan` has returned.
    pub(crate) plan: Mutex<CString>,
    pub(crate) registered: Mutex<RegisteredRanges>,
    /// What competes in `antiphon_tune`.
    pub(crate) candidates: Mutex<Vec<TuneCandidate>>,
}

impl antiphon_comm {
    pub(crate) fn new(communicator: Communicator) -> Self {
        Self { communicator, plan: Mutex::default(), registered: Mutex::default(), candidates: Mutex::default() }
    }
}

/// What a program has registered with a communicator: by address, the bytes, and what keeps them registered.
pub(crate) type RegisteredRanges = BTreeMap<usize, (usize, RegisteredMemory)>;

/// A communicator.
pub type antiphon_comm_t = *mut antiphon_comm;

/// A call under way.
pub struct antiphon_request {
    pub(crate) request: BegunCall,
    /// Memory that the call uses instead of the caller's.
    pub(crate) _temporary: Vec<u8>,
}

/// A call under way.
pub type antiphon_request_t = *mut antiphon_request;

/// A type as C names it.
pub(crate) fn c_dtype(of: DType) -> antiphon_dtype_t {
    let named = match of {
        DType::F32 => antiphon_dtype::ANTIPHON_F32,
        DType::F64 => antiphon_dtype::ANTIPHON_F64,
        DType::I32 => antiphon_dtype::ANTIPHON_I32,
        DType::I64 => antiphon_dtype::ANTIPHON_I64,
        DType::U8 => antiphon_dtype::ANTIPHON_U8,
        DType::F16 => antiphon_dtype::ANTIPHON_F16,
        DType::Bf16 => antiphon_dtype::ANTIPHON_BF16,
    };
    named as antiphon_dtype_t
}

/// A reduction as C names it.
pub(crate) fn c_op(of: Op) -> antiphon_op_t {
    let named = match of {
        Op::Sum => antiphon_op::ANTIPHON_SUM,
        Op::Prod => antiphon_op::ANTIPHON_PROD,
        Op::Min => antiphon_op::ANTIPHON_MIN,
        Op::Max => antiphon_op::ANTIPHON_MAX,
        Op::Avg => antiphon_op::ANTIPHON_AVG,
    };
    named as antiphon_op_t
}

/// # Errors
/// If there is no such type.
pub(crate) fn dtype(of: antiphon_dtype_t) -> Result<DType, CallRefusal> {
    let found = DType::ALL.iter().copied().find(|dtype| c_dtype(*dtype) == of);
    found.ok_or_else(|| CallRefusal::argument(format!("there is no data type {of}")))
}

/// # Errors
/// If there is no such reduction.
pub(crate) fn op(of: antiphon_op_t) -> Result<Op, CallRefusal> {
    let found = Op::ALL.iter().copied().find(|op| c_op(*op) == of);
    found.ok_or_else(|| CallRefusal::argument(format!("there is no reduction {of}")))
}

/// # Errors
/// If the handle is null.
///
/// # Safety
/// The handle is null, or one that this library has given and that was not freed.
pub(crate) unsafe fn communicator<'a>(handle: antiphon_comm_t) -> Result<&'a antiphon_comm, CallRefusal> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| CallRefusal::argument("the communicator is NULL"))
}
