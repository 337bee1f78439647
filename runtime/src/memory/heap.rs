//! The buffers of a rank, in memory that other ranks of its computer can read.
//!
//! The principal types are [`Heap`], whose [`Area`]s are the buffers of a rank, and [`PeerHeap`], a read-only mapping
//! of another rank's heap. So a message is copied only once, from buffer to buffer, and a reduction reads its operand
//! in the sender's buffer. A rank opens other heaps under `/proc`, which only processes of the same user may do. If
//! that fails, messages are copied through the rings.

use crate::memory::region::{OpenFilePlace, Region};
use rustix::fs::OFlags;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Areas start at multiples of this many bytes, so that ranks do not share cache lines or pages.
const ALIGNMENT: usize = 4096;

/// Memory for the areas of one rank.
#[derive(Clone)]
pub(crate) struct Heap(Arc<Region>);

/// A part of a heap with one owner in this process.
pub(crate) struct Area {
    region: Arc<Region>,
    bytes: Range<usize>,
}

impl Heap {
    /// A heap with areas of these lengths, in bytes.
    ///
    /// # Errors
    /// If the operating system provides no shared memory.
    pub(crate) fn new<const N: usize>(lengths: &[[usize; N]]) -> io::Result<(Self, Vec<[Area; N]>)> {
        let mut end: usize = 0;
        let mut place = |length: usize| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start.saturating_add(length);
            start..end
        };
        let ranges: Vec<_> = lengths.iter().map(|lengths| lengths.map(&mut place)).collect();
        let region = Arc::new(Region::create(end.max(1))?);
        let area = |bytes| Area { region: region.clone(), bytes };
        let areas = ranges.into_iter().map(|ranges| ranges.map(area)).collect();
        Ok((Self(region), areas))
    }

    /// # Errors
    /// If the operating system does not identify the heap's file.
    pub(crate) fn place(&self) -> io::Result<OpenFilePlace> {
        OpenFilePlace::of(self.0.descriptor())
    }

    /// Asks for large pages, and for all pages now, not at their first use.
    pub(crate) fn provide(&self) {
        self.0.provide();
    }

    /// The offset of `data` in the heap; `None` if `data` is not all inside.
    pub(crate) fn offset_of(&self, data: &[u8]) -> Option<usize> {
        let base = self.0.pointer(0, 0).addr();
        let offset = data.as_ptr().addr().checked_sub(base)?;
        (offset.checked_add(data.len())? <= self.0.len()).then_some(offset)
    }
}

impl Deref for Area {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let pointer = self.region.pointer(self.bytes.start, self.bytes.len());
        // SAFETY: in bounds and mapped as long as `self.region`. Areas are disjoint and not cloned, so only `self`
        // lends this memory in this mapping. Other processes have only mappings that cannot write.
        unsafe { std::slice::from_raw_parts(pointer, self.bytes.len()) }
    }
}

impl DerefMut for Area {
    fn deref_mut(&mut self) -> &mut [u8] {
        let pointer = self.region.pointer(self.bytes.start, self.bytes.len());
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(pointer, self.bytes.len()) }
    }
}

/// The heap of a peer, read-only.
pub(crate) struct PeerHeap(Region);

impl PeerHeap {
    /// # Errors
    /// If it cannot be opened, or is not the file that its owner made.
    pub(crate) fn open(place: OpenFilePlace) -> io::Result<Self> {
        Region::open_to_read(place.open(OFlags::RDONLY)?).map(Self)
    }

    /// The bytes that the owner offers now.
    ///
    /// # Errors
    /// If they are not all inside the heap.
    pub(crate) fn read(&self, offset: usize, length: usize) -> io::Result<&[u8]> {
        if offset.checked_add(length).is_none_or(|end| end > self.0.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer offers memory that it does not have"));
        }
        // SAFETY: in bounds (just checked) and mapped as long as `self`. The owner offered these bytes and leaves them
        // unchanged until it learns that they were read. The caller has seen the offer with an Acquire.
        Ok(unsafe { std::slice::from_raw_parts(self.0.pointer(offset, length), length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_read_what_the_owner_writes_and_nothing_outside() {
        let (heap, mut areas) = Heap::new(&[[5000, 0, 3]]).unwrap();
        let [mut first, empty, mut second] = areas.remove(0);
        first.fill(1);
        second.fill(2);
        assert!(empty.is_empty() && first.iter().all(|&byte| byte == 1));
        let peer = PeerHeap::open(heap.place().unwrap()).unwrap();
        let offset = heap.offset_of(&second[1..]).unwrap();
        assert_eq!(peer.read(offset, 2).unwrap(), [2, 2]);
        second[1] = 7;
        assert_eq!(peer.read(offset, 2).unwrap(), [7, 2]);
        assert_eq!(heap.offset_of(&[0; 3]), None);
        for (offset, length) in [(offset, 3), (1 << 20, 1), (usize::MAX, 2), (0, usize::MAX)] {
            assert!(peer.read(offset, length).is_err());
        }
        let place = heap.place().unwrap();
        assert!(PeerHeap::open(OpenFilePlace { inode: place.inode + 1, ..place }).is_err());
    }
}
