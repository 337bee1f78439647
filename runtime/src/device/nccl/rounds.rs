//! Runs a program in rounds over NCCL.
//!
//! The principal type is [`NcclRounds`]. All work goes into a stream of the caller's: for each round a launch of the kernel, if there
//! is local work, and a group of sends and receives. The host waits for nothing, except where it watches a call. Where ranks of a
//! domain have mapped each other's memory, the kernel moves the messages between them: a plan whose ranks are all in one domain has one
//! launch and nothing else.

use super::calls::{IN_PROGRESS, SUCCESS, type_number};
use super::communicator::{NcclCommunicator, NcclDeadline};
use super::domain::DomainRegion;
use super::error::NcclError;
use super::round_ends::RoundEnds;
use crate::device::cuda::{GpuDevice, GpuError, RelaxedCapture};
use crate::device::peer_memory::PeerFault;
use crate::device::rounds::plan::RoundPlan;
use crate::device::rounds::tables::RoundLaunch;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Threads of a block come in so many.
const WARP: u64 = 32;
/// How long the rest of a call may take after an abort.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// A rank's part of a program on its GPU, ready for calls one after the other.
#[derive(Debug)]
pub struct NcclRounds {
    pub(super) plan: RoundPlan,
    kernel: CudaFunction,
    threads: u32,
    /// Where its memory was made, and is given back.
    pub(super) own: Arc<CudaStream>,
    pub(super) tables: CudaSlice<u8>,
    scratch: CudaSlice<u8>,
    inboxes: CudaSlice<u8>,
    launches: Vec<RoundLaunch>,
    /// For messages that the kernel moves.
    pub(super) region: Option<Arc<DomainRegion>>,
    /// For results, where the caller's place for them overlaps its input.
    staging: Option<CudaSlice<u8>>,
    /// Input and output that the tables have now.
    pub(super) caller: [u64; 2],
    /// After the work of all calls so far.
    pub(super) done: Arc<CudaEvent>,
}

impl NcclRounds {
    /// Allocates the memory of a plan. Blocks of the kernel have so many threads, at most 512. `region` is for a plan that moves
    /// messages in a domain.
    ///
    /// # Errors
    /// [`NcclError::Gpu`]; [`NcclError::Unfit`] if such a plan has no region.
    pub fn new(
        gpu: &GpuDevice,
        plan: RoundPlan,
        threads: u32,
        region: Option<Arc<DomainRegion>>,
    ) -> Result<Self, NcclError> {
        if plan.mapped_needs().is_some() && region.is_none() {
            return Err(NcclError::Unfit { why: "the plan has no mapped memory".to_owned() });
        }
        let copying = GpuError::of_driver("copying tables to the GPU");
        gpu.bind()?;
        let _relaxed = RelaxedCapture::begin()?;
        let (kernel, _) = gpu.kernel(plan.dtype(), threads)?;
        let own = gpu.stream()?;
        let memory = |bytes: u64| {
            own.alloc_zeros::<u8>((bytes as usize).max(16)).map_err(GpuError::of_driver("allocating memory"))
        };
        let [_, _, scratch, inboxes] = plan.buffer_bytes();
        let (scratch, inboxes) = (memory(scratch)?, memory(inboxes)?);
        let mut tables = memory(plan.table_bytes())?;
        let address = |memory: &CudaSlice<u8>| memory.device_ptr(&own).0;
        let buffers = [0, 0, address(&scratch), address(&inboxes)];
        let bytes = plan.tables(address(&tables), buffers, region.as_ref().map(|region| region.addresses()));
        own.memcpy_htod(&bytes, &mut tables).map_err(&copying)?;
        let done = Arc::new(own.record_event(None).map_err(&copying)?);
        own.synchronize().map_err(&copying)?;
        let launches = plan.launches();
        let (staging, caller) = (None, [0; 2]);
        Ok(Self { plan, kernel, threads, own, tables, scratch, inboxes, launches, region, staging, caller, done })
    }

    /// The plan.
    pub fn plan(&self) -> &RoundPlan {
        &self.plan
    }

    /// The address of memory for results.
    pub(super) fn staging(&mut self) -> Result<u64, NcclError> {
        let memory = match self.staging.take() {
            Some(memory) => memory,
            None => {
                let _relaxed = RelaxedCapture::begin()?;
                let bytes = (self.plan.buffer_bytes()[1] as usize).max(16);
                let made = self.own.alloc_zeros::<u8>(bytes).map_err(GpuError::of_driver("allocating memory"))?;
                self.own.synchronize().map_err(GpuError::of_driver("allocating memory"))?;
                made
            }
        };
        Ok(self.staging.insert(memory).device_ptr(&self.own).0)
    }

    /// Puts a call into a stream, and waits for nothing. What goes wrong later, NCCL says to whoever asks about the communicator.
    ///
    /// # Errors
    /// [`NcclError`] if the driver or NCCL refuses something.
    ///
    /// # Safety
    /// `stream` is one of this GPU. `buffers` are addresses of input and output of this GPU, as long as the plan says, and stay valid
    /// until the stream has done the work; in place both are the same.
    pub unsafe fn enqueue(
        &mut self,
        comm: &mut NcclCommunicator,
        gpu: &GpuDevice,
        stream: *mut c_void,
        buffers: [u64; 2],
    ) -> Result<(), NcclError> {
        // SAFETY: the caller promises it.
        let stream = unsafe { gpu.borrowed_stream(stream) };
        self.put_in_time(comm, &stream, buffers, NcclDeadline::after(Duration::MAX))
    }

    /// The same for a program that is not in place, where the caller's input and output overlap: the results come from elsewhere.
    ///
    /// # Errors
    /// As for [`Self::enqueue`].
    ///
    /// # Safety
    /// As for [`Self::enqueue`].
    pub unsafe fn enqueue_staged(
        &mut self,
        comm: &mut NcclCommunicator,
        gpu: &GpuDevice,
        stream: *mut c_void,
        [input, output]: [u64; 2],
    ) -> Result<(), NcclError> {
        gpu.bind()?;
        let staging = self.staging()?;
        // SAFETY: the caller promises it.
        let borrowed = unsafe { gpu.borrowed_stream(stream) };
        let put = self.put(comm, &borrowed, [input, staging], None, NcclDeadline::after(Duration::MAX));
        let copied = put.and_then(|()| {
            // SAFETY: both are as long as the results, and the stream has used the input before.
            Ok(unsafe { gpu.copy(stream, output, staging, self.plan.buffer_bytes()[1] as usize) }?)
        });
        self.finish(comm, &borrowed, copied)
    }

    /// One call, which may take so long; nothing uses the buffers when this returns. `buffers` are addresses of input and output.
    ///
    /// # Errors
    /// [`NcclError::Round`] if a rank is gone, fails or is late. Then the communicator is aborted on this rank, and each other rank finds
    /// out in the same way.
    ///
    /// # Safety
    /// As for [`Self::enqueue`].
    pub unsafe fn call(
        &mut self,
        comm: &mut NcclCommunicator,
        buffers: [u64; 2],
        limit: Duration,
    ) -> Result<(), NcclError> {
        let deadline = NcclDeadline::after(limit);
        let stream = self.own.clone();
        comm.fault = self.fault();
        let mut reached = RoundEnds::default();
        let put = self.put(comm, &stream, buffers, Some(&mut reached), deadline);
        let put = self.finish(comm, &stream, put);
        let outcome = put.and_then(|()| self.watch(comm, &mut reached, deadline)).and_then(|()| self.check());
        comm.fault = None;
        if outcome.is_err() {
            self.drain(deadline);
        }
        outcome.map_err(|error| self.explained(error))
    }

    /// Puts a call into a stream in time, for whoever waits for the stream. The buffers are as for [`Self::enqueue`].
    pub(super) fn put_in_time(
        &mut self,
        comm: &mut NcclCommunicator,
        stream: &Arc<CudaStream>,
        buffers: [u64; 2],
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        let put = self.put(comm, stream, buffers, None, deadline);
        self.finish(comm, stream, put)
    }

    /// What ends kernels that wait for other ranks, if there are any.
    pub(super) fn fault(&self) -> Option<Arc<PeerFault>> {
        self.region.as_ref().map(|region| region.fault().clone())
    }

    /// Whether calls that have ended have done their work: a kernel ends too where a rank is gone.
    pub(super) fn check(&self) -> Result<(), NcclError> {
        self.region.as_ref().map_or(Ok(()), |region| region.check())
    }

    fn put(
        &mut self,
        comm: &mut NcclCommunicator,
        stream: &Arc<CudaStream>,
        buffers: [u64; 2],
        reached: Option<&mut RoundEnds>,
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        comm.check()?;
        self.check()?;
        let launching = GpuError::of_driver("putting a call into a stream");
        if let Some(region) = &self.region {
            region.fault().note_call(false);
            stream.wait(region.fault().done(false)).map_err(&launching)?;
        }
        // The call before this one may be in another stream, and uses the same memory.
        stream.wait(&self.done).map_err(&launching)?;
        if let Some(before) = comm.done.as_ref().filter(|before| !Arc::ptr_eq(before, &self.done)) {
            stream.wait(before).map_err(&launching)?;
        }
        if buffers != self.caller {
            let words = buffers.map(u64::to_le_bytes).concat();
            let tables = self.tables.device_ptr(stream).0;
            // SAFETY: the tables begin with these words. The driver has taken the bytes when the function returns, as they are few
            // and not in pinned memory.
            unsafe { result::memcpy_htod_async(tables, &words, stream.cu_stream()) }.map_err(&launching)?;
            self.caller = buffers;
        }
        self.put_rounds(comm, stream, reached, deadline)
    }

    /// The rounds themselves, for the addresses that the tables have now.
    pub(super) fn put_rounds(
        &mut self,
        comm: &mut NcclCommunicator,
        stream: &Arc<CudaStream>,
        mut reached: Option<&mut RoundEnds>,
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        for round in 0..self.launches.len() {
            if comm.is_stopped() {
                return Err(NcclError::Aborted);
            }
            self.launch(stream, round)?;
            if round < self.plan.exchanges().len() {
                self.exchange(comm, stream.cu_stream(), (round, reached.as_deref_mut()), deadline)?;
            }
            if let Some(reached) = &mut reached {
                reached
                    .ends
                    .push(stream.record_event(None).map_err(GpuError::of_driver("putting a call into a stream"))?);
            }
        }
        Ok(())
    }

    /// All that a call needs is in the stream now, or `put` has failed before. What was put there before an error uses the memory of this
    /// value as well, and other ranks may wait in their kernels for what was not.
    fn finish(
        &mut self,
        comm: &mut NcclCommunicator,
        stream: &CudaStream,
        put: Result<(), NcclError>,
    ) -> Result<(), NcclError> {
        if let Some(region) = self.region.as_ref().filter(|_| put.is_err()) {
            region.fault().note_cut();
        }
        put.and(self.note_done(comm, stream))
    }

    fn note_done(&mut self, comm: &mut NcclCommunicator, stream: &CudaStream) -> Result<(), NcclError> {
        let done = stream.record_event(None).map_err(GpuError::of_driver("putting a call into a stream"))?;
        self.done = Arc::new(done);
        comm.done = Some(self.done.clone());
        let Some(region) = &self.region else { return Ok(()) };
        let noted = region.fault().done(false).record(stream);
        noted.map_err(GpuError::of_driver("putting a call into a stream"))?;
        // Since this was looked at first, calls may have been ended, and this one with them.
        if region.fault().confirm_call() { Ok(()) } else { region.check() }
    }

    /// The local work of a stage.
    fn launch(&self, stream: &Arc<CudaStream>, stage: usize) -> Result<(), NcclError> {
        let RoundLaunch { begin, blocks, waits, vectors } = self.launches[stage];
        if blocks == 0 {
            return Ok(());
        }
        let threads = vectors.next_multiple_of(WARP).clamp(1, u64::from(self.threads)) as u32;
        let shape = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        let grid = self.tables.device_ptr(stream).0 + begin;
        let mut builder = stream.launch_builder(&self.kernel);
        builder.arg(&grid);
        // SAFETY: the kernel takes the address of its blocks. The tables are those of the plan, and what they name is the memory of
        // this value, of its region and of the caller. Blocks that wait for those of other ranks are on the GPU at the same time.
        let launched = unsafe { if waits { builder.launch_cooperative(shape) } else { builder.launch(shape) } };
        launched.map(drop).map_err(GpuError::of_driver("launching the kernel"))?;
        Ok(())
    }

    /// The messages of a round, as one group. `before` are the ends of the rounds before it, where somebody watches them.
    fn exchange(
        &mut self,
        comm: &mut NcclCommunicator,
        stream: CUstream,
        (round, mut before): (usize, Option<&mut RoundEnds>),
        deadline: NcclDeadline,
    ) -> Result<(), NcclError> {
        let messages = &self.plan.exchanges()[round];
        if messages.is_empty() {
            return Ok(());
        }
        let own = |memory: &CudaSlice<u8>| memory.device_ptr(&self.own).0;
        let buffers = [self.caller[0], self.caller[1], own(&self.scratch), own(&self.inboxes)];
        let (dtype, handle) = (type_number(self.plan.dtype()), comm.handle);
        let mut code = SUCCESS;
        if let Some(before) = &mut before {
            before.look(comm);
        }
        // SAFETY: it takes nothing.
        comm.checked("beginning a group", unsafe { (comm.calls.group_start)() })?;
        for message in messages {
            let at = (buffers[message.buffer] + message.offset) as *mut c_void;
            let (count, peer) = (message.elements as usize, message.peer.0 as c_int);
            let given = match message.is_sent {
                // SAFETY: the plan's messages lie inside of these buffers.
                true => unsafe { (comm.calls.send)(at, count, dtype, peer, handle, stream.cast()) },
                // SAFETY: as above.
                false => unsafe { (comm.calls.receive)(at, count, dtype, peer, handle, stream.cast()) },
            };
            if code == SUCCESS && given != IN_PROGRESS {
                code = given;
            }
        }
        // SAFETY: it takes nothing.
        let ended = unsafe { (comm.calls.group_end)() };
        if code == SUCCESS {
            code = ended;
        }
        match code {
            SUCCESS => Ok(()),
            // It is in the stream only when NCCL says so.
            IN_PROGRESS => self.settled(comm, (round, before), deadline),
            // What is wrong may be wrong in a round before this one.
            code => Err(self.failed(comm, before.map_or(round, |before| before.done), code)),
        }
    }
}

impl Drop for NcclRounds {
    /// The memory is given back in `own`, after all calls.
    fn drop(&mut self) {
        let _ = self.own.wait(&self.done);
    }
}
