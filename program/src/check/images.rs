//! What other ranks of an orbit have where the first rank has a part or a symbol.
//!
//! The principal type is [`Images`]. In a plain program every rank is the first of its orbit, and every image is the thing
//! itself.

use super::ProgramViolation;
use crate::{ConnectionId, Layout, Program};
use schedule::{ChunkId, Findings, Unfolding};
use topology::Rank;

/// The group of a program; none for a plain one.
pub(super) struct Images<'a> {
    unfolding: Option<&'a Unfolding>,
    /// For each part a chunk with it.
    with_part: Vec<Option<ChunkId>>,
    /// For each chunk its part; empty in a plain program.
    parts: Vec<u32>,
}

impl<'a> Images<'a> {
    /// A plain program.
    pub(super) fn plain() -> Self {
        Self { unfolding: None, with_part: Vec::new(), parts: Vec::new() }
    }

    /// The images under `unfolding`, which must belong to the program's demand.
    ///
    /// # Errors
    /// [`ProgramViolation::OrbitForm`] where chunks of one shape have images of several shapes.
    pub(super) fn of(
        program: &Program,
        layout: &Layout,
        unfolding: Option<&'a Unfolding>,
    ) -> Result<Self, Findings<ProgramViolation>> {
        let Some(unfolding) = unfolding else { return Ok(Self::plain()) };
        let refused = |reason| Err(Findings::from_iter([ProgramViolation::OrbitForm { rank: Rank(0), reason }]));
        if program.in_place {
            return refused("its slots cannot be repeated, because input and output are the same memory");
        }
        let parts: Vec<u32> = program.demand.chunk_ids().map(|chunk| layout.part_of(chunk)).collect();
        let mut with_part = vec![None; layout.shape().parts() as usize];
        for (chunk, &part) in program.demand.chunk_ids().zip(&parts) {
            with_part[part as usize].get_or_insert(chunk);
        }
        let images = Self { unfolding: Some(unfolding), with_part, parts };
        let alike = |element: u32| {
            let image = |chunk| images.parts[unfolding.moved_chunk(element, chunk).index()];
            program.demand.chunk_ids().all(|chunk| image(chunk) == images.part(element, images.parts[chunk.index()]))
        };
        match unfolding.generators().all(alike) {
            true => Ok(images),
            false => refused("its slots cannot be repeated, because the group moves parts of one shape to several"),
        }
    }

    /// The group; none for a plain program.
    pub(super) fn unfolding(&self) -> Option<&'a Unfolding> {
        self.unfolding
    }

    /// The rank whose steps a rank repeats: the first of its orbit.
    pub(super) fn first(&self, rank: Rank) -> Rank {
        self.unfolding.map_or(rank, |unfolding| unfolding.first_rank(rank).0)
    }

    /// Whether the steps of a rank are written down.
    pub(super) fn is_first(&self, rank: Rank) -> bool {
        self.first(rank) == rank
    }

    /// A chunk at a rank, seen from where the chunk is the first of its orbit: that chunk, and which rank has it.
    pub(super) fn seen_from_first_chunk(&self, chunk: ChunkId, rank: Rank) -> (ChunkId, Rank) {
        let Some(unfolding) = self.unfolding else { return (chunk, rank) };
        let (first, element) = unfolding.first_chunk(chunk);
        (first, unfolding.moved_rank(unfolding.inverse(element), rank))
    }

    /// The rank that has `chunk` where `rank` has the first chunk of its orbit.
    pub(super) fn where_chunk_is(&self, chunk: ChunkId, rank: Rank) -> Rank {
        self.unfolding.map_or(rank, |unfolding| unfolding.moved_rank(unfolding.first_chunk(chunk).1, rank))
    }

    /// The element that maps the first rank of its orbit to the receiver of a connection.
    pub(super) fn across(&self, program: &Program, connection: ConnectionId) -> u32 {
        self.unfolding.map_or(0, |unfolding| unfolding.first_rank(program.connections[connection.index()].to).1)
    }

    /// The image of a part: that of the chunks that have it.
    pub(super) fn part(&self, element: u32, part: u32) -> u32 {
        let (Some(unfolding), Some(&Some(chunk))) = (self.unfolding, self.with_part.get(part as usize)) else {
            return part;
        };
        self.parts[unfolding.moved_chunk(element, chunk).index()]
    }

    /// The image of a chunk.
    pub(super) fn chunk(&self, element: u32, chunk: ChunkId) -> ChunkId {
        self.unfolding.map_or(chunk, |unfolding| unfolding.moved_chunk(element, chunk))
    }

    /// The image of a rank.
    pub(super) fn rank(&self, element: u32, rank: Rank) -> Rank {
        self.unfolding.map_or(rank, |unfolding| unfolding.moved_rank(element, rank))
    }

    /// The element that undoes `element`.
    pub(super) fn inverse(&self, element: u32) -> u32 {
        self.unfolding.map_or(0, |unfolding| unfolding.inverse(element))
    }

    /// One element after the other.
    pub(super) fn product(&self, one: u32, other: u32) -> u32 {
        self.unfolding.map_or(0, |unfolding| unfolding.product(one, other))
    }
}
