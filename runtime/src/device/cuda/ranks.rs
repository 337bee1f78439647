//! All ranks of a plan on one GPU, as one launch.
//!
//! The principal type is [`GpuRanks`]. It shows that plan, kernel and GPU give the right results, where there is only one GPU: the
//! ranks share its memory instead of links, so times say nothing about links.

use super::error::GpuError;
use super::gpu::GpuDevice;
use crate::device::kernel_plan::{KernelAddresses, KernelPlan};
use crate::dtype::DType;
use crate::error::RunResult;
use crate::plan::geometry::Geometry;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaEvent, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use program::{Buffer, Program};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use topology::Rank;

/// How long a call that was told to end may still take.
const GRACE: Duration = Duration::from_secs(5);

/// The buffers of a rank, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuRankBuffers {
    /// The caller's data; not used in place.
    pub input: usize,
    /// Results; in place the caller's data too.
    pub output: usize,
    /// Whether input and output are the same memory.
    pub in_place: bool,
}

impl GpuRankBuffers {
    /// Those of all ranks of a program, for so many elements.
    ///
    /// # Errors
    /// [`RunError::TooLarge`](crate::RunError::TooLarge), [`RunError::Indivisible`](crate::RunError::Indivisible).
    pub fn of(program: &Program, count: u64, dtype: DType) -> RunResult<Vec<Self>> {
        let buffers = (0..program.ranks.len()).map(|index| {
            let geometry = Geometry::new(program, Rank::from_index(index), count, dtype, 1)?;
            let (input, output) = (geometry.buffer_bytes(Buffer::Input), geometry.buffer_bytes(Buffer::Output));
            // In place the program names one buffer only.
            let (input, output) = if program.in_place { (input + output, input + output) } else { (input, output) };
            Ok(Self { input, output, in_place: program.in_place })
        });
        buffers.collect()
    }
}

/// Which buffer of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuBuffer {
    /// The caller's data.
    Input,
    /// Results.
    Output,
}

/// How a call reaches the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuLaunch {
    /// A cooperative launch.
    Direct,
    /// A CUDA graph that has recorded the launch once.
    Graph,
}

/// A graph that has recorded a call.
struct RecordedCall(CudaGraph);

impl fmt::Debug for RecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordedCall").field(&self.0.cu_graph()).finish()
    }
}

/// Memory of a rank on the GPU.
#[derive(Debug)]
struct RankOnGpu {
    /// None in place.
    input: Option<CudaSlice<u8>>,
    output: CudaSlice<u8>,
    private: CudaSlice<u8>,
    shared: CudaSlice<u8>,
}

/// All ranks of a plan on one GPU. Calls follow each other, with the same tables.
#[derive(Debug)]
pub struct GpuRanks {
    plan: KernelPlan,
    kernel: CudaFunction,
    /// All work but the end of a call that is late.
    stream: Arc<CudaStream>,
    urgent: Arc<CudaStream>,
    ranks: Vec<RankOnGpu>,
    lengths: Vec<GpuRankBuffers>,
    /// The descriptions of all blocks.
    grid: CudaSlice<u8>,
    abort: CudaSlice<u32>,
    blocks: u32,
    threads: u32,
    poll_limit: u64,
    recorded: Option<RecordedCall>,
    is_broken: bool,
}

impl GpuRanks {
    /// Allocates the memory of a plan whose elements have this type. Blocks have `threads` threads, at most 512. A wait of the kernel
    /// looks at most `poll_limit` times.
    ///
    /// # Errors
    /// [`GpuError::NotResident`] if the blocks do not fit on the GPU at the same time; [`GpuError::Driver`].
    pub fn new(
        gpu: &GpuDevice,
        plan: KernelPlan,
        dtype: DType,
        buffers: &[GpuRankBuffers],
        (threads, poll_limit): (u32, u64),
    ) -> Result<Self, GpuError> {
        let all = || (0..plan.ranks()).map(Rank::from_index);
        let blocks: usize = all().map(|rank| plan.needs(rank).blocks).sum();
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let (kernel, room) = gpu.kernel(dtype, threads)?;
        if blocks > room {
            return Err(GpuError::NotResident { blocks, threads, room });
        }
        let (stream, urgent) = (gpu.stream()?, gpu.stream()?);
        let memory =
            |bytes: usize| stream.alloc_zeros::<u8>(bytes.max(16)).map_err(GpuError::of_driver("allocating memory"));
        let rank_memory = |(rank, lengths): (Rank, &GpuRankBuffers)| {
            let needs = plan.needs(rank);
            Ok(RankOnGpu {
                input: (!lengths.in_place).then(|| memory(lengths.input)).transpose()?,
                output: memory(lengths.output)?,
                private: memory(needs.private_bytes as usize)?,
                shared: memory(needs.shared_bytes as usize)?,
            })
        };
        let ranks = all().zip(buffers).map(rank_memory).collect::<Result<Vec<_>, GpuError>>()?;
        let abort = stream.alloc_zeros(1).map_err(GpuError::of_driver("allocating memory"))?;
        let (grid, lengths) = (memory(0)?, buffers.to_vec());
        let mut made = Self {
            plan,
            kernel,
            stream,
            urgent,
            ranks,
            lengths,
            grid,
            abort,
            blocks,
            threads,
            poll_limit,
            recorded: None,
            is_broken: false,
        };
        made.reset()?;
        Ok(made)
    }

    /// Prepares all memory but the buffers for a first call, also after a call that has failed.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn reset(&mut self) -> Result<(), GpuError> {
        let stream = self.stream.clone();
        let copying = GpuError::of_driver("copying tables to the GPU");
        let address = |memory: &CudaSlice<u8>| memory.device_ptr(&stream).0;
        let shared: Vec<u64> = self.ranks.iter().map(|rank| address(&rank.shared)).collect();
        let mut grid = Vec::new();
        for (index, memory) in self.ranks.iter_mut().enumerate() {
            let output = address(&memory.output);
            let at = KernelAddresses {
                input: memory.input.as_ref().map_or(output, address),
                output,
                private: address(&memory.private),
                shared: shared.clone(),
                abort: self.abort.device_ptr(&stream).0,
                poll_limit: self.poll_limit,
            };
            let tables = self.plan.tables(Rank::from_index(index), &at);
            stream.memset_zeros(&mut memory.shared).map_err(&copying)?;
            stream.memset_zeros(&mut memory.private).map_err(&copying)?;
            stream.memcpy_htod(&tables.private, &mut memory.private).map_err(&copying)?;
            grid.extend(tables.blocks);
        }
        stream.memset_zeros(&mut self.abort).map_err(&copying)?;
        // It has recorded where the descriptions were.
        self.recorded = None;
        self.grid = stream.clone_htod(&grid).map_err(&copying)?;
        stream.synchronize().map_err(&copying)?;
        self.is_broken = false;
        Ok(())
    }

    /// Writes a buffer of a rank. In place both names mean the same memory.
    ///
    /// # Errors
    /// [`GpuError::Length`], [`GpuError::Driver`].
    pub fn write(&mut self, rank: Rank, buffer: GpuBuffer, bytes: &[u8]) -> Result<(), GpuError> {
        let has = self.length(rank, buffer);
        if bytes.len() != has {
            return Err(GpuError::Length { rank, has, given: bytes.len() });
        }
        let memory = &mut self.ranks[rank.index()];
        let to = match (buffer, &mut memory.input) {
            (GpuBuffer::Input, Some(input)) => input,
            _ => &mut memory.output,
        };
        self.stream.memcpy_htod(bytes, to).map_err(GpuError::of_driver("copying to the GPU"))
    }

    /// What lies in a buffer of a rank.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn read(&self, rank: Rank, buffer: GpuBuffer) -> Result<Vec<u8>, GpuError> {
        let memory = &self.ranks[rank.index()];
        let from = match (buffer, &memory.input) {
            (GpuBuffer::Input, Some(input)) => input,
            _ => &memory.output,
        };
        let copying = GpuError::of_driver("copying from the GPU");
        let mut bytes = self.stream.clone_dtoh(from).map_err(&copying)?;
        self.stream.synchronize().map_err(&copying)?;
        // Memory is never empty, buffers may be.
        bytes.truncate(self.length(rank, buffer));
        Ok(bytes)
    }

    fn length(&self, rank: Rank, buffer: GpuBuffer) -> usize {
        let lengths = &self.lengths[rank.index()];
        match buffer {
            GpuBuffer::Input if !lengths.in_place => lengths.input,
            GpuBuffer::Input | GpuBuffer::Output => lengths.output,
        }
    }

    /// One call of all ranks, which may take so long.
    ///
    /// # Errors
    /// [`GpuError::Late`] and [`GpuError::GaveUp`], after which [`Self::reset`] is needed; [`GpuError::Driver`].
    pub fn call(&mut self, limit: Duration) -> Result<(), GpuError> {
        self.repeat(1, GpuLaunch::Direct, limit).map(drop)
    }

    /// So many calls one after the other with the same buffers, which together may take so long. How long they took on the GPU, without
    /// the time before the first one began.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn repeat(&mut self, calls: u32, launch: GpuLaunch, limit: Duration) -> Result<Duration, GpuError> {
        if self.is_broken {
            return Err(GpuError::Broken);
        }
        if launch == GpuLaunch::Graph && self.recorded.is_none() && self.blocks > 0 {
            self.recorded = Some(self.record()?);
        }
        // Until it is known to be right.
        self.is_broken = true;
        let launching = GpuError::of_driver("launching the kernel");
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let begun = self.stream.record_event(timed).map_err(&launching)?;
        for _ in 0..calls {
            match (&self.recorded, launch) {
                _ if self.blocks == 0 => {}
                (Some(RecordedCall(graph)), GpuLaunch::Graph) => graph.launch().map_err(&launching)?,
                _ => self.launch()?,
            }
        }
        let done = self.stream.record_event(timed).map_err(&launching)?;
        if !is_done_within(&done, limit)? {
            return Err(self.end_late_call(&done, limit)?);
        }
        self.stream.synchronize().map_err(GpuError::of_driver("running the kernel"))?;
        let reading = GpuError::of_driver("copying from the GPU");
        let abort = self.stream.clone_dtoh(&self.abort).map_err(&reading)?;
        self.stream.synchronize().map_err(&reading)?;
        if abort[0] != 0 {
            return Err(self.who_gave_up()?);
        }
        self.is_broken = false;
        let millis = begun.elapsed_ms(&done).map_err(GpuError::of_driver("reading the time"))?;
        Ok(Duration::from_secs_f64(f64::from(millis).max(0.0) / 1e3))
    }

    /// Puts a launch into the stream.
    fn launch(&self) -> Result<(), GpuError> {
        let grid = self.grid.device_ptr(&self.stream).0;
        let shape =
            LaunchConfig { grid_dim: (self.blocks, 1, 1), block_dim: (self.threads, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes the address of the blocks; all memory that they name lives as long as this value, and the tables are
        // those of the plan for these addresses.
        unsafe { self.stream.launch_builder(&self.kernel).arg(&grid).launch_cooperative(shape) }
            .map_err(GpuError::of_driver("launching the kernel"))?;
        Ok(())
    }

    /// The launch as a graph. The kernel counts its calls on the GPU, so the graph may be repeated.
    fn record(&self) -> Result<RecordedCall, GpuError> {
        let recording = GpuError::of_driver("recording a graph");
        let only_here = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(only_here).map_err(&recording)?;
        let launched = self.launch();
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0)).map_err(&recording);
        launched?;
        let empty = GpuError::Driver {
            doing: "recording a graph",
            name: "nothing".to_owned(),
            what: "and has recorded nothing".to_owned(),
            hint: "",
        };
        graph?.map(RecordedCall).ok_or(empty)
    }

    /// Ends a call that is late. What to say about it.
    fn end_late_call(&mut self, done: &CudaEvent, limit: Duration) -> Result<GpuError, GpuError> {
        let ending = GpuError::of_driver("ending the call");
        self.urgent.memcpy_htod(&[1u32], &mut self.abort).map_err(&ending)?;
        if !is_done_within(done, GRACE)? {
            return Ok(GpuError::Stuck { limit });
        }
        // The abort word must not arrive after the next call has been prepared.
        self.urgent.synchronize().map_err(&ending)?;
        Ok(GpuError::Late { limit })
    }

    /// The first block that has given up.
    fn who_gave_up(&self) -> Result<GpuError, GpuError> {
        for (index, memory) in self.ranks.iter().enumerate() {
            let rank = Rank::from_index(index);
            let copying = GpuError::of_driver("copying from the GPU");
            let private = self.stream.clone_dtoh(&memory.private).map_err(&copying)?;
            self.stream.synchronize().map_err(&copying)?;
            for threadblock in 0..self.plan.needs(rank).blocks {
                let at = self.plan.report_offset(rank, threadblock) as usize;
                let report =
                    private.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
                if report != 0 {
                    let (step, tile) = ((report as u32).wrapping_sub(1), (report >> 32) as u32);
                    return Ok(GpuError::GaveUp { rank, threadblock, step, tile });
                }
            }
        }
        Ok(GpuError::Broken)
    }
}

/// Waits for an event, at most so long.
fn is_done_within(event: &CudaEvent, limit: Duration) -> Result<bool, GpuError> {
    let begin = Instant::now();
    loop {
        if event.try_is_complete().map_err(GpuError::of_driver("running the kernel"))? {
            return Ok(true);
        }
        if begin.elapsed() >= limit {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}
