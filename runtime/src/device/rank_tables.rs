//! The tables of one rank, from its part of a program.

use super::tables::{DIVIDES, KernelPiece, KernelStep, PUBLISHES, READS, RECEIVES, REDUCES, SENDS, STORES};
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::execution::local_rank::averaged_slots;
use crate::plan::geometry::Geometry;
use program::{Buffer, Instruction, Program, Slice};
use topology::Rank;

/// Vectors of the kernel have so many bytes, and messages begin at multiples of it.
pub(super) const VECTOR: u64 = 16;

/// A rank's part.
#[derive(Clone, Debug, Default)]
pub(super) struct RankTables {
    pub(super) blocks: Vec<Vec<KernelStep>>,
    pub(super) pieces: Vec<KernelPiece>,
    /// The other block, and how many of its steps.
    pub(super) waits: Vec<(usize, u32)>,
    pub(super) scratch_bytes: u64,
    /// Where its flags end and its inboxes begin, and where these end.
    pub(super) shared_bytes: u64,
}

/// A rank whose tables are being made.
pub(super) struct RankDraft {
    pub(super) tables: RankTables,
    /// For each connection, how many messages it sends and receives in a tile, and the bytes of its longest message.
    pub(super) sent: Vec<u32>,
    received: Vec<u32>,
    pub(super) message_bytes: Vec<u64>,
    /// For each buffer, where its slots begin and the last one ends, in elements.
    starts: [Vec<u64>; 3],
    element: u64,
    tiles: u32,
}

const BUFFERS: [Buffer; 3] = [Buffer::Input, Buffer::Output, Buffer::Scratch];

impl RankDraft {
    pub(super) fn of(program: &Program, rank: Rank, count: u64, dtype: DType, tiles: u32) -> RunResult<Self> {
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
