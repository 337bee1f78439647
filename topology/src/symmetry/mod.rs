//! Symmetries of a topology: renumberings of ranks that leave it as it is.
//!
//! The principal functions are [`automorphisms`], which finds generators of the whole group, and [`automorphism_with`],
//! which finds one symmetry that sends given ranks to given places (which GPU sits beside the NIC). Both search by
//! colour refinement and backtracking, as McKay and Piperno describe it ("Practical graph isomorphism, II", 2014),
//! with the shortcut of saucy (Darga and others, 2004) that makes exchanges of equal machines cheap. The search
//! only proposes: every renumbering is judged by [`extend`], which knows nothing of refinement.
//!
//! Work is counted, not timed, so that the same topology gives the same answer everywhere; a search that runs out
//! of it returns what it has found and says that there may be more.

mod check;
mod free;
mod partition;
mod search;
mod translations;

pub use check::{Automorphism, LinkEnds, NotASymmetry, extend};
pub use free::{GroupGrowth, SemiregularGroup};
pub use translations::{Action, Translations};

use crate::connectivity::rank_sets;
use crate::{Rank, Topology};
use petgraph::unionfind::UnionFind;
use std::collections::BTreeSet;

/// What a symmetry must preserve besides the machine: ranks and links of different colours never map to each other. An
/// empty list means that all have one colour.
#[derive(Clone, Copy, Debug, Default)]
pub struct Colours<'a> {
    /// One colour for each rank, or none.
    pub ranks: &'a [u32],
    /// One colour for each link, or none.
    pub links: &'a [u32],
}

/// Enough work, in visits of links, to find the group of any machine in this repository, in a few seconds at most.
pub const USUAL_EFFORT: u64 = 100_000_000;

/// The symmetries that were found, as a group of renumberings of the ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct SymmetryGroup {
    ranks: usize,
    generators: Vec<Vec<Rank>>,
    /// The sizes of the orbits of the base points, each under the symmetries that fix the points before it.
    orbit_sizes: Vec<usize>,
    complete: bool,
}

impl SymmetryGroup {
    /// Renumberings whose products are all symmetries found (`generator[r]` is the image of rank r); never the identity.
    pub fn generators(&self) -> &[Vec<Rank>] {
        &self.generators
    }

    /// How many symmetries there are, the identity included; `None` beyond 2¹²⁸ (of an incomplete group, a lower bound).
    pub fn order(&self) -> Option<u128> {
        self.orbit_sizes.iter().try_fold(1u128, |order, &size| order.checked_mul(size as u128))
    }

    /// Whether the search finished, so that these are all symmetries.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Ranks that symmetries send to each other: each orbit ascending, in the order of their first ranks.
    pub fn orbits(&self) -> Vec<Vec<Rank>> {
        let mut orbits = UnionFind::new(self.ranks);
        self.generators.iter().for_each(|generator| join_along(&mut orbits, generator));
        rank_sets(orbits)
    }

    /// The first `limit` symmetries, the identity first, then in the order of the number of generators in their
    /// product.
    pub fn elements(&self, limit: usize) -> Vec<Vec<Rank>> {
        let identity: Vec<Rank> = (0..self.ranks).map(Rank::from_index).collect();
        let mut seen = BTreeSet::from([identity.clone()]);
        let mut elements = vec![identity];
        let mut next = 0;
        while next < elements.len() && elements.len() < limit {
            for generator in &self.generators {
                let product: Vec<Rank> = elements[next].iter().map(|rank| generator[rank.index()]).collect();
                if elements.len() < limit && seen.insert(product.clone()) {
                    elements.push(product);
                }
            }
            next += 1;
        }
        elements.truncate(limit);
        elements
    }
}

/// Generators of the group of all symmetries of `topology` that keep `colours`; `effort` limits the work
/// ([`USUAL_EFFORT`]).
pub fn automorphisms(topology: &Topology, colours: Colours<'_>, effort: u64) -> SymmetryGroup {
    search::SymmetrySearch::new(topology, colours, effort).group()
}

/// A number for each rank. Ranks have equal numbers if colour refinement cannot distinguish them. Ranks that a symmetry
/// maps to each other always have equal numbers; ranks with equal numbers are probably, but not certainly, symmetric.
pub fn alike(topology: &Topology, colours: Colours<'_>) -> Vec<u32> {
    let partition = partition::Partition::new(topology, colours);
    topology.ranks().map(|rank| partition.cell_of(rank.0)).collect()
}

/// A symmetry that maps the first rank of each pair of `images` to the second; `None` if there is none, or if none was
/// found within `effort`.
pub fn automorphism_with(
    topology: &Topology,
    colours: Colours<'_>,
    images: &[(Rank, Rank)],
    effort: u64,
) -> Option<Vec<Rank>> {
    let exist = |&(one, other): &(Rank, Rank)| one.index().max(other.index()) < topology.rank_count();
    images.iter().all(exist).then(|| search::SymmetrySearch::new(topology, colours, effort).with_images(images))?
}

/// Joins every rank with its image.
fn join_along(orbits: &mut UnionFind<usize>, renumbering: &[Rank]) {
    for (rank, image) in renumbering.iter().enumerate() {
        orbits.union(rank, image.index());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latency, Micros, MicrosPerByte, ResourceId};
    use crate::{Link, Resource, TopologyParts, resolve};
    use proptest::prelude::*;

    const ALIKE: Colours<'_> = Colours { ranks: &[], links: &[] };

    fn get(spec: &str) -> Topology {
        resolve(spec).unwrap_or_else(|error| panic!("{error}"))
    }

    fn factorial(n: u128) -> u128 {
        (1..=n).product()
    }

    /// Every renumbering of so many ranks, in any order.
    fn permutations(ranks: usize) -> Vec<Vec<Rank>> {
        let mut all = vec![vec![]];
        for next in 0..ranks {
            let insert = |short: &Vec<Rank>, at: usize| {
                let mut long = short.clone();
                long.insert(at, Rank::from_index(next));
                long
            };
            all = all.iter().flat_map(|short| (0..=short.len()).map(move |at| insert(short, at))).collect();
        }
        all
    }

    fn brute_force(topology: &Topology) -> usize {
        permutations(topology.rank_count()).iter().filter(|ranks| extend(topology, ALIKE, ranks).is_ok()).count()
    }

    fn check(topology: &Topology, group: &SymmetryGroup) {
        let identity: Vec<Rank> = topology.ranks().collect();
        for generator in group.generators() {
            assert_ne!(*generator, identity);
            assert_eq!(extend(topology, ALIKE, generator).map(|found| found.ranks), Ok(generator.clone()));
        }
    }

    #[test]
    fn known_groups_have_their_orders() {
        for (spec, order) in [
            ("ring:1", 1),
            ("ring:7", 7),
            ("ring:7,direction=both", 14),
            ("ring:16,direction=both", 32),
            ("line:5", 2),
            ("clique:6", factorial(6)),
            ("switch:12", factorial(12)),
            ("mesh2d:3x4", 4),
            ("mesh2d:4x4", 8),
            ("mesh3d:2x3x4", 8),
            ("torus2d:5x5", 200),
            ("torus2d:4x6", 8 * 12),
            ("torus2d:5x5,bandwidth=50GBps/75GBps", 100),
            ("torus3d:3x3x3", 6 * 6 * 6 * 6),
            ("torus3d:5x5x5", 10 * 10 * 10 * 6),
            ("hypercube:5", 32 * 120),
            ("dgx1", 4),
            ("ndv2x1", 4),
            ("ndv2x2,costs=taccl-1mb", 4 * 4 * 2),
            ("dgx2x1", factorial(16)),
            // Odd ranks of each machine have links to even ranks of the other.
            ("dgx2x2", factorial(8) * factorial(8) * 2),
        ] {
            let topology = get(spec);
            let group = automorphisms(&topology, ALIKE, USUAL_EFFORT);
            assert!(group.is_complete(), "{spec}");
            assert_eq!(group.order(), Some(order), "{spec}");
            check(&topology, &group);
            let limit = 5000.min(order) as usize;
            let elements = group.elements(limit);
            assert_eq!(elements.len(), limit, "{spec}");
            assert!(elements.iter().take(50).all(|element| extend(&topology, ALIKE, element).is_ok()));
        }
    }

    #[test]
    fn colours_are_kept_and_images_are_found() {
        let ring = get("ring:8,direction=both");
        let marked: Vec<u32> = (0..8).map(|rank| rank % 2).collect();
        let group = automorphisms(&ring, Colours { ranks: &marked, links: &[] }, USUAL_EFFORT);
        assert_eq!(group.order(), Some(8));
        assert_eq!(group.orbits(), [[0, 2, 4, 6].map(Rank).to_vec(), [1, 3, 5, 7].map(Rank).to_vec()]);
        let clockwise: Vec<u32> =
            ring.links().iter().map(|link| u32::from(link.to.0 == (link.from.0 + 1) % 8)).collect();
        let links = Colours { ranks: &[], links: &clockwise };
        assert_eq!(automorphisms(&ring, links, USUAL_EFFORT).order(), Some(8));
        let turned = automorphism_with(&ring, links, &[(Rank(0), Rank(3))], USUAL_EFFORT).unwrap();
        assert_eq!(turned, (0..8).map(|rank| Rank((rank + 3) % 8)).collect::<Vec<_>>());
        let mirrored = [(Rank(0), Rank(3)), (Rank(1), Rank(2))];
        assert_eq!(automorphism_with(&ring, links, &mirrored, USUAL_EFFORT), None);
        let found = automorphism_with(&ring, ALIKE, &mirrored, USUAL_EFFORT).unwrap();
        assert_eq!(found, (0..8).map(|rank| Rank((11 - rank) % 8)).collect::<Vec<_>>());
        assert_eq!(automorphism_with(&ring, ALIKE, &[(Rank(0), Rank(8))], USUAL_EFFORT), None);
        assert_eq!(automorphism_with(&ring, ALIKE, &[(Rank(0), Rank(1)), (Rank(1), Rank(1))], USUAL_EFFORT), None);
        // The relays of one machine can be at every place that the cube mesh allows, and at no other.
        let cube = get("dgx1");
        for from in cube.ranks() {
            for to in cube.ranks() {
                let brute = permutations(8)
                    .into_iter()
                    .any(|ranks| ranks[from.index()] == to && extend(&cube, ALIKE, &ranks).is_ok());
                assert_eq!(
                    automorphism_with(&cube, ALIKE, &[(from, to)], USUAL_EFFORT).is_some(),
                    brute,
                    "{from} {to}"
                );
                if from.0 > 1 {
                    break;
                }
            }
        }
    }

    #[test]
    fn wrong_renumberings_are_refused() {
        let pair = get("ndv2x2");
        let with = |swaps: &[(usize, usize)]| {
            let mut ranks: Vec<Rank> = pair.ranks().collect();
            swaps.iter().for_each(|&(a, b)| ranks.swap(a, b));
            extend(&pair, ALIKE, &ranks).map(|_| ())
        };
        assert_eq!(with(&[]), Ok(()));
        assert!(matches!(with(&[(0, 8)]), Err(NotASymmetry::SplitsMachine { .. })));
        assert!(matches!(with(&[(0, 7)]), Err(NotASymmetry::NoImage(_))));
        assert!(matches!(with(&[(0, 3), (1, 2)]), Err(NotASymmetry::LinkDiffers(_) | NotASymmetry::NoImage(_))));
        assert!(extend(&pair, ALIKE, &[Rank(0); 16]).is_err() && extend(&pair, ALIKE, &[Rank(0)]).is_err());
    }

    #[test]
    fn little_effort_gives_fewer_symmetries_and_says_so() {
        let topology = get("torus2d:8x8");
        let group = automorphisms(&topology, ALIKE, 2_000);
        assert!(!group.is_complete() && group.order() < Some(512));
        check(&topology, &group);
    }

    #[test]
    fn large_machines_take_no_long_time() {
        for (spec, order) in [("torus2d:64x64", 4096 * 8), ("torus3d:16x16x16", 4096 * 8 * 6)] {
            let topology = get(spec);
            let group = automorphisms(&topology, ALIKE, USUAL_EFFORT);
            assert_eq!((group.order(), group.is_complete()), (Some(order), true), "{spec}");
            check(&topology, &group);
        }
    }

    #[test]
    fn many_equal_ranks_behind_switches_take_no_long_time() {
        // Eighteen trays in each rack are alike, rail by rail; so are the rails, and so are the racks.
        for (spec, generators) in [("gb200x4", 4 * 4 * 17), ("dgx-h100x8", 8 * 7), ("h800x16", 7 + 15)] {
            let topology = get(spec);
            let group = automorphisms(&topology, ALIKE, USUAL_EFFORT);
            assert!(group.is_complete() && group.generators().len() >= generators, "{spec}");
            assert_eq!(group.orbits().len(), 1, "{spec}");
        }
    }

    #[test]
    fn what_refinement_tells_apart_no_symmetry_joins() {
        for (spec, classes) in [("gb200x2", 1), ("mesh2d:4x4", 3), ("line:5", 3), ("torus2d:4x6", 1)] {
            let topology = get(spec);
            let class = alike(&topology, ALIKE);
            let group = automorphisms(&topology, ALIKE, USUAL_EFFORT);
            for orbit in group.orbits() {
                assert!(orbit.iter().all(|rank| class[rank.index()] == class[orbit[0].index()]), "{spec}");
            }
            assert_eq!(BTreeSet::from_iter(class).len(), classes, "{spec}");
        }
    }

    /// Small machines with few distinct costs, so that symmetries are frequent.
    fn small() -> impl Strategy<Value = Topology> {
        let link = (0u32..5, 0u32..5, 0u8..2, proptest::collection::vec(0u32..3, 0..2));
        (proptest::collection::vec(link, 0..9), any::<bool>()).prop_map(|(links, split)| {
            let links = links.into_iter().filter(|(from, to, ..)| from != to).map(|(from, to, cost, resources)| Link {
                from: Rank(from),
                to: Rank(to),
                alpha: Micros(f64::from(cost)),
                beta: MicrosPerByte(1.0),
                latency: Latency::Occupies,
                resources: resources.into_iter().map(ResourceId).collect(),
            });
            let resource = |index: usize| Resource::new(format!("r{index}"), MicrosPerByte(1.0));
            let machines =
                if split { vec![vec![Rank(0), Rank(2)], vec![Rank(1), Rank(3)], vec![Rank(4)]] } else { vec![] };
            Topology::new(TopologyParts {
                ranks: 5,
                machines,
                links: links.collect(),
                resources: (0..3).map(resource).collect(),
                ..TopologyParts::default()
            })
            .unwrap()
        })
    }

    proptest! {
        #[test]
        fn orders_agree_with_trying_everything(topology in small()) {
            let group = automorphisms(&topology, ALIKE, USUAL_EFFORT);
            check(&topology, &group);
            prop_assert!(group.is_complete());
            prop_assert_eq!(group.order(), Some(brute_force(&topology) as u128));
        }
    }
}
