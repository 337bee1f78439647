//! When links and resources become free and messages arrive: the clock of the searches.
//!
//! The principal type is [`Calendar`]. It applies the cost model of a message, for searches with fixed routes and
//! without. Its times only guide the search; `schedule::replay` computes the final ones.

use crate::problem::distance::Key;
use schedule::{ChunkList, Demand, Message, Transfer, TransferKind};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::{FreeTimes, LinkId, Micros, ResourceId, Topology};

/// Something that happens at an instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A message (by position) has arrived.
    Arrived(u32),
    /// A link can take the next message.
    LinkFree(LinkId),
    /// A resource can take the next message.
    ResourceFree(ResourceId),
}

/// What will happen, and when.
pub(super) struct EventQueue<E>(BinaryHeap<Reverse<(Key, E)>>);

impl<E: Ord> Default for EventQueue<E> {
    fn default() -> Self {
        Self(BinaryHeap::new())
    }
}

impl<E: Ord> EventQueue<E> {
    pub(super) fn post(&mut self, time: Micros, event: E) {
        self.0.push(Reverse((Key::new(time.0), event)));
    }

    /// The next instant at which something happens, and everything that happens then; `None` if nothing is left.
    pub(super) fn next(&mut self, happened: &mut Vec<E>) -> Option<Micros> {
        happened.clear();
        let Reverse((now, event)) = self.0.pop()?;
        happened.push(event);
        // Times that differ only by rounding are the same instant.
        let instant = now.value() * (1.0 + 1e-12) + 1e-12;
        while self.0.peek().is_some_and(|Reverse((time, _))| time.value() <= instant) {
            happened.extend(self.0.pop().map(|Reverse((_, event))| event));
        }
        Some(Micros(instant))
    }
}

/// Messages under way, and the times from which links and resources are free.
pub(crate) struct Calendar<'a> {
    topology: &'a Topology,
    demand: &'a Demand,
    free: FreeTimes,
    events: EventQueue<Event>,
    /// The messages that were sent, without their images.
    sent: Vec<Transfer>,
}

impl<'a> Calendar<'a> {
    pub(crate) fn new(topology: &'a Topology, demand: &'a Demand) -> Self {
        Self { topology, demand, free: FreeTimes::new(topology), events: EventQueue::default(), sent: Vec::new() }
    }

    /// The time from which a link itself is free.
    pub(crate) fn link_free(&self, link: LinkId) -> Micros {
        self.free.link(link)
    }

    /// Whether a link and its resources can take a message now.
    pub(crate) fn is_free(&self, id: LinkId, now: Micros) -> bool {
        self.free.earliest(self.topology, id) <= now
    }

    /// Puts a message on a link and its images on their links, and returns when all have arrived. Images that share a
    /// resource leave one after the other.
    pub(crate) fn send(&mut self, start: Micros, id: LinkId, chunks: ChunkList, images: &[LinkId]) -> Micros {
        let link = self.topology.link(id);
        let bytes = self.demand.message_bytes(&chunks);
        let mut end = start + link.transfer_time(bytes);
        self.free.occupy(self.topology, id, start, bytes);
        for &image in images {
            let start = self.free.earliest(self.topology, image).max(start);
            self.free.occupy(self.topology, image, start, bytes);
            end = end.max(start + self.topology.link(image).transfer_time(bytes));
        }
        self.post(self.free.link(id), Event::LinkFree(id));
        for &resource in &link.resources {
            self.post(self.free.resource(resource), Event::ResourceFree(resource));
        }
        self.post(end, Event::Arrived(self.sent.len() as u32));
        let (from, to) = (link.from, link.to);
        self.sent.push(Transfer { chunks, from, to, link: id, kind: TransferKind::Copy, start, end });
        end
    }

    fn post(&mut self, time: Micros, event: Event) {
        self.events.post(time, event);
    }

    /// The next instant at which something happens, and everything that happens then; `None` if nothing is left.
    pub(crate) fn next(&mut self, happened: &mut Vec<Event>) -> Option<Micros> {
        self.events.next(happened)
    }

    pub(crate) fn message(&self, position: u32) -> &Transfer {
        &self.sent[position as usize]
    }

    /// All messages, in the order in which they were sent, without images, and with the times of the calendar.
    pub(crate) fn into_transfers(self) -> Vec<Transfer> {
        self.sent
    }

    /// The same messages without times.
    pub(crate) fn into_messages(self) -> Vec<Message> {
        self.sent.iter().map(Message::from).collect()
    }
}
