//! Where the chunks of a collective are in the caller's buffers.
//!
//! The principal type is [`Layout`]: for every rank, which slot of which buffer holds a chunk at the start and at the
//! end. It is the only code that knows the buffers of each collective, as NCCL defines them. Lowering and the checker
//! both use it, and share nothing else.
//!
//! | file | arrangement |
//! |---|---|
//! | `blocks` | standard collectives: chunks are parts of equal blocks |
//! | `listed` | chunks listed one by one, each of its own size |
//!
//! In a standard collective `count` is the number of elements of one **block**. A block is cut into equal
//! [`PartShape`] parts, so slot s of a buffer is part `s mod parts` of block `s / parts`. With k members, C chunks per
//! rank, and m the position of the rank among the members:
//!
//! | collective | parts | input blocks | output blocks | `count` is | in place |
//! |---|---|---|---|---|---|
//! | allgather | C | 1 | k | what a rank sends | input is output block m |
//! | reducescatter | C | k | 1 | what a rank receives | output is input block m |
//! | allreduce | k·C | 1 | 1 | the whole buffer | same memory |
//! | alltoall | C | k | k | what a pair exchanges | same memory |
//! | broadcast | C | root 1 | 1 | the whole buffer | root: same memory |
//! | reduce | C | 1 | root 1 | the whole buffer | root: same memory |
//! | gather | C | 1 | root k | what a rank sends | root: input is output block m |
//! | scatter | C | root k | 1 | what a rank receives | root: output is input block m |
//! | sendrecv | C | 1 | 1 | the whole buffer | same memory |
//!
//! Ranks that are not members have no buffers; they relay through scratch. In place, a rank with both buffers has only
//! the larger one (the output where they are equal); a rank with only one buffer has the same as out of place.
//!
//! Where chunks are listed one by one (`alltoallv`, `custom`), every chunk is a part with its own size. A rank's input
//! has the chunks that it holds and its output those that it wants, both in order of chunk. `count` elements have the
//! bytes of the request's size. In place, a rank with both buffers has one of three forms:
//!
//! * its input is a run of slots of its output with the same chunks;
//! * its output is a run of slots of its input with the same chunks;
//! * both are the same memory, if every chunk that it wants is as large as the chunk that it holds in the same slot
//!   (alltoallv with a symmetric matrix).
//!
//! If some rank allows none of the three, the collective has no in-place form.

mod blocks;
mod listed;

use crate::{Buffer, PartShape, Slice};
use blocks::Blocks;
use listed::ListedChunks;
use schedule::{ChunkId, Collective, Demand, Request};
use std::sync::Arc;
use topology::Rank;

/// The most slots that one buffer may have.
const MAX_SLOTS: u64 = schedule::MAX_CHUNKS as u64;

/// Why the buffers of a collective have no layout.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A rank's input and output cannot share memory ([`Layout`] says when they can).
    #[error(
        "this {collective} has no in-place form: at rank {rank}, neither input nor output is a run of the other's chunks, \
         and their chunks have different sizes"
    )]
    NotInPlace {
        /// The collective.
        collective: Collective,
        /// The first such rank.
        rank: Rank,
    },
    /// A buffer would have too many slots.
    #[error("a buffer would have {slots} slots, more than the {limit} that are supported; use fewer chunks")]
    TooManySlots {
        /// How many there would be.
        slots: u64,
        /// The most that is accepted.
        limit: u64,
    },
}

/// One slot of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// The buffer.
    pub buffer: Buffer,
    /// The slot's number in it.
    pub index: u32,
}

impl Slot {
    /// `count` slots from this one on.
    pub fn slice(self, count: u32) -> Slice {
        Slice { buffer: self.buffer, index: self.index, count }
    }

    /// The slot `distance` further on.
    #[must_use]
    pub fn plus(self, distance: u32) -> Self {
        Self { index: self.index + distance, ..self }
    }
}

/// Where the chunks of a demand start and end.
#[derive(Clone, Debug)]
pub struct Layout {
    demand: Arc<Demand>,
    shape: PartShape,
    arrangement: Arrangement,
    /// For each rank.
    buffers: Vec<CallerBuffers>,
}

/// The buffers that a rank's caller gives.
#[derive(Clone, Copy, Debug)]
struct CallerBuffers {
    /// The numbers of slots of input and output, each as out of place.
    input: u32,
    output: u32,
    /// In place: how the two buffers are one.
    merged: Option<BufferMerge>,
}

/// One buffer in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BufferMerge {
    /// The larger buffer, whose name stands for both.
    into: Buffer,
    /// The slot of the larger where the smaller starts.
    at: u32,
}

/// How chunks are arranged in buffers.
#[derive(Clone, Debug)]
enum Arrangement {
    Blocks(Blocks),
    Listed(ListedChunks),
}

impl Layout {
    /// The layout of a demand.
    ///
    /// # Errors
    /// [`LayoutError::NotInPlace`] where chunks are listed one by one and do not allow it, and
    /// [`LayoutError::TooManySlots`].
    pub fn new(demand: Arc<Demand>, in_place: bool) -> Result<Self, LayoutError> {
        let (arrangement, shape) = if demand.request().collective.is_listed() {
            let (listed, shape) = ListedChunks::of(&demand);
            (Arrangement::Listed(listed), shape)
        } else {
            let blocks = Blocks::of(demand.request())?;
            let shape = PartShape::Equal { parts: blocks.parts };
            (Arrangement::Blocks(blocks), shape)
        };
        let ranks = (0..demand.request().ranks).map(Rank::from_index);
        let buffers = ranks.map(|rank| match &arrangement {
            Arrangement::Blocks(blocks) => Ok(blocks.buffers(demand.request(), rank, in_place)),
            Arrangement::Listed(listed) => listed.buffers(demand.request().collective, rank, in_place),
        });
        let buffers = buffers.collect::<Result<_, _>>()?;
        Ok(Self { demand, shape, arrangement, buffers })
    }

    /// The sizes of slots.
    pub fn shape(&self) -> &PartShape {
        &self.shape
    }

    /// How many slots a block of a caller's buffer has; a listed chunk is its own block.
    pub(super) fn block_parts(&self) -> u32 {
        match &self.arrangement {
            Arrangement::Blocks(blocks) => blocks.parts,
            Arrangement::Listed(_) => 1,
        }
    }

    /// How many slots `rank` has in `buffer`, one of the caller's buffers; 0 for scratch.
    pub fn slots(&self, rank: Rank, buffer: Buffer) -> u32 {
        let CallerBuffers { input, output, merged } = self.buffers[rank.index()];
        match buffer {
            _ if merged.is_some_and(|merged| merged.into != buffer) => 0,
            Buffer::Input => input,
            Buffer::Output => output,
            Buffer::Scratch => 0,
        }
    }

    /// For each slot of `rank`'s `buffer` the part with its shape.
    pub fn slot_parts(&self, rank: Rank, buffer: Buffer) -> impl Iterator<Item = u32> {
        (0..self.slots(rank, buffer)).map(move |slot| match &self.arrangement {
            Arrangement::Blocks(blocks) => slot % blocks.parts,
            Arrangement::Listed(listed) => listed.part_of(listed.chunks(rank, buffer)[slot as usize]),
        })
    }

    /// The part with the shape of a chunk.
    pub fn part_of(&self, chunk: ChunkId) -> u32 {
        match &self.arrangement {
            Arrangement::Blocks(blocks) => chunk.0 % blocks.parts,
            Arrangement::Listed(listed) => listed.part_of(chunk.0),
        }
    }

    /// The slot of `chunk` at `rank` when the program starts; `None` unless the rank holds it.
    pub fn input_slot(&self, chunk: ChunkId, rank: Rank) -> Option<Slot> {
        let index = match &self.arrangement {
            Arrangement::Blocks(blocks) => {
                self.demand.chunk(chunk).holders.has(rank).then(|| blocks.input(self.request(), chunk))
            }
            Arrangement::Listed(listed) => listed.index(chunk, rank, Buffer::Input),
        };
        Some(self.seen(rank, Slot { buffer: Buffer::Input, index: index? }))
    }

    /// The slot of `chunk` at `rank` when the program ends; `None` unless the rank wants it.
    pub fn output_slot(&self, chunk: ChunkId, rank: Rank) -> Option<Slot> {
        let index = match &self.arrangement {
            Arrangement::Blocks(blocks) => {
                self.demand.chunk(chunk).wanted_by.has(rank).then(|| blocks.output(self.request(), chunk))
            }
            Arrangement::Listed(listed) => listed.index(chunk, rank, Buffer::Output),
        };
        Some(self.seen(rank, Slot { buffer: Buffer::Output, index: index? }))
    }

    /// The name of a caller's slot in a program: in place, slots of the smaller buffer have names in the larger one.
    pub fn seen(&self, rank: Rank, slot: Slot) -> Slot {
        match self.buffers[rank.index()].merged {
            Some(BufferMerge { into, at }) if slot.buffer != Buffer::Scratch && slot.buffer != into => {
                Slot { buffer: into, index: at + slot.index }
            }
            _ => slot,
        }
    }

    /// The block that a member of an alltoall keeps for itself. It is not a chunk, because it does not move. In place,
    /// input and output are the same slots.
    pub fn own_block(&self, rank: Rank) -> Option<OwnBlock> {
        let Arrangement::Blocks(blocks) = &self.arrangement else { return None };
        if !self.request().collective.has_own_blocks() {
            return None;
        }
        let index = blocks::member(self.request(), rank)? * blocks.parts;
        let slice = |buffer| self.seen(rank, Slot { buffer, index }).slice(blocks.parts);
        Some(OwnBlock { input: slice(Buffer::Input), output: slice(Buffer::Output) })
    }

    /// A rank's output slots: all that a program may write besides scratch.
    pub fn output(&self, rank: Rank) -> Slice {
        self.seen(rank, Slot { buffer: Buffer::Output, index: 0 }).slice(self.buffers[rank.index()].output)
    }

    fn request(&self) -> &Request {
        self.demand.request()
    }
}

/// The block that a member of an alltoall keeps for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnBlock {
    /// Its slots at the start.
    pub input: Slice,
    /// Its slots at the end.
    pub output: Slice,
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Chunk, RankSet};
    use topology::Bytes;

    fn layout(collective: Collective, in_place: bool) -> Layout {
        let mut request = Request::new(collective, 6, 64).with_chunks(2);
        request.members = RankSet::from_iter([Rank(1), Rank(3), Rank(4)]);
        request.root = request.root.map(|_| Rank(3));
        Layout::new(Arc::new(Demand::new(request).unwrap()), in_place).unwrap()
    }

    fn standard() -> impl Iterator<Item = (Collective, bool)> {
        let kinds = Collective::ALL.iter().filter(|kind| !kind.is_listed());
        kinds.flat_map(|&kind| [(kind, false), (kind, true)])
    }

    #[test]
    fn outputs_are_covered_exactly_once() {
        for (collective, in_place) in standard() {
            let layout = layout(collective, in_place);
            for rank in (0..6).map(Rank) {
                let wanted = layout.demand.chunk_ids().filter_map(|chunk| layout.output_slot(chunk, rank));
                let own = layout.own_block(rank).map(|own| own.output);
                let own =
                    own.into_iter().flat_map(|own| (own.index..own.index + own.count).map(move |i| (own.buffer, i)));
                let mut slots: Vec<(Buffer, u32)> = wanted.map(|slot| (slot.buffer, slot.index)).chain(own).collect();
                slots.sort_unstable();
                let output = layout.output(rank);
                let expected = (output.index..output.index + output.count).map(|index| (output.buffer, index));
                assert_eq!(slots, expected.collect::<Vec<_>>(), "{collective} at rank {rank}");
            }
        }
    }

    #[test]
    fn inputs_are_distinct_slots_of_their_buffer() {
        for (collective, in_place) in standard() {
            let layout = layout(collective, in_place);
            for rank in (0..6).map(Rank) {
                let held = layout.demand.chunk_ids().filter_map(|chunk| layout.input_slot(chunk, rank));
                let mut slots: Vec<Slot> = held.collect();
                let count = slots.len();
                slots.sort_unstable();
                slots.dedup();
                assert_eq!(slots.len(), count, "{collective} at rank {rank}");
                assert!(slots.iter().all(|slot| slot.index < layout.slots(rank, slot.buffer)));
            }
        }
    }

    #[test]
    fn in_place_the_smaller_buffer_lies_in_the_larger() {
        let gather = layout(Collective::AllGather, true);
        assert_eq!(gather.input_slot(ChunkId(3), Rank(3)), Some(Slot { buffer: Buffer::Output, index: 3 }));
        assert_eq!(gather.slots(Rank(3), Buffer::Input), 0);
        let scatter = layout(Collective::ReduceScatter, true);
        assert_eq!(scatter.output(Rank(4)), Slice { buffer: Buffer::Input, index: 4, count: 2 });
        assert_eq!(scatter.slots(Rank(4), Buffer::Output), 0);
        let broadcast = layout(Collective::Broadcast, true);
        assert_eq!(broadcast.input_slot(ChunkId(1), Rank(3)), Some(Slot { buffer: Buffer::Output, index: 1 }));
        // Not a member: no buffers.
        assert_eq!(gather.slots(Rank(0), Buffer::Output), 0);
    }

    #[test]
    fn listed_chunks_lie_in_order_with_their_own_sizes() {
        let mut request = Request::new(Collective::AllToAllV, 4, 0).with_chunks(2);
        request.members = RankSet::from_iter([Rank(0), Rank(2), Rank(3)]);
        let matrix = [vec![8, 4, 0], vec![0, 0, 12], vec![2, 6, 0]];
        let layout = Layout::new(Arc::new(Demand::from_matrix(request, &matrix).unwrap()), false).unwrap();
        // Rank 0 sends 12 bytes, of which it keeps 8, and no member sends more.
        assert_eq!(layout.request().size_bytes, 12);
        let sizes = |rank, buffer| {
            let parts = layout.slot_parts(Rank(rank), buffer);
            parts.map(|part| layout.shape().length(12, part)).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0, Buffer::Input), [4, 4, 2, 2]);
        assert_eq!(sizes(0, Buffer::Output), [4, 4, 1, 1]);
        assert_eq!(sizes(2, Buffer::Input), [6, 6]);
        assert_eq!(sizes(2, Buffer::Output), [2, 2, 3, 3]);
        assert_eq!(layout.slots(Rank(1), Buffer::Input), 0);
        for chunk in layout.demand.chunk_ids() {
            let Chunk { holders, wanted_by, .. } = layout.demand.chunk(chunk);
            let (from, to) = (holders[0], wanted_by[0]);
            let (input, output) = (layout.input_slot(chunk, from).unwrap(), layout.output_slot(chunk, to).unwrap());
            assert_eq!(layout.slot_parts(from, Buffer::Input).nth(input.index as usize), Some(layout.part_of(chunk)));
            assert_eq!(layout.slot_parts(to, Buffer::Output).nth(output.index as usize), Some(layout.part_of(chunk)));
        }
    }

    /// For ranks 0, 1, …: the chunks that they hold and want. Chunks have one byte each, the last one two.
    fn in_place(ranks: &[(&[u32], &[u32])]) -> Result<Layout, LayoutError> {
        let most = ranks.iter().flat_map(|(held, wanted)| held.iter().chain(*wanted)).max().unwrap();
        let having = |chunk: u32, chunks: &dyn Fn(usize) -> Vec<u32>| {
            RankSet::from_iter((0..ranks.len()).filter(|&rank| chunks(rank).contains(&chunk)).map(Rank::from_index))
        };
        let chunks = (0..=*most).map(|chunk| Chunk {
            holders: having(chunk, &|rank| ranks[rank].0.to_vec()),
            wanted_by: having(chunk, &|rank| ranks[rank].1.to_vec()),
            combine: false,
            bytes: Some(Bytes(if chunk == *most { 2.0 } else { 1.0 })),
            release: topology::Micros::ZERO,
        });
        let request = Request::new(Collective::Custom, ranks.len(), 8);
        Layout::new(Arc::new(Demand::from_chunks(request, chunks.collect()).unwrap()), true)
    }

    #[test]
    fn listed_chunks_share_memory_where_they_lie_alike() {
        // Rank 0's input is a run of its output, rank 1's output a run of its input, and rank 2's two buffers are
        // equally large.
        let layout = in_place(&[(&[1, 2], &[0, 1, 2, 4]), (&[0, 2, 3, 4], &[2, 3]), (&[0, 4], &[3, 4])]);
        let layout = layout.unwrap();
        let slot = |buffer, index| Some(Slot { buffer, index });
        assert_eq!(layout.input_slot(ChunkId(2), Rank(0)), slot(Buffer::Output, 2));
        assert_eq!(layout.output_slot(ChunkId(2), Rank(0)), slot(Buffer::Output, 2));
        assert_eq!(layout.output(Rank(1)), Slice { buffer: Buffer::Input, index: 1, count: 2 });
        assert_eq!(layout.output_slot(ChunkId(3), Rank(1)), slot(Buffer::Input, 2));
        assert_eq!(layout.input_slot(ChunkId(0), Rank(2)), slot(Buffer::Output, 0));
        assert_eq!(layout.output_slot(ChunkId(3), Rank(2)), slot(Buffer::Output, 0));
        assert_eq!(layout.slots(Rank(0), Buffer::Input) + layout.slots(Rank(1), Buffer::Output), 0);
        let refused = in_place(&[(&[0, 1], &[0, 1]), (&[0, 2], &[0, 1])]).unwrap_err();
        assert_eq!(refused, LayoutError::NotInPlace { collective: Collective::Custom, rank: Rank(1) });
        assert!(refused.to_string().contains("rank 1"), "{refused}");
    }

    #[test]
    fn what_has_no_layout_is_refused() {
        let request = Request::new(Collective::AllToAllV, 2, 8);
        let demand = Demand::from_matrix(request, &[vec![0, 4], vec![8, 0]]).unwrap();
        let refused = Layout::new(Arc::new(demand), true).unwrap_err();
        assert_eq!(refused, LayoutError::NotInPlace { collective: Collective::AllToAllV, rank: Rank(0) });
        let many = Request::new(Collective::Broadcast, 512, 8).with_chunks(1 << 16);
        assert!(Layout::new(Arc::new(Demand::new(many).unwrap()), false).is_ok());
        let many = Request::new(Collective::AllToAll, 1, 8).with_chunks(u32::MAX);
        let refused = Layout::new(Arc::new(Demand::new(many).unwrap()), false).unwrap_err();
        assert!(matches!(refused, LayoutError::TooManySlots { .. }));
    }
}
