//! Topologies that a formula describes: rings, meshes, cliques.
//!
//! The principal type is [`Family`]: a name, what it takes, and a function from a SPEC to parts. A new family is
//! one file and one line in [`FAMILIES`]. Sizes are checked before anything is allocated, so that a SPEC of a
//! billion ranks is an error and not a wait.

mod clique;
mod grid;
mod switch;

use crate::graph::{MAX_LINKS, MAX_RANKS};
use crate::spec::{LinkCost, Spec};
use crate::{Link, Rank, ResourceId, TopologyError, TopologyParts, TopologyResult};

/// One kind of regular topology.
pub(crate) struct Family {
    /// The name of the SPEC.
    pub(crate) name: &'static str,
    /// The form of its parameters.
    pub(crate) params: &'static str,
    /// One line for people.
    pub(crate) about: &'static str,
    /// The keys it takes, with their values or defaults.
    pub(crate) keys: &'static [&'static str],
    build: fn(&Spec<'_>) -> TopologyResult<TopologyParts>,
}

/// Every family, in the order in which people are shown them.
pub(crate) const FAMILIES: [Family; 9] = [
    grid::RING,
    grid::LINE,
    clique::CLIQUE,
    grid::MESH2D,
    grid::TORUS2D,
    grid::MESH3D,
    grid::TORUS3D,
    grid::HYPERCUBE,
    switch::SWITCH,
];

/// The keys of a family whose links all cost the same.
const COST_KEYS: &[&str] = &["alpha=0.5us", "bandwidth=50GBps", "latency=occupies|pipelines"];

impl Family {
    /// The parts that `spec` describes.
    pub(crate) fn build(&self, spec: &Spec<'_>) -> TopologyResult<TopologyParts> {
        spec.accept_keys(self.keys)?;
        (self.build)(spec)
    }
}

/// Refuses counts over the limits of this build; returns the ranks as an index.
fn check_counts(ranks: u128, links: u128) -> TopologyResult<usize> {
    for (what, count, limit) in [("ranks", ranks, MAX_RANKS), ("links", links, MAX_LINKS)] {
        if count > limit as u128 {
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            return Err(TopologyError::TooMany { what, count, limit: limit as u64 });
        }
    }
    Ok(ranks as usize)
}

fn link(from: usize, to: usize, cost: LinkCost, resources: &[usize]) -> Link {
    Link {
        from: Rank::from_index(from),
        to: Rank::from_index(to),
        alpha: cost.alpha,
        beta: cost.beta,
        latency: cost.latency,
        resources: resources.iter().copied().map(ResourceId::from_index).collect(),
    }
}

/// Every ordered pair of different numbers below `ranks`, sorted.
fn ordered_pairs(ranks: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..ranks).flat_map(move |from| (0..ranks).filter(move |to| *to != from).map(move |to| (from, to)))
}
