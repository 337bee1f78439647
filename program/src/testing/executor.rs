//! Runs a program on real numbers, one step at a time in any order that its waits allow, and knows from the
//! collective's definition alone what must come out.

use super::schedules::Random;
use crate::{Buffer, ConnectionId, Instruction, Program, Slice};
use schedule::{ChunkId, Collective, Demand, Request};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use topology::Rank;

/// When a send ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// At once: messages queue without limit.
    Buffered,
    /// When at most so many messages of its connection queue; at 0 together with its receive.
    Window(u32),
}

/// The elements of all slots of one slice, one tile of each.
type Payload = Vec<u64>;

/// Everything that changes during an execution.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// For each rank: input, output, scratch.
    memory: Vec<[Vec<u64>; 3]>,
    queues: Vec<VecDeque<Payload>>,
    /// For each rank and threadblock, how many steps are done, counted over all tiles.
    done: Vec<Vec<u32>>,
}

/// How a program is executed.
pub struct Executor<'a> {
    pub program: &'a Program,
    pub count: u64,
    pub tiles: u32,
    pub transport: Transport,
}

/// A choice: this threadblock makes its next step.
pub type Choice = (usize, usize);

impl Executor<'_> {
    pub fn start(&self) -> State {
        let request = self.program.demand.request();
        let memory = (0..request.ranks).map(|rank| self.buffers(request, Rank::from_index(rank)));
        let done = self.program.ranks.iter().map(|rank| vec![0; rank.threadblocks.len()]);
        let queues = vec![VecDeque::new(); self.program.connections.len()];
        State { memory: memory.collect(), queues, done: done.collect() }
    }

    /// Runs to the end in an order chosen at random; `None` if it stops before.
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

    /// Runs in every order; the first thing that goes wrong in any of them. `None` if there are more states than `most`.
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

    pub fn is_finished(&self, state: &State) -> bool {
        let blocks = state.done.iter().flatten().zip(self.program.ranks.iter().flat_map(|rank| &rank.threadblocks));
        blocks.into_iter().all(|(&done, block)| done == block.steps.len() as u32 * self.tiles)
    }

    /// The threadblocks that can go on.
    pub fn choices(&self, state: &State) -> Vec<Choice> {
        let blocks = state.done.iter().enumerate().flat_map(|(rank, done)| (0..done.len()).map(move |tb| (rank, tb)));
        blocks.filter(|&choice| self.is_ready(state, choice)).collect()
    }

    fn is_ready(&self, state: &State, choice: Choice) -> bool {
        let Some((step, _)) = self.next(state, choice) else { return false };
        match step {
            Instruction::Send { to, .. } => match self.transport {
                Transport::Buffered => true,
                // Without buffers a send happens with its receive, as the receiver's choice.
                Transport::Window(window) => state.queues[to.index()].len() < window as usize,
            },
            Instruction::Receive { from, .. } | Instruction::ReceiveReduce { from, .. } => {
                !state.queues[from.index()].is_empty() || self.partner(state, from).is_some()
            }
            _ => true,
        }
    }

    /// The threadblock that could send on a connection right now, where that happens with the receive.
    fn partner(&self, state: &State, connection: ConnectionId) -> Option<Choice> {
        let from = self.program.connections[connection.index()].from.index();
        let blocks = (0..state.done[from].len()).map(|tb| (from, tb));
        let mut senders = blocks.filter(
            |&choice| matches!(self.next(state, choice), Some((Instruction::Send { to, .. }, _)) if to == connection),
        );
        if self.transport == Transport::Window(0) { senders.next() } else { None }
    }

    /// The next instruction of a threadblock and its tile, if everything it waits for is done.
    fn next(&self, state: &State, (rank, tb): Choice) -> Option<(Instruction, u32)> {
        let blocks = &self.program.ranks[rank].threadblocks;
        let length = blocks[tb].steps.len() as u32;
        let done = state.done[rank][tb];
        if done >= length * self.tiles {
            return None;
        }
        let (tile, step) = (done / length, &blocks[tb].steps[(done % length) as usize]);
        let ready = step.after.iter().all(|after| {
            let length = blocks[after.threadblock as usize].steps.len() as u32;
            state.done[rank][after.threadblock as usize] > tile * length + after.step
        });
        ready.then_some((step.instruction, tile))
    }

    pub fn take(&self, mut state: State, choice: Choice) -> State {
        let (instruction, tile) = self.next(&state, choice).unwrap();
        if let Instruction::Receive { from, .. } | Instruction::ReceiveReduce { from, .. } = instruction
            && let Some(partner) = self.partner(&state, from)
        {
            let (send, tile) = self.next(&state, partner).unwrap();
            self.execute(&mut state, partner, send, tile);
        }
        self.execute(&mut state, choice, instruction, tile);
        state
    }

    fn execute(&self, state: &mut State, (rank, tb): Choice, instruction: Instruction, tile: u32) {
        match instruction {
            Instruction::Send { to, src } => {
                let payload = self.load(state, rank, src, tile);
                state.queues[to.index()].push_back(payload);
            }
            Instruction::Receive { from, dst } => {
                let payload = state.queues[from.index()].pop_front().unwrap();
                self.store(state, rank, dst, tile, &payload);
            }
            Instruction::ReceiveReduce { from, src, dst } => {
                let payload = state.queues[from.index()].pop_front().unwrap();
                let operand = self.load(state, rank, src, tile);
                let sum: Payload = operand.iter().zip(&payload).map(|(a, b)| a.wrapping_add(*b)).collect();
                self.store(state, rank, dst, tile, &sum);
            }
            Instruction::Copy { src, dst } => {
                let payload = self.load(state, rank, src, tile);
                self.store(state, rank, dst, tile, &payload);
            }
            Instruction::Reduce { src, dst } => {
                let (a, b) = (self.load(state, rank, dst, tile), self.load(state, rank, src, tile));
                let sum: Payload = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
                self.store(state, rank, dst, tile, &sum);
            }
            Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => {
                unreachable!("programs are executed unfused")
            }
        }
        state.done[rank][tb] += 1;
    }

    /// The elements that one tile of a slice covers in its buffer.
    fn elements(&self, rank: usize, slice: Slice, tile: u32) -> Vec<usize> {
        let slots = slice.index..slice.index + slice.count;
        slots
            .flat_map(|slot| self.tile(self.slot(rank, slice.buffer, slot), tile))
            .map(|index| index as usize)
            .collect()
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

    fn load(&self, state: &State, rank: usize, slice: Slice, tile: u32) -> Payload {
        let elements = self.elements(rank, slice, tile);
        elements.into_iter().map(|index| state.memory[rank][slice.buffer as usize][index]).collect()
    }

    fn store(&self, state: &mut State, rank: usize, slice: Slice, tile: u32, payload: &[u64]) {
        let elements = self.elements(rank, slice, tile);
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

    /// What is wrong with a final state, if anything.
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

const GARBAGE: u64 = 0xDEAD_BEEF_DEAD_BEEF;

/// Where two buffers overlap in place.
enum Alias {
    InputInOutput(usize),
    OutputInInput(usize),
}

/// One call of a collective, by its definition.
struct Call<'a> {
    demand: &'a Demand,
    request: &'a Request,
    count: usize,
}

impl Call<'_> {
    /// A listed chunk's values at one of its holders; where nothing is reduced, all have the same.
    fn listed(&self, id: ChunkId, holder: Rank) -> Vec<u64> {
        // Cut from what lies before it of the same kind.
        let chunk = |id: u32| self.demand.chunk(ChunkId(id));
        let ends = |id: u32| (&chunk(id).holders, &chunk(id).wanted_by);
        let first = (0..id.0).rev().take_while(|&before| ends(before) == ends(id.0)).last().unwrap_or(id.0);
        let bytes = |end: u32| (first..end).map(|id| self.demand.bytes_of(ChunkId(id)).0).sum::<f64>().round() as usize;
        let cut = |end: u32| bytes(end) * self.count / self.request.size_bytes as usize;
        let combine = self.demand.chunk(id).combine;
        let mut random = Random(if combine { 100 + u64::from(holder.0) } else { 99 } * 10_000 + u64::from(id.0));
        (0..cut(id.0 + 1) - cut(id.0)).map(|_| random.next()).collect()
    }

    fn listed_input(&self, rank: Rank) -> Vec<u64> {
        let held = self.demand.chunk_ids().filter(|&id| self.demand.chunk(id).holders.has(rank));
        held.flat_map(|id| self.listed(id, rank)).collect()
    }

    fn listed_output(&self, rank: Rank) -> Vec<u64> {
        let wanted = self.demand.chunk_ids().filter(|&id| self.demand.chunk(id).wanted_by.has(rank));
        let value = |id| {
            let chunk = self.demand.chunk(id);
            let holders = if chunk.combine { &chunk.holders[..] } else { &chunk.holders[..1] };
            let values: Vec<_> = holders.iter().map(|&holder| self.listed(id, holder)).collect();
            let sum = |at: usize| values.iter().fold(0u64, |sum, value| sum.wrapping_add(value[at]));
            (0..values[0].len()).map(sum).collect::<Vec<_>>()
        };
        wanted.flat_map(value).collect()
    }

    fn member(&self, rank: Rank) -> Option<usize> {
        self.request.members.iter().position(|&member| member == rank)
    }

    fn is_root(&self, rank: Rank) -> bool {
        self.request.root == Some(rank)
    }

    fn input(&self, rank: Rank) -> Vec<u64> {
        if self.request.collective.is_listed() {
            return self.listed_input(rank);
        }
        let length = match (self.member(rank), self.request.collective) {
            (None, _) => 0,
            (_, Collective::ReduceScatter | Collective::AllToAll) => self.request.members.len() * self.count,
            (_, Collective::Scatter) if self.is_root(rank) => self.request.members.len() * self.count,
            (_, Collective::Broadcast) if self.is_root(rank) => self.count,
            (_, Collective::Broadcast | Collective::Scatter) => 0,
            _ => self.count,
        };
        let mut random = Random(1000 + u64::from(rank.0));
        (0..length).map(|_| random.next()).collect()
    }

    fn output_length(&self, rank: Rank) -> usize {
        if self.request.collective.is_listed() {
            return self.listed_output(rank).len();
        }
        let members = self.request.members.len();
        match (self.member(rank), self.request.collective) {
            (None, _) => 0,
            (_, Collective::AllGather | Collective::AllToAll) => members * self.count,
            (_, Collective::Gather) if self.is_root(rank) => members * self.count,
            (_, Collective::Reduce) if self.is_root(rank) => self.count,
            (_, Collective::Gather | Collective::Reduce) => 0,
            _ => self.count,
        }
    }

    fn listed_alias(&self, rank: Rank) -> Option<Alias> {
        let ids = |has: &dyn Fn(ChunkId) -> bool| self.demand.chunk_ids().filter(|&id| has(id)).collect::<Vec<_>>();
        let held = ids(&|id| self.demand.chunk(id).holders.has(rank));
        let wanted = ids(&|id| self.demand.chunk(id).wanted_by.has(rank));
        let start = |small: &[ChunkId], large: &[ChunkId]| {
            let at = large.windows(small.len().max(1)).position(|run| run == small)?;
            Some(large[..at].iter().map(|&id| self.listed(id, rank).len()).sum())
        };
        if held.is_empty() || wanted.is_empty() {
            return None;
        }
        let within = start(&held, &wanted).map(Alias::InputInOutput);
        let around = || start(&wanted, &held).map(Alias::OutputInInput);
        within.or_else(around).or(Some(Alias::InputInOutput(0)))
    }

    fn alias(&self, rank: Rank) -> Option<Alias> {
        if self.request.collective.is_listed() {
            return self.listed_alias(rank);
        }
        let own = self.member(rank)? * self.count;
        let root = self.is_root(rank);
        match self.request.collective {
            Collective::AllGather => Some(Alias::InputInOutput(own)),
            // With one member the blocks are equal, and the buffer goes by the name of the output.
            Collective::ReduceScatter if self.request.members.len() > 1 => Some(Alias::OutputInInput(own)),
            Collective::ReduceScatter => Some(Alias::InputInOutput(0)),
            Collective::Gather => root.then_some(Alias::InputInOutput(own)),
            Collective::Scatter if self.request.members.len() > 1 => root.then_some(Alias::OutputInInput(own)),
            Collective::Scatter | Collective::Broadcast | Collective::Reduce => root.then_some(Alias::InputInOutput(0)),
            _ => Some(Alias::InputInOutput(0)),
        }
    }

    fn expected(&self, rank: Rank) -> Vec<u64> {
        if self.request.collective.is_listed() {
            return self.listed_output(rank);
        }
        let Some(own) = self.member(rank) else { return Vec::new() };
        if self.output_length(rank) == 0 {
            return Vec::new();
        }
        let inputs: Vec<Vec<u64>> = self.request.members.iter().map(|&member| self.input(member)).collect();
        let block = |member: usize, block: usize| inputs[member][block * self.count..(block + 1) * self.count].to_vec();
        let members = 0..inputs.len();
        let sum = |at: usize| -> Vec<u64> {
            let element = |index: usize| inputs.iter().fold(0u64, |sum, input| sum.wrapping_add(input[index]));
            (at * self.count..(at + 1) * self.count).map(element).collect()
        };
        let root = self.request.root.and_then(|root| self.member(root));
        match self.request.collective {
            Collective::AllGather | Collective::Gather => inputs.concat(),
            Collective::ReduceScatter => sum(own),
            Collective::AllReduce | Collective::Reduce => sum(0),
            Collective::AllToAll => members.flat_map(|from| block(from, own)).collect(),
            Collective::Broadcast => block(root.unwrap(), 0),
            Collective::Scatter => block(root.unwrap(), own),
            Collective::SendRecv => block((own + inputs.len() - 1) % inputs.len(), 0),
            Collective::AllToAllV | Collective::Custom => unreachable!("listed"),
        }
    }
}
