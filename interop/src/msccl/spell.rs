//! From a program within the limits to the document of a file.
//!
//! The principal function is [`spell`]. It also writes offsets that no runtime reads (the receiver's place of sent
//! data), because people and tools read them.

use super::Dialect;
use super::document::{
    Algorithm, BufferOffset, ClaimedCollective, GpuElement, Space, StepElement, StepType, TextPosition,
    ThreadblockElement,
};
use super::export::AlgorithmExportOptions;
use program::rewrite::cost;
use program::{self, Buffer, Instruction, Layout, LayoutError, Program, RankProgram, Slice, StepRef};
use std::collections::BTreeMap;
use topology::Rank;

/// The document of a program within the limits.
pub(super) fn spell(
    program: &Program,
    operation: ClaimedCollective,
    options: &AlgorithmExportOptions,
) -> Result<Algorithm, LayoutError> {
    let request = program.demand.request();
    let layout = Layout::new(program.demand.clone(), false)?;
    let parts = if request.collective.is_rooted() { 1 } else { request.members.len() as u32 };
    let chunks = request.chunks_per_rank * parts;
    let spellings: Vec<Spelling> = program.ranks.iter().map(Spelling::of).collect();
    let messages = MessagePlaces::of(program, &spellings);
    let gpu = |(rank, spelling): (usize, &Spelling)| {
        let slots = |buffer| layout.slots(Rank::from_index(rank), buffer);
        GpuElement {
            at: TextPosition::default(),
            id: rank as u32,
            input_chunks: slots(Buffer::Input),
            output_chunks: slots(Buffer::Output),
            scratch_chunks: spelling.scratch,
            blocks: blocks(program, rank, spelling, &messages),
        }
    };
    Ok(Algorithm {
        at: TextPosition::default(),
        name: options.name.clone(),
        protocol: options.protocol,
        channels: program.connections.iter().map(|lane| lane.channel + 1).max().unwrap_or(1),
        chunks,
        ranks: program.ranks.len() as u32,
        operation: Some(operation),
        in_place: Some(program.in_place),
        out_of_place: (options.dialect == Dialect::Executor).then_some(!program.in_place),
        min_bytes: Some(options.min_bytes),
        max_bytes: Some(options.max_bytes),
        threads: None,
        reduction: None,
        gpus: spellings.iter().enumerate().map(gpu).collect(),
    })
}

/// The names of a rank's slots in the file.
struct Spelling {
    /// For each scratch slot its number in the file; `None` if it is never read.
    kept: Vec<Option<u32>>,
    scratch: u32,
}

impl Spelling {
    fn of(rank: &RankProgram) -> Self {
        let mut read = vec![false; rank.scratch_parts.len()];
        let steps = || rank.threadblocks.iter().flat_map(|block| &block.steps).map(|step| step.instruction);
        let scratch = |slice: Slice| {
            let slots = slice.index as usize..(slice.index + slice.count) as usize;
            (slice.buffer == Buffer::Scratch).then_some(slots)
        };
        for instruction in steps() {
            // A fused step need not store data that is only sent on; all other written slots are kept.
            let stored = matches!(instruction, Instruction::ReceiveReduceSend { .. });
            let stored = if stored { None } else { instruction.destination() };
            for slots in [instruction.source(), stored].into_iter().flatten().filter_map(scratch) {
                read[slots].fill(true);
            }
        }
        // A step stores all of its slots or none.
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for slots in steps().filter_map(|instruction| instruction.destination()).filter_map(scratch) {
                let kept = &mut read[slots];
                if kept.contains(&true) && kept.contains(&false) {
                    kept.fill(true);
                    changed = true;
                }
            }
        }
        let mut scratch = 0;
        let kept = read.into_iter().map(|read| {
            read.then(|| {
                scratch += 1;
                scratch - 1
            })
        });
        Self { kept: kept.collect(), scratch }
    }

    /// The place of a slice; `None` for scratch that is not kept.
    fn location(&self, slice: Slice) -> Option<BufferOffset> {
        let (space, offset) = match slice.buffer {
            Buffer::Input => (Space::Input, slice.index),
            Buffer::Output => (Space::Output, slice.index),
            Buffer::Scratch => {
                let slots = &self.kept[slice.index as usize..][..slice.count as usize];
                (Space::Scratch, slots.iter().copied().collect::<Option<Vec<u32>>>()?.first().copied()?)
            }
        };
        Some(BufferOffset { space, offset: Some(offset) })
    }
}

/// For every connection, the places from which each message is read and to which it is written.
struct MessagePlaces {
    sent: Vec<Vec<BufferOffset>>,
    received: Vec<Vec<BufferOffset>>,
}

/// The place of a sum that is not stored.
const NOWHERE: BufferOffset = BufferOffset { space: Space::Scratch, offset: Some(0) };

impl MessagePlaces {
    fn of(program: &Program, spellings: &[Spelling]) -> Self {
        let none = vec![Vec::new(); program.connections.len()];
        let mut messages = Self { sent: none.clone(), received: none };
        for (rank, spelling) in program.ranks.iter().zip(spellings) {
            for step in rank.threadblocks.iter().flat_map(|block| &block.steps) {
                let (first, second) = step.instruction.halves();
                for half in std::iter::once(first).chain(second) {
                    let at = |slice: Option<Slice>| slice.and_then(|slice| spelling.location(slice)).unwrap_or(NOWHERE);
                    if let Some(lane) = half.sends_to() {
                        messages.sent[lane.index()].push(at(half.source()));
                    }
                    if let Some(lane) = half.receives_from() {
                        messages.received[lane.index()].push(at(half.destination()));
                    }
                }
            }
        }
        messages
    }
}

/// The threadblocks of a rank. Those that steps wait for come first, because only low numbers can be waited for.
fn blocks(program: &Program, rank: usize, spelling: &Spelling, messages: &MessagePlaces) -> Vec<ThreadblockElement> {
    let content = &program.ranks[rank];
    let steps = || content.threadblocks.iter().flat_map(|block| &block.steps);
    let mut awaited: BTreeMap<StepRef, ()> = BTreeMap::new();
    awaited.extend(steps().flat_map(|step| step.after.iter().map(|&on| (on, ()))));
    let mut order: Vec<u32> = (0..content.threadblocks.len() as u32).collect();
    order.retain(|&block| !content.threadblocks[block as usize].steps.is_empty());
    let is_awaited = |block: u32| {
        let first = StepRef { threadblock: block, step: 0 };
        awaited.range(first..).next().is_some_and(|(on, ())| on.threadblock == block)
    };
    order.sort_by_key(|&block| !is_awaited(block));
    let mut ids = vec![0; content.threadblocks.len()];
    order.iter().zip(0..).for_each(|(&block, id)| ids[block as usize] = id);
    let numbers: Vec<Vec<u32>> = content.threadblocks.iter().map(numbers).collect();
    let waits = |on: StepRef| (ids[on.threadblock as usize], numbers[on.threadblock as usize][on.step as usize]);
    let block = |&index: &u32| {
        let steps = &content.threadblocks[index as usize].steps;
        let out = steps.iter().find_map(|step| step.instruction.sends_to());
        let into = steps.iter().find_map(|step| step.instruction.receives_from());
        let mut next = [0, 0];
        let mut written = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let mut made = spelled(&step.instruction, spelling, messages, &mut next);
            made.announces = awaited.contains_key(&StepRef { threadblock: index, step: number as u32 });
            let (last, others) = match step.after.split_last() {
                Some((&last, others)) => (Some(last), others),
                None => (None, &[][..]),
            };
            for &on in others {
                written.push(StepElement { after: Some(waits(on)), ..NOP });
            }
            made.after = last.map(waits);
            written.push(made);
        }
        part_reductions(&mut written);
        written.iter_mut().zip(0..).for_each(|(step, number)| step.number = number);
        let lane = |id: program::ConnectionId| &program.connections[id.index()];
        ThreadblockElement {
            at: TextPosition::default(),
            id: ids[index as usize],
            send: out.map(|id| lane(id).to.0),
            recv: into.map(|id| lane(id).from.0),
            channel: Some(out.or(into).map_or(0, |id| lane(id).channel)),
            steps: written,
        }
    };
    order.iter().map(block).collect()
}

/// A step that carries a dependency.
const NOP: StepElement = StepElement {
    at: TextPosition { line: 0, column: 0 },
    number: 0,
    kind: StepType::Nop,
    src: BufferOffset { space: Space::Input, offset: None },
    dst: BufferOffset { space: Space::Output, offset: None },
    count: 0,
    after: None,
    announces: false,
};

/// The number of each step in the file, after the `nop`s for its dependencies.
fn numbers(block: &program::Threadblock) -> Vec<u32> {
    let ends = block.steps.iter().scan(0, |end, step| {
        *end += cost(step) as u32;
        Some(*end - 1)
    });
    ends.collect()
}

/// An instruction as a step of the file; `next` counts the messages sent and received so far.
fn spelled(
    instruction: &Instruction,
    spelling: &Spelling,
    messages: &MessagePlaces,
    next: &mut [usize; 2],
) -> StepElement {
    let at = |slice: Slice| spelling.location(slice).unwrap_or(NOWHERE);
    let sent_to = |lane: program::ConnectionId, next: &mut [usize; 2]| {
        next[0] += 1;
        messages.received[lane.index()].get(next[0] - 1).copied().unwrap_or(NOWHERE)
    };
    let received_from = |lane: program::ConnectionId, next: &mut [usize; 2]| {
        next[1] += 1;
        messages.sent[lane.index()].get(next[1] - 1).copied().unwrap_or(NOWHERE)
    };
    let (kind, src, dst) = match *instruction {
        Instruction::Send { to, src } => (StepType::Send, at(src), sent_to(to, next)),
        Instruction::Receive { from, dst } => (StepType::Receive, received_from(from, next), at(dst)),
        Instruction::ReceiveReduce { from, src, dst } => {
            received_from(from, next);
            (StepType::ReceiveReduceCopy, at(src), at(dst))
        }
        Instruction::Copy { src, dst } => (StepType::Copy, at(src), at(dst)),
        Instruction::Reduce { src, dst } => (StepType::Reduce, at(src), at(dst)),
        Instruction::ReceiveSend { from, to, dst } => {
            sent_to(to, next);
            (StepType::ReceiveCopySend, received_from(from, next), at(dst))
        }
        Instruction::ReceiveReduceSend { from, to, src, dst } => {
            received_from(from, next);
            let there = sent_to(to, next);
            match spelling.location(dst) {
                Some(dst) => (StepType::ReceiveReduceCopySend, at(src), dst),
                None => (StepType::ReceiveReduceSend, at(src), there),
            }
        }
    };
    StepElement { kind, src, dst, count: instruction.shape().count, ..NOP }
}

/// Ends a run of reductions where the readers would fuse reductions that they cannot: after 16, and where counts
/// differ.
fn part_reductions(steps: &mut [StepElement]) {
    const ROW: u32 = 16;
    let mut row = 1;
    for index in 1..steps.len() {
        let (before, step) = (steps[index - 1], steps[index]);
        let fused = before.kind == StepType::Reduce
            && step.kind == StepType::Reduce
            && before.dst == step.dst
            && before.src.space == step.src.space
            && step.after.is_none()
            && !before.announces;
        row = if fused { row + 1 } else { 1 };
        if fused && (row > ROW || before.count != step.count) {
            steps[index - 1].announces = true;
            row = 1;
        }
    }
}
