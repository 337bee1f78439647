//! One operation: its form, its channels and its counters.

use super::super::document::{ChannelType, OpName, Operation};
use super::super::violation::{OpAt, PlanFault, PlanLocation};
use super::{Counter, CounterId, OperationEffect, PlanResolver, Ways};

/// Reads one operation.
pub(super) struct Reader<'r, 'p> {
    pub(super) resolver: &'r mut PlanResolver<'p>,
    pub(super) at: OpAt,
    pub(super) op: &'p Operation,
}

impl Reader<'_, '_> {
    pub(super) fn form(&self, reason: impl Into<String>) -> PlanFault {
        PlanFault::Form { op: self.op.name, reason: reason.into() }
    }

    /// Reads an operation that a pipeline may repeat.
    pub(super) fn inside_loop(&mut self) -> Result<OperationEffect, PlanFault> {
        let action = self.action()?;
        match &action {
            OperationEffect::Loop { .. } => {
                Err(self.form("cannot stand in another pipeline: the executor reads one level"))
            }
            OperationEffect::Transfer { packets: true, .. } => {
                Err(self.form("does not advance with a pipeline: the executor would repeat the same packets"))
            }
            OperationEffect::Transfer { share: Some(_), .. } => {
                Err(self.form("with `tbg_info` covers less than the pipeline's chunks, so its size would underflow"))
            }
            _ => Ok(action),
        }
    }

    pub(super) fn action(&mut self) -> Result<OperationEffect, PlanFault> {
        match self.op.name {
            OpName::Nop => Ok(OperationEffect::Sync),
            OpName::Barrier => {
                let id = self.op.barrier_id.ok_or_else(|| self.form("needs `barrier_id`"))?;
                let threadblocks = self.op.num_threadblocks.ok_or_else(|| self.form("needs `num_threadblocks`"))?;
                Ok(OperationEffect::Barrier { id, threadblocks })
            }
            OpName::Signal => self.give(false),
            OpName::RelaxedSignal => self.give(true),
            OpName::Wait => self.take(false),
            OpName::RelaxedWait => self.take(true),
            OpName::SemRelease => {
                let counters = self.semaphores()?;
                Ok(OperationEffect::Give {
                    counters: counters.into_iter().map(|id| (id, None)).collect(),
                    relaxed: false,
                })
            }
            OpName::SemAcquire => Ok(OperationEffect::Take { counters: self.semaphores()?, relaxed: false }),
            OpName::Flush => {
                let channels = self.port_channels()?;
                Ok(OperationEffect::Flush { channels })
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
                Ok(OperationEffect::Transfer { transfers, share, packets })
            }
        }
    }

    pub(super) fn pipeline(&mut self) -> Result<OperationEffect, PlanFault> {
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
            let OperationEffect::Transfer { transfers, .. } = action else { continue };
            let mut operands = transfers.iter().flat_map(|transfer| transfer.sources.iter().chain(&transfer.targets));
            if let Some(operand) = operands.find(|operand| operand.size != context.num_chunks) {
                let reason = format!(
                    "covers {} chunks in a pipeline over {}; the executor's sizes would not match",
                    operand.size, context.num_chunks
                );
                let op = ops[at.inner.unwrap_or(0) as usize].name;
                self.resolver.refuse(PlanLocation::Op(*at), PlanFault::Form { op, reason });
            }
        }
        Ok(OperationEffect::Loop { unit: context.unit_size, chunks: context.num_chunks, body })
    }

    /// The threadblock's `id`-th channel of a type, in the rank's numbering.
    pub(super) fn channel(&self, kind: ChannelType, id: u32) -> Result<u32, PlanFault> {
        let block = &self.resolver.plan.gpus[self.at.rank as usize].threadblocks[self.at.threadblock as usize];
        let mut ids = block.channels.iter().filter(|refs| refs.channel_type == kind).flat_map(|refs| &refs.channel_ids);
        let count = ids.clone().count() as u64;
        ids.nth(id as usize).copied().ok_or(PlanFault::OutOfRange {
            what: "channel of the threadblock",
            index: id.into(),
            count,
        })
    }

    pub(super) fn ways(&self) -> &Ways {
        &self.resolver.ranks[self.at.rank as usize]
    }

    pub(super) fn peer(&self, kind: ChannelType, channel: u32) -> Result<(u32, u32), PlanFault> {
        let list = if kind == ChannelType::Port { &self.ways().port } else { &self.ways().memory };
        let count = list.len() as u64;
        list.get(channel as usize).copied().ok_or(PlanFault::OutOfRange {
            what: "channel",
            index: channel.into(),
            count,
        })
    }

    pub(super) fn channel_type(&self) -> Result<ChannelType, PlanFault> {
        self.op.channel_type.ok_or_else(|| self.form("needs `channel_type`"))
    }

    pub(super) fn signal_on(&mut self, kind: ChannelType, channel: u32) -> Result<CounterId, PlanFault> {
        let (to, ordinal) = self.peer(kind, channel)?;
        Ok(self.resolver.counter(Counter::Signals { channel: kind, from: self.at.rank, to, ordinal }))
    }

    /// The channels of a signal or a wait.
    pub(super) fn lanes(&self) -> Result<(ChannelType, Vec<u32>), PlanFault> {
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
        let channels: Result<Vec<u32>, PlanFault> = ids.iter().map(|&id| self.channel(kind, id)).collect();
        Ok((kind, channels?))
    }

    pub(super) fn give(&mut self, relaxed: bool) -> Result<OperationEffect, PlanFault> {
        let (kind, channels) = self.lanes()?;
        let mut counters = Vec::with_capacity(channels.len());
        for channel in channels {
            let port = (kind == ChannelType::Port).then_some(channel);
            counters.push((self.signal_on(kind, channel)?, port));
        }
        Ok(OperationEffect::Give { counters, relaxed })
    }

    pub(super) fn take(&mut self, relaxed: bool) -> Result<OperationEffect, PlanFault> {
        let (kind, channels) = self.lanes()?;
        let mut counters = Vec::with_capacity(channels.len());
        for channel in channels {
            let (from, ordinal) = self.peer(kind, channel)?;
            let counter = Counter::Signals { channel: kind, from, to: self.at.rank, ordinal };
            counters.push(self.resolver.counter(counter));
        }
        Ok(OperationEffect::Take { counters, relaxed })
    }

    pub(super) fn semaphores(&mut self) -> Result<Vec<CounterId>, PlanFault> {
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
                return Err(PlanFault::OutOfRange { what: "semaphore", index: index.into(), count });
            };
            let counter = Counter::Semaphore { rank: self.at.rank, index, initial: semaphore.init_value };
            counters.push(self.resolver.counter(counter));
        }
        Ok(counters)
    }

    pub(super) fn port_channels(&self) -> Result<Vec<u32>, PlanFault> {
        match self.lanes()? {
            (ChannelType::Port, channels) => Ok(channels),
            (kind, _) => Err(self.form(format!("has no meaning on a {kind} channel"))),
        }
    }
}

/// Whether an id is in a list twice.
fn repeats(ids: &[u32]) -> bool {
    ids.iter().enumerate().any(|(place, id)| ids[..place].contains(id))
}
