//! Checks that every output slot ends with the right value.
//!
//! The principal type is [`SymbolicRun`]: it executes the program on symbols. A symbol says which chunk a slot holds
//! and, for a combining chunk, whose contributions it counts. Adding a contribution twice is reported at the step that
//! does it. Sets of contributors are stored once, so a symbol is small.
//!
//! In a program of the first ranks of orbits, contributors are counted as seen from the first chunk of the orbit.

use super::contributors::{Contributors, SumId};
use super::images::Images;
use super::messages::MatchedMessages;
use super::races::{buffer_index, slots_of};
use super::{ProgramViolation, StepAt, StepId, Steps};
use crate::{Buffer, Instruction, Layout, OwnBlock, Program, Slice, Slot};
use schedule::{ChunkId, Findings, RankSet};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use topology::Rank;

pub(super) fn check(
    program: &Program,
    layout: &Layout,
    steps: &Steps<'_>,
    messages: &MatchedMessages,
    images: &Images<'_>,
    order: &[StepId],
) -> Findings<ProgramViolation> {
    let mut run = SymbolicRun::new(program, layout, images);
    let mut under_way = BTreeMap::new();
    for &id in order {
        run.step(steps.at(id), steps.instruction(id), messages.of(id), &mut under_way);
    }
    run.judge();
    run.violations
}

/// The content of a slot. It is small, because there is one for every slot of every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Symbol {
    /// 1 + the number of a chunk. Numbers after the last chunk are the slots that a member of an alltoall keeps for
    /// itself.
    content: NonZeroU32,
    /// Whose contributions have been added; [`SumId::NONE`] where nothing is combined.
    sum: SumId,
}

impl Symbol {
    fn new(number: u32, sum: SumId) -> Self {
        Self { content: NonZeroU32::MIN.saturating_add(number), sum }
    }

    fn number(self) -> u32 {
        self.content.get() - 1
    }
}

/// The content of each message, by its number.
type Payloads = BTreeMap<u32, Vec<Option<Symbol>>>;

/// The symbols in a rank's slots, buffer by buffer.
type SymbolicMemory = [Vec<Option<Symbol>>; 3];

/// A program while it is executed.
struct SymbolicRun<'a> {
    program: &'a Program,
    layout: &'a Layout,
    images: &'a Images<'a>,
    sums: Contributors,
    memory: Vec<SymbolicMemory>,
    violations: Findings<ProgramViolation>,
}

impl<'a> SymbolicRun<'a> {
    /// The initial state: every rank has its inputs.
    fn new(program: &'a Program, layout: &'a Layout, images: &'a Images<'a>) -> Self {
        let memory = program.ranks.iter().map(|rank| {
            let buffers = [Buffer::Input, Buffer::Output, Buffer::Scratch];
            buffers.map(|buffer| vec![None; rank.parts(buffer).len()])
        });
        let memory = memory.collect();
        let (sums, violations) = (Contributors::new(), Findings::default());
        let mut run = Self { program, layout, images, sums, memory, violations };
        let demand = &program.demand;
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            for rank in run.written(&chunk.holders) {
                let Some(slot) = layout.input_slot(id, rank) else { continue };
                let sum = if chunk.combine { run.contribution(id, rank) } else { SumId::NONE };
                *run.slot(rank, slot) = Some(Symbol::new(id.0, sum));
            }
        }
        for (member, own) in run.own_blocks() {
            for (offset, slot) in (0..).zip(slots_of(own.input)) {
                *run.slot(member, slot) = Some(run.own_symbol(member, offset));
            }
        }
        run
    }

    /// The ranks of a set that are written down.
    fn written(&self, set: &'a RankSet) -> Box<dyn Iterator<Item = Rank> + 'a> {
        match self.images.unfolding() {
            None => Box::new(set.iter().copied()),
            Some(unfolding) => Box::new(unfolding.first_ranks().filter(|&rank| set.has(rank))),
        }
    }

    /// The contribution of one holder to a chunk that combines.
    fn contribution(&mut self, chunk: ChunkId, holder: Rank) -> SumId {
        let (chunk, holder) = self.images.seen_from_first_chunk(chunk, holder);
        let holders = &self.program.demand.chunk(chunk).holders;
        let position = holders.binary_search(&holder);
        position.map_or(SumId::NONE, |position| self.sums.range(position, position + 1, holders.len()))
    }

    /// The image of a symbol.
    fn image(&self, element: u32, symbol: Symbol) -> Symbol {
        let (number, chunks) = (symbol.number(), self.program.demand.chunks().len() as u32);
        let Some(own) = number.checked_sub(chunks) else {
            return Symbol::new(self.images.chunk(element, ChunkId(number)).0, symbol.sum);
        };
        let (member, part) = (own / self.layout.block_parts(), own % self.layout.block_parts());
        self.own_symbol(self.images.rank(element, Rank(member)), self.images.part(element, part))
    }

    /// The symbol of a slot that a member of an alltoall keeps for itself; its number comes after all chunks.
    fn own_symbol(&self, member: Rank, offset: u32) -> Symbol {
        let chunks = self.program.demand.chunks().len() as u32;
        Symbol::new(chunks + member.0 * self.layout.block_parts() + offset, SumId::NONE)
    }

    fn own_blocks(&self) -> Vec<(Rank, OwnBlock)> {
        let ranks = (0..self.program.ranks.len()).map(Rank::from_index);
        let ranks = ranks.filter(|&rank| self.images.is_first(rank));
        ranks.filter_map(|rank| Some((rank, self.layout.own_block(rank)?))).collect()
    }

    fn slot(&mut self, rank: Rank, slot: Slot) -> &mut Option<Symbol> {
        &mut self.memory[rank.index()][buffer_index(slot.buffer)][slot.index as usize]
    }

    fn read(&mut self, at: StepAt, slice: Slice) -> Vec<Option<Symbol>> {
        let mut symbols = Vec::with_capacity(slice.count as usize);
        for slot in slots_of(slice) {
            let symbol = *self.slot(at.rank, slot);
            if symbol.is_none() {
                self.violations.push(ProgramViolation::Uninitialised { at, slot });
            }
            symbols.push(symbol);
        }
        symbols
    }

    fn write(&mut self, rank: Rank, slice: Slice, symbols: &[Option<Symbol>]) {
        for (slot, &symbol) in slots_of(slice).zip(symbols) {
            *self.slot(rank, slot) = symbol;
        }
    }

    /// `under_way` has the content of each message that was sent and not yet received.
    fn step(&mut self, at: StepAt, instruction: Instruction, message: Option<u32>, under_way: &mut Payloads) {
        let mut received = message.and_then(|message| under_way.remove(&message));
        let across = instruction.receives_from().map_or(0, |from| self.images.across(self.program, from));
        if let Some(payload) = received.as_mut().filter(|_| across != 0) {
            // The sender's image that sends to this rank has the images of the sender's values.
            let back = self.images.inverse(across);
            payload.iter_mut().flatten().for_each(|symbol| *symbol = self.image(back, *symbol));
        }
        let result = match (instruction, received) {
            (Instruction::Send { src, .. }, _) => {
                let payload = self.read(at, src);
                under_way.extend(message.map(|message| (message, payload)));
                return;
            }
            (Instruction::Copy { src, .. }, _) => self.read(at, src),
            (Instruction::Reduce { src, dst }, _) => {
                let added = self.read(at, src);
                self.reduce(at, dst, &added, dst)
            }
            (Instruction::ReceiveReduce { src, dst, .. }, Some(payload)) => self.reduce(at, src, &payload, dst),
            (_, Some(payload)) => payload,
            // Nothing was sent; the rule `messages` has reported it.
            (_, None) => return,
        };
        if let Some(dst) = instruction.destination() {
            self.write(at.rank, dst, &result);
        }
    }

    /// `operand ⊕ symbols`, slot by slot; `dst` is where the result goes, for the error.
    fn reduce(&mut self, at: StepAt, operand: Slice, symbols: &[Option<Symbol>], dst: Slice) -> Vec<Option<Symbol>> {
        let operands = self.read(at, operand);
        let pairs = operands.into_iter().zip(symbols).zip(slots_of(dst));
        pairs.map(|((a, &b), slot)| self.sum(at, a?, b?, slot)).collect()
    }

    fn sum(&mut self, at: StepAt, a: Symbol, b: Symbol, slot: Slot) -> Option<Symbol> {
        // Only combining chunks have contributors.
        if a.content != b.content || a.sum == SumId::NONE {
            self.violations.push(ProgramViolation::MixedReduce { at, slot });
            return None;
        }
        let (sum, twice) = self.sums.add(a.sum, b.sum);
        if let Some(position) = twice {
            let chunk = ChunkId(a.number());
            let (first, _) = self.images.seen_from_first_chunk(chunk, at.rank);
            let seen = self.program.demand.chunk(first).holders[position];
            let contributor = self.images.where_chunk_is(chunk, seen);
            self.violations.push(ProgramViolation::DoubleReduce { at, chunk, contributor });
        }
        Some(Symbol { sum, ..a })
    }

    /// Compares the outputs with the demand.
    fn judge(&mut self) {
        let demand = &self.program.demand;
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let holders = chunk.holders.len();
            let sum = if chunk.combine { self.sums.range(0, holders, holders) } else { SumId::NONE };
            for rank in self.written(&chunk.wanted_by) {
                let Some(slot) = self.layout.output_slot(id, rank) else { continue };
                self.expect(rank, slot, Symbol::new(id.0, sum));
            }
        }
        for (member, own) in self.own_blocks() {
            for (offset, slot) in (0..).zip(slots_of(own.output)) {
                self.expect(member, slot, self.own_symbol(member, offset));
            }
        }
    }

    fn expect(&mut self, rank: Rank, slot: Slot, expected: Symbol) {
        let found = *self.slot(rank, slot);
        if found == Some(expected) {
            return;
        }
        if self.violations.has_room() {
            let (expected, found) = (self.describe(Some(expected)), self.describe(found));
            self.violations.push(ProgramViolation::WrongResult { rank, slot, expected, found });
        } else {
            self.violations.count(1);
        }
    }

    fn describe(&self, symbol: Option<Symbol>) -> String {
        let Some(symbol) = symbol else { return "nothing".to_owned() };
        let chunks = self.program.demand.chunks();
        match (symbol.number() as usize).checked_sub(chunks.len()) {
            Some(own) => {
                let parts = self.layout.block_parts() as usize;
                format!("slot {} of rank {}'s own block", own % parts, own / parts)
            }
            None if symbol.sum == SumId::NONE => format!("chunk {}", symbol.number()),
            None => {
                let (number, holders) = (symbol.number(), chunks[symbol.number() as usize].holders.len());
                format!("chunk {number} with {} of {holders} contributions", self.sums.count(symbol.sum))
            }
        }
    }
}
