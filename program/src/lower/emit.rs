//! Writes the steps of a program.
//!
//! The principal type is [`Emitter`]. It goes through the deliveries in order of landing and appends steps to the two
//! threadblocks of the connection. All steps that a new step must wait for are then already written.

use super::flow::{DataFlow, ValueDelivery, ValueDeliveryId, ValueId};
use super::place::{Landing, Placement};
use super::plan::Plan;
use super::{Connections, Slices};
use crate::{Buffer, ConnectionId, Instruction, Layout, RankProgram, Slice, Slot, Step, StepRef, Threadblock};
use std::collections::BTreeMap;
use topology::Rank;

pub(super) struct Emitter<'a> {
    plan: Plan<'a>,
    slices: Slices<'a>,
    flow: &'a DataFlow,
    connections: &'a Connections,
    placement: Placement<'a>,
    /// For each connection the sender's and the receiver's threadblock.
    threadblocks: Vec<BothEnds<u32>>,
    /// For each delivery the sender's and the receiver's step.
    steps: Vec<BothEnds<StepRef>>,
    ranks: Vec<RankProgram>,
}

/// A value for each of the two ends of a connection.
#[derive(Clone, Copy, Default)]
struct BothEnds<T> {
    sender: T,
    receiver: T,
}

/// A delivery with its slots.
struct PlacedDelivery {
    id: ValueDeliveryId,
    src: Slot,
    base: Option<Slot>,
    /// What is added next.
    then: Vec<Slot>,
    landing: Landing,
}

/// A local copy from the slot where a value is to the output slot where it must be.
struct FinalCopy {
    /// The last transfer that it waits for.
    ready: Option<u32>,
    src: Slot,
    dst: Slot,
    count: u32,
    after: Vec<StepRef>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(plan: Plan<'a>, slices: Slices<'a>, flow: &'a DataFlow, connections: &'a Connections) -> Self {
        let (count, layout) = (plan.schedule().demand.request().ranks, slices.layout);
        let all = (0..count).map(Rank::from_index);
        let empty = |rank| if plan.is_first(rank) { empty(layout, rank) } else { RankProgram::default() };
        let mut ranks: Vec<RankProgram> = all.map(empty).collect();
        let mut open = |rank: Rank| {
            let threadblocks = &mut ranks[rank.index()].threadblocks;
            threadblocks.push(Threadblock::default());
            threadblocks.len() as u32 - 1
        };
        let ends = connections.list.iter();
        let mut both = |from, to| BothEnds { sender: open(from), receiver: open(plan.first(to)) };
        let threadblocks = ends.map(|ends| both(ends.from, ends.to)).collect();
        let none = StepRef { threadblock: 0, step: 0 };
        let steps = vec![BothEnds { sender: none, receiver: none }; flow.delivery_count()];
        let placement = Placement::new(flow, layout, plan);
        Self { plan, slices, flow, connections, placement, threadblocks, steps, ranks }
    }

    pub(super) fn run(mut self) -> Vec<RankProgram> {
        let flow = self.flow;
        for message in flow.live.chunk_by(|&a, &b| flow[a].transfer == flow[b].transfer) {
            let placed: Vec<PlacedDelivery> = message.iter().map(|&id| self.place(id)).collect();
            let slices = self.slices;
            let runs = || placed.chunk_by(|a, b| slices.follow(a, b));
            runs().for_each(|run| self.emit(run));
            // Steps of one message stand together.
            runs().for_each(|run| self.add(run));
        }
        self.copy_to_outputs();
        for (rank, parts) in self.ranks.iter_mut().zip(self.placement.scratch_parts) {
            rank.scratch_parts = parts;
        }
        self.ranks
    }

    fn place(&mut self, id: ValueDeliveryId) -> PlacedDelivery {
        let ValueDelivery { source, base, then, .. } = &self.flow[id];
        let (src, base) = (self.placement.slot(*source), base.map(|base| self.placement.slot(base)));
        let then = then.iter().map(|&value| self.placement.slot(value)).collect();
        PlacedDelivery { id, src, base, then, landing: self.placement.place(id) }
    }

    /// One send and one receive for deliveries whose slots are consecutive at both ends.
    fn emit(&mut self, run: &[PlacedDelivery]) {
        let PlacedDelivery { id, src, base, landing, .. } = run[0];
        let count = run.len() as u32;
        let index = self.flow[id].transfer;
        let (from, to) = (self.flow[self.flow[id].source].rank, self.flow[self.flow[id].result].rank);
        let connection = self.connections.of[&index];
        let BothEnds { sender, receiver } = self.threadblocks[connection.index()];
        let send = Instruction::Send { to: connection, src: src.slice(count) };
        let receive = receive(connection, base.map(|base| base.slice(count)), landing.slot.slice(count));
        let mut ready = Vec::new();
        let mut free = Vec::new();
        for placed in run {
            let delivery = &self.flow[placed.id];
            ready.extend(self.written(delivery.source));
            free.extend(delivery.base.and_then(|base| self.written(base)));
            free.extend(placed.landing.replaces.into_iter().flat_map(|old| self.released(old, Some(placed.id))));
        }
        let sender = self.push(from, sender, send, ready, Some(index));
        let receiver = self.push(to, receiver, receive, free, Some(index));
        for placed in run {
            self.steps[placed.id.index()] = BothEnds { sender, receiver };
        }
    }

    /// What is added to the same deliveries once they have landed.
    fn add(&mut self, run: &[PlacedDelivery]) {
        let (first, count) = (&run[0], run.len() as u32);
        let BothEnds { receiver, .. } = self.steps[first.id.index()];
        let rank = self.flow[self.flow[first.id].result].rank;
        for (index, src) in first.then.iter().enumerate() {
            let instruction = Instruction::Reduce { src: src.slice(count), dst: first.landing.slot.slice(count) };
            let added = run.iter().filter_map(|placed| self.written(self.flow[placed.id].then[index]));
            let step = self.push(rank, receiver.threadblock, instruction, added.collect(), None);
            run.iter().for_each(|placed| self.steps[placed.id.index()].receiver = step);
        }
    }

    /// The step that writes a value; `None` for a value that is there from the start.
    fn written(&self, value: ValueId) -> Option<StepRef> {
        self.flow[value].writer.map(|writer| self.steps[writer.index()].receiver)
    }

    /// The steps after which the slot of a value may be overwritten; `by` is the delivery that overwrites it.
    fn released(&self, value: ValueId, by: Option<ValueDeliveryId>) -> Vec<StepRef> {
        let written = self.written(value);
        let value = &self.flow[value];
        let sent = value.senders.iter().map(|sender| self.steps[sender.index()].sender);
        let reduced = value.reduced_by.filter(|&reader| Some(reader) != by);
        let reduced = reduced.map(|reader| self.steps[reader.index()].receiver);
        written.into_iter().chain(sent).chain(reduced).collect()
    }

    /// Appends a step.
    fn push(
        &mut self,
        rank: Rank,
        threadblock: u32,
        instruction: Instruction,
        mut after: Vec<StepRef>,
        transfer: Option<u32>,
    ) -> StepRef {
        // In each threadblock the last step to wait for implies the earlier ones; a step need not wait for its own
        // threadblock.
        after.retain(|step| step.threadblock != threadblock);
        after.sort_unstable_by_key(|step| (step.threadblock, std::cmp::Reverse(step.step)));
        after.dedup_by_key(|step| step.threadblock);
        let steps = &mut self.ranks[rank.index()].threadblocks[threadblock as usize].steps;
        let reference = StepRef { threadblock, step: steps.len() as u32 };
        steps.push(Step { after, transfer, ..Step::new(instruction) });
        reference
    }

    /// Copies to the output the chunks that a rank wants and has elsewhere, the earliest first.
    fn copy_to_outputs(&mut self) {
        let mut copies: Vec<Vec<FinalCopy>> = Vec::new();
        copies.resize_with(self.ranks.len(), Vec::new);
        for id in self.flow.value_ids().filter(|&id| self.flow[id].is_final) {
            let rank = self.flow[id].rank;
            copies[rank.index()].extend(self.final_copy(id));
        }
        for (index, mut copies) in copies.into_iter().enumerate() {
            let rank = Rank::from_index(index);
            copies.extend(self.own_block(rank));
            copies.sort_unstable_by_key(|copy| (copy.ready, copy.dst));
            if copies.is_empty() {
                continue;
            }
            let copies = readers_first(copies);
            let threadblocks = &mut self.ranks[index].threadblocks;
            threadblocks.push(Threadblock::default());
            let local = threadblocks.len() as u32 - 1;
            let slices = self.slices;
            let joins = |a: &FinalCopy, b: &FinalCopy| {
                let last = |slot: Slot| slot.plus(a.count - 1);
                // In one buffer, a slice and its copy might overlap.
                let apart = a.src.buffer != a.dst.buffer;
                apart && a.ready == b.ready && slices.joins(last(a.src), b.src) && slices.joins(last(a.dst), b.dst)
            };
            for run in copies.chunk_by(joins) {
                let count = run.iter().map(|copy| copy.count).sum();
                let instruction = Instruction::Copy { src: run[0].src.slice(count), dst: run[0].dst.slice(count) };
                let after = run.iter().flat_map(|copy| copy.after.iter().copied()).collect();
                self.push(rank, local, instruction, after, None);
            }
        }
    }

    /// The copy that a final value needs; `None` if it is in its output slot.
    fn final_copy(&self, id: ValueId) -> Option<FinalCopy> {
        let value = &self.flow[id];
        let (src, dst) = (self.placement.slot(id), self.slices.layout.output_slot(value.chunk, value.rank)?);
        if src == dst {
            return None;
        }
        let old = self.placement.occupant(value.rank, dst);
        let readers =
            old.iter().flat_map(|&old| self.flow[old].senders.iter().copied().chain(self.flow[old].reduced_by));
        let ready = value.writer.into_iter().chain(readers).map(|id| self.plan.order().place(self.flow[id].transfer));
        let ready = ready.max();
        let mut after: Vec<StepRef> = old.into_iter().flat_map(|old| self.released(old, None)).collect();
        after.extend(self.written(id));
        Some(FinalCopy { ready, src, dst, count: 1, after })
    }

    /// The copies of the block that an alltoall keeps for itself.
    fn own_block(&self, rank: Rank) -> Vec<FinalCopy> {
        let own = self.slices.layout.own_block(rank).filter(|own| own.input != own.output);
        let Some(own) = own.filter(|_| self.plan.is_first(rank)) else { return Vec::new() };
        let slot = |slice: Slice| Slot { buffer: slice.buffer, index: slice.index };
        let (src, dst, count) = (slot(own.input), slot(own.output), own.output.count);
        let run = |at, count| FinalCopy { ready: None, src: src.plus(at), dst: dst.plus(at), count, after: Vec::new() };
        if self.slices.single { (0..count).map(|at| run(at, 1)).collect() } else { vec![run(0, count)] }
    }
}

/// Sorts the copies of one rank so that each is made before its source is overwritten; otherwise their order stays.
/// Such an order exists: only a chunk of the input can be in the output slot of another, and both buffers list chunks
/// in ascending order. So of copies that depend on each other, all move up or all move down.
fn readers_first(copies: Vec<FinalCopy>) -> Vec<FinalCopy> {
    let reader: BTreeMap<Slot, usize> = copies.iter().enumerate().map(|(index, copy)| (copy.src, index)).collect();
    let mut left: Vec<Option<FinalCopy>> = copies.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(left.len());
    for first in 0..left.len() {
        let begin = ordered.len();
        let mut next = Some(first);
        while let Some(copy) = next.and_then(|index| left[index].take()) {
            next = reader.get(&copy.dst).copied();
            ordered.push(copy);
        }
        ordered[begin..].reverse();
    }
    ordered
}

fn empty(layout: &Layout, rank: Rank) -> RankProgram {
    let parts = |buffer| layout.slot_parts(rank, buffer).collect();
    let (input_parts, output_parts) = (parts(Buffer::Input), parts(Buffer::Output));
    RankProgram { input_parts, output_parts, ..RankProgram::default() }
}

fn receive(from: ConnectionId, base: Option<Slice>, dst: Slice) -> Instruction {
    match base {
        Some(src) => Instruction::ReceiveReduce { from, src, dst },
        None => Instruction::Receive { from, dst },
    }
}

impl Slices<'_> {
    /// Whether `b`'s slots directly follow `a`'s at both ends.
    fn follow(&self, a: &PlacedDelivery, b: &PlacedDelivery) -> bool {
        let bases = match (a.base, b.base) {
            (Some(a), Some(b)) => self.joins(a, b),
            (a, b) => a == b,
        };
        let added = a.then.len() == b.then.len() && a.then.iter().zip(&b.then).all(|(&a, &b)| self.joins(a, b));
        bases && added && self.joins(a.src, b.src) && self.joins(a.landing.slot, b.landing.slot)
    }
}
