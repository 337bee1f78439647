//! One GPU of this computer.
//!
//! The principal type is [`GpuDevice`].

use super::error::GpuError;
use crate::device::images::{ALLREDUCE, INTERPRETER, KernelImages};
use crate::device::kernel_name;
use crate::device::peers::allreduce_kernel_name;
use crate::dtype::DType;
use cudarc::driver::sys::{self, CUcontext, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, result};
use cudarc::nvrtc::{self, CompileOptions, Ptx, compile_ptx_with_opts};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A GPU with the interpreter kernel on it.
#[derive(Debug)]
pub struct GpuDevice {
    context: Arc<CudaContext>,
    /// Or why it cannot run the kernel.
    module: Result<Arc<CudaModule>, GpuError>,
    name: String,
    multiprocessors: u32,
    /// The first part of its compute capability.
    capability: u32,
}

/// A module for this GPU: from code for its kind; or from PTX if there is none that the driver takes; or from PTX of the computer's NVRTC,
/// if the driver is older than the one that is kept.
fn loaded(context: &Arc<CudaContext>, images: &KernelImages, capability: u32) -> Result<Arc<CudaModule>, GpuError> {
    let of_code = images.cubin(capability).map(|code| context.load_module(Ptx::from_binary(code.to_vec())));
    if let Some(Ok(module)) = of_code {
        return Ok(module);
    }
    let of_ptx = context.load_module(Ptx::from_src(images.ptx)).or_else(|error| {
        let is_old = error.0 == sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        let compiled = if is_old { compiled(images) } else { None };
        compiled.map_or(Err(error), |ptx| context.load_module(ptx))
    });
    of_ptx.map_err(GpuError::of_driver("loading the kernel"))
}

/// PTX by the NVRTC of this computer, with the options of `make kernels`; `None` if there is none, or it cannot make it.
fn compiled(images: &KernelImages) -> Option<Ptx> {
    // SAFETY: it loads the library, or finds none; a missing one would panic later.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return None;
    }
    let options = CompileOptions {
        ftz: Some(false),
        prec_div: Some(true),
        fmad: Some(false),
        options: vec!["-std=c++17".to_owned()],
        arch: Some("compute_80"),
        ..CompileOptions::default()
    };
    // An NVRTC of another kind may lack functions, of which cudarc makes a panic.
    catch_unwind(AssertUnwindSafe(|| compile_ptx_with_opts(images.whole_source(), options).ok())).ok().flatten()
}

impl GpuDevice {
    /// Opens a GPU by its number among those that the driver shows, and loads the kernel.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`] without a driver; [`GpuError::Driver`] if there is no such GPU, or it cannot run the kernel.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        let gpu = Self::open_anyway(ordinal)?;
        gpu.check_kernel().map(|()| gpu)
    }

    /// Whether it can run the kernel.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: why not.
    pub fn check_kernel(&self) -> Result<(), GpuError> {
        self.module.as_ref().map(drop).map_err(Clone::clone)
    }

    /// Opens a GPU, whether it can run the kernel or not: such a rank can tell others.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`] without a driver; [`GpuError::Driver`] if there is no such GPU.
    pub fn open_anyway(ordinal: usize) -> Result<Self, GpuError> {
        // SAFETY: it loads the driver's library, or finds none; a missing one would panic later.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::NoDriver);
        }
        let context = CudaContext::new(ordinal).map_err(GpuError::of_driver("opening the GPU"))?;
        // With it, the first stream would wait for the whole GPU, and so perhaps for a rank that waits for this one.
        // SAFETY: all work that depends on work of another stream is ordered by hand.
        unsafe { context.disable_event_tracking() };
        let asked = GpuError::of_driver("asking the GPU");
        let attribute = |which| context.attribute(which).map_err(&asked);
        let name = context.name().map_err(&asked)?;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(0) as u32;
        let can_cooperate = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0;
        let capability = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?.max(0) as u32;
        let module = if can_cooperate {
            loaded(&context, &INTERPRETER, capability)
        } else {
            let what = "it has no cooperative launches".to_owned();
            Err(GpuError::Driver { doing: "opening the GPU", name: name.clone(), what, hint: "" })
        };
        Ok(Self { context, module, name, multiprocessors, capability })
    }

    /// How many GPUs the driver shows.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`] without a driver, [`GpuError::Driver`].
    pub fn count() -> Result<usize, GpuError> {
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::NoDriver);
        }
        let count = CudaContext::device_count().map_err(GpuError::of_driver("counting the GPUs"))?;
        Ok(count.max(0) as usize)
    }

    /// Its address on the PCI bus, such as `0000:17:00.0`: what it is called by other libraries.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn bus_id(&self) -> Result<String, GpuError> {
        let (asked, mut text) = (GpuError::of_driver("asking the GPU"), [0; 32]);
        let device = result::device::get(self.context.ordinal() as c_int).map_err(&asked)?;
        // SAFETY: there is room for so many bytes, and the device is one.
        let code = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, device) };
        code.result().map_err(&asked)?;
        let bytes: Vec<u8> = text.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::device) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The kernel for a type of elements, and how many of its blocks can be on the GPU at the same time.
    pub(in crate::device) fn kernel(&self, dtype: DType, threads: u32) -> Result<(CudaFunction, u32), GpuError> {
        let module = self.module.as_ref().map_err(Clone::clone)?;
        self.found(module, &kernel_name(dtype), threads)
    }

    /// The same for the AllReduce on registered buffers.
    pub(in crate::device) fn allreduce_kernel(
        &self,
        dtype: DType,
        threads: u32,
    ) -> Result<(CudaFunction, u32), GpuError> {
        let module = loaded(&self.context, &ALLREDUCE, self.capability)?;
        self.found(&module, &allreduce_kernel_name(dtype), threads)
    }

    fn found(&self, module: &Arc<CudaModule>, name: &str, threads: u32) -> Result<(CudaFunction, u32), GpuError> {
        let kernel = module.load_function(name).map_err(GpuError::of_driver("finding the kernel"))?;
        let at_once = kernel.occupancy_max_active_blocks_per_multiprocessor(threads, 0, None);
        let at_once = at_once.map_err(GpuError::of_driver("asking how many blocks fit on the GPU"))?;
        Ok((kernel, at_once.saturating_mul(self.multiprocessors)))
    }

    pub(in crate::device) fn stream(&self) -> Result<Arc<CudaStream>, GpuError> {
        self.context.new_stream().map_err(GpuError::of_driver("making a stream"))
    }

    /// A stream that somebody else has made and ends.
    ///
    /// # Safety
    /// It is a stream of this GPU, or null for the default one, and lives as long as what is returned.
    pub(in crate::device) unsafe fn borrowed_stream(&self, stream: *mut c_void) -> Arc<CudaStream> {
        // SAFETY: the caller promises it.
        unsafe { self.context.wrap_borrowed_stream(stream.cast()) }
    }

    /// Makes the GPU the one that this thread uses.
    pub(in crate::device) fn bind(&self) -> Result<(), GpuError> {
        self.context.bind_to_thread().map_err(GpuError::of_driver("choosing the GPU"))
    }

    /// Puts a copy within this GPU into a stream.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    ///
    /// # Safety
    /// `stream` is one of this GPU. Both addresses are those of so many bytes of this GPU, which do not overlap and stay valid until
    /// the stream has done the copy.
    pub unsafe fn copy(&self, stream: *mut c_void, to: u64, from: u64, bytes: usize) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the caller promises it.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cast()) };
        copied.map_err(GpuError::of_driver("copying on the GPU"))
    }

    /// The GPU that this thread uses now, before functions of this one change that.
    pub fn current(&self) -> CurrentGpu {
        CurrentGpu(result::ctx::get_current().unwrap_or(None))
    }

    /// What a stream is given from now on waits for all that another one was given before.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    ///
    /// # Safety
    /// Both are streams of this GPU.
    pub unsafe fn follow(&self, stream: *mut c_void, other: *mut c_void) -> Result<(), GpuError> {
        // SAFETY: the caller promises it.
        let (stream, other) = unsafe { (self.borrowed_stream(stream), self.borrowed_stream(other)) };
        stream.join(&other).map_err(GpuError::of_driver("joining streams"))
    }

    /// Whether a stream records a graph at the moment, and so runs nothing.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    ///
    /// # Safety
    /// `stream` is one of this GPU.
    pub unsafe fn is_captured(&self, stream: *mut c_void) -> Result<bool, GpuError> {
        self.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the caller promises that it is a stream, and the address is that of a status.
        let asked = unsafe { sys::cuStreamIsCapturing(stream.cast(), &raw mut status) };
        asked.result().map_err(GpuError::of_driver("asking a stream"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// While this value lives, its thread may allocate memory and wait for streams though others record graphs, as long as it uses
/// other streams than these.
pub(in crate::device) struct RelaxedCapture(sys::CUstreamCaptureMode);

impl RelaxedCapture {
    pub(in crate::device) fn begin() -> Result<Self, GpuError> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the address is that of a mode, in which the driver gives the one before.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        exchanged.result().map_err(GpuError::of_driver("allowing work beside a recording")).map(|()| Self(mode))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: the address is that of a mode.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}

/// The GPU that a thread uses when this value is made; the thread uses it again when the value is dropped. If there is none, the
/// thread keeps what it uses then.
#[derive(Debug)]
pub struct CurrentGpu(Option<CUcontext>);

impl Drop for CurrentGpu {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: it was the thread's own a moment ago. If it has ended meanwhile, the driver refuses it.
            let _ = unsafe { result::ctx::set_current(context) };
        }
    }
}
