//! Collectives whose chunks are listed one by one, each with its own size.
//!
//! The principal type is [`ListedChunks`].

use super::{BufferMerge, CallerBuffers, LayoutError};
use crate::{Buffer, PartShape};
use schedule::{Chunk, ChunkId, Collective, Demand};
use std::collections::BTreeMap;
use topology::Rank;

/// For each rank the chunks that it holds and wants, ascending.
#[derive(Clone, Debug)]
pub(super) struct ListedChunks {
    held: Vec<Vec<u32>>,
    wanted: Vec<Vec<u32>>,
    /// For each chunk the part with its shape: the first chunk that is cut in the same way.
    parts: Vec<u32>,
}

impl ListedChunks {
    /// The chunks of a demand, and the sizes of their slots.
    pub(super) fn of(demand: &Demand) -> (Self, PartShape) {
        let request = demand.request();
        let cuts = cuts(demand);
        let none = vec![Vec::new(); request.ranks];
        let mut first: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        // Only chunks that are cut exactly alike, because then their lengths are equal for every count.
        let exact = |&(start, end): &(f64, f64)| (start.to_bits(), end.to_bits());
        let parts = (0..).zip(&cuts).map(|(chunk, cut)| *first.entry(exact(cut)).or_insert(chunk)).collect();
        let mut listed = Self { held: none.clone(), wanted: none, parts };
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            chunk.holders.iter().for_each(|rank| listed.held[rank.index()].push(id.0));
            chunk.wanted_by.iter().for_each(|rank| listed.wanted[rank.index()].push(id.0));
        }
        let cuts = cuts.into_iter().map(|(start, end)| (start.round() as u64, end.round() as u64));
        (listed, PartShape::Weighted { cuts: cuts.collect(), unit: request.size_bytes })
    }

    /// How many slots a rank's buffers have, and in place, where one buffer lies in the other.
    pub(super) fn buffers(
        &self,
        collective: Collective,
        rank: Rank,
        in_place: bool,
    ) -> Result<CallerBuffers, LayoutError> {
        let (held, wanted) = (&self.held[rank.index()], &self.wanted[rank.index()]);
        let merged = if !in_place || held.is_empty() || wanted.is_empty() {
            None
        } else {
            Some(self.merged(held, wanted).ok_or(LayoutError::NotInPlace { collective, rank })?)
        };
        Ok(CallerBuffers { input: held.len() as u32, output: wanted.len() as u32, merged })
    }

    fn merged(&self, held: &[u32], wanted: &[u32]) -> Option<BufferMerge> {
        let into_output = run_in(held, wanted).map(|at| BufferMerge { into: Buffer::Output, at });
        let into_input = || run_in(wanted, held).map(|at| BufferMerge { into: Buffer::Input, at });
        let alike = || {
            let parts = |chunks: &[u32]| chunks.iter().map(|&chunk| self.part_of(chunk)).collect::<Vec<_>>();
            (parts(held) == parts(wanted)).then_some(BufferMerge { into: Buffer::Output, at: 0 })
        };
        into_output.or_else(into_input).or_else(alike)
    }

    /// The part whose shape a chunk has.
    pub(super) fn part_of(&self, chunk: u32) -> u32 {
        self.parts[chunk as usize]
    }

    /// The chunks in a rank's buffer, in their order.
    pub(super) fn chunks(&self, rank: Rank, buffer: Buffer) -> &[u32] {
        match buffer {
            Buffer::Input => &self.held[rank.index()],
            Buffer::Output => &self.wanted[rank.index()],
            Buffer::Scratch => &[],
        }
    }

    /// The slot of a rank's buffer where a chunk is, if it is there.
    pub(super) fn index(&self, chunk: ChunkId, rank: Rank, buffer: Buffer) -> Option<u32> {
        self.chunks(rank, buffer).binary_search(&chunk.0).ok().map(|index| index as u32)
    }
}

/// Where the chunks of `small` are in `large`, if they are adjacent there.
fn run_in(small: &[u32], large: &[u32]) -> Option<u32> {
    let at = large.binary_search(small.first()?).ok()?;
    (large.get(at..at + small.len())? == small).then_some(at as u32)
}

/// For each chunk, its start and end in bytes among the earlier chunks with the same holders and receivers. So rounding
/// errors do not add up.
fn cuts(demand: &Demand) -> Vec<(f64, f64)> {
    let chunks = demand.chunks();
    let alike = |a: &Chunk, b: &Chunk| a.holders == b.holders && a.wanted_by == b.wanted_by;
    let mut end = 0.0_f64;
    let cuts = demand.chunk_ids().map(|id| {
        let index = id.index();
        let start = if index > 0 && alike(&chunks[index - 1], &chunks[index]) { end } else { 0.0 };
        end = start + demand.bytes_of(id).0;
        (start, end)
    });
    cuts.collect()
}
