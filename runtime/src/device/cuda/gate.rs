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
