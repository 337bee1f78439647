//! One GPU of this computer.
//!
//! The principal type is [`GpuDevice`].

use super::error::GpuError;
use crate::device::{KERNEL_PTX, kernel_name};
use crate::dtype::DType;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream};
use cudarc::nvrtc::Ptx;
use std::sync::Arc;

/// A GPU with the interpreter kernel on it.
#[derive(Debug)]
pub struct GpuDevice {
    context: Arc<CudaContext>,
    module: Arc<CudaModule>,
    name: String,
    multiprocessors: u32,
}

impl GpuDevice {
    /// Opens a GPU by its number among those that the driver shows, and loads the kernel.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`] without a driver; [`GpuError::Driver`] if there is no such GPU, or it cannot run the kernel.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        // SAFETY: it loads the driver's library, or finds none; a missing one would panic later.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::NoDriver);
        }
        let context = CudaContext::new(ordinal).map_err(GpuError::of_driver("opening the GPU"))?;
        let asked = GpuError::of_driver("asking the GPU");
        let attribute = |which| context.attribute(which).map_err(&asked);
        let name = context.name().map_err(&asked)?;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(0) as u32;
        if attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? == 0 {
            let what = "it has no cooperative launches".to_owned();
            return Err(GpuError::Driver { doing: "opening the GPU", name, what, hint: "" });
        }
        let module =
            context.load_module(Ptx::from_src(KERNEL_PTX)).map_err(GpuError::of_driver("loading the kernel"))?;
        Ok(Self { context, module, name, multiprocessors })
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The kernel for a type of elements, and how many of its blocks can be on the GPU at the same time.
    pub(super) fn kernel(&self, dtype: DType, threads: u32) -> Result<(CudaFunction, u32), GpuError> {
        let kernel =
            self.module.load_function(&kernel_name(dtype)).map_err(GpuError::of_driver("finding the kernel"))?;
        let at_once = kernel.occupancy_max_active_blocks_per_multiprocessor(threads, 0, None);
        let at_once = at_once.map_err(GpuError::of_driver("asking how many blocks fit on the GPU"))?;
        Ok((kernel, at_once.saturating_mul(self.multiprocessors)))
    }

    pub(super) fn stream(&self) -> Result<Arc<CudaStream>, GpuError> {
        self.context.new_stream().map_err(GpuError::of_driver("making a stream"))
    }
}
