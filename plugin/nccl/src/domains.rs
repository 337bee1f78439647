//! Memory that ranks of one machine have mapped from each other, for the messages of plans.
//!
//! The principal function is [`shared`]. It is shared where a table was measured so (its transport is `nccl-mapped`); without it such a
//! table serves no calls.

use crate::places::MemberPlaces;
use crate::prepared::{PreparedKey, THREADS};
use crate::settings::{Settings, say};
use comm::PlanTable;
use program::VerifiedProgram;
use runtime::{
    DOMAIN_BYTES, DType, DomainMemory, DomainPlace, DomainRegion, DomainTerms, GpuDevice, NcclCommunicator, NcclError,
    PeerMemoryError, RoundPlan, RunResult,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// The mapped memory of a communicator, and which part each plan has. A plan keeps it as long as the communicator lives: what is in it
/// counts the calls.
pub(crate) struct PlanDomains {
    pub(crate) memory: DomainMemory,
    places: BTreeMap<PreparedKey, KeptPlace>,
}

/// The part of a plan.
struct KeptPlace {
    place: DomainPlace,
    /// From the first call on.
    region: Option<Arc<DomainRegion>>,
}

/// Shares memory, if a table was measured with such memory by ranks at these places. All ranks call it, with the same table, and come to
/// the same.
///
/// # Errors
/// If the ranks do not meet, and so the communicator is of no use.
pub(crate) fn shared(
    comm: &mut NcclCommunicator,
    gpu: &GpuDevice,
    (table, places): (Option<&PlanTable>, &MemberPlaces),
    limit: Duration,
) -> Result<Option<PlanDomains>, NcclError> {
    if !table.is_some_and(|table| table.is_tuned_for(places.mapped())) {
        return Ok(None);
    }
    let machine = places.machines.get(comm.rank().index()).copied().unwrap_or(0);
    let dtypes = DType::ALL.to_vec();
    let terms = DomainTerms { bytes: DOMAIN_BYTES, machine, dtypes, threads: THREADS, limit };
    let says = comm.rank() == Rank(0) && Settings::of_process().says_decisions;
    match DomainMemory::new(gpu, comm, &terms) {
        Ok(memory) => {
            if says {
                say(&format!(
                    "a communicator of {} ranks maps {DOMAIN_BYTES} bytes of each within its machine, for messages of plans",
                    comm.ranks()
                ));
            }
            Ok(Some(PlanDomains { memory, places: BTreeMap::new() }))
        }
        Err(why @ (NcclError::Peers(PeerMemoryError::Gather { .. }) | NcclError::Gpu(_))) => Err(why),
        Err(why) => {
            if says {
                say(&format!("a communicator uses no tables that need mapped memory: {why}"));
            }
            Ok(None)
        }
    }
}

impl PlanDomains {
    /// A rank's part of a program. All ranks ask for the same plans in the same order, so they come to the same. If there is no room
    /// for messages any more, NCCL moves all of them.
    ///
    /// # Errors
    /// If the size does not suit the program.
    pub(crate) fn plan(
        &mut self,
        (key, rank): (PreparedKey, Rank),
        program: &VerifiedProgram,
        (count, dtype): (u64, DType),
        block_bytes: u64,
    ) -> RunResult<RoundPlan> {
        if self.places.contains_key(&key) {
            return RoundPlan::within(self.memory.domains(), program, rank, (count, dtype), block_bytes);
        }
        let (plan, place) = self.memory.plan(program, rank, (count, dtype), block_bytes)?;
        if let Some(place) = place {
            self.places.insert(key, KeptPlace { place, region: None });
        }
        Ok(plan)
    }

    /// The memory of a plan; `None` if NCCL moves all of its messages.
    ///
    /// # Errors
    /// If the GPU has no room.
    pub(crate) fn region(
        &mut self,
        gpu: &GpuDevice,
        key: &PreparedKey,
    ) -> Result<Option<Arc<DomainRegion>>, NcclError> {
        let Some(part) = self.places.get_mut(key) else { return Ok(None) };
        if part.region.is_none() {
            part.region = Some(self.memory.region(gpu, part.place)?);
        }
        Ok(part.region.clone())
    }
}
