//! Ranks that are members of a communicator tell each other what they need to share memory.
//!
//! The principal type is [`NcclGather`].

use super::communicator::NcclCommunicator;
use crate::device::cuda::GpuDevice;
use crate::device::peer_memory::PeerGather;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use topology::Rank;

/// Bytes of all ranks, by collectives of a communicator.
#[derive(Debug)]
pub struct NcclGather<'a> {
    /// The communicator.
    pub comm: &'a mut NcclCommunicator,
    /// Its GPU.
    pub gpu: &'a GpuDevice,
    /// How long each may take.
    pub limit: Duration,
}

impl PeerGather for NcclGather<'_> {
    fn rank(&self) -> Rank {
        self.comm.rank()
    }

    fn ranks(&self) -> usize {
        self.comm.ranks()
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        self.comm.stop_flag()
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let words: Vec<u64> = bytes
            .chunks(8)
            .map(|chunk| u64::from_le_bytes(std::array::from_fn(|at| chunk.get(at).copied().unwrap_or(0))))
            .collect();
        let all = self.comm.gather(self.gpu, &words, self.limit).map_err(|error| error.to_string())?;
        let of_rank = |words: &[u64]| {
            let mut of: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            of.truncate(bytes.len());
            of
        };
        Ok(all.chunks(words.len().max(1)).map(of_rank).collect())
    }
}
