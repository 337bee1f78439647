//! Which (chunk, link) pairs a symmetry makes equal.
//!
//! The principal type is [`PairOrbits`]. Pairs that symmetries of machine, sketch and demand map to each other share
//! their 0/1 columns: sixteen ranks on a switch need a sixteenth of them. A merged column may occur twice in one
//! capacity row, and then counts twice there. So a symmetry whose images meet on a shared resource can make the model
//! infeasible, but never its answer wrong.

use super::{SharedSymmetry, Symmetries};
use crate::problem::sets::by_first;
use crate::problem::{Deadline, Problem};
use petgraph::unionfind::UnionFind;
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::LinkId;

/// A partition of (chunk, link) pairs, of chunks, and of links.
pub(crate) struct PairOrbits {
    links: usize,
    representative: Vec<usize>,
    chunk_representative: Vec<usize>,
    link_representative: Vec<usize>,
}

impl PairOrbits {
    /// The orbits under the symmetries that the demand shares; `None` if none exist, or none were found in time.
    pub(crate) fn new(problem: &Problem, symmetries: &Symmetries, deadline: &Deadline) -> Option<Self> {
        let links = problem.topology.links().len();
        let shared = symmetries.shared(problem, deadline);
        if shared.is_empty() {
            return None;
        }
        let chunks = problem.demand.chunks().len();
        let (mut pairs_joined, mut chunks_joined, mut links_joined) =
            (UnionFind::new(chunks * links), UnionFind::new(chunks), UnionFind::new(links));
        for SharedSymmetry { symmetry, chunks } in &shared {
            for (link, image) in symmetry.links.iter().enumerate() {
                links_joined.union(link, image.index());
            }
            for (chunk, image) in chunks.iter().enumerate() {
                chunks_joined.union(chunk, image.index());
                for (link, link_image) in symmetry.links.iter().enumerate() {
                    pairs_joined.union(chunk * links + link, image.index() * links + link_image.index());
                }
            }
        }
        let representative = by_first(pairs_joined.into_labeling());
        let chunk_representative = by_first(chunks_joined.into_labeling());
        let link_representative = by_first(links_joined.into_labeling());
        Some(Self { links, representative, chunk_representative, link_representative })
    }

    pub(crate) fn of(&self, chunk: ChunkId, link: LinkId) -> usize {
        self.representative[chunk.index() * self.links + link.index()]
    }

    pub(crate) fn represents(&self, chunk: ChunkId) -> bool {
        self.chunk_representative[chunk.index()] == chunk.index()
    }

    /// Whether `tags` has the same tag, or none, on all pairs of each orbit.
    pub(crate) fn agree<T: PartialEq>(&self, tags: &BTreeMap<(ChunkId, LinkId), T>) -> bool {
        let tag = |pair: usize| {
            let (chunk, link) = (pair / self.links, pair % self.links);
            tags.get(&(ChunkId(chunk as u32), LinkId::from_index(link)))
        };
        self.representative.iter().enumerate().all(|(pair, &other)| tag(pair) == tag(other))
    }

    pub(crate) fn of_link(&self, link: LinkId) -> usize {
        self.link_representative[link.index()]
    }
}
