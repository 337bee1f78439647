//! AllReduce of a communicator by one kernel, over memory that its ranks have mapped.
//!
//! The principal type is [`StagedAllReduce`]. NCCL's callers give any buffers, which nobody has mapped. So every rank has a place for
//! inputs and one for outputs in mapped memory. A call copies the caller's input there, launches the kernel, and copies the result
//! from there, all in the caller's stream. One place is enough: when the kernel ends, no rank reads it any more (decision 112).

use super::communicator::NcclCommunicator;
use super::error::NcclError;
use super::gather::NcclGather;
use super::watched::WatchedMemory;
use crate::device::cuda::{GpuDevice, GpuError, RelaxedCapture, bytes_of, memory};
use crate::device::peer_memory::{PeerFault, PeerMemory, PeerTerms};
use crate::device::peers::{PeerAddresses, PeerAlgorithm, PeerAllReduce, PeerCall, PeerWait};
use crate::dtype::DType;
use cudarc::driver::sys::{CUevent_record_flags, CUevent_wait_flags, cuEventRecordWithFlags};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result};
use schedule::ReduceOp;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// What a call needs of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StagedCall {
    /// One-shot or two-shot.
    pub algorithm: PeerAlgorithm,
    /// Elements of each rank.
    pub count: u64,
    /// Their type.
    pub dtype: DType,
    /// The reduction.
    pub op: ReduceOp,
}

impl StagedCall {
    /// The bytes of an input.
    pub(super) fn bytes(&self) -> usize {
        self.count as usize * self.dtype.size()
    }
}

/// What calls will come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagedTerms {
    /// The bytes of the largest input.
    pub bytes: usize,
    /// The types of elements.
    pub dtypes: Vec<DType>,
    /// How long each step of sharing memory may take.
    pub limit: Duration,
}

/// How many blocks calls may have. Each number has flags and counters of its own.
const BLOCKS: [u32; 5] = [1, 2, 4, 8, 16];
/// Threads of a block, and the bytes that one is for.
const MOST_THREADS: u32 = 512;
const THREAD_BYTES: u64 = 16;
/// Parts of the memory begin at multiples of it.
const ALIGN: usize = 256;
/// How many tables are kept. Each has a few thousand bytes.
const MOST_GRIDS: usize = 1024;
/// The sockets get this part of the time for gathering: ranks whose sockets are late have to meet those that wait for them.
const SOCKETS: u32 = 12;

/// The largest input that is copied to mapped memory.
pub const MOST_STAGED_BYTES: usize = 64 << 20;

/// The tables of a call on the GPU.
#[derive(Debug)]
struct StagedGrid {
    blocks: CudaSlice<u8>,
    /// A graph has recorded it, and may be launched whenever its owner likes.
    is_recorded: bool,
}

/// A rank's part of all such calls of a communicator.
#[derive(Debug)]
pub struct StagedAllReduce {
    kernels: BTreeMap<DType, CudaFunction>,
    grids: BTreeMap<StagedCall, StagedGrid>,
    private: CudaSlice<u8>,
    /// Where its memory was made, and is given back.
    own: Arc<CudaStream>,
    ranks: usize,
    bytes: usize,
    watched: WatchedMemory,
}

/// How a call is launched: which of [`BLOCKS`], and the threads of a block.
fn shape(bytes: u64) -> (usize, u32) {
    let threads = (bytes / THREAD_BYTES).next_power_of_two().clamp(32, u64::from(MOST_THREADS)) as u32;
    let wanted = bytes / (THREAD_BYTES * u64::from(MOST_THREADS));
    (BLOCKS.iter().rposition(|blocks| u64::from(*blocks) <= wanted).unwrap_or(0), threads)
}

fn plan_of(call: &StagedCall, ranks: usize, blocks: u32) -> Result<PeerAllReduce, NcclError> {
    let StagedCall { algorithm, count, dtype, op } = *call;
    let call = PeerCall { algorithm, ranks, count, dtype, op, in_place: false, blocks };
    PeerAllReduce::new(call).map_err(|why| NcclError::Unfit { why: why.to_string() })
}

/// Where the flags of each number of blocks lie in mapped memory, then inputs, outputs, and the end.
fn shared_layout(ranks: usize, bytes: usize) -> Result<([usize; 5], [usize; 3]), NcclError> {
    let (mut at, mut flags) = (0, [0; 5]);
    for (place, blocks) in flags.iter_mut().zip(BLOCKS) {
        *place = at;
        at = (at + needs(ranks, blocks)?.0).next_multiple_of(ALIGN);
    }
    let output = (at + bytes).next_multiple_of(ALIGN);
    Ok((flags, [at, output, output + bytes]))
}

/// Where the own memory of each number of blocks begins, and the end.
fn private_layout(ranks: usize) -> Result<([usize; 5], usize), NcclError> {
    let (mut at, mut places) = (0, [0; 5]);
    for (place, blocks) in places.iter_mut().zip(BLOCKS) {
        *place = at;
        at = (at + needs(ranks, blocks)?.1).next_multiple_of(ALIGN);
    }
    Ok((places, at))
}

/// The bytes of flags and of own memory that calls with so many blocks need, however long they are.
fn needs(ranks: usize, blocks: u32) -> Result<(usize, usize), NcclError> {
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    let call = StagedCall { algorithm: PeerAlgorithm::OneShot, count: 1, dtype, op };
    let needs = plan_of(&call, ranks, blocks)?.needs();
    Ok((needs.shared_bytes as usize, needs.private_bytes as usize))
}

/// What a rank needs before it shares memory.
struct StagedParts {
    kernels: BTreeMap<DType, CudaFunction>,
    private: CudaSlice<u8>,
    own: Arc<CudaStream>,
    fault: PeerFault,
}

impl StagedParts {
    fn new(gpu: &GpuDevice, dtypes: &[DType], private_bytes: usize) -> Result<Self, GpuError> {
        let mut kernels = BTreeMap::new();
        for &dtype in dtypes {
            let (kernel, room) = gpu.allreduce_kernel(dtype, MOST_THREADS)?;
            let blocks = BLOCKS[BLOCKS.len() - 1];
            if room < blocks {
                return Err(GpuError::NotResident { blocks, threads: MOST_THREADS, room });
            }
            kernels.insert(dtype, kernel);
        }
        let own = gpu.stream()?;
        let private = memory(&own, private_bytes)?;
        own.synchronize().map_err(GpuError::of_driver("allocating memory"))?;
        Ok(Self { kernels, private, own, fault: PeerFault::new(gpu)? })
    }
}

impl StagedAllReduce {
    /// Shares memory among all ranks of a communicator. All ranks call it with the same terms, and come to the same.
    ///
    /// # Errors
    /// [`NcclError::Unfit`] and [`NcclError::Peers`]: why not, the same on all ranks, unless it is [`PeerMemoryError::Gather`].
    pub fn new(gpu: &GpuDevice, comm: &mut NcclCommunicator, terms: &StagedTerms) -> Result<Self, NcclError> {
        let (ranks, bytes) = (comm.ranks(), terms.bytes);
        if bytes > MOST_STAGED_BYTES {
            return Err(NcclError::Unfit { why: format!("{bytes} bytes are too many") });
        }
        let (_, [.., end]) = shared_layout(ranks, bytes)?;
        let parts = StagedParts::new(gpu, &terms.dtypes, private_layout(ranks)?.1);
        let ready = parts.as_ref().map(drop).map_err(ToString::to_string);
        let number = terms.dtypes.iter().fold(1, |number: u64, dtype| number << 4 | *dtype as u64);
        let asked = PeerTerms { bytes: end, number, ready, machine: None, limit: terms.limit / SOCKETS };
        let memory = PeerMemory::new(gpu, &mut NcclGather { comm, gpu, limit: terms.limit }, &asked)?;
        let StagedParts { kernels, private, own, fault } = parts?;
        let (grids, watched) = (BTreeMap::new(), WatchedMemory::new(memory, fault));
        Ok(Self { kernels, grids, private, own, ranks, bytes, watched })
    }

    /// What ends its calls.
    pub fn fault(&self) -> &Arc<PeerFault> {
        self.watched.fault()
    }

    /// Whether calls that have ended have done their work.
    ///
    /// # Errors
    /// [`GpuError::PeerGone`], [`NcclError::Aborted`].
    pub(super) fn check(&self) -> Result<(), NcclError> {
        self.watched.check()
    }

    /// Which rank has not come to a call that was ended, and is done now. None: this one has waited for nobody in vain.
    pub(super) fn missing(&self, call: &StagedCall) -> Option<GpuError> {
        if let Some(gone) = self.watched.missing() {
            return Some(gone);
        }
        let rank = self.watched.memory().rank();
        let class = shape(call.bytes() as u64).0;
        let plan = plan_of(call, self.ranks, BLOCKS[class]).ok()?;
        let (begin, private) = (private_layout(self.ranks).ok()?.0[class], bytes_of(&self.own, &self.private).ok()?);
        let waits = plan.waits(rank, private.get(begin..)?);
        PeerWait::decisive(&waits).map(GpuError::PeerMissing)
    }

    /// The tables of a call, and how it is launched.
    fn grid(&mut self, call: &StagedCall, is_recorded: bool) -> Result<(u64, LaunchConfig), NcclError> {
        let (class, threads) = shape(call.bytes() as u64);
        let launch = LaunchConfig { grid_dim: (BLOCKS[class], 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        if !self.grids.contains_key(call) {
            let copying = GpuError::of_driver("copying tables to the GPU");
            let _relaxed = RelaxedCapture::begin()?;
            if self.grids.len() >= MOST_GRIDS {
                // Their memory is given back when their calls are done.
                self.own.wait(self.fault().done(false)).map_err(&copying)?;
                self.grids.retain(|_, grid| grid.is_recorded);
            }
            let (flags, [input, output, _]) = shared_layout(self.ranks, self.bytes)?;
            let ranks = self.watched.memory().addresses();
            let all = |offset: usize| ranks.iter().map(|address| address + offset as u64).collect();
            let private = self.private.device_ptr(&self.own).0 + private_layout(self.ranks)?.0[class] as u64;
            let at = PeerAddresses {
                input: all(input),
                output: all(output),
                shared: all(flags[class]),
                private,
                abort: self.fault().abort(),
                poll_limit: u64::MAX,
            };
            let tables = plan_of(call, self.ranks, BLOCKS[class])?.tables(self.watched.memory().rank(), &at);
            let blocks = self.own.clone_htod(&tables.blocks).map_err(&copying)?;
            self.own.synchronize().map_err(&copying)?;
            self.grids.insert(*call, StagedGrid { blocks, is_recorded });
        }
        let own = &self.own;
        let found = self.grids.get_mut(call).map(|grid| {
            grid.is_recorded |= is_recorded;
            grid.blocks.device_ptr(own).0
        });
        Ok((found.unwrap_or(0), launch))
    }

    /// Puts a call into a stream, or into the graph that the stream records, and waits for nothing.
    ///
    /// # Errors
    /// [`GpuError::PeerGone`], [`NcclError::Aborted`], [`NcclError::Gpu`].
    ///
    /// # Safety
    /// `stream` is one of this GPU. `buffers` are addresses of input and output of this GPU, as long as the call says, and stay valid
    /// until the stream has done the work, or the graph is gone. They are the same, or do not overlap.
    pub unsafe fn enqueue(
        &mut self,
        comm: &mut NcclCommunicator,
        gpu: &GpuDevice,
        stream: *mut c_void,
        call: &StagedCall,
        [input, output]: [u64; 2],
    ) -> Result<(), NcclError> {
        comm.check()?;
        gpu.bind()?;
        self.check()?;
        let bytes = call.bytes();
        if bytes > self.bytes {
            return Err(NcclError::Aborted);
        }
        // SAFETY: the caller promises it.
        let (is_recorded, stream) = unsafe { (gpu.is_captured(stream)?, gpu.borrowed_stream(stream)) };
        let (_, [inputs, outputs, _]) = shared_layout(self.ranks, self.bytes)?;
        let memory = self.watched.memory();
        let own = memory.address(memory.rank());
        let (grid, launch) = self.grid(call, is_recorded)?;
        let kernel = self.kernels.get(&call.dtype).cloned().ok_or(NcclError::Aborted)?;
        let putting = GpuError::of_driver("putting a call into a stream");
        self.fault().note_call(is_recorded);
        self.begin(comm, &stream, is_recorded)?;
        let put = || -> Result<(), GpuError> {
            // SAFETY: the places are inside of this rank's memory, and the caller's are as long as the call says.
            unsafe { result::memcpy_dtod_async(own + inputs as u64, input, bytes, stream.cu_stream()) }
                .map_err(&putting)?;
            // SAFETY: the kernel takes the address of its blocks; what they name is memory of this value, or mapped by it.
            let launched = unsafe { stream.launch_builder(&kernel).arg(&grid).launch_cooperative(launch) };
            launched.map(drop).map_err(GpuError::of_driver("launching the kernel"))?;
            // SAFETY: as above.
            unsafe { result::memcpy_dtod_async(output, own + outputs as u64, bytes, stream.cu_stream()) }
                .map_err(&putting)
        };
        let put = put();
        if put.is_err() {
            self.fault().note_cut();
        }
        // Also what was put there before an error uses the memory of this value.
        let finished = self.finish(comm, &stream, is_recorded);
        put?;
        finished?;
        // Since this was looked at first, calls may have been ended, and this one with them.
        match self.fault().confirm_call() {
            true => Ok(()),
            false => Err(self.watched.missing().map_or(NcclError::Aborted, NcclError::Gpu)),
        }
    }

    /// Calls of a communicator follow each other in all streams, and in all graphs.
    fn begin(&self, comm: &NcclCommunicator, stream: &Arc<CudaStream>, is_recorded: bool) -> Result<(), GpuError> {
        let (putting, done) = (GpuError::of_driver("putting a call into a stream"), self.fault().done(is_recorded));
        if is_recorded {
            comm.recorded.follow(stream)?;
            let external = CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL;
            // SAFETY: the event lives as long as this value, and so as long as the graph.
            return unsafe { result::stream::wait_event(stream.cu_stream(), done.cu_event(), external) }
                .map_err(&putting);
        }
        stream.wait(done).map_err(&putting)?;
        comm.done
            .iter()
            .filter(|before| !Arc::ptr_eq(before, done))
            .try_for_each(|before| stream.wait(before))
            .map_err(putting)
    }

    fn finish(
        &self,
        comm: &mut NcclCommunicator,
        stream: &Arc<CudaStream>,
        is_recorded: bool,
    ) -> Result<(), NcclError> {
        let (putting, done) = (GpuError::of_driver("putting a call into a stream"), self.fault().done(is_recorded));
        if is_recorded {
            let external = CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
            // SAFETY: as above.
            let recorded = unsafe { cuEventRecordWithFlags(done.cu_event(), stream.cu_stream(), external) };
            recorded.result().map_err(putting)?;
            return Ok(comm.recorded.note(stream)?);
        }
        done.record(stream).map_err(putting)?;
        comm.done = Some(done.clone());
        Ok(())
    }
}

impl Drop for StagedAllReduce {
    /// The memory of this rank alone is given back in `own`, after all calls.
    fn drop(&mut self) {
        let _ = [false, true].map(|is_recorded| self.own.wait(self.fault().done(is_recorded)));
    }
}
