//! The steps of a program that is made from one-sided operations, with their real dependencies.
//!
//! The principal type is [`ProgramBuilder`].

use super::document::{ExecutionPlan, PlanBuffer, ScratchUse};
use super::geometry::{CellSpan, Cells, PlanGeometry};
use super::touched::{accesses, slots};
use super::violation::{OpAt, PlanFault};
use program::{Buffer, Connection, ConnectionId, Instruction, Layout, Slice, Step, StepRef, Threadblock};
use std::collections::BTreeMap;
use topology::{LinkId, Rank};

/// The steps of a rank so far.
#[derive(Default)]
pub(super) struct RankBuilder {
    pub(super) blocks: Vec<Threadblock>,
    pub(super) origins: Vec<Vec<OpAt>>,
    /// For each slot, its last writer and the readers since.
    slots: BTreeMap<(Buffer, u32), (Option<StepRef>, Vec<StepRef>)>,
    /// The scratch copy of an input buffer that is overwritten outside the output.
    pub(super) shadow: Option<Slice>,
}

impl RankBuilder {
    fn new_block(&mut self) -> u32 {
        self.blocks.push(Threadblock::default());
        self.origins.push(Vec::new());
        self.blocks.len() as u32 - 1
    }
}

/// The threadblocks that a connection joins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum JoinedBlocks {
    /// A threadblock writes to a rank.
    Push { from: u32, block: u32, to: u32 },
    /// A threadblock reads from a rank.
    Pull { from: u32, to: u32, block: u32 },
}

/// A program while it is made, operation by operation.
pub(super) struct ProgramBuilder<'a> {
    geometry: &'a PlanGeometry,
    cells: &'a Cells,
    layout: &'a Layout,
    packets: bool,
    /// Whether shadows already replace their buffers.
    redirect: bool,
    pub(super) connections: Vec<Connection>,
    lanes: BTreeMap<JoinedBlocks, (ConnectionId, u32)>,
    pub(super) ranks: Vec<RankBuilder>,
}

impl<'a> ProgramBuilder<'a> {
    pub(super) fn new(plan: &ExecutionPlan, geometry: &'a PlanGeometry, cells: &'a Cells, layout: &'a Layout) -> Self {
        let ranks = plan.gpus.iter().map(|gpu| {
            let count = gpu.threadblocks.len();
            let (blocks, origins) = (vec![Threadblock::default(); count], vec![Vec::new(); count]);
            RankBuilder { blocks, origins, ..RankBuilder::default() }
        });
        let packets = plan.protocol == ScratchUse::Ll;
        let (connections, lanes) = (Vec::new(), BTreeMap::new());
        Self { geometry, cells, layout, packets, redirect: false, connections, lanes, ranks: ranks.collect() }
    }

    /// In place, plans may use input outside the output as scratch. Programs never write there, so such a rank works on
    /// a scratch copy of its input, a shadow.
    pub(super) fn shadow(
        &mut self,
        at: OpAt,
        targets: &[CellSpan],
        overwritten: &mut Vec<OpAt>,
    ) -> Result<(), PlanFault> {
        for target in targets {
            let rank = self.cells.rank_of(target.first);
            let slice = self.slice(*target)?;
            let output = self.layout.output(Rank(rank));
            let inside = slice.index >= output.index && slice.index + slice.count <= output.index + output.count;
            if slice.buffer != Buffer::Input || !self.geometry.in_place || (output.buffer == Buffer::Input && inside) {
                continue;
            }
            overwritten.push(at);
            let shadow = &mut self.ranks[rank as usize].shadow;
            if shadow.is_none() {
                let count = self.layout.slots(Rank(rank), Buffer::Input);
                *shadow = Some(Slice { buffer: Buffer::Scratch, index: self.cells.scratch_room(rank), count });
            }
        }
        // Set only now, so that all slices above are those of the plan.
        Ok(())
    }

    fn shadowed(&self) -> Vec<(u32, Slice)> {
        let ranks = (0..).zip(&self.ranks);
        ranks.filter_map(|(rank, content)| Some((rank, content.shadow?))).collect()
    }

    /// Copies input to its shadows.
    pub(super) fn fill_shadows(&mut self) {
        for (rank, dst) in self.shadowed() {
            let src = Slice { buffer: Buffer::Input, index: 0, count: dst.count };
            let block = self.ranks[rank as usize].new_block();
            let at = OpAt { rank, threadblock: 0, op: 0, inner: None };
            self.emit(rank, block, at, Instruction::Copy { src, dst });
        }
        self.redirect = true;
    }

    /// Copies the output from the shadows to its place.
    pub(super) fn empty_shadows(&mut self) {
        for (rank, shadow) in self.shadowed() {
            let dst = self.layout.output(Rank(rank));
            if dst.buffer != Buffer::Input {
                continue;
            }
            let src = Slice { index: shadow.index + dst.index, count: dst.count, ..shadow };
            let block = self.ranks[rank as usize].new_block();
            let at = OpAt { rank, threadblock: 0, op: 0, inner: None };
            self.emit(rank, block, at, Instruction::Copy { src, dst });
        }
    }

    /// Writes the reduction of all sources to all targets.
    pub(super) fn transfer(&mut self, at: OpAt, sources: &[CellSpan], targets: &[CellSpan]) -> Result<(), PlanFault> {
        let rank_of = |span: &CellSpan| self.cells.rank_of(span.first);
        let (own, away): (Vec<CellSpan>, Vec<CellSpan>) = sources.iter().partition(|span| rank_of(span) == at.rank);
        let (here, there): (Vec<CellSpan>, Vec<CellSpan>) = targets.iter().partition(|span| rank_of(span) == at.rank);
        let (own, here) = (self.slices(&own)?, self.slices(&here)?);
        // The result is made in the first local target; a single value needs no reduction.
        let result = match (&own[..], &away[..], here.first()) {
            ([source], [], _) => {
                here.iter().filter(|&target| target != source).for_each(|&dst| {
                    self.local(at, Instruction::Copy { src: *source, dst });
                });
                *source
            }
            ([], [remote], Some(&dst)) => {
                let from = self.pull(at, *remote)?;
                self.local(at, Instruction::Receive { from, dst });
                self.copies(at, dst, &here);
                dst
            }
            (_, _, Some(&dst)) => {
                self.reduce(at, dst, &own, &away)?;
                self.copies(at, dst, &here);
                dst
            }
            _ => {
                return Err(PlanFault::Unsupported {
                    reason: "a reduction that leaves nothing at its own rank".into(),
                });
            }
        };
        for target in there {
            self.push(at, result, target)?;
        }
        Ok(())
    }

    fn copies(&mut self, at: OpAt, src: Slice, targets: &[Slice]) {
        for &dst in targets.iter().filter(|&&dst| dst != src) {
            self.local(at, Instruction::Copy { src, dst });
        }
    }

    /// `dst` becomes the reduction of local and remote sources.
    fn reduce(&mut self, at: OpAt, dst: Slice, own: &[Slice], away: &[CellSpan]) -> Result<(), PlanFault> {
        let mut rest: Vec<Slice> = own.to_vec();
        // The sum starts with a value that is in place already; else with the first value, or with the first remote
        // value.
        let base = rest.iter().position(|&source| source == dst).unwrap_or(0);
        let mut base = (!rest.is_empty()).then(|| rest.remove(base));
        let mut remote = away.iter();
        while base != Some(dst) {
            match (base, remote.next()) {
                (Some(src), Some(&span)) => {
                    let from = self.pull(at, span)?;
                    self.local(at, Instruction::ReceiveReduce { from, src, dst });
                }
                (Some(src), None) => self.local(at, Instruction::Copy { src, dst }),
                (None, Some(&span)) => {
                    let from = self.pull(at, span)?;
                    self.local(at, Instruction::Receive { from, dst });
                }
                (None, None) => return Err(PlanFault::Unsupported { reason: "a reduction of nothing".into() }),
            }
            base = Some(dst);
        }
        for &src in &rest {
            self.local(at, Instruction::Reduce { src, dst });
        }
        for &span in remote {
            let from = self.pull(at, span)?;
            self.local(at, Instruction::ReceiveReduce { from, src: dst, dst });
        }
        Ok(())
    }

    /// Sends data of the operation's rank to another rank.
    fn push(&mut self, at: OpAt, src: Slice, target: CellSpan) -> Result<(), PlanFault> {
        let to_rank = self.cells.rank_of(target.first);
        let dst = self.slice(target)?;
        let lane = JoinedBlocks::Push { from: at.rank, block: at.threadblock, to: to_rank };
        let (connection, block) = self.lane(lane, at.rank, to_rank, to_rank);
        self.local(at, Instruction::Send { to: connection, src });
        self.emit(to_rank, block, at, Instruction::Receive { from: connection, dst });
        Ok(())
    }

    /// Lets another rank send its data to the operation's rank; returns the connection to receive from.
    fn pull(&mut self, at: OpAt, source: CellSpan) -> Result<ConnectionId, PlanFault> {
        let from_rank = self.cells.rank_of(source.first);
        let src = self.slice(source)?;
        let lane = JoinedBlocks::Pull { from: from_rank, to: at.rank, block: at.threadblock };
        let (connection, block) = self.lane(lane, from_rank, at.rank, from_rank);
        self.emit(from_rank, block, at, Instruction::Send { to: connection, src });
        Ok(connection)
    }

    /// A connection, and the additional threadblock at its far end.
    fn lane(&mut self, lane: JoinedBlocks, from: u32, to: u32, far: u32) -> (ConnectionId, u32) {
        if let Some(&known) = self.lanes.get(&lane) {
            return known;
        }
        let (sender, receiver) = (Rank(from), Rank(to));
        let channel =
            self.connections.iter().filter(|other| (other.from, other.to) == (sender, receiver)).count() as u32;
        let connection = ConnectionId(self.connections.len() as u32);
        self.connections.push(Connection { from: sender, to: receiver, channel, link: LinkId(0) });
        let block = self.ranks[far as usize].new_block();
        self.lanes.insert(lane, (connection, block));
        (connection, block)
    }

    fn local(&mut self, at: OpAt, instruction: Instruction) {
        self.emit(at.rank, at.threadblock, at, instruction);
    }

    /// Appends a step with its dependencies.
    fn emit(&mut self, rank: u32, threadblock: u32, at: OpAt, instruction: Instruction) {
        let rank = &mut self.ranks[rank as usize];
        let place = StepRef { threadblock, step: rank.blocks[threadblock as usize].steps.len() as u32 };
        // For each other threadblock, only the last step counts.
        let mut after: BTreeMap<u32, u32> = BTreeMap::new();
        let mut wait = |on: &StepRef| {
            let last = after.entry(on.threadblock).or_insert(on.step);
            *last = (*last).max(on.step);
        };
        let (reads, writes) = accesses(&instruction);
        for slot in slots(reads.iter().copied()) {
            if let Some((writer, _)) = rank.slots.get(&slot) {
                writer.iter().for_each(&mut wait);
            }
        }
        for slot in slots(writes) {
            if let Some((writer, readers)) = rank.slots.get(&slot) {
                writer.iter().chain(readers).for_each(&mut wait);
            }
        }
        for slot in slots(reads) {
            rank.slots.entry(slot).or_default().1.push(place);
        }
        for slot in slots(writes) {
            rank.slots.insert(slot, (Some(place), Vec::new()));
        }
        after.remove(&threadblock);
        let after = after.into_iter().map(|(threadblock, step)| StepRef { threadblock, step }).collect();
        rank.blocks[threadblock as usize].steps.push(Step { after, ..Step::new(instruction) });
        rank.origins[threadblock as usize].push(at);
    }

    fn slices(&self, spans: &[CellSpan]) -> Result<Vec<Slice>, PlanFault> {
        spans.iter().map(|&span| self.slice(span)).collect()
    }

    /// The slots of a span. Packets get their own slots: a read from scratch gets what was written there last, in the
    /// same form, which the judge has checked.
    fn slice(&self, span: CellSpan) -> Result<Slice, PlanFault> {
        let (rank, first, count) = (self.cells.rank_of(span.first), span.first, span.count);
        let scratch = self.cells.start(rank, PlanBuffer::Scratch);
        if first >= scratch {
            let room = self.cells.scratch_room(rank) / if self.packets { 2 } else { 1 };
            let index = if span.packet { (first - scratch) / 2 + room } else { first - scratch };
            return Ok(Slice { buffer: Buffer::Scratch, index, count });
        }
        if span.packet {
            return Err(PlanFault::Unsupported { reason: "packets outside scratch".into() });
        }
        let (input, output) = (self.cells.start(rank, PlanBuffer::Input), self.cells.start(rank, PlanBuffer::Output));
        let rank_id = Rank(rank);
        let has = |buffer| self.layout.slots(rank_id, buffer) > 0;
        let is_output = match self.geometry.in_place {
            // In place a rank has one buffer, with the name of the larger.
            true => has(Buffer::Output),
            false => first >= output,
        };
        let (buffer, start) = if is_output { (Buffer::Output, output) } else { (Buffer::Input, input) };
        if first < start {
            return Err(PlanFault::Unsupported {
                reason: format!("rank {rank} has no such buffer in this collective"),
            });
        }
        let index = first - start;
        Ok(match self.ranks[rank as usize].shadow.filter(|_| self.redirect && buffer == Buffer::Input) {
            Some(shadow) => Slice { index: shadow.index + index, count, ..shadow },
            None => Slice { buffer, index, count },
        })
    }
}
