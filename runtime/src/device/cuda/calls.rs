//! Calls of a kernel that ends in time: launches, graphs, the time limit, and the abort word.
//!
//! The principal type is [`GpuCalls`].

use super::buffers::memory;
use super::error::GpuError;
use super::gpu::GpuDevice;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaEvent, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call that was told to end may still take.
const GRACE: Duration = Duration::from_secs(5);

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

/// Launches of one kernel whose blocks wait for each other. They follow each other, with the same tables.
#[derive(Debug)]
pub(in crate::device) struct GpuCalls {
    kernel: CudaFunction,
    /// All work but the end of a call that is late.
    stream: Arc<CudaStream>,
    urgent: Arc<CudaStream>,
    /// The descriptions of all blocks.
    grid: CudaSlice<u8>,
    abort: CudaSlice<u32>,
    blocks: u32,
    threads: u32,
    recorded: Option<RecordedCall>,
    is_broken: bool,
}

impl GpuCalls {
    /// `room` is how many blocks of the kernel the GPU holds at the same time.
    pub(in crate::device) fn new(
        gpu: &GpuDevice,
        (kernel, room): (CudaFunction, u32),
        blocks: usize,
        threads: u32,
    ) -> Result<Self, GpuError> {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        if blocks > room {
            return Err(GpuError::NotResident { blocks, threads, room });
        }
        let (stream, urgent) = (gpu.stream()?, gpu.stream()?);
        let abort = stream.alloc_zeros(1).map_err(GpuError::of_driver("allocating memory"))?;
        let grid = memory(&stream, 0)?;
        Ok(Self { kernel, stream, urgent, grid, abort, blocks, threads, recorded: None, is_broken: true })
    }

    pub(in crate::device) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The address of the abort word.
    pub(in crate::device) fn abort(&self) -> u64 {
        self.abort.device_ptr(&self.stream).0
    }

    /// Prepares a first call, with these descriptions of the blocks.
    ///
    /// # Safety
    /// They are what the kernel takes, and all memory that they name lives as long as this value.
    pub(in crate::device) unsafe fn prepare(&mut self, grid: &[u8]) -> Result<(), GpuError> {
        let copying = GpuError::of_driver("copying tables to the GPU");
        self.stream.memset_zeros(&mut self.abort).map_err(&copying)?;
        // It has recorded where the descriptions were.
        self.recorded = None;
        self.grid = self.stream.clone_htod(grid).map_err(&copying)?;
        self.stream.synchronize().map_err(&copying)?;
        self.is_broken = false;
        Ok(())
    }

    /// So many calls, which together may take so long. None: the kernel has ended them because a wait took too long.
    pub(in crate::device) fn repeat(
        &mut self,
        calls: u32,
        launch: GpuLaunch,
        limit: Duration,
    ) -> Result<Option<Duration>, GpuError> {
        self.repeat_unless(calls, launch, limit, &mut || false)
    }

    /// The same; the calls are ended as late ones when `stop` says so.
    pub(in crate::device) fn repeat_unless(
        &mut self,
        calls: u32,
        launch: GpuLaunch,
        limit: Duration,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Duration>, GpuError> {
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
        if !is_done_within(&done, limit, stop)? {
            return Err(self.end_late_call(&done, limit)?);
        }
        self.stream.synchronize().map_err(GpuError::of_driver("running the kernel"))?;
        let reading = GpuError::of_driver("copying from the GPU");
        let abort = self.stream.clone_dtoh(&self.abort).map_err(&reading)?;
        self.stream.synchronize().map_err(&reading)?;
        if abort[0] != 0 {
            return Ok(None);
        }
        self.is_broken = false;
        let millis = begun.elapsed_ms(&done).map_err(GpuError::of_driver("reading the time"))?;
        Ok(Some(Duration::from_secs_f64(f64::from(millis).max(0.0) / 1e3)))
    }

    /// Puts a launch into the stream.
    fn launch(&self) -> Result<(), GpuError> {
        let grid = self.grid.device_ptr(&self.stream).0;
        let shape =
            LaunchConfig { grid_dim: (self.blocks, 1, 1), block_dim: (self.threads, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes the address of the blocks; who has prepared them has promised the rest.
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
        if !is_done_within(done, GRACE, &mut || false)? {
            return Ok(GpuError::Stuck { limit });
        }
        // The abort word must not arrive after the next call has been prepared.
        self.urgent.synchronize().map_err(&ending)?;
        Ok(GpuError::Late { limit })
    }
}

/// Waits for an event, at most so long, and not after `stop` has said so.
fn is_done_within(event: &CudaEvent, limit: Duration, stop: &mut dyn FnMut() -> bool) -> Result<bool, GpuError> {
    let begin = Instant::now();
    loop {
        if event.try_is_complete().map_err(GpuError::of_driver("running the kernel"))? {
            return Ok(true);
        }
        if begin.elapsed() >= limit || stop() {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}
