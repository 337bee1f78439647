//! Where the slots of a program lie in buffers of a given element count.
//!
//! The principal type is [`Geometry`]. The program's shape says how many elements a slot has. A slot is cut into tiles
//! by the same rule as a block into slots: pieces are balanced without padding, and with fewer elements than pieces
//! some pieces are empty.
//!
//! Scratch has room for only a few tiles of each slot, which tiles use in turn. So scratch stays in cache, and a relay
//! needs no memory for everything that passes. The interpreter keeps a rank's threadblocks close enough together. Every
//! wait that this adds is for an earlier tile, as if the program ran tile after tile, so it causes no deadlock.

use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use program::{Buffer, Program, Slice, balanced};
use std::ops::Range;
use topology::Rank;

/// How many tiles of a scratch slot have room. A threadblock may be this far ahead of the last one of its rank.
pub(crate) const SCRATCH_TILES: u32 = 4;

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
    tiles: u32,
    /// The bytes of an element.
    element: u64,
    /// For each buffer, the starts of its slots and the end of the last one, in elements.
    slots: [Vec<u64>; 3],
    /// The elements of each scratch slot. The scratch buffer may have room for fewer.
    scratch: Vec<u64>,
}

const BUFFERS: [Buffer; 3] = [Buffer::Input, Buffer::Output, Buffer::Scratch];

impl Geometry {
    /// # Errors
    /// [`RunError::TooLarge`] if the buffers cannot be addressed; [`RunError::Indivisible`] if the program needs equal
    /// slots and `count` does not give them.
    pub(crate) fn new(program: &Program, rank: Rank, count: u64, dtype: DType, tiles: u32) -> RunResult<Self> {
        let too_large = || RunError::TooLarge { elements: count, dtype };
        if program.uniform && !program.shape.divides(count) {
            return Err(RunError::Indivisible { elements: count, parts: program.shape.parts() });
        }
        let own = &program.ranks[rank.index()];
        let lengths = |buffer| own.parts(buffer).iter().map(|&part| program.shape.length(count, part));
        for buffer in BUFFERS {
            let elements = lengths(buffer).try_fold(0u64, u64::checked_add);
            let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size() as u64));
            bytes.filter(|&bytes| bytes <= isize::MAX as u64).ok_or_else(too_large)?;
        }
        let tiles = tiles.max(1);
        let room = |length: u64| match tiles {
            0..=SCRATCH_TILES => length,
            _ => length.div_ceil(u64::from(tiles)) * u64::from(SCRATCH_TILES),
        };
        let slots = BUFFERS.map(|buffer| match buffer {
            Buffer::Input | Buffer::Output => starts(lengths(buffer)),
            Buffer::Scratch => starts(lengths(buffer).map(room)),
        });
        let scratch = lengths(Buffer::Scratch).collect();
        Ok(Self { tiles, element: dtype.size() as u64, slots, scratch })
    }

    /// A layout of scratch slots with these lengths in bytes, and no other buffer.
    pub(crate) fn of_slots(lengths: impl Iterator<Item = usize>) -> Self {
        let scratch: Vec<u64> = lengths.map(|bytes| bytes as u64).collect();
        let slots = [vec![0], vec![0], starts(scratch.iter().copied())];
        Self { tiles: 1, element: 1, slots, scratch }
    }

    pub(crate) fn tiles(&self) -> usize {
        self.tiles as usize
    }

    /// The elements of a slot.
    fn slot(&self, buffer: Buffer, slot: u32) -> Range<u64> {
        let starts = &self.slots[buffer as usize];
        starts[slot as usize]..starts[slot as usize + 1]
    }

    /// The bytes of one tile of the `index`-th slot of a slice.
    pub(crate) fn piece(&self, slice: Slice, index: u32, tile: usize) -> Range<usize> {
        let index = slice.index + index;
        let slot = self.slot(slice.buffer, index);
        if slice.buffer == Buffer::Scratch && self.tiles > SCRATCH_TILES {
            let length = self.scratch[index as usize];
            let start = slot.start + tile as u64 % u64::from(SCRATCH_TILES) * length.div_ceil(u64::from(self.tiles));
            let tile = balanced(length, self.tiles, tile as u32);
            return self.bytes(start)..self.bytes(start + tile.end - tile.start);
        }
        let tile = balanced(slot.end - slot.start, self.tiles, tile as u32);
        self.bytes(slot.start + tile.start)..self.bytes(slot.start + tile.end)
    }

    /// The bytes of a whole slice, if there is only one tile: its slots lie one after the other.
    pub(crate) fn whole(&self, slice: Slice) -> Range<usize> {
        let starts = &self.slots[slice.buffer as usize];
        self.bytes(starts[slice.index as usize])..self.bytes(starts[(slice.index + slice.count) as usize])
    }

    /// How many tiles a threadblock may be ahead of the last one of its rank.
    pub(crate) fn tiles_ahead(&self) -> usize {
        if self.scratch.is_empty() { usize::MAX } else { SCRATCH_TILES as usize }
    }

    /// The bytes of one tile of a whole slice.
    pub(crate) fn slice_bytes(&self, slice: Slice, tile: usize) -> usize {
        (0..slice.count).map(|index| self.piece(slice, index, tile).len()).sum()
    }

    /// The bytes of the first slot of a slice, all tiles of it.
    pub(crate) fn slot_bytes(&self, slice: Slice) -> Range<usize> {
        self.piece(slice, 0, 0).start..self.piece(slice, 0, self.tiles() - 1).end
    }

    /// The bytes of `elements` elements. They can be addressed, as [`Self::new`] checked.
    fn bytes(&self, elements: u64) -> usize {
        (elements * self.element) as usize
    }

    /// The bytes of a buffer.
    pub(crate) fn buffer_bytes(&self, buffer: Buffer) -> usize {
        self.slots[buffer as usize].last().map_or(0, |&end| self.bytes(end))
    }
}

/// The number of tiles for which a tile of the largest slot has about `tile_bytes` bytes.
pub(crate) fn tiles_of(program: &Program, count: u64, dtype: DType, tile_bytes: usize) -> u32 {
    let slots = (0..program.shape.parts()).map(|part| program.shape.length(count, part));
    let slot = slots.max().unwrap_or(0).saturating_mul(dtype.size() as u64);
    u32::try_from(slot.div_ceil(tile_bytes.max(1) as u64)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::{PartShape, RankProgram, Tempo};
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;

    fn program(parts: u32) -> Program {
        let input_parts = (0..2 * parts).map(|slot| slot % parts).collect();
        let own = RankProgram { input_parts, scratch_parts: vec![parts - 1, 0], ..RankProgram::default() };
        let demand = Demand::new(Request::new(Collective::AllGather, 1, 0)).unwrap();
        let (connections, ranks, shape) = (Vec::new(), vec![own], PartShape::Equal { parts });
        let (op, tempo) = (None, Tempo::default());
        Program { demand: Arc::new(demand), op, in_place: false, shape, uniform: false, connections, ranks, tempo }
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
            assert_eq!(geometry.buffer_bytes(Buffer::Input), end);
        }
    }

    #[test]
    fn slots_that_are_one_tile_are_neighbours() {
        for (parts, count) in [(1, 0), (3, 2), (3, 10), (5, 1003)] {
            let geometry = Geometry::new(&program(parts), Rank(0), count, DType::F64, 1).unwrap();
            for (buffer, slots) in [(Buffer::Input, 2 * parts), (Buffer::Scratch, 2)] {
                for (index, end) in (0..slots).flat_map(|index| (index + 1..=slots).map(move |end| (index, end))) {
                    let slice = Slice { buffer, index, count: end - index };
                    let whole = geometry.whole(slice);
                    assert_eq!(whole.start, geometry.piece(slice, 0, 0).start);
                    assert_eq!(whole.end, geometry.piece(slice, slice.count - 1, 0).end);
                    assert_eq!(whole.len(), geometry.slice_bytes(slice, 0));
                }
            }
        }
    }

    #[test]
    fn tiles_of_scratch_take_turns() {
        for (count, tiles) in [(0, 9), (1, 9), (10, 5), (1003, 7), (64, 4)] {
            let geometry = Geometry::new(&program(3), Rank(0), count, DType::F64, tiles).unwrap();
            let piece = |slot, tile| geometry.piece(slice(Buffer::Scratch, 2), slot, tile);
            let end = geometry.buffer_bytes(Buffer::Scratch);
            for tile in 0..tiles as usize {
                // Tiles that may be in use at the same time do not overlap.
                let near = (tile..tiles as usize).take(geometry.tiles_ahead());
                let mut pieces: Vec<_> = near.flat_map(|tile| [piece(0, tile), piece(1, tile)]).collect();
                pieces.retain(|piece| !piece.is_empty());
                pieces.sort_unstable_by_key(|piece| piece.start);
                assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start), "{count} elements, {tiles} tiles");
                assert!(pieces.iter().all(|piece| piece.end <= end));
                let lengths = [2, 0].map(|part| balanced(program(3).shape.length(count, part), tiles, tile as u32));
                let lengths = lengths.map(|range| 8 * (range.end - range.start) as usize);
                assert_eq!([piece(0, tile).len(), piece(1, tile).len()], lengths);
            }
        }
    }

    #[test]
    fn scratch_slots_have_the_shape_of_their_part() {
        let geometry = Geometry::new(&program(3), Rank(0), 10, DType::F32, 1).unwrap();
        // 10 elements in 3 parts: 3, 3, 4.
        assert_eq!(geometry.piece(slice(Buffer::Scratch, 2), 0, 0), 0..16);
        assert_eq!(geometry.piece(slice(Buffer::Scratch, 2), 1, 0), 16..28);
        assert_eq!(
            (geometry.buffer_bytes(Buffer::Scratch), geometry.slice_bytes(slice(Buffer::Scratch, 2), 0)),
            (28, 28)
        );
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
    fn equal_slots_need_a_count_that_divides() {
        let uniform = Program { uniform: true, ..program(4) };
        assert!(Geometry::new(&uniform, Rank(0), 12, DType::F32, 1).is_ok());
        let error = Geometry::new(&uniform, Rank(0), 13, DType::F32, 1).unwrap_err();
        assert!(matches!(error, RunError::Indivisible { elements: 13, parts: 4 }), "{error}");
    }

    #[test]
    fn tiles_have_about_the_bytes_asked_for() {
        let tiles = |count, bytes| tiles_of(&program(4), count, DType::F32, bytes);
        assert_eq!([tiles(0, 100), tiles(100, 100), tiles(101, 100), tiles(1000, 100)], [1, 1, 2, 10]);
    }
}
