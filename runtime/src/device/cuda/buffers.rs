//! The buffers of ranks on one GPU.
//!
//! The principal type is [`GpuBuffers`].

use super::error::GpuError;
use crate::dtype::DType;
use crate::error::RunResult;
use crate::plan::geometry::Geometry;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use program::{Buffer, Program};
use std::sync::Arc;
use topology::Rank;

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

/// Input and output of all ranks.
#[derive(Debug)]
pub(super) struct GpuBuffers {
    stream: Arc<CudaStream>,
    lengths: Vec<GpuRankBuffers>,
    /// In place there is no input.
    memory: Vec<(Option<CudaSlice<u8>>, CudaSlice<u8>)>,
}

/// Memory of so many bytes, or of some if that is none.
pub(in crate::device) fn memory(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>, GpuError> {
    stream.alloc_zeros::<u8>(bytes.max(16)).map_err(GpuError::of_driver("allocating memory"))
}

/// What lies in memory of the GPU.
pub(in crate::device) fn bytes_of(stream: &Arc<CudaStream>, memory: &CudaSlice<u8>) -> Result<Vec<u8>, GpuError> {
    let copying = GpuError::of_driver("copying from the GPU");
    let bytes = stream.clone_dtoh(memory).map_err(&copying)?;
    stream.synchronize().map_err(&copying)?;
    Ok(bytes)
}

impl GpuBuffers {
    pub(super) fn new(stream: &Arc<CudaStream>, lengths: &[GpuRankBuffers]) -> Result<Self, GpuError> {
        let of_rank = |lengths: &GpuRankBuffers| {
            let input = (!lengths.in_place).then(|| memory(stream, lengths.input)).transpose()?;
            Ok((input, memory(stream, lengths.output)?))
        };
        let memory = lengths.iter().map(of_rank).collect::<Result<_, GpuError>>()?;
        Ok(Self { stream: stream.clone(), lengths: lengths.to_vec(), memory })
    }

    /// The addresses of a rank's input and output; in place they are the same.
    pub(super) fn addresses(&self, rank: Rank) -> [u64; 2] {
        let (input, output) = &self.memory[rank.index()];
        let address = |memory: &CudaSlice<u8>| memory.device_ptr(&self.stream).0;
        let output = address(output);
        [input.as_ref().map_or(output, address), output]
    }

    pub(super) fn write(&mut self, rank: Rank, buffer: GpuBuffer, bytes: &[u8]) -> Result<(), GpuError> {
        let has = self.length(rank, buffer);
        if bytes.len() != has {
            return Err(GpuError::Length { rank, has, given: bytes.len() });
        }
        let to = match (buffer, &mut self.memory[rank.index()]) {
            (GpuBuffer::Input, (Some(input), _)) => input,
            (_, (_, output)) => output,
        };
        self.stream.memcpy_htod(bytes, to).map_err(GpuError::of_driver("copying to the GPU"))
    }

    pub(super) fn read(&self, rank: Rank, buffer: GpuBuffer) -> Result<Vec<u8>, GpuError> {
        let from = match (buffer, &self.memory[rank.index()]) {
            (GpuBuffer::Input, (Some(input), _)) => input,
            (_, (_, output)) => output,
        };
        let mut bytes = bytes_of(&self.stream, from)?;
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
}
