//! NCCL's functions, as far as plans need them. Results are numbers, because newer versions have more of them.
//!
//! The principal type is [`NcclCalls`].

use super::error::NcclError;
use super::library::NcclLibrary;
use crate::dtype::DType;
use std::ffi::{CStr, c_char, c_int, c_void};

/// A communicator, `ncclComm_t`.
pub(crate) type RawComm = *mut c_void;
type RawStream = *mut c_void;

pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

/// An `ncclUniqueId`: what all ranks of a communicator know of it before they meet.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NcclId(pub [u8; 128]);

/// An `ncclConfig_t` of NCCL 2.18. It only grows at its end, and newer versions read as much as its size says.
#[repr(C)]
pub(super) struct RawConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// Cluster size, fewest and most blocks.
    numbers: [c_int; 3],
    net_name: *const c_char,
    split_share: c_int,
}

impl RawConfig {
    /// A communicator whose functions do not block, so that it can be aborted.
    pub(super) fn without_blocking() -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21800,
            blocking: 0,
            numbers: [UNDEFINED; 3],
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// Gives the list of functions to a macro: field, name, arguments. Each returns an `ncclResult_t`.
macro_rules! with_calls {
    ($use:ident) => {
        $use! {
            unique_id ncclGetUniqueId(*mut NcclId);
            init ncclCommInitRankConfig(*mut RawComm, c_int, NcclId, c_int, *mut RawConfig);
            count ncclCommCount(RawComm, *mut c_int);
            user_rank ncclCommUserRank(RawComm, *mut c_int);
            async_error ncclCommGetAsyncError(RawComm, *mut c_int);
            finalize ncclCommFinalize(RawComm);
            destroy ncclCommDestroy(RawComm);
            abort ncclCommAbort(RawComm);
            group_start ncclGroupStart();
            group_end ncclGroupEnd();
            send ncclSend(*const c_void, usize, c_int, c_int, RawComm, RawStream);
            receive ncclRecv(*mut c_void, usize, c_int, c_int, RawComm, RawStream);
            all_gather ncclAllGather(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream);
        }
    };
}

macro_rules! define {
    ($($field:ident $name:ident($($argument:ty),*);)+) => {
        /// Where the functions are. NCCL stays loaded, so they stay valid.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct NcclCalls {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)+
            last_error: Option<unsafe extern "C" fn(RawComm) -> *const c_char>,
            error_string: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl NcclCalls {
            /// # Errors
            /// [`NcclError::Library`] if it is too old, [`NcclError::Lacks`] if a function is missing.
            pub(super) fn of(library: &NcclLibrary) -> Result<Self, NcclError> {
                library.can_run_plans()?;
                let found = |name: &'static str| library.function(name).ok_or(NcclError::Lacks { name });
                Ok(Self {
                    // SAFETY: in each line the function of this name has these arguments and this result.
                    $($field: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                        found(stringify!($name))?.as_ptr()
                    ) },)+
                    // SAFETY: as above.
                    last_error: library.function("ncclGetLastError").map(|found| unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(RawComm) -> *const c_char>(found.as_ptr())
                    }),
                    // SAFETY: as above.
                    error_string: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                            found("ncclGetErrorString")?.as_ptr()
                        )
                    },
                })
            }
        }
    };
}
with_calls!(define);

impl NcclCalls {
    /// What NCCL says about a result, and about what has happened last.
    pub(super) fn text(&self, code: c_int, comm: RawComm) -> String {
        let shown = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: the text lives on.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        // SAFETY: it takes any number.
        let what = shown(unsafe { (self.error_string)(code) });
        // SAFETY: the communicator is one, or null, which NCCL permits here.
        let last = self.last_error.map_or_else(String::new, |last| shown(unsafe { last(comm) }));
        if last.is_empty() { what } else { format!("{what}: {last}") }
    }
}

/// NCCL's number of a type of elements.
pub(super) fn type_number(dtype: DType) -> c_int {
    match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
    }
}
