//! A plan while it is changed: which messages carry which chunks, and in which order.
//!
//! The principal type is [`Draft`]. The way of a chunk is a tree: each rank that receives it has one message that
//! brings it. A message has no time, only a *key*. Messages are played in the order of their keys, as far as their
//! chunks have arrived ([`super::clock`]). So a change of a draft touches a few words, and moves nothing else.

use schedule::{ChunkId, ChunkList, Message, Transfer, TransferKind};
use topology::{LinkId, Micros, Rank, Topology};

/// The id of a message of a draft: its index in [`Draft::sendings`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SendingId(u32);

impl SendingId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a draft has at most one message per delivery of a bounded demand"))
    }
}

/// A message without times.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    pub(super) link: LinkId,
    /// The chunks that it carries; a message without chunks is not played.
    pub(super) chunks: ChunkList,
    /// Its key in the order of playing.
    pub(super) key: Micros,
}

/// Messages, and for each chunk and rank the message that brings it.
#[derive(Debug, Default)]
pub(super) struct Draft {
    ranks: usize,
    sendings: Vec<Sending>,
    /// By chunk and rank: the message that brings the chunk.
    via: Vec<Option<SendingId>>,
}

impl Clone for Draft {
    fn clone(&self) -> Self {
        Self { ranks: self.ranks, sendings: self.sendings.clone(), via: self.via.clone() }
    }

    fn clone_from(&mut self, source: &Self) {
        self.ranks = source.ranks;
        self.sendings.clone_from(&source.sendings);
        self.via.clone_from(&source.via);
    }
}

impl Draft {
    pub(super) fn new(ranks: usize, chunks: usize) -> Self {
        Self { ranks, sendings: Vec::new(), via: vec![None; ranks * chunks] }
    }

    /// The draft of `transfers`, which are sorted by start. If two bring the same chunk to the same rank, the earlier
    /// arrival counts.
    pub(super) fn of(
        transfers: &[Transfer],
        ranks: usize,
        holds: impl Fn(ChunkId, Rank) -> bool,
        chunks: usize,
    ) -> Self {
        let mut arrival = vec![f64::INFINITY; ranks * chunks];
        for transfer in transfers {
            for chunk in &transfer.chunks {
                let earliest = &mut arrival[chunk.index() * ranks + transfer.to.index()];
                *earliest = earliest.min(transfer.end.0);
            }
        }
        let mut draft = Self::new(ranks, chunks);
        for transfer in transfers {
            let mut carried = None;
            for &chunk in &transfer.chunks {
                let at = chunk.index() * ranks + transfer.to.index();
                let first = transfer.end.0 <= arrival[at] && draft.via[at].is_none();
                if !first || holds(chunk, transfer.to) {
                    continue;
                }
                match carried {
                    None => carried = Some(draft.send(transfer.link, transfer.to, chunk, transfer.start)),
                    Some(id) => draft.join(id, transfer.to, chunk),
                }
            }
        }
        draft
    }

    /// All messages, including those without chunks.
    pub(super) fn sendings(&self) -> &[Sending] {
        &self.sendings
    }

    pub(super) fn sending(&self, id: SendingId) -> &Sending {
        &self.sendings[id.index()]
    }

    /// The message that brings `chunk` to `rank`.
    pub(super) fn via(&self, chunk: ChunkId, rank: Rank) -> Option<SendingId> {
        self.via[chunk.index() * self.ranks + rank.index()]
    }

    /// For each rank, the message that brings `chunk` to it.
    pub(super) fn ways(&self, chunk: ChunkId) -> &[Option<SendingId>] {
        &self.via[chunk.index() * self.ranks..(chunk.index() + 1) * self.ranks]
    }

    /// Adds a message of one chunk over `link`, which leads to `to`.
    pub(super) fn send(&mut self, link: LinkId, to: Rank, chunk: ChunkId, key: Micros) -> SendingId {
        let id = SendingId::from_index(self.sendings.len());
        self.sendings.push(Sending { link, chunks: [chunk].into_iter().collect(), key });
        self.via[chunk.index() * self.ranks + to.index()] = Some(id);
        id
    }

    /// Adds a chunk to a message that leads to `to`.
    pub(super) fn join(&mut self, id: SendingId, to: Rank, chunk: ChunkId) {
        self.sendings[id.index()].chunks.push(chunk);
        self.via[chunk.index() * self.ranks + to.index()] = Some(id);
    }

    /// Removes the delivery of `chunk` to `rank`, if there is one.
    pub(super) fn drop_delivery(&mut self, chunk: ChunkId, rank: Rank) {
        if let Some(id) = self.via[chunk.index() * self.ranks + rank.index()].take() {
            self.sendings[id.index()].chunks.retain(|carried: &mut ChunkId| *carried != chunk);
        }
    }

    /// Changes the place of a message in the order.
    pub(super) fn set_key(&mut self, id: SendingId, key: Micros) {
        self.sendings[id.index()].key = key;
    }

    pub(super) fn passes_on(&self, chunk: ChunkId, rank: Rank, topology: &Topology) -> bool {
        self.ways(chunk).iter().flatten().any(|&id| topology.link(self.sending(id).link).from == rank)
    }

    /// Writes into `into` the same messages, numbered and keyed in the order of their starts; `played` is the order in
    /// which they were played.
    pub(super) fn renumbered(&self, into: &mut Self, played: &mut [SendingId], start: &[Micros], topology: &Topology) {
        // The sort is stable: messages that start together stay in the order of playing, which keeps dependencies.
        played.sort_by(|a, b| start[a.index()].total_cmp(&start[b.index()]));
        into.ranks = self.ranks;
        into.sendings.clear();
        into.via.clear();
        into.via.resize(self.via.len(), None);
        for &id in played.iter() {
            let new = SendingId::from_index(into.sendings.len());
            let sending = self.sending(id);
            let to = topology.link(sending.link).to;
            for chunk in &sending.chunks {
                into.via[chunk.index() * self.ranks + to.index()] = Some(new);
            }
            into.sendings.push(Sending { key: start[id.index()], ..sending.clone() });
        }
    }

    /// The messages in the order of their numbers.
    pub(super) fn messages(&self) -> Vec<Message> {
        let message = |sending: &Sending| {
            let mut chunks = sending.chunks.clone();
            chunks.sort_unstable();
            Message { chunks, link: sending.link, kind: TransferKind::Copy }
        };
        self.sendings.iter().filter(|sending| !sending.chunks.is_empty()).map(message).collect()
    }
}
