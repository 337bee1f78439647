//! The places of the chunks of an alltoallv or a custom collective in the callers' buffers, by definition. A rank's
//! input is the chunks that it holds, and its output the chunks that it wants, both in the order of chunks. `count`
//! elements have the bytes of the request.
//!
//! The principal type is [`ListedElements`], the part of the naive reference that knows these places. It reads the
//! demand, never a program.

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
pub(crate) struct ListedElements<'a> {
    demand: &'a Demand,
    /// The start of each chunk if all chunks lie one after the other, and the end of the last one.
    starts: Vec<usize>,
}

impl<'a> ListedElements<'a> {
    /// Consecutive chunks with equal holders and equal receivers are cut out of their common bytes. Each cut is rounded
    /// to bytes, and then down to elements.
    pub(crate) fn new(demand: &'a Demand, count: usize) -> Self {
        let unit = u128::from(demand.request().size_bytes.max(1));
        let mut starts = vec![0];
        for alike in demand.chunks().chunk_by(|a, b| (&a.holders, &a.wanted_by) == (&b.holders, &b.wanted_by)) {
            let (first, mut cut) = (starts[starts.len() - 1], 0.0_f64);
            for chunk in alike {
                cut += chunk.bytes.unwrap_or(demand.chunk_bytes()).0;
                starts.push(first + (cut.round() as u128 * count as u128 / unit) as usize);
            }
        }
        Self { demand, starts }
    }

    /// In place: where a rank's input starts in its output, and its output in its input. One of the two is 0.
    pub(crate) fn shared(&self, rank: Rank) -> (usize, usize) {
        let (input, output) = (self.input(rank), self.output(rank));
        let start = |of: &[Piece], within: &[Piece]| {
            let at = within.iter().position(|piece| Some(piece.chunk) == of.first().map(|first| first.chunk))?;
            let chunks = |pieces: &[Piece]| pieces.iter().map(|piece| piece.chunk).collect::<Vec<_>>();
            (chunks(within.get(at..at + of.len())?) == chunks(of)).then(|| within[at].at)
        };
        match (start(&input, &output), start(&output, &input)) {
            (Some(input_at), _) => (input_at, 0),
            (None, output_at) => (0, output_at.unwrap_or(0)),
        }
    }

    /// The first element of a chunk, if all chunks lie one after the other.
    pub(crate) fn start(&self, chunk: ChunkId) -> usize {
        self.starts[chunk.index()]
    }

    /// The chunks that a rank has at the start.
    pub(crate) fn input(&self, rank: Rank) -> Vec<Piece> {
        self.pieces(|id| self.demand.chunk(id).holders.has(rank))
    }

    /// The chunks that a rank must have at the end.
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
