//! AllReduces that one kernel serves, over memory that all ranks of a communicator have mapped.
//!
//! The principal type is [`PeerFunctions`]. A table names them among the functions of a cell, with the type and the reduction. They serve
//! calls between the smallest and the largest size at which they were measured, and no others.

use crate::domains::unless_refused;
use crate::places::MemberPlaces;
use crate::prepared::{PreparedKey, dtype_of};
use crate::settings::{Settings, say};
use comm::PlanTable;
use runtime::{
    DType, GpuDevice, MOST_STAGED_BYTES, NcclCommunicator, NcclError, PeerAlgorithm, StagedAllReduce, StagedCall,
    StagedTerms,
};
use schedule::{Collective, ReduceOp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// Calls that the kernel serves.
#[derive(Clone, PartialEq, Debug)]
struct PeerRange {
    name: Arc<str>,
    algorithm: PeerAlgorithm,
    dtype: DType,
    op: ReduceOp,
    /// The smallest and the largest size.
    bytes: [u64; 2],
}

/// What the kernel does for a communicator.
pub(crate) struct PeerFunctions {
    pub(crate) staged: StagedAllReduce,
    ranges: Vec<PeerRange>,
}

/// A call that the kernel serves.
#[derive(Clone)]
pub(crate) struct PeerKernelCall {
    pub(crate) name: Arc<str>,
    pub(crate) call: StagedCall,
}

/// What the table names for ranks at these places.
fn named(table: Option<&PlanTable>, places: &MemberPlaces) -> Vec<PeerRange> {
    let functions = table.into_iter().flat_map(|table| table.measured_functions(places.ranks()));
    let range = |of: comm::MeasuredFunction| {
        let algorithm = PeerAlgorithm::ALL.iter().copied().find(|algorithm| algorithm.name() == &*of.name)?;
        let op = of.op.filter(|_| of.collective == Collective::AllReduce)?;
        Some(PeerRange { name: of.name, algorithm, dtype: of.dtype, op, bytes: of.bytes })
    };
    functions.filter_map(range).collect()
}

impl PeerFunctions {
    /// Maps the memory of all ranks, if the table names such functions for them. All ranks call it, with the same table, and come to the
    /// same.
    ///
    /// # Errors
    /// If the ranks do not meet, and so the communicator is of no use.
    pub(crate) fn shared(
        comm: &mut NcclCommunicator,
        gpu: &GpuDevice,
        (table, places): (Option<&PlanTable>, &MemberPlaces),
        limit: Duration,
    ) -> Result<Option<Self>, NcclError> {
        let mut ranges = named(table, places);
        // What is too large for the place in mapped memory is left to others.
        ranges.iter_mut().for_each(|range| range.bytes[1] = range.bytes[1].min(MOST_STAGED_BYTES as u64));
        ranges.retain(|range| range.bytes[0] <= range.bytes[1]);
        let Some(bytes) = ranges.iter().map(|range| range.bytes[1]).max() else { return Ok(None) };
        let dtypes: BTreeSet<DType> = ranges.iter().map(|range| range.dtype).collect();
        let terms = StagedTerms { bytes: bytes as usize, dtypes: dtypes.into_iter().collect(), limit };
        let says = comm.rank() == Rank(0) && Settings::of_process().says_decisions;
        let made = StagedAllReduce::new(gpu, comm, &terms);
        let staged = unless_refused(made, "a communicator maps no memory of other ranks", says)?;
        if says && staged.is_some() {
            say(&format!("a communicator of {} ranks maps {bytes} bytes of each", comm.ranks()));
        }
        Ok(staged.map(|staged| Self { staged, ranges }))
    }

    /// How the kernel serves a call, if it does.
    pub(crate) fn serving(&self, key: &PreparedKey) -> Option<PeerKernelCall> {
        if key.collective != Collective::AllReduce {
            return None;
        }
        let dtype = dtype_of(key.dtype, key.op).ok()?;
        let (op, count) = (key.op?, key.count as u64);
        let bytes = count.checked_mul(dtype.size() as u64)?;
        let is_it = |range: &&PeerRange| {
            (range.dtype, range.op) == (dtype, op) && (range.bytes[0]..=range.bytes[1]).contains(&bytes)
        };
        let range = self.ranges.iter().find(is_it)?;
        Some(PeerKernelCall {
            name: range.name.clone(),
            call: StagedCall { algorithm: range.algorithm, count, dtype, op },
        })
    }
}
