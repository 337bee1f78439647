//! Where the slots of a program lie in buffers of a given element count.
//!
//! The principal type is [`Geometry`]. The schedule crate says which elements a slot covers; a slot is cut into
//! tiles by the same rule as a block into slots: balanced, remainders spread without padding, and fewer elements
//! than pieces just leave some pieces empty.

use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use schedule::program::{Buffer, Program, RankProgram, Slice, part_elements, slot_elements};
use std::ops::Range;
use topology::Rank;

/// Where pieces of these lengths start when they lie one after the other, and where the last ends.
fn starts(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    let ends = lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// The layout of one rank's buffers.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    count: u64,
    parts: u32,
    tiles: u32,
    /// Bytes.
    element: u64,
    /// Starts of the scratch slots and the end of the last, in elements.
    scratch: Vec<u64>,
}

impl Geometry {
    pub(crate) fn new(program: &Program, rank: Rank, count: u64, dtype: DType, tiles: u32) -> RunResult<Self> {
        let too_large = || RunError::TooLarge { elements: count, dtype };
        let own = &program.ranks[rank.index()];
        let parts = program.parts.max(1) as usize;
        let slots = [own.input_slots as usize, own.output_slots as usize, own.scratch_parts.len()];
        let blocks = slots.into_iter().max().unwrap_or(0).div_ceil(parts) as u64 + 1;
        let bytes = count.checked_mul(blocks).and_then(|elements| elements.checked_mul(dtype.size() as u64));
        bytes.filter(|&bytes| bytes <= isize::MAX as u64).ok_or_else(too_large)?;
        let length = |&part: &u32| {
            let elements = part_elements(count, program.parts, part);
            elements.end - elements.start
        };
        let scratch = starts(own.scratch_parts.iter().map(length));
        Ok(Self { count, parts: program.parts, tiles: tiles.max(1), element: dtype.size() as u64, scratch })
    }

    /// Scratch slots of any lengths in bytes, and no other buffer.
    pub(crate) fn of_slots(lengths: impl Iterator<Item = usize>) -> Self {
        Self { count: 0, parts: 1, tiles: 1, element: 1, scratch: starts(lengths.map(|bytes| bytes as u64)) }
    }

    pub(crate) fn tiles(&self) -> usize {
        self.tiles as usize
    }

    /// The elements of a slot.
    fn slot(&self, buffer: Buffer, slot: u32) -> Range<u64> {
        match buffer {
            Buffer::Scratch => self.scratch[slot as usize]..self.scratch[slot as usize + 1],
            Buffer::Input | Buffer::Output => slot_elements(self.count, self.parts, slot),
        }
    }

    /// The bytes of one tile of the `index`-th slot of a slice.
    pub(crate) fn piece(&self, slice: Slice, index: u32, tile: usize) -> Range<usize> {
        let slot = self.slot(slice.buffer, slice.index + index);
        let tile = part_elements(slot.end - slot.start, self.tiles, tile as u32);
        self.bytes(slot.start + tile.start)..self.bytes(slot.start + tile.end)
    }

    /// The bytes of one tile of a whole slice.
    pub(crate) fn slice_bytes(&self, slice: Slice, tile: usize) -> usize {
        (0..slice.count).map(|index| self.piece(slice, index, tile).len()).sum()
    }

    /// The bytes of the first slot of a slice, all tiles of it.
    pub(crate) fn slot_bytes(&self, slice: Slice) -> Range<usize> {
        self.piece(slice, 0, 0).start..self.piece(slice, 0, self.tiles() - 1).end
    }

    /// The bytes of so many elements of a buffer; they can be addressed, as [`Self::new`] made sure.
    fn bytes(&self, elements: u64) -> usize {
        (elements * self.element) as usize
    }

    /// The bytes that a buffer of `slots` slots needs.
    fn buffer_bytes(&self, slots: u32) -> usize {
        slots.checked_sub(1).map_or(0, |last| self.bytes(self.slot(Buffer::Output, last).end))
    }

    pub(crate) fn input_bytes(&self, program: &RankProgram) -> usize {
        self.buffer_bytes(program.input_slots)
    }

    pub(crate) fn output_bytes(&self, program: &RankProgram) -> usize {
        self.buffer_bytes(program.output_slots)
    }

    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch.last().map_or(0, |&end| self.bytes(end))
    }
}

/// How many tiles give each about `tile_bytes` bytes of the largest slot.
pub(crate) fn tiles_of(program: &Program, count: u64, dtype: DType, tile_bytes: usize) -> u32 {
    let slot = count.div_ceil(u64::from(program.parts.max(1))).saturating_mul(dtype.size() as u64);
    u32::try_from(slot.div_ceil(tile_bytes.max(1) as u64)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;

    fn program(parts: u32) -> Program {
        let own = RankProgram { input_slots: 2 * parts, scratch_parts: vec![parts - 1, 0], ..RankProgram::default() };
        let demand = Demand::new(Request::new(Collective::AllGather, 1, 0)).unwrap();
        let (connections, ranks) = (Vec::new(), vec![own]);
        Program { demand: Arc::new(demand), op: None, in_place: false, parts, connections, ranks }
    }

    fn slice(buffer: Buffer, count: u32) -> Slice {
        Slice { buffer, index: 0, count }
    }

    #[test]
    fn tiles_of_slots_cover_a_buffer_exactly_once_and_in_order() {
        for (parts, count, tiles) in [(1, 0, 1), (3, 2, 1), (3, 10, 4), (5, 1003, 7), (1, 5, 9)] {
            let geometry = Geometry::new(&program(parts), Rank(0), count, DType::F64, tiles).unwrap();
            let mut end = 0;
            for slot in 0..2 * parts {
                for tile in 0..tiles as usize {
                    let piece = geometry.piece(slice(Buffer::Input, 2 * parts), slot, tile);
                    assert_eq!(piece.start, end, "{parts} parts, {count} elements, {tiles} tiles");
                    end = piece.end;
                }
            }
            assert_eq!(end, 2 * 8 * count as usize);
            assert_eq!(geometry.input_bytes(&program(parts).ranks[0]), end);
        }
    }

    #[test]
    fn scratch_slots_have_the_shape_of_their_part() {
        let geometry = Geometry::new(&program(3), Rank(0), 10, DType::F32, 1).unwrap();
        // 10 elements in 3 parts: 3, 3, 4.
        assert_eq!(geometry.piece(slice(Buffer::Scratch, 2), 0, 0), 0..16);
        assert_eq!(geometry.piece(slice(Buffer::Scratch, 2), 1, 0), 16..28);
        assert_eq!((geometry.scratch_bytes(), geometry.slice_bytes(slice(Buffer::Scratch, 2), 0)), (28, 28));
    }

    #[test]
    fn offsets_beyond_four_gibibytes_are_exact_and_beyond_the_address_space_refused() {
        let count = (3 << 32) + 1;
        let geometry = Geometry::new(&program(2), Rank(0), count, DType::F64, 1).unwrap();
        assert_eq!(geometry.piece(slice(Buffer::Input, 4), 3, 0).end as u64, 16 * count);
        for count in [u64::MAX, u64::MAX / 16, 1 << 60] {
            let error = Geometry::new(&program(2), Rank(0), count, DType::F64, 1).unwrap_err();
            assert!(matches!(error, RunError::TooLarge { .. }), "{error}");
        }
    }

    #[test]
    fn tiles_have_about_the_bytes_asked_for() {
        let tiles = |count, bytes| tiles_of(&program(4), count, DType::F32, bytes);
        assert_eq!([tiles(0, 100), tiles(100, 100), tiles(101, 100), tiles(1000, 100)], [1, 1, 2, 10]);
    }
}
