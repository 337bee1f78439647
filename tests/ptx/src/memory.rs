//! Memory, and who has accessed which byte last.

use crate::clocks::{Access, VectorClock};
use crate::report::{Fault, Place};
use std::sync::Arc;

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

/// Memory that others than the machine may change too, at the same time. An access of one value is never torn.
pub trait OutsideMemory: Send + Sync {
    /// How many bytes it has, a multiple of eight.
    fn bytes(&self) -> usize;
    /// The value of `size` bytes (1, 2, 4 or 8) at a multiple of `size`.
    fn load(&self, at: usize, size: usize) -> u64;
    /// Writes such a value.
    fn store(&self, at: usize, size: usize, value: u64);
    /// Writes words of eight bytes, at a multiple of eight, in any order.
    fn store_words(&self, at: usize, words: &[u8]) {
        for (index, word) in words.chunks_exact(8).enumerate() {
            self.store(at + 8 * index, 8, u64::from_le_bytes(std::array::from_fn(|byte| word[byte])));
        }
    }
}

/// Where the bytes of a region are.
enum Storage {
    Own(Vec<u8>),
    Outside(Arc<dyn OutsideMemory>),
}

/// The histories of some bytes that follow each other, as one launch knows them.
struct Page {
    launch: u64,
    bytes: Vec<History>,
}

/// Bytes of a page.
const PAGE: usize = 256;

/// Memory of consecutive addresses.
struct Region {
    start: u64,
    storage: Storage,
    /// Only of pages that were accessed.
    history: Vec<Option<Page>>,
}

impl Region {
    fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Own(bytes) => bytes.len(),
            Storage::Outside(memory) => memory.bytes(),
        }
    }

    /// What is known of a byte. Another launch knows nothing of it: what happened before it is visible in it.
    fn history(&mut self, at: usize, launch: u64) -> &mut History {
        if self.history.len() <= at / PAGE {
            self.history.resize_with(at / PAGE + 1, || None);
        }
        let page = &mut self.history[at / PAGE];
        let known = page.take_if(|page| page.launch == launch);
        let known = known.unwrap_or_else(|| Page { launch, bytes: vec![History::default(); PAGE] });
        &mut page.insert(known).bytes[at % PAGE]
    }
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
#[derive(Default)]
pub(crate) struct Regions {
    /// By ascending addresses.
    regions: Vec<Region>,
    next: u64,
    /// How many launches there were.
    launches: u64,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self::beginning_at(FIRST)
    }

    pub(crate) fn beginning_at(first: u64) -> Self {
        Self { next: first, ..Self::default() }
    }

    /// The number of a new launch.
    pub(crate) fn next_launch(&mut self) -> u64 {
        self.launches += 1;
        self.launches
    }

    /// Whether others may change some of it.
    pub(crate) fn is_shared(&self) -> bool {
        self.regions.iter().any(|region| matches!(region.storage, Storage::Outside(_)))
    }

    /// Puts memory at an address; false if there is some already.
    pub(crate) fn put(&mut self, start: u64, memory: Arc<dyn OutsideMemory>) -> bool {
        let end = start.saturating_add(memory.bytes() as u64);
        let at = self.regions.partition_point(|region| region.start < start);
        let before = at.checked_sub(1).map(|before| &self.regions[before]);
        let is_free = before.is_none_or(|region| region.start + region.bytes() as u64 <= start)
            && self.regions.get(at).is_none_or(|region| region.start >= end);
        if is_free {
            self.regions.insert(at, Region { start, storage: Storage::Outside(memory), history: Vec::new() });
        }
        is_free
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
        let mut regions = Self::default();
        regions.allocate(bytes, 1);
        regions
    }

    /// Its address is a multiple of `align` and of no greater power of two.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> u64 {
        let mut start = self.next.next_multiple_of(align.max(1));
        if start > 0 && start.is_multiple_of(2 * align) {
            start += align;
        }
        let storage = Storage::Own(vec![0; bytes as usize]);
        let at = self.regions.partition_point(|region| region.start < start);
        self.regions.insert(at, Region { start, storage, history: Vec::new() });
        self.next = start + bytes + GAP;
        start
    }

    /// The region of `bytes` bytes at an address, and where they begin in it.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<(usize, usize)> {
        let index = self.regions.partition_point(|region| region.start <= address).checked_sub(1)?;
        let at = address - self.regions[index].start;
        let end = at.checked_add(bytes)?;
        (end <= self.regions[index].bytes() as u64).then_some((index, at as usize))
    }

    /// The value of `size` bytes at a place.
    pub(crate) fn load(&self, (region, at): (usize, usize), size: usize) -> u64 {
        match &self.regions[region].storage {
            Storage::Own(bytes) => {
                let mut value = [0; 8];
                value[..size].copy_from_slice(&bytes[at..at + size]);
                u64::from_le_bytes(value)
            }
            Storage::Outside(memory) => memory.load(at, size),
        }
    }

    /// Writes a value of `size` bytes; whether memory has changed.
    pub(crate) fn store(&mut self, (region, at): (usize, usize), size: usize, value: u64) -> bool {
        let value = if size < 8 { value & ((1 << (8 * size)) - 1) } else { value };
        match &mut self.regions[region].storage {
            Storage::Own(bytes) => {
                let (bytes, value) = (&mut bytes[at..at + size], &value.to_le_bytes()[..size]);
                let is_other = bytes != value;
                bytes.copy_from_slice(value);
                is_other
            }
            Storage::Outside(memory) => {
                let is_other = memory.load(at, size) != value;
                memory.store(at, size, value);
                is_other
            }
        }
    }

    /// A copy of so many bytes.
    pub(crate) fn read(&self, place: (usize, usize), count: usize) -> Vec<u8> {
        if let Storage::Own(bytes) = &self.regions[place.0].storage {
            return bytes[place.1..place.1 + count].to_vec();
        }
        let words = pieces(place.1, count)
            .flat_map(|(at, size)| self.load((place.0, at), size).to_le_bytes().into_iter().take(size));
        words.collect()
    }

    /// Writes bytes.
    pub(crate) fn write(&mut self, place: (usize, usize), from: &[u8]) {
        if let Storage::Own(bytes) = &mut self.regions[place.0].storage {
            return bytes[place.1..place.1 + from.len()].copy_from_slice(from);
        }
        let Storage::Outside(memory) = &self.regions[place.0].storage else { return };
        let (head, rest) = from.split_at((place.1.next_multiple_of(8) - place.1).min(from.len()));
        let (words, tail) = rest.split_at(rest.len() / 8 * 8);
        let bytes = |at: usize, bytes: &[u8]| {
            bytes.iter().enumerate().for_each(|(index, byte)| memory.store(at + index, 1, u64::from(*byte)));
        };
        bytes(place.1, head);
        memory.store_words(place.1 + head.len(), words);
        bytes(place.1 + head.len() + words.len(), tail);
    }

    /// Checks an access of so many bytes, and notes it. The place of the bytes is returned.
    pub(crate) fn access(
        &mut self,
        address: u64,
        bytes: u64,
        is_write: bool,
        (access, launch): (Access, u64),
        clock: &VectorClock,
    ) -> Result<(usize, usize), Wrong> {
        if !address.is_multiple_of(bytes) {
            return Err(Wrong::Unaligned);
        }
        let (index, at) = self.find(address, bytes).ok_or(Wrong::Outside)?;
        let region = &mut self.regions[index];
        for offset in 0..bytes as usize {
            let history = region.history(at + offset, launch);
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

/// Words of eight bytes where they are aligned, and single bytes around them: where each begins, and its size.
fn pieces(begin: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    let (mut at, end) = (begin, begin + count);
    std::iter::from_fn(move || {
        let size = if at.is_multiple_of(8) && at + 8 <= end { 8 } else { 1 };
        let piece = (at < end).then_some((at, size));
        at += size;
        piece
    })
}
