//! Memory of a rank that the other processes of its machine map and read through pointers.
//!
//! The principal types are [`OwnSegments`], what a rank has made known, and [`PeerSegments`], what it has mapped of a peer. A
//! long message is offered with its address, and with the name of the segment that it lies in, if any. The receiver finds the
//! segment's file on the board in the peer's memory, and maps it when it first needs it.
//!
//! ```text
//! board: 64 × | generation (0: none) | descriptor | inode | address in the owner's process |
//!               4 B                    4 B          8 B     8 B
//! name:  generation << 32 | place on the board + 1; 0 is no segment
//! ```

use crate::memory::fork_mark::ForkMark;
use crate::memory::heap::PeerHeap;
use crate::memory::region::{OpenFilePlace, Region};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many segments a rank can make known at a time. Messages from others are copied by the kernel.
const SEGMENTS: usize = 64;
const ENTRY_BYTES: usize = 24;
/// The bytes of a board, in whole cache lines.
pub(crate) const SEGMENT_BOARD_BYTES: usize = SEGMENTS * ENTRY_BYTES;

/// The segments of a rank, in its memory.
#[derive(Clone)]
pub(crate) struct SegmentBoard {
    region: Arc<Region>,
    offset: usize,
}

impl SegmentBoard {
    pub(crate) fn new(region: Arc<Region>, offset: usize) -> Self {
        Self { region, offset }
    }

    fn entry(&self, at: usize) -> usize {
        self.offset + at % SEGMENTS * ENTRY_BYTES
    }

    fn write(&self, at: usize, generation: u32, place: OpenFilePlace, address: u64) {
        let entry = self.entry(at);
        self.region.word32(entry + 4).store(place.descriptor, Ordering::Relaxed);
        self.region.word64(entry + 8).store(place.inode, Ordering::Relaxed);
        self.region.word64(entry + 16).store(address, Ordering::Relaxed);
        self.region.word32(entry).store(generation, Ordering::Release);
    }

    fn clear(&self, at: usize) {
        self.region.word32(self.entry(at)).store(0, Ordering::Release);
    }

    /// Which segment is at a place, counted from 1; 0 if none is.
    fn generation(&self, place: u32) -> u32 {
        self.region.word32(self.entry(place.wrapping_sub(1) as usize)).load(Ordering::Acquire)
    }

    /// The file of a segment, and its address in the process that owns it; `None` if it is gone. What was mapped by mistake,
    /// because the entry changed meanwhile, is another file than the inode says.
    fn find(&self, name: u64, process: u32) -> Option<(OpenFilePlace, u64)> {
        let entry = self.entry((name as u32).wrapping_sub(1) as usize);
        let generation = self.region.word32(entry).load(Ordering::Acquire);
        let descriptor = self.region.word32(entry + 4).load(Ordering::Relaxed);
        let inode = self.region.word64(entry + 8).load(Ordering::Relaxed);
        let address = self.region.word64(entry + 16).load(Ordering::Relaxed);
        (u64::from(generation) == name >> 32).then_some((OpenFilePlace { process, descriptor, inode }, address))
    }
}

/// What a rank has made known.
pub(crate) struct OwnSegments {
    board: SegmentBoard,
    known: Mutex<KnownSegments>,
    mark: ForkMark,
}

#[derive(Default)]
struct KnownSegments {
    /// By address: the length and the name.
    by_address: BTreeMap<usize, (usize, u64)>,
    taken: u64,
    generations: u32,
}

impl OwnSegments {
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(board: SegmentBoard) -> io::Result<Self> {
        Ok(Self { board, known: Mutex::default(), mark: ForkMark::new()? })
    }

    fn known(&self) -> MutexGuard<'_, KnownSegments> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes known that these addresses are this file. Nothing is made known if the board is full: then messages from there
    /// are copied like all others.
    ///
    /// # Errors
    /// If some of the addresses are known already.
    pub(crate) fn publish(self: &Arc<Self>, addresses: Range<usize>, place: OpenFilePlace) -> io::Result<Published> {
        let mut known = self.known();
        let before = known.by_address.range(..addresses.end).next_back();
        if before.is_some_and(|(start, (bytes, _))| start + bytes > addresses.start) {
            let what = "a part of it is registered already";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let at = known.taken.trailing_ones() as usize;
        let is_known = at < SEGMENTS;
        if is_known {
            known.taken |= 1 << at;
            // A name is not used again before 2³² others.
            known.generations = known.generations.checked_add(1).unwrap_or(1);
            let generation = known.generations;
            let name = u64::from(generation) << 32 | (at as u64 + 1);
            known.by_address.insert(addresses.start, (addresses.len(), name));
            self.board.write(at, generation, place, addresses.start as u64);
        }
        drop(known);
        Ok(Published { segments: self.clone(), address: is_known.then_some(addresses.start) })
    }

    /// The name of the segment in which a message lies; 0 if it lies in none.
    pub(crate) fn name_of(&self, message: &[u8]) -> u64 {
        let known = self.known();
        let start = message.as_ptr().addr();
        let before = known.by_address.range(..=start).next_back();
        let inside = before.filter(|(address, (bytes, _))| start + message.len() <= *address + bytes);
        inside.map_or(0, |(_, (_, name))| *name)
    }
}

/// A segment that is known until this is dropped.
pub(crate) struct Published {
    segments: Arc<OwnSegments>,
    /// `None` if the board was full.
    address: Option<usize>,
}

impl Drop for Published {
    fn drop(&mut self) {
        if !self.segments.mark.is_here() {
            // The board is that of the process of which this one is a fork, and a thread there may hold the lock.
            return;
        }
        let mut known = self.segments.known();
        if let Some((_, name)) = self.address.and_then(|address| known.by_address.remove(&address)) {
            let at = (name as u32 - 1) as usize;
            self.segments.board.clear(at);
            known.taken &= !(1 << at);
        }
    }
}

/// A segment of a peer.
struct MappedSegment {
    generation: u32,
    /// `None` if it could not be mapped.
    heap: Option<(PeerHeap, u64)>,
}

/// What this rank has mapped of a peer.
pub(crate) struct PeerSegments {
    board: SegmentBoard,
    process: u32,
    mapped: BTreeMap<u32, MappedSegment>,
}

impl PeerSegments {
    /// What a peer in this process number makes known.
    pub(crate) fn new(board: SegmentBoard, process: u32) -> Self {
        Self { board, process, mapped: BTreeMap::new() }
    }

    /// Unmaps what the peer has freed: the system keeps such memory until nobody maps it.
    pub(crate) fn unmap_freed(&mut self) {
        let Self { board, mapped, .. } = self;
        mapped.retain(|at, segment| board.generation(*at) == segment.generation);
    }

    /// A long message in the peer's memory; `None` if it does not lie in a segment that can be mapped.
    pub(crate) fn read(&mut self, name: u64, address: u64, bytes: usize) -> Option<&[u8]> {
        self.unmap_freed();
        let (at, generation) = (name as u32, (name >> 32) as u32);
        if at == 0 || at as usize > SEGMENTS {
            return None;
        }
        let Self { board, process, mapped } = self;
        if mapped.get(&at).is_none_or(|segment| segment.generation != generation) {
            let (place, start) = board.find(name, *process)?;
            let heap = PeerHeap::open(place).map(|heap| (heap, start));
            let heap =
                heap.map_err(|error| tracing::info!("memory that process {process} shares cannot be mapped: {error}"));
            mapped.insert(at, MappedSegment { generation, heap: heap.ok() });
        }
        let (heap, start) = mapped.get(&at)?.heap.as_ref()?;
        let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
        heap.read(offset, bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::heap::{Area, Heap};

    fn board() -> SegmentBoard {
        SegmentBoard::new(Arc::new(Region::create(4096).unwrap()), 64)
    }

    fn heap(bytes: usize) -> (Heap, Area) {
        let (heap, mut areas) = Heap::new(&[[bytes]]).unwrap();
        let [area] = areas.remove(0);
        (heap, area)
    }

    #[test]
    fn a_peer_reads_what_is_known_and_nothing_else() {
        let board = board();
        let own = Arc::new(OwnSegments::new(board.clone()).unwrap());
        let mut peer = PeerSegments::new(board, std::process::id());
        let read = |peer: &mut PeerSegments, name, data: &[u8]| {
            peer.read(name, data.as_ptr().addr() as u64, data.len()).map(<[u8]>::to_vec)
        };
        for round in 0..3_u8 {
            let (heap, mut memory) = heap(10_000);
            memory.fill(round);
            let start = memory.as_ptr().addr();
            let published = own.publish(start..start + memory.len(), heap.place().unwrap()).unwrap();
            assert!(own.publish(start + 9_999..start + 20_000, heap.place().unwrap()).is_err());
            let name = own.name_of(&memory[3..]);
            assert_eq!(name as u32, 1);
            assert!(read(&mut peer, name, &memory[3..]).is_some_and(|seen| seen == [round; 9_997]));
            // Not inside, another name, a name that no board has.
            assert_eq!(own.name_of(&[0; 5]), 0);
            assert_eq!(read(&mut peer, name, &[0; 5]), None);
            assert_eq!(peer.read(name, start as u64 + 9_999, 10_000), None);
            for wrong in [0, name + 1, name + (1 << 32), 65 + (1 << 32)] {
                assert_eq!(read(&mut peer, wrong, &memory[..1]), None, "{wrong}");
            }
            drop(published);
            assert_eq!(own.name_of(&memory), 0);
        }
    }

    #[test]
    fn memory_that_was_freed_is_not_mapped_for_long() {
        let board = board();
        let own = Arc::new(OwnSegments::new(board.clone()).unwrap());
        let mut peer = PeerSegments::new(board, std::process::id());
        let (first, second) = (heap(10_000), heap(10_000));
        let publish = |(heap, memory): &(Heap, Area)| {
            let start = memory.as_ptr().addr();
            own.publish(start..start + memory.len(), heap.place().unwrap()).unwrap()
        };
        let read = |peer: &mut PeerSegments, (_, memory): &(Heap, Area)| {
            peer.read(own.name_of(memory), memory.as_ptr().addr() as u64, memory.len()).is_some()
        };
        let (freed, kept) = (publish(&first), publish(&second));
        assert!(read(&mut peer, &first) && read(&mut peer, &second));
        assert_eq!(peer.mapped.len(), 2);
        drop(freed);
        // The next long message lies elsewhere, or there is none.
        assert!(read(&mut peer, &second));
        assert_eq!(peer.mapped.len(), 1);
        drop(kept);
        peer.unmap_freed();
        assert_eq!(peer.mapped.len(), 0);
    }

    #[test]
    fn more_segments_than_a_board_has_are_not_known() {
        let own = Arc::new(OwnSegments::new(board()).unwrap());
        let (heap, memory) = heap(100 << 10);
        let place = heap.place().unwrap();
        let start = memory.as_ptr().addr();
        let part = |at: usize| start + at * 1024..start + (at + 1) * 1024;
        let mut published: Vec<Published> = (0..70).map(|at| own.publish(part(at), place).unwrap()).collect();
        let names = || (0..70).map(|at| own.name_of(&memory[at * 1024..][..1024])).filter(|name| *name != 0).count();
        assert_eq!(names(), SEGMENTS);
        published.remove(5);
        assert_eq!(names(), SEGMENTS - 1);
        published.push(own.publish(part(69), place).unwrap());
        assert_eq!(names(), SEGMENTS);
    }
}
