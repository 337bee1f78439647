//! The transfers of a data operation: the chunks of its operands, and its kernel's rules about them.

use super::super::document::{ChannelType, ChunkRef, OpName, PlanBuffer, ScratchUse};
use super::super::violation::PlanFault;
use super::reader::Reader;
use super::{Operand, OperandTransfer, PortRef};
use smallvec::SmallVec;

impl Reader<'_, '_> {
    fn bounded(&self, operand: Operand) -> Result<Operand, PlanFault> {
        let gpu = &self.resolver.plan.gpus[operand.rank as usize];
        let Operand { rank, space, index, size, packet, .. } = operand;
        let chunks = u64::from(match space {
            PlanBuffer::Input => gpu.input_chunks,
            PlanBuffer::Output => gpu.output_chunks,
            PlanBuffer::Scratch => gpu.scratch_chunks,
        });
        // Scratch has room for packets only with the protocol `LL`.
        let ll = self.resolver.plan.protocol == ScratchUse::Ll;
        let (room, packets) = match (packet, space, ll) {
            (true, PlanBuffer::Scratch, true) | (false, ..) => (chunks, ""),
            (true, PlanBuffer::Scratch, false) => {
                (chunks / 2, " for data, half as many for packets (protocol `Simple`)")
            }
            (true, ..) => (chunks / 2, " for data, half as many for packets"),
        };
        let (index, end) = (u64::from(index), u64::from(index) + u64::from(size));
        if end > room {
            return Err(PlanFault::Chunks { rank, buffer: space, index, end, chunks, packets });
        }
        Ok(operand)
    }

    fn local(&self, chunk: &ChunkRef, packet: bool, awaited: bool) -> Result<Operand, PlanFault> {
        let Some(space) = chunk.space.filter(|_| chunk.buffer_id.is_none() && chunk.switch_channel_id.is_none()) else {
            return Err(self.form("needs a local buffer (`type`) here"));
        };
        if packet && awaited && space != PlanBuffer::Scratch {
            return Err(self.form(format!("reads packets from scratch only, not from `{space}`")));
        }
        let rank = self.at.rank;
        if chunk.rank.is_some_and(|other| other != rank) {
            return Err(self.form("names a local buffer of another rank"));
        }
        self.bounded(Operand { rank, space, index: chunk.index, size: chunk.size, packet, awaited })
    }

    fn remote(&self, chunk: &ChunkRef, packet: bool) -> Result<Operand, PlanFault> {
        let Some(id) = chunk.buffer_id.filter(|_| chunk.space.is_none() && chunk.switch_channel_id.is_none()) else {
            return Err(self.form("needs a remote buffer (`buffer_id`) here"));
        };
        let kind = self.channel_type()?;
        let gpu = &self.resolver.plan.gpus[self.at.rank as usize];
        let block = &gpu.threadblocks[self.at.threadblock as usize];
        let refs = block.remote_buffer_refs.iter().filter(|refs| refs.access_channel_type == kind);
        let mut ids = refs.flat_map(|refs| &refs.remote_buffer_ids);
        let count = ids.clone().count() as u64;
        let missing = PlanFault::OutOfRange { what: "remote buffer of the threadblock", index: id.into(), count };
        let buffer = ids.nth(id as usize).and_then(|&id| gpu.remote_buffers.get(id as usize)).ok_or(missing)?;
        if packet && buffer.space != PlanBuffer::Scratch {
            return Err(self.form(format!("writes packets to scratch only, not to `{}`", buffer.space)));
        }
        let (index, size) = (chunk.index, chunk.size);
        self.known(buffer.rank)?;
        self.bounded(Operand { rank: buffer.rank, space: buffer.space, index, size, packet, awaited: false })
    }

    fn known(&self, rank: u32) -> Result<(), PlanFault> {
        let count = self.resolver.plan.gpus.len() as u64;
        let missing = PlanFault::OutOfRange { what: "rank", index: rank.into(), count };
        if u64::from(rank) < count { Ok(()) } else { Err(missing) }
    }

    /// The same chunks at every rank of a switch channel.
    fn group(&self, chunk: &ChunkRef, packet: bool) -> Result<SmallVec<[Operand; 2]>, PlanFault> {
        let Some(id) = chunk.switch_channel_id.filter(|_| chunk.space.is_none() && chunk.buffer_id.is_none()) else {
            return Err(self.form("needs a switch channel (`switch_channel_id`) here"));
        };
        let channel = self.channel(ChannelType::Switch, id)?;
        let count = self.ways().switch.len() as u64;
        let missing = PlanFault::OutOfRange { what: "switch channel", index: channel.into(), count };
        let (space, ranks) = self.ways().switch.get(channel as usize).ok_or(missing)?;
        let (space, index, size) = (*space, chunk.index, chunk.size);
        if packet && space != PlanBuffer::Scratch {
            return Err(self.form(format!("writes packets to scratch only, not to `{space}`")));
        }
        let operand = |&rank: &u32| {
            self.known(rank)?;
            self.bounded(Operand { rank, space, index, size, packet, awaited: false })
        };
        ranks.iter().map(operand).collect()
    }

    /// The transfers of a data operation.
    pub(super) fn transfers(&mut self) -> Result<Vec<OperandTransfer>, PlanFault> {
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

    fn only<'c>(&self, chunks: &'c [ChunkRef]) -> Result<&'c ChunkRef, PlanFault> {
        match chunks {
            [chunk] => Ok(chunk),
            _ => Err(self.form("needs exactly one source and one destination")),
        }
    }

    fn one(&self, source: Operand, target: Operand) -> OperandTransfer {
        self.many([source].into_iter().collect(), [target].into_iter().collect())
    }

    fn many(&self, sources: SmallVec<[Operand; 2]>, targets: SmallVec<[Operand; 2]>) -> OperandTransfer {
        OperandTransfer { sources, targets, port: None }
    }

    fn memory_only(&self) -> Result<(), PlanFault> {
        match self.channel_type()? {
            ChannelType::Memory => Ok(()),
            kind => Err(self.form(format!("works through memory channels only, not {kind}"))),
        }
    }

    /// Source i goes to destination i.
    fn puts(&mut self) -> Result<Vec<OperandTransfer>, PlanFault> {
        let (name, kind) = (self.op.name, self.channel_type()?);
        let (sources, targets) = (self.op.sources(), self.op.targets());
        let packet = name == OpName::PutPackets;
        if sources.is_empty() || sources.len() != targets.len() {
            return Err(self.form("needs as many sources as destinations, and at least one"));
        }
        let signals = matches!(name, OpName::PutWithSignal | OpName::PutWithSignalAndFlush);
        match kind {
            ChannelType::Memory if signals => return Err(self.form("signals on port channels only")),
            // The kernel uses the base address of the first source for all sources.
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
        // A port sends packets unchanged, so the source must hold packets.
        let raw = packet && kind == ChannelType::Port;
        let pairs = sources.iter().zip(targets).enumerate();
        let transfers = pairs.map(|(lane, (source, target))| {
            let source = self.local(source, raw, false)?;
            let target = self.remote(target, packet)?;
            let port = self.port(kind, lane, target.rank)?;
            Ok(OperandTransfer { port, ..self.one(source, target) })
        });
        let mut transfers: Vec<OperandTransfer> = transfers.collect::<Result<_, PlanFault>>()?;
        for transfer in transfers.iter_mut().filter(|_| signals) {
            let Some(port) = &mut transfer.port else { continue };
            port.signal = Some(self.signal_on(ChannelType::Port, port.channel)?);
            port.flush = name == OpName::PutWithSignalAndFlush;
        }
        Ok(transfers)
    }

    /// The port channel of a lane, which must lead to `rank`.
    fn port(&self, kind: ChannelType, lane: usize, rank: u32) -> Result<Option<PortRef>, PlanFault> {
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

    fn gets(&self) -> Result<Vec<OperandTransfer>, PlanFault> {
        self.memory_only()?;
        let (sources, targets) = (self.op.sources(), self.op.targets());
        if sources.is_empty() || sources.len() != targets.len() {
            return Err(self.form("needs as many sources as destinations, and at least one"));
        }
        let pair = |(source, target)| Ok(self.one(self.remote(source, false)?, self.local(target, false, false)?));
        sources.iter().zip(targets).map(pair).collect()
    }

    /// Packets of scratch are written to other ranks.
    fn packets_on(&self) -> Result<Vec<OperandTransfer>, PlanFault> {
        let source = self.local(self.only(self.op.sources())?, true, true)?;
        let kind = self.channel_type()?;
        if !matches!(kind, ChannelType::Memory | ChannelType::Port) || self.op.targets().is_empty() {
            return Err(self.form("needs destinations behind memory or port channels"));
        }
        let transfers = self.op.targets().iter().enumerate().map(|(lane, target)| {
            let target = self.remote(target, true)?;
            let port = self.port(kind, lane, target.rank)?;
            Ok(OperandTransfer { port, ..self.one(source, target) })
        });
        transfers.collect()
    }

    /// The reductions: a local source, then more sources; a local destination, then remote ones.
    fn reduction(&self) -> Result<OperandTransfer, PlanFault> {
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
