//! Checks that every message takes its full time, and that every link and resource serves one message at a time.
//!
//! The messages are timed anew in their causal order. Each starts not before its stated time, not before its chunks
//! are released and have arrived, and not before its link and resources have served earlier messages. A stated time may be earlier than
//! this exact time by the tolerance. Later messages use the exact times, not the stated ones, so a chain of messages
//! cannot use the tolerance again and again.

use super::Violation;
use super::moments::Moments;
use super::traffic::{OnTrack, ServerId, Tracks, Traffic, demand};
use crate::clearly_before;
use crate::order::{Effect, Origin};
use crate::{DeliveryId, Findings};
use topology::{LinkId, Micros, ResourceId, Topology};

/// Reports messages that leave before their chunks have arrived, or before their link or a resource is free.
pub(super) fn check(
    traffic: &impl Traffic,
    topology: &Topology,
    stated: &Moments,
    moments: &Moments,
    landings: &[u32],
    tracks: &Tracks,
    found: &mut Findings<Violation>,
) {
    let mut clock = ExactTimes {
        traffic,
        stated,
        moments,
        tracks,
        departed: vec![false; traffic.schedule().transfers.len()],
        exact: vec![Micros::ZERO; traffic.schedule().transfers.len()],
        there: vec![Micros::ZERO; tracks.deliveries.len()],
        free: vec![0.0; topology.links().len() + topology.resources().len()],
        served: vec![0; topology.links().len() + topology.resources().len()],
        uses: Vec::new(),
        early: Vec::new(),
        overlaps: Vec::new(),
    };
    let mut next = landings.iter().copied().peekable();
    for &message in moments.departures() {
        let start = moments.start(message);
        // A message that takes no time may be next among the landings before it has departed.
        while let Some(landed) = next.next_if(|&it| clock.departed[it as usize] && moments.landing(it) <= start) {
            clock.land(landed);
        }
        clock.depart(message);
    }
    let ExactTimes { early, mut overlaps, .. } = clock;
    found.extend(early);
    overlaps.sort_by_key(|overlap| overlap.server);
    let (links, transfers) = (topology.links().len(), &traffic.schedule().transfers);
    found.extend(overlaps.into_iter().map(|Overlap { server, transfer, other, start, free }| {
        let link = transfers[transfer].link;
        if server < links {
            return Violation::LinkOverlap { transfer, other, link: LinkId::from_index(server), start, free };
        }
        let resource = ResourceId::from_index(server - links);
        let name = topology.resource(resource).name.clone();
        Violation::ResourceOverlap { transfer, other, link, resource, name, start, free }
    }));
}

/// A message that enters a link or resource before it is free.
struct Overlap {
    server: ServerId,
    transfer: usize,
    other: usize,
    start: Micros,
    free: Micros,
}

/// The exact times so far.
struct ExactTimes<'a, T> {
    traffic: &'a T,
    stated: &'a Moments,
    moments: &'a Moments,
    tracks: &'a Tracks,
    departed: Vec<bool>,
    /// The exact departure of each message.
    exact: Vec<Micros>,
    /// When the value that each delivery makes is available.
    there: Vec<Micros>,
    /// For each link and resource, when it is free, in µs; it counts once there is a message in `served`. Both begin as zeros,
    /// which take no memory where they are not touched: a base uses few links of a large machine.
    free: Vec<f64>,
    /// For each link and resource, the message that it served last, plus one; zero while there is none.
    served: Vec<u32>,
    /// The links and resources that the current message uses, for how long, and how many images of it do so.
    uses: Vec<(ServerId, Micros, usize)>,
    early: Vec<Violation>,
    overlaps: Vec<Overlap>,
}

impl<T: Traffic> ExactTimes<'_, T> {
    fn depart(&mut self, message: u32) {
        let start = self.stated.start(message);
        let mut exact = self.moments.start(message);
        for &hop in self.tracks.of_message(message) {
            let Some(source) = self.source(hop) else {
                // Who leaves clearly before was reported when the chunk was played.
                exact = if clearly_before(start, self.release(hop)) { exact } else { exact.max(self.release(hop)) };
                continue;
            };
            let held_from = self.there[source];
            if clearly_before(start, held_from) {
                self.early.push(self.sent_early(message, hop, held_from));
            } else {
                exact = exact.max(held_from);
            }
        }
        let (transfer, mut uses) = (message as usize, std::mem::take(&mut self.uses));
        self.traffic.servers(message, &mut |server, busy, images| {
            if busy > Micros::ZERO {
                uses.push((server, busy, images));
            }
        });
        for &(server, busy, images) in &uses {
            let (mut free, mut other) = self.served_last(server);
            if images > 1 {
                // Several images of one message use a resource at the same time: the last one has to wait for the others.
                (free, other) = (free.max(start) + busy * (images - 1) as f64, message);
            }
            if clearly_before(start, free) {
                self.overlaps.push(Overlap { server, transfer, other: other as usize, start, free });
            } else {
                exact = exact.max(free);
            }
        }
        for (server, busy, _) in uses.drain(..) {
            let free = exact + busy;
            if free > self.served_last(server).0 {
                (self.free[server], self.served[server]) = (free.0, message + 1);
            }
        }
        self.uses = uses;
        (self.exact[transfer], self.departed[transfer]) = (exact, true);
    }

    /// When a link or resource is free, and the message that it served last.
    fn served_last(&self, server: ServerId) -> (Micros, u32) {
        match self.served[server] {
            0 => (Micros(f64::NEG_INFINITY), 0),
            message => (Micros(self.free[server]), message - 1),
        }
    }

    fn land(&mut self, message: u32) {
        let lasts = self.moments.end(message) - self.moments.start(message);
        let arrival = self.exact[message as usize] + lasts;
        for &hop in self.tracks.of_message(message) {
            let base = match self.tracks.deliveries[hop.delivery as usize].effect() {
                Effect::AddsTo(Origin::Delivery(base)) => self.there[self.absolute(hop, base)],
                Effect::AddsTo(Origin::Start) | Effect::Stores | Effect::Nothing => Micros::ZERO,
            };
            self.there[hop.delivery as usize] = arrival.max(base);
        }
    }

    /// From when on the holders have the chunk that a delivery carries.
    fn release(&self, hop: OnTrack) -> Micros {
        demand(self.traffic).chunk(self.traffic.chunk(hop.track as usize)).release
    }

    /// The delivery that made the value that this one reads.
    fn source(&self, hop: OnTrack) -> Option<usize> {
        match self.tracks.deliveries[hop.delivery as usize].source() {
            Origin::Start => None,
            Origin::Delivery(source) => Some(self.absolute(hop, source)),
        }
    }

    /// The position of a delivery of the same track among all deliveries.
    fn absolute(&self, sibling: OnTrack, id: DeliveryId) -> usize {
        self.tracks.starts[sibling.track as usize] as usize + id.index()
    }

    fn sent_early(&self, message: u32, hop: OnTrack, held_from: Micros) -> Violation {
        let transfer = message as usize;
        let (link, start) = (self.traffic.schedule().transfers[transfer].link, self.stated.start(message));
        let chunk = self.traffic.chunk(hop.track as usize);
        let rank = self.tracks.hops[hop.delivery as usize].from;
        Violation::SentBeforeHeld { transfer, link, chunk, rank, start, held_from: Some(held_from) }
    }
}
