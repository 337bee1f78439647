//! The order in which the messages of a verified schedule leave and land, and the value that each delivery reads.
//!
//! The principal type is [`CausalOrder`]. The verifier works it out once and hands it over with the schedule. Lowering,
//! simulation and explanation read it, so that stated times are compared in one place only.
//!
//! A *delivery* is one chunk of one message. It reads the value that its sender has when the message leaves: the value
//! that the sender had from the start, or the value that an earlier delivery made there. In the order of landing, every
//! message comes after the messages whose deliveries it reads or adds to.

use crate::ChunkId;

/// A delivery, by its position in the list of its chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeliveryId(pub u32);

impl DeliveryId {
    /// The id as an index into the list of the chunk.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The origin of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The rank had it from the start.
    Start,
    /// A delivery of the same chunk made it.
    Delivery(DeliveryId),
}

/// The effect of a delivery at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None: the receiver has this value already.
    Nothing,
    /// The receiver's value is replaced by the value that was read.
    Stores,
    /// The value that was read is added to this value of the receiver.
    AddsTo(Origin),
}

/// One chunk of one message. It has twelve bytes, because large schedules have tens of millions of deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The message, by its position in the schedule.
    pub transfer: u32,
    source: u32,
    effect: u32,
}

/// A number that is no delivery: lists are far shorter.
const START: u32 = u32::MAX;
const STORES: u32 = u32::MAX - 1;
const NOTHING: u32 = u32::MAX - 2;

impl Delivery {
    /// A delivery of `transfer` without an effect yet.
    pub(crate) fn new(transfer: u32) -> Self {
        Self { transfer, source: START, effect: NOTHING }
    }

    pub(crate) fn read(&mut self, source: Origin) {
        self.source = number(source);
    }

    pub(crate) fn take_effect(&mut self, effect: Effect) {
        self.effect = match effect {
            Effect::Nothing => NOTHING,
            Effect::Stores => STORES,
            Effect::AddsTo(base) => number(base),
        };
    }

    /// The value that it reads at the sender.
    pub fn source(&self) -> Origin {
        origin(self.source)
    }

    /// Its effect at the receiver.
    pub fn effect(&self) -> Effect {
        match self.effect {
            NOTHING => Effect::Nothing,
            STORES => Effect::Stores,
            base => Effect::AddsTo(origin(base)),
        }
    }
}

fn number(origin: Origin) -> u32 {
    match origin {
        Origin::Start => START,
        Origin::Delivery(id) => id.0,
    }
}

fn origin(number: u32) -> Origin {
    if number == START { Origin::Start } else { Origin::Delivery(DeliveryId(number)) }
}

/// The order of departures and landings in a verified schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CausalOrder {
    departures: Vec<u32>,
    /// For each transfer its place in the order of landing.
    places: Vec<u32>,
    /// Where the list of each chunk starts in `deliveries`, and the end of the last.
    starts: Vec<u32>,
    deliveries: Vec<Delivery>,
}

impl CausalOrder {
    /// `departures` and `landings` are transfers by position, in these orders; the deliveries are grouped by chunk.
    pub(crate) fn new(departures: Vec<u32>, landings: &[u32], starts: Vec<u32>, deliveries: Vec<Delivery>) -> Self {
        let mut places = vec![0; landings.len()];
        for (place, &transfer) in (0..).zip(landings) {
            places[transfer as usize] = place;
        }
        Self { departures, places, starts, deliveries }
    }

    /// All transfers in order of departure; each comes after those that brought what it carries.
    pub fn departures(&self) -> &[u32] {
        &self.departures
    }

    /// A transfer's place in the order of landing.
    pub fn place(&self, transfer: u32) -> u32 {
        self.places[transfer as usize]
    }

    /// The deliveries of a chunk, in order of departure.
    pub fn deliveries(&self, chunk: ChunkId) -> &[Delivery] {
        &self.deliveries[self.starts[chunk.index()] as usize..self.starts[chunk.index() + 1] as usize]
    }
}
