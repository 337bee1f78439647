//! The topology graph.
//!
//! The principal type is [`Topology`]. It is immutable and always valid: its only constructor is [`Topology::new`],
//! which checks every id and every cost.

use crate::adjacency::Adjacency;
use crate::{
    Latency, Link, LinkId, MAX_LINKS, MAX_LISTED_LINKS, MAX_RANKS, Micros, Rank, Resource, ResourceId, TopologyError,
    TopologyResult,
};
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// The parts a [`Topology`] is made of, not yet checked.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TopologyParts {
    /// What the user called it; part of no digest.
    pub name: String,
    /// How many ranks.
    pub ranks: usize,
    /// Which ranks share a machine; empty means that all do.
    pub machines: Vec<Vec<Rank>>,
    /// The links; a link's id is its position.
    pub links: Vec<Link>,
    /// The resources; a resource's id is its position.
    pub resources: Vec<Resource>,
}

/// A machine, or several: a valid directed multigraph of links with shared resources.
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    parts: TopologyParts,
    machine_of: Vec<usize>,
    outgoing: Adjacency,
    incoming: Adjacency,
    /// The links that leave a rank, by receiver: a binary search finds the links of a pair.
    by_receiver: Adjacency,
    users: Adjacency,
    identity: KnownIdentity,
}

/// What is known about the name and the digest. It follows from the rest, so topologies are compared without it.
#[derive(Clone, Debug, Default)]
struct KnownIdentity {
    /// The digest, once somebody has asked for it.
    digest: OnceLock<String>,
    /// Whether the name is a SPEC of this very machine.
    is_named_by_spec: bool,
}

impl PartialEq for KnownIdentity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// How many bytes are hashed at once: a digest takes the numbers of millions of links.
const HASHED_AT_ONCE: usize = 1 << 14;

impl Topology {
    /// Checks `parts` and builds the adjacency tables.
    ///
    /// # Errors
    /// Any [`TopologyError`]: ids out of range, links to self, costs that are negative or not finite, a link
    /// faster than its resource, machines that do not partition the ranks, or counts over the limits.
    pub fn new(mut parts: TopologyParts) -> TopologyResult<Self> {
        check_counts(&parts)?;
        if parts.machines.is_empty() {
            parts.machines = vec![(0..parts.ranks).map(Rank::from_index).collect()];
        }
        let machine_of = partition(&parts)?;
        check_resources(&parts)?;
        for (index, link) in parts.links.iter().enumerate() {
            check_link(&parts, LinkId::from_index(index), link)?;
        }
        let ends = |end: fn(&Link) -> Rank| parts.links.iter().map(move |link| end(link).index());
        let outgoing = Adjacency::new(parts.ranks, ends(|link| link.from).enumerate());
        let incoming = Adjacency::new(parts.ranks, ends(|link| link.to).enumerate());
        let uses = parts.links.iter().enumerate();
        let uses = uses.flat_map(|(id, link)| link.resources.iter().map(move |resource| (id, resource.index())));
        let users = Adjacency::new(parts.resources.len(), uses);
        let by_receiver = outgoing.sorted_by_key(|link| parts.links[link.index()].to);
        Ok(Self { machine_of, outgoing, incoming, by_receiver, users, parts, identity: KnownIdentity::default() })
    }

    /// The name: a SPEC, or what a file said.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The same machine under another name.
    #[must_use]
    pub fn renamed(mut self, name: impl Into<String>) -> Self {
        self.parts.name = name.into();
        self.identity.is_named_by_spec = false;
        self
    }

    /// The same machine, made from the SPEC that is its name.
    pub(crate) fn named_by_spec(mut self) -> Self {
        self.identity.is_named_by_spec = true;
        self
    }

    /// Whether it is known that [`resolve`](crate::resolve) makes this machine from its name.
    pub fn is_named_by_spec(&self) -> bool {
        self.identity.is_named_by_spec
    }

    /// How many ranks there are.
    pub fn rank_count(&self) -> usize {
        self.parts.ranks
    }

    /// All ranks, ascending.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator + use<> {
        (0..self.parts.ranks as u32).map(Rank)
    }

    /// The ranks of each machine.
    pub fn machines(&self) -> &[Vec<Rank>] {
        &self.parts.machines
    }

    /// Which machine (index into [`Self::machines`]) a rank is in.
    #[inline]
    pub fn machine_of(&self, rank: Rank) -> usize {
        self.machine_of[rank.index()]
    }

    /// Whether a link joins two machines.
    pub fn crosses_machines(&self, link: &Link) -> bool {
        self.machine_of(link.from) != self.machine_of(link.to)
    }

    /// All links; a link's id is its position.
    pub fn links(&self) -> &[Link] {
        &self.parts.links
    }

    /// All link ids, ascending.
    pub fn link_ids(&self) -> impl DoubleEndedIterator<Item = LinkId> + ExactSizeIterator + use<> {
        (0..self.parts.links.len() as u32).map(LinkId)
    }

    /// One link.
    #[inline]
    pub fn link(&self, id: LinkId) -> &Link {
        &self.parts.links[id.index()]
    }

    /// All resources; a resource's id is its position.
    pub fn resources(&self) -> &[Resource] {
        &self.parts.resources
    }

    /// One resource.
    #[inline]
    pub fn resource(&self, id: ResourceId) -> &Resource {
        &self.parts.resources[id.index()]
    }

    /// The links that leave a rank, ascending.
    #[inline]
    pub fn outgoing(&self, rank: Rank) -> &[LinkId] {
        self.outgoing.of(rank.index())
    }

    /// The links that enter a rank, ascending.
    #[inline]
    pub fn incoming(&self, rank: Rank) -> &[LinkId] {
        self.incoming.of(rank.index())
    }

    /// The links that use a resource, ascending.
    #[inline]
    pub fn users(&self, resource: ResourceId) -> &[LinkId] {
        self.users.of(resource.index())
    }

    /// The links from one rank to another (there may be several), ascending.
    pub fn between(&self, from: Rank, to: Rank) -> impl Iterator<Item = LinkId> + '_ {
        let leaving = self.by_receiver.of(from.index());
        let first = leaving.partition_point(|&id| self.link(id).to < to);
        leaving[first..].iter().copied().take_while(move |&id| self.link(id).to == to)
    }

    /// The same machine with every link turned around; link and resource ids keep their meaning.
    ///
    /// An AllGather planned on the reversed topology, played backwards, is a ReduceScatter on this one.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let mut reversed = Self { identity: KnownIdentity::default(), ..self.clone() };
        for link in &mut reversed.parts.links {
            std::mem::swap(&mut link.from, &mut link.to);
        }
        std::mem::swap(&mut reversed.outgoing, &mut reversed.incoming);
        reversed.by_receiver = reversed.outgoing.sorted_by_key(|link| reversed.parts.links[link.index()].to);
        reversed
    }

    /// The same machine without α: messages cost only the time of their bytes.
    #[must_use]
    pub fn without_alpha(&self) -> Self {
        let mut free = Self { identity: KnownIdentity::default(), ..self.clone() };
        free.parts.links.iter_mut().for_each(|link| link.alpha = Micros::ZERO);
        free.parts.resources.iter_mut().for_each(|resource| resource.alpha = Micros::ZERO);
        free
    }

    /// SHA-256 over everything but the name, in hexadecimal: equal digests mean equal machines.
    pub fn digest(&self) -> String {
        self.identity.digest.get_or_init(|| self.computed_digest()).clone()
    }

    fn computed_digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut waiting: Vec<u8> = Vec::with_capacity(HASHED_AT_ONCE);
        let mut number = |value: u64| {
            waiting.extend_from_slice(&value.to_le_bytes());
            if waiting.len() >= HASHED_AT_ONCE {
                hash.update(&waiting);
                waiting.clear();
            }
        };
        number(self.parts.ranks as u64);
        for machine in &self.parts.machines {
            number(machine.len() as u64);
            machine.iter().for_each(|rank| number(u64::from(rank.0)));
        }
        number(self.parts.links.len() as u64);
        for link in &self.parts.links {
            number(u64::from(link.from.0) << 32 | u64::from(link.to.0));
            number(link.alpha.0.to_bits());
            number(link.beta.0.to_bits());
            number(u64::from(link.latency == Latency::Occupies));
            number(link.resources.len() as u64);
            link.resources.iter().for_each(|resource| number(u64::from(resource.0)));
        }
        self.parts.resources.iter().for_each(|resource| number(resource.beta.0.to_bits()));
        // Only where there is one: topologies without keep the digests of earlier versions.
        for (index, resource) in
            self.parts.resources.iter().enumerate().filter(|(_, shared)| shared.alpha > Micros::ZERO)
        {
            number(index as u64);
            number(resource.alpha.0.to_bits());
        }
        hash.update(&waiting);
        let digest = hash.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn check_counts(parts: &TopologyParts) -> TopologyResult<()> {
    if parts.ranks == 0 {
        return Err(TopologyError::NoRanks);
    }
    for (what, count, limit) in [
        ("ranks", parts.ranks, MAX_RANKS),
        ("links", parts.links.len(), MAX_LINKS),
        ("resources", parts.resources.len(), MAX_LISTED_LINKS),
    ] {
        if count > limit {
            return Err(TopologyError::TooMany { what, count: count as u64, limit: limit as u64 });
        }
    }
    Ok(())
}

fn partition(parts: &TopologyParts) -> TopologyResult<Vec<usize>> {
    let mut count = vec![0; parts.ranks];
    let mut machine_of = vec![0; parts.ranks];
    for (machine, ranks) in parts.machines.iter().enumerate() {
        for rank in ranks {
            let Some(seen) = count.get_mut(rank.index()) else {
                return Err(TopologyError::NotAPartition { rank: *rank, count: 0 });
            };
            *seen += 1;
            machine_of[rank.index()] = machine;
        }
    }
    match count.iter().position(|&count| count != 1) {
        Some(rank) => Err(TopologyError::NotAPartition { rank: Rank::from_index(rank), count: count[rank] }),
        None => Ok(machine_of),
    }
}

/// The largest α (µs) and β (µs per byte): thirty years. Sums of many such costs are still finite.
const MAX_COST: f64 = 1e15;

fn check_cost(owner: impl FnOnce() -> String, what: &'static str, value: f64) -> TopologyResult<()> {
    if (0.0..=MAX_COST).contains(&value) {
        return Ok(());
    }
    Err(TopologyError::BadCost { owner: owner(), what, value })
}

fn check_resources(parts: &TopologyParts) -> TopologyResult<()> {
    for (index, resource) in parts.resources.iter().enumerate() {
        let owner = || format!("resource {index} ({})", resource.name);
        check_cost(owner, "α", resource.alpha.0)?;
        check_cost(owner, "β", resource.beta.0)?;
    }
    Ok(())
}

fn check_link(parts: &TopologyParts, id: LinkId, link: &Link) -> TopologyResult<()> {
    for rank in [link.from, link.to] {
        if rank.index() >= parts.ranks {
            return Err(TopologyError::UnknownRank { link: id, rank, ranks: parts.ranks });
        }
    }
    if link.from == link.to {
        return Err(TopologyError::SelfLink { link: id, rank: link.from });
    }
    check_cost(|| format!("link {id}"), "α", link.alpha.0)?;
    check_cost(|| format!("link {id}"), "β", link.beta.0)?;
    for (position, &resource) in link.resources.iter().enumerate() {
        if link.resources[..position].contains(&resource) {
            return Err(TopologyError::RepeatedResource { link: id, resource });
        }
        let Some(shared) = parts.resources.get(resource.index()) else {
            let resources = parts.resources.len();
            return Err(TopologyError::UnknownResource { link: id, resource, resources });
        };
        // One part in 10⁹ of slack: both numbers may have been printed and read back.
        if link.alpha.0 < shared.alpha.0 * (1.0 - 1e-9) {
            return Err(TopologyError::QuickerThanResource {
                link: id,
                link_alpha: link.alpha.0,
                resource,
                resource_alpha: shared.alpha.0,
                name: shared.name.clone(),
            });
        }
        if link.beta.0 < shared.beta.0 * (1.0 - 1e-9) {
            return Err(TopologyError::FasterThanResource {
                link: id,
                link_beta: link.beta.0,
                resource,
                resource_beta: shared.beta.0,
                name: shared.name.clone(),
            });
        }
    }
    Ok(())
}
