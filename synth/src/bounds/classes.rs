//! Classes of ranks that look alike, so that one rank stands for its class where only the strongest bound matters.
//!
//! The principal type is [`RankClasses`]. Symmetric ranks always share a class. On real machines only symmetric ranks
//! do. If other ranks share a class, the bound may be less tight, but it stays valid.

use super::cut::{held_bytes, sinks};
use super::degree::{LeastTraffic, Side, least_traffic};
use super::is_huge;
use crate::problem::Problem;
use std::collections::BTreeSet;
use topology::symmetry::{Colours, alike};
use topology::{LinkId, Rank};

/// For each rank, the number of its class. Ranks of one class cannot be told apart by the topology around them, nor by
/// the data that they hold and lack.
pub(super) struct RankClasses {
    of: Vec<u32>,
    ingress: Vec<LeastTraffic>,
    egress: Vec<LeastTraffic>,
}

impl RankClasses {
    pub(super) fn new(problem: &Problem) -> Self {
        let topology = &*problem.topology;
        let mut wants = vec![false; topology.rank_count()];
        sinks(problem).into_iter().for_each(|rank| wants[rank.index()] = true);
        let (ingress, egress) = (least_traffic(problem, Side::Ingress), least_traffic(problem, Side::Egress));
        let held = held_bytes(problem);
        let role = |rank: Rank| {
            let rank = rank.index();
            (held[rank].to_bits(), wants[rank], ingress[rank].key(), egress[rank].key())
        };
        let different = BTreeSet::from_iter(topology.ranks().map(role));
        let different = Vec::from_iter(different);
        let number = |rank| different.partition_point(|other| *other < role(rank)) as u32;
        let ranks: Vec<u32> = topology.ranks().map(number).collect();
        if is_huge(problem) {
            // Only data distinguishes ranks: to tell the topology around them apart takes many seconds.
            return Self { of: ranks, ingress, egress };
        }
        let links: Vec<u32> = topology.link_ids().map(|id: LinkId| u32::from(problem.allows_link(id))).collect();
        Self { of: alike(topology, Colours { ranks: &ranks, links: &links }), ingress, egress }
    }

    pub(super) fn of(&self, rank: Rank) -> u32 {
        self.of[rank.index()]
    }

    /// How much every rank must receive or send. There may be millions of chunks, so this is counted only once.
    pub(super) fn least_traffic(&self, side: Side) -> &[LeastTraffic] {
        match side {
            Side::Ingress => &self.ingress,
            Side::Egress => &self.egress,
        }
    }

    /// The first rank of each class among `ranks`, and the others.
    pub(super) fn split(&self, ranks: impl IntoIterator<Item = Rank>) -> (Vec<Rank>, Vec<Rank>) {
        let mut seen = BTreeSet::new();
        ranks.into_iter().partition(|&rank| seen.insert(self.of(rank)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::cut::cut;
    use crate::bounds::degree::degree;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;

    /// The values of all bounds that use classes.
    fn values(problem: &Problem, classes: &RankClasses) -> Vec<f64> {
        let sides = [Side::Ingress, Side::Egress].into_iter().flat_map(|side| degree(problem, classes, side));
        let values =
            sides.chain(cut(problem, classes, &crate::problem::Deadline::default())).map(|bound| bound.value.0);
        values.collect()
    }

    #[test]
    fn one_of_each_class_stands_for_all() {
        for spec in ["dgx1", "ndv2x2", "dgx2x2", "mi250x2", "dgx-h100x3", "mesh2d:3x4", "torus2d:4x5", "fat-tree:2x2x3"]
        {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Broadcast, Collective::Scatter]
            {
                let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
                let request = Request::new(collective, topology.rank_count(), 1 << 24);
                let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
                let classes = RankClasses::new(&problem);
                let apart = RankClasses {
                    of: (0..problem.topology.rank_count() as u32).collect(),
                    ..RankClasses::new(&problem)
                };
                let (together, apart) = (values(&problem, &classes), values(&problem, &apart));
                assert_eq!(together.len(), apart.len(), "{spec} {collective}");
                for (one, other) in together.iter().zip(&apart) {
                    assert!((one - other).abs() <= 1e-9 * other, "{spec} {collective}: {together:?}, not {apart:?}");
                }
            }
        }
    }

    #[test]
    fn a_root_is_in_a_class_of_its_own() {
        let topology = Arc::new(topology::resolve("torus2d:4x4").expect("a known topology"));
        let request = Request::new(Collective::Broadcast, 16, 1 << 24);
        let classes =
            RankClasses::new(&Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a request"))));
        let (first, others) = classes.split(topology.ranks());
        assert_eq!((first[0], first.len(), others.len()), (Rank(0), 5, 11));
    }
}
