//! Runs a program on real numbers, one step at a time in any order that its waits allow. The expected result comes from
//! the definition of the collective alone.

use super::definition::{Alias, Call};
use super::schedules::Random;
use crate::{Buffer, ConnectionId, Instruction, Program, Slice, Transform};
use schedule::Request;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use topology::Rank;

/// When a send ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// At once: messages queue without limit.
    Buffered,
    /// When at most this many messages of its connection are queued; at 0, together with its receive.
    Window(u32),
}

/// Values, and whether they are the last ones of their message.
type Piece = (Vec<u64>, bool);

/// The progress of a threadblock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Cursor {
    /// Steps that are done, counted over all tiles.
    done: u32,
    /// The pieces of the next step that were received, and those that were sent.
    received: usize,
    sent: usize,
}

/// The state of an execution.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// For each rank: input, output, scratch.
    memory: Vec<[Vec<u64>; 3]>,
    queues: Vec<VecDeque<Piece>>,
    /// For each rank and threadblock.
    cursors: Vec<Vec<Cursor>>,
}

/// How a program is executed.
pub struct Executor<'a> {
    pub program: &'a Program,
    pub count: u64,
    pub tiles: u32,
    pub transport: Transport,
}

/// What a threadblock can do next: a local step at once, or a message in up to two pieces. A fused step sends on the
/// pieces that it has stored, even if more are still to come.
#[derive(Clone, Copy)]
enum Action {
    Local,
    Receive,
    Send,
}

/// A choice: this threadblock of this rank makes the next step.
#[derive(Clone, Copy)]
struct Choice {
    rank: usize,
    threadblock: usize,
    action: Action,
}

impl Executor<'_> {
    fn start(&self) -> State {
        let request = self.program.demand.request();
        let memory = (0..request.ranks).map(|rank| self.buffers(request, Rank::from_index(rank)));
        let cursors = self.program.ranks.iter().map(|rank| vec![Cursor::default(); rank.threadblocks.len()]);
        let queues = vec![VecDeque::new(); self.program.connections.len()];
        State { memory: memory.collect(), queues, cursors: cursors.collect() }
    }

    /// Runs to the end in a random order; `None` if the program deadlocks.
    pub fn run(&self, random: &mut Random) -> Option<State> {
        let mut state = self.start();
        loop {
            let choices = self.choices(&state);
            if choices.is_empty() {
                return self.is_finished(&state).then_some(state);
            }
            state = self.take(state, choices[random.below(choices.len())]);
        }
    }

    /// Runs in every order, and returns the first error of any order. `None` if there are more states than `most`.
    pub fn explore(&self, most: usize) -> Option<Result<(), String>> {
        let start = self.start();
        let mut seen = BTreeSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            let choices = self.choices(&state);
            if choices.is_empty() {
                if !self.is_finished(&state) {
                    return Some(Err("it stops before its end".to_owned()));
                }
                if let Err(wrong) = self.judge(&state) {
                    return Some(Err(wrong));
                }
            }
            for choice in choices {
                let next = self.take(state.clone(), choice);
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
            if seen.len() > most {
                return None;
            }
        }
        Some(Ok(()))
    }

    fn is_finished(&self, state: &State) -> bool {
        let blocks = state.cursors.iter().flatten().zip(self.program.ranks.iter().flat_map(|rank| &rank.threadblocks));
        blocks.into_iter().all(|(cursor, block)| cursor.done == block.steps.len() as u32 * self.tiles)
    }

    /// Everything that can happen next.
    fn choices(&self, state: &State) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (rank, cursors) in state.cursors.iter().enumerate() {
            for (threadblock, cursor) in cursors.iter().enumerate() {
                let Some((step, _)) = self.next(state, rank, threadblock) else { continue };
                let mut add = |action| choices.push(Choice { rank, threadblock, action });
                match (step.receives_from(), step.sends_to()) {
                    (None, None) => add(Action::Local),
                    (from, to) => {
                        from.filter(|&from| self.can_receive(state, rank, threadblock, from))
                            .into_iter()
                            .for_each(|_| add(Action::Receive));
                        to.filter(|&to| self.can_send(state, rank, threadblock) && self.has_room(state, cursor, to))
                            .into_iter()
                            .for_each(|_| add(Action::Send));
                    }
                }
            }
        }
        choices
    }

    /// Whether a threadblock has data to send; room on the connection is checked separately.
    fn can_send(&self, state: &State, rank: usize, threadblock: usize) -> bool {
        let Some((step, _)) = self.next(state, rank, threadblock) else { return false };
        let Cursor { received, sent, .. } = state.cursors[rank][threadblock];
        let there = if step.is_fused() { received } else { self.pieces(rank, step) };
        step.sends_to().is_some() && sent < there
    }

    /// Whether a message may begin, or has begun. Without buffers the receiver chooses when each piece moves.
    fn has_room(&self, state: &State, cursor: &Cursor, to: ConnectionId) -> bool {
        let under_way = state.queues[to.index()].iter().filter(|(_, last)| *last).count();
        match self.transport {
            Transport::Buffered => true,
            Transport::Window(0) => false,
            Transport::Window(window) => cursor.sent > 0 || under_way < window as usize,
        }
    }

    fn can_receive(&self, state: &State, rank: usize, threadblock: usize, from: ConnectionId) -> bool {
        let Some((step, _)) = self.next(state, rank, threadblock) else { return false };
        let more = state.cursors[rank][threadblock].received < self.pieces(rank, step);
        more && (!state.queues[from.index()].is_empty() || self.partner(state, from).is_some())
    }

    /// The threadblock that can send on a connection now, where a send happens together with its receive.
    fn partner(&self, state: &State, connection: ConnectionId) -> Option<Choice> {
        if self.transport != Transport::Window(0) {
            return None;
        }
        let rank = self.program.connections[connection.index()].from.index();
        let sends = |&threadblock: &usize| {
            let next = self.next(state, rank, threadblock);
            next.is_some_and(|(step, _)| step.sends_to() == Some(connection)) && self.can_send(state, rank, threadblock)
        };
        let threadblock = (0..state.cursors[rank].len()).find(sends)?;
        Some(Choice { rank, threadblock, action: Action::Send })
    }

    /// The next instruction of a threadblock and its tile, if everything it waits for is done.
    fn next(&self, state: &State, rank: usize, threadblock: usize) -> Option<(Instruction, u32)> {
        let blocks = &self.program.ranks[rank].threadblocks;
        let length = blocks[threadblock].steps.len() as u32;
        let done = state.cursors[rank][threadblock].done;
        if done >= length * self.tiles {
            return None;
        }
        let (tile, step) = (done / length, &blocks[threadblock].steps[(done % length) as usize]);
        let ready = step.after.iter().all(|after| {
            let length = blocks[after.threadblock as usize].steps.len() as u32;
            state.cursors[rank][after.threadblock as usize].done > tile * length + after.step
        });
        let Transform::Identity = step.transform;
        ready.then_some((step.instruction, tile))
    }

    fn take(&self, mut state: State, choice: Choice) -> State {
        let Choice { rank, threadblock, action } = choice;
        let (instruction, tile) = self.next(&state, rank, threadblock).unwrap();
        let pieces = self.pieces(rank, instruction);
        let (whole, send) = instruction.halves();
        match action {
            Action::Local => self.local(&mut state, rank, instruction, tile),
            Action::Receive => {
                let from = whole.receives_from().unwrap();
                if let Some(partner) = self.partner(&state, from) {
                    state = self.take(state, partner);
                }
                let (received, _) = state.queues[from.index()].pop_front().unwrap();
                let number = state.cursors[rank][threadblock].received;
                self.receive(&mut state, rank, whole, tile, number, &received);
                state.cursors[rank][threadblock].received += 1;
            }
            Action::Send => {
                let Instruction::Send { to, src } = send.unwrap_or(whole) else { unreachable!("it sends") };
                let number = state.cursors[rank][threadblock].sent;
                let payload = self.load(&state, rank, src, tile, number);
                state.queues[to.index()].push_back((payload, number + 1 == pieces));
                state.cursors[rank][threadblock].sent += 1;
            }
        }
        let cursor = &mut state.cursors[rank][threadblock];
        let ended = |moved: usize, moves: bool| !moves || moved == pieces;
        if ended(cursor.received, instruction.receives_from().is_some())
            && ended(cursor.sent, instruction.sends_to().is_some())
        {
            *cursor = Cursor { done: cursor.done + 1, ..Cursor::default() };
        }
        state
    }

    /// How many pieces the message of a step has.
    fn pieces(&self, rank: usize, instruction: Instruction) -> usize {
        let slice = instruction.shape();
        let slots = slice.index..slice.index + slice.count;
        let elements = slots.map(|slot| self.slot(rank, slice.buffer, slot)).map(|slot| slot.end - slot.start);
        if elements.sum::<u64>() > 1 { 2 } else { 1 }
    }

    fn local(&self, state: &mut State, rank: usize, instruction: Instruction, tile: u32) {
        let (src, dst) = instruction.source().zip(instruction.destination()).unwrap();
        for piece in 0..self.pieces(rank, instruction) {
            let mut result = self.load(state, rank, src, tile, piece);
            if instruction.reduces() {
                add(&mut result, &self.load(state, rank, dst, tile, piece));
            }
            self.store(state, rank, dst, tile, piece, &result);
        }
    }

    fn receive(&self, state: &mut State, rank: usize, whole: Instruction, tile: u32, piece: usize, received: &[u64]) {
        let mut result = received.to_vec();
        if let Instruction::ReceiveReduce { src, .. } = whole {
            add(&mut result, &self.load(state, rank, src, tile, piece));
        }
        self.store(state, rank, whole.destination().unwrap(), tile, piece, &result);
    }

    /// The elements that a piece of one tile of a slice covers in its buffer.
    fn elements(&self, rank: usize, slice: Slice, tile: u32, piece: usize) -> Vec<usize> {
        let slots = slice.index..slice.index + slice.count;
        let all = slots.flat_map(|slot| self.tile(self.slot(rank, slice.buffer, slot), tile));
        let mut all: Vec<usize> = all.map(|index| index as usize).collect();
        let pieces = self.pieces(rank, Instruction::Copy { src: slice, dst: slice });
        let second = all.split_off(if pieces == 1 { all.len() } else { all.len() / 2 });
        if piece == 0 { all } else { second }
    }

    fn slot(&self, rank: usize, buffer: Buffer, slot: u32) -> Range<u64> {
        let length = |&part: &u32| self.program.shape.length(self.count, part);
        let shapes = self.program.ranks[rank].parts(buffer);
        let start: u64 = shapes[..slot as usize].iter().map(length).sum();
        start..start + length(&shapes[slot as usize])
    }

    fn tile(&self, slot: Range<u64>, tile: u32) -> Range<u64> {
        let cut = |tile: u32| slot.start + (slot.end - slot.start) * u64::from(tile) / u64::from(self.tiles);
        cut(tile)..cut(tile + 1)
    }

    fn load(&self, state: &State, rank: usize, slice: Slice, tile: u32, piece: usize) -> Vec<u64> {
        let elements = self.elements(rank, slice, tile, piece);
        elements.into_iter().map(|index| state.memory[rank][slice.buffer as usize][index]).collect()
    }

    fn store(&self, state: &mut State, rank: usize, slice: Slice, tile: u32, piece: usize, payload: &[u64]) {
        let elements = self.elements(rank, slice, tile, piece);
        assert_eq!(elements.len(), payload.len(), "partners have equal shapes");
        for (index, &value) in elements.into_iter().zip(payload) {
            state.memory[rank][slice.buffer as usize][index] = value;
        }
    }

    /// A rank's buffers at the start, laid out as the caller of the collective does.
    fn buffers(&self, request: &Request, rank: Rank) -> [Vec<u64>; 3] {
        let call = Call { demand: &self.program.demand, request, count: self.count as usize };
        let scratch: u64 = match self.program.ranks[rank.index()].scratch_parts.len() as u32 {
            0 => 0,
            slots => self.slot(rank.index(), Buffer::Scratch, slots - 1).end,
        };
        let (input, output) = (call.input(rank), vec![GARBAGE; call.output_length(rank)]);
        let [input, output] = match call.alias(rank).filter(|_| self.program.in_place) {
            None => [input, output],
            Some(Alias::InputInOutput(offset)) => {
                let mut merged = output;
                merged[offset..offset + input.len()].copy_from_slice(&input);
                [Vec::new(), merged]
            }
            Some(Alias::OutputInInput(_)) => [input, Vec::new()],
        };
        [input, output, vec![GARBAGE; scratch as usize]]
    }

    /// Compares a final state with the definition of the collective.
    pub fn judge(&self, state: &State) -> Result<(), String> {
        let request = self.program.demand.request();
        let call = Call { demand: &self.program.demand, request, count: self.count as usize };
        for rank in (0..request.ranks).map(Rank::from_index) {
            let [input, output, _] = &state.memory[rank.index()];
            let length = call.output_length(rank);
            let alias = call.alias(rank).filter(|_| self.program.in_place);
            let (found, untouched) = match alias {
                None => (&output[..], input == &call.input(rank)),
                Some(Alias::InputInOutput(_)) => (&output[..], true),
                Some(Alias::OutputInInput(offset)) => {
                    let before = call.input(rank);
                    let same =
                        input[..offset] == before[..offset] && input[offset + length..] == before[offset + length..];
                    (&input[offset..offset + length], same)
                }
            };
            if found != call.expected(rank) {
                return Err(format!("rank {rank} ends with {found:?} instead of {:?}", call.expected(rank)));
            }
            if !untouched {
                return Err(format!("rank {rank}'s input was written"));
            }
        }
        if state.queues.iter().any(|queue| !queue.is_empty()) {
            return Err("a message was not received".to_owned());
        }
        Ok(())
    }
}

/// `sum += more`, element by element.
fn add(sum: &mut [u64], more: &[u64]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
}

const GARBAGE: u64 = 0xDEAD_BEEF_DEAD_BEEF;
