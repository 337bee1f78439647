//! The tables of a program for the interpreter kernel.
//!
//! A threadblock of the program is a block of the grid. A connection is a ring of messages in the memory of its receiver, with as
//! much room as the program needs. Where averages are asked for, one more block of each rank divides the sums, tile by
//! tile, when the others have finished the tile. Scratch has room for all tiles, since blocks of a rank do not wait for each
//! other's tiles.

use super::rank_tables::{RankDraft, RankTables, VECTOR};
use super::tables::{Encode, KernelBlock, KernelChannel, KernelPiece, KernelStep, KernelWait};
use crate::dtype::DType;
use crate::error::RunResult;
use crate::plan::geometry::tiles_of;
use program::VerifiedProgram;
use schedule::ReduceOp;
use topology::Rank;

/// Between two flags, so that no two share a line of a cache.
pub(super) const FLAG_BYTES: u64 = 128;
/// What each block counts: calls, steps, and where it gave up.
const COUNTERS: u64 = 3;
const LONG: u64 = 8;

/// A program for the interpreter kernel, at one size.
#[derive(Clone, Debug)]
pub struct KernelPlan {
    pub(super) ranks: Vec<RankTables>,
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
    /// [`RunError`](crate::RunError) if the size does not suit the program, or buffers of this size cannot be addressed.
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
pub(super) fn operation(op: Option<ReduceOp>) -> u32 {
    match op {
        None | Some(ReduceOp::Sum | ReduceOp::Avg) => 0,
        Some(ReduceOp::Prod) => 1,
        Some(ReduceOp::Min) => 2,
        Some(ReduceOp::Max) => 3,
    }
}
