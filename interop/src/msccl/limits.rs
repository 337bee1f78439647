//! The limits of the runtimes, checked rule by rule.
//!
//! The principal function is [`check`]. Every rule comes from one of the two readers or interpreters (see the parent
//! module). Rules that an interpreter needs are checked here even if the reader does not check them. The effect of all
//! steps together is checked by [`program::check`].

use super::Dialect;
use super::document::{
    Algorithm, BufferOffset, ClaimedCollective, GpuElement, Space, StepElement, StepType, TextPosition,
    ThreadblockElement,
};
use super::judge::MSCCL_MOST;
use super::violation::{FileViolation, Rule};
use schedule::Findings;
use std::collections::BTreeMap;

/// Channels, in both runtimes.
const MAX_CHANNELS: u32 = 32;
/// Steps in a threadblock.
pub(super) const MAX_STEPS: usize = 256;
/// Threadblocks that send, or that receive, on one channel.
pub(super) const MAX_BLOCKS_PER_CHANNEL: usize = 32;
/// Chunks that one step moves.
pub(super) const MAX_COUNT: u32 = 71;
/// The last chunk at which a step can start: offsets are signed 16-bit numbers.
const MAX_OFFSET: u32 = i16::MAX as u32;
/// The last threadblock that a step can wait for: its number is a signed 8-bit number.
pub(super) const MAX_AWAITED_BLOCK: u32 = i8::MAX as u32;
/// Elements that a reader can keep; it needs room for one more to read on.
const MAX_ELEMENTS: u64 = 4095;
/// Children of one element.
const MAX_CHILDREN: u64 = 1024;
/// Characters of an attribute.
const MAX_TEXT: u64 = 255;
/// Reductions that can be fused into one.
const MAX_FUSED: u32 = 16;
/// Chunks that offsets and counts can reach.
const MAX_CHUNKS: u32 = MAX_OFFSET + MAX_COUNT;
/// Name of the limit on `nchunksperloop`.
pub(super) const CHUNKS: &str = "`nchunksperloop`";

impl Dialect {
    /// The most threadblocks of a rank.
    pub fn max_blocks(self) -> u64 {
        match self {
            Self::Msccl => 2 * 108,
            Self::Executor => u64::from(MAX_CHANNELS) * MAX_BLOCKS_PER_CHANNEL as u64,
        }
    }

    /// Whether the runtime knows a collective.
    pub fn knows(self, operation: ClaimedCollective) -> bool {
        match operation {
            ClaimedCollective::AllReduce
            | ClaimedCollective::AllGather
            | ClaimedCollective::AllToAll
            | ClaimedCollective::Broadcast
            | ClaimedCollective::Reduce => true,
            ClaimedCollective::ReduceScatterMsccl | ClaimedCollective::Custom => self == Self::Msccl,
            ClaimedCollective::ReduceScatterExecutor
            | ClaimedCollective::Gather
            | ClaimedCollective::Scatter
            | ClaimedCollective::AllToAllV
            | ClaimedCollective::Send
            | ClaimedCollective::Recv => self == Self::Executor,
        }
    }
}

/// The rules that a file breaks, in the order of the file.
pub(super) fn check(algorithm: &Algorithm, dialect: Dialect) -> BrokenRules {
    let mut limits = LimitCheck { algorithm, dialect, broken: BrokenRules::default() };
    limits.header();
    limits.ranks();
    for gpu in &algorithm.gpus {
        limits.gpu(gpu);
    }
    limits.broken
}

/// The rules that a file breaks.
#[derive(Default)]
pub(super) struct BrokenRules {
    pub(super) violations: Findings<FileViolation>,
    /// Whether a broken rule, listed or only counted, makes the steps unreadable.
    pub(super) blocks: bool,
}

pub(super) struct LimitCheck<'a> {
    algorithm: &'a Algorithm,
    dialect: Dialect,
    broken: BrokenRules,
}

impl LimitCheck<'_> {
    pub(super) fn broken(&mut self, at: TextPosition, rule: Rule) {
        self.found(FileViolation::new(at, rule));
    }

    pub(super) fn found(&mut self, violation: FileViolation) {
        self.broken.blocks |= violation.rule.blocks();
        self.broken.violations.push(violation);
    }

    pub(super) fn limit(&mut self, at: TextPosition, what: &'static str, given: u64, limit: u64) {
        if given > limit {
            self.broken(at, Rule::Limit { what, given, limit, dialect: self.dialect });
        }
    }

    fn header(&mut self) {
        let Algorithm { at, channels, chunks, ranks, .. } = *self.algorithm;
        let dialect = self.dialect;
        self.operation();
        self.selection();
        self.limit(at, "`nchannels`", channels.into(), MAX_CHANNELS.into());
        self.limit(at, CHUNKS, chunks.into(), MAX_CHUNKS.into());
        self.limit(at, "`ngpus`", ranks.into(), MAX_CHILDREN);
        self.limit(at, "the length of `name`", self.algorithm.name.len() as u64, MAX_TEXT);
        if let Some(given) = self.algorithm.threads.filter(|threads| dialect == Dialect::Msccl && threads % 32 != 0) {
            self.broken(at, Rule::Threads { given });
        }
    }

    fn operation(&mut self) {
        let (at, dialect) = (self.algorithm.at, self.dialect);
        let Some(operation) = self.algorithm.operation else {
            return self.broken(at, Rule::Missing { name: "coll", dialect });
        };
        if !dialect.knows(operation) {
            let instead = match operation {
                ClaimedCollective::ReduceScatterMsccl => Some(ClaimedCollective::ReduceScatterExecutor),
                ClaimedCollective::ReduceScatterExecutor => Some(ClaimedCollective::ReduceScatterMsccl),
                _ => None,
            };
            self.broken(at, Rule::UnknownOperation { operation, dialect, instead });
        }
        if matches!(
            operation,
            ClaimedCollective::AllToAllV
                | ClaimedCollective::Send
                | ClaimedCollective::Recv
                | ClaimedCollective::Custom
        ) {
            self.broken(at, Rule::NoDemand { operation });
        }
    }

    /// Checks which calls the file serves.
    fn selection(&mut self) {
        let Algorithm { at, in_place, out_of_place, min_bytes, max_bytes, .. } = *self.algorithm;
        let dialect = self.dialect;
        let needed = [
            ("inplace", in_place.is_none(), true),
            ("outofplace", out_of_place.is_none(), dialect == Dialect::Executor),
            ("minBytes", min_bytes.is_none(), dialect == Dialect::Executor),
            ("maxBytes", max_bytes.is_none(), dialect == Dialect::Executor),
        ];
        for (name, _, _) in needed.into_iter().filter(|&(_, missing, needed)| missing && needed) {
            self.broken(at, Rule::Missing { name, dialect });
        }
        if dialect == Dialect::Executor && in_place == Some(false) && out_of_place == Some(false) {
            self.broken(at, Rule::NeverSelected { reason: "`inplace` and `outofplace` are both 0" });
        }
        let empty = match (dialect, min_bytes.unwrap_or(0), max_bytes) {
            (Dialect::Msccl, least, most) => least >= most.unwrap_or(MSCCL_MOST),
            (Dialect::Executor, least, Some(most)) => most > 0 && least > most,
            (Dialect::Executor, _, None) => false,
        };
        if empty {
            self.broken(at, Rule::NeverSelected { reason: "no size lies between `minBytes` and `maxBytes`" });
        }
    }

    fn ranks(&mut self) {
        let expected = self.algorithm.ranks;
        let mut ids: Vec<u32> = self.algorithm.gpus.iter().map(|gpu| gpu.id).collect();
        ids.sort_unstable();
        let found = ids.len();
        if found != expected as usize || !ids.into_iter().eq(0..expected) {
            self.broken(self.algorithm.at, Rule::Ranks { found, expected });
        }
    }

    fn gpu(&mut self, gpu: &GpuElement) {
        self.buffer_sizes(gpu);
        self.limit(gpu.at, "`s_chunks`", gpu.scratch_chunks.into(), MAX_CHUNKS.into());
        self.limit(gpu.at, "the number of threadblocks", gpu.blocks.len() as u64, self.dialect.max_blocks());
        let steps: u64 = gpu.blocks.iter().map(|block| block.steps.len() as u64).sum();
        // A reader keeps the elements of its own rank, and the bare <gpu> elements of the others.
        let elements = 1 + self.algorithm.gpus.len() as u64 + gpu.blocks.len() as u64 + steps;
        self.limit(gpu.at, "the number of elements for this rank", elements, MAX_ELEMENTS);
        self.block_ids(gpu);
        self.channel_load(gpu);
        self.shared_ends(gpu);
        for block in &gpu.blocks {
            self.block(gpu, block);
        }
        self.waits(gpu);
    }

    /// microsoft/msccl refuses files whose buffer sizes do not follow from the header.
    fn buffer_sizes(&mut self, gpu: &GpuElement) {
        let Algorithm { chunks, ranks, operation, .. } = *self.algorithm;
        let (Some(operation), Dialect::Msccl) = (operation, self.dialect) else { return };
        let multiple = |yes: bool| if yes { u64::from(ranks) } else { 1 };
        let input = multiple(operation == ClaimedCollective::AllGather);
        let output = multiple(operation == ClaimedCollective::ReduceScatterMsccl);
        for (buffer, given, blocks) in [("i_chunks", gpu.input_chunks, input), ("o_chunks", gpu.output_chunks, output)]
        {
            if given > 0 && u64::from(given) * blocks != u64::from(chunks) {
                let expected = match u64::from(chunks).is_multiple_of(blocks) {
                    true => (u64::from(chunks) / blocks).to_string(),
                    false => format!("{chunks}/{blocks}"),
                };
                self.broken(gpu.at, Rule::BufferSize { buffer, given, chunks, expected, operation });
            }
        }
    }

    fn block_ids(&mut self, gpu: &GpuElement) {
        let mut ids = BTreeMap::new();
        for block in &gpu.blocks {
            if let Some(first) = ids.insert(block.id, block.at) {
                let mut violation = FileViolation::new(block.at, Rule::SameBlock { rank: gpu.id, id: block.id });
                violation.with.push(first);
                self.found(violation);
            }
        }
        let missing = (0..).zip(ids.keys()).find(|(expected, id)| expected != *id);
        if let Some((missing, _)) = missing {
            self.broken(gpu.at, Rule::BlockIds { rank: gpu.id, missing });
        }
    }

    fn channel_load(&mut self, gpu: &GpuElement) {
        let mut load: BTreeMap<(bool, u32), (usize, TextPosition)> = BTreeMap::new();
        for block in &gpu.blocks {
            let Some(channel) = block.channel else { continue };
            for (send, peer) in [(true, block.send), (false, block.recv)] {
                if peer.is_some() {
                    let entry = load.entry((send, channel)).or_default();
                    *entry = (entry.0 + 1, block.at);
                }
            }
        }
        for ((send, _), (count, at)) in load {
            let what = if send { "the number of senders on a channel" } else { "the number of receivers on a channel" };
            self.limit(at, what, count as u64, MAX_BLOCKS_PER_CHANNEL as u64);
        }
    }

    /// Every threadblock opens its connections, used or not. At its end it writes back how many messages it has counted
    /// there. If two threadblocks share a connection, the idle one writes back a number that is too small.
    fn shared_ends(&mut self, gpu: &GpuElement) {
        let mut ends: BTreeMap<(bool, u32, u32), TextPosition> = BTreeMap::new();
        for block in &gpu.blocks {
            let Some(channel) = block.channel else { continue };
            for (send, peer) in [(true, block.send), (false, block.recv)] {
                let Some(peer) = peer else { continue };
                if let Some(first) = ends.insert((send, peer, channel), block.at) {
                    let rule = Rule::SharedEnd { rank: gpu.id, peer, channel, send };
                    self.found(FileViolation { at: block.at, with: vec![first], rule });
                }
            }
        }
    }

    fn block(&mut self, gpu: &GpuElement, block: &ThreadblockElement) {
        let Algorithm { ranks, channels, .. } = *self.algorithm;
        for peer in [block.send, block.recv].into_iter().flatten().filter(|&peer| peer == gpu.id || peer >= ranks) {
            self.broken(block.at, Rule::Peer { rank: gpu.id, peer, ranks });
        }
        if block.channel.is_none_or(|channel| channel >= channels.min(MAX_CHANNELS)) {
            self.broken(block.at, Rule::Channel { channel: block.channel, channels });
        }
        self.limit(block.at, "the number of steps", block.steps.len() as u64, MAX_STEPS as u64);
        for (expected, step) in block.steps.iter().enumerate() {
            if step.number as usize != expected {
                self.broken(step.at, Rule::StepNumber { given: step.number, expected });
            }
            self.step(gpu, block, step);
        }
        self.fusion(block);
    }

    fn step(&mut self, gpu: &GpuElement, block: &ThreadblockElement, step: &StepElement) {
        let kind = step.kind;
        for (send, missing) in
            [(true, kind.sends() && block.send.is_none()), (false, kind.receives() && block.recv.is_none())]
        {
            if missing {
                self.broken(step.at, Rule::NoPeer { kind, send });
            }
        }
        if kind == StepType::Nop {
            return;
        }
        if !(1..=MAX_COUNT).contains(&step.count) {
            self.broken(step.at, Rule::Count { given: step.count });
        }
        if kind.reads_source() {
            self.bounds(gpu, step, "the source", step.src);
        }
        if kind.writes_destination() {
            self.bounds(gpu, step, "the destination", step.dst);
        }
    }

    fn bounds(&mut self, gpu: &GpuElement, step: &StepElement, what: &'static str, slice: BufferOffset) {
        let chunks = match slice.space {
            Space::Input => gpu.input_chunks,
            Space::Output => gpu.output_chunks,
            Space::Scratch => gpu.scratch_chunks,
        };
        let inside = slice.offset.is_some_and(|offset| u64::from(offset) + u64::from(step.count) <= chunks.into());
        if !inside {
            self.broken(step.at, Rule::Bounds { what, slice: slice.to_string(), count: step.count, chunks });
        }
        self.limit(step.at, "an offset", slice.offset.unwrap_or(0).into(), MAX_OFFSET.into());
    }

    /// Consecutive reductions into one slice are fused, as the readers do it.
    fn fusion(&mut self, block: &ThreadblockElement) {
        let mut fused: Option<(StepElement, u32)> = None;
        let mut total = 0;
        for step in block.steps.iter().filter(|step| step.kind != StepType::Nop) {
            if step.kind != StepType::Reduce {
                fused = None;
                continue;
            }
            total += 1;
            let before = fused
                .filter(|(last, _)| last.dst == step.dst && last.src.space == step.src.space && step.after.is_none());
            let count = before.map_or(1, |(_, count)| count + 1);
            if before.is_some_and(|(last, _)| last.count != step.count) {
                self.broken(step.at, Rule::FusedCounts);
            }
            if count == MAX_FUSED + 1 {
                self.broken(step.at, Rule::FusedTooMany { count });
            }
            // The readers end a fused reduction after a step that announces, and after the 16th reduction of the
            // threadblock.
            fused = (!step.announces && total != MAX_FUSED).then_some((*step, count));
        }
    }
}
