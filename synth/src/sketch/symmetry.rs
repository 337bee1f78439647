//! Symmetries of a topology: given as rotations and permutations, or found.
//!
//! The principal function is [`Symmetries::automorphism`]: it extends a renumbering of ranks to links and resources, or says
//! which link has no image. Everything a strategy may rely on is checked here, once: machines map to machines,
//! links to links of the same cost, the links that share a resource to links that share an equal resource.
//!
//! Detection tries rotations and exchanges of machines, because these are what machines are built from; it
//! does not search for every automorphism. Rotations follow TACCL: r → (r mod n + offset) mod n + n·⌊r/n⌋.

use crate::{Automorphism, Constraints};
use schedule::RankSet;
use std::fmt;
use topology::{Latency, Link, LinkId, Rank, ResourceId, Topology};

/// Above this many link visits (about two seconds), detection stops with what it has found.
const DETECTION_WORK: usize = 10_000_000;

/// Why a renumbering of ranks is not a symmetry.
#[derive(Clone, PartialEq, Debug)]
pub enum NotASymmetry {
    /// Two ranks have the same image, or one has none.
    NotAPermutation {
        /// The image that occurs twice or is out of range.
        rank: Rank,
    },
    /// Ranks of one machine would be in several.
    SplitsMachine {
        /// A rank.
        rank: Rank,
        /// Another rank of its machine, whose image is in another machine.
        other: Rank,
    },
    /// A link would become one that does not exist.
    NoImage(Ends),
    /// A link would become one with other costs.
    CostsDiffer(Ends),
    /// The links that share a resource would not share an equal one.
    ResourceHasNoImage {
        /// The resource's name.
        resource: String,
    },
    /// The sketch itself is not symmetric.
    SketchDiffers {
        /// Which link, and which it would become.
        ends: Ends,
        /// The sketch line that treats them differently.
        line: u32,
    },
}

/// A link and its would-be image, by their ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The link's sender.
    pub from: Rank,
    /// The link's receiver.
    pub to: Rank,
    /// The image of the sender.
    pub image_from: Rank,
    /// The image of the receiver.
    pub image_to: Rank,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {} → {} would become {} → {}", self.from, self.to, self.image_from, self.image_to)
    }
}

impl fmt::Display for NotASymmetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPermutation { rank } => write!(f, "rank {rank} is the image of two ranks, or does not exist"),
            Self::SplitsMachine { rank, other } => {
                write!(f, "ranks {rank} and {other} share a machine, but their images do not")
            }
            Self::NoImage(ends) => write!(f, "{ends}, which does not exist"),
            Self::CostsDiffer(ends) => write!(f, "{ends}, which has other costs"),
            Self::ResourceHasNoImage { resource } => {
                write!(f, "the links that share {resource} would not share an equal resource")
            }
            Self::SketchDiffers { ends, line } => write!(f, "{ends}, which line {line} treats differently"),
        }
    }
}

/// r → (r mod n + offset) mod n + n·⌊r/n⌋, for all ranks; n divides their number.
pub(super) fn rotation(ranks: usize, offset: usize, within: usize) -> Vec<Rank> {
    let image = |rank: usize| (rank % within + offset) % within + within * (rank / within);
    (0..ranks).map(image).map(Rank::from_index).collect()
}

/// Everything that comparing a topology with its image needs, sorted once for all renumberings.
pub(crate) struct Symmetries<'a> {
    topology: &'a Topology,
    links: Vec<(LinkKey, LinkId)>,
    resources: Vec<ResourceKey<'a>>,
}

/// Links with equal keys are interchangeable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LinkKey {
    from: Rank,
    to: Rank,
    alpha: u64,
    beta: u64,
    occupies: bool,
    resources: usize,
}

impl LinkKey {
    fn of(link: &Link) -> Self {
        Self {
            from: link.from,
            to: link.to,
            alpha: link.alpha.0.to_bits(),
            beta: link.beta.0.to_bits(),
            occupies: link.latency == Latency::Occupies,
            resources: link.resources.len(),
        }
    }
}

/// Resources with equal keys are interchangeable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ResourceKey<'a> {
    users: std::borrow::Cow<'a, [LinkId]>,
    beta: u64,
}

impl<'a> Symmetries<'a> {
    pub(crate) fn of(topology: &'a Topology) -> Self {
        let mut links: Vec<_> = topology.link_ids().map(|id| (LinkKey::of(topology.link(id)), id)).collect();
        links.sort_unstable();
        let mut resources: Vec<_> = (0..topology.resources().len())
            .map(ResourceId::from_index)
            .map(|id| ResourceKey { users: topology.users(id).into(), beta: topology.resource(id).beta.0.to_bits() })
            .collect();
        resources.sort_unstable();
        Self { topology, links, resources }
    }

    /// Extends a renumbering of ranks to the links.
    ///
    /// # Errors
    /// [`NotASymmetry`] with the first rank, link or resource that has no image.
    pub(super) fn automorphism(&self, ranks: Vec<Rank>) -> Result<Automorphism, NotASymmetry> {
        check_permutation(&ranks)?;
        self.check_machines(&ranks)?;
        let links = self.map_links(&ranks)?;
        self.check_resources(&links)?;
        Ok(Automorphism { ranks, links })
    }

    /// Every rank's image shares a machine with the images of its machine; by counting, machines map onto machines.
    fn check_machines(&self, ranks: &[Rank]) -> Result<(), NotASymmetry> {
        let home = |rank: Rank| self.topology.machine_of(ranks[rank.index()]);
        for machine in self.topology.machines() {
            let [first, others @ ..] = &machine[..] else { continue };
            if let Some(other) = others.iter().find(|&&other| home(other) != home(*first)) {
                return Err(NotASymmetry::SplitsMachine { rank: *first, other: *other });
            }
        }
        Ok(())
    }

    fn map_links(&self, ranks: &[Rank]) -> Result<Vec<LinkId>, NotASymmetry> {
        let mut images = vec![LinkId(0); self.links.len()];
        for group in self.links.chunk_by(|a, b| a.0 == b.0) {
            let key = group[0].0;
            let (from, to) = (ranks[key.from.index()], ranks[key.to.index()]);
            let wanted = LinkKey { from, to, ..key };
            let start = self.links.partition_point(|(key, _)| *key < wanted);
            let image = self.links[start..].iter().take_while(|(key, _)| *key == wanted);
            if image.clone().count() != group.len() {
                let ends = Ends { from: key.from, to: key.to, image_from: from, image_to: to };
                return Err(match self.topology.between(from, to).next() {
                    Some(_) => NotASymmetry::CostsDiffer(ends),
                    None => NotASymmetry::NoImage(ends),
                });
            }
            group.iter().zip(image).for_each(|((_, id), (_, image))| images[id.index()] = *image);
        }
        Ok(images)
    }

    fn check_resources(&self, links: &[LinkId]) -> Result<(), NotASymmetry> {
        for group in self.resources.chunk_by(|a, b| a == b) {
            let mut users: Vec<_> = group[0].users.iter().map(|link| links[link.index()]).collect();
            users.sort_unstable();
            let wanted = ResourceKey { users: users.into(), beta: group[0].beta };
            let start = self.resources.partition_point(|key| *key < wanted);
            if self.resources[start..].iter().take_while(|key| **key == wanted).count() != group.len() {
                return Err(NotASymmetry::ResourceHasNoImage { resource: self.name_of(&group[0]) });
            }
        }
        Ok(())
    }

    fn name_of(&self, key: &ResourceKey<'_>) -> String {
        let ids = (0..self.topology.resources().len()).map(ResourceId::from_index);
        let mut named = ids.filter(|&id| self.topology.users(id) == &key.users[..]);
        named.next().map_or_else(String::new, |id| self.topology.resource(id).name.clone())
    }

    /// Rotations and exchanges of machines that are symmetries of the topology and of `constraints`.
    ///
    /// The result generates the group found: of rotations within equal blocks only the smallest offset, of
    /// machines only exchanges of neighbours.
    pub(crate) fn detect(&self, constraints: &Constraints) -> Vec<Automorphism> {
        let mut found: Vec<Automorphism> = Vec::new();
        let mut work = 0;
        for candidate in self.candidates() {
            if work > DETECTION_WORK {
                break;
            }
            match candidate {
                Candidate::Exchange(machine) => {
                    let Some(ranks) = self.exchange(machine) else { continue };
                    work += self.links.len();
                    found.extend(self.shared_with(constraints, ranks));
                }
                Candidate::Rotations { within } => {
                    let mut offsets = divisors(within).into_iter().filter(|&offset| offset < within);
                    found.extend(offsets.find_map(|offset| {
                        work += self.links.len();
                        self.shared_with(constraints, rotation(self.topology.rank_count(), offset, within))
                    }));
                }
            }
        }
        found
    }

    /// Blocks to rotate (all ranks first, then smaller divisors), then machines to exchange.
    fn candidates(&self) -> impl Iterator<Item = Candidate> + use<> {
        let machines = self.topology.machines().len();
        let blocks = divisors(self.topology.rank_count()).into_iter().rev().filter(|&within| within > 1);
        let rotations = blocks.map(|within| Candidate::Rotations { within });
        rotations.chain((1..machines).map(Candidate::Exchange))
    }

    /// Exchanges a machine with the one before it, rank by rank; `None` unless they are equally large.
    fn exchange(&self, machine: usize) -> Option<Vec<Rank>> {
        let (one, other) = (&self.topology.machines()[machine - 1], &self.topology.machines()[machine]);
        if one.len() != other.len() {
            return None;
        }
        let mut ranks: Vec<Rank> = self.topology.ranks().collect();
        for (&a, &b) in one.iter().zip(other) {
            ranks.swap(a.index(), b.index());
        }
        Some(ranks)
    }

    fn shared_with(&self, constraints: &Constraints, ranks: Vec<Rank>) -> Option<Automorphism> {
        let symmetry = self.automorphism(ranks).ok()?;
        check_sketch(self.topology, constraints, &symmetry).ok()?;
        Some(symmetry)
    }
}

enum Candidate {
    /// Machine k with machine k − 1.
    Exchange(usize),
    /// The smallest offset that works.
    Rotations {
        /// The size of a block.
        within: usize,
    },
}

/// All divisors, ascending.
fn divisors(number: usize) -> Vec<usize> {
    (1..=number).filter(|&divisor| number.is_multiple_of(divisor)).collect()
}

fn check_permutation(ranks: &[Rank]) -> Result<(), NotASymmetry> {
    let mut seen = vec![false; ranks.len()];
    for &rank in ranks {
        match seen.get_mut(rank.index()) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(NotASymmetry::NotAPermutation { rank }),
        }
    }
    Ok(())
}

/// A sketch treats a link and its image alike: both allowed or both not, to owners that map onto each other.
///
/// # Errors
/// [`NotASymmetry::SketchDiffers`] with the first link that it does not.
pub(super) fn check_sketch(
    topology: &Topology,
    constraints: &Constraints,
    symmetry: &Automorphism,
) -> Result<(), NotASymmetry> {
    let line_forbidding = |link: LinkId| constraints.forbidden.get(link.index()).copied().flatten();
    let owners = |link: LinkId| constraints.owners.get(link.index()).and_then(Option::as_ref);
    for id in topology.link_ids() {
        let image = symmetry.links[id.index()];
        let differs = |line| {
            let (link, image) = (topology.link(id), topology.link(image));
            let ends = Ends { from: link.from, to: link.to, image_from: image.from, image_to: image.to };
            Err(NotASymmetry::SketchDiffers { ends, line })
        };
        match (line_forbidding(id), line_forbidding(image)) {
            (Some(line), None) | (None, Some(line)) => return differs(line),
            _ => {}
        }
        if let Some(stages) =
            constraints.stages.as_ref().filter(|it| it.of_link[id.index()] != it.of_link[image.index()])
        {
            return differs(stages.line);
        }
        match (owners(id), owners(image)) {
            (None, None) => {}
            (Some((here, line)), Some((there, _))) => {
                let mapped: RankSet = here.iter().map(|owner| symmetry.ranks[owner.index()]).collect();
                if mapped != *there {
                    return differs(*line);
                }
            }
            (Some((_, line)), None) | (None, Some((_, line))) => return differs(*line),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::SketchFile;
    use topology::resolve;

    /// The images of ranks 0 and 1 under each symmetry, and how many there are.
    fn symmetries(text: &str, spec: &str) -> Result<Vec<(u32, u32)>, String> {
        let topology = resolve(spec).unwrap();
        let sketch = SketchFile::parse(text, "s.yaml").and_then(|file| file.resolve(&topology));
        let constraints = sketch.map_err(|error| error.to_string())?.constraints;
        constraints.symmetry.iter().for_each(|symmetry| check(&topology, symmetry));
        Ok(constraints.symmetry.iter().map(|symmetry| (symmetry.ranks[0].0, symmetry.ranks[1].0)).collect())
    }

    /// The definition, stated link by link and without the tables of the code under test.
    fn check(topology: &Topology, symmetry: &Automorphism) {
        let mut images = symmetry.links.clone();
        images.sort_unstable();
        assert!(images.iter().copied().eq(topology.link_ids()), "links map one to one");
        for id in topology.link_ids() {
            let (link, image) = (topology.link(id), topology.link(symmetry.links[id.index()]));
            assert_eq!(image.from, symmetry.ranks[link.from.index()]);
            assert_eq!(image.to, symmetry.ranks[link.to.index()]);
            assert_eq!((image.alpha, image.beta, image.latency), (link.alpha, link.beta, link.latency));
            // Two links share a resource exactly if their images do.
            for &resource in &link.resources {
                let other = topology.users(resource)[0];
                let other_image = topology.link(symmetry.links[other.index()]);
                let shares = image.resources.iter().any(|resource| other_image.resources.contains(resource));
                assert!(shares, "links {id} and {other}");
            }
        }
    }

    #[test]
    fn rotations_of_the_shipped_machines() {
        for (rule, spec, images) in [
            ("{rotate: 8, within: 16}", "ndv2x2", (8, 9)),
            ("{rotate: 8, within: 16}", "ndv2x2,costs=taccl-1mb", (8, 9)),
            ("{rotate: 8, within: 32}", "ndv2x4", (8, 9)),
            ("{rotate: 24, within: 32}", "ndv2x4,costs=taccl-1mb", (24, 25)),
            ("{rotate: 4, within: 8}", "ndv2x1", (4, 5)),
            ("{rotate: 2, within: 16}", "dgx2x2", (2, 3)),
            ("{rotate: 2, within: 16}", "dgx2x2,costs=taccl-1mb", (2, 3)),
            ("{rotate: 16, within: 32}", "dgx2x2,costs=taccl-1kb", (16, 17)),
            ("{rotate: 3}", "ring:8", (3, 4)),
            ("{rotate: 1000000000001, within: 4}", "torus2d:4x4", (1, 2)),
            ("{permutation: [3, 2, 1, 0]}", "line:4", (3, 2)),
        ] {
            assert_eq!(symmetries(&format!("symmetry: [{rule}]"), spec), Ok(vec![images]), "{rule} on {spec}");
        }
    }

    #[test]
    fn what_is_not_symmetric_is_said_with_evidence() {
        for (rule, spec, evidence) in [
            ("{rotate: 1, within: 8}", "ndv2x2", "link 0 → 1 would become 1 → 2, which has other costs"),
            ("{rotate: 2, within: 8}", "ndv2x1", "link 0 → 2 would become 2 → 4, which does not exist"),
            ("{rotate: 1, within: 16}", "dgx2x2,costs=taccl-1mb", "would not share an equal resource"),
            ("{rotate: 1}", "line:4", "link 2 → 3 would become 3 → 0, which does not exist"),
        ] {
            let error = symmetries(&format!("symmetry: [{rule}]"), spec).unwrap_err();
            assert!(error.contains(evidence), "{rule} on {spec}: {error}");
        }
    }

    #[test]
    fn detection_finds_rotations_and_exchanges() {
        for (spec, images) in [
            ("line:4", vec![]),
            ("ring:6", vec![(1, 2)]),
            ("ndv2x2", vec![(8, 9), (8, 9)]),
            ("torus2d:2x3", vec![(3, 4), (1, 2)]),
        ] {
            assert_eq!(symmetries("symmetry: auto", spec).unwrap(), images, "{spec}");
        }
        let broken = "symmetry: auto\nlinks: {forbid: [[0, 1]]}";
        assert_eq!(symmetries(broken, "ring:6"), Ok(vec![]), "a sketch may break a symmetry");
    }

    #[test]
    fn a_machine_that_would_be_torn_apart_is_refused() {
        let error = symmetries("symmetry: [{rotate: 1}]", "dgx2x2").unwrap_err();
        assert!(error.contains("share a machine"), "{error}");
    }
}
