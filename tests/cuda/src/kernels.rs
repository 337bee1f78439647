//! The functions for modules, kernels and other work in streams, by their names and arguments in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{
    COOPERATIVE_LAUNCH_TOO_LARGE, Code, INVALID_PTX, INVALID_VALUE, KernelLaunch, LoadedKernel, MOST_THREADS,
    MULTIPROCESSORS, NO_BINARY_FOR_GPU, NOT_FOUND, UNSUPPORTED_PTX_VERSION,
};
use crate::driver::{STREAMS, current, device, find, give, initialized, insert, lacks, remove};
use ptx::Module;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
        // `FAKE_CUDA_LACKS=ptx`: the first PTX of a process is of a newer version than the driver.
        static HAS_REFUSED: AtomicBool = AtomicBool::new(false);
        if lacks("ptx") && !HAS_REFUSED.swap(true, Ordering::Relaxed) {
            return Err(UNSUPPORTED_PTX_VERSION);
        }
        let parsed = text.and_then(|text| Module::parse(text).ok()).ok_or(INVALID_PTX)?;
        let parsed = replaced(&parsed).unwrap_or(parsed);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(module, insert(&device.modules, Arc::new(parsed))) }
    })
}

/// The kernels of the file that `FAKE_CUDA_PTX` names, in place of those that a program loads under the same names: tests make mistakes
/// with it.
fn replaced(loaded: &Module) -> Option<Module> {
    let text = std::fs::read_to_string(std::env::var_os("FAKE_CUDA_PTX")?).ok()?;
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.strip_suffix('(')).collect();
    let is_for_it = names.iter().any(|name| loaded.has_kernel(name));
    is_for_it.then(|| Module::parse(&text).ok()).flatten()
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

/// A launch: the numbers of blocks and of threads in each direction, and the parameters.
struct AskedLaunch {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    is_cooperative: bool,
    parameters: *mut *mut c_void,
}

/// # Safety
/// There is an address for each parameter of the kernel.
unsafe fn launch(function: usize, stream: usize, asked: &AskedLaunch) -> Code {
    current(|device| {
        let (kernel, stream) = (find(&device.kernels, function)?, find(&STREAMS, stream)?);
        let &AskedLaunch { blocks: [blocks, ref more_blocks @ ..], threads: [threads, ref more @ ..], .. } = asked;
        if [more_blocks, more] != [&[1; 2]; 2] || blocks == 0 || threads == 0 || threads > MOST_THREADS {
            return Err(INVALID_VALUE);
        }
        if asked.is_cooperative && blocks > device.blocks_at_once(threads) * MULTIPROCESSORS {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let count = kernel.module.parameters(&kernel.name);
        if asked.parameters.is_null() && count > 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: there is an address for each parameter, and all parameters of our kernels have eight bytes.
        let read = |at| unsafe { asked.parameters.add(at).read().cast::<u64>().read_unaligned() };
        let launch = KernelLaunch { kernel, blocks, threads, parameters: (0..count).map(read).collect() };
        let (seed, repetition) = (device.next_seed(), AtomicU64::new(0));
        stream.push_repeatable(Arc::new(move || {
            // A graph that repeats it takes turns differently each time.
            device.launch(&launch, seed.wrapping_add(repetition.fetch_add(1, Ordering::Relaxed)));
        }));
        Ok(())
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
    let (blocks, threads) = ([blocks, blocks_y, blocks_z], [threads, threads_y, threads_z]);
    // SAFETY: as the caller of the driver promises.
    unsafe { launch(function, stream, &AskedLaunch { blocks, threads, is_cooperative: true, parameters }) }
}

/// A launch whose blocks need not be resident at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
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
    _extra: *mut *mut c_void,
) -> Code {
    let (blocks, threads) = ([blocks, blocks_y, blocks_z], [threads, threads_y, threads_z]);
    // SAFETY: as the caller of the driver promises.
    unsafe { launch(function, stream, &AskedLaunch { blocks, threads, is_cooperative: false, parameters }) }
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
        // SAFETY: the caller gives data that the function takes, on another thread, as often as a graph is launched.
        stream.push_repeatable(Arc::new(move || unsafe { function(data as *mut c_void) }));
        Ok(())
    })
}
