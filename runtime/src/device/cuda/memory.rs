//! Memory of a GPU for buffers of calls.
//!
//! The principal type is [`GpuMemory`].

use super::buffers::memory;
use super::error::GpuError;
use super::gpu::GpuDevice;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Some bytes on a GPU, with as many guards before and behind them as wanted, which show whether somebody writes there.
#[derive(Debug)]
pub struct GpuMemory {
    stream: Arc<CudaStream>,
    memory: ManuallyDrop<CudaSlice<u8>>,
    bytes: usize,
    guard: usize,
    /// Nobody knows whether work still uses it.
    is_kept: AtomicBool,
}

impl GpuMemory {
    /// Zeroed memory of so many bytes.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn new(gpu: &GpuDevice, bytes: usize) -> Result<Self, GpuError> {
        Self::guarded(gpu, bytes, 0)
    }

    /// The same with `guard` bytes before and behind it, a multiple of 256.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn guarded(gpu: &GpuDevice, bytes: usize, guard: usize) -> Result<Self, GpuError> {
        let stream = gpu.stream()?;
        let memory = memory(&stream, bytes.saturating_add(2 * guard))?;
        stream.synchronize().map_err(GpuError::of_driver("allocating memory"))?;
        let (memory, is_kept) = (ManuallyDrop::new(memory), AtomicBool::new(false));
        Ok(Self { stream, memory, bytes, guard, is_kept })
    }

    /// How many bytes, without guards.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lies, behind the first guard.
    pub(in crate::device) fn address(&self) -> u64 {
        self.memory.device_ptr(&self.stream).0 + self.guard as u64
    }

    /// It is never given back, because work that does not end may use it.
    pub(in crate::device) fn keep(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    /// Copies bytes to its beginning, which is that of the first guard.
    ///
    /// # Errors
    /// [`GpuError::Driver`]; also if they do not fit.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), GpuError> {
        let copying = GpuError::of_driver("copying to the GPU");
        if bytes.is_empty() {
            return Ok(());
        }
        self.check(bytes.len())?;
        self.stream.memcpy_htod(bytes, &mut self.memory.slice_mut(..bytes.len())).map_err(&copying)?;
        self.stream.synchronize().map_err(&copying)
    }

    /// Copies from its beginning, which is that of the first guard.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        let copying = GpuError::of_driver("copying from the GPU");
        if bytes.is_empty() {
            return Ok(());
        }
        self.check(bytes.len())?;
        self.stream.memcpy_dtoh(&self.memory.slice(..bytes.len()), bytes).map_err(&copying)?;
        self.stream.synchronize().map_err(&copying)
    }

    fn check(&self, bytes: usize) -> Result<(), GpuError> {
        let has = self.bytes + 2 * self.guard;
        if bytes <= has { Ok(()) } else { Err(GpuError::Room { has, given: bytes }) }
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Acquire) {
            // SAFETY: this is the one place that drops it, and nobody has it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
