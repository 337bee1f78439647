//! What CUDA's driver has for memory of several processes.
//!
//! The principal type is [`MappedMemory`]. Every value gives back what it has when it is dropped, in the right order.

use crate::device::cuda::{GpuDevice, GpuError, RelaxedCapture};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdevice_attribute as Attribute, CUipcMem_flags, CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1 as NoFlags, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUuuid,
};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The bytes of a handle for other processes.
pub(super) const HANDLE: usize = 64;

/// Whether memory can be shared as file descriptors, by what the driver says about the GPU.
pub(super) fn has_descriptors(gpu: &GpuDevice) -> bool {
    let has = |which| gpu.context().attribute(which).is_ok_and(|value| value != 0);
    has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        && has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
}

/// Which GPU it is, as all processes see it.
pub(super) fn identity(gpu: &GpuDevice) -> Result<[u8; 16], GpuError> {
    uuid_of(gpu.context().cu_device()).map_err(GpuError::of_driver("asking the GPU"))
}

fn uuid_of(device: sys::CUdevice) -> Result<[u8; 16], cudarc::driver::DriverError> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the address is that of an identity.
    unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) }.result()?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

/// Whether this GPU can use the memory of another one. What this process does not see, it cannot ask about: then mapping shows it.
pub(super) fn may_access(gpu: &GpuDevice, other: [u8; 16]) -> Result<bool, GpuError> {
    let asking = GpuError::of_driver("asking for peer access");
    let (mut count, own) = (0, gpu.context().cu_device());
    // SAFETY: the address is that of a number.
    unsafe { sys::cuDeviceGetCount(&raw mut count) }.result().map_err(&asking)?;
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: the address is that of a device.
        unsafe { sys::cuDeviceGet(&raw mut device, ordinal) }.result().map_err(&asking)?;
        if device == own || uuid_of(device).map_err(&asking)? != other {
            continue;
        }
        let mut can = 0;
        // SAFETY: the address is that of a number.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, own, device) }.result().map_err(&asking)?;
        return Ok(can != 0);
    }
    Ok(true)
}

/// Physical memory of a GPU, of this process or another one. It lives on while it is mapped anywhere.
pub(super) struct PhysicalMemory {
    context: Arc<CudaContext>,
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
}

fn properties(gpu: &GpuDevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: here(gpu),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: NoFlags { compressionType: 0, gpuDirectRDMACapable: 0, usage: 0, reserved: [0; 4] },
    }
}

fn here(gpu: &GpuDevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.context().cu_device() }
}

/// As many bytes as the driver allocates for so many. On GPUs of another kind it may be another number.
pub(super) fn granular(gpu: &GpuDevice, bytes: usize) -> Result<usize, GpuError> {
    let (mut unit, asked) = (0, properties(gpu));
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    gpu.bind()?;
    // SAFETY: the addresses are those of a number and of properties.
    let code = unsafe { sys::cuMemGetAllocationGranularity(&raw mut unit, &raw const asked, option) };
    code.result().map_err(GpuError::of_driver("asking how memory is allocated"))?;
    Ok(bytes.max(1).next_multiple_of(unit.max(1)))
}

impl PhysicalMemory {
    /// Allocates so many bytes, as [`granular`] gives them.
    pub(super) fn new(gpu: &GpuDevice, bytes: usize) -> Result<Self, GpuError> {
        let (mut handle, asked) = (0, properties(gpu));
        gpu.bind()?;
        // SAFETY: the addresses are those of a handle and of properties.
        let code = unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const asked, 0) };
        code.result().map_err(GpuError::of_driver("allocating memory for other processes"))?;
        Ok(Self { context: gpu.context().clone(), handle, bytes })
    }

    /// What another process imports.
    pub(super) fn export(&self) -> Result<OwnedFd, GpuError> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut descriptor = -1i32;
        // SAFETY: the address is that of a descriptor, as this kind of handle is one.
        let code =
            unsafe { sys::cuMemExportToShareableHandle((&raw mut descriptor).cast::<c_void>(), self.handle, kind, 0) };
        code.result().map_err(GpuError::of_driver("exporting memory"))?;
        // SAFETY: the driver has opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// The memory of so many bytes that another process has exported.
    pub(super) fn import(gpu: &GpuDevice, from: BorrowedFd<'_>, bytes: usize) -> Result<Self, GpuError> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let (mut handle, descriptor) = (0, from.as_raw_fd() as usize as *mut c_void);
        gpu.bind()?;
        // SAFETY: the address is that of a handle. A descriptor is given as a number in place of an address.
        let code = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, descriptor, kind) };
        code.result().map_err(GpuError::of_driver("importing memory"))?;
        Ok(Self { context: gpu.context().clone(), handle, bytes })
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: it was created or imported, and is released once.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

/// Memory at an address of this process.
#[derive(Debug)]
pub(super) enum MappedMemory {
    /// Physical memory of this process or another one.
    Virtual(VirtualRange),
    /// An allocation of this process, of which others may have the handle.
    Plain(PlainMemory),
    /// What another process has allocated.
    Opened(OpenedMemory),
}

impl MappedMemory {
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Virtual(range) => range.address,
            Self::Plain(memory) => memory.address,
            Self::Opened(memory) => memory.address,
        }
    }
}

/// A range of addresses with memory.
#[derive(Debug)]
pub(super) struct VirtualRange {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
    is_mapped: bool,
}

impl VirtualRange {
    /// Maps memory for this GPU.
    pub(super) fn new(gpu: &GpuDevice, memory: &PhysicalMemory) -> Result<Self, GpuError> {
        let mapping = GpuError::of_driver("mapping memory");
        let (mut address, bytes) = (0, memory.bytes);
        gpu.bind()?;
        // SAFETY: the address is that of an address.
        unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) }.result().map_err(&mapping)?;
        let mut range = Self { context: gpu.context().clone(), address, bytes, is_mapped: false };
        // SAFETY: the range was reserved just now, with these bytes.
        unsafe { sys::cuMemMap(address, bytes, 0, memory.handle, 0) }.result().map_err(&mapping)?;
        range.is_mapped = true;
        let access =
            CUmemAccessDesc { location: here(gpu), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: the range is mapped, and the address is that of one description.
        unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) }.result().map_err(&mapping)?;
        Ok(range)
    }
}

impl Drop for VirtualRange {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        if self.is_mapped {
            // SAFETY: it was mapped with these bytes. Whoever has this value has waited for what uses the memory.
            let _ = unsafe { sys::cuMemUnmap(self.address, self.bytes) };
        }
        // SAFETY: it was reserved with these bytes, and nothing is mapped there.
        let _ = unsafe { sys::cuMemAddressFree(self.address, self.bytes) };
    }
}

/// An allocation that has a handle. It must not be freed while another process has it open.
#[derive(Debug)]
pub(super) struct PlainMemory {
    context: Arc<CudaContext>,
    address: u64,
}

impl PlainMemory {
    pub(super) fn new(gpu: &GpuDevice, bytes: usize) -> Result<Self, GpuError> {
        let mut address = 0;
        gpu.bind()?;
        let _relaxed = RelaxedCapture::begin()?;
        // SAFETY: the address is that of an address.
        let code = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes.max(1)) };
        code.result().map_err(GpuError::of_driver("allocating memory for other processes"))?;
        Ok(Self { context: gpu.context().clone(), address })
    }

    /// What another process opens.
    pub(super) fn handle(&self) -> Result<[u8; HANDLE], GpuError> {
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE] };
        // SAFETY: the address is that of a handle, and the memory was allocated.
        let code = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, self.address) };
        code.result().map_err(GpuError::of_driver("making a handle of memory"))?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        let _relaxed = RelaxedCapture::begin();
        // SAFETY: it was allocated, and is freed once. No other process has it open.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// An allocation of another process.
#[derive(Debug)]
pub(super) struct OpenedMemory {
    context: Arc<CudaContext>,
    address: u64,
}

impl OpenedMemory {
    pub(super) fn new(gpu: &GpuDevice, handle: [u8; HANDLE]) -> Result<Self, GpuError> {
        let (mut address, handle) = (0, CUipcMemHandle { reserved: handle.map(|byte| byte as _) });
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        gpu.bind()?;
        // SAFETY: the address is that of an address.
        let code = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) };
        code.result().map_err(GpuError::of_driver("opening memory of another process"))?;
        Ok(Self { context: gpu.context().clone(), address })
    }
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: it was opened, and is closed once. Whoever has this value has waited for what uses the memory.
        let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
    }
}
