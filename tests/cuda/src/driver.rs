//! The functions for devices, contexts, streams and errors, by their names and arguments in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{
    CODES, Code, Device, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, MOST_THREADS, MULTIPROCESSORS,
    NOT_INITIALIZED, SUCCESS,
};
use crate::events::Event;
use crate::faults;
use crate::graphs;
use crate::streams::Stream;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static DEVICE: OnceLock<Device> = OnceLock::new();
static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);
static CONTEXTS: AtomicUsize = AtomicUsize::new(0);
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x1000);
pub(crate) static STREAMS: Mutex<BTreeMap<usize, Arc<Stream>>> = Mutex::new(BTreeMap::new());
pub(crate) static EVENTS: Mutex<BTreeMap<usize, Arc<Event>>> = Mutex::new(BTreeMap::new());

/// The only context.
const CONTEXT: usize = 0xC0;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The device. `FAKE_CUDA_SEED` decides its delays and whose turn it is in kernels.
pub(crate) fn device() -> &'static Device {
    DEVICE.get_or_init(|| {
        let seed = std::env::var("FAKE_CUDA_SEED").ok().and_then(|text| text.parse().ok());
        Device::new(seed.unwrap_or(1))
    })
}

/// The numbers of the GPUs that this process sees. The first one is its own (`FAKE_CUDA_GPU`), and no other process has it unless it
/// says so; with the others (`FAKE_CUDA_VISIBLE`) nothing can be done but to ask about them. Then come more, up to `FAKE_CUDA_DEVICES`
/// in all, which all have the memory of the first one.
pub(crate) fn visible() -> Vec<u64> {
    let named = |name: &str| std::env::var(name).unwrap_or_default();
    let own = named("FAKE_CUDA_GPU").parse().unwrap_or(u64::from(std::process::id()));
    let listed = named("FAKE_CUDA_VISIBLE");
    let mut all: Vec<u64> = std::iter::once(own).chain(listed.split(',').filter_map(|it| it.parse().ok())).collect();
    let more = named("FAKE_CUDA_DEVICES").parse().unwrap_or(0);
    while all.len() < more {
        all.push(own.wrapping_add(1 << 32).wrapping_add(all.len() as u64));
    }
    all
}

/// Whether the memory of this process is that of a device.
pub(crate) fn has_memory(number: c_int) -> bool {
    let listed = std::env::var("FAKE_CUDA_VISIBLE").unwrap_or_default();
    let others = listed.split(',').filter(|it| it.parse::<u64>().is_ok()).count() as c_int;
    (0..devices()).contains(&number) && !(1..=others).contains(&number)
}

/// How many devices there are.
fn devices() -> c_int {
    visible().len() as c_int
}

/// Whether the driver lacks something: `FAKE_CUDA_LACKS` lists `descriptors`, `ipc`, `peers`, `import`, `access` and `ptx`.
pub(crate) fn lacks(what: &str) -> bool {
    std::env::var("FAKE_CUDA_LACKS").is_ok_and(|list| list.split(',').any(|named| named == what))
}

fn handle() -> usize {
    NEXT_HANDLE.fetch_add(16, Ordering::Relaxed)
}

pub(crate) fn find<T: Clone>(all: &Mutex<BTreeMap<usize, T>>, handle: usize) -> Result<T, Code> {
    all.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned().ok_or(INVALID_HANDLE)
}

pub(crate) fn insert<T>(all: &Mutex<BTreeMap<usize, T>>, value: T) -> usize {
    let handle = handle();
    all.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, value);
    handle
}

pub(crate) fn remove<T>(all: &Mutex<BTreeMap<usize, T>>, handle: usize) -> Result<T, Code> {
    all.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle).ok_or(INVALID_HANDLE)
}

/// Runs what needs the driver to be initialized.
pub(crate) fn initialized(run: impl FnOnce() -> Result<(), Code>) -> Code {
    if !IS_INITIALIZED.load(Ordering::Acquire) {
        return NOT_INITIALIZED;
    }
    run().err().unwrap_or(SUCCESS)
}

/// Runs what needs a context too, and a device without a fault.
pub(crate) fn current(run: impl FnOnce(&'static Device) -> Result<(), Code>) -> Code {
    initialized(|| {
        if CURRENT.get() != CONTEXT || CONTEXTS.load(Ordering::Acquire) == 0 {
            return Err(INVALID_CONTEXT);
        }
        match device().fault() {
            SUCCESS => run(device()),
            fault => Err(fault),
        }
    })
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// The address is null or writable.
pub(crate) unsafe fn give<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller promises it.
    unsafe { out.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    if flags != 0 {
        return INVALID_VALUE;
    }
    IS_INITIALIZED.store(true, Ordering::Release);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: as the caller of the driver promises.
    initialized(|| unsafe { give(count, devices()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(found: *mut c_int, ordinal: c_int) -> Code {
    initialized(|| {
        if !(0..devices()).contains(&ordinal) {
            return Err(INVALID_DEVICE);
        }
        // SAFETY: as the caller of the driver promises.
        unsafe { give(found, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, number: c_int) -> Code {
    initialized(|| {
        let named = std::env::var("FAKE_CUDA_NAME").unwrap_or_default();
        let more = if named.is_empty() { String::new() } else { format!(" ({named})") };
        let text = format!("Antiphon's fake GPU, which is no hardware{more}\0");
        if !(0..devices()).contains(&number) || name.is_null() || (length as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, number: c_int) -> Code {
    initialized(|| {
        let found = format!("0000:{:02X}:00.0\0", 0x10 + number);
        if !(0..devices()).contains(&number) || text.is_null() || (length as usize) < found.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr().cast(), text, found.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, number: c_int) -> Code {
    initialized(|| {
        if !(0..devices()).contains(&number) {
            return Err(INVALID_DEVICE);
        }
        let known = match attribute {
            1 => MOST_THREADS as c_int,
            16 => MULTIPROCESSORS as c_int,
            // Compute capability, cooperative launches, memory pools.
            75 => 9,
            76 => 0,
            95 | 115 => 1,
            // Memory that is mapped by hand, and its file descriptors.
            102 => 1,
            103 => c_int::from(!lacks("descriptors")),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: as the caller of the driver promises.
        unsafe { give(value, known) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, number: c_int) -> Code {
    initialized(|| {
        if !(0..devices()).contains(&number) {
            return Err(INVALID_DEVICE);
        }
        CONTEXTS.fetch_add(1, Ordering::AcqRel);
        faults::opened(number);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(context, CONTEXT) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_number: c_int) -> Code {
    initialized(|| match CONTEXTS.fetch_sub(1, Ordering::AcqRel) {
        0 => {
            CONTEXTS.store(0, Ordering::Release);
            Err(INVALID_CONTEXT)
        }
        _ => Ok(()),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Code {
    // SAFETY: as the caller of the driver promises.
    initialized(|| unsafe { give(context, CURRENT.get()) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    initialized(|| {
        if context != 0 && context != CONTEXT {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    current(|device| {
        graphs::check_unsafe()?;
        let streams: Vec<_> = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        streams.iter().for_each(|stream| stream.synchronize());
        match device.fault() {
            SUCCESS => Ok(()),
            fault => Err(fault),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> Code {
    // SAFETY: as the caller of the driver promises.
    current(|device| unsafe { give(stream, insert(&STREAMS, Arc::new(Stream::new(device.next_seed())))) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Code {
    initialized(|| {
        remove(&STREAMS, stream)?.end();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Code {
    current(|device| {
        graphs::check_unsafe()?;
        find(&STREAMS, stream)?.synchronize();
        match device.fault() {
            SUCCESS => Ok(()),
            fault => Err(fault),
        }
    })
}

/// The entry of a result in the list of all.
fn described(code: Code) -> Option<&'static (Code, &'static str, &'static str)> {
    CODES.iter().find(|(known, _, _)| *known == code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let found = described(code).map(|(_, name, _)| name.as_ptr().cast());
    // SAFETY: as the caller of the driver promises.
    found.map_or(Err(INVALID_VALUE), |text| unsafe { give(name, text) }).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, what: *mut *const c_char) -> Code {
    let found = described(code).map(|(_, _, what)| what.as_ptr().cast());
    // SAFETY: as the caller of the driver promises.
    found.map_or(Err(INVALID_VALUE), |text| unsafe { give(what, text) }).err().unwrap_or(SUCCESS)
}
