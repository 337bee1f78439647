//! The changes that the search tries: deliveries are removed and brought again, and messages are reordered, merged and
//! split.
//!
//! The principal function is [`ruin`]. Most changes start at a message of the critical chain, because only these can
//! make a plan faster. Some start anywhere, because they make room.

use super::chunk_history::ChunkHistory;
use super::draft::{Draft, SendingId};
use crate::problem::Problem;
use crate::problem::merging::merging_pays;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use schedule::ChunkId;
use topology::{Micros, Rank, Topology};

/// The most neighbours of a message that are removed with it.
const NEIGHBOURS: usize = 6;

/// Changes `draft` at random, and adds the chunks that some rank may lack now to `lacking`. Returns whether anything
/// changed.
pub(super) fn ruin(
    problem: &Problem,
    draft: &mut Draft,
    history: &ChunkHistory<'_>,
    critical: &[SendingId],
    lacking: &mut Vec<ChunkId>,
    random: &mut Pcg64Mcg,
) -> bool {
    let count = draft.sendings().len();
    if count == 0 {
        return false;
    }
    let centre = match critical.len() {
        0 => SendingId::from_index(random.random_range(0..count)),
        _ if random.random_range(0..10) < 3 => SendingId::from_index(random.random_range(0..count)),
        length => critical[random.random_range(0..length)],
    };
    let mut ruin = Ruin { problem, topology: &problem.topology, draft, history, lacking, random };
    match ruin.random.random_range(0..100) {
        0..20 => ruin.delivery(centre),
        20..30 => ruin.message(centre),
        30..42 => ruin.chunk(centre),
        42..56 => ruin.neighbours(centre),
        56..62 => ruin.receiver(centre),
        62..82 => ruin.reorder(centre),
        82..88 => ruin.exchange(centre),
        88..94 => ruin.merge(centre),
        _ => ruin.split(centre),
    }
}

struct Ruin<'a, 'b> {
    problem: &'a Problem,
    topology: &'a Topology,
    draft: &'b mut Draft,
    history: &'b ChunkHistory<'a>,
    lacking: &'b mut Vec<ChunkId>,
    random: &'b mut Pcg64Mcg,
}

impl Ruin<'_, '_> {
    /// Removes a delivery, and the deliveries to relays that only it needed.
    fn take(&mut self, chunk: ChunkId, rank: Rank) {
        let Some(id) = self.draft.via(chunk, rank) else { return };
        let from = self.topology.link(self.draft.sending(id).link).from;
        self.draft.drop_delivery(chunk, rank);
        self.lacking.push(chunk);
        let wanted = self.problem.demand.chunk(chunk).wanted_by.has(from);
        if !wanted && !self.draft.passes_on(chunk, from, self.topology) {
            self.take(chunk, from);
        }
    }

    fn receiver_of(&self, id: SendingId) -> Rank {
        self.topology.link(self.draft.sending(id).link).to
    }

    fn any_chunk(&mut self, id: SendingId) -> Option<ChunkId> {
        let chunks = &self.draft.sending(id).chunks;
        (!chunks.is_empty()).then(|| chunks[self.random.random_range(0..chunks.len())])
    }

    /// Removes one to three single deliveries: one of `centre`, the others of any messages.
    fn delivery(&mut self, centre: SendingId) -> bool {
        let more = self.random.random_range(0..3usize);
        let count = self.draft.sendings().len();
        let mut ids = vec![centre];
        ids.extend((0..more).map(|_| SendingId::from_index(self.random.random_range(0..count))));
        for id in ids {
            let to = self.receiver_of(id);
            if let Some(chunk) = self.any_chunk(id) {
                self.take(chunk, to);
            }
        }
        true
    }

    /// Removes everything that a message carries.
    fn message(&mut self, id: SendingId) -> bool {
        let to = self.receiver_of(id);
        for chunk in self.draft.sending(id).chunks.clone() {
            self.take(chunk, to);
        }
        true
    }

    /// Removes all deliveries of a chunk, or about half of them.
    fn chunk(&mut self, centre: SendingId) -> bool {
        let Some(chunk) = self.any_chunk(centre) else { return false };
        let all = self.random.random_range(0..2) == 0;
        for rank in self.topology.ranks() {
            if all || self.random.random_range(0..2) == 0 {
                self.take(chunk, rank);
            }
        }
        true
    }

    /// Removes a message and its neighbours on its link or on one of its resources.
    fn neighbours(&mut self, centre: SendingId) -> bool {
        let which = self.random.random_range(0..4);
        let visits = self.history.visits_to_place(self.draft.sending(centre).link, which);
        let start = self.draft.sending(centre).key;
        let at = visits.partition_point(|visit| visit.start < start);
        let before = self.random.random_range(0..=NEIGHBOURS / 2).min(at);
        let after = self.random.random_range(1..=NEIGHBOURS / 2);
        let ids: Vec<_> = visits[at - before..].iter().take(before + after).map(|visit| visit.id).collect();
        ids.into_iter().for_each(|id| {
            self.message(id);
        });
        true
    }

    /// Removes what a rank receives around the time of a message.
    fn receiver(&mut self, centre: SendingId) -> bool {
        let (to, at) = (self.receiver_of(centre), self.draft.sending(centre).key);
        let links = self.topology.incoming(to);
        let mut near: Vec<(Micros, SendingId)> = Vec::new();
        for &link in links {
            let visits = self.history.visits(link).iter();
            near.extend(visits.map(|visit| (Micros((visit.start.0 - at.0).abs()), visit.id)));
        }
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let many = self.random.random_range(2..=NEIGHBOURS);
        near.into_iter().take(many).for_each(|(_, id)| {
            self.message(id);
        });
        true
    }

    /// Plays a message just before or after another one that uses its link or one of its resources.
    fn reorder(&mut self, id: SendingId) -> bool {
        let which = self.random.random_range(0..4);
        let visits = self.history.visits_to_place(self.draft.sending(id).link, which);
        let Some(here) = visits.iter().position(|visit| visit.id == id) else { return false };
        // Mostly a near neighbour, sometimes a far one.
        let reach = if self.random.random_range(0..4) == 0 { visits.len() } else { 3.min(visits.len()) };
        let there = match self.random.random_range(0..2) {
            0 => here.saturating_sub(self.random.random_range(1..=reach)),
            _ => (here + self.random.random_range(1..=reach)).min(visits.len() - 1),
        };
        if there == here {
            return false;
        }
        let other = visits[there];
        let key = if there < here { other.start.0 * (1.0 - 1e-9) - 1e-9 } else { other.start.0 * (1.0 + 1e-9) + 1e-9 };
        // Swap the two messages, or move one, so that those between them move up.
        if self.random.random_range(0..3) == 0 {
            let start = self.draft.sending(id).key;
            self.draft.set_key(other.id, start);
        }
        self.draft.set_key(id, Micros(key));
        true
    }

    /// Another message on the link of `id`.
    fn partner(&mut self, id: SendingId) -> Option<SendingId> {
        let visits = self.history.visits(self.draft.sending(id).link);
        let here = visits.iter().position(|visit| visit.id == id)?;
        let there = match self.random.random_range(0..4) {
            0 => self.random.random_range(0..visits.len()),
            1 => here.checked_sub(1)?,
            _ => here + 1,
        };
        visits.get(there).map(|visit| visit.id).filter(|&other| other != id)
    }

    /// Mostly removes the deliveries of `chunk` that follow from `rank`, because their times no longer fit.
    fn spread_anew(&mut self, chunk: ChunkId, rank: Rank) {
        if self.random.random_range(0..4) == 0 {
            return;
        }
        let mut stack = vec![rank];
        while let Some(from) = stack.pop() {
            for to in self.topology.ranks() {
                let way = self.draft.via(chunk, to).map(|id| self.topology.link(self.draft.sending(id).link).from);
                if way == Some(from) {
                    self.draft.drop_delivery(chunk, to);
                    self.lacking.push(chunk);
                    stack.push(to);
                }
            }
        }
    }

    /// Two messages of a link exchange one chunk each.
    fn exchange(&mut self, id: SendingId) -> bool {
        let Some(other) = self.partner(id) else { return false };
        let (Some(mine), Some(theirs)) = (self.any_chunk(id), self.any_chunk(other)) else { return false };
        let to = self.receiver_of(id);
        self.draft.drop_delivery(mine, to);
        self.draft.drop_delivery(theirs, to);
        self.draft.join(other, to, mine);
        self.draft.join(id, to, theirs);
        self.spread_anew(mine, to);
        self.spread_anew(theirs, to);
        true
    }

    /// Moves some or all chunks of a message into another message of its link.
    fn merge(&mut self, id: SendingId) -> bool {
        if !merging_pays(self.topology, self.topology.link(self.draft.sending(id).link)) {
            return false;
        }
        let Some(other) = self.partner(id) else { return false };
        let all = self.random.random_range(0..2) == 0;
        let to = self.receiver_of(id);
        for chunk in self.draft.sending(id).chunks.clone() {
            if all || self.random.random_range(0..2) == 0 {
                self.draft.drop_delivery(chunk, to);
                self.draft.join(other, to, chunk);
                self.spread_anew(chunk, to);
            }
        }
        true
    }

    /// Moves some chunks of a message into a message of their own, just before or after it.
    fn split(&mut self, id: SendingId) -> bool {
        let sending = self.draft.sending(id).clone();
        if sending.chunks.len() < 2 {
            return false;
        }
        let to = self.receiver_of(id);
        let side = if self.random.random_range(0..2) == 0 { -1e-9 } else { 1e-9 };
        let mut new = None;
        for chunk in sending.chunks {
            if self.random.random_range(0..2) == 0 {
                self.draft.drop_delivery(chunk, to);
                match new {
                    None => {
                        new =
                            Some(self.draft.send(sending.link, to, chunk, Micros(sending.key.0 * (1.0 + side) + side)))
                    }
                    Some(new) => self.draft.join(new, to, chunk),
                }
            }
        }
        true
    }
}
