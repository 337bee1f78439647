//! Several copies of a program, each for its share of the data, with their own connections.
//!
//! The principal function is [`replicate`]. Every block of the data is cut into equal shares, and instance k does with
//! share k what the program does with the whole block. The result answers the same request with more chunks. Instances
//! share no data, so they are as correct as the program. Neighbouring slots of a block stay neighbours, so a step of
//! several slots stays one step.

use super::{expand, resliced, row};
use crate::{
    Buffer, Connection, ConnectionId, Instruction, Layout, LayoutError, Program, RankProgram, Slice, Step, StepRef,
    Tempo, Threadblock,
};
use schedule::{Chunk, ChunkId, Demand, MAX_CHUNKS};
use std::sync::Arc;
use topology::{Bytes, Rank};

/// `program` in `instances` instances. If the slots of a step reach from one block of a caller's buffer into the next,
/// every step is first split into one step per slot, because both ends of a message must be split alike.
/// [`super::super::lower`] makes no such steps if it knows of the instances.
///
/// # Errors
/// [`LayoutError::TooManySlots`].
pub fn replicate(program: Program, instances: u32) -> Result<Program, LayoutError> {
    if instances <= 1 {
        return Ok(program);
    }
    let layout = Layout::new(program.demand.clone(), program.in_place)?;
    let program = within_blocks(program, layout.block_parts());
    let demand = Arc::new(refined(&program.demand, instances)?);
    let target = Layout::new(demand.clone(), program.in_place)?;
    let lanes = program.connections.iter().map(|lane| lane.channel + 1).max().unwrap_or(0);
    let copies = (0..instances).map(|number| ProgramInstance {
        number,
        instances,
        block: layout.block_parts(),
        connections: program.connections.len() as u32,
        program: &program,
    });
    let copies: Vec<ProgramInstance<'_>> = copies.collect();
    let connections = copies.iter().flat_map(|copy| {
        let own = move |lane: &Connection| Connection { channel: lane.channel + copy.number * lanes, ..*lane };
        program.connections.iter().map(own)
    });
    let connections = connections.collect();
    let ranks = (0..program.ranks.len()).map(Rank::from_index).map(|rank| RankProgram {
        input_parts: target.slot_parts(rank, Buffer::Input).collect(),
        output_parts: target.slot_parts(rank, Buffer::Output).collect(),
        scratch_parts: copies.iter().flat_map(|copy| copy.scratch_parts(rank, &target)).collect(),
        threadblocks: copies.iter().flat_map(|copy| copy.threadblocks(rank)).collect(),
    });
    let (ranks, shape) = (ranks.collect(), target.shape().clone());
    // Instances have their own messages, whose times no schedule gives.
    Ok(Program { demand, shape, connections, ranks, tempo: Tempo::default(), ..program })
}

/// The program with every slice inside one block of `block` slots.
fn within_blocks(mut program: Program, block: u32) -> Program {
    let crosses = |slice: Option<Slice>| {
        let slice = slice.filter(|slice| slice.buffer != Buffer::Scratch);
        slice.is_some_and(|slice| slice.index / block != (slice.index + slice.count - 1) / block)
    };
    let steps = program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|threadblock| &threadblock.steps);
    let mut instructions = steps.map(|step| step.instruction);
    if instructions.any(|instruction| crosses(instruction.source()) || crosses(instruction.destination())) {
        for rank in &mut program.ranks {
            rank.threadblocks = expand(rank, |step| {
                let slot = |k| resliced(step, |slice| Slice { index: slice.index + k, count: 1, ..slice });
                row((0..step.instruction.shape().count).map(slot))
            });
        }
    }
    program
}

/// The same request with `times` as many chunks.
fn refined(demand: &Demand, times: u32) -> Result<Demand, LayoutError> {
    let request = demand.request();
    let slots = (demand.chunks().len() as u64).saturating_mul(u64::from(times));
    let too_many = LayoutError::TooManySlots { slots, limit: MAX_CHUNKS as u64 };
    let Some(chunks) = request.chunks_per_rank.checked_mul(times).filter(|_| slots <= MAX_CHUNKS as u64) else {
        return Err(too_many);
    };
    let request = request.clone().with_chunks(chunks);
    if request.collective.is_listed() {
        let share =
            |id| Chunk { bytes: Some(Bytes(demand.bytes_of(id).0 / f64::from(times))), ..demand.chunk(id).clone() };
        let shares = demand.chunk_ids().flat_map(|id| std::iter::repeat_n(share(id), times as usize));
        return Demand::from_chunks(request, shares.collect()).map_err(|_| too_many);
    }
    Demand::new(request).map_err(|_| too_many)
}

/// One instance.
struct ProgramInstance<'a> {
    number: u32,
    instances: u32,
    /// The number of parts of a block in the original program.
    block: u32,
    connections: u32,
    program: &'a Program,
}

impl ProgramInstance<'_> {
    /// The number, among all instances, of a slot of the caller's buffers or of a part.
    fn refine(&self, slot: u32) -> u32 {
        (slot / self.block * self.instances + self.number) * self.block + slot % self.block
    }

    fn slice(&self, rank: Rank, slice: Slice) -> Slice {
        let index = match slice.buffer {
            Buffer::Input | Buffer::Output => self.refine(slice.index),
            Buffer::Scratch => {
                let own = self.program.ranks[rank.index()].scratch_parts.len() as u32;
                self.number * own + slice.index
            }
        };
        Slice { index, ..slice }
    }

    fn scratch_parts(&self, rank: Rank, target: &Layout) -> impl Iterator<Item = u32> {
        let parts = self.program.ranks[rank.index()].scratch_parts.iter();
        parts.map(|&part| target.part_of(ChunkId(self.refine(part))))
    }

    fn threadblocks(&self, rank: Rank) -> impl Iterator<Item = Threadblock> {
        let blocks = &self.program.ranks[rank.index()].threadblocks;
        let before = self.number * blocks.len() as u32;
        blocks.iter().map(move |block| {
            let steps = block.steps.iter().map(|step| Step {
                instruction: self.instruction(rank, step.instruction),
                after: step.after.iter().map(|on| StepRef { threadblock: before + on.threadblock, ..*on }).collect(),
                transfer: step.transfer.map(|transfer| self.message(transfer)),
                forwards: step.forwards.map(|transfer| self.message(transfer)),
                ..step.clone()
            });
            Threadblock { steps: steps.collect() }
        })
    }

    /// The new number of a message.
    fn message(&self, transfer: u32) -> u32 {
        transfer.saturating_mul(self.instances).saturating_add(self.number)
    }

    fn instruction(&self, rank: Rank, instruction: Instruction) -> Instruction {
        let lane = |id: ConnectionId| ConnectionId(self.number * self.connections + id.0);
        instruction.mapped(|slice| self.slice(rank, slice), lane, lane)
    }
}
