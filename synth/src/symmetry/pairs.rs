//! Which departures a symmetry makes equal.
//!
//! The principal type is [`PairOrbits`]. Automorphisms of the machine come from the sketch, or from
//! [`detect`], which finds those that leave no rank in place; where the demand has them too, (chunk, link) pairs that they map to each
//! other share their 0/1 columns: sixteen ranks on a switch need a sixteenth of them. A merged column that occurs twice
//! in one capacity row counts twice there, so a symmetry whose image meets itself on a shared resource makes the
//! model infeasible rather than its answer wrong.

use super::{Kinds, detect};
use crate::problem::{Deadline, Problem};
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::LinkId;
use topology::symmetry::Automorphism;

/// A partition of (chunk, link) pairs, of chunks, and of links.
pub(crate) struct PairOrbits {
    links: usize,
    representative: Vec<usize>,
    chunk_representative: Vec<usize>,
    link_representative: Vec<usize>,
}

impl PairOrbits {
    /// The orbits under the symmetries that the demand shares; `None` if there are none, or none were found in time.
    pub(crate) fn new(problem: &Problem, deadline: &Deadline) -> Option<Self> {
        let links = problem.topology.links().len();
        let found = match problem.constraints.symmetry.is_empty() {
            true => detect(&problem.topology, &problem.constraints, deadline),
            false => problem.constraints.symmetry.clone(),
        };
        let kinds = Kinds::new(&problem.demand);
        let shared = |symmetry| Some((kinds.images(symmetry)?, symmetry));
        let images: Vec<(Vec<ChunkId>, &Automorphism)> = found.iter().filter_map(shared).collect();
        if images.is_empty() {
            return None;
        }
        let mut parent: Vec<usize> = (0..problem.demand.chunks().len() * links).collect();
        let mut chunk_parent: Vec<usize> = (0..problem.demand.chunks().len()).collect();
        let mut link_parent: Vec<usize> = (0..links).collect();
        for (chunks, symmetry) in &images {
            symmetry.links.iter().enumerate().for_each(|(link, image)| join(&mut link_parent, link, image.index()));
            for (chunk, image) in chunks.iter().enumerate() {
                join(&mut chunk_parent, chunk, image.index());
                for (link, link_image) in symmetry.links.iter().enumerate() {
                    join(&mut parent, chunk * links + link, image.index() * links + link_image.index());
                }
            }
        }
        let representative = (0..parent.len()).map(|pair| find(&mut parent, pair)).collect();
        let chunk_representative = (0..chunk_parent.len()).map(|chunk| find(&mut chunk_parent, chunk)).collect();
        let link_representative = (0..links).map(|link| find(&mut link_parent, link)).collect();
        Some(Self { links, representative, chunk_representative, link_representative })
    }

    /// The orbit of a pair.
    pub(crate) fn of(&self, chunk: ChunkId, link: LinkId) -> usize {
        self.representative[chunk.index() * self.links + link.index()]
    }

    /// Whether the chunk stands for its orbit.
    pub(crate) fn represents(&self, chunk: ChunkId) -> bool {
        self.chunk_representative[chunk.index()] == chunk.index()
    }

    /// Whether `tags` is the same on every pair of an orbit, where a pair without a tag has none.
    pub(crate) fn agree<T: PartialEq>(&self, tags: &BTreeMap<(ChunkId, LinkId), T>) -> bool {
        let tag = |pair: usize| {
            let (chunk, link) = (pair / self.links, pair % self.links);
            tags.get(&(ChunkId(chunk as u32), LinkId::from_index(link)))
        };
        self.representative.iter().enumerate().all(|(pair, &other)| tag(pair) == tag(other))
    }

    /// The orbit of a link.
    pub(crate) fn of_link(&self, link: LinkId) -> usize {
        self.link_representative[link.index()]
    }
}

/// Makes one set of two; the smaller representative stands for it.
fn join(parent: &mut [usize], one: usize, other: usize) {
    let (one, other) = (find(parent, one), find(parent, other));
    parent[one.max(other)] = one.min(other);
}

fn find(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}
