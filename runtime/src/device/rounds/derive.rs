//! Which message moves in which round, and which local work comes before it.
//!
//! The principal type is [`Rounds`]. A message is in the first round in which its data are there, and later than what
//! its connection carried before: two messages that a plan sends one after the other over the same link are a pipeline,
//! and one round would make it none. What the receiver does with its buffers never delays a message. If it still uses
//! the place where the message belongs, the message goes to an inbox and is copied when the place is free.
//!
//! Ranks of one domain have mapped each other's memory. The kernel puts and takes the messages between them inside of a stage, so
//! such a message needs no round ([`puts`]).
//!
//! Time is counted in stages and exchanges. Two uses of a slot, one of which writes, have different times, in the order
//! of the program. Uses that the program does not order do not conflict, because a verified program has no races.

mod puts;
mod time;

use crate::error::{RunError, RunResult};
use crate::execution::local_rank::averaged_slots;
use program::{Buffer, Connection, ConnectionId, Instruction, Program, Slice, Step, VerifiedProgram};
use std::collections::VecDeque;
use time::RoundTime;
use topology::Rank;

/// Where data lie: in a buffer of the rank, or in the inbox of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkPlace {
    Buffer(Slice),
    /// The message's number in [`Rounds::messages`].
    Inbox(usize),
}

/// What a piece of local work does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WorkKind {
    /// Destination = source.
    Copy,
    /// Destination = destination ⊕ source.
    Reduce,
    /// Destination = source divided by a number; both are the same place.
    Divide(u64),
    /// The mapped message of this number in [`Rounds::messages`] = source.
    Put(usize),
    /// Destination = the mapped message of this number.
    Take(usize),
    /// Destination = the mapped message of this number ⊕ source.
    TakeReduce(usize),
}

/// Local work of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StageWork {
    /// Before the exchange of this number.
    pub(crate) stage: u32,
    /// Work of a lower level of the stage comes first.
    pub(crate) level: u32,
    pub(crate) kind: WorkKind,
    pub(crate) source: WorkPlace,
    pub(crate) destination: WorkPlace,
    /// A slice with the shape of both.
    pub(crate) shape: Slice,
}

/// A message. Those of a round with the same ranks have the same order at both ends: that of [`Rounds::messages`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RoundMessage {
    /// Its exchange; of a mapped message the stage in which it is put and taken.
    pub(crate) round: u32,
    /// The kernel moves it.
    pub(crate) is_mapped: bool,
    /// At which levels of its stage a mapped message is put and taken.
    pub(crate) levels: [u32; 2],
    pub(crate) connection: ConnectionId,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// At the sender.
    pub(crate) source: Slice,
    /// At the receiver.
    pub(crate) destination: WorkPlace,
    /// A slice of the receiver with the message's shape.
    pub(crate) shape: Slice,
    /// The stage whose work uses the message's inbox last.
    pub(crate) used_until: u32,
}

/// A program in rounds.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    /// How many exchanges there are; there is one stage more.
    pub(crate) count: u32,
    /// Connection by connection, in the order of the connection.
    pub(crate) messages: Vec<RoundMessage>,
    /// Each rank's work, in the order of stages and levels.
    pub(crate) work: Vec<Vec<StageWork>>,
}

/// When a slot was read and written last.
#[derive(Clone, Copy, Default)]
struct SlotUse {
    read: RoundTime,
    written: RoundTime,
}

/// A message that is on its way.
struct SentMessage {
    at: RoundTime,
    source: Slice,
}

/// What a connection has carried so far.
#[derive(Default)]
struct CarriedMessages {
    /// The round and the transfer of the last message.
    last: Option<(u32, Option<u32>)>,
    sent: VecDeque<SentMessage>,
    received: Vec<RoundMessage>,
    /// When the last mapped message was put, and when one was taken.
    put: RoundTime,
    taken: RoundTime,
}

/// The rounds so far.
struct Derivation<'a> {
    program: &'a Program,
    /// Of each rank.
    domains: &'a [u32],
    /// For each rank and buffer.
    slots: Vec<[Vec<SlotUse>; 3]>,
    connections: Vec<CarriedMessages>,
    work: Vec<Vec<StageWork>>,
    /// For each connection, the numbers of its first message among all.
    first_message: Vec<usize>,
}

impl Rounds {
    /// The rounds of a program; the same on every rank.
    ///
    /// # Errors
    /// [`RunError::Mismatch`] if the program waits in a circle, which no verified program does.
    pub(crate) fn of(program: &VerifiedProgram) -> RunResult<Self> {
        let apart: Vec<u32> = (0..program.program().ranks.len() as u32).collect();
        Self::within(program, &apart)
    }

    /// The same where ranks with the same number have mapped each other's memory. `domains` has the number of each rank.
    ///
    /// # Errors
    /// As for [`Self::of`]; also if there are not as many numbers as ranks.
    pub(crate) fn within(program: &VerifiedProgram, domains: &[u32]) -> RunResult<Self> {
        let program = program.program().clone().unfused();
        if domains.len() != program.ranks.len() {
            let what = format!("{} ranks have a domain, and the program has {}", domains.len(), program.ranks.len());
            return Err(RunError::Mismatch { what });
        }
        let mut derivation = Derivation::new(&program, domains);
        derivation.run()?;
        for rank in (0..program.ranks.len()).map(Rank::from_index) {
            for (slice, by) in averaged_slots(&program, rank)? {
                let place = WorkPlace::Buffer(slice);
                derivation.work(rank, WorkKind::Divide(by), place, place, slice, RoundTime::default());
            }
        }
        let Derivation { connections, mut work, .. } = derivation;
        let messages: Vec<_> = connections.into_iter().flat_map(|connection| connection.received).collect();
        work.iter_mut().for_each(|work| work.sort_by_key(|it| (it.stage, it.level, it.kind)));
        let exchanged = messages.iter().filter(|message| !message.is_mapped);
        let count = exchanged.map(|message| message.round + 1).max().unwrap_or(0);
        let last = work.iter().flatten().map(|work| work.stage).max().unwrap_or(0);
        // Work waits for messages, so it is never later than the stage after the last exchange.
        debug_assert!(last <= count);
        Ok(Self { count, messages, work })
    }
}

impl<'a> Derivation<'a> {
    fn new(program: &'a Program, domains: &'a [u32]) -> Self {
        const BUFFERS: [Buffer; 3] = [Buffer::Input, Buffer::Output, Buffer::Scratch];
        let slots = program.ranks.iter();
        let mut sends = vec![0; program.connections.len()];
        for step in program.ranks.iter().flat_map(program::RankProgram::steps) {
            step.instruction.sends_to().into_iter().for_each(|connection| sends[connection.index()] += 1);
        }
        let first_message = sends.iter().scan(0, |next, sends| {
            let first = *next;
            *next += sends;
            Some(first)
        });
        Self {
            program,
            domains,
            slots: slots.map(|rank| BUFFERS.map(|of| vec![SlotUse::default(); rank.parts(of).len()])).collect(),
            connections: program.connections.iter().map(|_| CarriedMessages::default()).collect(),
            work: vec![Vec::new(); program.ranks.len()],
            first_message: first_message.collect(),
        }
    }

    /// Takes all steps, each after everything that it waits for.
    fn run(&mut self) -> RunResult<()> {
        let ranks = &self.program.ranks;
        let mut done: Vec<Vec<usize>> = ranks.iter().map(|rank| vec![0; rank.threadblocks.len()]).collect();
        let mut left: usize = ranks.iter().map(|rank| rank.steps().count()).sum();
        while left > 0 {
            let before = left;
            for (index, rank) in ranks.iter().enumerate() {
                for (number, block) in rank.threadblocks.iter().enumerate() {
                    while let Some(step) = block.steps.get(done[index][number]) {
                        let waits =
                            step.after.iter().any(|on| done[index][on.threadblock as usize] <= on.step as usize);
                        if waits || !self.has_arrived(step) {
                            break;
                        }
                        self.step(Rank::from_index(index), step)?;
                        done[index][number] += 1;
                        left -= 1;
                    }
                }
            }
            if left == before {
                return Err(RunError::Mismatch { what: "the program waits for itself".to_owned() });
            }
        }
        Ok(())
    }

    /// Whether the message that a step receives was sent.
    fn has_arrived(&self, step: &Step) -> bool {
        let from = step.instruction.receives_from();
        from.is_none_or(|from| !self.connections[from.index()].sent.is_empty())
    }

    fn step(&mut self, rank: Rank, step: &Step) -> RunResult<()> {
        let none = RoundTime::default();
        match step.instruction {
            Instruction::Send { to, src } if self.is_mapped(to) => self.put(rank, to, src),
            Instruction::Receive { from, dst } if self.is_mapped(from) => self.take_put(rank, from, None, dst),
            Instruction::ReceiveReduce { from, src, dst } if self.is_mapped(from) => {
                self.take_put(rank, from, Some(src), dst);
            }
            Instruction::Send { to, src } => self.send(rank, to, src, step.transfer),
            Instruction::Receive { from, dst } => self.receive(rank, from, dst),
            Instruction::ReceiveReduce { from, src, dst } => self.receive_reduce(rank, from, src, dst),
            Instruction::Copy { src, dst } => {
                self.work(rank, WorkKind::Copy, WorkPlace::Buffer(src), WorkPlace::Buffer(dst), dst, none);
            }
            Instruction::Reduce { src, dst } => {
                self.work(rank, WorkKind::Reduce, WorkPlace::Buffer(src), WorkPlace::Buffer(dst), dst, none);
            }
            Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => {
                return Err(RunError::Mismatch { what: "a fused step was not taken apart".to_owned() });
            }
        }
        Ok(())
    }

    fn uses(&mut self, rank: Rank, slice: Slice) -> &mut [SlotUse] {
        &mut self.slots[rank.index()][slice.buffer as usize][slice.index as usize..][..slice.count as usize]
    }

    /// The last time at which a place was used so that it must not be read, or written, at the same time.
    fn last(&mut self, rank: Rank, place: WorkPlace, is_written: bool) -> RoundTime {
        let WorkPlace::Buffer(slice) = place else { return RoundTime::default() };
        let times = self.uses(rank, slice).iter();
        times.map(|of| if is_written { of.written.max(of.read) } else { of.written }).max().unwrap_or_default()
    }

    fn mark(&mut self, rank: Rank, place: WorkPlace, is_written: bool, at: RoundTime) {
        let WorkPlace::Buffer(slice) = place else { return };
        for of in self.uses(rank, slice) {
            let time = if is_written { &mut of.written } else { &mut of.read };
            *time = at.max(*time);
        }
    }

    fn send(&mut self, rank: Rank, to: ConnectionId, source: Slice, transfer: Option<u32>) {
        let place = WorkPlace::Buffer(source);
        let ready = self.last(rank, place, false).next_exchange();
        let connection = &mut self.connections[to.index()];
        let free = match connection.last {
            None => 0,
            Some((round, last)) if last.is_some() && last == transfer => round,
            Some((round, _)) => round + 1,
        };
        let round = ready.max(free);
        connection.last = Some((round, transfer));
        let at = RoundTime::exchange(round);
        connection.sent.push_back(SentMessage { at, source });
        self.mark(rank, place, false, at);
    }

    /// Takes a message to a place. The time is that of its exchange, and the number is the message's.
    fn take(&mut self, from: ConnectionId, destination: impl Fn(u32, usize) -> WorkPlace, shape: Slice) -> RoundTime {
        let number = self.first_message[from.index()] + self.connections[from.index()].received.len();
        let Some(SentMessage { at, source }) = self.connections[from.index()].sent.pop_front() else {
            return RoundTime::default();
        };
        self.received(from, [at; 2], source, destination(at.round, number), shape);
        at
    }

    /// Notes a message that was sent, and comes to a place at a time.
    fn received(
        &mut self,
        connection: ConnectionId,
        [sent, at]: [RoundTime; 2],
        source: Slice,
        destination: WorkPlace,
        shape: Slice,
    ) {
        let Connection { from, to, .. } = self.program.connections[connection.index()];
        let (round, is_mapped, levels, used_until) = (at.round, !at.is_exchange(), [sent.level, at.level], at.round);
        let message =
            RoundMessage { round, is_mapped, levels, connection, from, to, source, destination, shape, used_until };
        self.connections[connection.index()].received.push(message);
        self.mark(to, destination, true, at);
    }

    /// The message's own place if nothing else uses it from the exchange on, else its inbox.
    fn receive(&mut self, rank: Rank, from: ConnectionId, dst: Slice) {
        let place = WorkPlace::Buffer(dst);
        let last = self.last(rank, place, true);
        let is_free = |round| last < RoundTime::exchange(round);
        let at = self.take(from, |round, of| if is_free(round) { place } else { WorkPlace::Inbox(of) }, dst);
        if !is_free(at.round) {
            let inbox = self.inbox(from);
            self.work(rank, WorkKind::Copy, inbox, place, dst, at);
        }
    }

    fn receive_reduce(&mut self, rank: Rank, from: ConnectionId, src: Slice, dst: Slice) {
        let (source, destination) = (WorkPlace::Buffer(src), WorkPlace::Buffer(dst));
        if !overlap(src, dst) {
            self.receive(rank, from, dst);
            return self.work(rank, WorkKind::Reduce, source, destination, dst, RoundTime::default());
        }
        let at = self.take(from, |_, of| WorkPlace::Inbox(of), dst);
        let inbox = self.inbox(from);
        if src == dst {
            return self.work(rank, WorkKind::Reduce, inbox, destination, dst, at);
        }
        self.work(rank, WorkKind::Reduce, source, inbox, dst, at);
        let at = self.work[rank.index()].last().map_or(at, |it| RoundTime { round: it.stage, level: it.level });
        self.work(rank, WorkKind::Copy, inbox, destination, dst, at);
    }

    /// The inbox of the last message of a connection.
    fn inbox(&self, from: ConnectionId) -> WorkPlace {
        WorkPlace::Inbox(self.first_message[from.index()] + self.connections[from.index()].received.len() - 1)
    }

    /// Local work, as early as its places and `after` allow.
    fn work(
        &mut self,
        rank: Rank,
        kind: WorkKind,
        source: WorkPlace,
        destination: WorkPlace,
        shape: Slice,
        after: RoundTime,
    ) {
        let last = self.last(rank, source, false).max(self.last(rank, destination, true)).max(after);
        let at = last.next_work();
        self.mark(rank, source, false, at);
        self.mark(rank, destination, true, at);
        for place in [source, destination] {
            let WorkPlace::Inbox(number) = place else { continue };
            let of = self.first_message.partition_point(|first| *first <= number) - 1;
            let messages = &mut self.connections[of].received;
            if let Some(message) = messages.get_mut(number - self.first_message[of]) {
                message.used_until = message.used_until.max(at.round);
            }
        }
        let work = StageWork { stage: at.round, level: at.level, kind, source, destination, shape };
        self.work[rank.index()].push(work);
    }
}

/// Whether two slices have a slot in common.
fn overlap(one: Slice, other: Slice) -> bool {
    one.buffer == other.buffer && one.index < other.index + other.count && other.index < one.index + one.count
}
