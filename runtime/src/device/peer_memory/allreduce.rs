//! One rank of an AllReduce on registered buffers, with a GPU and a launch of its own.
//!
//! The principal type is [`GpuRankAllReduce`], which is for one rank of several processes what [`GpuAllReduce`] is for all ranks on
//! one GPU.
//!
//! [`GpuAllReduce`]: crate::device::cuda::GpuAllReduce

use super::error::PeerMemoryError;
use super::gather::{PeerGather, RankFailure, meet};
use super::memory::{PeerMemory, PeerTerms, PeerWay, clear};
use crate::device::cuda::{GpuBuffer, GpuCalls, GpuDevice, GpuError, GpuLaunch, bytes_of, memory};
use crate::device::peers::{PeerAddresses, PeerAllReduce, PeerWait};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use topology::Rank;

/// What lies in the memory of a rank begins at a multiple of it.
const ALIGN: usize = 256;
/// Between two looks at whether all ranks are there.
const LOOK: Duration = Duration::from_millis(1);
/// How long a call may go on without a rank that is gone.
const GRACE: Duration = Duration::from_millis(200);

/// A rank's part of the calls. Its input and output are registered when this value is made, and stay so as long as it lives.
///
/// The memory of other ranks must not be used after they have closed theirs, so all ranks do as many calls.
pub struct GpuRankAllReduce {
    plan: PeerAllReduce,
    /// None once a kernel may use it, and the memory, until the process ends.
    work: Option<RankWork>,
    poll_limit: u64,
    /// The other ranks' memory is unmapped last.
    memory: PeerMemory,
}

/// What calls use on this rank's GPU only.
struct RankWork {
    calls: GpuCalls,
    private: CudaSlice<u8>,
}

impl fmt::Debug for GpuRankAllReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuRankAllReduce").field("plan", &self.plan).field("memory", &self.memory).finish()
    }
}

/// Where flags, input and output lie in the memory of each rank, and how long it is.
fn layout(plan: &PeerAllReduce) -> [usize; 4] {
    let (flags, buffer) = (plan.needs().shared_bytes as usize, plan.buffer_bytes() as usize);
    let input = flags.next_multiple_of(ALIGN);
    let output = if plan.call().in_place { input } else { (input + buffer).next_multiple_of(ALIGN) };
    [0, input, output, (output + buffer).next_multiple_of(ALIGN)]
}

/// A number of the call, for ranks to compare.
fn number_of(plan: &PeerAllReduce) -> u64 {
    // [FNV-1a: Fowler, Noll, Vo]
    let text = format!("{:?}", plan.call());
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl GpuRankAllReduce {
    /// Shares memory with the ranks that gather, as many as the call has. Blocks have `threads` threads, at most 512. A wait of
    /// the kernel looks at most `poll_limit` times. All ranks call it, and wait for the sockets of each other at most for `limit`.
    ///
    /// # Errors
    /// [`PeerMemoryError`], on all ranks: also if the blocks do not fit on the GPU of one rank at the same time.
    pub fn new(
        gpu: &GpuDevice,
        plan: PeerAllReduce,
        gather: &mut dyn PeerGather,
        (threads, poll_limit): (u32, u64),
        limit: Duration,
    ) -> Result<Self, PeerMemoryError> {
        let (call, needs) = (*plan.call(), plan.needs());
        let made = || -> Result<RankWork, GpuError> {
            let kernel = gpu.allreduce_kernel(call.dtype, threads)?;
            let calls = GpuCalls::new(gpu, kernel, needs.blocks, threads)?;
            let private = memory(calls.stream(), needs.private_bytes as usize)?;
            Ok(RankWork { calls, private })
        };
        let made = made();
        let mut ready = made.as_ref().map(drop).map_err(ToString::to_string);
        if gather.ranks() != call.ranks {
            ready = Err(format!("the call has {} ranks, and {} meet", call.ranks, gather.ranks()));
        }
        let terms = PeerTerms { bytes: layout(&plan)[3], number: number_of(&plan), ready, machine: None, limit };
        let memory = PeerMemory::new(gpu, gather, &terms)?;
        let mut made = Self { plan, work: Some(made?), poll_limit, memory };
        made.reset(gpu, gather)?;
        Ok(made)
    }

    /// Prepares all memory but the buffers for a first call, also after a call that has failed. All ranks call it, and none begins
    /// before all have.
    ///
    /// # Errors
    /// [`PeerMemoryError::Failed`] on all ranks, [`PeerMemoryError::Gather`].
    pub fn reset(&mut self, gpu: &GpuDevice, gather: &mut dyn PeerGather) -> Result<(), PeerMemoryError> {
        // Nobody raises a flag of the calls before any more.
        let ended = self.stream().and_then(|stream| stream.synchronize().map_err(GpuError::of_driver("ending a call")));
        let ended = ended.map_err(|error| RankFailure::Said(error.to_string()));
        meet(gather, "ending the calls before", &ended, &[])?;
        let prepared = self.prepare(gpu).map_err(|error| RankFailure::Said(error.to_string()));
        meet(gather, "preparing a first call", &prepared, &[])?;
        self.memory.sockets().set_orderly(true);
        Ok(())
    }

    fn stream(&self) -> Result<&Arc<CudaStream>, GpuError> {
        self.work.as_ref().map(|work| work.calls.stream()).ok_or(GpuError::Broken)
    }

    fn prepare(&mut self, gpu: &GpuDevice) -> Result<(), GpuError> {
        let copying = GpuError::of_driver("copying tables to the GPU");
        let (rank, [flags, input, output, _]) = (self.memory.rank(), layout(&self.plan));
        let RankWork { calls, private } = self.work.as_mut().ok_or(GpuError::Broken)?;
        let stream = calls.stream().clone();
        let ranks = self.memory.addresses();
        let all = |offset: usize| ranks.iter().map(|address| address + offset as u64).collect();
        let at = PeerAddresses {
            input: all(input),
            output: all(output),
            shared: all(flags),
            private: private.device_ptr(&stream).0,
            abort: calls.abort(),
            poll_limit: self.poll_limit,
        };
        let tables = self.plan.tables(rank, &at);
        clear(gpu, ranks[rank.index()] + flags as u64, self.plan.needs().shared_bytes as usize)?;
        stream.memset_zeros(private).map_err(&copying)?;
        stream.memcpy_htod(&tables.private, private).map_err(&copying)?;
        // SAFETY: the tables are those of the plan for these addresses, whose memory this value has or has mapped.
        unsafe { calls.prepare(&tables.blocks) }
    }

    /// Which rank this is.
    pub fn rank(&self) -> Rank {
        self.memory.rank()
    }

    /// How memory is shared with the other ranks.
    pub fn way(&self) -> PeerWay {
        self.memory.way()
    }

    /// Where a buffer of this rank is, and its bytes.
    fn buffer(&self, buffer: GpuBuffer) -> (u64, usize) {
        let [_, input, output, _] = layout(&self.plan);
        let offset = if buffer == GpuBuffer::Input { input } else { output };
        (self.memory.address(self.memory.rank()) + offset as u64, self.plan.buffer_bytes() as usize)
    }

    /// Writes a buffer of this rank. In place both names mean the same memory.
    ///
    /// # Errors
    /// [`GpuError::Length`], [`GpuError::Driver`], [`GpuError::Broken`] after [`GpuError::Stuck`].
    pub fn write(&mut self, buffer: GpuBuffer, bytes: &[u8]) -> Result<(), GpuError> {
        let ((to, has), copying) = (self.buffer(buffer), GpuError::of_driver("copying to the GPU"));
        if bytes.len() != has {
            return Err(GpuError::Length { rank: self.rank(), has, given: bytes.len() });
        }
        let stream = self.stream()?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(&copying)?;
        // SAFETY: the buffer has so many bytes, and the stream is waited for.
        unsafe { result::memcpy_htod_async(to, bytes, stream.cu_stream()) }.map_err(&copying)?;
        stream.synchronize().map_err(&copying)
    }

    /// What lies in a buffer of this rank.
    ///
    /// # Errors
    /// [`GpuError::Driver`], [`GpuError::Broken`] after [`GpuError::Stuck`].
    pub fn read(&self, buffer: GpuBuffer) -> Result<Vec<u8>, GpuError> {
        let ((from, has), copying) = (self.buffer(buffer), GpuError::of_driver("copying from the GPU"));
        let (mut bytes, stream) = (vec![0; has], self.stream()?);
        if has > 0 {
            stream.context().bind_to_thread().map_err(&copying)?;
            // SAFETY: the buffer has so many bytes, and the stream is waited for.
            unsafe { result::memcpy_dtoh_async(&mut bytes, from, stream.cu_stream()) }.map_err(&copying)?;
            stream.synchronize().map_err(&copying)?;
        }
        Ok(bytes)
    }

    /// This rank's part of one call, which may take so long.
    ///
    /// # Errors
    /// [`GpuError::PeerMissing`] and [`GpuError::PeerGone`] name a rank that did not come; [`GpuError::Late`]. After each of them
    /// [`Self::reset`] is needed, on all ranks. [`GpuError::Driver`].
    pub fn call(&mut self, limit: Duration) -> Result<(), GpuError> {
        self.repeat(1, GpuLaunch::Direct, limit).map(drop)
    }

    /// So many calls one after the other with the same buffers, which together may take so long. How long they took on this GPU, without
    /// the time before the first one began.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn repeat(&mut self, calls: u32, launch: GpuLaunch, limit: Duration) -> Result<Duration, GpuError> {
        let (rank, memory, mut gone) = (self.memory.rank(), &self.memory, None);
        let mut looked = Instant::now();
        let mut stop = || {
            if gone.is_none() && looked.elapsed() > LOOK {
                looked = Instant::now();
                gone = memory.gone().map(|peer| (peer, looked));
            }
            // It may have done its part of the calls before.
            gone.is_some_and(|(_, since)| since.elapsed() > GRACE)
        };
        let work = self.work.as_mut().ok_or(GpuError::Broken)?;
        let outcome = work.calls.repeat_unless(calls, launch, limit, &mut stop);
        // Others may wait for this rank in a call that has failed here.
        memory.sockets().set_orderly(outcome.as_ref().is_ok_and(Option::is_some));
        let late = match outcome {
            Ok(Some(time)) => return Ok(time),
            Ok(None) => GpuError::Broken,
            Err(late @ GpuError::Late { .. }) => late,
            Err(GpuError::Stuck { limit }) => {
                // The kernel may use all memory until the process ends.
                self.memory.keep();
                std::mem::forget(self.work.take());
                return Err(GpuError::Stuck { limit });
            }
            Err(error) => return Err(error),
        };
        if let Some((peer, _)) = gone {
            return Err(GpuError::PeerGone { rank, peer });
        }
        let waits = self.plan.waits(rank, &bytes_of(work.calls.stream(), &work.private)?);
        Err(PeerWait::decisive(&waits).map_or(late, GpuError::PeerMissing))
    }

    /// Unmaps the memory of others, and frees this rank's own when all ranks have done so.
    ///
    /// # Errors
    /// As for [`PeerMemory::close`].
    pub fn close(self, gather: &mut dyn PeerGather) -> Result<(), PeerMemoryError> {
        let Self { work, memory, .. } = self;
        let Some(work) = work else { return Err(GpuError::Broken.into()) };
        let ended = work.calls.stream().synchronize().map_err(GpuError::of_driver("ending the calls"));
        drop(work);
        memory.close(gather)?;
        Ok(ended?)
    }
}
