//! Whether every output slot ends with what belongs there.
//!
//! The principal type is [`Machine`]: it executes the program on symbols. A symbol says which chunk a slot holds
//! and, for a combining chunk, whose contributions have been added; adding one twice is caught where it happens.
//! Sets of contributors are stored once, so a symbol is small.

use super::messages::Messages;
use super::races::{buffer_index, slots_of};
use super::{ProgramViolation, StepAt, StepId, Steps};
use crate::{Buffer, Instruction, Layout, OwnBlock, Program, Slice, Slot};
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::Rank;

pub(super) fn check(
    program: &Program,
    layout: &Layout,
    steps: &Steps,
    messages: &Messages,
    order: &[StepId],
) -> Vec<ProgramViolation> {
    let mut machine = Machine::new(program, layout);
    let mut under_way = BTreeMap::new();
    for &id in order {
        machine.step(steps.at(id), steps.instruction(id), messages.of(id), &mut under_way);
    }
    machine.judge();
    machine.violations
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Symbol {
    content: Content,
    /// Whose contributions; `None` where nothing is combined.
    sum: Option<SumId>,
}

/// Which piece of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Chunk(ChunkId),
    /// A slot of the block that a member of an alltoall keeps for itself.
    Own {
        member: Rank,
        slot: u32,
    },
}

/// Index into [`Sums::list`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SumId(u32);

/// Sets of contributors (positions among a chunk's holders), each stored once.
#[derive(Default)]
struct Sums {
    list: Vec<Box<[u64]>>,
    ids: BTreeMap<Box<[u64]>, SumId>,
}

impl Sums {
    fn id(&mut self, words: Box<[u64]>) -> SumId {
        *self.ids.entry(words).or_insert_with_key(|words| {
            self.list.push(words.clone());
            SumId(self.list.len() as u32 - 1)
        })
    }

    fn one(&mut self, holder: usize, holders: usize) -> SumId {
        let mut words = vec![0; holders.div_ceil(64)];
        words[holder / 64] = 1 << (holder % 64);
        self.id(words.into())
    }

    fn full(&mut self, holders: usize) -> SumId {
        let mut words = vec![u64::MAX; holders.div_ceil(64)];
        if let (Some(last), rest @ 1..) = (words.last_mut(), holders % 64) {
            *last = (1 << rest) - 1;
        }
        self.id(words.into())
    }

    /// The union, and the first contributor that is in both.
    fn add(&mut self, a: SumId, b: SumId) -> (SumId, Option<usize>) {
        let (a, b) = (&self.list[a.0 as usize], &self.list[b.0 as usize]);
        let twice = a.iter().zip(b).enumerate().find(|(_, (a, b))| *a & *b != 0);
        let twice = twice.map(|(word, (a, b))| word * 64 + (a & b).trailing_zeros() as usize);
        let union: Box<[u64]> = a.iter().zip(b).map(|(a, b)| a | b).collect();
        (self.id(union), twice)
    }

    fn count(&self, id: SumId) -> u32 {
        self.list[id.0 as usize].iter().map(|word| word.count_ones()).sum()
    }
}

/// What messages hold, by number.
type Payloads = BTreeMap<u32, Vec<Option<Symbol>>>;

/// The symbols in a rank's slots, buffer by buffer.
type Memory = [Vec<Option<Symbol>>; 3];

/// A program in execution.
struct Machine<'a> {
    program: &'a Program,
    layout: &'a Layout,
    sums: Sums,
    memory: Vec<Memory>,
    violations: Vec<ProgramViolation>,
}

impl<'a> Machine<'a> {
    /// Every rank with its inputs.
    fn new(program: &'a Program, layout: &'a Layout) -> Self {
        let memory = program.ranks.iter().map(|rank| {
            let buffers = [Buffer::Input, Buffer::Output, Buffer::Scratch];
            buffers.map(|buffer| vec![None; rank.parts(buffer).len()])
        });
        let memory = memory.collect();
        let mut machine = Self { program, layout, sums: Sums::default(), memory, violations: Vec::new() };
        let demand = &program.demand;
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            for (position, &rank) in chunk.holders.iter().enumerate() {
                let Some(slot) = layout.input_slot(id, rank) else { continue };
                let sum = chunk.combine.then(|| machine.sums.one(position, chunk.holders.len()));
                *machine.slot(rank, slot) = Some(Symbol { content: Content::Chunk(id), sum });
            }
        }
        for (member, own) in machine.own_blocks() {
            for (offset, slot) in slots_of(own.input).enumerate() {
                let content = Content::Own { member, slot: offset as u32 };
                *machine.slot(member, slot) = Some(Symbol { content, sum: None });
            }
        }
        machine
    }

    fn own_blocks(&self) -> Vec<(Rank, OwnBlock)> {
        let ranks = (0..self.program.ranks.len()).map(Rank::from_index);
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

    /// `under_way` is what each message holds that was sent and not yet received.
    fn step(&mut self, at: StepAt, instruction: &Instruction, message: Option<u32>, under_way: &mut Payloads) {
        let received = message.and_then(|message| under_way.remove(&message));
        let result = match (*instruction, received) {
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
            // Nothing was sent; the matching rule has said so.
            (_, None) => return,
        };
        if let Some(dst) = instruction.destination() {
            self.write(at.rank, dst, &result);
        }
    }

    /// `operand ⊕ symbols`, slot by slot; `dst` is where the result goes, for the evidence.
    fn reduce(&mut self, at: StepAt, operand: Slice, symbols: &[Option<Symbol>], dst: Slice) -> Vec<Option<Symbol>> {
        let operands = self.read(at, operand);
        let pairs = operands.into_iter().zip(symbols).zip(slots_of(dst));
        pairs.map(|((a, &b), slot)| self.sum(at, a?, b?, slot)).collect()
    }

    fn sum(&mut self, at: StepAt, a: Symbol, b: Symbol, slot: Slot) -> Option<Symbol> {
        let (Content::Chunk(chunk), Some(mine), Some(theirs), true) = (a.content, a.sum, b.sum, a.content == b.content)
        else {
            self.violations.push(ProgramViolation::MixedReduce { at, slot });
            return None;
        };
        let (sum, twice) = self.sums.add(mine, theirs);
        if let Some(position) = twice {
            let contributor = self.program.demand.chunk(chunk).holders[position];
            self.violations.push(ProgramViolation::DoubleReduce { at, chunk, contributor });
        }
        Some(Symbol { sum: Some(sum), ..a })
    }

    /// Compares the outputs with what the demand asks for.
    fn judge(&mut self) {
        let demand = &self.program.demand;
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let sum = chunk.combine.then(|| self.sums.full(chunk.holders.len()));
            for &rank in chunk.wanted_by.iter() {
                let Some(slot) = self.layout.output_slot(id, rank) else { continue };
                self.expect(rank, slot, Symbol { content: Content::Chunk(id), sum });
            }
        }
        for (member, own) in self.own_blocks() {
            for (offset, slot) in slots_of(own.output).enumerate() {
                let content = Content::Own { member, slot: offset as u32 };
                self.expect(member, slot, Symbol { content, sum: None });
            }
        }
    }

    fn expect(&mut self, rank: Rank, slot: Slot, expected: Symbol) {
        let found = *self.slot(rank, slot);
        if found != Some(expected) {
            let (expected, found) = (self.describe(Some(expected)), self.describe(found));
            self.violations.push(ProgramViolation::WrongResult { rank, slot, expected, found });
        }
    }

    fn describe(&self, symbol: Option<Symbol>) -> String {
        match symbol {
            None => "nothing".to_owned(),
            Some(Symbol { content: Content::Own { member, slot }, .. }) => {
                format!("slot {slot} of rank {member}'s own block")
            }
            Some(Symbol { content: Content::Chunk(chunk), sum }) => {
                let holders = self.program.demand.chunk(chunk).holders.len();
                let counted = sum.map(|sum| format!(" with {} of {holders} contributions", self.sums.count(sum)));
                format!("chunk {chunk}{}", counted.unwrap_or_default())
            }
        }
    }
}
