//! The functions for plain allocations and their handles for other processes, by their names and arguments in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{Code, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::driver::{STREAMS, current, device, give, lacks};
use crate::graphs;
use crate::shared::SharedMemory;
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryHandle([u8; 64]);

const MAGIC: &[u8; 8] = b"fake IPC";
/// Addresses of plain allocations and of opened handles.
const FIRST_PLAIN: u64 = 0x0500_0000_0000_0000;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: c_uint = 1;

type Memories = Mutex<BTreeMap<u64, Arc<SharedMemory>>>;

/// What was allocated here.
static ALLOCATED: Memories = Mutex::new(BTreeMap::new());
/// What other processes have allocated, and is open here.
static OPENED: Memories = Mutex::new(BTreeMap::new());

/// How many allocations and opened handles there are.
pub(crate) fn held() -> usize {
    [&ALLOCATED, &OPENED].map(|all| all.lock().unwrap_or_else(PoisonError::into_inner).len()).iter().sum()
}

/// Puts memory at an address that was never given before.
fn place(memory: &Arc<SharedMemory>) -> u64 {
    static NEXT: Mutex<u64> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let address = FIRST_PLAIN + (u64::from(std::process::id()) << 32) + *next;
    *next += (ptx::OutsideMemory::bytes(&**memory) as u64).next_multiple_of(1 << 16) + (1 << 16);
    device().put(address, memory.clone());
    address
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code {
    current(|_| {
        graphs::check_unsafe()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let memory = Arc::new(SharedMemory::new(bytes).ok_or(2)?);
        let at = place(&memory);
        ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).insert(at, memory);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(address, at) }
    })
}

/// It waits for all streams. Memory that another process still has open must not be freed: CUDA does not say what happens then.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> Code {
    current(|device| {
        graphs::check_unsafe()?;
        let memory = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let memory = memory.ok_or(INVALID_VALUE)?;
        let streams: Vec<_> = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        streams.iter().for_each(|stream| stream.synchronize());
        device.take(address);
        if !memory.lock(libc::LOCK_EX) {
            device.fail(ILLEGAL_ADDRESS, "memory was freed while another process has it open");
            return Err(ILLEGAL_ADDRESS);
        }
        Ok(())
    })
}

/// Only for what `cuMemAlloc` has given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut MemoryHandle, address: u64) -> Code {
    current(|_| {
        if lacks("ipc") {
            return Err(NOT_SUPPORTED);
        }
        let allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = allocated.get(&address).ok_or(INVALID_VALUE)?;
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[12..16].copy_from_slice(&memory.file().as_raw_fd().to_le_bytes());
        // SAFETY: as the caller of the driver promises.
        unsafe { give(handle, MemoryHandle(bytes)) }
    })
}

/// A process cannot open its own memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: MemoryHandle, flags: c_uint) -> Code {
    current(|_| {
        let word =
            |at: usize| handle.0[at..at + 4].iter().rev().fold(0, |word: u32, byte| word << 8 | u32::from(*byte));
        if &handle.0[..8] != MAGIC || flags != LAZY_PEER_ACCESS {
            return Err(INVALID_VALUE);
        }
        if word(8) == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        if lacks("import") {
            return Err(NOT_SUPPORTED);
        }
        let path = format!("/proc/{}/fd/{}", word(8), word(12));
        let file = std::fs::File::options().read(true).write(true).open(path).map_err(|_| INVALID_VALUE)?;
        let memory = Arc::new(SharedMemory::of_file(file.as_fd()).ok_or(INVALID_VALUE)?);
        if !memory.lock(libc::LOCK_SH) {
            return Err(INVALID_VALUE);
        }
        let at = place(&memory);
        OPENED.lock().unwrap_or_else(PoisonError::into_inner).insert(at, memory);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(address, at) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(address: u64) -> Code {
    current(|device| {
        let memory = OPENED.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let memory = memory.ok_or(INVALID_VALUE)?;
        device.take(address);
        // The machine has had a copy of it, which may be in use by a kernel until now.
        memory.lock(libc::LOCK_UN);
        Ok(())
    })
}
