//! What must happen before what in a plan, and whether that is enough.
//!
//! The principal function is [`judge`]. It replays the plan once, with a vector clock for every threadblock and every
//! port channel of a threadblock:
//!
//! * Operations of a threadblock are done by many threads that meet only at `nop` and `barrier`. So what a data
//!   operation touched is known to be over only after the next of those; `signal`, `wait` and semaphores are done by
//!   single threads (*lanes*), which know of data operations before the last meeting, and what they learn is known to
//!   the others after the next one.
//! * The n-th wait for a counter is after its n-th signal (later by the initial value of a semaphore). Where several
//!   threadblocks signal, only those signals are counted on without which the wait could not pass.
//! * A port does what it is told in order, but later; only its own signals and `flush` tell how far it is.
//! * A packet is after its write; reading it also tells how far the writer was, as with a relaxed signal. Whether the
//!   plan would be right if those told nothing about memory is asked separately ([`Memoryless`]).
//! * Waits never take from each other (enforced), so one order of replay decides about deadlock in all of them.

use super::document::{Plan, Share};
use super::geometry::{Cells, Span};
use super::memory::{Access, Clock, Known, Memory, Pieces, join};
use super::resolve::{Action, Counter, CounterId, Operand, PortRef, Script, Transfer};
use super::violation::{Fault, Location, OpAt, PlanViolation};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The most operations, iterations counted, that are replayed.
const MAX_REPLAY: usize = 1 << 21;

/// The most entries that the clocks of all threadblocks may have.
const MAX_CLOCKS: usize = 1 << 25;

/// Whether relaxed signals and packets order other memory than their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Relaxed {
    /// They do, as on machines of today.
    Orders,
    /// They do not, as their names say.
    Memoryless,
}

/// What the replay found.
pub(super) struct Verdict {
    pub(super) violations: Vec<PlanViolation>,
    /// Sources that a port may still read when the call ends.
    pub(super) unflushed: Vec<OpAt>,
    /// The transfers in an order in which they can happen.
    pub(super) order: Vec<Done>,
}

/// A transfer that was replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    pub(super) at: OpAt,
    /// Which of its operation.
    pub(super) number: u32,
    /// The iteration, inside pipelines.
    pub(super) iteration: Option<u32>,
}

/// Replays a plan.
pub(super) fn judge(plan: &Plan, script: &Script, cells: &Cells, relaxed: Relaxed) -> Verdict {
    let mut judge = match Judge::new(plan, script, cells, relaxed) {
        Ok(judge) => judge,
        Err(violations) => return Verdict { violations, unflushed: Vec::new(), order: Vec::new() },
    };
    judge.run();
    judge.finish()
}

/// An operation to be replayed.
#[derive(Clone, Copy)]
struct Item<'s> {
    at: OpAt,
    action: &'s Action,
    iteration: Option<u32>,
}

/// A threadblock on its way.
struct Block<'s> {
    rank: u32,
    items: Vec<Item<'s>>,
    next: usize,
    /// What all its threads knew when they last met. Its own component is the current epoch.
    base: Rc<Clock>,
    /// What single threads learned since.
    lanes: BTreeMap<u32, Clock>,
    /// What its data operations learned from packets since.
    data: Option<Clock>,
}

impl Block<'_> {
    fn lane(&self, lane: u32) -> &Clock {
        self.lanes.get(&lane).unwrap_or(&self.base)
    }

    /// What its data operations know.
    fn knows(&self) -> &Clock {
        self.data.as_ref().unwrap_or(&self.base)
    }

    /// Everything that any of its threads knows.
    fn all(&self) -> Clock {
        let mut clock = Clock::clone(&self.base);
        self.lanes.values().chain(&self.data).for_each(|other| join(&mut clock, other));
        clock
    }
}

/// A port channel of a threadblock.
#[derive(Clone)]
struct Port {
    component: u32,
    clock: Clock,
}

/// A signal or release.
struct Give {
    block: u32,
    epoch: u32,
    op: u32,
    /// `None` once it was taken, or where it tells nothing.
    clock: Option<Rc<Clock>>,
}

/// A wait or acquire whose signals come from several threadblocks.
struct Take {
    block: u32,
    epoch: u32,
    op: u32,
    /// How many signals it needed, and which of them it was certain of.
    needed: usize,
    certain: Vec<usize>,
}

struct CounterState {
    initial: i64,
    gives: Vec<Give>,
    taken: i64,
    last: Option<Take>,
    /// How many threadblocks give.
    givers: usize,
    /// Takes to be looked at again in the end.
    doubtful: Vec<Take>,
}

struct Judge<'s> {
    cells: &'s Cells,
    script: &'s Script,
    relaxed: Relaxed,
    plan: &'s Plan,
    blocks: Vec<Block<'s>>,
    /// For each rank its threadblocks.
    of_rank: Vec<std::ops::Range<usize>>,
    ports: BTreeMap<(usize, u32), Port>,
    counters: Vec<CounterState>,
    /// Who meets at a barrier of a rank, and how many it asks for.
    barriers: BTreeMap<(u32, u32), (BTreeSet<usize>, u32)>,
    memory: Memory<'s>,
    /// All operations replayed so far, and what their threads knew.
    log: Vec<OpAt>,
    packet_clocks: BTreeMap<u32, Rc<Clock>>,
    /// What each piece of a transfer of packets tells.
    pieces: BTreeMap<u32, Pieces>,
    /// Per rank, all that packets have told it.
    heard: Vec<BTreeSet<(u32, u32)>>,
    /// The last access of each component to each other rank's memory.
    visits: BTreeMap<(u32, u32), (Access, u32, bool)>,
    /// Cells of scratch written before their rank was known to have begun: by which rank.
    unannounced: BTreeSet<(u32, u32)>,
    own_ports: BTreeMap<(u32, u32), Access>,
    violations: Vec<PlanViolation>,
    order: Vec<Done>,
}

impl<'s> Judge<'s> {
    fn new(plan: &'s Plan, script: &'s Script, cells: &'s Cells, relaxed: Relaxed) -> Result<Self, Vec<PlanViolation>> {
        let mut items: Vec<(u32, Vec<Item<'s>>)> = Vec::new();
        let mut of_rank = Vec::with_capacity(script.ranks.len());
        let mut room = MAX_REPLAY;
        for (rank, blocks) in (0..).zip(&script.ranks) {
            let start = items.len();
            for block in blocks {
                items.push((rank, unrolled(block, cells.iterations, &mut room)?));
            }
            of_rank.push(start..items.len());
        }
        let mut ports = BTreeMap::new();
        for (block, (_, items)) in items.iter().enumerate() {
            for channel in items.iter().flat_map(|item| ports_of(item.action)) {
                let component = (ports.len() + of_rank.last().map_or(0, |last| last.end)) as u32;
                ports.entry((block, channel)).or_insert(Port { component, clock: Clock::new() });
            }
        }
        let components = items.len() + ports.len();
        if items.len() * components > MAX_CLOCKS {
            let reason = format!("{} threadblocks are more than can be kept apart", items.len());
            return Err(vec![PlanViolation { at: Location::Plan, fault: Fault::Unsupported { reason } }]);
        }
        ports.values_mut().for_each(|port| port.clock = vec![0; components]);
        let blocks = items.into_iter().enumerate().map(|(number, (rank, items))| {
            let mut base = vec![0; components];
            base[number] = 1;
            Block { rank, items, next: 0, base: Rc::new(base), lanes: BTreeMap::new(), data: None }
        });
        let mut judge = Self {
            cells,
            script,
            relaxed,
            plan,
            blocks: blocks.collect(),
            of_rank,
            ports,
            counters: Vec::new(),
            barriers: BTreeMap::new(),
            memory: Memory::new(cells),
            log: Vec::new(),
            packet_clocks: BTreeMap::new(),
            pieces: BTreeMap::new(),
            heard: vec![BTreeSet::new(); script.ranks.len()],
            visits: BTreeMap::new(),
            unannounced: BTreeSet::new(),
            own_ports: BTreeMap::new(),
            violations: Vec::new(),
            order: Vec::new(),
        };
        judge.count_givers();
        judge.find_barriers();
        Ok(judge)
    }

    fn count_givers(&mut self) {
        let mut givers: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.script.counters.len()];
        for (block, content) in self.blocks.iter().enumerate() {
            for item in &content.items {
                given(item.action).for_each(|id| {
                    givers[id.0 as usize].insert(block);
                });
            }
        }
        let counters = self.script.counters.iter().zip(givers).map(|(counter, givers)| CounterState {
            initial: match counter {
                Counter::Semaphore { initial, .. } => i64::from(*initial),
                Counter::Signals { .. } => 0,
            },
            gives: Vec::new(),
            taken: 0,
            last: None,
            givers: givers.len(),
            doubtful: Vec::new(),
        });
        self.counters = counters.collect();
    }

    fn find_barriers(&mut self) {
        for (number, block) in self.blocks.iter().enumerate() {
            for item in &block.items {
                let Action::Barrier { id, threadblocks } = item.action else { continue };
                let entry = self.barriers.entry((block.rank, *id)).or_insert((BTreeSet::new(), *threadblocks));
                entry.0.insert(number);
                if entry.1 != *threadblocks {
                    let reason =
                        format!("barrier {id} waits for {threadblocks} threadblocks here, for {} elsewhere", entry.1);
                    self.violations.push(PlanViolation { at: Location::Op(item.at), fault: Fault::Invalid { reason } });
                }
            }
        }
        for ((rank, id), (members, asked)) in &self.barriers {
            if members.len() != *asked as usize {
                let reason = format!("barrier {id} waits for {asked} threadblocks, but {} use it", members.len());
                self.violations.push(PlanViolation { at: Location::Gpu(*rank), fault: Fault::Invalid { reason } });
            }
        }
    }
}

/// A threadblock's operations with its loops written out.
fn unrolled<'s>(
    actions: &'s [(OpAt, Action)],
    iterations: u32,
    room: &mut usize,
) -> Result<Vec<Item<'s>>, Vec<PlanViolation>> {
    let mut items = Vec::new();
    for (at, action) in actions {
        let Action::Loop { chunks, body, .. } = action else {
            items.push(Item { at: *at, action, iteration: None });
            *room = room.saturating_sub(1);
            continue;
        };
        let rounds = if body.is_empty() { 0 } else { u64::from(*chunks) * u64::from(iterations) };
        let total = usize::try_from(rounds.saturating_mul(body.len() as u64)).unwrap_or(usize::MAX);
        if total > *room {
            let reason = format!("more than {MAX_REPLAY} operations, with the iterations of pipelines");
            return Err(vec![PlanViolation { at: Location::Op(*at), fault: Fault::Unsupported { reason } }]);
        }
        *room -= total;
        for iteration in 0..rounds as u32 {
            items.extend(body.iter().map(|(at, action)| Item { at: *at, action, iteration: Some(iteration) }));
        }
    }
    Ok(items)
}

/// The port channels that an operation uses.
fn ports_of(action: &Action) -> Vec<u32> {
    match action {
        Action::Give { counters, .. } => counters.iter().filter_map(|&(_, port)| port).collect(),
        Action::Flush { channels } => channels.clone(),
        Action::Transfer { transfers, .. } => {
            transfers.iter().filter_map(|transfer| transfer.port).map(|port| port.channel).collect()
        }
        _ => Vec::new(),
    }
}

/// The counters that an operation adds to.
fn given(action: &Action) -> impl Iterator<Item = CounterId> + '_ {
    let (gives, transfers): (&[(CounterId, Option<u32>)], &[Transfer]) = match action {
        Action::Give { counters, .. } => (counters, &[]),
        Action::Transfer { transfers, .. } => (&[], transfers),
        _ => (&[], &[]),
    };
    let by_ports = transfers.iter().filter_map(|transfer| transfer.port).filter_map(|port| port.signal);
    gives.iter().map(|&(id, _)| id).chain(by_ports)
}

/// The replay.
impl<'s> Judge<'s> {
    /// Goes on until nothing can. Waits whose signals come from several threadblocks come last, when all that could
    /// signal without them has.
    fn run(&mut self) {
        if !self.violations.is_empty() {
            return;
        }
        loop {
            let mut moved = false;
            for block in 0..self.blocks.len() {
                while self.step(block, false) {
                    moved = true;
                }
            }
            if !moved && !(0..self.blocks.len()).any(|block| self.step(block, true)) {
                return;
            }
        }
    }

    /// Does the next operation of a threadblock, if it can be done.
    fn step(&mut self, block: usize, doubtful: bool) -> bool {
        let Some(&item) = self.blocks[block].items.get(self.blocks[block].next) else { return false };
        let done = match item.action {
            Action::Sync => {
                self.meet(&[block]);
                true
            }
            Action::Barrier { id, .. } => return self.barrier(self.blocks[block].rank, *id),
            Action::Give { counters, relaxed } => {
                self.log.push(item.at);
                for (lane, &(counter, port)) in (0..).zip(counters) {
                    self.give(block, lane, counter, port, *relaxed);
                }
                true
            }
            Action::Take { counters, relaxed } => self.take(block, item.at, counters, *relaxed, doubtful),
            Action::Flush { channels } => {
                for (lane, &channel) in (0..).zip(channels) {
                    self.flush(block, lane, channel);
                }
                true
            }
            Action::Transfer { transfers, share, .. } => self.transfers(block, item, transfers, *share),
            Action::Loop { .. } => true,
        };
        if done {
            self.blocks[block].next += 1;
        }
        done
    }

    /// All threads of the given threadblocks meet.
    fn meet(&mut self, members: &[usize]) {
        let mut clock = self.blocks[members[0]].all();
        members[1..].iter().for_each(|&member| join(&mut clock, &self.blocks[member].all()));
        members.iter().for_each(|&member| clock[member] = self.blocks[member].base[member] + 1);
        let clock = Rc::new(clock);
        for &member in members {
            let block = &mut self.blocks[member];
            block.base = clock.clone();
            block.lanes.clear();
            block.data = None;
        }
    }

    /// Passes a barrier if all who meet there have come.
    fn barrier(&mut self, rank: u32, id: u32) -> bool {
        let Some((members, _)) = self.barriers.get(&(rank, id)) else { return false };
        let members: Vec<usize> = members.iter().copied().collect();
        let here = |&member: &usize| {
            let block = &self.blocks[member];
            let item = block.items.get(block.next);
            item.is_some_and(|item| matches!(item.action, Action::Barrier { id: other, .. } if *other == id))
        };
        if !members.iter().all(here) {
            return false;
        }
        self.meet(&members);
        members.iter().for_each(|&member| self.blocks[member].next += 1);
        true
    }

    fn give(&mut self, block: usize, lane: u32, counter: CounterId, port: Option<u32>, relaxed: bool) {
        let clock = match port {
            None => self.blocks[block]
                .lanes
                .get(&lane)
                .map_or_else(|| self.blocks[block].base.clone(), |lane| Rc::new(lane.clone())),
            Some(channel) => Rc::new(self.told(block, lane, channel)),
        };
        let tells = !(relaxed && self.relaxed == Relaxed::Memoryless);
        let epoch = self.blocks[block].base[block];
        let op = self.log.len() as u32 - 1;
        let state = &mut self.counters[counter.0 as usize];
        state.gives.push(Give { block: block as u32, epoch, op, clock: tells.then_some(clock) });
    }

    /// A port hears of what a lane knows; gives what it will have done after all that it was told.
    fn told(&mut self, block: usize, lane: u32, channel: u32) -> Clock {
        let Some(port) = self.ports.get_mut(&(block, channel)) else {
            return Clock::clone(self.blocks[block].lane(lane));
        };
        join(&mut port.clock, self.blocks[block].lane(lane));
        port.clock[port.component as usize] += 1;
        port.clock.clone()
    }

    fn flush(&mut self, block: usize, lane: u32, channel: u32) {
        let mut clock = self.told(block, lane, channel);
        join(&mut clock, self.blocks[block].lane(lane));
        self.blocks[block].lanes.insert(lane, clock);
    }

    fn take(&mut self, block: usize, at: OpAt, counters: &[CounterId], relaxed: bool, doubtful: bool) -> bool {
        for id in counters {
            let state = &self.counters[id.0 as usize];
            let several = state.givers > 1;
            if state.initial + state.gives.len() as i64 <= state.taken || (several && !doubtful) {
                return false;
            }
        }
        self.log.push(at);
        for (lane, &id) in (0..).zip(counters) {
            let learned = self.taken(block, at, id, lane);
            if relaxed && self.relaxed == Relaxed::Memoryless {
                continue;
            }
            let mut clock = self.blocks[block].lane(lane).clone();
            learned.iter().for_each(|other| join(&mut clock, other));
            self.blocks[block].lanes.insert(lane, clock);
        }
        true
    }

    /// Takes one from a counter; what that tells.
    fn taken(&mut self, block: usize, at: OpAt, id: CounterId, lane: u32) -> Vec<Rc<Clock>> {
        let epoch = self.blocks[block].base[block];
        let op = self.log.len() as u32 - 1;
        let state = &mut self.counters[id.0 as usize];
        state.taken += 1;
        let needed = usize::try_from(state.taken - state.initial).unwrap_or(0);
        if let Some(last) = &state.last
            && last.block as usize != block
            && self.blocks[block].lanes.get(&lane).unwrap_or(&self.blocks[block].base)[last.block as usize]
                <= last.epoch
        {
            let what = self.script.counters[id.0 as usize].to_string();
            let fault = Fault::Ambiguous { what, which: "wait", other: self.log[last.op as usize] };
            self.violations.push(PlanViolation { at: Location::Op(at), fault });
        }
        let take = |certain| Take { block: block as u32, epoch, op, needed, certain };
        state.last = Some(take(Vec::new()));
        if needed == 0 {
            return Vec::new();
        }
        if state.givers <= 1 {
            // Each was taken in turn, and whoever takes knows what the takers before knew.
            return state.gives[needed - 1].clock.take().into_iter().collect();
        }
        // Without this one and those after it, would there be enough?
        let gives = &state.gives;
        let certain = |&number: &usize| gives.iter().filter(|other| !gives[number].is_before(other)).count() < needed;
        let certain: Vec<usize> = (0..gives.len()).filter(certain).collect();
        let clocks = certain.iter().filter_map(|&number| gives[number].clock.clone()).collect();
        let known = self.blocks[block].lane(lane);
        let news = |&number: &usize| known[gives[number].block as usize] <= gives[number].epoch;
        state.doubtful.push(take(certain.into_iter().filter(news).collect()));
        clocks
    }
}

impl Give {
    /// Whether the other can only be after this one; so it is of itself.
    fn is_before(&self, other: &Self) -> bool {
        let later = self.block == other.block && other.op >= self.op;
        later || other.clock.as_ref().is_some_and(|clock| clock[self.block as usize] > self.epoch)
    }
}

impl Take {
    /// Whether a signal can only be after this.
    fn is_before(&self, give: &Give) -> bool {
        let later = self.block == give.block && give.op > self.op;
        later || give.clock.as_ref().is_some_and(|clock| clock[self.block as usize] > self.epoch)
    }
}

/// Data.
impl Judge<'_> {
    fn spans(&self, operands: &[Operand], share: Option<Share>, iteration: Option<u32>) -> Vec<Span> {
        let span = |&operand: &Operand| match iteration {
            Some(iteration) => self.cells.slice(operand, iteration),
            None => self.cells.whole(operand, share),
        };
        operands.iter().map(span).collect()
    }

    fn transfers(&mut self, block: usize, item: Item<'_>, transfers: &[Transfer], share: Option<Share>) -> bool {
        let spans: Vec<(Vec<Span>, Vec<Span>)> = transfers
            .iter()
            .map(|transfer| {
                let spans = |operands| self.spans(operands, share, item.iteration);
                (spans(&transfer.sources), spans(&transfer.targets))
            })
            .collect();
        let awaited = |span: &&Span| span.awaited;
        if spans.iter().flat_map(|(sources, _)| sources).filter(awaited).any(|&span| !self.memory.arrived(span)) {
            return false;
        }
        for (number, (transfer, (sources, targets))) in (0..).zip(transfers.iter().zip(&spans)) {
            self.log.push(item.at);
            sources.iter().filter(awaited).for_each(|&span| self.hear(block, span));
            self.order.push(Done { at: item.at, number, iteration: item.iteration });
            self.transfer(block, item, transfer.port, sources, targets);
        }
        true
    }

    /// A packet tells how far its writer was.
    fn hear(&mut self, block: usize, span: Span) {
        if self.relaxed == Relaxed::Memoryless {
            return;
        }
        let mut writers: Vec<u32> = self.memory.writers(span).map(|(writer, _)| writer).collect();
        writers.dedup();
        let mut clock = self.blocks[block].knows().clone();
        for clock_of in writers.iter().filter_map(|writer| self.packet_clocks.get(writer)) {
            join(&mut clock, clock_of);
        }
        self.blocks[block].data = Some(clock);
    }

    fn transfer(&mut self, block: usize, item: Item<'_>, port: Option<PortRef>, sources: &[Span], targets: &[Span]) {
        let op = self.log.len() as u32 - 1;
        let (component, clock) = match port {
            None => (block as u32, self.blocks[block].knows().clone()),
            Some(port) => {
                let lane = self.blocks[block].lane(port.lane).clone();
                let Some(own) = self.ports.get_mut(&(block, port.channel)) else { return };
                join(&mut own.clock, &lane);
                (own.component, own.clock.clone())
            }
        };
        let epoch = clock[component as usize];
        let pieces = self.told_by_pieces(block, op, sources, targets);
        let known = Known { clock: &clock, pieces: &pieces };
        let packets = sources.iter().chain(targets).any(|span| span.packet);
        self.overlaps(item.at, sources, targets);
        for (spans, writes) in [(sources, false), (targets, true)] {
            for &span in spans {
                // The switch stores to its own rank too, even what is there already.
                if writes
                    && sources
                        .iter()
                        .any(|source| sources.len() == 1 && source.first == span.first && source.packet == span.packet)
                {
                    continue;
                }
                let pattern = (span, packets);
                let access = Access { component, epoch, op, pattern, iteration: item.iteration };
                self.visit(block, item.at, span, access, &clock, writes);
                let conflict = match writes {
                    true => self.memory.write(span, access, known),
                    false => self.memory.read(span, access, known),
                };
                if let Some(conflict) = conflict {
                    let other = self.log[conflict.other.op as usize];
                    let fault = conflict.fault(&self.memory, writes, span.packet, other);
                    self.violations.push(PlanViolation { at: Location::Op(item.at), fault });
                }
            }
        }
        if !pieces.is_empty() {
            self.pieces.insert(op, pieces);
        }
        if targets.iter().any(|span| span.packet) {
            self.packet_clocks.insert(op, Rc::new(clock));
        }
        if let Some(PortRef { channel, lane, signal, flush }) = port {
            // What a port is told, it does in order.
            if let Some(own) = self.ports.get_mut(&(block, channel)) {
                own.clock[component as usize] += 1;
            }
            if let Some(counter) = signal {
                self.give(block, lane, counter, Some(channel), false);
            }
            if flush {
                self.flush(block, lane, channel);
            }
        }
    }

    /// What the pieces of a transfer know and tell: themselves, and what made the packets that they read.
    fn told_by_pieces(&mut self, block: usize, op: u32, sources: &[Span], targets: &[Span]) -> Pieces {
        let all = || sources.iter().chain(targets);
        if !all().any(|span| span.packet) {
            return Pieces::new();
        }
        let count = all().map(|span| span.count).max().unwrap_or(0);
        let mut told: Pieces = (0..count).map(|piece| vec![(op, piece)]).collect();
        for span in sources.iter().filter(|span| span.awaited) {
            for (own, (writer, piece)) in told.iter_mut().zip(self.memory.writers(*span)) {
                let known = self.pieces.get(&writer).and_then(|pieces| pieces.get(piece as usize));
                own.extend(known.into_iter().flatten());
            }
        }
        let heard = &mut self.heard[self.blocks[block].rank as usize];
        for pieces in &mut told {
            pieces.sort_unstable();
            pieces.dedup();
            heard.extend(pieces.iter().copied());
        }
        told
    }

    /// Operands must be the same chunks or others: threads do not wait for each other within an operation.
    fn overlaps(&mut self, at: OpAt, sources: &[Span], targets: &[Span]) {
        let shifted =
            |a: &Span, b: &Span| a.overlaps(*b) && (a.first, a.count, a.packet) != (b.first, b.count, b.packet);
        let twice = |(index, a): (usize, &Span)| targets[..index].iter().any(|b| a.overlaps(*b));
        let wrong = targets.iter().any(|target| sources.iter().any(|source| shifted(source, target)));
        if wrong || targets.iter().enumerate().any(twice) {
            let ops = &self.plan.gpus[at.rank as usize].threadblocks[at.threadblock as usize].ops;
            let outer = &ops[at.op as usize];
            let inner = at.inner.and_then(|inner| outer.ops.as_ref()?.get(inner as usize));
            let op = inner.unwrap_or(outer).name;
            self.violations.push(PlanViolation { at: Location::Op(at), fault: Fault::Overlap { op } });
        }
    }

    /// Rules about other ranks' memory.
    fn visit(&mut self, block: usize, at: OpAt, span: Span, access: Access, clock: &Clock, writes: bool) {
        let own = self.blocks[block].rank;
        let owner = self.cells.rank_of(span.first);
        if owner == own {
            if access.component as usize >= self.blocks.len() {
                self.own_ports.insert((own, access.component), access);
            }
            return;
        }
        let begun = self.of_rank[owner as usize].clone().any(|other| clock[other] > 0);
        let verb = if writes { "writes" } else { "reads" };
        if !begun && self.cells.is_scratch(span.first) {
            span.cells().for_each(|cell| {
                self.unannounced.insert((cell, own));
            });
        } else if !begun && self.relaxed == Relaxed::Orders {
            let chunk = self.cells.name(span.first, span.packet);
            self.violations
                .push(PlanViolation { at: Location::Op(at), fault: Fault::BeforeStart { access: verb, chunk } });
        }
        if !(writes && span.packet) {
            self.visits.insert((owner, access.component), (access, span.first, writes));
        }
    }
}

/// The end.
impl Judge<'_> {
    fn finish(mut self) -> Verdict {
        let stuck = self.stuck();
        if self.violations.is_empty() && !stuck.is_empty() {
            self.violations = stuck;
        } else if self.violations.is_empty() && self.relaxed == Relaxed::Orders {
            self.doubts();
            self.leftovers();
            let ends = self.ends();
            self.after_end(&ends);
            self.next_call(&ends);
            self.violations.sort_by(|a, b| a.at.cmp(&b.at));
        }
        let ends = self.ends();
        let unflushed = self
            .own_ports
            .iter()
            .filter(|((rank, component), access)| ends[*rank as usize][*component as usize] <= access.epoch);
        let unflushed = unflushed.map(|(_, access)| self.log[access.op as usize]).collect();
        self.violations.dedup();
        Verdict { violations: self.violations, unflushed, order: self.order }
    }

    /// What the threadblocks that did not finish wait for.
    fn stuck(&self) -> Vec<PlanViolation> {
        let waiting = self.blocks.iter().filter_map(|block| block.items.get(block.next));
        let violation = |item: &Item<'_>| {
            let what = match item.action {
                Action::Take { counters, .. } => {
                    let empty = counters.iter().find(|id| {
                        let state = &self.counters[id.0 as usize];
                        state.initial + state.gives.len() as i64 <= state.taken
                    });
                    empty
                        .or(counters.first())
                        .map_or(String::new(), |id| self.script.counters[id.0 as usize].to_string())
                }
                Action::Barrier { id, .. } => format!("the other threadblocks at barrier {id}"),
                _ => "packets that nobody writes before".into(),
            };
            PlanViolation { at: Location::Op(item.at), fault: Fault::Deadlock { what } }
        };
        waiting.map(violation).collect()
    }

    /// Waits that were certain of a signal must be so whatever signals came later: what might stand in for it is after
    /// the signal or after the wait.
    fn doubts(&mut self) {
        for (counter, state) in self.script.counters.iter().zip(&self.counters) {
            for take in &state.doubtful {
                let free = |give: &&Give| !take.is_before(give);
                let rivals = |&number: &usize| {
                    let rivals = state.gives.iter().filter(free).filter(|other| !state.gives[number].is_before(other));
                    rivals.clone().nth(take.needed.saturating_sub(1)).map(|rival| rival.op)
                };
                if let Some(rival) = take.certain.iter().find_map(rivals) {
                    let other = self.log[rival as usize];
                    let fault = Fault::Ambiguous { what: counter.to_string(), which: "signal", other };
                    self.violations.push(PlanViolation { at: Location::Op(self.log[take.op as usize]), fault });
                }
            }
        }
    }

    /// Counters outlive a call, so each must end as it began.
    fn leftovers(&mut self) {
        for (counter, state) in self.script.counters.iter().zip(&self.counters) {
            let left = state.gives.len() as i64 - state.taken;
            if left != 0 {
                let at = match counter {
                    Counter::Signals { to, .. } => Location::Gpu(*to),
                    Counter::Semaphore { rank, .. } => Location::Gpu(*rank),
                };
                let fault = Fault::Leftover { what: counter.to_string(), left };
                self.violations.push(PlanViolation { at, fault });
            }
        }
    }

    /// What is over when each rank's call ends.
    fn ends(&self) -> Vec<Clock> {
        let components = self.blocks.len() + self.ports.len();
        let end = |blocks: &std::ops::Range<usize>| {
            let mut clock = vec![0; components];
            for block in blocks.clone() {
                join(&mut clock, &self.blocks[block].all());
                clock[block] = self.blocks[block].base[block] + 1;
            }
            clock
        };
        self.of_rank.iter().map(end).collect()
    }

    /// Nobody may touch a rank's memory when its call may have ended.
    fn after_end(&mut self, ends: &[Clock]) {
        let verb = |writes| if writes { "writes" } else { "reads" };
        for (&(owner, component), &(access, cell, writes)) in &self.visits {
            if ends[owner as usize][component as usize] <= access.epoch {
                let fault = Fault::AfterEnd { access: verb(writes), chunk: self.cells.name(cell, false) };
                let at = Location::Op(self.log[access.op as usize]);
                self.violations.push(PlanViolation { at, fault });
            }
        }
        let unread: Vec<(u32, Access)> = self.memory.unread_packets().collect();
        for (cell, access) in unread {
            let writer = self.log[access.op as usize];
            if writer.rank != self.cells.rank_of(cell) {
                let fault = Fault::AfterEnd { access: "writes", chunk: self.cells.name(cell, true) };
                self.violations.push(PlanViolation { at: Location::Op(writer), fault });
            }
        }
    }

    /// Scratch that is written before its rank is known to have begun: the rank must be done with what the call
    /// before left there. With two halves used in turn, that is the call before the last.
    fn next_call(&mut self, ends: &[Clock]) {
        for &(cell, writer) in &self.unannounced {
            let (owner, end) = (self.cells.rank_of(cell), &ends[writer as usize]);
            let last = self.memory.last(cell).find(|access| match self.plan.use_double_scratch_buffer {
                true => !self.of_rank[owner as usize].clone().any(|block| end[block] > 0),
                false => {
                    let over = end[access.component as usize] > access.epoch
                        || self.heard[writer as usize].contains(&(access.op, access.piece(cell)));
                    self.log[access.op as usize].rank != writer && !over
                }
            });
            if let Some(access) = last {
                let other = self.log[access.op as usize];
                let writes = self.memory.last(cell).find(|access| self.log[access.op as usize].rank == writer);
                let at = writes.map_or(Location::Gpu(writer), |access| Location::Op(self.log[access.op as usize]));
                let fault = Fault::NextCall { chunk: self.cells.name(cell, false), other };
                self.violations.push(PlanViolation { at, fault });
            }
        }
    }
}
