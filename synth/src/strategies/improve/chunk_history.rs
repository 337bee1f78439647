//! The times of the present plan: when each link and resource is used, and why every message starts when it does.
//!
//! The principal type is [`ChunkHistory`]. It is filled again whenever a plan is accepted. The moves read it: gaps that
//! a new message fits in, messages that a chunk could join, and the chain of messages that determines the makespan.

use super::draft::{Draft, Sending, SendingId};
use crate::problem::Problem;
use schedule::ChunkId;
use topology::{LinkId, Micros, Rank, Topology};

/// The use of a link or a resource by a message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Visit {
    pub(super) start: Micros,
    pub(super) end: Micros,
    pub(super) id: SendingId,
}

/// The times of the present plan.
pub(super) struct ChunkHistory<'a> {
    problem: &'a Problem,
    topology: &'a Topology,
    /// For each link and then each resource, its visits by start.
    visits: Vec<Vec<Visit>>,
    /// For each message, the message that it had to wait for last.
    cause: Vec<Option<SendingId>>,
    end: Vec<Micros>,
    /// By chunk and rank: when the rank gets the chunk; infinite if it does not.
    held: Vec<Micros>,
    makespan: Micros,
}

impl<'a> ChunkHistory<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let topology = &*problem.topology;
        let places = topology.links().len() + topology.resources().len();
        Self {
            problem,
            topology,
            visits: vec![Vec::new(); places],
            cause: Vec::new(),
            end: Vec::new(),
            held: Vec::new(),
            makespan: Micros::ZERO,
        }
    }

    /// Records `draft`, whose keys are its starts, in order; `held` is the time from which each rank holds each chunk.
    pub(super) fn write(&mut self, draft: &Draft, held: &[Micros]) {
        self.held.clear();
        self.held.extend_from_slice(held);
        self.visits.iter_mut().for_each(Vec::clear);
        self.cause.clear();
        self.end.clear();
        self.makespan = Micros::ZERO;
        for (index, sending) in draft.sendings().iter().enumerate() {
            let id = SendingId::from_index(index);
            let cause = self.cause_of(draft, sending);
            self.cause.push(cause);
            let (link, bytes) = (self.topology.link(sending.link), self.problem.demand.message_bytes(&sending.chunks));
            let start = sending.key;
            self.end.push(start + link.transfer_time(bytes));
            self.makespan = self.makespan.max(self.end[index]);
            self.visits[sending.link.index()].push(Visit { start, end: start + link.occupancy(bytes), id });
            for &resource in &link.resources {
                let end = start + self.topology.resource(resource).occupancy(link, bytes);
                self.visits[self.topology.links().len() + resource.index()].push(Visit { start, end, id });
            }
        }
    }

    /// The last message that the given one had to wait for; the given one is not recorded yet.
    fn cause_of(&self, draft: &Draft, sending: &Sending) -> Option<SendingId> {
        let from = self.topology.link(sending.link).from;
        let places = self.places(sending.link).filter_map(|place| self.visits[place].last());
        let of_places = places.map(|visit| (visit.end, visit.id));
        let of_chunks = sending.chunks.iter().filter_map(|&chunk| draft.via(chunk, from));
        // No message starts before its chunks arrive. A message that is not recorded yet took no time.
        let of_chunks = of_chunks.filter_map(|id| self.end.get(id.index()).map(|&end| (end, id)));
        of_places.chain(of_chunks).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, id)| id)
    }

    /// The rows of `visits` that a message over `link` uses.
    fn places(&self, link: LinkId) -> impl Iterator<Item = usize> + use<'_> {
        let resources = self.topology.link(link).resources.iter();
        std::iter::once(link.index()).chain(resources.map(|resource| self.topology.links().len() + resource.index()))
    }

    /// The time from which `rank` holds `chunk`.
    pub(super) fn held(&self, chunk: ChunkId, rank: Rank) -> Micros {
        self.held[chunk.index() * self.topology.rank_count() + rank.index()]
    }

    pub(super) fn visits(&self, link: LinkId) -> &[Visit] {
        &self.visits[link.index()]
    }

    /// The visits to a link (`which` = 0) or one of its resources, by start.
    pub(super) fn visits_to_place(&self, link: LinkId, which: usize) -> &[Visit] {
        let place = self.places(link).nth(which % (1 + self.topology.link(link).resources.len()));
        place.map_or(&[], |place| &self.visits[place])
    }

    /// The critical chain: the messages that determine the makespan, last first.
    pub(super) fn critical(&self) -> Vec<SendingId> {
        let last = (0..self.end.len()).rev().max_by(|&a, &b| self.end[a].total_cmp(&self.end[b]));
        let last = last.map(SendingId::from_index);
        std::iter::successors(last, |id| self.cause[id.index()]).collect()
    }

    /// The first instant from `ready` on at which a message of `chunk` over `link` fits between the recorded ones;
    /// visits for which `is_there` is false are ignored.
    pub(super) fn gap(
        &self,
        link: LinkId,
        chunk: ChunkId,
        ready: Micros,
        is_there: impl Fn(SendingId) -> bool,
    ) -> Micros {
        let (described, bytes) = (self.topology.link(link), self.problem.demand.bytes_of(chunk));
        let mut start = ready;
        loop {
            let before = start;
            for (which, place) in self.places(link).enumerate() {
                let busy = match which {
                    0 => described.occupancy(bytes),
                    _ => self.topology.resource(described.resources[which - 1]).occupancy(described, bytes),
                };
                let visits = &self.visits[place];
                // Visits do not overlap, so their ends are sorted as well.
                let first = visits.partition_point(|visit| visit.end.0 <= start.0 * (1.0 + 1e-12));
                for visit in &visits[first..] {
                    if visit.start.0 >= (start + busy).0 * (1.0 - 1e-12) {
                        break;
                    }
                    if is_there(visit.id) {
                        start = start.max(visit.end);
                    }
                }
            }
            if start == before {
                return start;
            }
        }
    }
}
