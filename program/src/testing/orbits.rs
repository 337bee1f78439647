//! The program of all ranks that a program of the first ranks of orbits stands for.

use crate::{
    Buffer, Connection, ConnectionId, Instruction, Layout, OrbitProgram, Program, RankProgram, Slice, Slot, Step,
};
use schedule::{ChunkId, Unfolding};
use std::collections::BTreeMap;
use topology::Rank;

/// Writes down every rank; `None` if a step names a slot that has no image.
pub fn unfolded(orbit: &OrbitProgram) -> Option<Program> {
    let (program, unfolding) = (&orbit.program, &*orbit.unfolding);
    let layout = Layout::new(program.demand.clone(), false).ok()?;
    let order = program.ranks.len() / unfolding.first_ranks().count();
    let mut connections = Vec::new();
    for lane in &program.connections {
        connections.extend((0..order as u32).map(|element| {
            let (from, to) = (unfolding.moved_rank(element, lane.from), unfolding.moved_rank(element, lane.to));
            Connection { from, to, ..*lane }
        }));
    }
    let known: BTreeMap<Rank, BTreeMap<Slot, Content>> =
        unfolding.first_ranks().map(|rank| (rank, contents(&layout, program, rank))).collect();
    let rank = |rank: Rank| {
        let (first, element) = unfolding.first_rank(rank);
        let image = Image { program, layout: &layout, unfolding, known: &known[&first], rank, element, order };
        image.rank(&program.ranks[first.index()])
    };
    let ranks = (0..program.ranks.len()).map(Rank::from_index).map(rank).collect::<Option<_>>()?;
    Some(Program { connections, ranks, ..program.clone() })
}

/// What is in a slot of a caller's buffer.
#[derive(Clone, Copy)]
enum Content {
    Chunk(ChunkId),
    /// A part of the block that a member of an alltoall keeps.
    Own(u32),
}

fn contents(layout: &Layout, program: &Program, rank: Rank) -> BTreeMap<Slot, Content> {
    let mut known = BTreeMap::new();
    for chunk in program.demand.chunk_ids() {
        let slots = [layout.input_slot(chunk, rank), layout.output_slot(chunk, rank)];
        known.extend(slots.into_iter().flatten().map(|slot| (slot, Content::Chunk(chunk))));
    }
    for slice in layout.own_block(rank).into_iter().flat_map(|own| [own.input, own.output]) {
        let slot = |part| Slot { buffer: slice.buffer, index: slice.index + part };
        known.extend((0..slice.count).map(|part| (slot(part), Content::Own(part))));
    }
    known
}

/// A rank that repeats the first of its orbit.
struct Image<'a> {
    program: &'a Program,
    layout: &'a Layout,
    unfolding: &'a Unfolding,
    /// The slots of the first rank.
    known: &'a BTreeMap<Slot, Content>,
    rank: Rank,
    element: u32,
    order: usize,
}

impl Image<'_> {
    fn rank(&self, first: &RankProgram) -> Option<RankProgram> {
        let mut image = first.clone();
        image.input_parts = self.layout.slot_parts(self.rank, Buffer::Input).collect();
        image.output_parts = self.layout.slot_parts(self.rank, Buffer::Output).collect();
        image.scratch_parts.iter_mut().for_each(|part| *part = self.part(*part));
        for step in image.threadblocks.iter_mut().flat_map(|block| &mut block.steps) {
            *step = Step { instruction: self.instruction(step.instruction)?, ..step.clone() };
        }
        Some(image)
    }

    /// The part that the image of a chunk with this part has.
    fn part(&self, part: u32) -> u32 {
        let chunk = self.program.demand.chunk_ids().find(|&chunk| self.layout.part_of(chunk) == part);
        chunk.map_or(part, |chunk| self.layout.part_of(self.unfolding.moved_chunk(self.element, chunk)))
    }

    fn slice(&self, slice: Slice) -> Option<Slice> {
        if slice.buffer == Buffer::Scratch || slice.count != 1 {
            return Some(slice);
        }
        let slot = match *self.known.get(&Slot { buffer: slice.buffer, index: slice.index })? {
            Content::Chunk(chunk) => {
                let chunk = self.unfolding.moved_chunk(self.element, chunk);
                let slots = [self.layout.input_slot(chunk, self.rank), self.layout.output_slot(chunk, self.rank)];
                slots.into_iter().flatten().find(|slot| slot.buffer == slice.buffer)?
            }
            Content::Own(part) => {
                let own = self.layout.own_block(self.rank)?;
                let own = if slice.buffer == own.input.buffer { own.input } else { own.output };
                Slot { buffer: own.buffer, index: own.index + self.part(part) }
            }
        };
        Some(slot.slice(1))
    }

    fn sends(&self, to: ConnectionId) -> ConnectionId {
        ConnectionId(to.0 * self.order as u32 + self.element)
    }

    /// Of the images of a connection, the one that ends here.
    fn receives(&self, from: ConnectionId) -> ConnectionId {
        let (_, across) = self.unfolding.first_rank(self.program.connections[from.index()].to);
        let element = self.unfolding.product(self.element, self.unfolding.inverse(across));
        ConnectionId(from.0 * self.order as u32 + element)
    }

    fn instruction(&self, instruction: Instruction) -> Option<Instruction> {
        Some(match instruction {
            Instruction::Send { to, src } => Instruction::Send { to: self.sends(to), src: self.slice(src)? },
            Instruction::Receive { from, dst } => {
                Instruction::Receive { from: self.receives(from), dst: self.slice(dst)? }
            }
            Instruction::ReceiveReduce { from, src, dst } => {
                let (src, dst) = (self.slice(src)?, self.slice(dst)?);
                Instruction::ReceiveReduce { from: self.receives(from), src, dst }
            }
            Instruction::Copy { src, dst } => Instruction::Copy { src: self.slice(src)?, dst: self.slice(dst)? },
            Instruction::Reduce { src, dst } => Instruction::Reduce { src: self.slice(src)?, dst: self.slice(dst)? },
            Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => return None,
        })
    }
}
