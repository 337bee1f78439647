//! New times for base transfers in a given order.
//!
//! The principal function is [`Orbits::retimed`]. A plan that is played backwards needs new times where links share
//! ports or α is pure delay: a message occupies what it uses from its start, so mirrored times can clash.

use super::servers::ServerCalendar;
use super::{Base, Orbits};
use crate::problem::Problem;
use schedule::Transfer;
use topology::{LinkId, Micros, Rank};

impl Orbits {
    /// `transfers` in their order, each as early as possible: no earlier than what it carries has arrived at its sender
    /// (all of it, where values are added up) and all that it uses is free. The result is sorted by start.
    pub(super) fn retimed(&self, problem: &Problem, transfers: Vec<Transfer>) -> Base {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let mut calendar = ServerCalendar::new(&self.servers);
        // By base chunk and rank: when the last message with this chunk has arrived there. Nearly all chunks come to all
        // ranks, so that the table is about as long as the list of transfers.
        let mut arrived = vec![Micros::ZERO; self.chunks.orbits() * topology.rank_count()];
        let place = |chunk: u32, rank: Rank| chunk as usize * topology.rank_count() + rank.index();
        let mut makespan = Micros::ZERO;
        let mut timed: Vec<Transfer> = Vec::with_capacity(transfers.len());
        for transfer in transfers {
            let bytes = demand.message_bytes(&transfer.chunks);
            let images: Vec<(u32, LinkId)> =
                transfer.chunks.iter().map(|id| self.on_base(id.0, transfer.link)).collect();
            let held = |&(chunk, link): &(u32, LinkId)| arrived[place(chunk, topology.link(link).from)];
            let ready = images.iter().map(held).fold(Micros::ZERO, Micros::max);
            let orbit = self.links.orbit(transfer.link.0);
            let start = calendar.book(ready, self.servers.busy(topology, orbit, transfer.link, bytes));
            let end = start + topology.link(transfer.link).transfer_time(bytes);
            for (chunk, link) in images {
                let last = &mut arrived[place(chunk, topology.link(link).to)];
                *last = last.max(end);
            }
            makespan = makespan.max(end);
            timed.push(Transfer { start, end, ..transfer });
        }
        timed.sort_by(|a, b| a.start.total_cmp(&b.start));
        Base { transfers: timed, makespan }
    }

    /// The orbit of a chunk, and the link that carries the orbit's first chunk when `link` carries this one.
    fn on_base(&self, chunk: u32, link: LinkId) -> (u32, LinkId) {
        let back = self.group.quotient(0, self.chunks.element(chunk));
        (self.chunks.orbit(chunk), LinkId(self.links.image(&self.group, back, link.0)))
    }
}
