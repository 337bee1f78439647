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
    /// There are calls, or graphs that may have some at any time.
    is_used: AtomicBool,
    /// Some of them are in graphs: nobody knows when these are launched, or have begun.
    is_recorded: AtomicBool,
    /// Calls were ended that were not done, or may have been.
    is_cut: AtomicBool,
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
        let [is_ended, is_used, is_recorded, is_cut] = [false; 4].map(AtomicBool::new);
        Ok(Self { urgent, abort, done, in_graphs, gone: AtomicU32::new(0), is_ended, is_used, is_recorded, is_cut })
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
        self.is_ended.store(true, Ordering::SeqCst);
        if self.is_recorded.load(Ordering::SeqCst) || self.are_done() != Some(true) {
            self.is_cut.store(true, Ordering::SeqCst);
        }
        let ending = GpuError::of_driver("ending calls");
        self.urgent.context().bind_to_thread().map_err(&ending)?;
        let _relaxed = RelaxedCapture::begin()?;
        // SAFETY: the memory of the word lives as long as this value. The driver has taken the word when the function returns.
        unsafe { result::memcpy_htod_async(self.abort(), &[1u32], self.urgent.cu_stream()) }.map_err(&ending)?;
        self.urgent.synchronize().map_err(&ending)
    }

    /// Whether no call works any more.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    /// A rank whose process is gone.
    pub fn gone(&self) -> Option<Rank> {
        self.gone.load(Ordering::SeqCst).checked_sub(1).map(Rank)
    }

    /// Whether results may be of no use because a rank is gone: those of calls that were not done then, and of all calls that
    /// graphs do. Where this rank calls nothing, nothing has failed.
    pub fn has_failed(&self) -> bool {
        self.gone().is_some() && self.is_used.load(Ordering::SeqCst)
    }

    /// A call is about to be put into a stream, or into a graph.
    pub(in crate::device) fn note_call(&self, is_recorded: bool) {
        self.is_used.store(true, Ordering::SeqCst);
        self.is_recorded.fetch_or(is_recorded, Ordering::SeqCst);
    }

    /// A call is in its stream. False: it may have been ended at once, or may yet be.
    pub(in crate::device) fn confirm_call(&self) -> bool {
        let is_ended = self.is_ended();
        self.is_cut.fetch_or(is_ended, Ordering::SeqCst);
        !is_ended
    }

    /// A call is only partly in its stream, and this rank puts no more of it there.
    pub(in crate::device) fn note_cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    /// Whether calls were ended that were not done, or may have been: others may wait for this rank in them.
    pub(in crate::device) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Whether all calls are done. None: the driver does not work any more.
    fn are_done(&self) -> Option<bool> {
        self.urgent.context().bind_to_thread().ok()?;
        let _relaxed = RelaxedCapture::begin().ok()?;
        Some(self.done.try_is_complete().ok()? && self.in_graphs.try_is_complete().ok()?)
    }

    /// Whether all calls are done within this time.
    pub(in crate::device) fn is_done_within(&self, limit: Duration) -> bool {
        self.is_done_before(limit, || false)
    }

    /// Whether all calls are done, before they are ended and within this time.
    pub(in crate::device) fn is_done_before_end(&self, limit: Duration) -> bool {
        self.is_done_before(limit, || self.is_ended())
    }

    fn is_done_before(&self, limit: Duration, gives_up: impl Fn() -> bool) -> bool {
        let begin = Instant::now();
        loop {
            let gives_up = gives_up() || begin.elapsed() >= limit;
            match self.are_done() {
                Some(true) => return true,
                Some(false) if !gives_up => std::thread::sleep(LOOK),
                _ => return false,
            }
        }
    }

    /// A rank is gone. Calls that are done then are right.
    fn miss(&self, rank: Rank) {
        self.is_done_within(GRACE);
        // Before anything ends for it: whoever sees the end of a call then sees why.
        self.gone.store(rank.0 + 1, Ordering::SeqCst);
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
