//! The functions for device memory, by their names and arguments in CUDA.
#![allow(missing_docs, clippy::missing_safety_doc, reason = "CUDA's documentation describes its functions")]

use crate::clock;
use crate::device::{Code, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::{EVENTS, STREAMS, current, device, find, give};
use crate::graphs;
use std::sync::{Arc, PoisonError};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) -> Code {
    current(|device| {
        find(&STREAMS, stream)?;
        graphs::check_unsafe()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // `FAKE_CUDA_MOST_BYTES`: what is longer has no room.
        let most = std::env::var("FAKE_CUDA_MOST_BYTES").ok().and_then(|text| text.parse().ok());
        if most.is_some_and(|most: usize| bytes > most) {
            return Err(OUT_OF_MEMORY);
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
        graphs::check_unsafe()?;
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
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    current(|device| {
        let stream = find(&STREAMS, stream)?;
        if !device.holds(from, bytes) || !device.holds(to, bytes) {
            return Err(INVALID_VALUE);
        }
        stream.push_repeatable(Arc::new(move || {
            clock::copy(bytes);
            if let Some(copy) = device.read(from, bytes) {
                device.write(to, &copy);
            }
        }));
        Ok(())
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

/// Not a function of CUDA: how many allocations, streams, events and graphs there are, for tests that look for leaks.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaHeld() -> usize {
    let streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).len();
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner).len();
    let shared = crate::handles::held() + crate::virtual_memory::held();
    device().allocations() + streams + events + shared + crate::graphs::held()
}

/// Not a function of CUDA: the fault after which nothing works, or success.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaFault() -> Code {
    device().fault()
}
