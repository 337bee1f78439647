//! Rounds in CUDA graphs.
//!
//! The principal function is [`NcclRounds::record`]. A graph has the addresses that were there when it was recorded, so memory and tables
//! stay as they are then.

use super::communicator::{NcclCommunicator, NcclDeadline};
use super::error::NcclError;
use super::rounds::NcclRounds;
use crate::device::cuda::{GpuDevice, GpuError, RelaxedCapture};
use cudarc::driver::sys::{CUevent_record_flags, CUevent_wait_flags, cuEventRecordWithFlags};
use cudarc::driver::{CudaStream, result};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

impl NcclRounds {
    /// As [`Self::enqueue`], for a stream that records a graph: the call happens when the graph is launched, as often as it is. This
    /// value is for calls with these addresses only from then on, and lives at least as long as the graph.
    ///
    /// # Errors
    /// As for [`Self::enqueue`].
    ///
    /// # Safety
    /// As for [`Self::enqueue`], whenever the graph is launched.
    pub unsafe fn record(
        &mut self,
        comm: &mut NcclCommunicator,
        gpu: &GpuDevice,
        stream: *mut c_void,
        buffers: [u64; 2],
    ) -> Result<(), NcclError> {
        comm.check()?;
        self.check()?;
        gpu.bind()?;
        // SAFETY: the caller promises it.
        let stream = unsafe { gpu.borrowed_stream(stream) };
        self.write_addresses(buffers)?;
        self.record_rounds(comm, &stream, None)
    }

    /// [`Self::record`] as [`Self::enqueue_staged`] does it.
    ///
    /// # Errors
    /// As for [`Self::enqueue`].
    ///
    /// # Safety
    /// As for [`Self::record`].
    pub unsafe fn record_staged(
        &mut self,
        comm: &mut NcclCommunicator,
        gpu: &GpuDevice,
        stream: *mut c_void,
        [input, output]: [u64; 2],
    ) -> Result<(), NcclError> {
        comm.check()?;
        self.check()?;
        gpu.bind()?;
        let staging = self.staging()?;
        // SAFETY: the caller promises it.
        let stream = unsafe { gpu.borrowed_stream(stream) };
        self.write_addresses([input, staging])?;
        self.record_rounds(comm, &stream, Some(output))
    }

    /// Writes the addresses of input and output into the tables, in a stream of its own: a graph would copy what lies in the host's
    /// memory when it is launched.
    fn write_addresses(&mut self, buffers: [u64; 2]) -> Result<(), NcclError> {
        if buffers == self.caller {
            return Ok(());
        }
        let copying = GpuError::of_driver("copying tables to the GPU");
        let _relaxed = RelaxedCapture::begin()?;
        self.own.wait(&self.done).map_err(&copying)?;
        let words = buffers.map(u64::to_le_bytes).concat();
        self.own.memcpy_htod(&words, &mut self.tables.slice_mut(..words.len())).map_err(&copying)?;
        self.own.synchronize().map_err(&copying)?;
        self.caller = buffers;
        Ok(())
    }

    /// The rounds between nodes for events that are outside of the graph: calls with this memory follow each other, in whichever graphs
    /// they are. Calls of one recording follow each other by its own nodes. `done` is of this value alone; the event of the region is of all calls in graphs with mapped memory.
    fn record_rounds(
        &mut self,
        comm: &mut NcclCommunicator,
        stream: &Arc<CudaStream>,
        result: Option<u64>,
    ) -> Result<(), NcclError> {
        let recording = GpuError::of_driver("recording a call");
        comm.recorded.follow(stream)?;
        let region = self.region.clone();
        let of_region = region.iter().map(|region| {
            region.fault().note_call(true);
            region.fault().done(true).cu_event()
        });
        let events: Vec<_> = std::iter::once(self.done.cu_event()).chain(of_region).collect();
        for &event in &events {
            let external = CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL;
            // SAFETY: the events live as long as this value, and so as long as the graph.
            unsafe { result::stream::wait_event(stream.cu_stream(), event, external) }.map_err(&recording)?;
        }
        let mut put = self.put_rounds(comm, stream, None, NcclDeadline::after(Duration::MAX));
        if let (Ok(()), Some(output)) = (&put, result) {
            let bytes = self.plan.buffer_bytes()[1] as usize;
            // SAFETY: both are as long as the results, and the stream has used the input before.
            put = unsafe { result::memcpy_dtod_async(output, self.caller[1], bytes, stream.cu_stream()) }
                .map_err(|error| recording(error).into());
        }
        // Also what was recorded before an error uses the memory of this value, and other ranks may wait for what was not.
        if let Some(region) = region.as_ref().filter(|_| put.is_err()) {
            region.fault().note_cut();
        }
        let external = CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        for &event in &events {
            // SAFETY: as above.
            unsafe { cuEventRecordWithFlags(event, stream.cu_stream(), external) }.result().map_err(&recording)?;
        }
        comm.recorded.note(stream)?;
        put?;
        // Since this was looked at first, calls may have been ended, and this one with them.
        self.check()
    }
}
