//! Topologies that a formula describes: rings, meshes, cliques.
//!
//! The principal type is [`Family`]: a name, what it takes, and a function from a SPEC to parts. A new family is one
//! file and one line in [`FAMILIES`]. Sizes are checked before anything is allocated, so that a SPEC of a billion ranks
//! fails at once.

mod clique;
mod dragonfly;
mod fat_tree;
mod grid;
mod switch;

use crate::MAX_RANKS;
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
    /// What parameters and lists of values mean, if the form does not show it.
    pub(crate) details: Option<&'static str>,
    /// The keys it takes, with their values or defaults.
    pub(crate) keys: &'static [&'static str],
    build: fn(&Spec<'_>) -> TopologyResult<TopologyParts>,
}

/// Every family, in the order in which people are shown them.
pub(crate) const FAMILIES: [Family; 11] = [
    grid::RING,
    grid::LINE,
    clique::CLIQUE,
    grid::MESH2D,
    grid::TORUS2D,
    grid::MESH3D,
    grid::TORUS3D,
    grid::HYPERCUBE,
    switch::SWITCH,
    fat_tree::FAT_TREE,
    dragonfly::DRAGONFLY,
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
fn check_counts(spec: &Spec<'_>, ranks: u128, links: u128) -> TopologyResult<usize> {
    for (what, count, limit) in [("ranks", ranks, MAX_RANKS), ("links", links, spec.most_links)] {
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

#[cfg(test)]
mod tests {
    use crate::{Latency, Topology, TopologyError, resolve};
    use std::collections::{BTreeSet, VecDeque};

    fn get(spec: &str) -> Topology {
        resolve(spec).unwrap_or_else(|error| panic!("{error}"))
    }

    fn pairs(topology: &Topology) -> Vec<(u32, u32)> {
        topology.links().iter().map(|link| (link.from.0, link.to.0)).collect()
    }

    /// The longest of the shortest paths, by breadth-first search from every rank; `None` if some rank is out of reach.
    fn diameter(topology: &Topology) -> Option<usize> {
        let mut longest = 0;
        for start in topology.ranks() {
            let mut distance = vec![None; topology.rank_count()];
            distance[start.index()] = Some(0);
            let mut queue = VecDeque::from([start]);
            while let Some(rank) = queue.pop_front() {
                for id in topology.outgoing(rank) {
                    let to = topology.link(*id).to;
                    if distance[to.index()].is_none() {
                        distance[to.index()] = distance[rank.index()].map(|hops: usize| hops + 1);
                        queue.push_back(to);
                    }
                }
            }
            longest = distance.into_iter().collect::<Option<Vec<usize>>>()?.into_iter().chain([longest]).max()?;
        }
        Some(longest)
    }

    /// SPEC, ranks, links, diameter.
    const SHAPES: &[(&str, usize, usize, usize)] = &[
        ("ring:1", 1, 0, 0),
        ("ring:2", 2, 2, 1),
        ("ring:3", 3, 3, 2),
        ("ring:7", 7, 7, 6),
        ("ring:7,direction=both", 7, 14, 3),
        ("ring:2,direction=both", 2, 2, 1),
        ("ring:1,direction=both", 1, 0, 0),
        ("line:1", 1, 0, 0),
        ("line:5", 5, 8, 4),
        ("clique:1", 1, 0, 0),
        ("clique:7", 7, 42, 1),
        ("mesh2d:1x1", 1, 0, 0),
        ("mesh2d:1x5", 5, 8, 4),
        ("mesh2d:3x5", 15, 2 * (2 * 5 + 3 * 4), 6),
        ("torus2d:1x3", 3, 6, 1),
        ("torus2d:2x2", 4, 8, 2),
        ("torus2d:2x3", 6, 2 * 3 + 6 * 2, 2),
        ("torus2d:3x3", 9, 36, 2),
        ("torus2d:5x7", 35, 140, 5),
        ("mesh3d:2x3x4", 24, 2 * (12 + 2 * 2 * 4 + 6 * 3), 6),
        ("torus3d:3x3x3", 27, 27 * 6, 3),
        ("torus3d:2x2x2", 8, 24, 3),
        ("hypercube:1", 2, 2, 1),
        ("hypercube:5", 32, 160, 5),
        ("switch:1", 1, 0, 0),
        ("switch:5", 5, 20, 1),
        ("fat-tree:1x1", 1, 0, 0),
        ("fat-tree:3x4", 12, 132, 1),
        ("fat-tree:2x3x4", 24, 24 * 23, 1),
        ("dragonfly:1x1x1", 1, 0, 0),
        ("dragonfly:5x2x2", 20, 380, 1),
    ];

    #[test]
    fn shapes_have_their_links_and_diameters() {
        for (spec, ranks, links, hops) in SHAPES {
            let topology = get(spec);
            assert_eq!((topology.rank_count(), topology.links().len()), (*ranks, *links), "{spec}");
            assert_eq!(diameter(&topology), Some(*hops), "{spec}");
            let pairs = pairs(&topology);
            assert!(pairs.is_sorted(), "{spec}");
            let set: BTreeSet<(u32, u32)> = pairs.iter().copied().collect();
            assert_eq!(set.len(), pairs.len(), "{spec}: doubled links");
            if !spec.starts_with("ring") || spec.contains("both") {
                assert!(set.iter().all(|(from, to)| set.contains(&(*to, *from))), "{spec}: one-way links");
            }
        }
    }

    #[test]
    fn ranks_are_row_major() {
        let topology = get("mesh2d:2x3");
        let expected = [(0, 1), (0, 3), (1, 0), (1, 2), (1, 4), (2, 1), (2, 5)];
        assert_eq!(pairs(&topology)[..7], expected);
        assert_eq!(pairs(&get("ring:3")), [(0, 1), (1, 2), (2, 0)]);
    }

    #[test]
    fn each_dimension_has_its_costs() {
        let topology = get("torus2d:3x3,alpha=1us/2us,bandwidth=50GBps/75GBps,latency=pipelines");
        for link in topology.links() {
            let along_the_row = link.from.0 / 3 == link.to.0 / 3;
            let expected = if along_the_row { (2.0, 1e6 / 75e9) } else { (1.0, 2e-5) };
            assert_eq!((link.alpha.0, link.beta.0), expected);
            assert_eq!(link.latency, Latency::Pipelines);
        }
        // A slash within a unit does not separate values.
        for bits in ["400Gbit/s/600Gbit/s", "50GB/s/600Gbps", "400Gbps/75GB/s"] {
            let same = get(&format!("torus2d:3x3,alpha=1us/2us,bandwidth={bits},latency=pipelines"));
            assert_eq!(same.links(), topology.links(), "{bits}");
        }
        assert_eq!(get("ring:4,bandwidth=400Gbit/s").links(), get("ring:4").links());
        let default = get("line:2");
        let link = &default.links()[0];
        assert_eq!((link.alpha.0, link.beta.0, link.latency), (0.5, 2e-5, Latency::Occupies));
    }

    #[test]
    fn a_switch_is_limited_by_its_ports() {
        let topology = get("switch:3,bandwidth=10GBps");
        for link in topology.links() {
            let names: Vec<&str> = link.resources.iter().map(|id| topology.resource(*id).name.as_str()).collect();
            assert_eq!(names, [format!("rank{}.tx", link.from), format!("rank{}.rx", link.to)]);
        }
        assert!(topology.resources().iter().all(|port| port.beta.0 == 1e-4));
    }

    fn names(topology: &Topology, from: u32, to: u32) -> (f64, f64, Vec<&str>) {
        let id = topology.between(crate::Rank(from), crate::Rank(to)).next().unwrap();
        let link = topology.link(id);
        let names = link.resources.iter().map(|id| topology.resource(*id).name.as_str()).collect();
        (link.alpha.0, (link.beta.gbps() * 1e6).round() / 1e6, names)
    }

    #[test]
    fn a_fat_tree_shares_its_uplinks() {
        let tree = get("fat-tree:2x3x4,bandwidth=10GBps,oversubscription=2/8,alpha=1us/2us/4us");
        assert_eq!(names(&tree, 0, 3), (1.0, 10.0, vec!["rank0.tx", "rank3.rx"]));
        assert_eq!(names(&tree, 0, 4), (3.0, 10.0, vec!["rank0.tx", "leaf0.up", "leaf1.down", "rank4.rx"]));
        // Four ports of 10 GB/s enter a switch with 20 GB/s of up-links; three of these enter one with 7.5 GB/s.
        let far = ["rank1.tx", "leaf0.up", "level2.switch0.up", "level2.switch1.down", "leaf5.down", "rank23.rx"];
        assert_eq!(names(&tree, 1, 23), (7.0, 7.5, far.to_vec()));
        let leaf = tree.resources().iter().find(|shared| shared.name == "leaf5.down").unwrap();
        assert_eq!((leaf.beta.gbps() * 1e6).round() / 1e6, 20.0);
        let given = get("fat-tree:2x2,bandwidth=10GBps/4GBps");
        assert_eq!(names(&given, 0, 2).1, 4.0);
        assert_eq!(names(&given, 0, 1).1, 10.0);
    }

    #[test]
    fn a_dragonfly_has_one_cable_for_each_pair_of_groups() {
        let fly = get("dragonfly:5x2x2,bandwidth=10GBps/5GBps/2GBps,alpha=1us/2us/4us");
        assert_eq!(fly.resources().len(), 2 * 20 + 5 * 2 + 5 * 4);
        assert_eq!(names(&fly, 0, 1), (1.0, 10.0, vec!["rank0.tx", "rank1.rx"]));
        assert_eq!(names(&fly, 0, 3), (3.0, 5.0, vec!["rank0.tx", "group0.router0-1", "rank3.rx"]));
        // Group 0 reaches groups 1 and 2 from router 0; group 1 reaches group 0, the fourth after it, from router 1.
        let far = ["rank2.tx", "group0.router1-0", "group0-1", "group1.router1-0", "rank4.rx"];
        assert_eq!(names(&fly, 2, 4), (9.0, 2.0, far.to_vec()));
        for (index, shared) in fly.resources().iter().enumerate().filter(|(_, shared)| shared.name.contains('-')) {
            let users = fly.users(crate::ResourceId::from_index(index));
            let ends = |id: &crate::LinkId| (fly.link(*id).from.0 / 4, fly.link(*id).to.0 / 4);
            let between = shared
                .name
                .strip_prefix("group")
                .and_then(|rest| rest.split_once('-'))
                .filter(|(from, _)| !from.contains('.'));
            if let Some((from, to)) = between {
                assert_eq!(users.len(), 16);
                assert!(users.iter().all(|id| ends(id) == (from.parse().unwrap(), to.parse().unwrap())));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_said_at_once() {
        for (spec, fragment) in [
            ("", "unknown topology ``"),
            ("rng:4", "did you mean `ring`?"),
            ("ring", "the size is missing; expected `ring:N`"),
            ("ring:", "`` is no such number"),
            ("ring:0", "`0` is too small; expected `ring:N`, and N must be at least 1"),
            ("ring:-4", "`-4` is no such number"),
            ("ring:+4", "`+4` is no such number"),
            ("ring:4x4", "number of dimensions is wrong"),
            ("torus2d:4", "expected `torus2d:AxB`"),
            ("torus2d:4x", "`` is no such number"),
            ("ring:1000000000", "ranks: 1000000000 is more than the 131072"),
            ("ring:18446744073709551615", "ranks: 18446744073709551615"),
            ("ring:18446744073709551616", "is no such number"),
            ("mesh3d:4294967296x4294967296x4294967296", "ranks: 18446744073709551615 is more"),
            ("clique:5000", "links: 24995000 is more"),
            ("switch:100000", "links: 9999900000 is more"),
            ("hypercube:18", "ranks: 262144 is more"),
            ("hypercube:1000000000", "fewer than 64 dimensions"),
            ("ring:4,alpha", "expected `key=value`"),
            ("ring:4,alpha=1us,alpha=1us", "given twice"),
            ("ring:4,alhpa=1us", "did you mean `alpha`?"),
            ("line:4,direction=both", "unknown key `direction`"),
            ("ring:4,direction=up", "accepted: one, both"),
            ("ring:4,latency=ocupies", "did you mean `occupies`?"),
            ("ring:4,alpha=NaN", "`NaN` is not a duration"),
            ("ring:4,alpha=-1us", "`-1us` is not a duration"),
            ("ring:4,bandwidth=0GBps", "more than zero"),
            ("ring:4,bandwidth=1GBps/2GBps", "2 values for 1 dimension"),
            ("torus2d:2x2,alpha=1us/1us/1us", "3 values for 2 dimension"),
            ("ring:4,", "expected `key=value`"),
            ("fat-tree:4", "number of dimensions is wrong"),
            ("fat-tree:2x2x2x2x2", "number of dimensions is wrong"),
            ("fat-tree:100x100", "links: 99990000 is more"),
            ("fat-tree:2x2,oversubscription=0", "no number from 0.000001"),
            ("fat-tree:2x2,oversubscription=2/2", "2 values for 1 dimension"),
            ("fat-tree:2x2,oversubscription=2,bandwidth=1GBps/1GBps", "gives the up-links already"),
            ("dragonfly:4x4", "expected `dragonfly:AxBxC`"),
            ("dragonfly:4294967296x4294967296x4294967296", "ranks: 18446744073709551615 is more"),
        ] {
            let error = resolve(spec).expect_err(spec);
            assert!(matches!(error, TopologyError::InSpec { .. }), "{spec}: {error:?}");
            assert!(error.to_string().contains(fragment), "{spec}: {error}");
            assert!(error.to_string().contains(&format!("`{spec}`")), "{spec}: {error}");
        }
        let long = format!("ring:4{}", ",alpha=1us".repeat(1_000_000));
        assert!(resolve(&long).expect_err("long").to_string().len() < 1000);
    }
}
