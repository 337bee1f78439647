//! A gate in a stream: what is put behind it waits until the host opens it, so that the host's own time is not measured.
//!
//! The principal type is [`StreamGate`].

use super::error::GpuError;
use cudarc::driver::{CudaStream, result};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whether it is open, and who waits for that.
type Latch = (Mutex<bool>, Condvar);

/// What the driver's thread waits for.
struct HeldStream {
    latch: Arc<Latch>,
    limit: Duration,
}

/// A gate, which opens at the latest when this value is dropped or its time is over.
#[derive(Debug)]
pub(in crate::device) struct StreamGate(Arc<Latch>);

/// The driver calls this when the stream comes to the gate.
unsafe extern "C" fn wait(of: *mut c_void) {
    // SAFETY: it is the box that `close` gave, and the driver calls this once.
    let HeldStream { latch, limit } = *unsafe { Box::from_raw(of.cast::<HeldStream>()) };
    let is_open = latch.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(latch.1.wait_timeout_while(is_open, limit, |is_open| !*is_open));
}

impl StreamGate {
    /// Puts a closed gate into a stream. Nobody may give the stream copies from pageable memory until it is open.
    pub(in crate::device) fn close(stream: &CudaStream, limit: Duration) -> Result<Self, GpuError> {
        let latch = Arc::<Latch>::default();
        let given = Box::into_raw(Box::new(HeldStream { latch: latch.clone(), limit }));
        // SAFETY: the function takes this box.
        let launched = unsafe { result::stream::launch_host_function(stream.cu_stream(), wait, given.cast()) };
        match launched.map_err(GpuError::of_driver("holding a stream")) {
            Ok(()) => Ok(Self(latch)),
            Err(error) => {
                // SAFETY: the driver has not taken it.
                drop(unsafe { Box::from_raw(given) });
                Err(error)
            }
        }
    }

    /// Lets the stream go on.
    pub(in crate::device) fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

impl Drop for StreamGate {
    fn drop(&mut self) {
        self.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::GpuDevice;
    use cudarc::driver::CudaEvent;
    use libloading::Library;
    use std::sync::OnceLock;

    /// Guards against tests that hang.
    const LONG: Duration = Duration::from_secs(120);

    /// A stream of the fake driver, under the name by which cudarc looks for it.
    fn stream() -> Arc<CudaStream> {
        static DRIVER: OnceLock<Library> = OnceLock::new();
        let fake = || std::env::current_exe().unwrap().with_file_name("libfake_cuda.so");
        // SAFETY: the library has no constructors.
        DRIVER.get_or_init(|| unsafe { Library::new(fake()) }.unwrap());
        let gpu = GpuDevice::open(0).unwrap();
        gpu.bind().unwrap();
        gpu.stream().unwrap()
    }

    fn is_done(event: &CudaEvent) -> bool {
        event.try_is_complete().unwrap()
    }

    #[test]
    fn nothing_passes_a_gate_until_it_opens() {
        let stream = stream();
        let before = stream.record_event(None).unwrap();
        let gate = StreamGate::close(&stream, LONG).unwrap();
        let behind = stream.record_event(None).unwrap();
        before.synchronize().unwrap();
        assert!(!is_done(&behind), "the stream has come to the gate, and not further");
        gate.open();
        behind.synchronize().unwrap();
        assert!(is_done(&behind));
        // A gate that is open already holds nothing up.
        let gate = StreamGate::close(&stream, LONG).unwrap();
        gate.open();
        stream.synchronize().unwrap();
    }

    #[test]
    fn a_gate_opens_when_it_is_dropped_or_its_time_is_over() {
        let stream = stream();
        let gate = StreamGate::close(&stream, LONG).unwrap();
        let behind = stream.record_event(None).unwrap();
        assert!(!is_done(&behind));
        drop(gate);
        stream.synchronize().unwrap();
        assert!(is_done(&behind));
        let limit = Duration::from_millis(30);
        let begin = std::time::Instant::now();
        let gate = StreamGate::close(&stream, limit).unwrap();
        stream.synchronize().unwrap();
        assert!(begin.elapsed() >= limit);
        drop(gate);
    }
}
