//! The action of each operation of a plan, with all references resolved.
//!
//! The principal type is [`Script`]: for each threadblock, actions on counters and on chunks of any rank. Every data
//! operation of MSCCL++ becomes [`OperandTransfer`]s of one kind: the reduction of all sources is written to all
//! targets, whichever ranks own them.
//!
//! The meaning of operations follows the kernels (`src/core/include/execution_kernel.hpp`). Where the kernels
//! contradict the language that writes plans, the language decides: in the kernels `get` exchanges its two offsets,
//! `flush` flushes nothing, and `reduce_op` is ignored.

mod operands;
mod reader;

use super::document::{ChannelType, ExecutionPlan, Gpu, Operation, PlanBuffer, Share};
use super::violation::{OpAt, PlanFault, PlanLocation, PlanViolation};
use reader::Reader;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A counter: signals of one channel in one direction, or a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CounterId(pub(super) u32);

/// The kind of a counter, for messages, and its initial value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Counter {
    /// Signals from a rank to a rank over their `ordinal`-th channel of a type.
    Signals { channel: ChannelType, from: u32, to: u32, ordinal: u32 },
    /// A semaphore of a rank.
    Semaphore { rank: u32, index: u32, initial: i32 },
}

impl std::fmt::Display for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signals { channel, from, to, ordinal } => {
                write!(f, "signals from rank {from} to rank {to} on their {channel} channel {ordinal}")
            }
            Self::Semaphore { rank, index, .. } => write!(f, "semaphore {index} of rank {rank}"),
        }
    }
}

/// Chunks of a rank's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operand {
    pub(super) rank: u32,
    pub(super) space: PlanBuffer,
    pub(super) index: u32,
    pub(super) size: u32,
    /// Packets, which take twice the room of their data.
    pub(super) packet: bool,
    /// Packets whose flags the reader waits for.
    pub(super) awaited: bool,
}

/// Writes the reduction of all sources to all targets.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct OperandTransfer {
    pub(super) sources: SmallVec<[Operand; 2]>,
    pub(super) targets: SmallVec<[Operand; 2]>,
    /// The port that does it, if the threadblock only starts it.
    pub(super) port: Option<PortRef>,
}

/// A port channel as a threadblock uses it: the lane that starts it, and its tasks besides the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PortRef {
    /// The rank's port channel.
    pub(super) channel: u32,
    /// The thread that starts it.
    pub(super) lane: u32,
    /// The signal after the data.
    pub(super) signal: Option<CounterId>,
    /// Whether the threadblock waits until all is done.
    pub(super) flush: bool,
}

/// The effect of an operation.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum OperationEffect {
    /// Synchronizes the threads of the threadblock.
    Sync,
    /// Synchronizes the threads of several threadblocks.
    Barrier { id: u32, threadblocks: u32 },
    /// Each lane adds one to a counter; if a port does it, after its earlier tasks.
    Give { counters: Vec<(CounterId, Option<u32>)>, relaxed: bool },
    /// Each lane waits for one more of a counter.
    Take { counters: Vec<CounterId>, relaxed: bool },
    /// Each lane waits for a port channel.
    Flush { channels: Vec<u32> },
    /// Data moves.
    Transfer { transfers: Vec<OperandTransfer>, share: Option<Share>, packets: bool },
    /// The body, over `chunks` chunks, `unit` bytes at a time.
    Loop { unit: u32, chunks: u32, body: Vec<(OpAt, OperationEffect)> },
}

/// All threadblocks' actions.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Script {
    /// Per rank, per threadblock.
    pub(super) ranks: Vec<Vec<Vec<(OpAt, OperationEffect)>>>,
    pub(super) counters: Vec<Counter>,
}

/// Resolves every reference of a plan.
pub(super) fn resolve(plan: &ExecutionPlan) -> Result<Script, Vec<PlanViolation>> {
    let mut resolver = PlanResolver { plan, ranks: Vec::new(), counters: BTreeMap::new(), violations: Vec::new() };
    for (rank, gpu) in (0..).zip(&plan.gpus) {
        let ways = resolver.ways(rank, gpu);
        resolver.ranks.push(ways);
    }
    resolver.semaphores();
    let mut ranks = Vec::with_capacity(plan.gpus.len());
    for (rank, gpu) in (0..).zip(&plan.gpus) {
        let blocks = (0..).zip(&gpu.threadblocks).map(|(number, block)| {
            let at = OpAt { rank, threadblock: number, op: 0, inner: None };
            resolver.threadblock_refs(at);
            resolver.operations(at, &block.ops, false)
        });
        ranks.push(blocks.collect());
    }
    if !resolver.violations.is_empty() {
        return Err(resolver.violations);
    }
    let mut counters: Vec<(CounterId, Counter)> =
        resolver.counters.into_iter().map(|(counter, id)| (id, counter)).collect();
    counters.sort_unstable_by_key(|&(id, _)| id);
    Ok(Script { ranks, counters: counters.into_iter().map(|(_, counter)| counter).collect() })
}

/// A rank's channels. For memory and port channels: the peer, and the number among the channels to that peer.
#[derive(Default)]
struct Ways {
    memory: Vec<(u32, u32)>,
    port: Vec<(u32, u32)>,
    switch: Vec<(PlanBuffer, Vec<u32>)>,
}

struct PlanResolver<'p> {
    plan: &'p ExecutionPlan,
    ranks: Vec<Ways>,
    counters: BTreeMap<Counter, CounterId>,
    violations: Vec<PlanViolation>,
}

impl<'p> PlanResolver<'p> {
    fn refuse(&mut self, at: PlanLocation, fault: PlanFault) {
        self.violations.push(PlanViolation { at, fault });
    }

    fn known_rank(&mut self, at: PlanLocation, own: u32, rank: u32, alone: bool) -> bool {
        let count = self.plan.gpus.len() as u64;
        if u64::from(rank) >= count {
            self.refuse(at, PlanFault::OutOfRange { what: "rank", index: rank.into(), count });
        } else if alone && rank == own {
            self.refuse(at, PlanFault::Invalid { reason: format!("rank {own} cannot reach itself as another rank") });
        } else {
            return true;
        }
        false
    }

    /// The channels of a rank, in the order in which the executor numbers them.
    fn ways(&mut self, rank: u32, gpu: &Gpu) -> Ways {
        let mut ways = Ways::default();
        let mut ordinals: BTreeMap<(ChannelType, u32), u32> = BTreeMap::new();
        for (entry, channel) in (0..).zip(&gpu.channels) {
            let at = PlanLocation::Channel(rank, entry);
            let missing =
                |key: &str| PlanFault::Invalid { reason: format!("a {} channel needs `{key}`", channel.channel_type) };
            match channel.channel_type {
                ChannelType::Memory | ChannelType::Port => {
                    let Some(peers) = &channel.connected_to else {
                        self.refuse(at, missing("connected_to"));
                        continue;
                    };
                    for &peer in peers {
                        self.known_rank(at, rank, peer, true);
                        let list =
                            if channel.channel_type == ChannelType::Port { &mut ways.port } else { &mut ways.memory };
                        let next = ordinals.entry((channel.channel_type, peer)).or_insert(0);
                        let ordinal = *next;
                        *next += 1;
                        list.push((peer, ordinal));
                    }
                }
                ChannelType::Switch => {
                    let Some(space) = channel.buffer_type else {
                        self.refuse(at, missing("buffer_type"));
                        continue;
                    };
                    let Some(groups) = &channel.rank_groups else {
                        self.refuse(at, missing("rank_groups"));
                        continue;
                    };
                    for group in groups {
                        let mut ranks = group.ranks.clone();
                        ranks.sort_unstable();
                        ranks.dedup();
                        if ranks.len() != group.ranks.len() || !ranks.contains(&rank) {
                            let reason = format!("a group of rank {rank} must name it, and every rank once");
                            self.refuse(at, PlanFault::Invalid { reason });
                        }
                        ranks.iter().for_each(|&member| {
                            self.known_rank(at, rank, member, false);
                        });
                        ways.switch.push((space, ranks));
                    }
                }
                ChannelType::None => {
                    self.refuse(at, PlanFault::Invalid { reason: "a channel of type `none` connects nothing".into() });
                }
            }
        }
        for (entry, buffer) in (0..).zip(&gpu.remote_buffers) {
            self.known_rank(PlanLocation::RemoteBuffer(rank, entry), rank, buffer.rank, true);
        }
        ways
    }

    fn semaphores(&mut self) {
        for (rank, gpu) in (0..).zip(&self.plan.gpus) {
            for (index, semaphore) in (0..).zip(&gpu.semaphores) {
                self.counter(Counter::Semaphore { rank, index, initial: semaphore.init_value });
            }
        }
    }

    fn counter(&mut self, counter: Counter) -> CounterId {
        let next = CounterId(self.counters.len() as u32);
        *self.counters.entry(counter).or_insert(next)
    }

    /// The lists to which a threadblock's operations refer.
    fn threadblock_refs(&mut self, at: OpAt) {
        let gpu = &self.plan.gpus[at.rank as usize];
        let block = &gpu.threadblocks[at.threadblock as usize];
        let place = PlanLocation::Threadblock(at.rank, at.threadblock);
        for refs in &block.channels {
            let ways = &self.ranks[at.rank as usize];
            let count = match refs.channel_type {
                ChannelType::Memory => ways.memory.len(),
                ChannelType::Port => ways.port.len(),
                ChannelType::Switch => ways.switch.len(),
                ChannelType::None => 0,
            } as u64;
            for &id in refs.channel_ids.iter().filter(|&&id| u64::from(id) >= count) {
                self.refuse(place, PlanFault::OutOfRange { what: "channel", index: id.into(), count });
            }
        }
        for refs in &block.remote_buffer_refs {
            let count = gpu.remote_buffers.len() as u64;
            for &id in &refs.remote_buffer_ids {
                let Some(buffer) = gpu.remote_buffers.get(id as usize) else {
                    self.refuse(place, PlanFault::OutOfRange { what: "remote buffer", index: id.into(), count });
                    continue;
                };
                if !buffer.access_channel_types.contains(&refs.access_channel_type) {
                    let access = refs.access_channel_type;
                    let reason = format!("remote buffer {id} is not declared for access by {access} channels");
                    self.refuse(place, PlanFault::Invalid { reason });
                }
            }
        }
    }

    fn operations(&mut self, at: OpAt, ops: &'p [Operation], inside: bool) -> Vec<(OpAt, OperationEffect)> {
        let mut actions = Vec::with_capacity(ops.len());
        for (number, op) in (0..).zip(ops) {
            let at = if inside { OpAt { inner: Some(number), ..at } } else { OpAt { op: number, ..at } };
            let mut reader = Reader { resolver: self, at, op };
            match if inside { reader.inside_loop() } else { reader.action() } {
                Ok(action) => actions.push((at, action)),
                Err(fault) => self.refuse(PlanLocation::Op(at), fault),
            }
        }
        actions
    }
}
