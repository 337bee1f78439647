//! A plan while it is being changed: who sends which chunks to whom, and in which order.
//!
//! The principal type is [`Draft`]. Every chunk that travels is a tree: for each rank that receives it there is one
//! message that brings it. A message has no time, only a *key*: the order in which messages are played is that of
//! their keys, as far as their chunks are there ([`super::clock`]). So every change of a draft is a few words, and
//! nothing has to be shifted.

use schedule::{ChunkId, ChunkList, Message, Transfer, TransferKind};
use topology::{LinkId, Micros, Rank, Topology};

/// A message of a draft: its position in [`Draft::sendings`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SendingId(u32);

impl SendingId {
    /// As an index into a dense table.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    /// The id of the `index`-th message.
    pub(super) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a draft has at most one message per delivery of a bounded demand"))
    }
}

/// A message without times.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    /// Over which link.
    pub(super) link: LinkId,
    /// What it carries; a message that carries nothing any more is not played.
    pub(super) chunks: ChunkList,
    /// Its place in the order.
    pub(super) key: Micros,
}

/// Messages, and which of them brings a chunk to a rank.
#[derive(Debug, Default)]
pub(super) struct Draft {
    ranks: usize,
    sendings: Vec<Sending>,
    /// chunk × rank: the message that brings it.
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
    /// Nothing is sent.
    pub(super) fn new(ranks: usize, chunks: usize) -> Self {
        Self { ranks, sendings: Vec::new(), via: vec![None; ranks * chunks] }
    }

    /// What `transfers`, sorted by start, do; of two that bring the same chunk to the same rank the earlier arrival.
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

    /// All messages, those that carry nothing included.
    pub(super) fn sendings(&self) -> &[Sending] {
        &self.sendings
    }

    /// One message.
    pub(super) fn sending(&self, id: SendingId) -> &Sending {
        &self.sendings[id.index()]
    }

    /// Which message brings `chunk` to `rank`.
    pub(super) fn via(&self, chunk: ChunkId, rank: Rank) -> Option<SendingId> {
        self.via[chunk.index() * self.ranks + rank.index()]
    }

    /// For each rank, which message brings `chunk` to it.
    pub(super) fn ways(&self, chunk: ChunkId) -> &[Option<SendingId>] {
        &self.via[chunk.index() * self.ranks..(chunk.index() + 1) * self.ranks]
    }

    /// A new message of one chunk over `link`, which leads to `to`.
    pub(super) fn send(&mut self, link: LinkId, to: Rank, chunk: ChunkId, key: Micros) -> SendingId {
        let id = SendingId::from_index(self.sendings.len());
        self.sendings.push(Sending { link, chunks: [chunk].into_iter().collect(), key });
        self.via[chunk.index() * self.ranks + to.index()] = Some(id);
        id
    }

    /// Lets a message, which leads to `to`, carry another chunk.
    pub(super) fn join(&mut self, id: SendingId, to: Rank, chunk: ChunkId) {
        self.sendings[id.index()].chunks.push(chunk);
        self.via[chunk.index() * self.ranks + to.index()] = Some(id);
    }

    /// Takes away the delivery of `chunk` to `rank`, if there is one.
    pub(super) fn drop_delivery(&mut self, chunk: ChunkId, rank: Rank) {
        if let Some(id) = self.via[chunk.index() * self.ranks + rank.index()].take() {
            self.sendings[id.index()].chunks.retain(|carried: &mut ChunkId| *carried != chunk);
        }
    }

    /// Moves a message to another place in the order.
    pub(super) fn set_key(&mut self, id: SendingId, key: Micros) {
        self.sendings[id.index()].key = key;
    }

    /// Whether `rank` passes `chunk` on.
    pub(super) fn passes_on(&self, chunk: ChunkId, rank: Rank, topology: &Topology) -> bool {
        self.ways(chunk).iter().flatten().any(|&id| topology.link(self.sending(id).link).from == rank)
    }

    /// The same messages numbered and keyed in the order of their starts; `played` is the order they were played in.
    pub(super) fn renumbered(&self, into: &mut Self, played: &mut [SendingId], start: &[Micros], topology: &Topology) {
        // Stable: what starts together stays as it was played, which is the order of cause and effect.
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
