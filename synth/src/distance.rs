//! Shortest α–β paths, the one Dijkstra of this crate's searches and bounds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::{LinkId, Rank, Topology};

/// A finite non-negative `f64` as a totally ordered key (its bits order as its value does).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(u64);

impl Key {
    /// The key of `value`, which must not be negative.
    pub(crate) fn new(value: f64) -> Self {
        debug_assert!(value >= 0.0, "keys are made of times and distances");
        Self(value.to_bits())
    }

    /// The value.
    pub(crate) fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// A shortest-path tree (a forest, if there are several sources).
#[derive(Clone, Debug)]
pub(crate) struct PathTree {
    /// The distance of every rank; infinite where none leads there.
    pub(crate) distance: Vec<f64>,
    /// The last link of a shortest path to every rank; `None` at the sources and where no path leads.
    pub(crate) last: Vec<Option<LinkId>>,
}

impl PathTree {
    /// From `sources`, where link `l` has length `length(l)` (`None`: it may not be used).
    pub(crate) fn new(
        topology: &Topology,
        sources: impl IntoIterator<Item = Rank>,
        mut length: impl FnMut(LinkId) -> Option<f64>,
    ) -> Self {
        let ranks = topology.rank_count();
        let mut tree = Self { distance: vec![f64::INFINITY; ranks], last: vec![None; ranks] };
        let mut queue = BinaryHeap::new();
        for source in sources {
            tree.distance[source.index()] = 0.0;
            queue.push(Reverse((Key::new(0.0), source)));
        }
        while let Some(Reverse((reached, rank))) = queue.pop() {
            if reached.value() > tree.distance[rank.index()] {
                continue;
            }
            for &id in topology.outgoing(rank) {
                let Some(length) = length(id) else { continue };
                let to = topology.link(id).to;
                let through = reached.value() + length;
                if through < tree.distance[to.index()] {
                    tree.distance[to.index()] = through;
                    tree.last[to.index()] = Some(id);
                    queue.push(Reverse((Key::new(through), to)));
                }
            }
        }
        tree
    }

    /// The links of the path to `rank`, first link first; empty at a source or where no path leads.
    pub(crate) fn path_to(&self, topology: &Topology, mut rank: Rank) -> Vec<LinkId> {
        let mut path = Vec::new();
        while let Some(id) = self.last[rank.index()] {
            path.push(id);
            rank = topology.link(id).from;
        }
        path.reverse();
        path
    }
}
