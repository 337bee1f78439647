//! Where the chunks of an alltoallv or a custom collective lie in the callers' buffers, by definition: a rank's input
//! is what it holds, its output what it wants, both in order of chunk, and `count` elements have the bytes of the
//! request.
//!
//! The principal type is [`Listed`], the part of the naive reference that knows it. It reads the demand, never a
//! program.

use schedule::{ChunkId, Demand};
use topology::Rank;

/// A chunk in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) chunk: ChunkId,
    /// Its first element in the buffer.
    pub(crate) at: usize,
    /// Its elements.
    pub(crate) length: usize,
}

/// The listed chunks of a demand, in elements.
pub(crate) struct Listed<'a> {
    demand: &'a Demand,
    /// Where each chunk starts if all lie one after the other, and the end of the last.
    starts: Vec<usize>,
}

impl<'a> Listed<'a> {
    pub(crate) fn new(demand: &'a Demand, count: usize) -> Self {
        let unit = u128::from(demand.request().size_bytes.max(1));
        let mut bytes = 0.0;
        let starts = demand.chunk_ids().map(|id| {
            bytes += demand.bytes_of(id).0;
            (bytes.round() as u128 * count as u128 / unit) as usize
        });
        Self { demand, starts: std::iter::once(0).chain(starts).collect() }
    }

    /// The first element of a chunk, if all lie one after the other.
    pub(crate) fn start(&self, chunk: ChunkId) -> usize {
        self.starts[chunk.index()]
    }

    /// What a rank has at the start.
    pub(crate) fn input(&self, rank: Rank) -> Vec<Piece> {
        self.pieces(|id| self.demand.chunk(id).holders.has(rank))
    }

    /// What it must have at the end.
    pub(crate) fn output(&self, rank: Rank) -> Vec<Piece> {
        self.pieces(|id| self.demand.chunk(id).wanted_by.has(rank))
    }

    fn pieces(&self, has: impl Fn(ChunkId) -> bool) -> Vec<Piece> {
        let mut end = 0;
        let pieces = self.demand.chunk_ids().filter(|&id| has(id)).map(|chunk| {
            let length = self.starts[chunk.index() + 1] - self.starts[chunk.index()];
            end += length;
            Piece { chunk, at: end - length, length }
        });
        pieces.collect()
    }
}
