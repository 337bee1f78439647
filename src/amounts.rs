//! How much a collective moves, in elements and in bytes, as nccl-tests counts.

use runtime::{DType, Trial};
use schedule::{Collective, Request};

/// The bytes of all blocks together for each element of a block.
fn unit(request: &Request, dtype: DType) -> u64 {
    let blocks = match request.collective {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => request.members.len(),
        Collective::Gather | Collective::Scatter => request.members.len(),
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1,
        Collective::AllToAllV | Collective::Custom => 1,
    };
    blocks as u64 * dtype.size() as u64
}

/// The smallest difference of two sizes of a collective among so many ranks.
pub(crate) fn step_of(collective: Collective, ranks: usize, dtype: DType) -> u64 {
    unit(&Request::new(collective, ranks, 0), dtype)
}

/// The size of a trial's collective.
pub(crate) fn bytes(request: &Request, trial: &Trial) -> u64 {
    trial.count.saturating_mul(unit(request, trial.dtype))
}

/// How many elements of `dtype` a block has if all blocks have at most `size_bytes`, and the bytes in all. The number
/// of elements is a multiple of `granularity`, and at least one.
pub(crate) fn count(request: &Request, size_bytes: u64, dtype: DType, granularity: u64) -> (u64, u64) {
    let unit = unit(request, dtype);
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
