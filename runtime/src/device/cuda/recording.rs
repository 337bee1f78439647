//! Order among calls that streams record into the same graph.
//!
//! The principal type is [`RecordedOrder`]. Streams may fork while a graph is recorded. Nodes for events outside of the graph order calls
//! of different launches, but not those of one launch that lie in different streams: there the nodes of the graph itself have to, to which
//! an event that is recorded in the graph leads.

use super::error::GpuError;
use cudarc::driver::sys::{self, CUstreamCaptureStatus};
use cudarc::driver::{CudaEvent, CudaStream};
use std::ptr::null_mut;

/// So many recordings are known at the same time, the latest ones.
const MOST_RECORDINGS: usize = 16;

/// What comes behind the last call of each recording, by the number of the recording. The driver uses no number again.
#[derive(Debug, Default)]
pub(in crate::device) struct RecordedOrder {
    last: Vec<(u64, CudaEvent)>,
}

impl RecordedOrder {
    /// What the stream records next comes after the last call of the same recording.
    ///
    /// # Errors
    /// [`GpuError::Driver`], for example where the recording was spoilt.
    pub(in crate::device) fn follow(&self, stream: &CudaStream) -> Result<(), GpuError> {
        let Some(recording) = recording(stream)? else { return Ok(()) };
        let last = self.last.iter().find(|(number, _)| *number == recording);
        last.map_or(Ok(()), |(_, event)| stream.wait(event)).map_err(GpuError::of_driver("recording a call"))
    }

    /// A call was recorded just now.
    ///
    /// # Errors
    /// As for [`Self::follow`].
    pub(in crate::device) fn note(&mut self, stream: &CudaStream) -> Result<(), GpuError> {
        let Some(recording) = recording(stream)? else { return Ok(()) };
        let event = stream.record_event(None).map_err(GpuError::of_driver("recording a call"))?;
        self.last.retain(|(number, _)| *number != recording);
        if self.last.len() >= MOST_RECORDINGS {
            self.last.remove(0);
        }
        self.last.push((recording, event));
        Ok(())
    }
}

/// The number of what a stream records; `None` if it does not.
fn recording(stream: &CudaStream) -> Result<Option<u64>, GpuError> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut recording = 0;
    // SAFETY: the addresses are those of variables, or null where nothing is asked.
    let asked = unsafe {
        let nothing = (null_mut(), null_mut(), null_mut());
        let (status, recording) = (&raw mut status, &raw mut recording);
        sys::cuStreamGetCaptureInfo_v2(stream.cu_stream(), status, recording, nothing.0, nothing.1, nothing.2)
    };
    asked.result().map_err(GpuError::of_driver("asking a stream that records"))?;
    Ok((status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE).then_some(recording))
}
