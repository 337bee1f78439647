//! Whether generators are symmetries of topology and demand that commute and leave nothing in place.
//!
//! The principal type is [`Unfolding`]: the group, and its effect on ranks, links and chunks. Generators are not
//! trusted: all images are looked up and compared one by one.

use super::Generator;
use crate::{ChunkId, Demand, RankSet};
use petgraph::unionfind::UnionFind;
use std::collections::BTreeMap;
use topology::symmetry::{Action, Translations};
use topology::{LinkId, Rank, ResourceId, Topology};

/// A group that leaves no rank, link or chunk in place. Its elements are numbers; 0 is the identity.
#[derive(Clone, PartialEq, Debug)]
pub struct Unfolding {
    pub(crate) group: Translations,
    pub(crate) ranks: Action,
    pub(crate) links: Action,
    pub(crate) chunks: Action,
    /// For each resource, the representative of its orbit.
    pub(crate) resources: Vec<ResourceId>,
}

/// The group that `generators` generate.
///
/// # Errors
/// The first generator that is no such symmetry (or the number of generators, where they fail only together), and the
/// reason.
pub(crate) fn check_symmetry(
    generators: &[Generator],
    topology: &Topology,
    demand: &Demand,
) -> Result<Unfolding, (usize, String)> {
    let counts = [topology.rank_count(), topology.links().len(), demand.chunks().len()];
    for (index, generator) in generators.iter().enumerate() {
        check_images(generator, counts).map_err(|why| (index, why))?;
    }
    let ranks = numbers(generators, |it| it.ranks.iter().map(|rank| rank.0).collect());
    let not_free = || {
        let why = "together they do not commute, or leave a rank, link or chunk in place".to_owned();
        (generators.len(), why)
    };
    let group = Translations::proposed(&slices(&ranks)).ok_or_else(not_free)?;
    // Numbers of one kind at a time: those of millions of links take much memory.
    let act = |of: Vec<Vec<u32>>, count| Action::new(&group, &slices(&of), count).ok_or_else(not_free);
    let ranks = act(ranks, counts[0])?;
    let links = act(numbers(generators, |it| it.links.iter().map(|link| link.0).collect()), counts[1])?;
    let chunks = act(numbers(generators, |it| it.chunks.iter().map(|chunk| chunk.0).collect()), counts[2])?;
    let mut resources = Resources::new(topology);
    for (index, generator) in generators.iter().enumerate() {
        check_links(generator, topology).map_err(|why| (index, why))?;
        resources.join_along(generator, topology).map_err(|why| (index, why))?;
        check_chunks(generator, demand).map_err(|why| (index, why))?;
    }
    Ok(Unfolding { group, ranks, links, chunks, resources: resources.representatives() })
}

fn numbers(generators: &[Generator], of: impl Fn(&Generator) -> Vec<u32>) -> Vec<Vec<u32>> {
    generators.iter().map(of).collect()
}

fn slices(lists: &[Vec<u32>]) -> Vec<&[u32]> {
    lists.iter().map(Vec::as_slice).collect()
}

/// Checks that every image exists, and that everything has one.
fn check_images(generator: &Generator, [ranks, links, chunks]: [usize; 3]) -> Result<(), String> {
    let check = |what: &str, count: usize, images: usize, largest: Option<usize>| match largest {
        _ if images != count => Err(format!("it has images of {images} {what}, but there are {count}")),
        Some(largest) if largest >= count => Err(format!("it has an image {largest}, but only {count} {what} exist")),
        _ => Ok(()),
    };
    let Generator { ranks: of_ranks, links: of_links, chunks: of_chunks } = generator;
    check("ranks", ranks, of_ranks.len(), of_ranks.iter().map(|it| it.index()).max())?;
    check("links", links, of_links.len(), of_links.iter().map(|it| it.index()).max())?;
    check("chunks", chunks, of_chunks.len(), of_chunks.iter().map(|it| it.index()).max())
}

/// Checks that the image of every link joins the images of its ends, at the same cost.
fn check_links(generator: &Generator, topology: &Topology) -> Result<(), String> {
    let differs = |&id: &LinkId| {
        let (link, image) = (topology.link(id), topology.link(generator.links[id.index()]));
        let moved = |rank: Rank| generator.ranks[rank.index()];
        let cost = |link: &topology::Link| (link.alpha.0.to_bits(), link.beta.0.to_bits(), link.latency);
        (moved(link.from), moved(link.to)) != (image.from, image.to) || cost(link) != cost(image)
    };
    match topology.link_ids().find(differs) {
        Some(id) => {
            let (link, image) = (topology.link(id), topology.link(generator.links[id.index()]));
            Err(format!(
                "link {id} ({} → {}) would become link {} ({} → {}), which joins other ranks or has another cost",
                link.from,
                link.to,
                generator.links[id.index()],
                image.from,
                image.to
            ))
        }
        None => Ok(()),
    }
}

/// α and β, to compare.
fn cost_of(resource: &topology::Resource) -> [u64; 2] {
    [resource.alpha.0, resource.beta.0].map(f64::to_bits)
}

/// Orbits of resources.
struct Resources<'t> {
    /// Resources by their α and β and the links that use them. Equal ones serve the same messages, so one represents the
    /// others.
    by_users: BTreeMap<([u64; 2], &'t [LinkId]), ResourceId>,
    joined: UnionFind<usize>,
}

impl<'t> Resources<'t> {
    fn new(topology: &'t Topology) -> Self {
        let mut by_users = BTreeMap::new();
        let mut joined = UnionFind::new(topology.resources().len());
        for (index, resource) in topology.resources().iter().enumerate() {
            let id = ResourceId::from_index(index);
            let key = (cost_of(resource), topology.users(id));
            joined.union(index, by_users.entry(key).or_insert(id).index());
        }
        Self { by_users, joined }
    }

    /// Checks that the links of every resource become those of a resource with equal α and β.
    fn join_along(&mut self, generator: &Generator, topology: &Topology) -> Result<(), String> {
        for (index, resource) in topology.resources().iter().enumerate() {
            let users = topology.users(ResourceId::from_index(index)).iter();
            let mut images: Vec<LinkId> = users.map(|link| generator.links[link.index()]).collect();
            images.sort_unstable();
            let by_users: &BTreeMap<([u64; 2], &[LinkId]), ResourceId> = &self.by_users;
            let Some(&image) = by_users.get(&(cost_of(resource), &images[..])) else {
                return Err(format!(
                    "the links that share {} would not share an equal resource",
                    topology::shorten(&resource.name)
                ));
            };
            self.joined.union(index, image.index());
        }
        Ok(())
    }

    /// For each resource, the representative of its orbit.
    fn representatives(self) -> Vec<ResourceId> {
        self.joined.into_labeling().into_iter().map(ResourceId::from_index).collect()
    }
}

/// Checks that the image of every chunk has the same size and release, and the images of its holders and receivers.
fn check_chunks(generator: &Generator, demand: &Demand) -> Result<(), String> {
    let mut sets = SetComparison { ranks: &generator.ranks, last: None };
    for id in demand.chunk_ids() {
        let image = generator.chunks[id.index()];
        let (chunk, other) = (demand.chunk(id), demand.chunk(image));
        let same = chunk.combine == other.combine
            && chunk.release == other.release
            && demand.bytes_of(id).0.to_bits() == demand.bytes_of(image).0.to_bits()
            && sets.maps(&chunk.holders, &other.holders)
            && sets.maps(&chunk.wanted_by, &other.wanted_by);
        if !same {
            return Err(differing(id, image));
        }
    }
    Ok(())
}

fn differing(id: ChunkId, image: ChunkId) -> String {
    format!("chunk {id} would become chunk {image}, which other ranks hold or want, or which has another size or kind")
}

/// Compares sets with images of sets. The set of all ranks, which thousands of chunks share, is mapped only once.
struct SetComparison<'a> {
    ranks: &'a [Rank],
    last: Option<(RankSet, RankSet, bool)>,
}

impl SetComparison<'_> {
    fn maps(&mut self, set: &RankSet, onto: &RankSet) -> bool {
        if let (&[one], &[other]) = (&set[..], &onto[..]) {
            return self.ranks[one.index()] == other;
        }
        let is = |known: &RankSet, set: &RankSet| known.as_ptr() == set.as_ptr() && known.len() == set.len();
        if let Some((known, image, verdict)) = &self.last
            && is(known, set)
            && is(image, onto)
        {
            return *verdict;
        }
        let verdict = set.len() == onto.len() && {
            let moved: RankSet = set.iter().map(|rank| self.ranks[rank.index()]).collect();
            moved == *onto
        };
        if set.len() > 1 {
            self.last = Some((set.clone(), onto.clone(), verdict));
        }
        verdict
    }
}
