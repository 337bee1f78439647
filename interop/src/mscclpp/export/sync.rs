//! Finds the signals and semaphores that a plan needs.
//!
//! The principal type is [`Sync`]. It replays the program in one order in which it can run without buffers, with a
//! vector clock per threadblock that follows exactly the signals of the plan. If the sender of a message cannot know
//! that all earlier uses of the message's place are over, the receiver signals this (`ready`). If it cannot even know
//! that the receiver has begun, the receiver signals this at its beginning (`announced`).

use program::{Buffer, Instruction, Program, Slice, StepRef};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The signals and semaphores that order the steps of the plan.
pub(super) struct Sync {
    /// For each connection whether its receiver announces that it has begun.
    pub(super) announced: Vec<bool>,
    /// For each connection the messages before which the receiver signals that their place is free.
    pub(super) ready: Vec<BTreeSet<u32>>,
    /// The messages (connection, number) that land in their own scratch, to be reduced.
    staged: BTreeSet<(u32, u32)>,
    /// For each connection the receiver's places of its messages.
    pub(super) targets: Vec<Vec<Slice>>,
    /// Per rank: scratch slots, staged messages included.
    pub(super) scratch: Vec<u32>,
    /// Per rank and step: the semaphores that it acquires before and releases after.
    pub(super) semaphores: Vec<BTreeMap<StepRef, Around>>,
    /// Per rank: how many semaphores there are.
    pub(super) count: Vec<u32>,
}

/// The semaphores that are acquired before a step and released after it.
pub(super) type Around = (Vec<u32>, Vec<u32>);

impl Sync {
    pub(super) fn new(program: &Program) -> Self {
        let connections = program.connections.len();
        let mut sync = Self {
            announced: vec![false; connections],
            ready: vec![BTreeSet::new(); connections],
            staged: BTreeSet::new(),
            targets: vec![Vec::new(); connections],
            scratch: program.ranks.iter().map(|rank| rank.scratch_parts.len() as u32).collect(),
            semaphores: vec![BTreeMap::new(); program.ranks.len()],
            count: vec![0; program.ranks.len()],
        };
        sync.stage(program);
        sync.depend(program);
        Replay::new(program).run(&mut sync);
        sync
    }

    /// Gives messages that are reduced their own scratch.
    fn stage(&mut self, program: &Program) {
        for (rank, content) in program.ranks.iter().enumerate() {
            for step in content.threadblocks.iter().flat_map(|block| &block.steps) {
                let Some(from) = step.instruction.receives_from() else { continue };
                let Some(mut target) = step.instruction.destination() else { continue };
                let number = self.targets[from.index()].len() as u32;
                if step.instruction.reduces() {
                    target = Slice { buffer: Buffer::Scratch, index: self.scratch[rank], count: target.count };
                    self.staged.insert((from.0, number));
                    self.scratch[rank] += target.count;
                }
                self.targets[from.index()].push(target);
            }
        }
    }

    /// One semaphore for each pair of threadblocks of which one waits for the other. A wait that is implied by an
    /// earlier one is left out, so releases and acquires have the same order.
    fn depend(&mut self, program: &Program) {
        for (rank, content) in program.ranks.iter().enumerate() {
            let mut of_pair: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            for (waiter, block) in (0..).zip(&content.threadblocks) {
                let mut known: BTreeMap<u32, u32> = BTreeMap::new();
                for (step, content) in (0..).zip(&block.steps) {
                    for on in content.after.iter().filter(|on| on.threadblock != waiter) {
                        let last = known.entry(on.threadblock).or_insert(0);
                        if *last > on.step {
                            continue;
                        }
                        *last = on.step + 1;
                        let next = of_pair.len() as u32;
                        let semaphore = *of_pair.entry((on.threadblock, waiter)).or_insert(next);
                        let here = StepRef { threadblock: waiter, step };
                        self.semaphores[rank].entry(here).or_default().0.push(semaphore);
                        self.semaphores[rank].entry(*on).or_default().1.push(semaphore);
                    }
                }
            }
            self.count[rank] = of_pair.len() as u32;
        }
    }
}

/// For each threadblock, one more than the number of its steps that are certainly over; 0 if it may not have begun.
type StepClock = Vec<u32>;

fn join(clock: &mut StepClock, other: &StepClock) {
    for (own, &other) in clock.iter_mut().zip(other) {
        *own = (*own).max(other);
    }
}

/// The last write of a slot and the reads since, as (threadblock, step).
#[derive(Clone, Default)]
struct Uses {
    write: Option<(usize, u32)>,
    reads: Vec<(usize, u32)>,
}

struct Replay<'p> {
    program: &'p Program,
    /// All threadblocks of all ranks: the rank, and the number in the rank.
    blocks: Vec<(usize, u32)>,
    /// Per rank, its first threadblock.
    first: Vec<usize>,
    next: Vec<u32>,
    clocks: Vec<StepClock>,
    /// The clocks after the steps that others wait for.
    snapshots: BTreeMap<(usize, u32), Option<Rc<StepClock>>>,
    uses: BTreeMap<(usize, Buffer, u32), Uses>,
    /// The number of messages of each connection so far.
    sent: Vec<u32>,
    /// The receiver of each connection.
    receivers: Vec<Option<usize>>,
}

impl<'p> Replay<'p> {
    fn new(program: &'p Program) -> Self {
        let (mut blocks, mut first) = (Vec::new(), Vec::new());
        let mut receivers = vec![None; program.connections.len()];
        let mut snapshots = BTreeMap::new();
        for (rank, content) in program.ranks.iter().enumerate() {
            first.push(blocks.len());
            for (number, block) in (0..).zip(&content.threadblocks) {
                for step in &block.steps {
                    if let Some(from) = step.instruction.receives_from() {
                        receivers[from.index()] = Some(blocks.len());
                    }
                    let start = first[rank];
                    snapshots.extend(step.after.iter().map(|on| ((start + on.threadblock as usize, on.step), None)));
                }
                blocks.push((rank, number));
            }
        }
        let count = blocks.len();
        let clock = |own: usize| (0..count).map(|block| u32::from(block == own)).collect();
        let clocks = (0..count).map(clock).collect();
        let (next, sent) = (vec![0; count], vec![0; program.connections.len()]);
        Self { program, blocks, first, next, clocks, snapshots, uses: BTreeMap::new(), sent, receivers }
    }

    fn instruction(&self, block: usize) -> Option<Instruction> {
        let (rank, number) = self.blocks[block];
        let steps = &self.program.ranks[rank].threadblocks[number as usize].steps;
        steps.get(self.next[block] as usize).map(|step| step.instruction)
    }

    /// Whether all steps that the next step waits for are over.
    fn free(&self, block: usize) -> bool {
        self.after(block).all(|(other, step)| self.next[other] > step)
    }

    fn after(&self, block: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let (rank, number) = self.blocks[block];
        let step = &self.program.ranks[rank].threadblocks[number as usize].steps[self.next[block] as usize];
        let first = self.first[rank];
        step.after.iter().map(move |on| (first + on.threadblock as usize, on.step))
    }

    fn run(mut self, sync: &mut Sync) {
        loop {
            let mut moved = false;
            for block in 0..self.blocks.len() {
                while self.step(block, sync) {
                    moved = true;
                }
            }
            if !moved {
                // A verified program without a window always finishes; if it did not, the import would find out.
                return;
            }
        }
    }

    fn step(&mut self, block: usize, sync: &mut Sync) -> bool {
        let Some(instruction) = self.instruction(block) else { return false };
        if !self.free(block) || instruction.receives_from().is_some() {
            return false;
        }
        let Some(connection) = instruction.sends_to() else {
            self.learn(block);
            self.finish(block, instruction);
            return true;
        };
        let Some(receiver) = self.receivers[connection.index()] else { return false };
        let ready = self.instruction(receiver).filter(|other| other.receives_from() == Some(connection));
        let Some(receive) = ready.filter(|_| self.free(receiver)) else { return false };
        self.learn(block);
        self.learn(receiver);
        self.message(block, receiver, connection.0, receive, sync);
        self.finish(block, instruction);
        let told = self.clocks[block].clone();
        join(&mut self.clocks[receiver], &told);
        self.finish(receiver, receive);
        true
    }

    /// Decides which signals a message needs besides its own.
    fn message(&mut self, sender: usize, receiver: usize, connection: u32, receive: Instruction, sync: &mut Sync) {
        let number = self.sent[connection as usize];
        self.sent[connection as usize] += 1;
        let rank = self.blocks[receiver].0;
        let place = receive.destination().filter(|_| !sync.staged.contains(&(connection, number)));
        let known = &self.clocks[sender];
        let used = place.into_iter().flat_map(slots).filter_map(|slot| self.uses.get(&(rank, slot.0, slot.1)));
        let mut users = used.flat_map(|uses| uses.write.iter().chain(&uses.reads));
        if users.any(|&(block, step)| known[block] < step + 2) {
            sync.ready[connection as usize].insert(number);
            let told = self.clocks[receiver].clone();
            join(&mut self.clocks[sender], &told);
            return;
        }
        let start = self.first[rank];
        let end = self.first.get(rank + 1).copied().unwrap_or(self.blocks.len());
        if known[start..end].iter().all(|&steps| steps == 0) {
            sync.announced[connection as usize] = true;
            self.clocks[sender][receiver] = 1;
        }
    }

    /// Joins the clocks of the steps that it waits for.
    fn learn(&mut self, block: usize) {
        let after: Vec<(usize, u32)> = self.after(block).collect();
        for place in after {
            if let Some(Some(clock)) = self.snapshots.get(&place) {
                let clock = clock.clone();
                join(&mut self.clocks[block], &clock);
            }
        }
    }

    fn finish(&mut self, block: usize, instruction: Instruction) {
        let (rank, step) = (self.blocks[block].0, self.next[block]);
        let reads = instruction.source().into_iter().chain(instruction.destination().filter(|_| instruction.reduces()));
        for (buffer, slot) in reads.flat_map(slots) {
            self.uses.entry((rank, buffer, slot)).or_default().reads.push((block, step));
        }
        for (buffer, slot) in instruction.destination().into_iter().flat_map(slots) {
            self.uses.insert((rank, buffer, slot), Uses { write: Some((block, step)), reads: Vec::new() });
        }
        self.next[block] += 1;
        self.clocks[block][block] = step + 2;
        if let Some(snapshot) = self.snapshots.get_mut(&(block, step)) {
            *snapshot = Some(Rc::new(self.clocks[block].clone()));
        }
    }
}

/// The slots of a slice.
pub(super) fn slots(slice: Slice) -> impl Iterator<Item = (Buffer, u32)> {
    (slice.index..slice.index + slice.count).map(move |index| (slice.buffer, index))
}
