//! Which ranks can reach each other.

use crate::{Rank, Topology};
use petgraph::algo::kosaraju_scc;
use petgraph::graphmap::DiGraphMap;
use petgraph::unionfind::UnionFind;
use std::collections::BTreeMap;

impl Topology {
    /// The islands of the machine: the largest sets of ranks that can all reach each other. Each set ascends, and sets
    /// are in the order of their first ranks. A collective over all ranks needs exactly one island (Broadcast needs
    /// less).
    pub fn islands(&self) -> Vec<Vec<Rank>> {
        let mut graph = DiGraphMap::<u32, ()>::with_capacity(self.rank_count(), self.links().len());
        for rank in self.ranks() {
            graph.add_node(rank.0);
        }
        for link in self.links() {
            graph.add_edge(link.from.0, link.to.0, ());
        }
        // Not Tarjan's algorithm: that of petgraph is recursive along paths, and on a long ring its stack overflows.
        let mut islands = kosaraju_scc(&graph);
        islands.iter_mut().for_each(|island| island.sort_unstable());
        islands.sort_unstable();
        islands.into_iter().map(|island| island.into_iter().map(Rank).collect()).collect()
    }
}

/// The ranks of every set, each ascending, in the order of their first ranks.
pub(crate) fn rank_sets(groups: UnionFind<usize>) -> Vec<Vec<Rank>> {
    let mut ranks: BTreeMap<usize, Vec<Rank>> = BTreeMap::new();
    for (rank, root) in groups.into_labeling().into_iter().enumerate() {
        ranks.entry(root).or_default().push(Rank::from_index(rank));
    }
    let mut ranks: Vec<Vec<Rank>> = ranks.into_values().collect();
    ranks.sort_unstable();
    ranks
}

#[cfg(test)]
mod tests {
    use crate::{Rank, TopologyParts, resolve};

    #[test]
    fn rings_are_one_island_and_one_way_streets_are_not() {
        assert_eq!(resolve("ring:5").unwrap().islands().len(), 1);
        let broken = |missing: usize| {
            let ring = resolve("ring:3").unwrap();
            let mut links = ring.links().to_vec();
            links.remove(missing);
            crate::Topology::new(TopologyParts { ranks: 3, links, ..TopologyParts::default() }).unwrap()
        };
        assert_eq!(broken(1).islands(), [[Rank(0)], [Rank(1)], [Rank(2)]]);
    }

    #[test]
    fn the_largest_ring_needs_no_deep_stack() {
        assert_eq!(resolve(&format!("ring:{}", crate::MAX_RANKS)).unwrap().islands().len(), 1);
    }
}
