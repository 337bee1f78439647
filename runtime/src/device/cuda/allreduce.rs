//! All ranks of an AllReduce on registered buffers on one GPU, as one launch.
//!
//! The principal type is [`GpuAllReduce`], which is for these kernels what [`GpuRanks`](super::ranks::GpuRanks) is for programs.

use super::buffers::{GpuBuffer, GpuBuffers, GpuRankBuffers, bytes_of, memory};
use super::calls::{GpuCalls, GpuLaunch};
use super::error::GpuError;
use super::gpu::GpuDevice;
use crate::device::peers::{PeerAddresses, PeerAllReduce, PeerWait};
use cudarc::driver::{CudaSlice, DevicePtr};
use std::time::Duration;
use topology::Rank;

/// All ranks on one GPU. The buffers are registered when this value is made, and stay so as long as it lives.
#[derive(Debug)]
pub struct GpuAllReduce {
    plan: PeerAllReduce,
    calls: GpuCalls,
    buffers: GpuBuffers,
    /// Each rank's own memory, and what its peers map too.
    ranks: Vec<[CudaSlice<u8>; 2]>,
    poll_limit: u64,
}

impl GpuAllReduce {
    /// Allocates the buffers and all other memory. Blocks have `threads` threads, at most 512. A wait of the kernel looks at most
    /// `poll_limit` times.
    ///
    /// # Errors
    /// [`GpuError::NotResident`] if the blocks do not fit on the GPU at the same time; [`GpuError::Driver`].
    pub fn new(gpu: &GpuDevice, plan: PeerAllReduce, (threads, poll_limit): (u32, u64)) -> Result<Self, GpuError> {
        let (call, needs) = (plan.call(), plan.needs());
        let kernel = gpu.allreduce_kernel(call.dtype, threads)?;
        let calls = GpuCalls::new(gpu, kernel, needs.blocks * call.ranks, threads)?;
        let bytes = plan.buffer_bytes() as usize;
        let lengths = GpuRankBuffers { input: bytes, output: bytes, in_place: call.in_place };
        let buffers = GpuBuffers::new(calls.stream(), &vec![lengths; call.ranks])?;
        let mut ranks = Vec::new();
        for _ in 0..call.ranks {
            let of_bytes = |bytes: u64| memory(calls.stream(), bytes as usize);
            ranks.push([of_bytes(needs.private_bytes)?, of_bytes(needs.shared_bytes)?]);
        }
        let mut made = Self { plan, calls, buffers, ranks, poll_limit };
        made.reset()?;
        Ok(made)
    }

    /// Prepares all memory but the buffers for a first call, also after a call that has failed.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn reset(&mut self) -> Result<(), GpuError> {
        let stream = self.calls.stream().clone();
        let copying = GpuError::of_driver("copying tables to the GPU");
        let address = |memory: &CudaSlice<u8>| memory.device_ptr(&stream).0;
        let shared: Vec<u64> = self.ranks.iter().map(|[_, shared]| address(shared)).collect();
        let buffers: Vec<[u64; 2]> =
            (0..self.ranks.len()).map(|at| self.buffers.addresses(Rank::from_index(at))).collect();
        let mut grid = Vec::new();
        for (index, [private, own_shared]) in self.ranks.iter_mut().enumerate() {
            let at = PeerAddresses {
                input: buffers.iter().map(|[input, _]| *input).collect(),
                output: buffers.iter().map(|[_, output]| *output).collect(),
                shared: shared.clone(),
                private: address(private),
                abort: self.calls.abort(),
                poll_limit: self.poll_limit,
            };
            let tables = self.plan.tables(Rank::from_index(index), &at);
            stream.memset_zeros(own_shared).map_err(&copying)?;
            stream.memset_zeros(private).map_err(&copying)?;
            stream.memcpy_htod(&tables.private, private).map_err(&copying)?;
            grid.extend(tables.blocks);
        }
        // SAFETY: the tables are those of the plan for these addresses, whose memory this value has.
        unsafe { self.calls.prepare(&grid) }
    }

    /// Writes a buffer of a rank. In place both names mean the same memory.
    ///
    /// # Errors
    /// [`GpuError::Length`], [`GpuError::Driver`].
    pub fn write(&mut self, rank: Rank, buffer: GpuBuffer, bytes: &[u8]) -> Result<(), GpuError> {
        self.buffers.write(rank, buffer, bytes)
    }

    /// What lies in a buffer of a rank.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn read(&self, rank: Rank, buffer: GpuBuffer) -> Result<Vec<u8>, GpuError> {
        self.buffers.read(rank, buffer)
    }

    /// One call of all ranks, which may take so long.
    ///
    /// # Errors
    /// [`GpuError::Late`] and [`GpuError::PeerMissing`], after which [`Self::reset`] is needed; [`GpuError::Driver`].
    pub fn call(&mut self, limit: Duration) -> Result<(), GpuError> {
        self.repeat(1, GpuLaunch::Direct, limit).map(drop)
    }

    /// So many calls one after the other with the same buffers, which together may take so long. How long they took on the GPU, without
    /// the time before the first one began.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn repeat(&mut self, calls: u32, launch: GpuLaunch, limit: Duration) -> Result<Duration, GpuError> {
        match self.calls.repeat(calls, launch, limit)? {
            Some(time) => Ok(time),
            None => Err(self.who_is_missing()?),
        }
    }

    fn who_is_missing(&self) -> Result<GpuError, GpuError> {
        let mut waits = Vec::new();
        for (index, [private, _]) in self.ranks.iter().enumerate() {
            waits.extend(self.plan.waits(Rank::from_index(index), &bytes_of(self.calls.stream(), private)?));
        }
        Ok(PeerWait::decisive(&waits).map_or(GpuError::Broken, GpuError::PeerMissing))
    }
}
