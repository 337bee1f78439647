//! The functions of the driver, by their names and arguments in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{
    CODES, COOPERATIVE_LAUNCH_TOO_LARGE, Code, CooperativeLaunch, Device, INVALID_CONTEXT, INVALID_DEVICE,
    INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, LoadedKernel, MOST_THREADS, MULTIPROCESSORS, NO_BINARY_FOR_GPU,
    NOT_FOUND, NOT_INITIALIZED, NOT_READY, SUCCESS,
};
use crate::events::Event;
use crate::streams::Stream;
use ptx::Module;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static DEVICE: OnceLock<Device> = OnceLock::new();
static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);
static CONTEXTS: AtomicUsize = AtomicUsize::new(0);
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x1000);
static STREAMS: Mutex<BTreeMap<usize, Arc<Stream>>> = Mutex::new(BTreeMap::new());
static EVENTS: Mutex<BTreeMap<usize, Arc<Event>>> = Mutex::new(BTreeMap::new());

/// The only context.
const CONTEXT: usize = 0xC0;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The device. `FAKE_CUDA_SEED` decides its delays and whose turn it is in kernels.
fn device() -> &'static Device {
    DEVICE.get_or_init(|| {
        let seed = std::env::var("FAKE_CUDA_SEED").ok().and_then(|text| text.parse().ok());
        Device::new(seed.unwrap_or(1))
    })
}

fn handle() -> usize {
    NEXT_HANDLE.fetch_add(16, Ordering::Relaxed)
}

fn find<T: Clone>(all: &Mutex<BTreeMap<usize, T>>, handle: usize) -> Result<T, Code> {
    all.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned().ok_or(INVALID_HANDLE)
}

fn insert<T>(all: &Mutex<BTreeMap<usize, T>>, value: T) -> usize {
    let handle = handle();
    all.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, value);
    handle
}

fn remove<T>(all: &Mutex<BTreeMap<usize, T>>, handle: usize) -> Result<T, Code> {
    all.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle).ok_or(INVALID_HANDLE)
}

/// Runs what needs the driver to be initialized.
fn initialized(run: impl FnOnce() -> Result<(), Code>) -> Code {
    if !IS_INITIALIZED.load(Ordering::Acquire) {
        return NOT_INITIALIZED;
    }
    run().err().unwrap_or(SUCCESS)
}

/// Runs what needs a context too, and a device without a fault.
fn current(run: impl FnOnce(&'static Device) -> Result<(), Code>) -> Code {
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
unsafe fn give<T>(out: *mut T, value: T) -> Result<(), Code> {
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
    initialized(|| unsafe { give(count, 1) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(found: *mut c_int, ordinal: c_int) -> Code {
    initialized(|| {
        if ordinal != 0 {
            return Err(INVALID_DEVICE);
        }
        // SAFETY: as the caller of the driver promises.
        unsafe { give(found, 0) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, number: c_int) -> Code {
    initialized(|| {
        let text = c"Antiphon's fake GPU, which is no hardware".to_bytes_with_nul();
        if number != 0 || name.is_null() || (length as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, number: c_int) -> Code {
    initialized(|| {
        if number != 0 {
            return Err(INVALID_DEVICE);
        }
        let known = match attribute {
            1 => MOST_THREADS as c_int,
            16 => MULTIPROCESSORS as c_int,
            // Compute capability, cooperative launches, memory pools.
            75 => 9,
            76 => 0,
            95 | 115 => 1,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: as the caller of the driver promises.
        unsafe { give(value, known) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, number: c_int) -> Code {
    initialized(|| {
        if number != 0 {
            return Err(INVALID_DEVICE);
        }
        CONTEXTS.fetch_add(1, Ordering::AcqRel);
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
        find(&STREAMS, stream)?.synchronize();
        match device.fault() {
            SUCCESS => Ok(()),
            fault => Err(fault),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Code {
    current(|_| {
        let (stream, event) = (find(&STREAMS, stream)?, find(&EVENTS, event)?);
        let record = event.latest();
        stream.push(move || event.wait(record));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> Code {
    // SAFETY: as the caller of the driver promises.
    current(|_| unsafe { give(event, insert(&EVENTS, Arc::default())) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    initialized(|| remove(&EVENTS, event).map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Code {
    current(|_| {
        find(&STREAMS, stream)?.record(&find(&EVENTS, event)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Code {
    current(|_| if find(&EVENTS, event)?.is_done() { Ok(()) } else { Err(NOT_READY) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Code {
    current(|_| {
        let event = find(&EVENTS, event)?;
        event.wait(event.latest());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) -> Code {
    current(|device| {
        find(&STREAMS, stream)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // What lies in new memory is anybody's guess.
        let found = device.allocate(bytes);
        device.write(found, &vec![0xA5; bytes]);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(address, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> Code {
    current(|device| {
        find(&STREAMS, stream)?.push(move || device.release(address));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: usize) -> Code {
    current(|device| {
        let stream = find(&STREAMS, stream)?;
        if from.is_null() || !device.holds(to, bytes) {
            return Err(INVALID_VALUE);
        }
        // Memory that is not pinned is copied before the function returns.
        // SAFETY: as the caller of the driver promises.
        let copy = unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
        stream.push(move || device.write(to, &copy));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: usize) -> Code {
    current(|device| {
        let stream = find(&STREAMS, stream)?;
        if to.is_null() || !device.holds(from, bytes) {
            return Err(INVALID_VALUE);
        }
        // Into memory that is not pinned, the function returns when the copy is done.
        stream.synchronize();
        let copy = device.read(from, bytes).ok_or_else(|| device.fault())?;
        // SAFETY: as the caller of the driver promises.
        unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), to, bytes) };
        match device.fault() {
            SUCCESS => Ok(()),
            fault => Err(fault),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: usize) -> Code {
    current(|device| {
        let stream = find(&STREAMS, stream)?;
        if !device.holds(address, bytes) {
            return Err(INVALID_VALUE);
        }
        stream.push(move || device.write(address, &vec![value; bytes]));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> Code {
    current(|device| {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: an image begins with four bytes, or is a text with its end.
        let text = unsafe { CStr::from_ptr(image) };
        if text.to_bytes().starts_with(b"\x7fELF") {
            return Err(NO_BINARY_FOR_GPU);
        }
        let text = text.to_str().ok().filter(|text| text.contains(".version"));
        let parsed = text.and_then(|text| Module::parse(text).ok()).ok_or(INVALID_PTX)?;
        // SAFETY: as the caller of the driver promises.
        unsafe { give(module, insert(&device.modules, Arc::new(parsed))) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: usize) -> Code {
    initialized(|| remove(&device().modules, module).map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> Code {
    current(|device| {
        let module = find(&device.modules, module)?;
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the caller of the driver promises.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        if !module.has_kernel(&name) {
            return Err(NOT_FOUND);
        }
        // SAFETY: as above.
        unsafe { give(function, insert(&device.kernels, LoadedKernel { module, name })) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: usize,
    threads: c_int,
    _dynamic_bytes: usize,
    _flags: c_uint,
) -> Code {
    current(|device| {
        find(&device.kernels, function)?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(INVALID_VALUE)?;
        // SAFETY: as the caller of the driver promises.
        unsafe { give(blocks, device.blocks_at_once(threads) as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: usize,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    _dynamic_bytes: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
) -> Code {
    current(|device| {
        let (kernel, stream) = (find(&device.kernels, function)?, find(&STREAMS, stream)?);
        if [blocks_y, blocks_z, threads_y, threads_z] != [1; 4] || blocks == 0 || threads == 0 || threads > MOST_THREADS
        {
            return Err(INVALID_VALUE);
        }
        if blocks > device.blocks_at_once(threads) * MULTIPROCESSORS {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let count = kernel.module.parameters(&kernel.name);
        if parameters.is_null() && count > 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: there is an address for each parameter, and all parameters of our kernels have eight bytes.
        let parameters = (0..count).map(|at| unsafe { parameters.add(at).read().cast::<u64>().read_unaligned() });
        let launch = CooperativeLaunch { kernel, blocks, threads, parameters: parameters.collect() };
        let seed = device.next_seed();
        stream.push(move || device.launch(&launch, seed));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Code {
    current(|_| {
        let (stream, function) = (find(&STREAMS, stream)?, function.ok_or(INVALID_VALUE)?);
        let data = data as usize;
        // SAFETY: the caller gives data that the function takes, on another thread.
        stream.push(move || unsafe { function(data as *mut c_void) });
        Ok(())
    })
}

/// Not a function of CUDA: reads device memory at once, for the fake NCCL, whose kernels have no PTX. No context is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeCudaRead(from: u64, to: *mut u8, bytes: usize) -> Code {
    if bytes == 0 {
        return SUCCESS;
    }
    if !device().holds(from, bytes) {
        return INVALID_VALUE;
    }
    let copy = device().read(from, bytes).unwrap_or_default();
    // SAFETY: the caller has room for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), to, copy.len().min(bytes)) };
    SUCCESS
}

/// Not a function of CUDA: the same for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeCudaWrite(to: u64, from: *const u8, bytes: usize) -> Code {
    if bytes == 0 {
        return SUCCESS;
    }
    if !device().holds(to, bytes) {
        return INVALID_VALUE;
    }
    // SAFETY: the caller gives so many bytes.
    device().write(to, unsafe { std::slice::from_raw_parts(from, bytes) });
    SUCCESS
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

/// Not a function of CUDA: how many allocations, streams and events there are, for tests that look for leaks.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaHeld() -> usize {
    let streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).len();
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner).len();
    device().allocations() + streams + events
}
