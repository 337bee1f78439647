//! One rank's rounds at one size: which bytes move, and the tables by which the interpreter kernel does the local work.
//!
//! The principal type is [`RoundPlan`]. The work of a stage is one launch. Each block of it does the same elements of
//! every slot, level by level; slots are used element by element, so no block ever waits for another one of its rank. Where ranks have
//! mapped each other's memory, a block waits for messages of the same block of other ranks.

use super::derive::{RoundMessage, Rounds, StageWork, WorkKind, WorkPlace};
use super::mapped::{
    ALIGNMENT, LaunchBytes, MOST_BLOCKS as MOST_MAPPED, MappedLayout, MappedShape, share_of, stage_bytes,
};
use crate::device::kernel_plan::operation;
use crate::device::tables::{DIVIDES, KernelPiece, KernelStep, READS, RECEIVES, REDUCES, SENDS, STORES};
use crate::dtype::DType;
use crate::error::{RunError, RunResult};
use crate::plan::geometry::Geometry;
use program::{ConnectionId, Slice, VerifiedProgram};
use std::ops::Range;
use topology::Rank;

/// At most so many blocks work on a stage.
const MOST_BLOCKS: u64 = 1024;
/// The kernel's number of the buffer with all inboxes; input, output and scratch come before it.
const INBOXES: u32 = 3;
pub(super) const BUFFERS: usize = 4;

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

/// A block of a stage.
#[derive(Clone, Debug)]
pub(super) struct StageBlock {
    pub(super) steps: Range<usize>,
    /// Which one it is, among those of all ranks.
    pub(super) number: u64,
    /// How many messages it has in a tile, for each ring of its rank in this stage.
    pub(super) messages: Vec<u32>,
}

/// The launch of a stage.
#[derive(Clone, Debug)]
pub(super) struct StageLaunch {
    pub(super) number: u32,
    /// Those that have something to do.
    pub(super) blocks: Vec<StageBlock>,
    pub(super) tiles: u32,
    /// Its blocks wait for those of other ranks.
    pub(super) is_mapped: bool,
}

/// A rank's part of a program in rounds.
#[derive(Clone, Debug)]
pub struct RoundPlan {
    rank: Rank,
    dtype: DType,
    pub(super) operation: u32,
    /// For each round, in an order that is the same at both ends of all messages between two ranks.
    exchanges: Vec<Vec<RankMessage>>,
    /// One more than exchanges.
    pub(super) stages: Vec<StageLaunch>,
    pub(super) steps: Vec<KernelStep>,
    pub(super) pieces: Vec<KernelPiece>,
    /// Of input, output, scratch and inboxes.
    bytes: [u64; BUFFERS],
    pub(super) mapped: MappedLayout,
}

/// A rank whose plan is being made.
struct PlanDraft<'a> {
    geometry: Geometry,
    element: u64,
    /// Where the inbox of each message begins; messages to other ranks have none.
    inboxes: &'a [u64],
    messages: &'a [RoundMessage],
}

impl RoundPlan {
    /// The part of a rank for calls of `count` elements, as the collective counts them. A block of the kernel has about
    /// `block_bytes` bytes of work in a stage.
    ///
    /// # Errors
    /// [`RunError`] if the size does not suit the program.
    pub fn new(program: &VerifiedProgram, rank: Rank, count: u64, dtype: DType, block_bytes: u64) -> RunResult<Self> {
        Self::of(&Rounds::of(program)?, program, rank, (count, dtype), LaunchBytes::of_block(block_bytes))
    }

    /// The same where ranks have mapped each other's memory: those with the same number in `domains`, which has one of each rank. The
    /// kernel moves the messages between them.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn within(
        domains: &[u32],
        program: &VerifiedProgram,
        rank: Rank,
        (count, dtype): (u64, DType),
        block_bytes: u64,
    ) -> RunResult<Self> {
        let sizes = LaunchBytes::of_block(block_bytes);
        Self::of(&Rounds::within(program, domains)?, program, rank, (count, dtype), sizes)
    }

    /// The same from rounds that are known already.
    pub(crate) fn of(
        rounds: &Rounds,
        program: &VerifiedProgram,
        rank: Rank,
        (count, dtype): (u64, DType),
        sizes: LaunchBytes,
    ) -> RunResult<Self> {
        let program = program.program();
        // What does not suit one rank suits none, so that all ranks have a plan or none.
        let ranks = (0..program.ranks.len()).map(Rank::from_index);
        let mut ranks =
            ranks.map(|rank| Geometry::new(program, rank, count, dtype, 1)).collect::<RunResult<Vec<_>>>()?;
        check_pieces(rounds, &ranks, sizes)?;
        let mapped = MappedLayout::of(rounds, &ranks, dtype, sizes);
        let geometry = ranks.swap_remove(rank.index());
        let lengths = [program::Buffer::Input, program::Buffer::Output, program::Buffer::Scratch];
        let lengths = lengths.map(|buffer| geometry.buffer_bytes(buffer) as u64);
        let (inboxes, inbox_bytes) = inboxes(rounds, rank, &geometry);
        let element = dtype.size() as u64;
        let draft = PlanDraft { geometry, element, inboxes: &inboxes, messages: &rounds.messages };
        let mut plan = Self {
            rank,
            dtype,
            operation: operation(program.op),
            exchanges: draft.exchanges(rounds, rank),
            stages: Vec::new(),
            steps: Vec::new(),
            pieces: Vec::new(),
            bytes: [lengths[0], lengths[1], lengths[2], inbox_bytes],
            mapped,
        };
        let mut work = rounds.work[rank.index()].as_slice();
        for stage in 0..=rounds.count {
            let (now, later) = work.split_at(work.partition_point(|it| it.stage <= stage));
            plan.add_stage(&draft, stage, now, sizes)?;
            work = later;
        }
        Ok(plan)
    }

    fn add_stage(
        &mut self,
        draft: &PlanDraft<'_>,
        stage: u32,
        work: &[StageWork],
        sizes: LaunchBytes,
    ) -> RunResult<()> {
        let blocks = stage_bytes(work, &draft.geometry).div_ceil(sizes.block.max(1)).min(MOST_BLOCKS);
        let mapped = self.mapped.stages.get(&stage).copied();
        let MappedShape { blocks, tiles } = mapped.unwrap_or(MappedShape { blocks, tiles: 1 });
        let rings: Vec<ConnectionId> = self.mapped.of_rank(self.rank, stage).map(|ring| ring.connection).collect();
        let mut launch = StageLaunch { number: stage, blocks: Vec::new(), tiles, is_mapped: mapped.is_some() };
        for number in 0..blocks {
            let (first, mut messages) = (self.steps.len(), vec![0; rings.len()]);
            for same in work.chunk_by(|one, other| (one.level, one.kind) == (other.level, other.kind)) {
                self.add_step(draft, same, (number, blocks), (&rings, &mut messages))?;
            }
            let steps = first..self.steps.len();
            if !steps.is_empty() {
                launch.blocks.push(StageBlock { steps, number, messages });
            }
        }
        self.stages.push(launch);
        Ok(())
    }

    /// A block's share of work that is done in one step. `messages` are how many it has had of each ring.
    fn add_step(
        &mut self,
        draft: &PlanDraft<'_>,
        same: &[StageWork],
        share: (u64, u64),
        (rings, messages): (&[ConnectionId], &mut [u32]),
    ) -> RunResult<()> {
        let too_large = |_| RunError::Mismatch { what: "the program has too many slots for the kernel".to_owned() };
        let first = self.pieces.len();
        for work in same {
            self.pieces.extend((0..work.shape.count).filter_map(|slot| draft.piece(work, slot, share)));
        }
        let piece_count = self.pieces.len() - first;
        let Some(work) = same.first().filter(|_| piece_count > 0) else { return Ok(()) };
        let mut step = KernelStep {
            first_piece: u32::try_from(first).map_err(too_large)?,
            piece_count: u32::try_from(piece_count).map_err(too_large)?,
            ..KernelStep::default()
        };
        // The channel of a mapped message, and its number in a tile. Both ends leave out the same ones, which are empty.
        let mut channel = |message: usize| {
            let connection = draft.messages[message].connection;
            let channel = rings.binary_search(&connection).unwrap_or(0);
            messages[channel] += 1;
            (channel as u32, messages[channel] - 1)
        };
        match work.kind {
            WorkKind::Copy => step.kind = READS | STORES,
            WorkKind::Reduce => step.kind = READS | STORES | REDUCES,
            WorkKind::Divide(by) => {
                (step.kind, step.divisor) = (READS | STORES | DIVIDES, u32::try_from(by).map_err(too_large)?);
            }
            WorkKind::Put(message) => {
                step.kind = READS | SENDS;
                (step.out_channel, step.out_ordinal) = channel(message);
            }
            WorkKind::Take(message) => {
                step.kind = RECEIVES | STORES;
                (step.in_channel, step.in_ordinal) = channel(message);
            }
            WorkKind::TakeReduce(message) => {
                step.kind = RECEIVES | READS | STORES | REDUCES;
                (step.in_channel, step.in_ordinal) = channel(message);
            }
        }
        self.steps.push(step);
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
}

/// Whether the kernel can count the pieces and steps of each rank.
fn check_pieces(rounds: &Rounds, ranks: &[Geometry], sizes: LaunchBytes) -> RunResult<()> {
    for (work, geometry) in rounds.work.iter().zip(ranks) {
        let stages = work.chunk_by(|one, other| one.stage == other.stage);
        let pieces = stages.map(|stage| {
            let slots: u64 = stage.iter().map(|of| u64::from(of.shape.count)).sum();
            slots.saturating_mul(
                stage_bytes(stage, geometry).div_ceil(sizes.block.max(1)).clamp(MOST_MAPPED, MOST_BLOCKS),
            )
        });
        if pieces.fold(0, u64::saturating_add) > u64::from(u32::MAX) {
            return Err(RunError::Mismatch { what: "the program has too many slots for the kernel".to_owned() });
        }
    }
    Ok(())
}

/// Where the inboxes of a rank begin, and their bytes together. When all that came before was used, the room is used again.
fn inboxes(rounds: &Rounds, rank: Rank, geometry: &Geometry) -> (Vec<u64>, u64) {
    let mut places = vec![0; rounds.messages.len()];
    let is_inbox = |number: &usize| {
        let message = &rounds.messages[*number];
        message.to == rank && matches!(message.destination, WorkPlace::Inbox(_))
    };
    // Stages have even times, and exchanges odd ones.
    let comes = |number: usize| {
        let message = &rounds.messages[number];
        2 * u64::from(message.round) + u64::from(!message.is_mapped)
    };
    let mut numbers: Vec<usize> = (0..rounds.messages.len()).filter(is_inbox).collect();
    numbers.sort_by_key(|number| comes(*number));
    // What comes in a stage may come while all other work of the stage is done.
    let (mut next, mut end, mut used_until) = (0, 0, None);
    for number in numbers {
        let message = &rounds.messages[number];
        if used_until < Some(comes(number)) {
            next = 0;
        }
        used_until = used_until.max(Some(2 * u64::from(message.used_until)));
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
        let share = share_of(length, blocks, self.element);
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
        for message in rounds.messages.iter().filter(|message| !message.is_mapped) {
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
