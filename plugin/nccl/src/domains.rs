//! Memory that ranks of one machine have mapped from each other, for the messages of plans.
//!
//! The principal function is [`shared`]. It is shared where a table was measured so (its transport is `nccl-mapped`); without it such a
//! table serves no calls.

use crate::places::MemberPlaces;
use crate::prepared::{PreparedKey, THREADS};
use crate::settings::{Settings, say};
use comm::{PlanTable, mapped_bytes};
use runtime::{
    DOMAIN_BYTES, DType, DomainMemory, DomainPlace, DomainRegion, DomainTerms, GpuDevice, MappedNeeds,
    NcclCommunicator, NcclError, PeerMemoryError,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// The mapped memory of a communicator, and the place that each plan has in it. A plan keeps its place as long as the communicator lives:
/// what is there counts the calls.
pub(crate) struct PlanDomains {
    pub(crate) memory: DomainMemory,
    places: BTreeMap<PreparedKey, KeptPlace>,
}

/// The place of a plan.
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
    let bytes = mapped_bytes().unwrap_or_else(|why| {
        say(&format!("{why}: a communicator maps {DOMAIN_BYTES} bytes"));
        DOMAIN_BYTES
    });
    let terms = DomainTerms { bytes, machine, dtypes, threads: THREADS, limit };
    let says = comm.rank() == Rank(0) && Settings::of_process().says_decisions;
    let made = DomainMemory::new(gpu, comm, &terms);
    let memory = unless_refused(made, "a communicator uses no tables that need mapped memory", says)?;
    if says && memory.is_some() {
        let ranks = comm.ranks();
        say(&format!(
            "a communicator of {ranks} ranks maps {bytes} bytes of each within machines, for messages of plans"
        ));
    }
    Ok(memory.map(|memory| PlanDomains { memory, places: BTreeMap::new() }))
}

/// Memory that all ranks have shared; none if they could not, which one line says.
///
/// # Errors
/// If the ranks do not meet, and so the communicator is of no use.
pub(crate) fn unless_refused<T>(made: Result<T, NcclError>, what: &str, says: bool) -> Result<Option<T>, NcclError> {
    match made {
        Ok(memory) => Ok(Some(memory)),
        Err(why @ (NcclError::Peers(PeerMemoryError::Gather { .. }) | NcclError::Gpu(_))) => Err(why),
        Err(why) => {
            if says {
                say(&format!("{what}: {why}"));
            }
            Ok(None)
        }
    }
}

impl PlanDomains {
    /// Takes a place for a plan, unless it has one. All ranks begin the same plans in the same order, so they come to the same. False: there
    /// is no room any more.
    pub(crate) fn take_place(&mut self, key: PreparedKey, needs: &MappedNeeds) -> bool {
        if let Entry::Vacant(vacant) = self.places.entry(key) {
            let Some(place) = self.memory.place(needs) else { return false };
            vacant.insert(KeptPlace { place, region: None });
        }
        true
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
        let Some(kept) = self.places.get_mut(key) else { return Ok(None) };
        if kept.region.is_none() {
            kept.region = Some(self.memory.region(gpu, kept.place)?);
        }
        Ok(kept.region.clone())
    }
}
