//! Shortest paths: the one Dijkstra of this crate.
//!
//! The principal type is [`PathTree`], paths over links by α–β times, prices or hops. Under it is [`spread_from`],
//! which asks its caller for the ways on from a rank, so that it also serves graphs whose ways depend on when they
//! are taken (epochs). [`Key`] is how times order in queues.

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

/// Where a search has been: the cost of the cheapest way to a rank, and the last step of it (`None` at a source).
pub(crate) type Reached<C, S> = Option<(C, Option<S>)>;

/// Dijkstra from `sources`, which cost `nothing`, to all of `ranks`.
///
/// `ways_on` is called once per rank with the cost of being there, and offers each way on: where it leads, the cost
/// of being there by it (no less than here), and what it is called.
pub(crate) fn spread_from<C: Copy + Ord, S: Copy>(
    sources: impl IntoIterator<Item = Rank>,
    nothing: C,
    ranks: usize,
    mut ways_on: impl FnMut(Rank, C, &mut dyn FnMut(Rank, C, S)),
) -> Vec<Reached<C, S>> {
    let mut reached: Vec<Reached<C, S>> = vec![None; ranks];
    let mut queue = BinaryHeap::new();
    for source in sources {
        reached[source.index()] = Some((nothing, None));
        queue.push(Reverse((nothing, source)));
    }
    while let Some(Reverse((here, rank))) = queue.pop() {
        if reached[rank.index()].is_some_and(|(cost, _)| cost < here) {
            continue;
        }
        ways_on(rank, here, &mut |to, cost, step| {
            let known = &mut reached[to.index()];
            if known.is_none_or(|(best, _)| cost < best) {
                *known = Some((cost, Some(step)));
                queue.push(Reverse((cost, to)));
            }
        });
    }
    reached
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
        let reached = spread_from(sources, Key::new(0.0), topology.rank_count(), |rank, here, offer| {
            for &id in topology.outgoing(rank) {
                if let Some(length) = length(id) {
                    offer(topology.link(id).to, Key::new(here.value() + length), id);
                }
            }
        });
        let distance = reached.iter().map(|it| it.map_or(f64::INFINITY, |(cost, _)| cost.value())).collect();
        Self { distance, last: reached.iter().map(|it| it.and_then(|(_, last)| last)).collect() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shortest_and_the_unreachable_is_infinitely_far() {
        let topology = topology::resolve("ring:6").expect("a family");
        let one_way = |id: LinkId| {
            let link = topology.link(id);
            (link.to.0 == link.from.0 + 1).then_some(2.0)
        };
        let tree = PathTree::new(&topology, [Rank(2)], one_way);
        let far = f64::INFINITY;
        assert_eq!(tree.distance, [far, far, 0.0, 2.0, 4.0, 6.0]);
        let stops: Vec<u32> = tree.path_to(&topology, Rank(5)).iter().map(|&id| topology.link(id).to.0).collect();
        assert_eq!(stops, [3, 4, 5]);
        assert!(tree.path_to(&topology, Rank(0)).is_empty());
    }

    #[test]
    fn ways_may_depend_on_the_cost_so_far() {
        // A door between 0 and 1 opens at 5; the way around takes 3 + 3.
        let reached = spread_from([Rank(0)], 0, 3, |rank, here: u32, offer| match rank.0 {
            0 => {
                offer(Rank(1), here.max(5) + 2, "door");
                offer(Rank(2), here + 3, "out");
            }
            2 => offer(Rank(1), here + 3, "in"),
            _ => {}
        });
        assert_eq!(reached, [Some((0, None)), Some((6, Some("in"))), Some((3, Some("out")))]);
    }
}
