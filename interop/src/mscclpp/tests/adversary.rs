//! Executes plans with threads that use every freedom that a GPU has: a second opinion that shares no code with the
//! judge.
//!
//! Each threadblock gives its operations to threads without waiting for them; only `nop` and `barrier` wait for all.
//! Data operations read at one time and write at another. Ranks begin a call at any time, and begin the next when their
//! threadblocks are done. Between calls the caller reads the output and overwrites all its buffers. The next thread is
//! chosen at random, with weights that let some threads starve. A plan is wrong if any such run gives a wrong output,
//! deadlocks, or leaves a signal behind.

use super::super::*;
use super::spots::{Spot, alike, transfers};
use program::testing::schedules::Random;
use schedule::Collective;
use std::collections::BTreeMap;

/// Consecutive calls: two with each half of a doubled scratch buffer.
const CALLS: u64 = 4;

type Cell = (u64, u64);

/// A task of a thread.
#[derive(Clone)]
enum Task {
    Give(usize),
    Take(usize),
    /// Reads, then writes; the field is the value that was read.
    Data {
        op: usize,
        values: Option<Vec<u64>>,
    },
}

#[derive(Clone, Default)]
struct Block {
    next: usize,
    /// Tasks of single threads, in order for each lane, and data tasks.
    lanes: BTreeMap<usize, Vec<Task>>,
    data: Vec<Task>,
}

struct Run<'p> {
    plan: &'p ExecutionPlan,
    collective: Collective,
    call: Vec<u64>,
    begun: Vec<bool>,
    blocks: Vec<Vec<Block>>,
    /// Per rank: input, output, scratch (both halves), as (flag, value).
    memory: Vec<[Vec<Cell>; 3]>,
    counters: BTreeMap<usize, i64>,
    names: BTreeMap<(u8, u32, u32, usize), usize>,
}

fn hash(call: u64, rank: u64, chunk: u64) -> u64 {
    Random(call * 1_000_003 + rank * 1009 + chunk).draw()
}

/// Runs a plan `runs` times, and returns the first error.
pub(super) fn attack(plan: &ExecutionPlan, runs: u64) -> Option<String> {
    (0..runs).find_map(|seed| Run::new(plan)?.run(&mut Random(seed * 77 + 5)).err())
}

impl<'p> Run<'p> {
    fn new(plan: &'p ExecutionPlan) -> Option<Self> {
        let memory = plan.gpus.iter().map(|gpu| {
            let cells = |count: u32| vec![(0, 0); count as usize];
            [cells(gpu.input_chunks.max(gpu.output_chunks)), cells(gpu.output_chunks), cells(4 * gpu.scratch_chunks)]
        });
        let ranks = plan.gpus.len();
        let blocks = plan.gpus.iter().map(|gpu| vec![Block::default(); gpu.threadblocks.len()]).collect();
        let collective = plan.collective.parse().ok()?;
        let (call, begun) = (vec![1; ranks], vec![false; ranks]);
        let (counters, names) = (BTreeMap::new(), BTreeMap::new());
        let mut run = Self { plan, collective, call, begun, blocks, memory: memory.collect(), counters, names };
        for (rank, gpu) in (0..).zip(&plan.gpus) {
            for (index, semaphore) in gpu.semaphores.iter().enumerate() {
                let id = run.counter((2, rank, 0, index));
                run.counters.insert(id, semaphore.init_value.into());
            }
        }
        Some(run)
    }

    fn counter(&mut self, name: (u8, u32, u32, usize)) -> usize {
        let next = self.names.len();
        *self.names.entry(name).or_insert(next)
    }

    fn run(&mut self, random: &mut Random) -> Result<(), String> {
        let ranks = self.plan.gpus.len();
        let blocks: Vec<(usize, usize)> =
            (0..ranks).flat_map(|rank| (0..self.blocks[rank].len()).map(move |block| (rank, block))).collect();
        let mut idle = 0;
        // Some threadblocks are slow for a while.
        let mut slow = vec![false; blocks.len()];
        for round in 0.. {
            if round % 64 == 0 {
                slow.iter_mut().for_each(|slow| *slow = random.below(3) == 0);
            }
            if self.call.iter().all(|&call| call > CALLS) {
                break;
            }
            let chosen = random.below(blocks.len());
            let (rank, block) = blocks[chosen];
            if slow[chosen] && idle < 200 && random.below(16) > 0 {
                idle += 1;
                continue;
            }
            idle = if self.step(rank, block, random)? { 0 } else { idle + 1 };
            if idle > 400 * blocks.len() {
                return Err(format!("it stops in calls {:?}", self.call));
            }
        }
        let left = |name: &(u8, u32, u32, usize), value: i64| match name.0 {
            2 => value != i64::from(self.plan.gpus[name.1 as usize].semaphores[name.3].init_value),
            _ => value != 0,
        };
        match self.names.iter().find(|(name, id)| left(name, self.counters.get(id).copied().unwrap_or(0))) {
            Some((name, _)) => Err(format!("signals are left over: {name:?}")),
            None => Ok(()),
        }
    }

    fn step(&mut self, rank: usize, block: usize, random: &mut Random) -> Result<bool, String> {
        if self.call[rank] > CALLS {
            return Ok(false);
        }
        if !self.begun[rank] {
            self.begin(rank);
        }
        let ops = &self.plan.gpus[rank].threadblocks[block].ops;
        let state = &self.blocks[rank][block];
        let busy = !state.lanes.is_empty() || !state.data.is_empty();
        // Either a thread does a task, or the threadblock gives out more tasks.
        if busy && random.below(2) == 0 {
            return Ok(self.task(rank, block, random));
        }
        let Some(op) = ops.get(state.next) else {
            return match busy {
                true => Ok(self.task(rank, block, random)),
                false => self.end(rank),
            };
        };
        match op.name {
            OpName::Nop if busy => return Ok(self.task(rank, block, random)),
            OpName::Barrier if busy => return Ok(self.task(rank, block, random)),
            OpName::Barrier => return Ok(self.barrier(rank, op.barrier_id.unwrap())),
            _ => {}
        }
        let next = state.next;
        self.hand_out(rank, block, next, op)?;
        self.blocks[rank][block].next += 1;
        Ok(true)
    }

    fn barrier(&mut self, rank: usize, id: u32) -> bool {
        let here = |block: usize| {
            let state = &self.blocks[rank][block];
            let op = self.plan.gpus[rank].threadblocks[block].ops.get(state.next);
            op.is_some_and(|op| op.barrier_id == Some(id)) && state.lanes.is_empty() && state.data.is_empty()
        };
        let uses =
            |block: &usize| self.plan.gpus[rank].threadblocks[*block].ops.iter().any(|op| op.barrier_id == Some(id));
        let members: Vec<usize> = (0..self.blocks[rank].len()).filter(uses).collect();
        let all = members.iter().all(|&block| here(block));
        if all {
            members.iter().for_each(|&block| self.blocks[rank][block].next += 1);
        }
        all
    }

    fn hand_out(&mut self, rank: usize, block: usize, next: usize, op: &Operation) -> Result<(), String> {
        let sync = |op: &Operation| op.channel_ids.clone().or(op.semaphore_ids.clone()).unwrap_or_default();
        let gives = matches!(op.name, OpName::Signal | OpName::RelaxedSignal | OpName::SemRelease);
        let takes = matches!(op.name, OpName::Wait | OpName::RelaxedWait | OpName::SemAcquire);
        if gives || takes {
            for (lane, id) in sync(op).into_iter().enumerate() {
                let counter = if op.semaphore_ids.is_some() {
                    self.counter((2, rank as u32, 0, id as usize))
                } else {
                    self.signals(rank, block, id, gives)?
                };
                let task = if gives { Task::Give(counter) } else { Task::Take(counter) };
                self.blocks[rank][block].lanes.entry(lane).or_default().push(task);
            }
        } else if op.name != OpName::Nop {
            self.blocks[rank][block].data.push(Task::Data { op: next, values: None });
        }
        Ok(())
    }

    /// The counter of a memory channel's signals, given or taken.
    fn signals(&mut self, rank: usize, block: usize, id: u32, gives: bool) -> Result<usize, String> {
        let gpu = &self.plan.gpus[rank];
        let mut ids = gpu.threadblocks[block].channels.iter().flat_map(|refs| &refs.channel_ids);
        let channel = *ids.nth(id as usize).ok_or("no such channel")? as usize;
        let peers: Vec<u32> =
            gpu.channels.iter().flat_map(|channel| channel.connected_to.iter().flatten().copied()).collect();
        let peer = *peers.get(channel).ok_or("no such channel")?;
        let ordinal = peers[..channel].iter().filter(|&&other| other == peer).count();
        let own = rank as u32;
        Ok(self.counter(if gives { (0, own, peer, ordinal) } else { (0, peer, own, ordinal) }))
    }

    /// A random thread of a threadblock does a task.
    fn task(&mut self, rank: usize, block: usize, random: &mut Random) -> bool {
        let state = &self.blocks[rank][block];
        let pick = random.below(state.lanes.len() + state.data.len());
        if let Some((&lane, tasks)) = state.lanes.iter().nth(pick) {
            match tasks[0] {
                Task::Give(counter) => *self.counters.entry(counter).or_insert(0) += 1,
                Task::Take(counter) => {
                    let value = self.counters.entry(counter).or_insert(0);
                    if *value <= 0 {
                        return false;
                    }
                    *value -= 1;
                }
                Task::Data { .. } => unreachable!(),
            }
            let tasks = self.blocks[rank][block].lanes.get_mut(&lane).unwrap();
            tasks.remove(0);
            if tasks.is_empty() {
                self.blocks[rank][block].lanes.remove(&lane);
            }
            return true;
        }
        let index = pick - state.lanes.len();
        let Task::Data { op, values } = state.data[index].clone() else { unreachable!() };
        // Operations on the same chunks are divided among threads in the same way, so each thread keeps their order.
        let ops = &self.plan.gpus[rank].threadblocks[block].ops;
        let same = |other: &Task| matches!(other, Task::Data { op: other, .. } if alike(&ops[*other], &ops[op]));
        if state.data[..index].iter().any(same) {
            return false;
        }
        let operation = &ops[op];
        let transfers = transfers(self.plan, rank, block, operation);
        match values {
            None => {
                let Some(values) = self.read(rank, &transfers) else { return false };
                self.blocks[rank][block].data[index] = Task::Data { op, values: Some(values) };
            }
            Some(values) => {
                self.write(rank, &transfers, &values);
                self.blocks[rank][block].data.remove(index);
            }
        }
        true
    }

    fn read(&self, rank: usize, transfers: &[(Vec<Spot>, Vec<Spot>)]) -> Option<Vec<u64>> {
        let mut values = Vec::new();
        for (sources, _) in transfers {
            let mut sum = 0u64;
            for spot in sources {
                let (flag, value) = self.memory[spot.rank][self.list(spot)][self.place(rank, spot)];
                if spot.packet && flag != self.call[rank] {
                    return None;
                }
                sum = sum.wrapping_add(value);
            }
            values.push(sum);
        }
        Some(values)
    }

    fn write(&mut self, rank: usize, transfers: &[(Vec<Spot>, Vec<Spot>)], values: &[u64]) {
        for ((_, targets), &value) in transfers.iter().zip(values) {
            for spot in targets {
                let place = self.place(rank, spot);
                let flag = if spot.packet { self.call[rank] } else { 0 };
                let list = self.list(spot);
                self.memory[spot.rank][list][place] = (flag, value);
            }
        }
    }

    /// The list with a spot; in place, input and output are one.
    fn list(&self, spot: &Spot) -> usize {
        if self.plan.inplace && spot.space == PlanBuffer::Input { 1 } else { spot.space as usize }
    }

    /// The cell of a spot in its list, for the call that `rank` is in.
    fn place(&self, rank: usize, spot: &Spot) -> usize {
        let scratch = self.plan.gpus[spot.rank].scratch_chunks as usize;
        let second = self.plan.use_double_scratch_buffer && self.call[rank].is_multiple_of(2);
        let half = if spot.space == PlanBuffer::Scratch && second { 2 * scratch } else { 0 };
        half + spot.chunk as usize * if spot.packet { 2 } else { 1 }
    }

    /// The caller prepares its buffers.
    fn begin(&mut self, rank: usize) {
        self.begun[rank] = true;
        let call = self.call[rank];
        for (chunk, cell) in self.memory[rank][0].iter_mut().enumerate() {
            *cell = (0, hash(call, rank as u64, chunk as u64));
        }
        self.memory[rank][1].iter_mut().for_each(|cell| *cell = (0, hash(call, 99, 1)));
        if self.plan.inplace {
            // Only allreduces are attacked in place.
            let input = self.memory[rank][0].clone();
            self.memory[rank][1].iter_mut().zip(input).for_each(|(cell, value)| *cell = value);
        }
    }

    /// The caller reads the output, if all threadblocks are done.
    fn end(&mut self, rank: usize) -> Result<bool, String> {
        let gpu = &self.plan.gpus[rank];
        let through = |(block, state): (&PlanThreadblock, &Block)| {
            state.next == block.ops.len() && state.lanes.is_empty() && state.data.is_empty()
        };
        if !gpu.threadblocks.iter().zip(&self.blocks[rank]).all(through) {
            return Ok(false);
        }
        let (call, ranks) = (self.call[rank], self.plan.gpus.len() as u64);
        for chunk in 0..u64::from(gpu.output_chunks) {
            let expected = match self.collective {
                Collective::AllGather => {
                    let block = u64::from(gpu.input_chunks);
                    hash(call, chunk / block, chunk % block)
                }
                Collective::AllReduce => (0..ranks).fold(0u64, |sum, other| sum.wrapping_add(hash(call, other, chunk))),
                Collective::AllToAll => {
                    let block = u64::from(gpu.output_chunks) / ranks;
                    hash(call, chunk / block, rank as u64 * block + chunk % block)
                }
                other => unreachable!("{other} is not attacked"),
            };
            let found = self.memory[rank][1][chunk as usize].1;
            if found != expected {
                return Err(format!("call {call}: rank {rank} ends with a wrong chunk {chunk}"));
            }
        }
        for list in 0..2 {
            self.memory[rank][list].iter_mut().for_each(|cell| *cell = (0, hash(call, 98, 2)));
        }
        self.call[rank] += 1;
        self.begun[rank] = false;
        self.blocks[rank].iter_mut().for_each(|block| *block = Block::default());
        Ok(true)
    }
}
