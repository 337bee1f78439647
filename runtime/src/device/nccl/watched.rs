//! Memory that ranks have mapped from each other, with what ends kernels that wait there for a rank that is gone.
//!
//! The principal type is [`WatchedMemory`].

use super::error::NcclError;
use crate::device::cuda::GpuError;
use crate::device::peer_memory::{PeerFault, PeerMemory, PeerMemoryError, PeerWatch};
use std::sync::Arc;
use std::time::Duration;

/// How long the end waits for calls of which no rank is gone, as NCCL waits for its own without a limit. Then they go on by themselves.
const END: Duration = Duration::from_secs(3600);
/// How long it waits for calls that were told to end.
const GRACE: Duration = Duration::from_secs(5);

/// Mapped memory of a communicator. Whoever puts calls into streams notes them in its [fault](Self::fault).
#[derive(Debug)]
pub(super) struct WatchedMemory {
    watch: Option<PeerWatch>,
    fault: Arc<PeerFault>,
    memory: PeerMemory,
}

impl WatchedMemory {
    pub(super) fn new(memory: PeerMemory, fault: PeerFault) -> Self {
        let fault = Arc::new(fault);
        // Without the thread, as without it in NCCL, a program has to notice by itself that a rank is gone.
        let watch = PeerWatch::begin(memory.sockets(), &fault).ok();
        Self { watch, fault, memory }
    }

    pub(super) fn memory(&self) -> &PeerMemory {
        &self.memory
    }

    /// What ends calls, and where they are noted.
    pub(super) fn fault(&self) -> &Arc<PeerFault> {
        &self.fault
    }

    /// Whether calls that have ended have done their work, and more may come.
    pub(super) fn check(&self) -> Result<(), NcclError> {
        match (self.missing(), self.fault.is_ended()) {
            (Some(gone), _) => Err(gone.into()),
            (None, true) => Err(NcclError::Aborted),
            (None, false) => Ok(()),
        }
    }

    /// The error of a rank that is gone, if there is one.
    pub(super) fn missing(&self) -> Option<GpuError> {
        let rank = self.memory.rank();
        self.fault.gone().map(|peer| GpuError::PeerGone { rank, peer })
    }
}

impl Drop for WatchedMemory {
    /// Nothing uses the memory when it is unmapped. Until then a rank that is gone ends the calls that wait for it.
    fn drop(&mut self) {
        let is_done = self.fault.is_done_before_end(END) || self.fault.is_ended() && self.fault.is_done_within(GRACE);
        // Who waits for this rank in a call must not take it for one that has done its part.
        self.memory.sockets().set_orderly(is_done && !self.fault.is_cut());
        if !is_done {
            self.memory.keep();
            std::mem::forget((self.fault.clone(), self.watch.take()));
        }
        drop(self.watch.take());
    }
}

impl From<PeerMemoryError> for NcclError {
    fn from(why: PeerMemoryError) -> Self {
        match why {
            PeerMemoryError::Gpu(error) => Self::Gpu(error),
            why => Self::Peers(why),
        }
    }
}
