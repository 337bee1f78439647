//! Whether a renumbering of ranks is a symmetry, and what it does to links and resources.
//!
//! The principal function is [`extend`]. It trusts nobody: machines must map to machines, links to links of the same
//! cost, and the links that share a resource to links that share an equal one.

use super::Colours;
use crate::{Link, LinkId, Rank, ResourceId, Topology};
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
    NoImage(Ends),
    /// A link would become one with other costs, or of another colour.
    #[error("{0}, which differs from it")]
    LinkDiffers(Ends),
    /// The links that share a resource would not share an equal one.
    #[error("the links that share {resource} would not share an equal resource")]
    ResourceHasNoImage {
        /// The resource's name.
        resource: String,
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

fn same_cost(topology: &Topology, colours: Colours<'_>, one: LinkId, other: LinkId) -> bool {
    cost_key(topology, colours, one) == cost_key(topology, colours, other)
}

/// α, β, latency, number of resources and colour of a link: equal where links may be images of each other.
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
    check_ranks(topology, colours, ranks)?;
    check_machines(topology, ranks)?;
    let links = map_links(topology, colours, ranks)?;
    let resources = map_resources(topology, &links)?;
    Ok(Automorphism { ranks: ranks.to_vec(), links, resources })
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

/// Every rank's image shares a machine with the images of its machine; by counting, machines map onto machines.
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

fn map_links(topology: &Topology, colours: Colours<'_>, ranks: &[Rank]) -> Result<Vec<LinkId>, NotASymmetry> {
    let mut images: Vec<LinkId> = topology.link_ids().collect();
    let mut taken = vec![false; images.len()];
    // Two lists that are sorted by receiver stand side by side; only ranks that move, or whose receivers do, matter.
    let mut targets: Vec<(Rank, LinkId)> = Vec::new();
    for from in topology.ranks() {
        let image_from = ranks[from.index()];
        targets.clear();
        let leaving = topology.outgoing(image_from).iter();
        targets.extend(leaving.map(|&id| (topology.link(id).to, id)));
        targets.sort_unstable();
        for &id in topology.outgoing(from) {
            let to = topology.link(id).to;
            let image_to = ranks[to.index()];
            if image_from == from && image_to == to {
                continue;
            }
            let start = targets.partition_point(|(target, _)| *target < image_to);
            let there = || targets[start..].iter().take_while(|(target, _)| *target == image_to);
            let image = there().find(|(_, other)| !taken[other.index()] && same_cost(topology, colours, id, *other));
            let Some(&(_, image)) = image else {
                let ends = Ends { from, to, image_from, image_to };
                return Err(match there().next() {
                    Some(_) => NotASymmetry::LinkDiffers(ends),
                    None => NotASymmetry::NoImage(ends),
                });
            };
            taken[image.index()] = true;
            images[id.index()] = image;
        }
    }
    Ok(images)
}

/// The resource that the images of a resource's links share: of those that every image uses, one that has as many
/// users, the same β, and is nobody else's image.
fn map_resources(topology: &Topology, links: &[LinkId]) -> Result<Vec<ResourceId>, NotASymmetry> {
    let all = || (0..topology.resources().len()).map(ResourceId::from_index);
    let mut images: Vec<ResourceId> = all().collect();
    let mut taken = vec![false; images.len()];
    let stays = |id: ResourceId| topology.users(id).iter().all(|user| links[user.index()] == *user);
    let moving: Vec<ResourceId> = all().filter(|&id| !stays(id)).collect();
    all().filter(|&id| stays(id)).for_each(|id| taken[id.index()] = true);
    for id in moving {
        let users = topology.users(id);
        let mut wanted: Vec<LinkId> = users.iter().map(|user| links[user.index()]).collect();
        wanted.sort_unstable();
        let beta = topology.resource(id).beta;
        // A resource that moves has users.
        let shared = topology.link(wanted[0]).resources.iter().copied();
        let image = shared.filter(|&other| !taken[other.index()]).find(|&other| {
            topology.resource(other).beta.0.to_bits() == beta.0.to_bits() && topology.users(other) == &wanted[..]
        });
        let Some(image) = image else {
            return Err(NotASymmetry::ResourceHasNoImage { resource: topology.resource(id).name.clone() });
        };
        taken[image.index()] = true;
        images[id.index()] = image;
    }
    Ok(images)
}
