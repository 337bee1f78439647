//! Memory for plans whose kernel moves the messages between ranks of one domain: those that have mapped each other's memory.
//!
//! The principal type is [`DomainMemory`]. It is shared once for a communicator, and each plan takes a [`DomainPlace`] of it. All ranks
//! take the same places in the same order, so that nobody has to say where they are.

use super::communicator::NcclCommunicator;
use super::error::NcclError;
use super::gather::NcclGather;
use super::watched::WatchedMemory;
use crate::device::cuda::{GpuDevice, GpuError, RelaxedCapture, bytes_of, memory};
use crate::device::peer_memory::{self, PeerFault, PeerMemory, PeerTerms};
use crate::device::rounds::mapped::MOST_BLOCKS;
use crate::device::rounds::plan::RoundPlan;
use crate::device::rounds::tables::{MappedAddresses, MappedNeeds};
use crate::dtype::DType;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

/// Regions begin at multiples of it.
const ALIGN: u64 = 256;
/// The sockets get this part of the time for gathering: ranks whose sockets are late have to meet those that wait for them.
const SOCKETS: u32 = 12;

/// Room for the messages of all plans of a communicator. A long plan of eight ranks takes about 8 MB.
pub const DOMAIN_BYTES: usize = 64 << 20;

/// What memory is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainTerms {
    /// Bytes for the messages of all plans.
    pub bytes: usize,
    /// The number of this rank's machine. Ranks of other machines are in other domains, whatever their computers are.
    pub machine: u32,
    /// The types of elements.
    pub dtypes: Vec<DType>,
    /// The most threads of a block.
    pub threads: u32,
    /// How long each step of sharing memory may take.
    pub limit: Duration,
}

/// The mapped memory of a communicator.
#[derive(Debug)]
pub struct DomainMemory {
    watched: Arc<WatchedMemory>,
    /// So many bytes of regions are in use.
    used: u64,
}

/// Where the messages of a plan lie in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainPlace {
    begin: u64,
    counter_bytes: u64,
}

/// The memory at a place, with the counters of this rank. The tables of a plan for several callers have the same one, because their calls
/// follow each other.
#[derive(Debug)]
pub struct DomainRegion {
    addresses: MappedAddresses,
    counters: CudaSlice<u8>,
    own: Arc<CudaStream>,
    watched: Arc<WatchedMemory>,
}

impl DomainMemory {
    /// Shares memory among the ranks of each domain. All ranks of the communicator call it with the same terms but for the machine, and
    /// all have it, or none.
    ///
    /// # Errors
    /// [`NcclError::Peers`]: why not, the same on all ranks, unless it is
    /// [`PeerMemoryError::Gather`](crate::PeerMemoryError::Gather); also if no machine has two ranks, or the ranks of one are not all on
    /// one computer.
    pub fn new(gpu: &GpuDevice, comm: &mut NcclCommunicator, terms: &DomainTerms) -> Result<Self, NcclError> {
        let own = || -> Result<PeerFault, GpuError> {
            let (blocks, threads) = (MOST_BLOCKS as u32, terms.threads);
            for &dtype in &terms.dtypes {
                let (_, room) = gpu.kernel(dtype, threads)?;
                if room < blocks {
                    return Err(GpuError::NotResident { blocks, threads, room });
                }
            }
            PeerFault::new(gpu)
        };
        let own = own();
        let asked = PeerTerms {
            bytes: terms.bytes,
            number: terms.dtypes.iter().fold(2, |number: u64, dtype| number << 4 | *dtype as u64),
            ready: own.as_ref().map(drop).map_err(ToString::to_string),
            machine: Some(terms.machine),
            limit: terms.limit / SOCKETS,
        };
        let memory = PeerMemory::new(gpu, &mut NcclGather { comm, gpu, limit: terms.limit }, &asked)?;
        Ok(Self { watched: Arc::new(WatchedMemory::new(memory, own?)), used: 0 })
    }

    /// For each rank a number that ranks of one domain have in common: what [`RoundPlan::within`] takes.
    pub fn domains(&self) -> &[u32] {
        self.watched.memory().domains()
    }

    /// What ends calls of all its plans.
    pub fn fault(&self) -> &Arc<PeerFault> {
        self.watched.fault()
    }

    /// Whether a plan with these needs could have a place if no other one had.
    pub fn has_room_for(&self, needs: &MappedNeeds) -> bool {
        needs.shared_bytes <= self.watched.memory().bytes() as u64
    }

    /// A place for a plan that has [needs](RoundPlan::mapped_needs). `None` if there is no room any more, on all ranks alike: then the
    /// plan has to be one without domains.
    pub fn place(&mut self, needs: &MappedNeeds) -> Option<DomainPlace> {
        let (begin, end) = (self.used, self.used.saturating_add(needs.shared_bytes));
        let has = self.watched.memory().bytes() as u64;
        (end <= has).then(|| {
            self.used = end.next_multiple_of(ALIGN).min(has);
            DomainPlace { begin, counter_bytes: needs.counter_bytes }
        })
    }

    /// The memory at a place, with the counters of this rank. A place has one region.
    ///
    /// # Errors
    /// [`NcclError::Gpu`] if this GPU has no room for counters.
    pub fn region(&self, gpu: &GpuDevice, place: DomainPlace) -> Result<Arc<DomainRegion>, NcclError> {
        gpu.bind()?;
        let _relaxed = RelaxedCapture::begin()?;
        let own = gpu.stream()?;
        let counters = memory(&own, place.counter_bytes as usize)?;
        own.synchronize().map_err(GpuError::of_driver("allocating memory"))?;
        let addresses = MappedAddresses {
            shared: self.watched.memory().addresses().iter().map(|address| address + place.begin).collect(),
            counters: counters.device_ptr(&own).0,
            abort: self.fault().abort(),
        };
        Ok(Arc::new(DomainRegion { addresses, counters, own, watched: self.watched.clone() }))
    }

    /// Gives all places back. All ranks call it together, when nobody uses a region any more.
    ///
    /// # Errors
    /// [`NcclError`] if the ranks do not meet, or one of them fails: the communicator is aborted then, and the memory of no use.
    pub fn clear(&mut self, gpu: &GpuDevice, comm: &mut NcclCommunicator, limit: Duration) -> Result<(), NcclError> {
        // Others may put messages until they come here.
        comm.gather(gpu, &[0], limit)?;
        let memory = self.watched.memory();
        let cleared = match self.used {
            0 => Ok(()),
            used => peer_memory::clear(gpu, memory.address(memory.rank()), used as usize),
        };
        // Others wait for this rank, whatever is wrong here.
        let words = comm.gather(gpu, &[u64::from(cleared.is_err())], limit)?;
        if words.iter().any(|word| *word != 0) {
            // What is in the places is of use to nobody any more.
            comm.abort();
            return cleared.map_err(NcclError::from).and(Err(NcclError::Aborted));
        }
        self.used = 0;
        Ok(())
    }
}

impl DomainRegion {
    pub(super) fn addresses(&self) -> &MappedAddresses {
        &self.addresses
    }

    /// What ends its calls, and where they are noted.
    pub(super) fn fault(&self) -> &Arc<PeerFault> {
        self.watched.fault()
    }

    /// Whether calls that have ended have done their work, and more may come.
    pub(super) fn check(&self) -> Result<(), NcclError> {
        self.watched.check()
    }

    /// The ranks for which blocks have waited when their calls were ended.
    pub(super) fn missing(&self, plan: &RoundPlan) -> Vec<Rank> {
        if let Some(gone) = self.fault().gone() {
            return vec![gone];
        }
        bytes_of(&self.own, &self.counters).map(|counters| plan.waited_for(&counters)).unwrap_or_default()
    }
}

impl Drop for DomainRegion {
    /// The counters are given back after all calls.
    fn drop(&mut self) {
        let _ = [false, true].map(|is_recorded| self.own.wait(self.fault().done(is_recorded)));
    }
}
