//! The structures of NCCL's tuner interface, versions 2 to 6.
//!
//! Every version is a structure with a name and functions. Versions 3 and 4 differ in what `getCollInfo` is told, version 5 is told
//! more at the beginning, and version 6 has one more function at its end, which may be absent.

use std::ffi::{c_char, c_int, c_void};

/// NCCL's logger: level, flags, file, line, and a format with its arguments as for `printf`.
pub type Logger = Option<unsafe extern "C" fn(c_int, u64, *const c_char, c_int, *const c_char, ...)>;

/// What NCCL holds for the plugin: a [`crate::tuner::Tuner`], or nothing.
pub(crate) type TunerContext = *mut c_void;

pub(crate) type Init = unsafe extern "C" fn(usize, usize, Logger, *mut TunerContext) -> c_int;
pub(crate) type InitWithDomains =
    unsafe extern "C" fn(*mut TunerContext, u64, usize, usize, Logger, *const c_void, *mut c_void) -> c_int;
pub(crate) type Destroy = unsafe extern "C" fn(TunerContext) -> c_int;

/// Version 2 (NCCL 2.21): it names one algorithm and one protocol.
#[repr(C)]
pub struct TunerV2 {
    pub(crate) name: *const c_char,
    pub(crate) init: Init,
    /// Context, collective, bytes, support of CollNet and of NVLS, operations put together; then algorithm, protocol, channels.
    pub(crate) info: unsafe extern "C" fn(
        TunerContext,
        c_int,
        usize,
        c_int,
        c_int,
        c_int,
        *mut c_int,
        *mut c_int,
        *mut c_int,
    ) -> c_int,
    pub(crate) destroy: Destroy,
}

/// Version 3 (NCCL 2.22): it gives costs.
#[repr(C)]
pub struct TunerV3 {
    pub(crate) name: *const c_char,
    pub(crate) init: Init,
    /// Context, collective, bytes, operations put together, costs, algorithms, protocols, channels.
    pub(crate) info:
        unsafe extern "C" fn(TunerContext, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> c_int,
    pub(crate) destroy: Destroy,
}

/// As in version 3, and before the channels whether buffers are registered.
pub(crate) type InfoWithRegistration =
    unsafe extern "C" fn(TunerContext, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> c_int;

/// Version 4 (NCCL 2.26).
#[repr(C)]
pub struct TunerV4 {
    pub(crate) name: *const c_char,
    pub(crate) init: Init,
    pub(crate) info: InfoWithRegistration,
    pub(crate) destroy: Destroy,
}

/// Version 5 (NCCL 2.28.3): the context comes first, and NCCL shows its constants, which stay as they are.
#[repr(C)]
pub struct TunerV5 {
    pub(crate) name: *const c_char,
    pub(crate) init: InitWithDomains,
    pub(crate) info: InfoWithRegistration,
    pub(crate) finalize: Destroy,
}

/// Version 6 (NCCL 2.30.3).
#[repr(C)]
pub struct TunerV6 {
    pub(crate) name: *const c_char,
    pub(crate) init: InitWithDomains,
    pub(crate) info: InfoWithRegistration,
    pub(crate) finalize: Destroy,
    /// Context, collective, bytes, algorithm, protocol, channels, size of a chunk. Absent: NCCL chooses the size.
    pub(crate) chunk:
        Option<unsafe extern "C" fn(TunerContext, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int>,
}

macro_rules! shared {
    ($($type:ty),+) => { $(
        // SAFETY: the structures are never written, and their names are literals.
        unsafe impl Sync for $type {}
    )+ };
}
shared!(TunerV2, TunerV3, TunerV4, TunerV5, TunerV6);
