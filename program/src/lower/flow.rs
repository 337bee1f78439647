//! The schedule as data flow: the value that every transfer carries, and the value that it makes.
//!
//! The principal type is [`DataFlow`]. A *value* is the content of one chunk at one rank between two changes. Every
//! delivery (one chunk of one transfer) reads one value at the sender and makes one at the receiver. In this form no
//! value ever changes (static single assignment), so slots and dependencies are chosen later from the readers of each
//! value.
//!
//! The verifier found which value a delivery reads ([`schedule::CausalOrder`]). Deliveries on which no final value depends are
//! dropped, such as a second copy of a chunk that the receiver already has.

use super::plan::Plan;
use super::sums;
use schedule::{ChunkId, Effect, Origin};
use std::ops::Index;
use topology::Rank;

/// A value: index into its [`DataFlow`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ValueId(u32);

/// A delivery: index into its [`DataFlow`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ValueDeliveryId(u32);

impl ValueId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueDeliveryId {
    pub(super) fn from_index(index: usize) -> Self {
        Self(index as u32)
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The content of a chunk at a rank until it changes.
#[derive(Debug)]
pub(super) struct Value {
    /// The chunk and the rank; of a compressed schedule, as the first rank of the orbit sees them.
    pub(super) chunk: ChunkId,
    pub(super) rank: Rank,
    /// The delivery that made it; `None` if it is there from the start.
    pub(super) writer: Option<ValueDeliveryId>,
    /// The deliveries that send it.
    pub(super) senders: Vec<ValueDeliveryId>,
    /// The delivery that adds to it, or that adds it to something else, and so makes the rank's next value.
    pub(super) reduced_by: Option<ValueDeliveryId>,
    /// Whether the rank must end with this value.
    pub(super) is_final: bool,
}

/// One chunk of one transfer.
#[derive(Debug)]
pub(super) struct ValueDelivery {
    /// Position in the schedule.
    pub(super) transfer: u32,
    /// The value it reads at the sender.
    pub(super) source: ValueId,
    /// The value of the receiver that it adds to; `None` for a copy.
    pub(super) base: Option<ValueId>,
    /// Values of the receiver that are added next, in this order.
    pub(super) then: Vec<ValueId>,
    /// The value it makes at the receiver.
    pub(super) result: ValueId,
}

/// A schedule as values and deliveries.
#[derive(Debug, Default)]
pub(super) struct DataFlow {
    pub(super) values: Vec<Value>,
    pub(super) deliveries: Vec<ValueDelivery>,
    /// The deliveries that are not dropped, in order of landing; those of one transfer in order of chunk.
    pub(super) live: Vec<ValueDeliveryId>,
    /// The first chunk whose sum the ranks that want it compute in different ways, so that floats may differ in their last bits.
    pub(super) uneven: Option<ChunkId>,
}

impl Index<ValueId> for DataFlow {
    type Output = Value;
    fn index(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }
}

impl Index<ValueDeliveryId> for DataFlow {
    type Output = ValueDelivery;
    fn index(&self, id: ValueDeliveryId) -> &ValueDelivery {
        &self.deliveries[id.index()]
    }
}

impl DataFlow {
    /// The values and deliveries of a schedule.
    pub(super) fn of(plan: Plan<'_>) -> Self {
        let (order, ranks) = (plan.order(), plan.schedule().demand.request().ranks);
        let mut builder = DataFlowBuilder { plan, flow: Self::default(), current: vec![None; ranks] };
        plan.chunks().into_iter().enumerate().for_each(|(list, id)| builder.chunk(list, id));
        let mut flow = builder.flow;
        let Self { values, deliveries, live, .. } = &mut flow;
        live.sort_unstable_by_key(|&id| {
            let ValueDelivery { transfer, result, .. } = deliveries[id.index()];
            (order.place(transfer), values[result.index()].chunk)
        });
        flow
    }

    /// All values.
    pub(super) fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// How many deliveries there are, including dropped ones.
    pub(super) fn delivery_count(&self) -> usize {
        self.deliveries.len()
    }

    fn add_value(&mut self, chunk: ChunkId, rank: Rank, writer: Option<ValueDeliveryId>) -> ValueId {
        let (senders, reduced_by, is_final) = (Vec::new(), None, false);
        self.values.push(Value { chunk, rank, writer, senders, reduced_by, is_final });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Goes backwards from the final values and registers the readers of all values that they depend on.
    fn keep_what_matters(&mut self, first: usize) {
        for index in (first..self.deliveries.len()).rev() {
            let id = ValueDeliveryId::from_index(index);
            let ValueDelivery { source, base, result, .. } = self.deliveries[index];
            let value = &self.values[result.index()];
            if value.is_final || !value.senders.is_empty() || value.reduced_by.is_some() {
                self.values[source.index()].senders.push(id);
                if let Some(base) = base {
                    self.values[base.index()].reduced_by = Some(id);
                }
                self.live.push(id);
            }
        }
    }
}

struct DataFlowBuilder<'a> {
    plan: Plan<'a>,
    flow: DataFlow,
    /// The value of the current chunk at each rank; all `None` between chunks.
    current: Vec<Option<ValueId>>,
}

impl DataFlowBuilder<'_> {
    fn chunk(&mut self, list: usize, id: ChunkId) {
        let plan = self.plan;
        let (chunk, deliveries) = (plan.schedule().demand.chunk(id), plan.deliveries(list));
        let (first, first_value) = (self.flow.deliveries.len(), self.flow.values.len() as u32);
        for &rank in chunk.holders.iter() {
            self.current[rank.index()] = Some(self.flow.add_value(id, rank, None));
        }
        let mut landed: Vec<usize> = (0..deliveries.len()).collect();
        landed.sort_unstable_by_key(|&place| (plan.order().place(deliveries[place].transfer), place));
        let mut made = vec![None; deliveries.len()];
        for place in landed {
            let delivery = &deliveries[place];
            let (from, to) = plan.way(list, place);
            let value = |origin: Origin, rank: Rank| match origin {
                Origin::Start => chunk.holders.binary_search(&rank).ok().map(|own| ValueId(first_value + own as u32)),
                Origin::Delivery(other) => made[other.index()],
            };
            let base = match delivery.effect() {
                Effect::Nothing => continue,
                Effect::Stores => None,
                Effect::AddsTo(base) => value(base, to),
            };
            let source = value(delivery.source(), from).expect("a value is made before it is read");
            let own = ValueDeliveryId::from_index(self.flow.deliveries.len());
            let result = self.flow.add_value(id, to, Some(own));
            self.flow.deliveries.push(ValueDelivery {
                transfer: delivery.transfer,
                source,
                base,
                then: Vec::new(),
                result,
            });
            (made[place], self.current[to.index()]) = (Some(result), Some(result));
        }
        for &rank in chunk.wanted_by.iter() {
            let value = self.current[rank.index()].expect("a verified schedule delivers what is wanted");
            self.flow.values[value.index()].is_final = true;
        }
        self.flow.keep_what_matters(first);
        if chunk.combine && chunk.wanted_by.len() > 1 {
            let is_even = sums::settle(&mut self.flow, first_value, first);
            self.flow.uneven = self.flow.uneven.or((!is_even).then_some(id));
        }
        chunk.holders.iter().for_each(|rank| self.current[rank.index()] = None);
        (0..deliveries.len()).for_each(|place| self.current[plan.way(list, place).1.index()] = None);
        for value in &mut self.flow.values[first_value as usize..] {
            (value.chunk, value.rank) = plan.seen_from_first(value.chunk, value.rank);
        }
    }
}
