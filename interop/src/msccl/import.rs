//! From a file to the [`Program`] that its steps describe.
//!
//! The principal function is [`import`]. Decisions:
//! * The demand follows from the header alone. If the number of chunks is not a multiple of what the collective needs, every
//!   chunk becomes several slots.
//! * A threadblock keeps its number. A `nop` becomes dependencies of the step after it. The same happens to a copy of a slice
//!   to itself, which is what a copy from input to output is in place.
//! * A sum that is sent but not stored (`rrs`) lands in a scratch slot that only its threadblock uses.
//! * The file does not name the root of a rooted collective. It is the only rank that receives nothing (that sends nothing,
//!   if the root collects), else the first rank.

use super::document::{
    Algorithm, BufferOffset, ClaimedCollective, Space, StepElement, StepType, TextPosition, ThreadblockElement,
};
use super::violation::{FileViolation, Rule};
use program::{
    self, Buffer, Connection, ConnectionId, Instruction, Layout, Program, RankProgram, Slice, Slot, StepAt, StepRef,
    Tempo, Threadblock,
};
use schedule::{Collective, Demand, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use topology::{LinkId, Rank};

/// The most slots that the buffers of all ranks may have together.
const MAX_SLOTS: u64 = 1 << 24;

/// A program, and the place of each of its steps in the file.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportedAlgorithm {
    /// The program. Until it is bound to a topology, each connection stands for a link with the same number.
    pub program: Program,
    /// For each rank and threadblock, the steps' numbers and places in the file.
    origins: Vec<Vec<Vec<StepOrigin>>>,
    /// Where each rank starts in the file.
    gpus: Vec<TextPosition>,
}

/// The origin of a step.
#[derive(Clone, Copy, PartialEq, Debug)]
struct StepOrigin {
    at: TextPosition,
    number: u32,
}

impl ImportedAlgorithm {
    /// Converts a violation of the program to one of the file.
    pub fn blame(&self, violation: program::ProgramViolation) -> FileViolation {
        let origin = |at: StepAt| {
            let block = self.origins.get(at.rank.index())?.get(at.threadblock as usize)?;
            block.get(at.step as usize).copied()
        };
        let steps = violation.steps();
        let mut places: Vec<TextPosition> = steps.iter().filter_map(|&at| Some(origin(at)?.at)).collect();
        places.dedup();
        if places.is_empty() {
            let gpu = violation.rank().and_then(|rank| self.gpus.get(rank.index()));
            places.push(gpu.copied().unwrap_or(TextPosition { line: 1, column: 1 }));
        }
        let at = places.remove(0);
        let renumbered =
            violation.renumbered(&mut |at| StepAt { step: origin(at).map_or(at.step, |o| o.number), ..at });
        let rule = Rule::Program { violation: renumbered, in_place: self.program.in_place };
        FileViolation { at, with: places, rule }
    }
}

/// The program of a file for calls of one kind, in a buffer of `size_bytes`.
///
/// The file must not break rules about its steps (`limits::check`); these rules also limit memory.
///
/// # Errors
/// The header does not give a demand, or gives one that is too large.
pub fn import(algorithm: &Algorithm, in_place: bool, size_bytes: u64) -> Result<ImportedAlgorithm, FileViolation> {
    let demand = demand(algorithm, size_bytes)?;
    let layout = Layout::new(demand.clone(), in_place).map_err(|error| too_large(algorithm, error.to_string()))?;
    let split = split(algorithm, demand.request().collective);
    let mut importer = Importer { layout: &layout, split, lanes: UsedConnections::of(algorithm) };
    let mut gpus: Vec<_> = algorithm.gpus.iter().collect();
    gpus.sort_unstable_by_key(|gpu| gpu.id);
    let (mut ranks, mut origins) = (Vec::new(), Vec::new());
    let starts = gpus.iter().map(|gpu| gpu.at).collect();
    for gpu in gpus {
        let mut blocks: Vec<&ThreadblockElement> = gpu.blocks.iter().collect();
        blocks.sort_unstable_by_key(|block| block.id);
        let (rank, of_rank) = importer.rank(Rank(gpu.id), &blocks, gpu.scratch_chunks);
        ranks.push(rank);
        origins.push(of_rank);
    }
    let program = Program {
        op: demand.request().op,
        in_place,
        shape: layout.shape().clone(),
        uniform: true,
        connections: importer.lanes.connections,
        ranks,
        tempo: Tempo::default(),
        demand,
    };
    Ok(ImportedAlgorithm { program, origins, gpus: starts })
}

fn too_large(algorithm: &Algorithm, reason: String) -> FileViolation {
    FileViolation::new(algorithm.at, Rule::TooLarge { reason })
}

/// The collective that a file computes, if its result follows from the header.
pub(super) fn collective(operation: ClaimedCollective) -> Option<Collective> {
    Some(match operation {
        ClaimedCollective::AllReduce => Collective::AllReduce,
        ClaimedCollective::AllGather => Collective::AllGather,
        ClaimedCollective::ReduceScatterMsccl | ClaimedCollective::ReduceScatterExecutor => Collective::ReduceScatter,
        ClaimedCollective::AllToAll => Collective::AllToAll,
        ClaimedCollective::Broadcast => Collective::Broadcast,
        ClaimedCollective::Reduce => Collective::Reduce,
        ClaimedCollective::Gather => Collective::Gather,
        ClaimedCollective::Scatter => Collective::Scatter,
        ClaimedCollective::AllToAllV
        | ClaimedCollective::Send
        | ClaimedCollective::Recv
        | ClaimedCollective::Custom => return None,
    })
}

/// Into how many slots a chunk of the file is cut.
fn split(algorithm: &Algorithm, collective: Collective) -> u32 {
    if collective.is_rooted() { 1 } else { algorithm.ranks / gcd(algorithm.ranks, algorithm.chunks) }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn demand(algorithm: &Algorithm, size_bytes: u64) -> Result<Arc<Demand>, FileViolation> {
    let Algorithm { at, ranks, chunks, .. } = *algorithm;
    let missing = Rule::Missing { name: "coll", dialect: super::Dialect::of(algorithm) };
    let operation = algorithm.operation.ok_or_else(|| FileViolation::new(at, missing))?;
    let collective = collective(operation).ok_or_else(|| FileViolation::new(at, Rule::NoDemand { operation }))?;
    let (ranks, chunks, split) = (u64::from(ranks), u64::from(chunks), u64::from(split(algorithm, collective)));
    let caller = chunks * split * ranks * 2;
    let scratch: u64 = algorithm.gpus.iter().map(|gpu| u64::from(gpu.scratch_chunks) * split).sum();
    if caller + scratch > MAX_SLOTS {
        let reason = format!("its buffers have {} slots, and {MAX_SLOTS} are supported", caller + scratch);
        return Err(too_large(algorithm, reason));
    }
    let per_rank = if collective.is_rooted() { chunks } else { chunks * split / ranks };
    let mut request = Request::new(collective, ranks as usize, size_bytes).with_chunks(per_rank as u32);
    request.root = request.root.map(|_| root(algorithm, collective));
    Demand::new(request).map(Arc::new).map_err(|error| too_large(algorithm, error.to_string()))
}

/// The rank that the steps treat as the root.
fn root(algorithm: &Algorithm, collective: Collective) -> Rank {
    let collects = collective.ends_at_root();
    let mut passive = algorithm.gpus.iter().filter(|gpu| {
        let mut steps = gpu.blocks.iter().flat_map(|block| &block.steps);
        !steps.any(|step| if collects { step.kind.sends() } else { step.kind.receives() })
    });
    match (passive.next(), passive.next()) {
        (Some(only), None) => Rank(only.id),
        _ => Rank(0),
    }
}

/// The connections that steps use, and for each the numbers of its messages.
struct UsedConnections {
    connections: Vec<Connection>,
    ids: BTreeMap<(u32, u32, u32), ConnectionId>,
    /// For each connection the numbers of the next message sent and received.
    next: Vec<(u32, u32)>,
}

impl UsedConnections {
    fn of(algorithm: &Algorithm) -> Self {
        let mut messages: BTreeMap<(u32, u32, u32), (u32, u32)> = BTreeMap::new();
        for (gpu, block) in algorithm.gpus.iter().flat_map(|gpu| gpu.blocks.iter().map(move |block| (gpu.id, block))) {
            let channel = block.channel.unwrap_or(0);
            for step in &block.steps {
                if let (true, Some(to)) = (step.kind.sends(), block.send) {
                    messages.entry((gpu, to, channel)).or_default().0 += 1;
                }
                if let (true, Some(from)) = (step.kind.receives(), block.recv) {
                    messages.entry((from, gpu, channel)).or_default().1 += 1;
                }
            }
        }
        let mut lanes = Self { connections: Vec::new(), ids: BTreeMap::new(), next: Vec::new() };
        let mut number = 0;
        for (ends @ (from, to, channel), (sent, received)) in messages {
            let id = lanes.connections.len() as u32;
            lanes.connections.push(Connection { from: Rank(from), to: Rank(to), channel, link: LinkId(id) });
            lanes.ids.insert(ends, ConnectionId(id));
            lanes.next.push((number, number));
            number += sent.max(received);
        }
        lanes
    }

    fn sent(&mut self, connection: ConnectionId) -> u32 {
        let next = &mut self.next[connection.index()].0;
        std::mem::replace(next, *next + 1)
    }

    fn received(&mut self, connection: ConnectionId) -> u32 {
        let next = &mut self.next[connection.index()].1;
        std::mem::replace(next, *next + 1)
    }
}

struct Importer<'a> {
    layout: &'a Layout,
    split: u32,
    lanes: UsedConnections,
}

impl Importer<'_> {
    /// The part of one rank; `blocks` are sorted by id, so their ids are their positions.
    fn rank(
        &mut self,
        rank: Rank,
        blocks: &[&ThreadblockElement],
        scratch: u32,
    ) -> (RankProgram, Vec<Vec<StepOrigin>>) {
        let mut scratch = scratch * self.split;
        let (mut threadblocks, mut origins) = (Vec::new(), Vec::new());
        // The new position of each step of the file among the steps of its threadblock.
        let mut kept: Vec<Vec<Option<u32>>> = Vec::new();
        for block in blocks {
            let unstored = block.steps.iter().filter(|step| step.kind == StepType::ReceiveReduceSend);
            let unstored = unstored.map(|step| step.count).max().unwrap_or(0) * self.split;
            let spare = Slot { buffer: Buffer::Scratch, index: scratch };
            scratch += unstored;
            let mut content = Threadblock::default();
            let (mut from, mut places) = (Vec::new(), Vec::new());
            for step in &block.steps {
                let instruction = self.instruction(rank, block, step, spare);
                places.push(instruction.map(|_| content.steps.len() as u32));
                let Some(instruction) = instruction else { continue };
                let mut made = program::Step::new(instruction);
                made.transfer = instruction.receives_from().map(|lane| self.lanes.received(lane));
                let sent = instruction.sends_to().map(|lane| self.lanes.sent(lane));
                if made.transfer.is_some() {
                    made.forwards = sent
                } else {
                    made.transfer = sent
                }
                content.steps.push(made);
                from.push(StepOrigin { at: step.at, number: step.number });
            }
            threadblocks.push(content);
            origins.push(from);
            kept.push(places);
        }
        for (index, block) in blocks.iter().enumerate() {
            wait(blocks, &kept, index, block, &mut threadblocks[index]);
        }
        let parts = |buffer| self.layout.slot_parts(rank, buffer).collect();
        let (input_parts, output_parts) = (parts(Buffer::Input), parts(Buffer::Output));
        let scratch_parts = vec![0; scratch as usize];
        (RankProgram { input_parts, output_parts, scratch_parts, threadblocks }, origins)
    }

    /// The instruction of a step; `None` if it does nothing. `spare` is the slot for a sum that is not stored.
    fn instruction(
        &self,
        rank: Rank,
        block: &ThreadblockElement,
        step: &StepElement,
        spare: Slot,
    ) -> Option<Instruction> {
        let channel = block.channel.unwrap_or(0);
        let to = block.send.and_then(|to| self.lanes.ids.get(&(rank.0, to, channel)).copied());
        let from = block.recv.and_then(|from| self.lanes.ids.get(&(from, rank.0, channel)).copied());
        let (src, dst) = (self.slice(rank, step.src, step.count), self.slice(rank, step.dst, step.count));
        Some(match step.kind {
            StepType::Nop => return None,
            StepType::Copy if src == dst => return None,
            StepType::Copy => Instruction::Copy { src, dst },
            StepType::Reduce => Instruction::Reduce { src, dst },
            StepType::Send => Instruction::Send { to: to?, src },
            StepType::Receive => Instruction::Receive { from: from?, dst },
            StepType::ReceiveReduceCopy => Instruction::ReceiveReduce { from: from?, src, dst },
            StepType::ReceiveCopySend => Instruction::ReceiveSend { from: from?, to: to?, dst },
            StepType::ReceiveReduceCopySend => Instruction::ReceiveReduceSend { from: from?, to: to?, src, dst },
            StepType::ReceiveReduceSend => {
                Instruction::ReceiveReduceSend { from: from?, to: to?, src, dst: spare.slice(src.count) }
            }
        })
    }

    /// A slice of the file as slots of the program, with the name that in-place programs use.
    fn slice(&self, rank: Rank, at: BufferOffset, count: u32) -> Slice {
        let buffer = match at.space {
            Space::Input => Buffer::Input,
            Space::Output => Buffer::Output,
            Space::Scratch => Buffer::Scratch,
        };
        let index = at.offset.unwrap_or(0) * self.split;
        self.layout.seen(rank, Slot { buffer, index }).slice(count * self.split)
    }
}

/// Gives the steps of a threadblock the dependencies that the file has.
fn wait(
    blocks: &[&ThreadblockElement],
    kept: &[Vec<Option<u32>>],
    index: usize,
    block: &ThreadblockElement,
    threadblock: &mut Threadblock,
) {
    let mut pending = BTreeSet::new();
    for (place, step) in block.steps.iter().enumerate() {
        if let Some((awaited, number)) = step.after {
            pending.extend(ends(blocks, kept, (awaited, number)));
        }
        if let Some(step) = kept[index][place] {
            let after = std::mem::take(&mut pending).into_iter();
            let others = after.filter(|on: &StepRef| on.threadblock as usize != index);
            threadblock.steps[step as usize].after = others.collect();
        }
    }
}

/// The steps of the program after which a step of the file has finished: its own step or, if it does nothing, all steps
/// that it waits for.
fn ends(blocks: &[&ThreadblockElement], kept: &[Vec<Option<u32>>], step: (u32, u32)) -> BTreeSet<StepRef> {
    let (mut ends, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![step]);
    while let Some((block, step)) = open.pop() {
        if !seen.insert((block, step)) {
            continue;
        }
        match kept[block as usize][step as usize] {
            Some(kept) => {
                ends.insert(StepRef { threadblock: block, step: kept });
            }
            None => {
                open.extend(blocks[block as usize].steps[step as usize].after);
                open.extend(step.checked_sub(1).map(|before| (block, before)));
            }
        }
    }
    ends
}
