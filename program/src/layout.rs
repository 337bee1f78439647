//! Where chunks live in the caller's buffers.
//!
//! The principal type is [`Layout`]: for every rank, which slot of which buffer holds a chunk at the start and
//! at the end. It is the one place that knows what nccl means by a buffer of each collective; lowering and the
//! program verifier both read it, and nothing else about each other.
//!
//! In a standard collective `count` is the number of elements of one **block**. A block is cut into equal
//! [`Shape`] parts, so slot s of a buffer is part `s mod parts` of block `s / parts`. With k members, C chunks per
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
//! Ranks that are not members have neither buffer; they relay through scratch. In place, a rank that has both
//! buffers sees one, under the name of the larger (output where they are equal); a rank that has one of them
//! sees no difference.
//!
//! Where chunks are listed one by one (`alltoallv`, `custom`), every chunk is a part of its own size, a rank's
//! input is what it holds and its output what it wants, both in order of chunk. `count` elements have the bytes
//! of the request's size. In place, a rank that has both finds its input where its output has the same chunks, or
//! its output where its input has them, if that is one run of slots; or, if every chunk that it wants is as large as
//! the one that it holds in the same slot (alltoallv with a symmetric matrix), both are the same memory. Where some
//! rank has none of the three, there is no in-place form.

use super::{Buffer, LowerError, Shape, Slice};
use schedule::{Chunk, ChunkId, Collective, Demand, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::Rank;

/// The most slots that one buffer may have.
const MAX_SLOTS: u64 = schedule::MAX_CHUNKS as u64;

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

/// How many blocks each buffer of one rank has, before in-place merging.
#[derive(Clone, Copy)]
struct Blocks {
    input: u32,
    output: u32,
}

/// Where the chunks of a demand start and end.
#[derive(Clone, Debug)]
pub struct Layout {
    demand: Arc<Demand>,
    in_place: bool,
    shape: Shape,
    /// Parts of a block of a standard collective.
    parts: u32,
    listed: Option<Listed>,
}

/// For each rank the chunks that it holds and wants, ascending.
#[derive(Clone, Debug)]
struct Listed {
    held: Vec<Vec<u32>>,
    wanted: Vec<Vec<u32>>,
    /// For each chunk the part whose shape it has: the first chunk that is cut alike.
    parts: Vec<u32>,
    /// For each rank, in place, where one buffer lies in the other.
    merged: Vec<Option<Merged>>,
}

/// One buffer in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Merged {
    /// The larger, under whose name both are known.
    into: Buffer,
    /// The slot of the larger where the smaller starts.
    at: u32,
}

impl Listed {
    fn of(demand: &Demand, cuts: &[(f64, f64)]) -> Self {
        let request = demand.request();
        let none = vec![Vec::new(); request.ranks];
        let mut first: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        // Exactly alike, so that their shares are, too.
        let exact = |&(start, end): &(f64, f64)| (start.to_bits(), end.to_bits());
        let parts = (0..).zip(cuts).map(|(chunk, cut)| *first.entry(exact(cut)).or_insert(chunk)).collect();
        let mut listed = Self { held: none.clone(), wanted: none, parts, merged: vec![None; request.ranks] };
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            chunk.holders.iter().for_each(|rank| listed.held[rank.index()].push(id.0));
            chunk.wanted_by.iter().for_each(|rank| listed.wanted[rank.index()].push(id.0));
        }
        listed
    }

    /// The same with both buffers of every rank in one.
    fn in_place(mut self, collective: Collective) -> Result<Self, LowerError> {
        for rank in 0..self.held.len() {
            let (held, wanted) = (&self.held[rank], &self.wanted[rank]);
            if held.is_empty() || wanted.is_empty() {
                continue;
            }
            let shape = |chunks: &[u32]| chunks.iter().map(|&chunk| self.parts[chunk as usize]).collect::<Vec<_>>();
            let merged = if let Some(at) = run_in(held, wanted) {
                Merged { into: Buffer::Output, at }
            } else if let Some(at) = run_in(wanted, held) {
                Merged { into: Buffer::Input, at }
            } else if shape(held) == shape(wanted) {
                Merged { into: Buffer::Output, at: 0 }
            } else {
                return Err(LowerError::NotInPlace { collective, rank: Rank::from_index(rank) });
            };
            self.merged[rank] = Some(merged);
        }
        Ok(self)
    }

    fn chunks(&self, rank: Rank, buffer: Buffer) -> &[u32] {
        match buffer {
            Buffer::Input => &self.held[rank.index()],
            Buffer::Output => &self.wanted[rank.index()],
            Buffer::Scratch => &[],
        }
    }

    fn slot(&self, chunk: ChunkId, rank: Rank, buffer: Buffer) -> Option<Slot> {
        let index = self.chunks(rank, buffer).binary_search(&chunk.0).ok()?;
        Some(Slot { buffer, index: index as u32 })
    }
}

/// Where the chunks of `small` are in `large`, if they are one run there.
fn run_in(small: &[u32], large: &[u32]) -> Option<u32> {
    let at = large.binary_search(small.first()?).ok()?;
    (large.get(at..at + small.len())? == small).then_some(at as u32)
}

/// In bytes, where each chunk starts and ends among those before it that have the same holders and go to the same ranks;
/// so rounding does not drift.
fn cuts(demand: &Demand) -> Vec<(f64, f64)> {
    let chunks = demand.chunks();
    let alike = |a: &Chunk, b: &Chunk| a.holders == b.holders && a.wanted_by == b.wanted_by;
    let mut end = 0.0_f64;
    let cuts = demand.chunk_ids().map(|id| {
        let index = id.index();
        let start = if index > 0 && alike(&chunks[index - 1], &chunks[index]) { end } else { 0.0 };
        end = start + demand.bytes_of(id).0;
        (start, end)
    });
    cuts.collect()
}

impl Layout {
    /// The layout of a demand.
    ///
    /// # Errors
    /// [`LowerError::NotInPlace`] where chunks are listed one by one and do not allow it, and
    /// [`LowerError::TooManySlots`].
    pub fn new(demand: Arc<Demand>, in_place: bool) -> Result<Self, LowerError> {
        let request = demand.request();
        let (members, per_rank) = (request.members.len() as u64, u64::from(request.chunks_per_rank));
        let (parts, blocks) = match request.collective {
            Collective::AllToAllV | Collective::Custom => {
                let cuts = cuts(&demand);
                let listed = Listed::of(&demand, &cuts);
                let listed = Some(if in_place { listed.in_place(request.collective)? } else { listed });
                let cuts = cuts.into_iter().map(|(start, end)| (start.round() as u64, end.round() as u64));
                let shape = Shape::Weighted { cuts: cuts.collect(), unit: request.size_bytes };
                return Ok(Self { in_place, parts: shape.parts(), shape, listed, demand });
            }
            Collective::AllReduce => (members.saturating_mul(per_rank), 1),
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => (per_rank, 1),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (per_rank, members),
            Collective::Gather | Collective::Scatter => (per_rank, members),
        };
        let largest = parts.saturating_mul(blocks);
        if largest > MAX_SLOTS {
            return Err(LowerError::TooManySlots { slots: largest, limit: MAX_SLOTS });
        }
        let parts = parts as u32;
        Ok(Self { in_place, parts, shape: Shape::Equal { parts }, listed: None, demand })
    }

    /// The sizes of slots.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many slots a block of a caller's buffer has; a listed chunk is a block by itself.
    pub(super) fn block_parts(&self) -> u32 {
        if self.listed.is_some() { 1 } else { self.parts }
    }

    /// How many slots `rank` has in `buffer`; the caller's buffers only, so none for scratch.
    pub fn slots(&self, rank: Rank, buffer: Buffer) -> u32 {
        let merged = self.merged(rank);
        let visible = merged.is_none() || merged == Some(buffer);
        if let Some(listed) = &self.listed {
            return if visible { listed.chunks(rank, buffer).len() as u32 } else { 0 };
        }
        let blocks = self.blocks(rank);
        match buffer {
            Buffer::Input if visible => blocks.input * self.parts,
            Buffer::Output if visible => blocks.output * self.parts,
            _ => 0,
        }
    }

    /// For each slot of `rank`'s `buffer` the part whose shape it has.
    pub fn slot_parts(&self, rank: Rank, buffer: Buffer) -> impl Iterator<Item = u32> {
        let listed = self.listed.as_ref().map(|listed| (listed, listed.chunks(rank, buffer)));
        (0..self.slots(rank, buffer)).map(move |slot| match listed {
            Some((listed, chunks)) => listed.parts[chunks[slot as usize] as usize],
            None => slot % self.parts,
        })
    }

    /// The part that has the shape of a chunk.
    pub fn part_of(&self, chunk: ChunkId) -> u32 {
        self.listed.as_ref().map_or(chunk.0 % self.parts, |listed| listed.parts[chunk.index()])
    }

    /// Where `rank` finds `chunk` when the program starts; `None` unless the rank holds it.
    pub fn input_slot(&self, chunk: ChunkId, rank: Rank) -> Option<Slot> {
        if let Some(listed) = &self.listed {
            return Some(self.seen(rank, listed.slot(chunk, rank, Buffer::Input)?));
        }
        if !self.demand.chunk(chunk).holders.has(rank) {
            return None;
        }
        let block = match self.request().collective {
            Collective::ReduceScatter | Collective::Scatter => chunk.0 / self.parts,
            Collective::AllToAll => self.pair(chunk).1,
            Collective::AllGather | Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 0,
            Collective::Gather | Collective::SendRecv | Collective::AllToAllV | Collective::Custom => 0,
        };
        let index = block * self.parts + self.part_of(chunk);
        Some(self.seen(rank, Slot { buffer: Buffer::Input, index }))
    }

    /// Where `rank` must have `chunk` when the program ends; `None` unless the rank wants it.
    pub fn output_slot(&self, chunk: ChunkId, rank: Rank) -> Option<Slot> {
        if let Some(listed) = &self.listed {
            return Some(self.seen(rank, listed.slot(chunk, rank, Buffer::Output)?));
        }
        if !self.demand.chunk(chunk).wanted_by.has(rank) {
            return None;
        }
        let block = match self.request().collective {
            Collective::AllGather | Collective::Gather => chunk.0 / self.parts,
            Collective::AllToAll => self.pair(chunk).0,
            Collective::ReduceScatter | Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 0,
            Collective::Scatter | Collective::SendRecv | Collective::AllToAllV | Collective::Custom => 0,
        };
        let index = block * self.parts + self.part_of(chunk);
        Some(self.seen(rank, Slot { buffer: Buffer::Output, index }))
    }

    /// Where a slot of a caller's buffer is in a program: in place, of two buffers only the larger has a name.
    pub fn seen(&self, rank: Rank, slot: Slot) -> Slot {
        match (self.merged(rank), slot.buffer) {
            (Some(Buffer::Output), Buffer::Input) => {
                Slot { buffer: Buffer::Output, index: self.input_offset(rank) + slot.index }
            }
            (Some(Buffer::Input), Buffer::Output) => {
                Slot { buffer: Buffer::Input, index: self.output_offset(rank) + slot.index }
            }
            _ => slot,
        }
    }

    /// The block that a member of an alltoall keeps for itself, as (input, output); it is no chunk, because it
    /// never travels. In place both are the same slots.
    pub fn own_block(&self, rank: Rank) -> Option<OwnBlock> {
        if self.request().collective != Collective::AllToAll {
            return None;
        }
        let first = self.member(rank)? * self.parts;
        let buffer = if self.in_place { Buffer::Output } else { Buffer::Input };
        let slice = |buffer| Slice { buffer, index: first, count: self.parts };
        Some(OwnBlock { input: slice(buffer), output: slice(Buffer::Output) })
    }

    /// A rank's output slots: all that a program may write besides scratch.
    pub fn output(&self, rank: Rank) -> Slice {
        let count = match &self.listed {
            Some(listed) => listed.wanted[rank.index()].len() as u32,
            None => self.blocks(rank).output * self.parts,
        };
        match self.merged(rank) {
            Some(Buffer::Input) => Slice { buffer: Buffer::Input, index: self.output_offset(rank), count },
            _ => Slice { buffer: Buffer::Output, index: 0, count },
        }
    }

    fn request(&self) -> &Request {
        self.demand.request()
    }

    /// The position of a rank among the members.
    fn member(&self, rank: Rank) -> Option<u32> {
        self.request().members.binary_search(&rank).ok().map(|position| position as u32)
    }

    /// The members (as positions) that an alltoall's chunk travels from and to.
    fn pair(&self, chunk: ChunkId) -> (u32, u32) {
        let others = self.request().members.len() as u32 - 1;
        let (from, to) = (chunk.0 / self.parts / others, chunk.0 / self.parts % others);
        (from, if to >= from { to + 1 } else { to })
    }

    fn blocks(&self, rank: Rank) -> Blocks {
        if self.member(rank).is_none() {
            return Blocks { input: 0, output: 0 };
        }
        let members = self.request().members.len() as u32;
        let of_root = |blocks| if self.request().root == Some(rank) { blocks } else { 0 };
        let (input, output) = match self.request().collective {
            Collective::AllGather => (1, members),
            Collective::ReduceScatter => (members, 1),
            Collective::AllToAll => (members, members),
            Collective::Broadcast => (of_root(1), 1),
            Collective::Reduce => (1, of_root(1)),
            Collective::Gather => (1, of_root(members)),
            Collective::Scatter => (of_root(members), 1),
            Collective::AllReduce | Collective::SendRecv => (1, 1),
            Collective::AllToAllV | Collective::Custom => (0, 0), // listed
        };
        Blocks { input, output }
    }

    /// The name of a rank's only buffer, where in-place calls merge two.
    fn merged(&self, rank: Rank) -> Option<Buffer> {
        if let Some(listed) = &self.listed {
            return listed.merged[rank.index()].map(|merged| merged.into);
        }
        let Blocks { input, output } = self.blocks(rank);
        let both = self.in_place && input > 0 && output > 0;
        both.then_some(if input > output { Buffer::Input } else { Buffer::Output })
    }

    /// The slot of a merged output buffer at which the input starts.
    fn input_offset(&self, rank: Rank) -> u32 {
        if let Some(listed) = &self.listed {
            return listed.merged[rank.index()].map_or(0, |merged| merged.at);
        }
        match self.request().collective {
            Collective::AllGather | Collective::Gather => self.member(rank).unwrap_or(0) * self.parts,
            Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll | Collective::Broadcast => 0,
            Collective::Reduce | Collective::Scatter | Collective::SendRecv => 0,
            Collective::AllToAllV | Collective::Custom => 0, // listed
        }
    }

    /// The slot of a merged input buffer at which the output starts.
    fn output_offset(&self, rank: Rank) -> u32 {
        if let Some(listed) = &self.listed {
            return listed.merged[rank.index()].map_or(0, |merged| merged.at);
        }
        self.member(rank).unwrap_or(0) * self.parts
    }
}

/// Where an alltoall keeps a member's block for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnBlock {
    /// Where it starts.
    pub input: Slice,
    /// Where it must end.
    pub output: Slice,
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::RankSet;
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

    /// For ranks 0, 1, …: what they hold and want, as numbers of chunks of one byte each, but the last of two.
    fn in_place(ranks: &[(&[u32], &[u32])]) -> Result<Layout, LowerError> {
        let most = ranks.iter().flat_map(|(held, wanted)| held.iter().chain(*wanted)).max().unwrap();
        let having = |chunk: u32, chunks: &dyn Fn(usize) -> Vec<u32>| {
            RankSet::from_iter((0..ranks.len()).filter(|&rank| chunks(rank).contains(&chunk)).map(Rank::from_index))
        };
        let chunks = (0..=*most).map(|chunk| Chunk {
            holders: having(chunk, &|rank| ranks[rank].0.to_vec()),
            wanted_by: having(chunk, &|rank| ranks[rank].1.to_vec()),
            combine: false,
            bytes: Some(Bytes(if chunk == *most { 2.0 } else { 1.0 })),
        });
        let request = Request::new(Collective::Custom, ranks.len(), 8);
        Layout::new(Arc::new(Demand::from_chunks(request, chunks.collect()).unwrap()), true)
    }

    #[test]
    fn listed_chunks_share_memory_where_they_lie_alike() {
        // Rank 0's input is a run of its output, rank 1's output a run of its input, rank 2's are equally large.
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
        assert_eq!(refused, LowerError::NotInPlace { collective: Collective::Custom, rank: Rank(1) });
        assert!(refused.to_string().contains("rank 1"), "{refused}");
    }

    #[test]
    fn what_has_no_layout_is_refused() {
        let request = Request::new(Collective::AllToAllV, 2, 8);
        let demand = Demand::from_matrix(request, &[vec![0, 4], vec![8, 0]]).unwrap();
        let refused = Layout::new(Arc::new(demand), true).unwrap_err();
        assert_eq!(refused, LowerError::NotInPlace { collective: Collective::AllToAllV, rank: Rank(0) });
        let many = Request::new(Collective::Broadcast, 512, 8).with_chunks(1 << 16);
        assert!(Layout::new(Arc::new(Demand::new(many).unwrap()), false).is_ok());
        let many = Request::new(Collective::AllToAll, 1, 8).with_chunks(u32::MAX);
        let refused = Layout::new(Arc::new(Demand::new(many).unwrap()), false).unwrap_err();
        assert!(matches!(refused, LowerError::TooManySlots { .. }));
    }
}
