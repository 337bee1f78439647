//! Which value every transfer carries, and where it ends up: the schedule as data flow.
//!
//! The principal type is [`Flow`]. A *value* is what one rank has of one chunk between two changes; every
//! delivery (one chunk of one transfer) reads one value at the sender and makes one at the receiver. Named like
//! this, no value ever changes, so slots and dependencies can be chosen afterwards from who reads what.
//!
//! Chunks do not interact, so each is played alone: departures in order of start, arrivals at time t before
//! departures at time t, as the schedule defines. Deliveries that no final value depends on are dropped, such
//! as a second copy of what the receiver already has.

use super::LowerError;
use schedule::clearly_before;
use schedule::{Chunk, ChunkId, Schedule, Transfer, TransferKind};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Index;
use topology::{Micros, Rank};

/// A value: index into its [`Flow`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ValueId(u32);

/// A delivery: index into its [`Flow`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct DeliveryId(u32);

impl ValueId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl DeliveryId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a rank has of a chunk until it changes.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) chunk: ChunkId,
    pub(super) rank: Rank,
    /// Who made it; `None` if it was there from the start.
    pub(super) writer: Option<DeliveryId>,
    /// The deliveries that send it.
    pub(super) senders: Vec<DeliveryId>,
    /// The delivery that adds to it, making the rank's next value.
    pub(super) reduced_by: Option<DeliveryId>,
    /// Whether this is what the rank must end with.
    pub(super) is_final: bool,
}

/// One chunk of one transfer.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Position in the schedule.
    pub(super) transfer: u32,
    /// The value it reads at the sender.
    pub(super) source: ValueId,
    /// The value of the receiver that it adds to, if it does.
    pub(super) base: Option<ValueId>,
    /// The value it makes at the receiver.
    pub(super) result: ValueId,
}

/// A schedule as values and deliveries.
#[derive(Debug, Default)]
pub(super) struct Flow {
    values: Vec<Value>,
    deliveries: Vec<Delivery>,
    /// The deliveries that matter, in order of arrival; those of one transfer in order of chunk.
    pub(super) live: Vec<DeliveryId>,
}

impl Index<ValueId> for Flow {
    type Output = Value;
    fn index(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }
}

impl Index<DeliveryId> for Flow {
    type Output = Delivery;
    fn index(&self, id: DeliveryId) -> &Delivery {
        &self.deliveries[id.index()]
    }
}

impl Flow {
    /// Plays `schedule`, whose transfers arrive in the order that `arrivals` gives.
    ///
    /// # Errors
    /// [`LowerError::NotHeld`], which a verified schedule never gives.
    pub(super) fn of(schedule: &Schedule, arrivals: &[u32]) -> Result<Self, LowerError> {
        let current = vec![None; schedule.demand.request().ranks];
        let mut play = Play { transfers: &schedule.transfers, arrivals, flow: Self::default(), current };
        for (id, carriers) in schedule.demand.chunk_ids().zip(carriers(schedule)) {
            play.chunk(id, schedule.demand.chunk(id), &carriers)?;
        }
        let mut flow = play.flow;
        let Self { values, deliveries, live } = &mut flow;
        live.sort_unstable_by_key(|&id| {
            let Delivery { transfer, result, .. } = deliveries[id.index()];
            (arrivals[transfer as usize], values[result.index()].chunk)
        });
        Ok(flow)
    }

    /// All values.
    pub(super) fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// How many deliveries there are, dropped ones included.
    pub(super) fn delivery_count(&self) -> usize {
        self.deliveries.len()
    }

    fn add_value(&mut self, chunk: ChunkId, rank: Rank, writer: Option<DeliveryId>) -> ValueId {
        let (senders, reduced_by, is_final) = (Vec::new(), None, false);
        self.values.push(Value { chunk, rank, writer, senders, reduced_by, is_final });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Goes backwards from the final values and registers the readers of all that they depend on.
    fn keep_what_matters(&mut self, first: usize) {
        for index in (first..self.deliveries.len()).rev() {
            let id = DeliveryId(index as u32);
            let Delivery { source, base, result, .. } = self.deliveries[index];
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

/// For each transfer its position in order of arrival.
pub(super) fn arrivals(schedule: &Schedule) -> Vec<u32> {
    let by_end = sorted(schedule, |t| (t.end, t.start));
    let mut arrivals = vec![0; by_end.len()];
    for (position, &transfer) in by_end.iter().enumerate() {
        arrivals[transfer as usize] = position as u32;
    }
    arrivals
}

/// For each chunk the transfers that carry it, in order of departure.
fn carriers(schedule: &Schedule) -> Vec<Vec<u32>> {
    let mut carriers = vec![Vec::new(); schedule.demand.chunks().len()];
    for transfer in sorted(schedule, |t| (t.start, t.end)) {
        for chunk in &schedule.transfers[transfer as usize].chunks {
            carriers[chunk.index()].push(transfer);
        }
    }
    carriers
}

/// The transfers by two times, then by position.
fn sorted(schedule: &Schedule, times: impl Fn(&Transfer) -> (Micros, Micros)) -> Vec<u32> {
    let times = |index: u32| times(&schedule.transfers[index as usize]);
    let mut order: Vec<u32> = (0..schedule.transfers.len() as u32).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (times(a), times(b));
        x.0.total_cmp(&y.0).then(x.1.total_cmp(&y.1)).then(a.cmp(&b))
    });
    order
}

/// Whether what arrives at `end` is there for a departure at `start`, within the verifier's tolerance: what it
/// accepted must be there here as well.
fn lands_by(end: Micros, start: Micros) -> bool {
    !clearly_before(start, end)
}

struct Play<'a> {
    transfers: &'a [Transfer],
    arrivals: &'a [u32],
    flow: Flow,
    /// The value at each rank of the chunk in play; all `None` between chunks.
    current: Vec<Option<ValueId>>,
}

/// A message under way, ordered by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    arrival: u32,
    transfer: u32,
    source: ValueId,
}

impl Play<'_> {
    fn chunk(&mut self, id: ChunkId, chunk: &Chunk, carriers: &[u32]) -> Result<(), LowerError> {
        let first = self.flow.deliveries.len();
        for &rank in chunk.holders.iter() {
            self.current[rank.index()] = Some(self.flow.add_value(id, rank, None));
        }
        let mut in_flight: BinaryHeap<Reverse<Flight>> = BinaryHeap::new();
        for &transfer in carriers {
            let Transfer { from, start, .. } = self.transfers[transfer as usize];
            let landed = |next: &Reverse<Flight>, all: &[Transfer]| lands_by(all[next.0.transfer as usize].end, start);
            while in_flight.peek().is_some_and(|next| landed(next, self.transfers)) {
                in_flight.pop().into_iter().for_each(|Reverse(flight)| self.land(id, chunk, &flight));
            }
            let held = self.current[from.index()];
            let source = held.ok_or(LowerError::NotHeld { transfer, chunk: id, rank: from })?;
            in_flight.push(Reverse(Flight { arrival: self.arrivals[transfer as usize], transfer, source }));
        }
        while let Some(Reverse(flight)) = in_flight.pop() {
            self.land(id, chunk, &flight);
        }
        for &rank in chunk.wanted_by.iter() {
            let value = self.current[rank.index()].ok_or(LowerError::NotDelivered { chunk: id, rank })?;
            self.flow.values[value.index()].is_final = true;
        }
        self.flow.keep_what_matters(first);
        chunk.holders.iter().for_each(|rank| self.current[rank.index()] = None);
        carriers.iter().for_each(|&t| self.current[self.transfers[t as usize].to.index()] = None);
        Ok(())
    }

    fn land(&mut self, id: ChunkId, chunk: &Chunk, flight: &Flight) {
        let Transfer { to, kind, .. } = self.transfers[flight.transfer as usize];
        let held = self.current[to.index()];
        if held.is_some() && !chunk.combine {
            return; // the receiver has the same already
        }
        let base = if kind == TransferKind::Reduce { held } else { None };
        let delivery = DeliveryId(self.flow.deliveries.len() as u32);
        let result = self.flow.add_value(id, to, Some(delivery));
        self.flow.deliveries.push(Delivery { transfer: flight.transfer, source: flight.source, base, result });
        self.current[to.index()] = Some(result);
    }
}
