//! Whether a renumbering of ranks is a symmetry, and what it does to links and resources.
//!
//! The principal function is [`extend`]. It assumes nothing about its input: machines must map to machines, links to
//! links of the same cost, and the links that share a resource to links that share an equal one.

use super::Colours;
use crate::{Link, LinkId, Rank, Resource, ResourceId, Topology};
use std::fmt;

/// A symmetry: what each rank, link and resource becomes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Automorphism {
    /// `ranks[r]` is the image of rank r.
    pub ranks: Vec<Rank>,
    /// `links[l]` is the image of link l.
    pub links: Vec<LinkId>,
    /// `resources[s]` is the image of resource s.
    pub resources: Vec<ResourceId>,
}

/// Why a renumbering of ranks is not a symmetry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotASymmetry {
    /// Two ranks have the same image, or one has none.
    #[error("rank {rank} is the image of two ranks, or does not exist")]
    NotAPermutation {
        /// The image that occurs twice or is out of range; the first rank without an image if the list has a wrong length.
        rank: Rank,
    },
    /// Ranks of different colours would be exchanged.
    #[error("rank {rank} would become rank {image}, which must be told apart from it")]
    RankDiffers {
        /// The rank.
        rank: Rank,
        /// Its image.
        image: Rank,
    },
    /// Ranks of one machine would be in several.
    #[error("ranks {rank} and {other} share a machine, but their images do not")]
    SplitsMachine {
        /// A rank.
        rank: Rank,
        /// Another rank of its machine, whose image is in another machine.
        other: Rank,
    },
    /// A link would become one that does not exist.
    #[error("{0}, which does not exist")]
    NoImage(LinkEnds),
    /// A link would become one with other costs, or of another colour.
    #[error("{0}, which differs from it")]
    LinkDiffers(LinkEnds),
    /// The links that share a resource would not share an equal one.
    #[error("the links that share {resource} would not share an equal resource")]
    ResourceHasNoImage {
        /// The resource's name.
        resource: String,
    },
}

/// A link and its would-be image, by their ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkEnds {
    /// The link's sender.
    pub from: Rank,
    /// The link's receiver.
    pub to: Rank,
    /// The image of the sender.
    pub image_from: Rank,
    /// The image of the receiver.
    pub image_to: Rank,
}

impl fmt::Display for LinkEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {} → {} would become {} → {}", self.from, self.to, self.image_from, self.image_to)
    }
}

/// α, β, latency, number of resources and colour of a link. They must be equal where a link is the image of another.
pub(super) type CostKey = (u64, u64, bool, usize, u32);

pub(super) fn cost_key(topology: &Topology, colours: Colours<'_>, id: LinkId) -> CostKey {
    let Link { alpha, beta, latency, ref resources, .. } = *topology.link(id);
    let colour = colours.links.get(id.index()).copied().unwrap_or(0);
    (alpha.0.to_bits(), beta.0.to_bits(), latency == crate::Latency::Occupies, resources.len(), colour)
}

/// Extends a renumbering of ranks (`ranks[r]` is the image of rank r) to the links and resources.
///
/// Several links with equal ends and costs keep their order.
///
/// # Errors
/// [`NotASymmetry`] with the first rank, link or resource that has no image.
pub fn extend(topology: &Topology, colours: Colours<'_>, ranks: &[Rank]) -> Result<Automorphism, NotASymmetry> {
    let moves = SymmetryCheck::new(topology, colours).judge(ranks)?;
    let mut links: Vec<LinkId> = topology.link_ids().collect();
    let mut resources: Vec<ResourceId> = (0..topology.resources().len()).map(ResourceId::from_index).collect();
    moves.links.iter().for_each(|&(link, image)| links[link.index()] = image);
    moves.resources.iter().for_each(|&(resource, image)| resources[resource.index()] = image);
    Ok(Automorphism { ranks: ranks.to_vec(), links, resources })
}

/// Links and resources that a symmetry does not leave in place, with their images.
pub(super) struct Moves {
    pub(super) links: Vec<(LinkId, LinkId)>,
    resources: Vec<(ResourceId, ResourceId)>,
}

/// Checks many renumberings of one topology; the cost of a check grows with the ranks that move, not with all ranks.
pub(super) struct SymmetryCheck<'t> {
    topology: &'t Topology,
    colours: Colours<'t>,
    /// For each link, its image under the renumbering that is being checked; otherwise the link itself.
    image: Vec<LinkId>,
    taken: Vec<bool>,
    /// For each resource, whether it moves and is not yet an image.
    open: Vec<bool>,
}

impl<'t> SymmetryCheck<'t> {
    pub(super) fn new(topology: &'t Topology, colours: Colours<'t>) -> Self {
        Self {
            topology,
            colours,
            image: topology.link_ids().collect(),
            taken: vec![false; topology.links().len()],
            open: vec![false; topology.resources().len()],
        }
    }

    /// Ranks, links and resources that a renumbering moves.
    ///
    /// # Errors
    /// As [`extend`].
    pub(super) fn judge(&mut self, ranks: &[Rank]) -> Result<Moves, NotASymmetry> {
        check_ranks(self.topology, self.colours, ranks)?;
        check_machines(self.topology, ranks)?;
        let moving = self.moving_links(ranks);
        let mut resources = self.resources_of(&moving);
        let outcome = self.map_links(&moving, ranks).and_then(|()| self.map_resources(&mut resources));
        let links: Vec<(LinkId, LinkId)> = moving.iter().map(|&id| (id, self.image[id.index()])).collect();
        for &(id, image) in &links {
            self.taken[image.index()] = false;
            self.image[id.index()] = id;
        }
        resources.iter().for_each(|(id, _)| self.open[id.index()] = false);
        outcome.map(|()| Moves { links, resources })
    }

    /// The links with an end that moves, by sender.
    fn moving_links(&self, ranks: &[Rank]) -> Vec<LinkId> {
        let moves = |rank: Rank| ranks[rank.index()] != rank;
        let mut moving = Vec::new();
        for rank in self.topology.ranks().filter(|&rank| moves(rank)) {
            moving.extend_from_slice(self.topology.outgoing(rank));
            let entering = self.topology.incoming(rank).iter().copied();
            moving.extend(entering.filter(|&id| !moves(self.topology.link(id).from)));
        }
        moving.sort_unstable_by_key(|&id| (self.topology.link(id).from, id));
        moving
    }

    fn map_links(&mut self, moving: &[LinkId], ranks: &[Rank]) -> Result<(), NotASymmetry> {
        for &id in moving {
            let Link { from, to, .. } = *self.topology.link(id);
            let (image_from, image_to) = (ranks[from.index()], ranks[to.index()]);
            let mut there = self.topology.between(image_from, image_to);
            let fits = |other: &LinkId| !self.taken[other.index()] && self.same_cost(id, *other);
            let Some(image) = there.find(fits) else {
                let ends = LinkEnds { from, to, image_from, image_to };
                return Err(match self.topology.between(image_from, image_to).next() {
                    Some(_) => NotASymmetry::LinkDiffers(ends),
                    None => NotASymmetry::NoImage(ends),
                });
            };
            self.taken[image.index()] = true;
            self.image[id.index()] = image;
        }
        Ok(())
    }

    fn same_cost(&self, one: LinkId, other: LinkId) -> bool {
        cost_key(self.topology, self.colours, one) == cost_key(self.topology, self.colours, other)
    }

    /// The resources that links use, ascending, each with itself as image; none is taken yet.
    fn resources_of(&mut self, links: &[LinkId]) -> Vec<(ResourceId, ResourceId)> {
        let used = links.iter().flat_map(|&id| self.topology.link(id).resources.iter().copied());
        let mut resources: Vec<ResourceId> = used.collect();
        resources.sort_unstable();
        resources.dedup();
        resources.iter().for_each(|id| self.open[id.index()] = true);
        resources.into_iter().map(|id| (id, id)).collect()
    }

    /// Finds the image of each resource among those that every image of its links uses: one with as many users and the
    /// same β that is not yet an image.
    fn map_resources(&mut self, moving: &mut [(ResourceId, ResourceId)]) -> Result<(), NotASymmetry> {
        let topology = self.topology;
        for (id, image) in moving {
            let mut wanted: Vec<LinkId> = topology.users(*id).iter().map(|user| self.image[user.index()]).collect();
            wanted.sort_unstable();
            let same = |one: &Resource, other: &Resource| {
                [one.alpha.0, one.beta.0].map(f64::to_bits) == [other.alpha.0, other.beta.0].map(f64::to_bits)
            };
            let own = topology.resource(*id);
            // A resource that moves has users.
            let shared = topology.link(wanted[0]).resources.iter().copied();
            let found = shared
                .filter(|&other| self.open[other.index()])
                .find(|&other| same(topology.resource(other), own) && topology.users(other) == &wanted[..]);
            let Some(found) = found else {
                return Err(NotASymmetry::ResourceHasNoImage { resource: topology.resource(*id).name.clone() });
            };
            self.open[found.index()] = false;
            *image = found;
        }
        Ok(())
    }
}

fn check_ranks(topology: &Topology, colours: Colours<'_>, ranks: &[Rank]) -> Result<(), NotASymmetry> {
    if ranks.len() != topology.rank_count() {
        return Err(NotASymmetry::NotAPermutation { rank: Rank::from_index(ranks.len().min(topology.rank_count())) });
    }
    let mut seen = vec![false; ranks.len()];
    for (rank, &image) in ranks.iter().enumerate() {
        if seen.get(image.index()) != Some(&false) {
            return Err(NotASymmetry::NotAPermutation { rank: image });
        }
        seen[image.index()] = true;
        if colours.ranks.get(rank) != colours.ranks.get(image.index()) {
            return Err(NotASymmetry::RankDiffers { rank: Rank::from_index(rank), image });
        }
    }
    Ok(())
}

/// The images of two ranks of a machine must share a machine. Because sizes are equal, machines then map onto machines.
fn check_machines(topology: &Topology, ranks: &[Rank]) -> Result<(), NotASymmetry> {
    let home = |rank: Rank| topology.machine_of(ranks[rank.index()]);
    for machine in topology.machines() {
        let [first, others @ ..] = &machine[..] else { continue };
        let larger = topology.machines()[home(*first)].len() != machine.len();
        let apart = others.iter().find(|&&other| home(other) != home(*first));
        if let Some(&other) = apart.or(larger.then_some(first)) {
            return Err(NotASymmetry::SplitsMachine { rank: *first, other });
        }
    }
    Ok(())
}
