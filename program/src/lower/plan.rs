//! The schedules that are lowered: plain ones, and compressed ones of which only the first of each orbit is lowered.
//!
//! The principal type is [`Plan`]. A plain schedule has a list of deliveries for every chunk. A compressed one has a list for the
//! first chunk of each orbit, with what happens to it at all ranks; what the first rank of an orbit has to do with all chunks is
//! found by looking at each of these deliveries from that rank.

use schedule::{CausalOrder, ChunkId, Delivery, Schedule, Transfer, VerifiedCompressed, VerifiedSchedule};
use std::borrow::Cow;
use topology::Rank;

/// A verified schedule, plain or compressed.
#[derive(Clone, Copy)]
pub(super) enum Plan<'a> {
    Plain(&'a VerifiedSchedule),
    Compressed(&'a VerifiedCompressed),
}

impl<'a> Plan<'a> {
    /// The schedule, or the base of a compressed one.
    pub(super) fn schedule(self) -> &'a Schedule {
        match self {
            Self::Plain(verified) => verified.schedule(),
            Self::Compressed(verified) => verified.base(),
        }
    }

    pub(super) fn order(self) -> &'a CausalOrder {
        match self {
            Self::Plain(verified) => verified.order(),
            Self::Compressed(verified) => &verified.causal_order().order,
        }
    }

    /// The rank whose steps a rank repeats: the first of its orbit.
    pub(super) fn first(self, rank: Rank) -> Rank {
        match self {
            Self::Plain(_) => rank,
            Self::Compressed(verified) => verified.unfolding().first_rank(rank).0,
        }
    }

    /// Whether the steps of a rank are written down.
    pub(super) fn is_first(self, rank: Rank) -> bool {
        self.first(rank) == rank
    }

    /// A chunk at a rank, seen from the first rank of its orbit: which chunk that one has in its place.
    pub(super) fn seen_from_first(self, chunk: ChunkId, rank: Rank) -> (ChunkId, Rank) {
        match self {
            Self::Plain(_) => (chunk, rank),
            Self::Compressed(verified) => {
                let unfolding = verified.unfolding();
                let (first, element) = unfolding.first_rank(rank);
                (unfolding.moved_chunk(unfolding.inverse(element), chunk), first)
            }
        }
    }

    /// The chunks with a list of deliveries, in the order of the lists.
    pub(super) fn chunks(self) -> Vec<ChunkId> {
        match self {
            Self::Plain(verified) => verified.schedule().demand.chunk_ids().collect(),
            Self::Compressed(verified) => verified.unfolding().first_chunks().collect(),
        }
    }

    /// A list of deliveries.
    pub(super) fn deliveries(self, list: usize) -> &'a [Delivery] {
        self.order().deliveries(ChunkId(list as u32))
    }

    /// The sender and the receiver of a delivery, which is at `place` in its list.
    pub(super) fn way(self, list: usize, place: usize) -> (Rank, Rank) {
        match self {
            Self::Plain(verified) => {
                let Transfer { from, to, .. } =
                    verified.schedule().transfers[self.deliveries(list)[place].transfer as usize];
                (from, to)
            }
            Self::Compressed(verified) => verified.causal_order().ways[list][place],
        }
    }

    /// A transfer, or the image of it that the first rank of its sender's orbit sends.
    pub(super) fn seen_by_first(self, transfer: u32) -> Cow<'a, Transfer> {
        let transfer = &self.schedule().transfers[transfer as usize];
        match self {
            Self::Plain(_) => Cow::Borrowed(transfer),
            Self::Compressed(verified) => {
                let unfolding = verified.unfolding();
                let back = unfolding.inverse(unfolding.first_rank(transfer.from).1);
                Cow::Owned(unfolding.moved(back, transfer))
            }
        }
    }
}
