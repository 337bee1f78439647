//! When messages leave and when they count as landed: the one place that compares the two.
//!
//! The principal type is [`Moments`]. A message departs at its stated start and arrives one exact duration later. Departures at a
//! time come after arrivals at that time, within the tolerance. Where the tolerance is longer than half of a message (late in a long schedule), a departure
//! counts the message as landed if it is nearer to the arrival than to the departure; otherwise two ranks that exchange values at
//! once would seem to send on what they receive. So a message that takes any time never lands before it leaves, and all
//! departures and landings stand in one order.

use super::TIME_TOLERANCE;
use rayon::prelude::*;
use topology::Micros;

/// Messages with their times, and the order that follows from them.
pub(super) struct Moments {
    start: Vec<Micros>,
    end: Vec<Micros>,
    /// The messages that take part, in order of departure. Of those that leave at once the one that stands first is first.
    departures: Vec<u32>,
}

impl Moments {
    /// Of messages with their starts and ends, by position; those of `departures` take part, those that leave at once in that order.
    pub(super) fn new(start: Vec<Micros>, end: Vec<Micros>, mut departures: Vec<u32>) -> Self {
        // Most schedules are sorted already, which costs a stable sort next to nothing.
        departures.par_sort_by(|&a, &b| start[a as usize].total_cmp(&start[b as usize]));
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

    /// The earliest departure that a message counts as landed for.
    pub(super) fn landing(&self, message: u32) -> Micros {
        let (start, end) = (self.start(message), self.end(message));
        Micros(end.0 - TIME_TOLERANCE * end.0.abs()).max(Micros(start.0 + (end.0 - start.0) / 2.0))
    }

    /// The messages in order of landing. Those that take no time land after others of the same instant, in order of departure.
    pub(super) fn landings(&self) -> Vec<u32> {
        let mut order: Vec<(Micros, bool, u32)> =
            self.departures.iter().map(|&message| self.landing_key(message)).collect();
        order.par_sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        order.into_iter().map(|(.., message)| message).collect()
    }

    /// What messages are sorted by in order of landing; equal ones stay in order of departure.
    pub(super) fn landing_key(&self, message: u32) -> (Micros, bool, u32) {
        let landing = self.landing(message);
        (landing, landing <= self.start(message), message)
    }

    /// The same messages at other times; those that leave at once in the order given.
    pub(super) fn moved(&self, start: Vec<Micros>, departures: Vec<u32>) -> Self {
        let lasts = |(message, &start): (usize, &Micros)| start + (self.end[message] - self.start[message]);
        let end = start.iter().enumerate().map(lasts).collect();
        Self::new(start, end, departures)
    }
}
