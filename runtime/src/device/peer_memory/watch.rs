//! Whoever waits for a rank that is gone does not wait for ever.
//!
//! The principal type is [`PeerFault`].

use super::sockets::PeerSockets;
use crate::device::cuda::{GpuDevice, GpuError, RelaxedCapture};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, result};
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use topology::Rank;

/// How long calls may go on without a rank that is gone: it may have done its part before.
const GRACE: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(1);

/// What ends calls of a kernel that waits for other ranks, from any thread.
pub struct PeerFault {
    urgent: Arc<CudaStream>,
    abort: CudaSlice<u32>,
    /// After the work of all calls so far that no graph has recorded.
    done: Arc<CudaEvent>,
    /// After the work of all calls that graphs do. Its records are nodes of graphs only: a graph waits for the latest one, which must not
    /// come after the graph in its own stream.
    in_graphs: Arc<CudaEvent>,
    /// The number of a rank that is gone, counted from 1; 0 for none.
    gone: AtomicU32,
    /// No call works any more.
    is_ended: AtomicBool,
    /// Calls were ended that were not done.
    has_failed: AtomicBool,
}

impl fmt::Debug for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerFault").field("gone", &self.gone()).field("is_ended", &self.is_ended()).finish()
    }
}

impl PeerFault {
    pub(in crate::device) fn new(gpu: &GpuDevice) -> Result<Self, GpuError> {
        let making = GpuError::of_driver("allocating memory");
        let urgent = gpu.stream()?;
        let abort = urgent.alloc_zeros(1).map_err(&making)?;
        let done = Arc::new(urgent.record_event(None).map_err(&making)?);
        let in_graphs = Arc::new(urgent.record_event(None).map_err(&making)?);
        urgent.synchronize().map_err(&making)?;
        let (gone, is_ended, has_failed) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { urgent, abort, done, in_graphs, gone, is_ended, has_failed })
    }

    /// The address of the word that ends all waits.
    pub(in crate::device) fn abort(&self) -> u64 {
        self.abort.device_ptr(&self.urgent).0
    }

    /// What calls record when they are done: those that graphs have recorded, or the others.
    pub(in crate::device) fn done(&self, is_recorded: bool) -> &Arc<CudaEvent> {
        if is_recorded { &self.in_graphs } else { &self.done }
    }

    /// Ends all calls, and those that come later, with results that are of no use.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn end(&self) -> Result<(), GpuError> {
        self.is_ended.store(true, Ordering::Release);
        let ending = GpuError::of_driver("ending calls");
        self.urgent.context().bind_to_thread().map_err(&ending)?;
        let _relaxed = RelaxedCapture::begin()?;
        // SAFETY: the memory of the word lives as long as this value. The driver has taken the word when the function returns.
        unsafe { result::memcpy_htod_async(self.abort(), &[1u32], self.urgent.cu_stream()) }.map_err(&ending)?;
        self.urgent.synchronize().map_err(&ending)
    }

    /// Whether no call works any more.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// A rank whose process is gone.
    pub fn gone(&self) -> Option<Rank> {
        self.gone.load(Ordering::Acquire).checked_sub(1).map(Rank)
    }

    /// Whether calls were ended before they were done, because a rank is gone.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Whether all calls are done within this time.
    pub(in crate::device) fn is_done_within(&self, limit: Duration) -> bool {
        let begin = Instant::now();
        let _relaxed = self.urgent.context().bind_to_thread().ok().and_then(|()| RelaxedCapture::begin().ok());
        while ![&self.done, &self.in_graphs].iter().all(|event| matches!(event.try_is_complete(), Ok(true))) {
            if begin.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// A rank is gone. Calls that are done then are right.
    fn miss(&self, rank: Rank) {
        let is_done = self.is_done_within(GRACE);
        self.gone.store(rank.0 + 1, Ordering::Release);
        self.has_failed.store(!is_done, Ordering::Release);
        // Without a driver that works, nothing waits either.
        let _ = self.end();
    }
}

/// A thread that waits for the end of other processes.
#[derive(Debug)]
pub(in crate::device) struct PeerWatch {
    stop: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PeerWatch {
    pub(in crate::device) fn begin(sockets: &Arc<PeerSockets>, fault: &Arc<PeerFault>) -> std::io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sockets, fault, stopped) = (sockets.clone(), fault.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("antiphon-peers".to_owned()).spawn(move || {
            // It wakes when a rank is gone or leaves, and when it is told to stop.
            while let Ok(false) = sockets.wait(stopped.as_fd(), &sockets.left()) {
                if let Some(rank) = sockets.gone() {
                    return fault.miss(rank);
                }
            }
        })?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        // An event counts, so that the thread sees it whenever it looks.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}
