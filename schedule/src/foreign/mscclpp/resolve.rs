//! What each operation of a plan does, with its references followed.
//!
//! The principal type is [`Script`]: per threadblock, actions over counters and over chunks of any rank. Every data
//! operation of MSCCL++ becomes [`Transfer`]s of one kind: the reduction of all sources is written to all
//! targets, whoever owns them.
//!
//! Meanings follow the kernels (`src/core/include/execution_kernel.hpp`) except where they contradict the language
//! that writes plans, which then decides: `get` exchanges its two offsets there, `flush` flushes nothing, `reduce_op`
//! is not looked at.

use super::document::{ChannelType, ChunkRef, Gpu, OpName, Operation, Plan, Share, Space};
use super::violation::{Fault, Location, OpAt, PlanViolation};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A counter: signals of one channel in one direction, or a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CounterId(pub(super) u32);

/// What a counter is, for messages, and its value at the start.
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
    pub(super) space: Space,
    pub(super) index: u32,
    pub(super) size: u32,
    /// Packets, which take twice the room of their data.
    pub(super) packet: bool,
    /// Packets whose flags the reader waits for.
    pub(super) awaited: bool,
}

/// Writes the reduction of all sources to all targets.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Transfer {
    pub(super) sources: SmallVec<[Operand; 2]>,
    pub(super) targets: SmallVec<[Operand; 2]>,
    /// The port that does it, where the threadblock only asks for it.
    pub(super) port: Option<PortRef>,
}

/// A port channel as a threadblock uses it: the lane that asks, and what it asks for beyond the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PortRef {
    /// The rank's port channel.
    pub(super) channel: u32,
    /// The thread that asks.
    pub(super) lane: u32,
    /// The signal after the data.
    pub(super) signal: Option<CounterId>,
    /// Whether the threadblock waits until all is done.
    pub(super) flush: bool,
}

/// What an operation does.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Action {
    /// The threads of the threadblock meet.
    Sync,
    /// The threads of several threadblocks meet.
    Barrier { id: u32, threadblocks: u32 },
    /// Each lane adds one to a counter; where a port does it, after what it was told before.
    Give { counters: Vec<(CounterId, Option<u32>)>, relaxed: bool },
    /// Each lane waits for one more of a counter.
    Take { counters: Vec<CounterId>, relaxed: bool },
    /// Each lane waits for a port channel.
    Flush { channels: Vec<u32> },
    /// Data moves.
    Transfer { transfers: Vec<Transfer>, share: Option<Share>, packets: bool },
    /// The body, over `chunks` chunks, `unit` bytes at a time.
    Loop { unit: u32, chunks: u32, body: Vec<(OpAt, Action)> },
}

/// All threadblocks' actions.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Script {
    /// Per rank, per threadblock.
    pub(super) ranks: Vec<Vec<Vec<(OpAt, Action)>>>,
    pub(super) counters: Vec<Counter>,
}

/// Follows every reference of a plan.
pub(super) fn resolve(plan: &Plan) -> Result<Script, Vec<PlanViolation>> {
    let mut resolver = Resolver { plan, ranks: Vec::new(), counters: BTreeMap::new(), violations: Vec::new() };
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

/// A rank's channels: for memory and port the peer and which of the channels to that peer it is.
#[derive(Default)]
struct Ways {
    memory: Vec<(u32, u32)>,
    port: Vec<(u32, u32)>,
    switch: Vec<(Space, Vec<u32>)>,
}

struct Resolver<'p> {
    plan: &'p Plan,
    ranks: Vec<Ways>,
    counters: BTreeMap<Counter, CounterId>,
    violations: Vec<PlanViolation>,
}

impl<'p> Resolver<'p> {
    fn refuse(&mut self, at: Location, fault: Fault) {
        self.violations.push(PlanViolation { at, fault });
    }

    fn known_rank(&mut self, at: Location, own: u32, rank: u32, alone: bool) -> bool {
        let count = self.plan.gpus.len() as u64;
        if u64::from(rank) >= count {
            self.refuse(at, Fault::OutOfRange { what: "rank", index: rank.into(), count });
        } else if alone && rank == own {
            self.refuse(at, Fault::Invalid { reason: format!("rank {own} cannot reach itself as another rank") });
        } else {
            return true;
        }
        false
    }

    /// The channels of a rank, flattened as the executor flattens them.
    fn ways(&mut self, rank: u32, gpu: &Gpu) -> Ways {
        let mut ways = Ways::default();
        let mut ordinals: BTreeMap<(ChannelType, u32), u32> = BTreeMap::new();
        for (entry, channel) in (0..).zip(&gpu.channels) {
            let at = Location::Channel(rank, entry);
            let missing =
                |key: &str| Fault::Invalid { reason: format!("a {} channel needs `{key}`", channel.channel_type) };
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
                            self.refuse(at, Fault::Invalid { reason });
                        }
                        ranks.iter().for_each(|&member| {
                            self.known_rank(at, rank, member, false);
                        });
                        ways.switch.push((space, ranks));
                    }
                }
                ChannelType::None => {
                    self.refuse(at, Fault::Invalid { reason: "a channel of type `none` connects nothing".into() });
                }
            }
        }
        for (entry, buffer) in (0..).zip(&gpu.remote_buffers) {
            self.known_rank(Location::RemoteBuffer(rank, entry), rank, buffer.rank, true);
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

    /// The lists through which a threadblock's operations count.
    fn threadblock_refs(&mut self, at: OpAt) {
        let gpu = &self.plan.gpus[at.rank as usize];
        let block = &gpu.threadblocks[at.threadblock as usize];
        let place = Location::Threadblock(at.rank, at.threadblock);
        for refs in &block.channels {
            let ways = &self.ranks[at.rank as usize];
            let count = match refs.channel_type {
                ChannelType::Memory => ways.memory.len(),
                ChannelType::Port => ways.port.len(),
                ChannelType::Switch => ways.switch.len(),
                ChannelType::None => 0,
            } as u64;
            for &id in refs.channel_ids.iter().filter(|&&id| u64::from(id) >= count) {
                self.refuse(place, Fault::OutOfRange { what: "channel", index: id.into(), count });
            }
        }
        for refs in &block.remote_buffer_refs {
            let count = gpu.remote_buffers.len() as u64;
            for &id in &refs.remote_buffer_ids {
                let Some(buffer) = gpu.remote_buffers.get(id as usize) else {
                    self.refuse(place, Fault::OutOfRange { what: "remote buffer", index: id.into(), count });
                    continue;
                };
                if !buffer.access_channel_types.contains(&refs.access_channel_type) {
                    let access = refs.access_channel_type;
                    let reason = format!("remote buffer {id} is not declared for access by {access} channels");
                    self.refuse(place, Fault::Invalid { reason });
                }
            }
        }
    }

    fn operations(&mut self, at: OpAt, ops: &'p [Operation], inside: bool) -> Vec<(OpAt, Action)> {
        let mut actions = Vec::with_capacity(ops.len());
        for (number, op) in (0..).zip(ops) {
            let at = if inside { OpAt { inner: Some(number), ..at } } else { OpAt { op: number, ..at } };
            let mut reader = Reader { resolver: self, at, op };
            match if inside { reader.inside_loop() } else { reader.action() } {
                Ok(action) => actions.push((at, action)),
                Err(fault) => self.refuse(Location::Op(at), fault),
            }
        }
        actions
    }
}

/// Whether an id stands twice in a list.
fn repeats(ids: &[u32]) -> bool {
    ids.iter().enumerate().any(|(place, id)| ids[..place].contains(id))
}

/// Reads one operation.
struct Reader<'r, 'p> {
    resolver: &'r mut Resolver<'p>,
    at: OpAt,
    op: &'p Operation,
}

impl Reader<'_, '_> {
    fn form(&self, reason: impl Into<String>) -> Fault {
        Fault::Form { op: self.op.name, reason: reason.into() }
    }

    /// What a pipeline may repeat.
    fn inside_loop(&mut self) -> Result<Action, Fault> {
        let action = self.action()?;
        match &action {
            Action::Loop { .. } => Err(self.form("cannot stand in another pipeline: the executor reads one level")),
            Action::Transfer { packets: true, .. } => {
                Err(self.form("does not advance with a pipeline: the executor would repeat the same packets"))
            }
            Action::Transfer { share: Some(_), .. } => {
                Err(self.form("with `tbg_info` covers less than the pipeline's chunks, so its size would underflow"))
            }
            _ => Ok(action),
        }
    }

    fn action(&mut self) -> Result<Action, Fault> {
        match self.op.name {
            OpName::Nop => Ok(Action::Sync),
            OpName::Barrier => {
                let id = self.op.barrier_id.ok_or_else(|| self.form("needs `barrier_id`"))?;
                let threadblocks = self.op.num_threadblocks.ok_or_else(|| self.form("needs `num_threadblocks`"))?;
                Ok(Action::Barrier { id, threadblocks })
            }
            OpName::Signal => self.give(false),
            OpName::RelaxedSignal => self.give(true),
            OpName::Wait => self.take(false),
            OpName::RelaxedWait => self.take(true),
            OpName::SemRelease => {
                let counters = self.semaphores()?;
                Ok(Action::Give { counters: counters.into_iter().map(|id| (id, None)).collect(), relaxed: false })
            }
            OpName::SemAcquire => Ok(Action::Take { counters: self.semaphores()?, relaxed: false }),
            OpName::Flush => {
                let channels = self.port_channels()?;
                Ok(Action::Flush { channels })
            }
            OpName::Pipeline => self.pipeline(),
            _ => {
                let transfers = self.transfers()?;
                let every = || transfers.iter().flat_map(|transfer| transfer.sources.iter().chain(&transfer.targets));
                let packets = every().any(|operand| operand.packet);
                if self.op.tbg_info.is_some_and(|share| share.tb_id >= share.tbg_size) {
                    return Err(self.form("has a `tb_id` that is not below its `tbg_size`"));
                }
                if let Some(empty) = every().find(|operand| operand.size == 0) {
                    return Err(self.form(format!("names no chunk of `{}`", empty.space)));
                }
                let share = self.op.tbg_info.filter(|share| share.tbg_size > 1);
                Ok(Action::Transfer { transfers, share, packets })
            }
        }
    }

    fn pipeline(&mut self) -> Result<Action, Fault> {
        let context = self.op.iter_context.ok_or_else(|| self.form("needs `iter_context`"))?;
        let op = self.op;
        let ops = op.ops.as_deref().ok_or_else(|| self.form("needs `ops`"))?;
        let alignment = self.resolver.plan.buffer_alignment.max(16);
        if context.unit_size == 0 || !context.unit_size.is_multiple_of(alignment) {
            return Err(self.form(format!("has a `unit_size` that is no positive multiple of {alignment} bytes")));
        }
        if context.num_chunks == 0 {
            return Err(self.form("repeats over no chunk"));
        }
        let body = self.resolver.operations(self.at, ops, true);
        for (at, action) in &body {
            let Action::Transfer { transfers, .. } = action else { continue };
            let operands = transfers.iter().flat_map(|transfer| transfer.sources.iter().chain(&transfer.targets));
            for operand in operands.filter(|operand| operand.size != context.num_chunks) {
                let reason = format!(
                    "covers {} chunks in a pipeline over {}; the executor's sizes would not match",
                    operand.size, context.num_chunks
                );
                let op = ops[at.inner.unwrap_or(0) as usize].name;
                self.resolver.refuse(Location::Op(*at), Fault::Form { op, reason });
                break;
            }
        }
        Ok(Action::Loop { unit: context.unit_size, chunks: context.num_chunks, body })
    }

    /// The threadblock's `id`-th channel of a type, as the rank counts them.
    fn channel(&self, kind: ChannelType, id: u32) -> Result<u32, Fault> {
        let block = &self.resolver.plan.gpus[self.at.rank as usize].threadblocks[self.at.threadblock as usize];
        let mut ids = block.channels.iter().filter(|refs| refs.channel_type == kind).flat_map(|refs| &refs.channel_ids);
        let count = ids.clone().count() as u64;
        ids.nth(id as usize).copied().ok_or(Fault::OutOfRange {
            what: "channel of the threadblock",
            index: id.into(),
            count,
        })
    }

    fn ways(&self) -> &Ways {
        &self.resolver.ranks[self.at.rank as usize]
    }

    fn peer(&self, kind: ChannelType, channel: u32) -> Result<(u32, u32), Fault> {
        let list = if kind == ChannelType::Port { &self.ways().port } else { &self.ways().memory };
        let count = list.len() as u64;
        list.get(channel as usize).copied().ok_or(Fault::OutOfRange { what: "channel", index: channel.into(), count })
    }

    fn channel_type(&self) -> Result<ChannelType, Fault> {
        self.op.channel_type.ok_or_else(|| self.form("needs `channel_type`"))
    }

    fn signal_on(&mut self, kind: ChannelType, channel: u32) -> Result<CounterId, Fault> {
        let (to, ordinal) = self.peer(kind, channel)?;
        Ok(self.resolver.counter(Counter::Signals { channel: kind, from: self.at.rank, to, ordinal }))
    }

    /// The channels of a signal or a wait.
    fn lanes(&self) -> Result<(ChannelType, Vec<u32>), Fault> {
        let kind = self.channel_type()?;
        if !matches!(kind, ChannelType::Memory | ChannelType::Port) {
            return Err(self.form(format!("has no meaning on a {kind} channel")));
        }
        if self.op.channels().is_empty() {
            return Err(self.form("needs `channel_ids`"));
        }
        let ids = self.op.channels();
        if repeats(ids) {
            return Err(self.form("names a channel twice: two threads would use it at once"));
        }
        let channels: Result<Vec<u32>, Fault> = ids.iter().map(|&id| self.channel(kind, id)).collect();
        Ok((kind, channels?))
    }

    fn give(&mut self, relaxed: bool) -> Result<Action, Fault> {
        let (kind, channels) = self.lanes()?;
        let mut counters = Vec::with_capacity(channels.len());
        for channel in channels {
            let port = (kind == ChannelType::Port).then_some(channel);
            counters.push((self.signal_on(kind, channel)?, port));
        }
        Ok(Action::Give { counters, relaxed })
    }

    fn take(&mut self, relaxed: bool) -> Result<Action, Fault> {
        let (kind, channels) = self.lanes()?;
        let mut counters = Vec::with_capacity(channels.len());
        for channel in channels {
            let (from, ordinal) = self.peer(kind, channel)?;
            let counter = Counter::Signals { channel: kind, from, to: self.at.rank, ordinal };
            counters.push(self.resolver.counter(counter));
        }
        Ok(Action::Take { counters, relaxed })
    }

    fn semaphores(&mut self) -> Result<Vec<CounterId>, Fault> {
        let op = self.op;
        let ids = op.semaphore_ids.as_deref().filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| self.form("needs `semaphore_ids`"))?;
        if repeats(ids) {
            return Err(self.form("names a semaphore twice: two threads would use it at once"));
        }
        let declared = &self.resolver.plan.gpus[self.at.rank as usize].semaphores;
        let mut counters = Vec::with_capacity(ids.len());
        for &index in ids {
            let Some(semaphore) = declared.get(index as usize) else {
                let count = declared.len() as u64;
                return Err(Fault::OutOfRange { what: "semaphore", index: index.into(), count });
            };
            let counter = Counter::Semaphore { rank: self.at.rank, index, initial: semaphore.init_value };
            counters.push(self.resolver.counter(counter));
        }
        Ok(counters)
    }

    fn port_channels(&self) -> Result<Vec<u32>, Fault> {
        match self.lanes()? {
            (ChannelType::Port, channels) => Ok(channels),
            (kind, _) => Err(self.form(format!("has no meaning on a {kind} channel"))),
        }
    }
}

/// Operands.
impl Reader<'_, '_> {
    fn bounded(&self, operand: Operand) -> Result<Operand, Fault> {
        let gpu = &self.resolver.plan.gpus[operand.rank as usize];
        let Operand { rank, space, index, size, packet, .. } = operand;
        let chunks = u64::from(match space {
            Space::Input => gpu.input_chunks,
            Space::Output => gpu.output_chunks,
            Space::Scratch => gpu.scratch_chunks,
        });
        // Scratch is allocated for packets only under the protocol of packets.
        let ll = self.resolver.plan.protocol == super::document::Protocol::Ll;
        let (room, packets) = match (packet, space, ll) {
            (true, Space::Scratch, true) | (false, ..) => (chunks, ""),
            (true, Space::Scratch, false) => (chunks / 2, " for data, half as many for packets (protocol `Simple`)"),
            (true, ..) => (chunks / 2, " for data, half as many for packets"),
        };
        let (index, end) = (u64::from(index), u64::from(index) + u64::from(size));
        if end > room {
            return Err(Fault::Chunks { rank, buffer: space, index, end, chunks, packets });
        }
        Ok(operand)
    }

    fn local(&self, chunk: &ChunkRef, packet: bool, awaited: bool) -> Result<Operand, Fault> {
        let Some(space) = chunk.space.filter(|_| chunk.buffer_id.is_none() && chunk.switch_channel_id.is_none()) else {
            return Err(self.form("needs a local buffer (`type`) here"));
        };
        if packet && awaited && space != Space::Scratch {
            return Err(self.form(format!("reads packets from scratch only, not from `{space}`")));
        }
        let rank = self.at.rank;
        if chunk.rank.is_some_and(|other| other != rank) {
            return Err(self.form("names a local buffer of another rank"));
        }
        self.bounded(Operand { rank, space, index: chunk.index, size: chunk.size, packet, awaited })
    }

    fn remote(&self, chunk: &ChunkRef, packet: bool) -> Result<Operand, Fault> {
        let Some(id) = chunk.buffer_id.filter(|_| chunk.space.is_none() && chunk.switch_channel_id.is_none()) else {
            return Err(self.form("needs a remote buffer (`buffer_id`) here"));
        };
        let kind = self.channel_type()?;
        let gpu = &self.resolver.plan.gpus[self.at.rank as usize];
        let block = &gpu.threadblocks[self.at.threadblock as usize];
        let refs = block.remote_buffer_refs.iter().filter(|refs| refs.access_channel_type == kind);
        let mut ids = refs.flat_map(|refs| &refs.remote_buffer_ids);
        let count = ids.clone().count() as u64;
        let missing = Fault::OutOfRange { what: "remote buffer of the threadblock", index: id.into(), count };
        let buffer = ids.nth(id as usize).and_then(|&id| gpu.remote_buffers.get(id as usize)).ok_or(missing)?;
        if packet && buffer.space != Space::Scratch {
            return Err(self.form(format!("writes packets to scratch only, not to `{}`", buffer.space)));
        }
        let (index, size) = (chunk.index, chunk.size);
        self.known(buffer.rank)?;
        self.bounded(Operand { rank: buffer.rank, space: buffer.space, index, size, packet, awaited: false })
    }

    fn known(&self, rank: u32) -> Result<(), Fault> {
        let count = self.resolver.plan.gpus.len() as u64;
        let missing = Fault::OutOfRange { what: "rank", index: rank.into(), count };
        if u64::from(rank) < count { Ok(()) } else { Err(missing) }
    }

    /// The same chunks at every rank of a switch channel.
    fn group(&self, chunk: &ChunkRef, packet: bool) -> Result<SmallVec<[Operand; 2]>, Fault> {
        let Some(id) = chunk.switch_channel_id.filter(|_| chunk.space.is_none() && chunk.buffer_id.is_none()) else {
            return Err(self.form("needs a switch channel (`switch_channel_id`) here"));
        };
        let channel = self.channel(ChannelType::Switch, id)?;
        let count = self.ways().switch.len() as u64;
        let missing = Fault::OutOfRange { what: "switch channel", index: channel.into(), count };
        let (space, ranks) = self.ways().switch.get(channel as usize).ok_or(missing)?;
        let (space, index, size) = (*space, chunk.index, chunk.size);
        if packet && space != Space::Scratch {
            return Err(self.form(format!("writes packets to scratch only, not to `{space}`")));
        }
        let operand = |&rank: &u32| {
            self.known(rank)?;
            self.bounded(Operand { rank, space, index, size, packet, awaited: false })
        };
        ranks.iter().map(operand).collect()
    }

    /// What a data operation moves.
    fn transfers(&mut self) -> Result<Vec<Transfer>, Fault> {
        let op = self.op;
        let (sources, targets) = (op.sources(), op.targets());
        let transfers =
            match op.name {
                OpName::Put | OpName::PutWithSignal | OpName::PutWithSignalAndFlush | OpName::PutPackets => {
                    self.puts()?
                }
                OpName::Get => self.gets()?,
                OpName::Copy => vec![self.one(
                    self.local(self.only(sources)?, false, false)?,
                    self.local(self.only(targets)?, false, false)?,
                )],
                OpName::CopyPackets => {
                    vec![self.one(
                        self.local(self.only(sources)?, false, false)?,
                        self.local(self.only(targets)?, true, false)?,
                    )]
                }
                OpName::UnpackPackets => {
                    vec![self.one(
                        self.local(self.only(sources)?, true, true)?,
                        self.local(self.only(targets)?, false, false)?,
                    )]
                }
                OpName::ReadPutPackets => self.packets_on()?,
                OpName::GroupStore | OpName::GroupStorePackets => {
                    let packet = op.name == OpName::GroupStorePackets;
                    let source = self.local(self.only(sources)?, packet, packet)?;
                    vec![self.many([source].into_iter().collect(), self.group(self.only(targets)?, packet)?)]
                }
                OpName::GroupLoadReduceStore => {
                    vec![self.many(self.group(self.only(sources)?, false)?, self.group(self.only(targets)?, false)?)]
                }
                _ => vec![self.reduction()?],
            };
        for transfer in &transfers {
            let mut sizes = transfer.sources.iter().chain(&transfer.targets).map(|operand| operand.size);
            let first = sizes.next().unwrap_or(0);
            if sizes.any(|size| size != first) {
                return Err(self.form("has operands of different sizes"));
            }
        }
        Ok(transfers)
    }

    fn only<'c>(&self, chunks: &'c [ChunkRef]) -> Result<&'c ChunkRef, Fault> {
        match chunks {
            [chunk] => Ok(chunk),
            _ => Err(self.form("needs exactly one source and one destination")),
        }
    }

    fn one(&self, source: Operand, target: Operand) -> Transfer {
        self.many([source].into_iter().collect(), [target].into_iter().collect())
    }

    fn many(&self, sources: SmallVec<[Operand; 2]>, targets: SmallVec<[Operand; 2]>) -> Transfer {
        Transfer { sources, targets, port: None }
    }

    fn memory_only(&self) -> Result<(), Fault> {
        match self.channel_type()? {
            ChannelType::Memory => Ok(()),
            kind => Err(self.form(format!("works through memory channels only, not {kind}"))),
        }
    }

    /// Source i goes to destination i.
    fn puts(&mut self) -> Result<Vec<Transfer>, Fault> {
        let (name, kind) = (self.op.name, self.channel_type()?);
        let (sources, targets) = (self.op.sources(), self.op.targets());
        let packet = name == OpName::PutPackets;
        if sources.is_empty() || sources.len() != targets.len() {
            return Err(self.form("needs as many sources as destinations, and at least one"));
        }
        let signals = matches!(name, OpName::PutWithSignal | OpName::PutWithSignalAndFlush);
        match kind {
            ChannelType::Memory if signals => return Err(self.form("signals on port channels only")),
            // The kernel takes the base address of the first source for all of them.
            ChannelType::Memory if sources.iter().any(|source| source.space != sources[0].space) => {
                return Err(self.form("takes all sources from the buffer of the first"));
            }
            ChannelType::Memory => {}
            ChannelType::Port if self.op.channels().len() != targets.len() => {
                return Err(self.form("needs one port channel for each destination"));
            }
            ChannelType::Port => {}
            _ => return Err(self.form(format!("has no meaning on a {kind} channel"))),
        }
        // Through a port packets go as they are: the source must hold packets.
        let raw = packet && kind == ChannelType::Port;
        let pairs = sources.iter().zip(targets).enumerate();
        let transfers = pairs.map(|(lane, (source, target))| {
            let source = self.local(source, raw, false)?;
            let target = self.remote(target, packet)?;
            let port = self.port(kind, lane, target.rank)?;
            Ok(Transfer { port, ..self.one(source, target) })
        });
        let mut transfers: Vec<Transfer> = transfers.collect::<Result<_, Fault>>()?;
        for transfer in transfers.iter_mut().filter(|_| signals) {
            let Some(port) = &mut transfer.port else { continue };
            port.signal = Some(self.signal_on(ChannelType::Port, port.channel)?);
            port.flush = name == OpName::PutWithSignalAndFlush;
        }
        Ok(transfers)
    }

    /// The port channel of a lane, which must lead to `rank`.
    fn port(&self, kind: ChannelType, lane: usize, rank: u32) -> Result<Option<PortRef>, Fault> {
        if kind != ChannelType::Port {
            return Ok(None);
        }
        let id = self.op.channels().get(lane).copied().ok_or_else(|| self.form("needs `channel_ids`"))?;
        let channel = self.channel(ChannelType::Port, id)?;
        let (peer, _) = self.peer(ChannelType::Port, channel)?;
        if peer != rank {
            return Err(self.form(format!("writes to rank {rank} through a channel to rank {peer}")));
        }
        Ok(Some(PortRef { channel, lane: lane as u32, signal: None, flush: false }))
    }

    fn gets(&self) -> Result<Vec<Transfer>, Fault> {
        self.memory_only()?;
        let (sources, targets) = (self.op.sources(), self.op.targets());
        if sources.is_empty() || sources.len() != targets.len() {
            return Err(self.form("needs as many sources as destinations, and at least one"));
        }
        let pair = |(source, target)| Ok(self.one(self.remote(source, false)?, self.local(target, false, false)?));
        sources.iter().zip(targets).map(pair).collect()
    }

    /// Packets of scratch go on to other ranks.
    fn packets_on(&self) -> Result<Vec<Transfer>, Fault> {
        let source = self.local(self.only(self.op.sources())?, true, true)?;
        let kind = self.channel_type()?;
        if !matches!(kind, ChannelType::Memory | ChannelType::Port) || self.op.targets().is_empty() {
            return Err(self.form("needs destinations behind memory or port channels"));
        }
        let transfers = self.op.targets().iter().enumerate().map(|(lane, target)| {
            let target = self.remote(target, true)?;
            let port = self.port(kind, lane, target.rank)?;
            Ok(Transfer { port, ..self.one(source, target) })
        });
        transfers.collect()
    }

    /// The reductions: a local source, then more sources; a local destination, then remote ones.
    fn reduction(&self) -> Result<Transfer, Fault> {
        let name = self.op.name;
        let packets = matches!(
            name,
            OpName::ReducePackets
                | OpName::ReduceCopyPackets
                | OpName::ReduceSendPackets
                | OpName::ReduceCopySendPackets
        );
        let reads = matches!(name, OpName::ReadReduce | OpName::ReadReduceSend);
        let copies = matches!(name, OpName::ReduceCopyPackets | OpName::ReduceCopySendPackets);
        let sends = matches!(
            name,
            OpName::ReduceSend | OpName::ReadReduceSend | OpName::ReduceSendPackets | OpName::ReduceCopySendPackets
        );
        if reads || sends {
            self.memory_only()?;
        }
        let [first, others @ ..] = self.op.sources() else { return Err(self.form("needs sources")) };
        let mut sources: SmallVec<[Operand; 2]> = SmallVec::new();
        sources.push(self.local(first, false, false)?);
        for other in others {
            sources.push(if reads { self.remote(other, false)? } else { self.local(other, packets, packets)? });
        }
        let own = 1 + usize::from(copies);
        let (local, remote) = self.op.targets().split_at_checked(own).ok_or_else(|| self.form("needs destinations"))?;
        if remote.is_empty() == sends {
            let what = if sends { "needs remote destinations" } else { "has more destinations than it writes" };
            return Err(self.form(what));
        }
        let mut targets: SmallVec<[Operand; 2]> = SmallVec::new();
        for (place, target) in local.iter().enumerate() {
            targets.push(self.local(target, place == 1, false)?);
        }
        for target in remote {
            targets.push(self.remote(target, packets)?);
        }
        Ok(self.many(sources, targets))
    }
}
