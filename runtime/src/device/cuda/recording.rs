//! Order among calls that streams record into the same graph.
//!
//! The principal type is [`RecordedOrder`]. Streams may fork while a graph is recorded. Nodes for events outside of the graph order calls
//! of different launches, but not those of one launch that lie in different streams: there the nodes of the graph itself have to.

use super::error::GpuError;
use cudarc::driver::sys::{self, CUgraphNode, CUstream, CUstreamCaptureStatus};
use std::ptr::{null, null_mut};

/// The nodes behind the last call that was recorded, and the recording of which they are.
#[derive(Debug, Default)]
pub(in crate::device) struct RecordedOrder {
    last: Option<RecordedPoint>,
}

/// Where a stream is in what it records.
#[derive(Debug)]
struct RecordedPoint {
    /// The driver numbers recordings, and uses no number again.
    recording: u64,
    nodes: Vec<CUgraphNode>,
}

// SAFETY: the nodes are only handed back to the driver, which takes them from any thread while their recording goes on.
unsafe impl Send for RecordedOrder {}

impl RecordedOrder {
    /// What the stream records next comes after the last call, if that is of the same recording.
    ///
    /// # Errors
    /// [`GpuError::Driver`], for example where the recording was spoilt.
    pub(in crate::device) fn follow(&self, stream: CUstream) -> Result<(), GpuError> {
        let Some(last) = &self.last else { return Ok(()) };
        if point(stream)?.is_none_or(|now| now.recording != last.recording) {
            return Ok(());
        }
        let mut nodes = last.nodes.clone();
        let adds = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES as u32;
        // SAFETY: the nodes are of the graph that the stream records.
        let added = unsafe { sys::cuStreamUpdateCaptureDependencies(stream, nodes.as_mut_ptr(), nodes.len(), adds) };
        added.result().map_err(GpuError::of_driver("recording a call"))
    }

    /// A call was recorded just now.
    ///
    /// # Errors
    /// As for [`Self::follow`].
    pub(in crate::device) fn note(&mut self, stream: CUstream) -> Result<(), GpuError> {
        self.last = point(stream)?;
        Ok(())
    }
}

/// Where a stream is in what it records; `None` if it does not.
fn point(stream: CUstream) -> Result<Option<RecordedPoint>, GpuError> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut recording, mut nodes, mut count) = (0, null(), 0);
    // SAFETY: the addresses are those of variables, or null where nothing is asked.
    let asked = unsafe {
        sys::cuStreamGetCaptureInfo_v2(
            stream,
            &raw mut status,
            &raw mut recording,
            null_mut(),
            &raw mut nodes,
            &raw mut count,
        )
    };
    asked.result().map_err(GpuError::of_driver("asking a stream that records"))?;
    if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(None);
    }
    let nodes = match count {
        0 => Vec::new(),
        // SAFETY: the driver says that so many nodes are there, until the stream is used again.
        _ => unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec(),
    };
    Ok(Some(RecordedPoint { recording, nodes }))
}
