//! Memory, and who has accessed which byte last.

use crate::clocks::{Access, VectorClock};
use crate::report::{Fault, Place};

/// Global memory begins here, so that small numbers are no addresses.
const FIRST: u64 = 0x7f00_0000_0000;
/// Between two allocations nothing lies.
const GAP: u64 = 0x1_0000;

/// The last accesses of a byte that are not known to be over.
#[derive(Clone, Default)]
struct History {
    write: Option<Access>,
    reads: Vec<Access>,
}

/// Memory of consecutive addresses.
struct Region {
    start: u64,
    bytes: Vec<u8>,
    history: Vec<History>,
}

/// Why an access is wrong, by the rules of addresses.
pub(crate) enum Wrong {
    Outside,
    Unaligned,
    /// The earlier access, and the address of the byte.
    Race(Access, u64),
}

impl Wrong {
    pub(crate) fn told(self, place: Place, address: u64, bytes: u64, place_of: impl Fn(Access) -> Place) -> Fault {
        match self {
            Self::Outside => Fault::OutOfBounds { place, address, bytes },
            Self::Unaligned => Fault::Misaligned { place, address, bytes },
            Self::Race(first, address) => Fault::Race { address, first: place_of(first), second: place },
        }
    }
}

/// Regions of memory with their histories.
pub(crate) struct Regions {
    /// By ascending addresses.
    regions: Vec<Region>,
    next: u64,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self::beginning_at(FIRST)
    }

    pub(crate) fn beginning_at(first: u64) -> Self {
        Self { regions: Vec::new(), next: first }
    }

    /// Takes a region away; its addresses are not given again.
    pub(crate) fn release(&mut self, start: u64) -> bool {
        let found = self.regions.binary_search_by_key(&start, |region| region.start);
        found.map(|index| self.regions.remove(index)).is_ok()
    }

    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// Shared memory: one region at address 0.
    pub(crate) fn shared(bytes: u64) -> Self {
        let mut regions = Self { regions: Vec::new(), next: 0 };
        regions.allocate(bytes, 1);
        regions
    }

    /// Its address is a multiple of `align` and of no greater power of two.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> u64 {
        let mut start = self.next.next_multiple_of(align.max(1));
        if start > 0 && start.is_multiple_of(2 * align) {
            start += align;
        }
        let count = bytes as usize;
        self.regions.push(Region { start, bytes: vec![0; count], history: vec![History::default(); count] });
        self.next = start + bytes + GAP;
        start
    }

    /// Forgets who has accessed what.
    pub(crate) fn forget(&mut self) {
        for history in self.regions.iter_mut().flat_map(|region| &mut region.history) {
            history.write = None;
            history.reads.clear();
        }
    }

    /// The region of `bytes` bytes at an address, and where they begin in it.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<(usize, usize)> {
        let index = self.regions.partition_point(|region| region.start <= address).checked_sub(1)?;
        let at = address - self.regions[index].start;
        let end = at.checked_add(bytes)?;
        (end <= self.regions[index].bytes.len() as u64).then_some((index, at as usize))
    }

    pub(crate) fn bytes(&self, (region, at): (usize, usize), count: usize) -> &[u8] {
        &self.regions[region].bytes[at..at + count]
    }

    pub(crate) fn bytes_mut(&mut self, (region, at): (usize, usize), count: usize) -> &mut [u8] {
        &mut self.regions[region].bytes[at..at + count]
    }

    /// Checks an access of so many bytes, and notes it. The place of the bytes is returned.
    pub(crate) fn access(
        &mut self,
        address: u64,
        bytes: u64,
        is_write: bool,
        access: Access,
        clock: &VectorClock,
    ) -> Result<(usize, usize), Wrong> {
        if !address.is_multiple_of(bytes) {
            return Err(Wrong::Unaligned);
        }
        let (index, at) = self.find(address, bytes).ok_or(Wrong::Outside)?;
        let region = &mut self.regions[index];
        for (offset, history) in region.history[at..at + bytes as usize].iter_mut().enumerate() {
            let race = |earlier: &Access| earlier.races_with(access, clock);
            let earlier = history.write.filter(race).or_else(|| match is_write {
                true => history.reads.iter().copied().find(race),
                false => None,
            });
            if let Some(earlier) = earlier {
                return Err(Wrong::Race(earlier, address + offset as u64));
            }
            if is_write {
                history.write = Some(access);
                history.reads.clear();
            } else {
                // Reads that are over need not be remembered.
                history.reads.retain(|read| read.thread != access.thread && read.period > clock.of(read.thread));
                history.reads.push(access);
            }
        }
        Ok((index, at))
    }
}
