//! One rank's rounds at one size: which bytes move, and the tables by which the interpreter kernel does the local work.
//!
//! The principal type is [`RoundPlan`]. The work of a stage is one launch. Each block of it does the same elements of
//! every slot, level by level; slots are used element by element, so no block ever waits for another one.

use super::derive::{Rounds, StageWork, WorkKind, WorkPlace};
use crate::device::kernel_plan::operation;
use crate::device::tables::{DIVIDES, Encode, KernelBlock, KernelPiece, KernelStep, READS, REDUCES, STORES};
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::plan::geometry::Geometry;
use program::{Slice, VerifiedProgram};
use std::ops::Range;
use topology::Rank;

/// Pieces and inboxes begin at multiples of so many bytes, as vectors of the kernel want.
const ALIGNMENT: u64 = 256;
/// At most so many blocks work on a stage.
const MOST_BLOCKS: u64 = 1024;
/// The kernel's number of the buffer with all inboxes; input, output and scratch come before it.
const INBOXES: u32 = 3;
const BUFFERS: usize = 4;
const LONG: u64 = 8;
/// Of each block: calls, steps, and where it gave up.
const COUNTERS: u64 = 3;

/// A message of a round, as one of its ranks sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankMessage {
    /// The other rank.
    pub peer: Rank,
    /// Whether this rank sends it.
    pub is_sent: bool,
    /// 0 for input, 1 for output, 2 for scratch, 3 for inboxes.
    pub buffer: usize,
    /// Where it begins there, in bytes.
    pub offset: u64,
    /// Its length in elements; never 0.
    pub elements: u64,
}

/// The blocks of a stage: the steps of each.
type StageBlocks = Vec<Range<usize>>;

/// A rank's part of a program in rounds.
#[derive(Clone, Debug)]
pub struct RoundPlan {
    rank: Rank,
    dtype: DType,
    operation: u32,
    /// For each round, in an order that is the same at both ends of all messages between two ranks.
    exchanges: Vec<Vec<RankMessage>>,
    /// One more than exchanges.
    pub(super) stages: Vec<StageBlocks>,
    pub(super) steps: Vec<KernelStep>,
    pub(super) pieces: Vec<KernelPiece>,
    /// Of input, output, scratch and inboxes.
    bytes: [u64; BUFFERS],
}

/// Where the parts of the tables begin.
struct TableLayout {
    counters: u64,
    steps: u64,
    pieces: u64,
    /// The blocks of each stage.
    stages: Vec<u64>,
    end: u64,
}

/// A rank whose plan is being made.
struct PlanDraft<'a> {
    geometry: Geometry,
    element: u64,
    /// Where the inbox of each message begins; messages to other ranks have none.
    inboxes: &'a [u64],
}

impl RoundPlan {
    /// The part of a rank for calls of `count` elements, as the collective counts them. A block of the kernel has about
    /// `block_bytes` bytes of work in a stage.
    ///
    /// # Errors
    /// [`RunError`] if the size does not suit the program.
    pub fn new(program: &VerifiedProgram, rank: Rank, count: u64, dtype: DType, block_bytes: u64) -> RunResult<Self> {
        Self::of(&Rounds::of(program)?, program, rank, (count, dtype), block_bytes)
    }

    /// The same from rounds that are known already.
    pub(crate) fn of(
        rounds: &Rounds,
        program: &VerifiedProgram,
        rank: Rank,
        (count, dtype): (u64, DType),
        block_bytes: u64,
    ) -> RunResult<Self> {
        let program = program.program();
        let geometry = Geometry::new(program, rank, count, dtype, 1)?;
        let lengths = [program::Buffer::Input, program::Buffer::Output, program::Buffer::Scratch];
        let lengths = lengths.map(|buffer| geometry.buffer_bytes(buffer) as u64);
        let (inboxes, inbox_bytes) = inboxes(rounds, rank, &geometry);
        let element = dtype.size() as u64;
        let draft = PlanDraft { geometry, element, inboxes: &inboxes };
        let mut plan = Self {
            rank,
            dtype,
            operation: operation(program.op),
            exchanges: draft.exchanges(rounds, rank),
            stages: Vec::new(),
            steps: Vec::new(),
            pieces: Vec::new(),
            bytes: [lengths[0], lengths[1], lengths[2], inbox_bytes],
        };
        let mut work = rounds.work[rank.index()].as_slice();
        for stage in 0..=rounds.count {
            let (now, later) = work.split_at(work.partition_point(|it| it.stage <= stage));
            plan.add_stage(&draft, now, block_bytes)?;
            work = later;
        }
        Ok(plan)
    }

    fn add_stage(&mut self, draft: &PlanDraft<'_>, work: &[StageWork], block_bytes: u64) -> RunResult<()> {
        let bytes: u64 = work.iter().map(|it| draft.geometry.whole(it.shape).len() as u64).sum();
        let blocks = bytes.div_ceil(block_bytes.max(1)).min(MOST_BLOCKS);
        let mut stage = Vec::new();
        for block in 0..blocks {
            let first = self.steps.len();
            for same in work.chunk_by(|one, other| (one.level, one.kind) == (other.level, other.kind)) {
                self.add_step(draft, same, (block, blocks))?;
            }
            if self.steps.len() > first {
                stage.push(first..self.steps.len());
            }
        }
        self.stages.push(stage);
        Ok(())
    }

    /// A block's share of work that is done in one step.
    fn add_step(&mut self, draft: &PlanDraft<'_>, same: &[StageWork], share: (u64, u64)) -> RunResult<()> {
        let too_large = |_| RunError::Mismatch { what: "the program has too many slots for the kernel".to_owned() };
        let first = self.pieces.len();
        for work in same {
            self.pieces.extend((0..work.shape.count).filter_map(|slot| draft.piece(work, slot, share)));
        }
        let piece_count = self.pieces.len() - first;
        let Some(work) = same.first().filter(|_| piece_count > 0) else { return Ok(()) };
        let (kind, divisor) = match work.kind {
            WorkKind::Copy => (READS | STORES, 0),
            WorkKind::Reduce => (READS | STORES | REDUCES, 0),
            WorkKind::Divide(by) => (READS | STORES | DIVIDES, u32::try_from(by).map_err(too_large)?),
        };
        self.steps.push(KernelStep {
            kind,
            first_piece: u32::try_from(first).map_err(too_large)?,
            piece_count: u32::try_from(piece_count).map_err(too_large)?,
            divisor,
            ..KernelStep::default()
        });
        Ok(())
    }

    /// The rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The messages of each round.
    pub fn exchanges(&self) -> &[Vec<RankMessage>] {
        &self.exchanges
    }

    /// The bytes of input, output, scratch and inboxes. In place the caller's one buffer is as long as the longer of the first two.
    pub fn buffer_bytes(&self) -> [u64; 4] {
        self.bytes
    }

    fn layout(&self) -> TableLayout {
        let mut end = BUFFERS as u64 * LONG;
        let mut take = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            start
        };
        let most_blocks = self.stages.iter().map(Vec::len).max().unwrap_or(0) as u64;
        // After the counters there is the abort word, which nobody sets.
        let counters = take((most_blocks * COUNTERS + 1) * LONG);
        let steps = take(self.steps.len() as u64 * KernelStep::BYTES);
        let pieces = take(self.pieces.len() as u64 * KernelPiece::BYTES);
        let stages = self.stages.iter().map(|stage| take(stage.len() as u64 * KernelBlock::BYTES)).collect();
        TableLayout { counters, steps, pieces, stages, end: take(0) }
    }

    /// The bytes of the tables.
    pub fn table_bytes(&self) -> u64 {
        self.layout().end
    }

    /// The tables for these addresses of input, output, scratch and inboxes. They lie at `at`, which is a multiple of 256.
    pub fn tables(&self, at: u64, buffers: [u64; 4]) -> Vec<u8> {
        let layout = self.layout();
        let mut tables = buffers.map(u64::to_le_bytes).concat();
        tables.resize(layout.steps as usize, 0);
        self.steps.iter().for_each(|step| step.encode(&mut tables));
        tables.resize(layout.pieces as usize, 0);
        self.pieces.iter().for_each(|piece| piece.encode(&mut tables));
        let most_blocks = self.stages.iter().map(Vec::len).max().unwrap_or(0) as u64;
        for (stage, begin) in self.stages.iter().zip(&layout.stages) {
            tables.resize(*begin as usize, 0);
            for (number, steps) in stage.iter().enumerate() {
                let counter = |which: u64| at + layout.counters + (number as u64 * COUNTERS + which) * LONG;
                let block = KernelBlock {
                    steps: at + layout.steps + steps.start as u64 * KernelStep::BYTES,
                    pieces: at + layout.pieces,
                    waits: 0,
                    channels: 0,
                    buffers: at,
                    epoch: counter(0),
                    progress: counter(1),
                    report: counter(2),
                    abort: at + layout.counters + most_blocks * COUNTERS * LONG,
                    poll_limit: u64::MAX,
                    step_count: steps.len() as u32,
                    tiles: 1,
                    operation: self.operation,
                };
                block.encode(&mut tables);
            }
        }
        tables.resize(layout.end as usize, 0);
        tables
    }

    /// For each stage, where its blocks begin in the tables, and how many there are.
    pub fn launches(&self) -> Vec<(u64, u32)> {
        let begins = self.layout().stages.into_iter();
        begins.zip(&self.stages).map(|(begin, stage)| (begin, stage.len() as u32)).collect()
    }
}

/// Where the inboxes of a rank begin, and their bytes together. When all that came before was used, the room is used again.
fn inboxes(rounds: &Rounds, rank: Rank, geometry: &Geometry) -> (Vec<u64>, u64) {
    let mut places = vec![0; rounds.messages.len()];
    let is_inbox = |number: &usize| {
        let message = &rounds.messages[*number];
        message.to == rank && matches!(message.destination, WorkPlace::Inbox(_))
    };
    let mut numbers: Vec<usize> = (0..rounds.messages.len()).filter(is_inbox).collect();
    numbers.sort_by_key(|number| rounds.messages[*number].round);
    let (mut next, mut end, mut used_until) = (0, 0, 0);
    for number in numbers {
        let message = &rounds.messages[number];
        if used_until <= message.round {
            next = 0;
        }
        used_until = used_until.max(message.used_until);
        places[number] = next;
        next = (next + geometry.whole(message.shape).len() as u64).next_multiple_of(ALIGNMENT);
        end = next.max(end);
    }
    (places, end)
}

impl PlanDraft<'_> {
    /// Where a slot of a place begins, in bytes of a buffer of the kernel.
    fn start(&self, place: WorkPlace, shape: Slice, slot: u32) -> (u32, u64) {
        let bytes = |slice: Slice| self.geometry.piece(slice, slot, 0).start as u64;
        match place {
            WorkPlace::Buffer(slice) => (slice.buffer as u32, bytes(slice)),
            WorkPlace::Inbox(number) => {
                let first = self.geometry.whole(shape).start as u64;
                (INBOXES, self.inboxes[number] + bytes(shape) - first)
            }
        }
    }

    /// The elements of a slot that one of so many blocks works on.
    fn piece(&self, work: &StageWork, slot: u32, (block, blocks): (u64, u64)) -> Option<KernelPiece> {
        let length = self.geometry.piece(work.shape, slot, 0).len() as u64 / self.element;
        let share = length.div_ceil(blocks).next_multiple_of(ALIGNMENT / self.element);
        let begin = share.saturating_mul(block).min(length);
        let end = begin.saturating_add(share).min(length);
        let (source_buffer, source) = self.start(work.source, work.shape, slot);
        let (destination_buffer, destination) = self.start(work.destination, work.shape, slot);
        (end > begin).then(|| KernelPiece {
            length: end - begin,
            source: source / self.element + begin,
            destination: destination / self.element + begin,
            source_buffer,
            destination_buffer,
        })
    }

    fn exchanges(&self, rounds: &Rounds, rank: Rank) -> Vec<Vec<RankMessage>> {
        let mut exchanges = vec![Vec::new(); rounds.count as usize];
        for message in &rounds.messages {
            let (peer, place) = match rank {
                _ if message.from == rank => (message.to, WorkPlace::Buffer(message.source)),
                _ if message.to == rank => (message.from, message.destination),
                _ => continue,
            };
            let shape = if message.from == rank { message.source } else { message.shape };
            let elements = self.geometry.whole(shape).len() as u64 / self.element;
            if elements > 0 {
                let (buffer, offset) = self.start(place, shape, 0);
                let (buffer, is_sent) = (buffer as usize, message.from == rank);
                exchanges[message.round as usize].push(RankMessage { peer, is_sent, buffer, offset, elements });
            }
        }
        exchanges
    }
}
