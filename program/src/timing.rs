//! When a program's messages move on a machine: plays the program under the topology's cost model.
//!
//! The principal function is [`play`]. It is event driven. Every threadblock executes its steps in order. A step starts
//! when the steps that it waits for have finished. A message leaves when its link and the link's resources are free,
//! earliest first, and occupies its threadblock as long as its link. Local steps take no time, and connections hold any
//! number of messages. Slots move as a whole; pipelining by tiles makes real executions faster.

use super::{ConnectionId, Instruction, Program, Slice, StepRef, VerifiedProgram};
use schedule::explain::{CriticalPath, LastWait, Wait, chain};
use schedule::{Cargo, TimedMessage, Timeline, TransferKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use topology::{Bytes, FreeTimes, LinkId, Micros, Rank, Topology};

/// The program sends between ranks that have no link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the program sends where the topology has no link: {}", list(.pairs))]
pub struct NoLink {
    /// Sender and receiver, ascending.
    pub pairs: Vec<(Rank, Rank)>,
}

fn list(pairs: &[(Rank, Rank)]) -> String {
    const SHOWN: usize = 8;
    let mut shown: Vec<String> = pairs.iter().take(SHOWN).map(|(from, to)| format!("{from} → {to}")).collect();
    if pairs.len() > SHOWN {
        shown.push(format!("and {} more", pairs.len() - SHOWN));
    }
    shown.join(", ")
}

impl Program {
    /// Gives every connection its link. Of several links between its ranks, it keeps the one that it has; otherwise its
    /// channel selects one.
    ///
    /// # Errors
    /// [`NoLink`] with all pairs of ranks that are not linked, or do not exist.
    pub fn bind(&mut self, topology: &Topology) -> Result<(), NoLink> {
        let mut missing = BTreeSet::new();
        for lane in &mut self.connections {
            let known = lane.from.max(lane.to).index() < topology.rank_count();
            let links: Vec<LinkId> = if known { topology.between(lane.from, lane.to).collect() } else { Vec::new() };
            match links.get(lane.channel as usize % links.len().max(1)) {
                Some(_) if links.contains(&lane.link) => {}
                Some(&link) => lane.link = link,
                None => drop(missing.insert((lane.from, lane.to))),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(NoLink { pairs: missing.into_iter().collect() }) }
    }
}

/// The result of playing a program.
#[derive(Clone, PartialEq, Debug)]
pub struct PlayedProgram {
    /// Its messages.
    pub timeline: Timeline,
    /// Why it takes as long as it does.
    pub path: CriticalPath,
}

/// Plays a program; its size is that of its demand.
///
/// # Errors
/// [`NoLink`] where the topology does not have the program's connections.
pub fn play(program: &VerifiedProgram, topology: &Arc<Topology>) -> Result<PlayedProgram, NoLink> {
    let mut program = program.program().clone().unfused();
    program.bind(topology)?;
    let mut player = ProgramPlayer::new(&program, topology);
    player.run();
    let request = program.demand.request();
    let ProgramPlayer { messages, causes, .. } = player;
    let timeline = Timeline {
        title: request.collective.to_string(),
        size_bytes: request.size_bytes,
        bound: None,
        topology: topology.clone(),
        messages,
    };
    let path = chain(&timeline, |message| causes[message]);
    Ok(PlayedProgram { timeline, path })
}

/// A time, and the message that caused it.
#[derive(Clone, Copy)]
struct CausedTime {
    at: Micros,
    by: Option<By>,
}

/// The event of a message that caused a moment.
#[derive(Clone, Copy)]
enum By {
    Arrival(usize),
    Departure(usize),
}

impl CausedTime {
    const START: Self = Self { at: Micros::ZERO, by: None };

    /// The later of two moments; the first if they are equal.
    fn or_later(self, other: Self) -> Self {
        if other.at > self.at { other } else { self }
    }

    fn cause(self) -> LastWait {
        let wait = match self.by {
            None => Wait::Nothing,
            Some(By::Arrival(brought_by)) => Wait::Data { brought_by },
            Some(By::Departure(behind)) => Wait::Threadblock { behind },
        };
        LastWait { ready: self.at, wait }
    }
}

/// The state of a threadblock.
#[derive(Clone)]
struct ThreadblockProgress {
    rank: usize,
    threadblock: u32,
    /// The moment at which each finished step finished.
    done: Vec<CausedTime>,
    /// From when on the next message may leave, once its step is reached.
    sending: Option<CausedTime>,
}

/// The state of a connection.
#[derive(Clone, Default)]
struct ConnectionState {
    /// For each of its receives whether it adds.
    reduces: Vec<bool>,
    /// The sends of the message that has not left yet: their bytes, the first slice, their number.
    staged: Option<(Bytes, Slice, usize)>,
    /// Arrivals, one for each send whose message has left.
    arrived: Vec<CausedTime>,
    /// How many receives are done.
    received: usize,
    /// The threadblock that waits for a message.
    receiver: Option<usize>,
}

struct ProgramPlayer<'a> {
    program: &'a Program,
    topology: &'a Topology,
    workers: Vec<ThreadblockProgress>,
    /// For each rank the index of its first threadblock.
    first: Vec<usize>,
    lanes: Vec<ConnectionState>,
    /// The threadblocks that wait for a step.
    waiting: BTreeMap<(usize, StepRef), Vec<usize>>,
    /// Messages that can leave: time, transfer, threadblock.
    open: BinaryHeap<Reverse<(u64, u32, usize)>>,
    free: FreeTimes,
    /// The last message of each link, and of each resource.
    last_of_link: Vec<usize>,
    last_of_resource: Vec<usize>,
    messages: Vec<TimedMessage>,
    causes: Vec<LastWait>,
}

impl<'a> ProgramPlayer<'a> {
    fn new(program: &'a Program, topology: &'a Topology) -> Self {
        let (mut workers, mut first) = (Vec::new(), Vec::with_capacity(program.ranks.len()));
        for (rank, content) in program.ranks.iter().enumerate() {
            first.push(workers.len());
            let blocks = 0..content.threadblocks.len() as u32;
            workers.extend(blocks.map(|threadblock| ThreadblockProgress {
                rank,
                threadblock,
                done: Vec::new(),
                sending: None,
            }));
        }
        let mut lanes = vec![ConnectionState::default(); program.connections.len()];
        let steps = program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps);
        for instruction in steps.map(|step| &step.instruction) {
            if let Some(from) = instruction.receives_from() {
                lanes[from.index()].reduces.push(instruction.reduces());
            }
        }
        Self {
            program,
            topology,
            workers,
            first,
            lanes,
            waiting: BTreeMap::new(),
            open: BinaryHeap::new(),
            free: FreeTimes::new(topology),
            last_of_link: vec![0; topology.links().len()],
            last_of_resource: vec![0; topology.resources().len()],
            messages: Vec::new(),
            causes: Vec::new(),
        }
    }

    fn run(&mut self) {
        for worker in 0..self.workers.len() {
            self.go_on(worker);
        }
        while let Some(Reverse((at, transfer, worker))) = self.open.pop() {
            let Some(ready) = self.workers[worker].sending else { continue };
            let cause = self.departure(worker, ready);
            let start = cause.ready.0.to_bits();
            if start > at {
                self.open.push(Reverse((start, transfer, worker)));
            } else {
                self.depart(worker, cause);
            }
        }
    }

    fn step(&self, worker: usize) -> Option<&'a super::Step> {
        let ThreadblockProgress { rank, threadblock, ref done, .. } = self.workers[worker];
        self.program.ranks[rank].threadblocks[threadblock as usize].steps.get(done.len())
    }

    /// Executes steps until one has to wait.
    fn go_on(&mut self, worker: usize) {
        let mut open = vec![worker];
        while let Some(worker) = open.pop() {
            while let Some(moment) = self.try_step(worker) {
                self.finish(worker, moment, &mut open);
            }
        }
    }

    /// Records that the next step has finished, and collects the threadblocks that can continue.
    fn finish(&mut self, worker: usize, moment: CausedTime, open: &mut Vec<usize>) {
        let ThreadblockProgress { rank, threadblock, ref mut done, .. } = self.workers[worker];
        let step = StepRef { threadblock, step: done.len() as u32 };
        done.push(moment);
        open.extend(self.waiting.remove(&(rank, step)).unwrap_or_default());
    }

    /// When the next step finishes, if that is known; otherwise the event that it waits for will wake this threadblock.
    fn try_step(&mut self, worker: usize) -> Option<CausedTime> {
        if self.workers[worker].sending.is_some() {
            return None;
        }
        let step = self.step(worker)?;
        let rank = self.workers[worker].rank;
        let mut ready = self.workers[worker].done.last().copied().unwrap_or(CausedTime::START);
        for &on in &step.after {
            let other = &self.workers[self.first[rank] + on.threadblock as usize];
            match other.done.get(on.step as usize) {
                Some(&moment) => ready = ready.or_later(moment),
                None => {
                    self.waiting.entry((rank, on)).or_default().push(worker);
                    return None;
                }
            }
        }
        match step.instruction {
            Instruction::Send { to, src } => self.stage(worker, to, src, step.transfer, ready),
            Instruction::Receive { from, .. } | Instruction::ReceiveReduce { from, .. } => {
                let lane = &mut self.lanes[from.index()];
                match lane.arrived.get(lane.received) {
                    Some(&moment) => {
                        lane.received += 1;
                        Some(ready.or_later(moment))
                    }
                    None => {
                        lane.receiver = Some(worker);
                        None
                    }
                }
            }
            Instruction::Copy { .. } | Instruction::Reduce { .. } => Some(ready),
            // The program is unfused.
            Instruction::ReceiveSend { .. } | Instruction::ReceiveReduceSend { .. } => Some(ready),
        }
    }

    /// Adds a send to its message; the last one makes it leave.
    fn stage(
        &mut self,
        worker: usize,
        to: ConnectionId,
        src: Slice,
        transfer: Option<u32>,
        ready: CausedTime,
    ) -> Option<CausedTime> {
        let bytes = self.bytes(self.workers[worker].rank, src);
        let lane = &mut self.lanes[to.index()];
        let (staged, first, sends) = lane.staged.unwrap_or((Bytes(0.0), src, 0));
        lane.staged = Some((staged + bytes, first, sends + 1));
        let ThreadblockProgress { rank, threadblock, ref done, .. } = self.workers[worker];
        let rest = &self.program.ranks[rank].threadblocks[threadblock as usize].steps[done.len() + 1..];
        let next = rest.iter().find(|step| step.instruction.sends_to() == Some(to));
        if transfer.is_some() && next.is_some_and(|next| next.transfer == transfer) {
            return Some(ready);
        }
        self.workers[worker].sending = Some(ready);
        self.open.push(Reverse((ready.at.0.to_bits(), transfer.unwrap_or(u32::MAX), worker)));
        None
    }

    fn bytes(&self, rank: usize, slice: Slice) -> Bytes {
        let parts = self.program.ranks[rank].parts(slice.buffer);
        let parts = &parts[slice.index as usize..(slice.index + slice.count) as usize];
        match &self.program.shape {
            super::PartShape::Equal { .. } => Bytes(self.program.demand.chunk_bytes().0 * parts.len() as f64),
            shape => {
                let size = self.program.demand.request().size_bytes;
                Bytes(parts.iter().map(|&part| shape.length(size, part) as f64).sum())
            }
        }
    }

    fn link_of(&self, worker: usize) -> Option<(ConnectionId, LinkId)> {
        let lane = self.step(worker)?.instruction.sends_to()?;
        Some((lane, self.program.connections[lane.index()].link))
    }

    /// When a message can leave, and what it waits for until then.
    fn departure(&self, worker: usize, ready: CausedTime) -> LastWait {
        let mut cause = ready.cause();
        let Some((_, link)) = self.link_of(worker) else { return cause };
        let mut consider = |free: Micros, wait| {
            if free > cause.ready {
                cause = LastWait { ready: free, wait };
            }
        };
        consider(self.free.link(link), Wait::Link { behind: self.last_of_link[link.index()] });
        for &resource in &self.topology.link(link).resources {
            let behind = self.last_of_resource[resource.index()];
            consider(self.free.resource(resource), Wait::Resource { resource, behind });
        }
        cause
    }

    fn depart(&mut self, worker: usize, cause: LastWait) {
        let Some((id, link)) = self.link_of(worker) else { return };
        let message = self.messages.len();
        let lane = &mut self.lanes[id.index()];
        let Some((bytes, slots, sends)) = lane.staged.take() else { return };
        let start = cause.ready;
        let cost = self.topology.link(link);
        let end = start + cost.transfer_time(bytes);
        let arrival = CausedTime { at: end, by: Some(By::Arrival(message)) };
        let reduces = lane.reduces.get(lane.arrived.len()).copied().unwrap_or(false);
        lane.arrived.extend(std::iter::repeat_n(arrival, sends));
        let receiver = lane.receiver.take();
        let left = start + cost.occupancy(bytes);
        self.free.occupy(self.topology, link, start, bytes);
        self.last_of_link[link.index()] = message;
        cost.resources.iter().for_each(|resource| self.last_of_resource[resource.index()] = message);
        let kind = if reduces { TransferKind::Reduce } else { TransferKind::Copy };
        let (from, to) = (cost.from, cost.to);
        let cargo = Cargo::Place(slots.to_string().into(), slots.index);
        self.messages.push(TimedMessage { from, to, link, start, end, bytes, kind, cargo });
        self.causes.push(cause);
        self.workers[worker].sending = None;
        let mut open = vec![worker];
        self.finish(worker, CausedTime { at: left, by: Some(By::Departure(message)) }, &mut open);
        open.extend(receiver);
        for worker in open {
            self.go_on(worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::schedules::{self, Random};
    use crate::testing::{STANDARD, checked, lowered};
    use schedule::{Collective, VerifiedSchedule};

    /// Checks that a schedule and its program take the same time, with the same messages.
    fn agree(schedule: &VerifiedSchedule, topology: &Arc<Topology>) {
        let played = play(&checked(lowered(schedule, false)), topology).unwrap();
        let stated = Timeline::of(schedule);
        assert!((played.timeline.makespan().0 - stated.makespan().0).abs() < 1e-9);
        let carried = |timeline: &Timeline| {
            let (links, resources) = timeline.usage();
            links.into_iter().chain(resources).map(|usage| (usage.messages, usage.bytes.0.round())).collect::<Vec<_>>()
        };
        assert_eq!(carried(&played.timeline), carried(&stated));
        let CriticalPath { latency, bandwidth, idle, .. } = played.path;
        assert!(((latency + bandwidth + idle).0 - stated.makespan().0).abs() < 1e-9);
        assert_eq!(idle, Micros::ZERO, "a message leaves as soon as it can");
    }

    #[test]
    fn programs_take_as_long_as_their_schedules() {
        for ranks in [2, 3, 5, 8] {
            agree(&schedules::ring_allgather(ranks, 3), &schedules::ring(ranks));
            agree(&schedules::ring_reducescatter(ranks, 2), &schedules::ring(ranks));
            agree(&schedules::ring_allreduce(ranks, 2), &schedules::ring(ranks));
            for collective in STANDARD {
                let demand = schedules::demand(collective, ranks, 2);
                agree(&schedules::direct(&demand), &schedules::clique(ranks));
            }
        }
    }

    #[test]
    fn messages_on_one_link_follow_one_another() {
        let random = &mut Random(41);
        for round in 0..20 {
            let ranks = 2 + round % 6;
            let topology = schedules::random_topology(ranks, random);
            let demand = schedules::random_demand(STANDARD[round % STANDARD.len()], ranks, random);
            let schedule = schedules::random_trees(&topology, &demand, random);
            let played = play(&checked(lowered(&schedule, round % 2 == 0)), &topology).unwrap();
            let mut free = vec![Micros::ZERO; topology.links().len()];
            for message in &played.timeline.messages {
                let (busy, _) = message.occupied(&topology);
                assert!(message.start >= free[message.link.index()]);
                free[message.link.index()] = message.start + busy;
            }
        }
    }

    #[test]
    fn a_missing_link_is_named() {
        let demand = schedules::demand(Collective::AllToAll, 3, 1);
        let program = checked(lowered(&schedules::direct(&demand), false));
        let refused = play(&program, &schedules::ring(3)).unwrap_err();
        assert_eq!(refused.to_string(), "the program sends where the topology has no link: 0 → 2, 1 → 0, 2 → 1");
        let refused = play(&program, &schedules::ring(2)).unwrap_err();
        assert_eq!(refused.pairs.len(), 4);
    }
}
