//! Shortest paths: the only Dijkstra search of this crate.
//!
//! The principal type is [`PathTree`]: shortest paths over links by α–β times, prices or hops. [`LimitedPaths`] are the
//! paths of a chunk whose ways a sketch limits. Both use [`spread_from`], which asks its caller for the edges that
//! leave a node. So it also serves graphs whose edges depend on time (epochs). [`Key`] orders times in queues.

use crate::problem::{Problem, Way};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::{LinkId, Rank, Topology};

/// A finite non-negative `f64` as a totally ordered key: for such numbers, the bits order as the values do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(u64);

impl Key {
    /// The key of `value`, which must not be negative.
    pub(crate) fn new(value: f64) -> Self {
        debug_assert!(value >= 0.0, "keys are made of times and distances");
        Self(value.to_bits())
    }

    pub(crate) fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// A node of the graph that a search visits; nodes are numbered from 0.
pub(crate) trait GraphNode: Copy + Ord {
    fn number(self) -> usize;
}

impl GraphNode for Rank {
    fn number(self) -> usize {
        self.index()
    }
}

impl GraphNode for usize {
    fn number(self) -> usize {
        self
    }
}

/// What a search knows of a node: the cost of the cheapest path, and its last step (`None` at a source).
pub(crate) type Reached<C, S> = Option<(C, Option<S>)>;

/// Dijkstra's search from `sources`, which cost `nothing`, to all of `nodes`.
///
/// `ways_on` is called once per node, with the node's cost. It offers each edge: the node at its end, the cost of that
/// node by this edge (no less than the cost here), and a name for the step.
pub(crate) fn spread_from<N: GraphNode, C: Copy + Ord, S: Copy>(
    sources: impl IntoIterator<Item = N>,
    nothing: C,
    nodes: usize,
    mut ways_on: impl FnMut(N, C, &mut dyn FnMut(N, C, S)),
) -> Vec<Reached<C, S>> {
    let mut reached: Vec<Reached<C, S>> = vec![None; nodes];
    let mut queue = BinaryHeap::new();
    for source in sources {
        reached[source.number()] = Some((nothing, None));
        queue.push(Reverse((nothing, source)));
    }
    while let Some(Reverse((here, node))) = queue.pop() {
        if reached[node.number()].is_some_and(|(cost, _)| cost < here) {
            continue;
        }
        ways_on(node, here, &mut |to, cost, step| {
            let known = &mut reached[to.number()];
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
    /// The distance of every rank; infinite where no path exists.
    pub(crate) distance: Vec<f64>,
    /// The last link of a shortest path to every rank; `None` at the sources and where no path exists.
    pub(crate) last: Vec<Option<LinkId>>,
}

impl PathTree {
    /// Paths from `sources`, where link `l` has length `length(l)` (`None`: it may not be used).
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

    /// The links of the path to `rank`, first link first; empty at a source or where no path exists.
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

/// Shortest paths under a sketch that limits the ways of a chunk (machine hops, stages), searched over (rank, way)
/// pairs.
///
/// Without such limits there is one way, and this is a [`PathTree`].
#[derive(Clone, Debug)]
pub(crate) struct LimitedPaths {
    reached: Vec<Reached<Key, (LinkId, usize)>>,
    ways: usize,
}

impl LimitedPaths {
    /// Paths from `sources`, where link `l` has length `length(l)` (`None`: it may not be used).
    pub(crate) fn new(
        problem: &Problem,
        sources: impl IntoIterator<Item = Rank>,
        mut length: impl FnMut(LinkId) -> Option<f64>,
    ) -> Self {
        let (topology, constraints) = (&*problem.topology, &*problem.constraints);
        let stages = constraints.stages.as_ref().map_or(1, |stages| usize::from(stages.count));
        // No shortest path has more crossings than there are ranks.
        let most = topology.rank_count() as u32;
        let crossings = constraints.max_machine_hops.map_or(0, |(limit, _)| limit.min(most)) as usize + 1;
        let ways = stages * crossings;
        let sources = sources.into_iter().map(|rank| rank.index() * ways);
        let reached = spread_from(sources, Key::new(0.0), topology.rank_count() * ways, |node, here, offer| {
            let (rank, way) = (Rank::from_index(node / ways), node % ways);
            let way = Way { crossings: (way / stages) as u32, stage: (way % stages) as u8 };
            for &id in topology.outgoing(rank) {
                let Some(next) = constraints.after(topology, way, id) else { continue };
                if let (Some(length), true) = (length(id), next.crossings <= most) {
                    let next = next.crossings as usize * stages + usize::from(next.stage);
                    let to = topology.link(id).to.index() * ways + next;
                    offer(to, Key::new(here.value() + length), (id, node));
                }
            }
        });
        Self { reached, ways }
    }

    /// The cheapest node of `rank`, and its cost.
    fn cheapest(&self, rank: Rank) -> Option<(Key, usize)> {
        let nodes = rank.index() * self.ways..(rank.index() + 1) * self.ways;
        nodes.filter_map(|node| self.reached[node].map(|(cost, _)| (cost, node))).min()
    }

    /// The links of the path to `rank`, first link first; empty at a source or where no path exists.
    pub(crate) fn path_to(&self, rank: Rank) -> Vec<LinkId> {
        let mut path = Vec::new();
        let mut at = self.cheapest(rank).map(|(_, node)| node);
        while let Some((_, Some((id, before)))) = at.and_then(|node| self.reached[node]) {
            path.push(id);
            at = Some(before);
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
    fn limited_paths_take_the_detour_that_the_sketch_permits() {
        // On a ring of three machines of two ranks, 0 1 | 2 3 | 4 5, the short way from 1 to 4 crosses twice.
        let links = [(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (5, 4)];
        let link = |(from, to): (u32, u32)| topology::Link {
            from: Rank(from),
            to: Rank(to),
            alpha: topology::Micros(1.0),
            beta: topology::MicrosPerByte(0.0),
            latency: topology::Latency::Occupies,
            resources: [].into(),
        };
        let machines = (0..3).map(|machine| vec![Rank(2 * machine), Rank(2 * machine + 1)]).collect();
        let parts = topology::TopologyParts {
            ranks: 6,
            machines,
            links: links.map(link).into(),
            ..topology::TopologyParts::default()
        };
        let topology = std::sync::Arc::new(Topology::new(parts).unwrap());
        let request = schedule::Request::new(schedule::Collective::Broadcast, 6, 6);
        let mut problem = Problem::new(topology, std::sync::Arc::new(schedule::Demand::new(request).unwrap()));
        let path = |problem: &Problem| {
            let paths = LimitedPaths::new(problem, [Rank(1)], |id| Some(if id.0 == 6 { 5.0 } else { 1.0 }));
            paths.path_to(Rank(4)).iter().map(|id| links[id.index()].1).collect::<Vec<_>>()
        };
        assert_eq!(path(&problem), [2, 3, 4]);
        let hops =
            crate::problem::Constraints { max_machine_hops: Some((1, 1)), ..crate::problem::Constraints::none() };
        problem.constraints = std::sync::Arc::new(hops);
        assert_eq!(path(&problem), [0, 5, 4]);
        // Three stages: inside a machine, between machines, inside again. A chunk that crossed and moved on cannot
        // cross again.
        let of_link = links.map(|(from, to)| if from / 2 == to / 2 { 0b101 } else { 0b010 }).to_vec();
        let stages = crate::problem::Stages { of_link, count: 3, line: 1 };
        problem.constraints = std::sync::Arc::new(crate::problem::Constraints {
            stages: Some(stages),
            ..crate::problem::Constraints::none()
        });
        assert_eq!(path(&problem), [0, 5, 4]);
    }

    #[test]
    fn ways_may_depend_on_the_cost_so_far() {
        // The edge from 0 to 1 opens at cost 5; the detour takes 3 + 3.
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
