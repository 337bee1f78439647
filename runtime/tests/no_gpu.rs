//! Where there is no GPU, that is an error and no panic.
#![allow(clippy::unwrap_used, missing_docs)]

use runtime::{GpuDevice, GpuError};

#[test]
fn without_a_driver_there_is_an_error() {
    match GpuDevice::open(usize::from(u8::MAX)) {
        Err(GpuError::NoDriver) => {
            let said = GpuError::NoDriver.to_string();
            assert!(said.contains("libcuda.so") && said.contains("hint"), "{said}");
        }
        // There is a driver, and no computer has so many GPUs.
        Err(GpuError::Driver { doing, name, .. }) => {
            assert!(doing == "opening the GPU" && name.starts_with("CUDA_ERROR_"), "{doing}: {name}");
        }
        other => panic!("{other:?}"),
    }
}
