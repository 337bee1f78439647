//! Chooses the slot of every value.
//!
//! The principal type is [`Placement`]. Values are placed in order of landing, so all steps that may be waited for are
//! known when a value is placed. A slot is free for a delivery once all readers of its content belong to transfers with
//! smaller numbers.

use super::flow::{DataFlow, ValueDelivery, ValueDeliveryId, ValueId};
use super::plan::Plan;
use crate::{Buffer, Layout, Slot};
use schedule::CausalOrder;
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

/// The slots of values.
pub(super) struct Placement<'a> {
    flow: &'a DataFlow,
    layout: &'a Layout,
    order: &'a CausalOrder,
    /// For each value its slot, once placed.
    slots: Vec<Option<Slot>>,
    /// For each rank, the current value of each slot of the buffer with its output slots.
    occupants: Vec<Vec<Option<ValueId>>>,
    /// For each rank, the part of each scratch slot, which determines its shape.
    pub(super) scratch_parts: Vec<Vec<u32>>,
    /// For each rank, the current value of each scratch slot.
    scratch: Vec<Vec<ValueId>>,
    /// For each rank and part, the scratch values that are not final, in the order of their last readers.
    passing: Vec<BTreeMap<u32, BTreeSet<Passing>>>,
}

/// A scratch value that is not final: the arrival of its last reader, its slot, and itself.
type Passing = (u32, u32, ValueId);

/// The place where a delivery lands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    /// The slot of the new value.
    pub(super) slot: Slot,
    /// The value that it overwrites, if any.
    pub(super) replaces: Option<ValueId>,
}

impl<'a> Placement<'a> {
    /// Places the values that are there from the start.
    pub(super) fn new(flow: &'a DataFlow, layout: &'a Layout, plan: Plan<'a>) -> Self {
        let (order, ranks) = (plan.order(), plan.schedule().demand.request().ranks);
        let occupants = (0..ranks).map(Rank::from_index).map(|rank| match plan.is_first(rank) {
            true => vec![None; layout.slots(rank, layout.output(rank).buffer) as usize],
            false => Vec::new(),
        });
        let slots = flow.value_ids().map(|id| {
            let value = &flow[id];
            if value.writer.is_none() { layout.input_slot(value.chunk, value.rank) } else { None }
        });
        let (occupants, slots) = (occupants.collect(), slots.collect());
        let (scratch_parts, scratch, passing) =
            (vec![Vec::new(); ranks], vec![Vec::new(); ranks], vec![BTreeMap::new(); ranks]);
        let mut placement = Self { flow, layout, order, slots, occupants, scratch_parts, scratch, passing };
        for id in flow.value_ids() {
            if let Some(slot) = placement.slots[id.index()] {
                placement.occupy(flow[id].rank, slot, id);
            }
        }
        placement
    }

    /// The slot of a value that was placed.
    pub(super) fn slot(&self, value: ValueId) -> Slot {
        self.slots[value.index()].expect("deliveries are placed in order of landing, after what they read")
    }

    /// The current value of a slot; `None` for scratch, and for empty slots.
    pub(super) fn occupant(&self, rank: Rank, slot: Slot) -> Option<ValueId> {
        let home = slot.buffer == self.layout.output(rank).buffer;
        if home { self.occupants[rank.index()][slot.index as usize] } else { None }
    }

    /// Chooses the slot for the value that a delivery makes.
    pub(super) fn place(&mut self, id: ValueDeliveryId) -> Landing {
        let ValueDelivery { base, result, .. } = self.flow[id];
        let (chunk, rank) = (self.flow[result].chunk, self.flow[result].rank);
        let landing = self.at_home(id).or_else(|| self.on_base(id, base)).unwrap_or_else(|| {
            let part = self.layout.part_of(chunk);
            self.in_used(id, rank, part).unwrap_or_else(|| {
                let scratch = &mut self.scratch_parts[rank.index()];
                scratch.push(part);
                let slot = Slot { buffer: Buffer::Scratch, index: scratch.len() as u32 - 1 };
                Landing { slot, replaces: None }
            })
        });
        self.slots[result.index()] = Some(landing.slot);
        self.occupy(rank, landing.slot, result);
        if landing.slot.buffer == Buffer::Scratch {
            self.keep(rank, landing.slot.index, result);
        }
        landing
    }

    /// Records the new value of a scratch slot.
    fn keep(&mut self, rank: Rank, slot: u32, value: ValueId) {
        let scratch = &mut self.scratch[rank.index()];
        scratch.resize(scratch.len().max(slot as usize + 1), value);
        scratch[slot as usize] = value;
        if let Some(last) = self.last_reader(value) {
            let part = self.layout.part_of(self.flow[value].chunk);
            self.passing[rank.index()].entry(part).or_default().insert((last, slot, value));
        }
    }

    /// The arrival of the last delivery that reads a value; `None` if the value stays to the end.
    fn last_reader(&self, value: ValueId) -> Option<u32> {
        let value = &self.flow[value];
        let readers = value.senders.iter().copied().chain(value.reduced_by);
        let last = readers.map(|reader| self.order.place(self.flow[reader].transfer)).max();
        if value.is_final { None } else { last }
    }

    /// A scratch slot of the same shape whose value no later step reads.
    fn in_used(&mut self, id: ValueDeliveryId, rank: Rank, part: u32) -> Option<Landing> {
        let arrival = self.order.place(self.flow[id].transfer);
        let passing = self.passing[rank.index()].get_mut(&part)?;
        while let Some(&(_, slot, value)) = passing.first().filter(|&&(last, ..)| last < arrival) {
            passing.pop_first();
            // If the slot has another value by now, a sum has replaced this one.
            if self.scratch[rank.index()][slot as usize] == value {
                let slot = Slot { buffer: Buffer::Scratch, index: slot };
                return Some(Landing { slot, replaces: Some(value) });
            }
        }
        None
    }

    fn occupy(&mut self, rank: Rank, slot: Slot, value: ValueId) {
        if slot.buffer == self.layout.output(rank).buffer {
            self.occupants[rank.index()][slot.index as usize] = Some(value);
        }
    }

    /// The output slot of the chunk, if the rank wants the chunk and the slot is free.
    fn at_home(&self, id: ValueDeliveryId) -> Option<Landing> {
        let value = &self.flow[self.flow[id].result];
        let slot = self.layout.output_slot(value.chunk, value.rank)?;
        // The slot is for what it is added to.
        if value.reduced_by.is_some_and(|by| self.flow[by].base != Some(self.flow[id].result)) {
            return None;
        }
        let replaces = self.occupant(value.rank, slot);
        replaces.is_none_or(|occupant| self.may_replace(occupant, id)).then_some(Landing { slot, replaces })
    }

    /// The scratch slot of the value that is added to, if no later delivery sends that value.
    fn on_base(&self, id: ValueDeliveryId, base: Option<ValueId>) -> Option<Landing> {
        let base = base?;
        let slot = self.slot(base);
        let reusable = slot.buffer == Buffer::Scratch && self.may_replace(base, id);
        reusable.then_some(Landing { slot, replaces: Some(base) })
    }

    /// Whether every reader of `value` belongs to a transfer that arrives before that of `id`, or is `id` itself, which adds
    /// to it.
    fn may_replace(&self, value: ValueId, id: ValueDeliveryId) -> bool {
        let is_base = self.flow[id].base == Some(value);
        let value = &self.flow[value];
        let arrival = |id: ValueDeliveryId| self.order.place(self.flow[id].transfer);
        let mut readers = value.senders.iter().copied().chain(value.reduced_by.filter(|_| !is_base));
        !value.is_final && readers.all(|reader| arrival(reader) < arrival(id))
    }
}
