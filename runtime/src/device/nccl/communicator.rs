//! A communicator of NCCL.
//!
//! The principal type is [`NcclCommunicator`].

use super::calls::{IN_PROGRESS, NcclCalls, NcclId, RawComm, RawConfig, SUCCESS};
use super::error::NcclError;
use super::library::NcclLibrary;
use crate::device::cuda::{GpuDevice, GpuError, RecordedOrder, StreamGate};
use crate::device::peer_memory::PeerFault;
use cudarc::driver::{CudaEvent, CudaStream, DevicePtr, DevicePtrMut};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use topology::Rank;

/// How long the end of a communicator may take before it is aborted.
const END: Duration = Duration::from_secs(10);
/// Between two looks at what NCCL does.
const LOOK: Duration = Duration::from_micros(50);
/// NCCL takes about so long for what it is given, unless it makes connections.
const SHORT: Duration = Duration::from_micros(300);

/// When something must be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct NcclDeadline {
    begin: Instant,
    pub(super) limit: Duration,
}

impl NcclDeadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self { begin: Instant::now(), limit }
    }

    pub(super) fn is_over(self) -> bool {
        self.begin.elapsed() >= self.limit
    }

    /// Lets some time pass.
    pub(super) fn pause(self) {
        std::thread::sleep(LOOK);
    }

    /// The same for what began at `since` and is short, so that the end is not seen late.
    pub(super) fn pause_since(self, since: Instant) {
        if since.elapsed() < SHORT { std::thread::yield_now() } else { self.pause() }
    }
}

/// A rank's end of a communicator. One thread uses it at a time.
#[derive(Debug)]
pub struct NcclCommunicator {
    pub(super) calls: NcclCalls,
    pub(super) handle: RawComm,
    ranks: usize,
    rank: Rank,
    /// It was made here, and ends with this value.
    is_owned: bool,
    is_aborted: bool,
    /// After the work of all plans so far. Messages have no tags, so the plans of a communicator follow each other in all streams.
    pub(super) done: Option<Arc<CudaEvent>>,
    /// The same for calls that are recorded, whichever streams of a recording they are in.
    pub(super) recorded: RecordedOrder,
    /// Whoever waits in it gives up when this is set.
    stop: Option<Arc<AtomicBool>>,
    /// Its work stands behind this gate, which is opened before an abort.
    pub(super) gate: Option<Arc<StreamGate>>,
    /// What ends a kernel in its stream that waits for other ranks; this comes before an abort, too.
    pub(super) fault: Option<Arc<PeerFault>>,
}

// SAFETY: NCCL's communicators may be used by any thread, one at a time, and a value has one user at a time.
unsafe impl Send for NcclCommunicator {}

impl NcclCommunicator {
    /// What rank 0 gives to all ranks before they join.
    ///
    /// # Errors
    /// [`NcclError`] if NCCL is too old or refuses.
    pub fn unique_id(library: &NcclLibrary) -> Result<NcclId, NcclError> {
        let calls = NcclCalls::of(library)?;
        let mut id = NcclId([0; 128]);
        // SAFETY: the address is that of an id.
        let code = unsafe { (calls.unique_id)(&raw mut id) };
        checked(&calls, "making a unique id", code, std::ptr::null_mut()).map(|()| id)
    }

    /// Meets the other ranks, on the GPU.
    ///
    /// # Errors
    /// [`NcclError::Late`] if not all have come in time; [`NcclError::Refused`].
    pub fn join(
        library: &NcclLibrary,
        gpu: &GpuDevice,
        id: NcclId,
        (rank, ranks): (Rank, usize),
        limit: Duration,
    ) -> Result<Self, NcclError> {
        let (doing, deadline) = ("making a communicator", NcclDeadline::after(limit));
        gpu.bind()?;
        let calls = NcclCalls::of(library)?;
        let (mut handle, mut config) = (std::ptr::null_mut(), RawConfig::without_blocking());
        // SAFETY: the addresses are those of a communicator and of a configuration.
        let code = unsafe { (calls.init)(&raw mut handle, ranks as c_int, id, rank.0 as c_int, &raw mut config) };
        if code != IN_PROGRESS {
            checked(&calls, doing, code, handle)?;
        }
        let mut made = Self::of(calls, handle, (rank, ranks), true);
        made.settle(doing, deadline)?;
        Ok(made)
    }

    /// The communicator of somebody else, which stays theirs. It must be ready.
    ///
    /// # Errors
    /// [`NcclError::Refused`] if it is none.
    ///
    /// # Safety
    /// `handle` is an `ncclComm_t` that nobody else uses or ends while this value is used.
    pub unsafe fn borrowed(library: &NcclLibrary, handle: *mut c_void) -> Result<Self, NcclError> {
        let calls = NcclCalls::of(library)?;
        let asked = |function: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int| {
            let mut number = 0;
            // SAFETY: both functions take a communicator and the address of a number.
            let code = unsafe { function(handle, &raw mut number) };
            checked(&calls, "asking a communicator", code, handle).map(|()| number)
        };
        let (ranks, rank) = (asked(calls.count)? as usize, Rank(asked(calls.user_rank)? as u32));
        Ok(Self::of(calls, handle, (rank, ranks), false))
    }

    fn of(calls: NcclCalls, handle: RawComm, (rank, ranks): (Rank, usize), is_owned: bool) -> Self {
        let (done, stop, gate, fault) = (None, None, None, None);
        let recorded = RecordedOrder::default();
        Self { calls, handle, ranks, rank, is_owned, is_aborted: false, done, recorded, stop, gate, fault }
    }

    /// Calls that wait give up, with [`NcclError::Aborted`], when this is set, because the communicator is about to end.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    pub(super) fn stop_flag(&self) -> Option<Arc<AtomicBool>> {
        self.stop.clone()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire))
    }

    /// How many ranks it has.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Which one this is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether it can be used.
    pub(super) fn check(&self) -> Result<(), NcclError> {
        if self.is_aborted { Err(NcclError::Aborted) } else { Ok(()) }
    }

    pub(super) fn checked(&self, doing: &'static str, code: c_int) -> Result<(), NcclError> {
        checked(&self.calls, doing, code, self.handle)
    }

    /// What has gone wrong so far, as NCCL's number.
    pub(super) fn async_error(&self) -> c_int {
        let mut error = SUCCESS;
        // SAFETY: the address is that of a number.
        let code = unsafe { (self.calls.async_error)(self.handle, &raw mut error) };
        if code == SUCCESS { error } else { code }
    }

    /// Waits until NCCL has taken everything that it was given.
    pub(super) fn settle(&mut self, doing: &'static str, deadline: NcclDeadline) -> Result<(), NcclError> {
        let since = Instant::now();
        loop {
            // Whoever has set it may end the communicator soon.
            if self.is_stopped() {
                return Err(NcclError::Aborted);
            }
            match self.async_error() {
                SUCCESS => return Ok(()),
                IN_PROGRESS if deadline.is_over() => {
                    self.abort();
                    return Err(NcclError::Late { doing, limit: deadline.limit });
                }
                IN_PROGRESS => deadline.pause_since(since),
                code => {
                    let refused = self.checked(doing, code);
                    self.abort();
                    return refused;
                }
            }
        }
    }

    /// Ends everything that waits in it, on this rank. One of somebody else is left to them.
    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    pub(super) fn abort(&mut self) {
        // An abort waits for the stream, which would wait for the gate or the kernel.
        if let Some(gate) = self.gate.take() {
            gate.open();
        }
        if let Some(fault) = self.fault.take() {
            // Without a driver that works, nothing waits.
            let _ = fault.end();
        }
        if self.is_owned && !self.is_aborted {
            // SAFETY: no thread is inside of NCCL with it, since this one has it alone.
            unsafe { (self.calls.abort)(self.handle) };
        }
        self.is_aborted = true;
    }

    /// Each rank gives as many words; the words of all ranks, in their order.
    ///
    /// # Errors
    /// [`NcclError::Late`] if not all ranks have come in time; [`NcclError::Aborted`].
    pub fn gather(&mut self, gpu: &GpuDevice, words: &[u64], limit: Duration) -> Result<Vec<u64>, NcclError> {
        self.check()?;
        // Whoever has set it may wait for nothing but the end of this.
        if self.is_stopped() {
            return Err(NcclError::Aborted);
        }
        let (doing, deadline) = ("comparing all ranks", NcclDeadline::after(limit));
        let copying = GpuError::of_driver("copying words of all ranks");
        let stream = gpu.stream()?;
        let given = stream.clone_htod(words).map_err(&copying)?;
        let mut all = stream.alloc_zeros::<u64>(words.len() * self.ranks).map_err(&copying)?;
        let (from, to) = (given.device_ptr(&stream).0, all.device_ptr_mut(&stream).0);
        let (bytes, of) = (size_of_val(words), stream.cu_stream().cast());
        // SAFETY: the addresses are those of so many bytes of each rank, and of all ranks.
        let code = unsafe { (self.calls.all_gather)(from as _, to as _, bytes, 1, self.handle, of) };
        if code != IN_PROGRESS {
            self.checked(doing, code)?;
        }
        self.settle(doing, deadline)?;
        self.finish(doing, &stream, deadline)?;
        let words = stream.clone_dtoh(&all).map_err(&copying)?;
        stream.synchronize().map_err(&copying)?;
        Ok(words)
    }

    /// Waits for a stream that the communicator works in.
    pub(super) fn finish(
        &mut self,
        doing: &'static str,
        stream: &CudaStream,
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        let waiting = GpuError::of_driver("waiting for NCCL");
        let done = stream.record_event(None).map_err(&waiting)?;
        while !done.try_is_complete().map_err(&waiting)? {
            if self.is_stopped() {
                return Err(NcclError::Aborted);
            }
            // What waits for a rank that is gone does not end by itself.
            let code = self.async_error();
            if code != SUCCESS && code != IN_PROGRESS {
                let refused = self.checked(doing, code);
                self.abort();
                return refused;
            }
            if deadline.is_over() {
                self.abort();
                return Err(NcclError::Late { doing, limit: deadline.limit });
            }
            deadline.pause();
        }
        self.settle(doing, deadline)
    }

    /// Checks that all ranks have the same number, before they rely on it.
    ///
    /// # Errors
    /// [`NcclError::Disagree`] on every rank that meets another number.
    pub fn agree(&mut self, gpu: &GpuDevice, number: u64, limit: Duration) -> Result<(), NcclError> {
        let all = self.gather(gpu, &[number], limit)?;
        match all.iter().position(|other| *other != number) {
            None => Ok(()),
            Some(other) => Err(NcclError::Disagree { rank: self.rank, other: Rank::from_index(other) }),
        }
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if !self.is_owned || self.is_aborted {
            return;
        }
        // SAFETY: nobody uses it any more.
        let code = unsafe { (self.calls.finalize)(self.handle) };
        let is_ending = code == SUCCESS || code == IN_PROGRESS;
        if is_ending && self.settle("ending a communicator", NcclDeadline::after(END)).is_ok() {
            // SAFETY: as above; all its work is done.
            unsafe { (self.calls.destroy)(self.handle) };
        } else {
            self.abort();
        }
    }
}

fn checked(calls: &NcclCalls, doing: &'static str, code: c_int, comm: RawComm) -> Result<(), NcclError> {
    if code == SUCCESS { Ok(()) } else { Err(NcclError::Refused { doing, code, what: calls.text(code, comm) }) }
}
