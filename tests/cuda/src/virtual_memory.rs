//! The functions for memory that is allocated, mapped and shared by hand, by their names and arguments in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::device::{ALREADY_MAPPED, Code, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::driver::{current, device, find, give, has_memory, initialized, insert, lacks, remove};
use crate::shared::SharedMemory;
use ptx::OutsideMemory;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes and addresses are multiples of it. A real one is larger; this is enough for code that asks for it.
const GRANULARITY: usize = 64 << 10;
/// Addresses that are reserved begin here, far from those of allocations.
const FIRST_RESERVED: u64 = 0x0600_0000_0000_0000;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `CU_MEM_LOCATION_TYPE_DEVICE`, and
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const PINNED: c_int = 1;
const FILE_DESCRIPTOR: c_int = 1;
const DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub struct AllocationProperties {
    kind: c_int,
    handle_kinds: c_int,
    location: Location,
    windows: *mut c_void,
    flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct AccessDescription {
    location: Location,
    flags: c_int,
}

/// Physical memory: it lives as long as a handle or a mapping of any process has it.
struct Physical {
    memory: Arc<SharedMemory>,
    is_exportable: bool,
}

/// What lies at an address.
struct Mapping {
    memory: Arc<SharedMemory>,
    is_accessible: bool,
}

static PHYSICAL: Mutex<BTreeMap<usize, Arc<Physical>>> = Mutex::new(BTreeMap::new());
/// By address, the bytes.
static RESERVED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());
static MAPPED: Mutex<BTreeMap<u64, Mapping>> = Mutex::new(BTreeMap::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many handles, reservations and mappings there are.
pub(crate) fn held() -> usize {
    locked(&PHYSICAL).len() + locked(&RESERVED).len() + locked(&MAPPED).len()
}

fn is_granular(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

/// # Safety
/// The address is null or that of properties.
unsafe fn checked(properties: *const AllocationProperties) -> Result<bool, Code> {
    // SAFETY: the caller promises it.
    let asked = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
    if asked.kind != PINNED || asked.location.kind != DEVICE || !asked.windows.is_null() || asked.flags != 0 {
        return Err(INVALID_VALUE);
    }
    match (asked.location.id, asked.handle_kinds) {
        (id, _) if !has_memory(id) => Err(INVALID_DEVICE),
        (_, 0) => Ok(false),
        (_, FILE_DESCRIPTOR) if !lacks("descriptors") => Ok(true),
        _ => Err(NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    properties: *const AllocationProperties,
    option: c_int,
) -> Code {
    current(|_| {
        // SAFETY: as the caller of the driver promises.
        unsafe { checked(properties) }?;
        if ![0, 1].contains(&option) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { give(bytes, GRANULARITY) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut usize,
    bytes: usize,
    properties: *const AllocationProperties,
    flags: c_ulonglong,
) -> Code {
    current(|_| {
        // SAFETY: as the caller of the driver promises.
        let is_exportable = unsafe { checked(properties) }?;
        if !is_granular(bytes) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let memory = Arc::new(SharedMemory::new(bytes).ok_or(2)?);
        // SAFETY: as above.
        unsafe { give(handle, insert(&PHYSICAL, Arc::new(Physical { memory, is_exportable }))) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: usize) -> Code {
    initialized(|| remove(&PHYSICAL, handle).map(drop).map_err(|_| INVALID_VALUE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    bytes: usize,
    align: usize,
    wanted: u64,
    flags: c_ulonglong,
) -> Code {
    current(|_| {
        let is_aligned = align == 0 || align.is_power_of_two() && align <= GRANULARITY;
        if !is_granular(bytes) || !is_aligned || wanted != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut reserved = locked(&RESERVED);
        // No two processes have the same addresses, and none is given twice while it is in use.
        let first = FIRST_RESERVED + (u64::from(std::process::id()) << 32);
        let next = reserved.last_key_value().map_or(first, |(at, bytes)| at + (*bytes + GRANULARITY) as u64);
        reserved.insert(next, bytes);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(address, next) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> Code {
    initialized(|| {
        let (mut reserved, mapped) = (locked(&RESERVED), locked(&MAPPED));
        let is_used = mapped.range(address..address.saturating_add(bytes as u64)).next().is_some();
        if reserved.get(&address) != Some(&bytes) || is_used {
            return Err(INVALID_VALUE);
        }
        reserved.remove(&address);
        Ok(())
    })
}

/// Only whole allocations are mapped here.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: usize, flags: c_ulonglong) -> Code {
    current(|_| {
        let physical = find(&PHYSICAL, handle).map_err(|_| INVALID_VALUE)?;
        let (reserved, mut mapped) = (locked(&RESERVED), locked(&MAPPED));
        let (start, room) = reserved.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let is_inside = address - start + bytes as u64 <= *room as u64;
        let is_whole = offset == 0 && flags == 0 && bytes == physical.memory.bytes();
        if !is_inside || !is_whole || !address.is_multiple_of(GRANULARITY as u64) {
            return Err(INVALID_VALUE);
        }
        let before = mapped.range(..address + bytes as u64).next_back();
        if before.is_some_and(|(at, mapping)| at + mapping.memory.bytes() as u64 > address) {
            return Err(ALREADY_MAPPED);
        }
        mapped.insert(address, Mapping { memory: physical.memory.clone(), is_accessible: false });
        Ok(())
    })
}

/// Before it, an access of the memory is one of no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    bytes: usize,
    descriptions: *const AccessDescription,
    count: usize,
) -> Code {
    current(|device| {
        // SAFETY: as the caller of the driver promises: null, or as many descriptions.
        let asked = unsafe { descriptions.as_ref() }.filter(|_| count == 1).ok_or(INVALID_VALUE)?;
        let mut mapped = locked(&MAPPED);
        let mapping = mapped.get_mut(&address).filter(|mapping| mapping.memory.bytes() == bytes);
        let mapping = mapping.ok_or(INVALID_VALUE)?;
        if asked.location.kind != DEVICE || asked.flags != READ_WRITE {
            return Err(INVALID_VALUE);
        }
        if !has_memory(asked.location.id) || lacks("access") {
            return Err(INVALID_DEVICE);
        }
        if !mapping.is_accessible {
            mapping.is_accessible = true;
            device.put(address, mapping.memory.clone());
        }
        Ok(())
    })
}

/// It waits for nobody: a kernel that still uses the memory has a fault.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> Code {
    initialized(|| {
        let mut mapped = locked(&MAPPED);
        let is_there = mapped.get(&address).is_some_and(|mapping| mapping.memory.bytes() == bytes);
        let mapping = mapped.remove(&address).filter(|_| is_there).ok_or(INVALID_VALUE)?;
        if mapping.is_accessible {
            device().take(address);
        }
        Ok(())
    })
}

/// The caller closes the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_int,
    handle: usize,
    kind: c_int,
    flags: c_ulonglong,
) -> Code {
    current(|_| {
        let physical = find(&PHYSICAL, handle).map_err(|_| INVALID_VALUE)?;
        if kind != FILE_DESCRIPTOR || flags != 0 || !physical.is_exportable {
            return Err(INVALID_VALUE);
        }
        let file = physical.memory.file().try_clone().map_err(|_| 2)?;
        // SAFETY: as the caller of the driver promises.
        unsafe { give(shareable, file.into_raw_fd()) }
    })
}

/// The descriptor stays the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut usize,
    shareable: *mut c_void,
    kind: c_int,
) -> Code {
    current(|_| {
        let descriptor = c_int::try_from(shareable as usize).map_err(|_| INVALID_VALUE)?;
        if kind != FILE_DESCRIPTOR || lacks("import") {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: it is only looked at; if it is closed, it is no memory of ours.
        let memory = SharedMemory::of_file(unsafe { BorrowedFd::borrow_raw(descriptor) });
        let memory = Arc::new(memory.ok_or(INVALID_VALUE)?);
        // SAFETY: as the caller of the driver promises.
        unsafe { give(handle, insert(&PHYSICAL, Arc::new(Physical { memory, is_exportable: true }))) }
    })
}

/// Which device it is, wherever it is seen from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], number: c_int) -> Code {
    initialized(|| {
        let which = crate::driver::visible().get(number as usize).copied().ok_or(INVALID_DEVICE)?;
        let mut bytes = *b"fake GPU\0\0\0\0\0\0\0\0";
        bytes[8..].copy_from_slice(&which.to_le_bytes());
        // SAFETY: as the caller of the driver promises.
        unsafe { give(uuid, bytes) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, number: c_int, peer: c_int) -> Code {
    initialized(|| {
        let count = crate::driver::visible().len();
        if [number, peer].iter().any(|number| *number < 0 || *number as usize >= count) {
            return Err(INVALID_DEVICE);
        }
        // SAFETY: as the caller of the driver promises.
        unsafe { give(can, c_int::from(number != peer && !lacks("peers"))) }
    })
}
