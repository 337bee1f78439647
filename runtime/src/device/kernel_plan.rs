//! The tables of a program for the interpreter kernel.
//!
//! A threadblock of the program is a block of the grid. A connection is a ring of messages in the memory of its receiver, with as
//! much room as the program needs. Where averages are asked for, one more block of each rank divides the sums, tile by
//! tile, when the others have finished the tile. Scratch has room for all tiles, since blocks of a rank do not wait for each
//! other's tiles.

use super::tables::{
    DIVIDES, Encode, KernelBlock, KernelChannel, KernelPiece, KernelStep, KernelWait, PUBLISHES, READS, RECEIVES,
    REDUCES, SENDS, STORES,
};
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::execution::local_rank::averaged_slots;
use crate::plan::geometry::{Geometry, tiles_of};
use program::{Buffer, Instruction, Program, Slice, VerifiedProgram};
use schedule::ReduceOp;
use topology::Rank;

/// Between two flags, so that no two share a line of a cache.
const FLAG_BYTES: u64 = 128;
/// What each block counts: calls, steps, and where it gave up.
const COUNTERS: u64 = 3;
const LONG: u64 = 8;
/// Vectors of the kernel have so many bytes, and messages begin at multiples of it.
const VECTOR: u64 = 16;

/// A program for the interpreter kernel, at one size.
#[derive(Clone, Debug)]
pub struct KernelPlan {
    ranks: Vec<RankTables>,
    connections: Vec<ConnectionRing>,
    operation: u32,
    tiles: u32,
}

/// How much memory a rank needs on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelNeeds {
    /// Bytes that its peers map too: inboxes and flags. They must be zero before the first call.
    pub shared_bytes: u64,
    /// Bytes for itself: tables, counters and scratch.
    pub private_bytes: u64,
    /// How many blocks of the grid it has.
    pub blocks: usize,
}

/// Addresses as one rank sees them. They must be multiples of 16, those of input and output as aligned as an element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelAddresses {
    /// The caller's data; in place the same as `output`.
    pub input: u64,
    /// Where results go.
    pub output: u64,
    /// The rank's own memory.
    pub private: u64,
    /// The shared memory of each rank.
    pub shared: Vec<u64>,
    /// The word that ends all waits when it is not zero.
    pub abort: u64,
    /// How often a wait looks before it sets the abort word.
    pub poll_limit: u64,
}

/// What is copied to the device before the first call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelTables {
    /// The rank's blocks. Those of ranks on one device may be put together, for one launch.
    pub blocks: Vec<u8>,
    /// The beginning of the rank's own memory.
    pub private: Vec<u8>,
}

/// A rank's part.
#[derive(Clone, Debug, Default)]
struct RankTables {
    blocks: Vec<Vec<KernelStep>>,
    pieces: Vec<KernelPiece>,
    /// The other block, and how many of its steps.
    waits: Vec<(usize, u32)>,
    scratch_bytes: u64,
    /// Where its flags end and its inboxes begin, and where these end.
    shared_bytes: u64,
}

/// A connection: where its parts lie in the shared memory of its ranks.
#[derive(Clone, Debug)]
struct ConnectionRing {
    from: Rank,
    to: Rank,
    inbox: u64,
    arrived: u64,
    taken: u64,
    slot_bytes: u64,
    slots: u32,
    per_tile: u32,
}

/// Where the parts of a rank's own memory begin.
struct PrivateLayout {
    counters: u64,
    steps: u64,
    pieces: u64,
    waits: u64,
    channels: u64,
    /// Scratch, after everything that is copied.
    scratch: u64,
}

impl KernelPlan {
    /// The tables for calls of `count` elements, as the collective counts them. A tile of the largest slot has about
    /// `tile_bytes` bytes.
    ///
    /// # Errors
    /// [`RunError`] if the size does not suit the program, or buffers of this size cannot be addressed.
    pub fn new(verified: &VerifiedProgram, count: u64, dtype: DType, tile_bytes: usize) -> RunResult<Self> {
        let program = verified.program();
        let tiles = tiles_of(program, count, dtype, tile_bytes);
        let ranks = (0..program.ranks.len()).map(Rank::from_index);
        let drafts =
            ranks.map(|rank| RankDraft::of(program, rank, count, dtype, tiles)).collect::<RunResult<Vec<_>>>()?;
        let mut slots = verified.window().max(2).checked_next_power_of_two().unwrap_or(1 << 31);
        let longest = drafts.iter().flat_map(|draft| &draft.sent).copied().max().unwrap_or(0);
        // More than all messages of two tiles is never used.
        slots = slots.min(longest.saturating_mul(2).max(2).next_power_of_two());
        let mut plan = Self {
            ranks: drafts.iter().map(|draft| draft.tables.clone()).collect(),
            connections: Vec::new(),
            operation: operation(program.op),
            tiles,
        };
        for (index, ends) in program.connections.iter().enumerate() {
            let sender = &drafts[ends.from.index()];
            let slot_bytes = sender.message_bytes[index].max(VECTOR);
            let ring = ConnectionRing {
                from: ends.from,
                to: ends.to,
                arrived: plan.place(ends.to, FLAG_BYTES),
                inbox: plan.place(ends.to, slot_bytes * u64::from(slots)),
                taken: plan.place(ends.from, FLAG_BYTES),
                slot_bytes,
                slots,
                per_tile: sender.sent[index],
            };
            plan.connections.push(ring);
        }
        Ok(plan)
    }

    /// A place in the shared memory of a rank.
    fn place(&mut self, rank: Rank, bytes: u64) -> u64 {
        let end = &mut self.ranks[rank.index()].shared_bytes;
        let start = *end;
        *end = (start + bytes).next_multiple_of(FLAG_BYTES);
        start
    }

    /// How many ranks the program has.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// The memory and the blocks of a rank.
    pub fn needs(&self, rank: Rank) -> KernelNeeds {
        let tables = &self.ranks[rank.index()];
        let layout = self.layout(tables);
        KernelNeeds {
            shared_bytes: tables.shared_bytes.max(VECTOR),
            private_bytes: layout.scratch + tables.scratch_bytes.max(VECTOR),
            blocks: tables.blocks.len(),
        }
    }

    fn layout(&self, tables: &RankTables) -> PrivateLayout {
        let mut end = 3 * LONG;
        let mut take = |bytes: u64| {
            let start = end.next_multiple_of(VECTOR);
            end = start + bytes;
            start
        };
        let steps: usize = tables.blocks.iter().map(Vec::len).sum();
        PrivateLayout {
            counters: take(COUNTERS * LONG * tables.blocks.len() as u64),
            steps: take(KernelStep::BYTES * steps as u64),
            pieces: take(KernelPiece::BYTES * tables.pieces.len() as u64),
            waits: take(KernelWait::BYTES * tables.waits.len() as u64),
            channels: take(KernelChannel::BYTES * self.connections.len() as u64),
            scratch: take(0),
        }
    }

    /// The tables of a rank, for these addresses.
    pub fn tables(&self, rank: Rank, at: &KernelAddresses) -> KernelTables {
        let tables = &self.ranks[rank.index()];
        let layout = self.layout(tables);
        let counter =
            |block: usize, which: u64| at.private + layout.counters + (block as u64 * COUNTERS + which) * LONG;
        let mut private = Vec::new();
        for address in [at.input, at.output, at.private + layout.scratch] {
            private.extend(address.to_le_bytes());
        }
        private.resize(layout.steps as usize, 0);
        tables.blocks.iter().flatten().for_each(|step| step.encode(&mut private));
        private.resize(layout.pieces as usize, 0);
        tables.pieces.iter().for_each(|piece| piece.encode(&mut private));
        private.resize(layout.waits as usize, 0);
        for &(block, steps) in &tables.waits {
            let step_count = tables.blocks[block].len() as u32;
            KernelWait { progress: counter(block, 1), steps, step_count }.encode(&mut private);
        }
        private.resize(layout.channels as usize, 0);
        for ring in &self.connections {
            let [receiver, sender] = [ring.to, ring.from].map(|rank| at.shared[rank.index()]);
            let channel = KernelChannel {
                inbox: receiver + ring.inbox,
                arrived: receiver + ring.arrived,
                taken: sender + ring.taken,
                slot_bytes: ring.slot_bytes,
                mask: ring.slots - 1,
                per_tile: ring.per_tile,
            };
            channel.encode(&mut private);
        }
        private.resize(layout.scratch as usize, 0);
        let mut blocks = Vec::new();
        let mut first = 0;
        for (block, steps) in tables.blocks.iter().enumerate() {
            let description = KernelBlock {
                steps: at.private + layout.steps + first * KernelStep::BYTES,
                pieces: at.private + layout.pieces,
                waits: at.private + layout.waits,
                channels: at.private + layout.channels,
                buffers: at.private,
                epoch: counter(block, 0),
                progress: counter(block, 1),
                report: counter(block, 2),
                abort: at.abort,
                poll_limit: at.poll_limit,
                step_count: steps.len() as u32,
                tiles: self.tiles,
                operation: self.operation,
            };
            description.encode(&mut blocks);
            first += steps.len() as u64;
        }
        KernelTables { blocks, private }
    }

    /// Where a block that gave up has said at which step, as an offset into the rank's own memory: a number of eight
    /// bytes, 0 if it did not, else one more than the step plus 2³² times the tile.
    pub fn report_offset(&self, rank: Rank, block: usize) -> u64 {
        self.layout(&self.ranks[rank.index()]).counters + (block as u64 * COUNTERS + 2) * LONG
    }
}

/// The kernel's number of a reduction. An average is a sum, and a division at the end.
fn operation(op: Option<ReduceOp>) -> u32 {
    match op {
        None | Some(ReduceOp::Sum | ReduceOp::Avg) => 0,
        Some(ReduceOp::Prod) => 1,
        Some(ReduceOp::Min) => 2,
        Some(ReduceOp::Max) => 3,
    }
}

/// A rank whose tables are being made.
struct RankDraft {
    tables: RankTables,
    /// For each connection, how many messages it sends and receives in a tile, and the bytes of its longest message.
    sent: Vec<u32>,
    received: Vec<u32>,
    message_bytes: Vec<u64>,
    /// For each buffer, where its slots begin and the last one ends, in elements.
    starts: [Vec<u64>; 3],
    element: u64,
    tiles: u32,
}

const BUFFERS: [Buffer; 3] = [Buffer::Input, Buffer::Output, Buffer::Scratch];

impl RankDraft {
    fn of(program: &Program, rank: Rank, count: u64, dtype: DType, tiles: u32) -> RunResult<Self> {
        // It checks that the size suits the program, and that all buffers can be addressed.
        Geometry::new(program, rank, count, dtype, 1)?;
        let own = &program.ranks[rank.index()];
        let starts = BUFFERS.map(|buffer| {
            let mut starts = vec![0];
            for &part in own.parts(buffer) {
                starts.push(starts[starts.len() - 1] + program.shape.length(count, part));
            }
            starts
        });
        let connections = program.connections.len();
        let mut draft = Self {
            tables: RankTables::default(),
            sent: vec![0; connections],
            received: vec![0; connections],
            message_bytes: vec![0; connections],
            starts,
            element: dtype.size() as u64,
            tiles,
        };
        draft.tables.scratch_bytes = draft.starts[2][draft.starts[2].len() - 1] * draft.element;
        draft.tables.blocks =
            own.threadblocks.iter().map(|block| vec![KernelStep::default(); block.steps.len()]).collect();
        for (number, block) in own.threadblocks.iter().enumerate() {
            for (at, step) in block.steps.iter().enumerate() {
                let waits = step.after.iter().map(|on| (on.threadblock as usize, on.step + 1)).collect();
                let made = draft.step(step.instruction, waits)?;
                let place = &mut draft.tables.blocks[number][at];
                // Another step may have noted already that it waits for this one.
                *place = KernelStep { kind: made.kind | place.kind, ..made };
            }
        }
        let divided = averaged_slots(program, rank)?;
        draft.divide(&divided)?;
        Ok(draft)
    }

    fn step(&mut self, instruction: Instruction, waits: Vec<(usize, u32)>) -> RunResult<KernelStep> {
        let (source, destination) = (instruction.source(), instruction.destination());
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let (from, to) = (instruction.receives_from(), instruction.sends_to());
        let mut step = KernelStep {
            kind: flag(from.is_some(), RECEIVES)
                | flag(to.is_some(), SENDS)
                | flag(source.is_some(), READS)
                | flag(destination.is_some(), STORES)
                | flag(instruction.reduces(), REDUCES),
            ..KernelStep::default()
        };
        if let Some(from) = from {
            let count = &mut self.received[from.index()];
            (step.in_channel, step.in_ordinal) = (from.0, *count);
            *count += 1;
        }
        if let Some(to) = to {
            let bytes = self.message(instruction.shape());
            let longest = &mut self.message_bytes[to.index()];
            *longest = bytes.max(*longest);
            let count = &mut self.sent[to.index()];
            (step.out_channel, step.out_ordinal) = (to.0, *count);
            *count += 1;
        }
        let shape = instruction.shape();
        let slots = (0..shape.count).map(|slot| self.piece(source, destination, shape, slot)).collect();
        self.filled(step, slots, waits)
    }

    /// A step with its pieces and waits.
    fn filled(
        &mut self,
        step: KernelStep,
        pieces: Vec<KernelPiece>,
        waits: Vec<(usize, u32)>,
    ) -> RunResult<KernelStep> {
        let too_large = |_| RunError::Mismatch { what: "the program has too many slots for the kernel".to_owned() };
        let first_piece = u32::try_from(self.tables.pieces.len()).map_err(too_large)?;
        let first_wait = u32::try_from(self.tables.waits.len()).map_err(too_large)?;
        for &(block, steps) in &waits {
            self.tables.blocks[block][steps as usize - 1].kind |= PUBLISHES;
        }
        let (piece_count, wait_count) = (pieces.len() as u32, waits.len() as u32);
        self.tables.pieces.extend(pieces);
        self.tables.waits.extend(waits);
        Ok(KernelStep { first_piece, piece_count, first_wait, wait_count, ..step })
    }

    fn start(&self, slice: Slice, slot: u32) -> u64 {
        self.starts[slice.buffer as usize][(slice.index + slot) as usize]
    }

    fn piece(&self, source: Option<Slice>, destination: Option<Slice>, shape: Slice, slot: u32) -> KernelPiece {
        let start = |slice: Option<Slice>| slice.map_or((0, 0), |slice| (self.start(slice, slot), slice.buffer as u32));
        let ((source, source_buffer), (destination, destination_buffer)) = (start(source), start(destination));
        let length = self.start(shape, slot + 1) - self.start(shape, slot);
        KernelPiece { length, source, destination, source_buffer, destination_buffer }
    }

    /// At least the bytes of the longest tile of a message.
    fn message(&self, shape: Slice) -> u64 {
        let piece = |slot| {
            let length = self.start(shape, slot + 1) - self.start(shape, slot);
            (length.div_ceil(u64::from(self.tiles)) * self.element).next_multiple_of(VECTOR)
        };
        (0..shape.count).map(piece).sum()
    }

    /// One more block, which divides these slots when the others have finished a tile.
    fn divide(&mut self, slots: &[(Slice, u64)]) -> RunResult<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let blocks = self.tables.blocks.iter().enumerate();
        let all: Vec<(usize, u32)> =
            blocks.map(|(block, steps)| (block, steps.len() as u32)).filter(|(_, steps)| *steps > 0).collect();
        let mut steps = Vec::new();
        for same in slots.chunk_by(|one, other| one.1 == other.1) {
            let divisor = u32::try_from(same[0].1);
            let divisor =
                divisor.map_err(|_| RunError::Mismatch { what: "too many ranks for the kernel".to_owned() })?;
            let pieces = same.iter().map(|&(slice, _)| self.piece(Some(slice), Some(slice), slice, 0)).collect();
            let waits = if steps.is_empty() { all.clone() } else { Vec::new() };
            let step = KernelStep { kind: READS | STORES | DIVIDES, divisor, ..KernelStep::default() };
            steps.push(self.filled(step, pieces, waits)?);
        }
        self.tables.blocks.push(steps);
        Ok(())
    }
}

#[cfg(test)]
impl KernelPlan {
    /// The plan with a mistake in step `index` of a rank, counted over its blocks: mistake number `slip` of the tests of mutants.
    /// `None` after the last step, and `Some(None)` where the step cannot have this mistake.
    pub(super) fn mutant(&self, rank: usize, index: usize, slip: usize) -> Option<Option<Self>> {
        let mut plan = self.clone();
        let tables = &mut plan.ranks[rank];
        let place =
            |(block, steps): (usize, &Vec<KernelStep>)| (0..steps.len()).map(|at| (block, at)).collect::<Vec<_>>();
        let (block, at) = tables.blocks.iter().enumerate().flat_map(place).nth(index)?;
        // A later signal of the same block tells the same.
        let is_last = tables.blocks[block][at + 1..].iter().all(|step| step.kind & PUBLISHES == 0);
        let step = &mut tables.blocks[block][at];
        let piece = &mut tables.pieces[step.first_piece as usize];
        let has = |flag: u32| step.kind & flag != 0;
        let is_possible = match slip {
            0 => step.wait_count > 0,
            1 | 3 => has(RECEIVES),
            2 => has(PUBLISHES) && is_last,
            4 => has(READS) && piece.length > 0,
            5 => has(STORES) && piece.length > 0,
            6 => has(READS) && piece.length > 0,
            7 => piece.length > 0,
            8 => has(REDUCES),
            _ => has(SENDS),
        };
        if !is_possible {
            return Some(None);
        }
        match slip {
            0 => step.wait_count -= 1,
            1 => step.kind &= !RECEIVES,
            2 => step.kind &= !PUBLISHES,
            3 => step.in_ordinal += 1,
            4 => piece.source += 1,
            5 => piece.destination += 1,
            6 => piece.source_buffer = (piece.source_buffer + 1) % 2,
            7 => piece.length -= 1,
            8 => step.kind &= !REDUCES,
            _ => step.kind &= !SENDS,
        }
        Some(Some(plan))
    }
}
