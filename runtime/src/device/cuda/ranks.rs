//! All ranks of a plan on one GPU, as one launch.
//!
//! The principal type is [`GpuRanks`]. It shows that plan, kernel and GPU give the right results, where there is only one GPU: the
//! ranks share its memory instead of links, so times say nothing about links.

use super::buffers::{GpuBuffer, GpuBuffers, GpuRankBuffers, bytes_of, memory};
use super::calls::{GpuCalls, GpuLaunch};
use super::error::GpuError;
use super::gpu::GpuDevice;
use crate::device::kernel_plan::{KernelAddresses, KernelPlan};
use crate::dtype::DType;
use cudarc::driver::{CudaSlice, DevicePtr};
use std::time::Duration;
use topology::Rank;

/// All ranks of a plan on one GPU. Calls follow each other, with the same tables.
#[derive(Debug)]
pub struct GpuRanks {
    plan: KernelPlan,
    calls: GpuCalls,
    buffers: GpuBuffers,
    /// Each rank's own memory, and what its peers map too.
    ranks: Vec<[CudaSlice<u8>; 2]>,
    poll_limit: u64,
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
        let needs: Vec<_> = (0..plan.ranks()).map(|index| plan.needs(Rank::from_index(index))).collect();
        let blocks = needs.iter().map(|needs| needs.blocks).sum();
        let calls = GpuCalls::new(gpu, gpu.kernel(dtype, threads)?, blocks, threads)?;
        let buffers = GpuBuffers::new(calls.stream(), buffers)?;
        let mut ranks = Vec::new();
        for needs in needs {
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
        let shared: Vec<u64> = self.ranks.iter().map(|[_, shared]| shared.device_ptr(&stream).0).collect();
        let mut grid = Vec::new();
        for (index, [private, own_shared]) in self.ranks.iter_mut().enumerate() {
            let rank = Rank::from_index(index);
            let [input, output] = self.buffers.addresses(rank);
            let at = KernelAddresses {
                input,
                output,
                private: private.device_ptr(&stream).0,
                shared: shared.clone(),
                abort: self.calls.abort(),
                poll_limit: self.poll_limit,
            };
            let tables = self.plan.tables(rank, &at);
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
        match self.calls.repeat(calls, launch, limit)? {
            Some(time) => Ok(time),
            None => Err(self.who_gave_up()?),
        }
    }

    /// The first block that has given up.
    fn who_gave_up(&self) -> Result<GpuError, GpuError> {
        for (index, [private, _]) in self.ranks.iter().enumerate() {
            let rank = Rank::from_index(index);
            let private = bytes_of(self.calls.stream(), private)?;
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
