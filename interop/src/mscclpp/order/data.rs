//! Data operations in the replay: the cells that they access, the knowledge that packets carry, and the rules about
//! other ranks' memory.

use super::super::document::Share;
use super::super::geometry::CellSpan;
use super::super::memory::{Access, Known, Pieces, VectorClock, join};
use super::super::resolve::{Operand, OperandTransfer, PortRef};
use super::super::violation::{OpAt, PlanFault, PlanLocation, PlanViolation};
use super::{Done, PlanReplay, RelaxedOrdering, ReplayedOperation};
use std::rc::Rc;

impl PlanReplay<'_> {
    pub(super) fn spans(&self, operands: &[Operand], share: Option<Share>, iteration: Option<u32>) -> Vec<CellSpan> {
        let span = |&operand: &Operand| match iteration {
            Some(iteration) => self.cells.slice(operand, iteration),
            None => self.cells.whole(operand, share),
        };
        operands.iter().map(span).collect()
    }

    pub(super) fn transfers(
        &mut self,
        block: usize,
        item: ReplayedOperation<'_>,
        transfers: &[OperandTransfer],
        share: Option<Share>,
    ) -> bool {
        let spans: Vec<(Vec<CellSpan>, Vec<CellSpan>)> = transfers
            .iter()
            .map(|transfer| {
                let spans = |operands| self.spans(operands, share, item.iteration);
                (spans(&transfer.sources), spans(&transfer.targets))
            })
            .collect();
        let awaited = |span: &&CellSpan| span.awaited;
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

    /// Joins the knowledge that packets carry from their writers.
    pub(super) fn hear(&mut self, block: usize, span: CellSpan) {
        if self.relaxed == RelaxedOrdering::Memoryless {
            return;
        }
        let mut writers: Vec<u32> = self.memory.writers(span).map(|(writer, _)| writer).collect();
        writers.dedup();
        let mut clock = self.blocks[block].knows().clone();
        for clock_of in writers.iter().filter_map(|writer| self.packets.clocks.get(writer)) {
            join(&mut clock, clock_of);
        }
        self.blocks[block].data = Some(clock);
    }

    pub(super) fn transfer(
        &mut self,
        block: usize,
        item: ReplayedOperation<'_>,
        port: Option<PortRef>,
        sources: &[CellSpan],
        targets: &[CellSpan],
    ) {
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
                if writes && is_in_place(span, sources) {
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
                    self.violations.push(PlanViolation { at: PlanLocation::Op(item.at), fault });
                }
            }
        }
        if !pieces.is_empty() {
            self.packets.pieces.insert(op, pieces);
        }
        if targets.iter().any(|span| span.packet) {
            self.packets.clocks.insert(op, Rc::new(clock));
        }
        if let Some(port) = port {
            self.pass_port(block, component, port);
        }
    }

    /// A port executes its tasks in order: the next one, then the signal and the flush that belong to this one.
    fn pass_port(&mut self, block: usize, component: u32, port: PortRef) {
        let PortRef { channel, lane, signal, flush } = port;
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

    /// The knowledge of the pieces of a transfer: themselves, and the pieces that made the packets that they read.
    pub(super) fn told_by_pieces(
        &mut self,
        block: usize,
        op: u32,
        sources: &[CellSpan],
        targets: &[CellSpan],
    ) -> Pieces {
        let all = || sources.iter().chain(targets);
        if !all().any(|span| span.packet) {
            return Pieces::new();
        }
        let count = all().map(|span| span.count).max().unwrap_or(0);
        let mut told: Pieces = (0..count).map(|piece| vec![(op, piece)]).collect();
        for span in sources.iter().filter(|span| span.awaited) {
            for (own, (writer, piece)) in told.iter_mut().zip(self.memory.writers(*span)) {
                let known = self.packets.pieces.get(&writer).and_then(|pieces| pieces.get(piece as usize));
                own.extend(known.into_iter().flatten());
            }
        }
        let heard = &mut self.packets.heard[self.blocks[block].rank as usize];
        for pieces in &mut told {
            pieces.sort_unstable();
            pieces.dedup();
            heard.extend(pieces.iter().copied());
        }
        told
    }

    /// Operands must be equal or disjoint, because threads do not wait for each other within an operation.
    pub(super) fn overlaps(&mut self, at: OpAt, sources: &[CellSpan], targets: &[CellSpan]) {
        let shifted =
            |a: &CellSpan, b: &CellSpan| a.overlaps(*b) && (a.first, a.count, a.packet) != (b.first, b.count, b.packet);
        let twice = |(index, a): (usize, &CellSpan)| targets[..index].iter().any(|b| a.overlaps(*b));
        let wrong = targets.iter().any(|target| sources.iter().any(|source| shifted(source, target)));
        if wrong || targets.iter().enumerate().any(twice) {
            let ops = &self.plan.gpus[at.rank as usize].threadblocks[at.threadblock as usize].ops;
            let outer = &ops[at.op as usize];
            let inner = at.inner.and_then(|inner| outer.ops.as_ref()?.get(inner as usize));
            let op = inner.unwrap_or(outer).name;
            self.violations.push(PlanViolation { at: PlanLocation::Op(at), fault: PlanFault::Overlap { op } });
        }
    }

    /// Rules about other ranks' memory.
    pub(super) fn visit(
        &mut self,
        block: usize,
        at: OpAt,
        span: CellSpan,
        access: Access,
        clock: &VectorClock,
        writes: bool,
    ) {
        let own = self.blocks[block].rank;
        let owner = self.cells.rank_of(span.first);
        if owner == own {
            if access.component as usize >= self.blocks.len() {
                self.remote.own_ports.insert((own, access.component), access);
            }
            return;
        }
        let begun = self.of_rank[owner as usize].clone().any(|other| clock[other] > 0);
        let verb = if writes { "writes" } else { "reads" };
        if !begun && self.cells.is_scratch(span.first) {
            span.cells().for_each(|cell| {
                self.remote.unannounced.insert((cell, own));
            });
        } else if !begun && self.relaxed == RelaxedOrdering::Orders {
            let chunk = self.cells.name(span.first, span.packet);
            self.violations.push(PlanViolation {
                at: PlanLocation::Op(at),
                fault: PlanFault::BeforeStart { access: verb, chunk },
            });
        }
        if !(writes && span.packet) {
            self.remote.last.insert((owner, access.component), (access, span.first, writes));
        }
    }
}

/// Whether a transfer writes where its only source is: the switch also stores to its own rank, even if the value is there
/// already.
fn is_in_place(target: CellSpan, sources: &[CellSpan]) -> bool {
    matches!(sources, [source] if source.first == target.first && source.packet == target.packet)
}
