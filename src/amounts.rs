//! How much a collective moves, in elements and in bytes, as nccl-tests counts.

use runtime::{DType, Trial};
use schedule::{Collective, Request};

/// The bytes of all blocks together for each element of a block.
fn unit(collective: Collective, members: usize, dtype: DType) -> u64 {
    collective.blocks(members) * dtype.size() as u64
}

/// The smallest difference of two sizes of a collective among so many ranks.
pub(crate) fn step_of(collective: Collective, ranks: usize, dtype: DType) -> u64 {
    unit(collective, ranks, dtype)
}

/// The size of a trial's collective.
pub(crate) fn bytes(request: &Request, trial: &Trial) -> u64 {
    trial.count.saturating_mul(unit(request.collective, request.members.len(), trial.dtype))
}

/// How many elements of `dtype` a block has if all blocks have at most `size_bytes`, and the bytes in all. The number
/// of elements is a multiple of `granularity`, and at least one.
pub(crate) fn count(request: &Request, size_bytes: u64, dtype: DType, granularity: u64) -> (u64, u64) {
    let unit = unit(request.collective, request.members.len(), dtype);
    let count = match (size_bytes / unit, granularity) {
        (count, 0 | 1) => count,
        (count, granularity) => (count / granularity).max(1) * granularity,
    };
    (count, count * unit)
}

/// busbw / algbw, as nccl-tests defines it.
pub(crate) fn bus_factor(request: &Request) -> f64 {
    let members = request.members.len() as f64;
    match request.collective {
        Collective::AllReduce => 2.0 * (members - 1.0) / members,
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv | Collective::Custom => 1.0,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll | Collective::AllToAllV => {
            (members - 1.0) / members
        }
        Collective::Gather | Collective::Scatter => (members - 1.0) / members,
    }
}
