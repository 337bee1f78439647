//! The happens-before relation of a plan, and whether it is strong enough.
//!
//! The principal function is [`judge`]. It replays the plan once, with a vector clock for every threadblock and every
//! port channel of a threadblock:
//!
//! * A threadblock executes its operations with many threads, which are synchronized only at `nop` and `barrier`. So the
//!   accesses of a data operation are certainly over only after the next of these. `signal`, `wait` and semaphores are executed
//!   by single threads (*lanes*). A lane knows of data operations before the last synchronization, and other threads get
//!   its knowledge at the next one.
//! * The n-th wait for a counter comes after its n-th signal (later by the initial value of a semaphore). If several
//!   threadblocks signal, a wait is certain only of those signals without which it could not pass.
//! * A port executes its tasks in order, but later; only its own signals and `flush` show how far it is.
//! * A read of a packet comes after its write; it also carries the knowledge of the writer, like a relaxed signal. A separate
//!   replay asks whether the plan would be correct if packets and relaxed signals carried no such knowledge ([`Memoryless`]).
//! * Waits never take signals from each other (this is checked), so one order of replay finds a deadlock of any order.

mod data;
mod end;
mod replay;

use super::document::ExecutionPlan;
use super::geometry::Cells;
use super::memory::{Access, Pieces, PlanMemory, VectorClock, join};
use super::resolve::{Counter, CounterId, OperandTransfer, OperationEffect, Script};
use super::violation::{OpAt, PlanFault, PlanLocation, PlanViolation};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The most operations, iterations counted, that are replayed.
const MAX_REPLAY: usize = 1 << 21;

/// The most entries that the clocks of all threadblocks may have.
const MAX_CLOCKS: usize = 1 << 25;

/// Whether relaxed signals and packets order accesses to other memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RelaxedOrdering {
    /// They do, as on today's machines.
    Orders,
    /// They do not, as their names say.
    Memoryless,
}

/// The result of the replay.
pub(super) struct ReplayVerdict {
    pub(super) violations: Vec<PlanViolation>,
    /// Sources that a port may still read when the call ends.
    pub(super) unflushed: Vec<OpAt>,
    /// The transfers in a possible order.
    pub(super) order: Vec<Done>,
}

/// A transfer that was replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    pub(super) at: OpAt,
    /// Its number in its operation.
    pub(super) number: u32,
    /// The iteration, inside pipelines.
    pub(super) iteration: Option<u32>,
}

/// Replays a plan.
pub(super) fn judge(plan: &ExecutionPlan, script: &Script, cells: &Cells, relaxed: RelaxedOrdering) -> ReplayVerdict {
    let mut judge = match PlanReplay::new(plan, script, cells, relaxed) {
        Ok(judge) => judge,
        Err(violations) => return ReplayVerdict { violations, unflushed: Vec::new(), order: Vec::new() },
    };
    judge.run();
    judge.finish()
}

/// An operation to be replayed.
#[derive(Clone, Copy)]
struct ReplayedOperation<'s> {
    at: OpAt,
    action: &'s OperationEffect,
    iteration: Option<u32>,
}

/// The state of a threadblock.
struct ThreadblockState<'s> {
    rank: u32,
    items: Vec<ReplayedOperation<'s>>,
    next: usize,
    /// The knowledge of all its threads at their last synchronization. Its own component is the current epoch.
    base: Rc<VectorClock>,
    /// The knowledge of single threads since then.
    lanes: BTreeMap<u32, VectorClock>,
    /// The knowledge that its data operations got from packets since then.
    data: Option<VectorClock>,
}

impl ThreadblockState<'_> {
    fn lane(&self, lane: u32) -> &VectorClock {
        self.lanes.get(&lane).unwrap_or(&self.base)
    }

    /// The knowledge of its data operations.
    fn knows(&self) -> &VectorClock {
        self.data.as_ref().unwrap_or(&self.base)
    }

    /// The knowledge of all its threads together.
    fn all(&self) -> VectorClock {
        let mut clock = VectorClock::clone(&self.base);
        self.lanes.values().chain(&self.data).for_each(|other| join(&mut clock, other));
        clock
    }
}

/// A port channel of a threadblock.
#[derive(Clone)]
struct PortState {
    component: u32,
    clock: VectorClock,
}

/// A signal or release.
struct Give {
    block: u32,
    epoch: u32,
    op: u32,
    /// `None` after it was taken, or if it carries no knowledge.
    clock: Option<Rc<VectorClock>>,
}

/// A wait or acquire whose signals come from several threadblocks.
struct Take {
    block: u32,
    epoch: u32,
    op: u32,
    /// The number of signals that it needed, and those that it was certain of.
    needed: usize,
    certain: Vec<usize>,
}

struct CounterState {
    initial: i64,
    gives: Vec<Give>,
    taken: i64,
    last: Option<Take>,
    /// The number of threadblocks that give.
    givers: usize,
    /// Takes to be checked again at the end.
    doubtful: Vec<Take>,
}

struct PlanReplay<'s> {
    cells: &'s Cells,
    script: &'s Script,
    relaxed: RelaxedOrdering,
    plan: &'s ExecutionPlan,
    blocks: Vec<ThreadblockState<'s>>,
    /// For each rank its threadblocks.
    of_rank: Vec<std::ops::Range<usize>>,
    ports: BTreeMap<(usize, u32), PortState>,
    counters: Vec<CounterState>,
    /// The threadblocks that have arrived at a barrier of a rank, and the number that it waits for.
    barriers: BTreeMap<(u32, u32), (BTreeSet<usize>, u32)>,
    memory: PlanMemory<'s>,
    /// All operations replayed so far, and the knowledge of their threads.
    log: Vec<OpAt>,
    packets: Packets,
    remote: RemoteAccesses,
    violations: Vec<PlanViolation>,
    order: Vec<Done>,
}

/// The knowledge that packets carry.
struct Packets {
    /// The knowledge of the writer of each transfer of packets.
    clocks: BTreeMap<u32, Rc<VectorClock>>,
    /// The knowledge that each piece of a transfer of packets carries.
    pieces: BTreeMap<u32, Pieces>,
    /// For each rank, all knowledge that it got from packets.
    heard: Vec<BTreeSet<(u32, u32)>>,
}

/// Accesses for which the end of the call, or the next call, may come too early.
#[derive(Default)]
struct RemoteAccesses {
    /// The last access of each component to each other rank's memory.
    last: BTreeMap<(u32, u32), (Access, u32, bool)>,
    /// Cells of scratch written before their rank was known to have begun: by which rank.
    unannounced: BTreeSet<(u32, u32)>,
    /// The last access of each port to the memory of its own rank.
    own_ports: BTreeMap<(u32, u32), Access>,
}

impl<'s> PlanReplay<'s> {
    fn new(
        plan: &'s ExecutionPlan,
        script: &'s Script,
        cells: &'s Cells,
        relaxed: RelaxedOrdering,
    ) -> Result<Self, Vec<PlanViolation>> {
        let mut items: Vec<(u32, Vec<ReplayedOperation<'s>>)> = Vec::new();
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
                ports.entry((block, channel)).or_insert(PortState { component, clock: VectorClock::new() });
            }
        }
        let components = items.len() + ports.len();
        if items.len() * components > MAX_CLOCKS {
            let reason = format!("{} threadblocks are more than can be kept apart", items.len());
            return Err(vec![PlanViolation { at: PlanLocation::Plan, fault: PlanFault::Unsupported { reason } }]);
        }
        ports.values_mut().for_each(|port| port.clock = vec![0; components]);
        let blocks = items.into_iter().enumerate().map(|(number, (rank, items))| {
            let mut base = vec![0; components];
            base[number] = 1;
            ThreadblockState { rank, items, next: 0, base: Rc::new(base), lanes: BTreeMap::new(), data: None }
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
            memory: PlanMemory::new(cells),
            log: Vec::new(),
            packets: Packets {
                clocks: BTreeMap::new(),
                pieces: BTreeMap::new(),
                heard: vec![BTreeSet::new(); script.ranks.len()],
            },
            remote: RemoteAccesses::default(),
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
                let OperationEffect::Barrier { id, threadblocks } = item.action else { continue };
                let entry = self.barriers.entry((block.rank, *id)).or_insert((BTreeSet::new(), *threadblocks));
                entry.0.insert(number);
                if entry.1 != *threadblocks {
                    let reason =
                        format!("barrier {id} waits for {threadblocks} threadblocks here, for {} elsewhere", entry.1);
                    self.violations
                        .push(PlanViolation { at: PlanLocation::Op(item.at), fault: PlanFault::Invalid { reason } });
                }
            }
        }
        for ((rank, id), (members, asked)) in &self.barriers {
            if members.len() != *asked as usize {
                let reason = format!("barrier {id} waits for {asked} threadblocks, but {} use it", members.len());
                self.violations
                    .push(PlanViolation { at: PlanLocation::Gpu(*rank), fault: PlanFault::Invalid { reason } });
            }
        }
    }
}

/// The operations of a threadblock with its loops unrolled.
fn unrolled<'s>(
    actions: &'s [(OpAt, OperationEffect)],
    iterations: u32,
    room: &mut usize,
) -> Result<Vec<ReplayedOperation<'s>>, Vec<PlanViolation>> {
    let mut items = Vec::new();
    for (at, action) in actions {
        let OperationEffect::Loop { chunks, body, .. } = action else {
            items.push(ReplayedOperation { at: *at, action, iteration: None });
            *room = room.saturating_sub(1);
            continue;
        };
        let rounds = if body.is_empty() { 0 } else { u64::from(*chunks) * u64::from(iterations) };
        let total = usize::try_from(rounds.saturating_mul(body.len() as u64)).unwrap_or(usize::MAX);
        if total > *room {
            let reason = format!("more than {MAX_REPLAY} operations, with the iterations of pipelines");
            return Err(vec![PlanViolation { at: PlanLocation::Op(*at), fault: PlanFault::Unsupported { reason } }]);
        }
        *room -= total;
        for iteration in 0..rounds as u32 {
            items.extend(body.iter().map(|(at, action)| ReplayedOperation {
                at: *at,
                action,
                iteration: Some(iteration),
            }));
        }
    }
    Ok(items)
}

/// The port channels that an operation uses.
fn ports_of(action: &OperationEffect) -> Vec<u32> {
    match action {
        OperationEffect::Give { counters, .. } => counters.iter().filter_map(|&(_, port)| port).collect(),
        OperationEffect::Flush { channels } => channels.clone(),
        OperationEffect::Transfer { transfers, .. } => {
            transfers.iter().filter_map(|transfer| transfer.port).map(|port| port.channel).collect()
        }
        _ => Vec::new(),
    }
}

/// The counters that an operation adds to.
fn given(action: &OperationEffect) -> impl Iterator<Item = CounterId> + '_ {
    let (gives, transfers): (&[(CounterId, Option<u32>)], &[OperandTransfer]) = match action {
        OperationEffect::Give { counters, .. } => (counters, &[]),
        OperationEffect::Transfer { transfers, .. } => (&[], transfers),
        _ => (&[], &[]),
    };
    let by_ports = transfers.iter().filter_map(|transfer| transfer.port).filter_map(|port| port.signal);
    gives.iter().map(|&(id, _)| id).chain(by_ports)
}
