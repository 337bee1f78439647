//! When messages leave and when they count as landed: all comparisons of these two are in this file.
//!
//! The principal type is [`Moments`]. A message departs at its stated start and arrives one exact duration later.
//! Departures at a time come after arrivals at the same time, within the tolerance.
//!
//! Late in a long schedule the tolerance may be longer than half of a message. Two ranks that exchange values at once
//! would then seem to send on what they receive. Therefore a departure counts a message as landed only if it is nearer
//! to the message's arrival than to its departure. So a message that takes any time never lands before it leaves, and
//! all departures and landings have one order.

use crate::TIME_TOLERANCE;
use crate::threads::are_many;
use rayon::prelude::*;
use topology::Micros;

/// Messages with their times, and the order that follows from them.
pub(super) struct Moments {
    start: Vec<Micros>,
    end: Vec<Micros>,
    /// The messages that take part, in order of departure. Messages that leave at the same time are in the order of the
    /// file.
    departures: Vec<u32>,
}

impl Moments {
    /// `start` and `end` are by the positions of messages. Those in `departures` take part; messages that leave at the
    /// same time stay in that order.
    pub(super) fn new(start: Vec<Micros>, end: Vec<Micros>, mut departures: Vec<u32>) -> Self {
        // Most schedules are sorted already; then a stable sort costs almost nothing.
        let earlier = |&a: &u32, &b: &u32| start[a as usize].total_cmp(&start[b as usize]);
        match are_many(departures.len()) {
            true => departures.par_sort_by(earlier),
            false => departures.sort_by(earlier),
        }
        Self { start, end, departures }
    }

    pub(super) fn start(&self, message: u32) -> Micros {
        self.start[message as usize]
    }

    pub(super) fn end(&self, message: u32) -> Micros {
        self.end[message as usize]
    }

    pub(super) fn into_departures(self) -> Vec<u32> {
        self.departures
    }

    pub(super) fn departures(&self) -> &[u32] {
        &self.departures
    }

    /// The earliest departure for which a message counts as landed.
    pub(super) fn landing(&self, message: u32) -> Micros {
        let (start, end) = (self.start(message), self.end(message));
        Micros(end.0 - TIME_TOLERANCE * end.0.abs()).max(Micros(start.0 + (end.0 - start.0) / 2.0))
    }

    /// The messages in order of landing. Messages that take no time land after others of the same time, in order of
    /// departure.
    pub(super) fn landings(&self) -> Vec<u32> {
        let mut order: Vec<(Micros, bool, u32)> =
            self.departures.iter().map(|&message| self.landing_key(message)).collect();
        let earlier = |a: &(Micros, bool, u32), b: &(Micros, bool, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        match are_many(order.len()) {
            true => order.par_sort_by(earlier),
            false => order.sort_by(earlier),
        }
        order.into_iter().map(|(.., message)| message).collect()
    }

    /// The sort key for the order of landing; messages with equal keys stay in order of departure.
    pub(super) fn landing_key(&self, message: u32) -> (Micros, bool, u32) {
        let landing = self.landing(message);
        (landing, landing <= self.start(message), message)
    }

    /// The same messages at other times; messages that leave at the same time are in the order given.
    pub(super) fn moved(&self, start: Vec<Micros>, departures: Vec<u32>) -> Self {
        let lasts = |(message, &start): (usize, &Micros)| start + (self.end[message] - self.start[message]);
        let end = start.iter().enumerate().map(lasts).collect();
        Self::new(start, end, departures)
    }
}
