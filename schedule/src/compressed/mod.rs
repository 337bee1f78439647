//! Orbit-compressed schedules: one transfer of each orbit, and the symmetries that repeat it.
//!
//! The principal types are [`CompressedSchedule`], which is a claim, and [`VerifiedCompressed`], which
//! [`verify_compressed`] makes from it. An AllGather among 40 000 ranks has 1.6·10⁹ transfers; on a torus all of them
//! are images of 40 000 transfers.
//!
//! **Meaning.** A [`Generator`] gives the image of every rank, link and chunk. Generators commute, and only the
//! identity leaves something in place ([`topology::symmetry::Translations`]). So the group G that they generate has as
//! many elements as a rank has images. The schedule is all g·t for t in the base and g in G: the same times, over the
//! image of the link, with the images of the chunks. [`VerifiedCompressed::expand`] writes all of them.
//!
//! **Why checking the base is enough.** Let every generator preserve topology and demand (ends, costs and resources of
//! links; holders, receivers, size and combining of chunks), and let none but the identity fix a rank, link or chunk. Then:
//!
//! 1. *Times.* g·t has the link costs and the bytes of t, so it is timed rightly exactly if t is.
//! 2. *Links.* Of the images of t exactly one uses a given link ℓ of t's orbit (two, g·t and h·t, would make h⁻¹g fix t's link).
//!    So ℓ carries, for each base transfer whose link is in its orbit, one message at that transfer's time: links of one orbit are
//!    busy at the same times, and those of base transfers say whether they overlap.
//! 3. *Resources.* In the same way a resource q is used by one image of t for each link of t's orbit that uses q. If
//!    it is free of overlaps, so are its images.
//! 4. *Chunks.* Of the images of t exactly one carries a given chunk c in place of a chunk k of t: that of the g with
//!    g·k = c. The history of c is thus found by pulling back every base transfer that carries a chunk of c's orbit; the
//!    history of h·c is its image under h, rank by rank at the same times, and so is who holds and who wants it. If c is never
//!    sent before it is held, never added twice and ends where it is wanted, the same is true of h·c.
//!
//! Every rule of [`crate::verify`] is one of these four. All of it takes time in proportion to the base, to the links and to
//! the chunks, never to the expanded schedule.
//!
//! **In a file** (`antiphon-schedule/1`): `transfers` are the base, and a key `symmetry` has `generators`, each with
//! the lists `ranks`, `links` and `chunks` of images. For a standard collective `chunks` is absent: the chunks are
//! those of the collective, numbered as [`crate::Demand`] numbers them.

mod symmetry;

pub use symmetry::Unfolding;
pub(crate) use symmetry::check_symmetry;

use crate::{CausalOrder, ChunkId, ChunkList, Demand, Schedule, Transfer, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{LinkId, Micros, Rank, Topology};

/// Schedules with at most this many transfers are always written plain.
pub const MOST_PLAIN_TRANSFERS: usize = 5_000_000;

/// A renumbering of ranks, links and chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generator {
    /// `ranks[r]` is the image of rank r.
    pub ranks: Vec<Rank>,
    /// `links[l]` is the image of link l.
    pub links: Vec<LinkId>,
    /// `chunks[c]` is the image of chunk c.
    pub chunks: Vec<ChunkId>,
}

/// A base and the generators that repeat it. It is only a claim until it is verified.
#[derive(Clone, PartialEq, Debug)]
pub struct CompressedSchedule {
    /// The request, the bound, and one transfer of each orbit, sorted by start.
    pub base: Schedule,
    /// Generators of the group; none for a plain schedule.
    pub generators: Vec<Generator>,
}

/// A compressed schedule that the verifier accepted: its expansion would be accepted as well.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifiedCompressed {
    compressed: CompressedSchedule,
    topology: Arc<Topology>,
    unfolding: Arc<Unfolding>,
    order: Arc<OrbitOrder>,
}

/// The causal order of the base. The lists of deliveries are by orbit of chunks, not by chunk: a list says what happens to
/// the first chunk of the orbit, at all ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct OrbitOrder {
    /// Departures and landings of base transfers, and for each orbit of chunks its deliveries.
    pub order: CausalOrder,
    /// For each delivery its sender and its receiver: those of the image of the transfer that carries the orbit's first
    /// chunk. The lists are by orbit, like those of the deliveries.
    pub ways: Vec<Vec<(Rank, Rank)>>,
}

/// An expansion that was too large to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the schedule has {transfers} transfers; at most {limit} are written down one by one")]
pub struct TooManyTransfers {
    /// How many it would have.
    pub transfers: u64,
    /// How many may be written.
    pub limit: u64,
}

impl VerifiedCompressed {
    pub(crate) fn new(
        compressed: CompressedSchedule,
        topology: Arc<Topology>,
        unfolding: Unfolding,
        order: OrbitOrder,
    ) -> Self {
        Self { compressed, topology, unfolding: Arc::new(unfolding), order: Arc::new(order) }
    }

    /// The request, the bound and the base transfers.
    pub fn base(&self) -> &Schedule {
        &self.compressed.base
    }

    /// The machine for which it was verified.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The generators that repeat the base.
    pub fn generators(&self) -> &[Generator] {
        &self.compressed.generators
    }

    /// The demand that it meets.
    pub fn demand(&self) -> &Demand {
        &self.compressed.base.demand
    }

    /// The group that repeats the base.
    pub fn unfolding(&self) -> &Arc<Unfolding> {
        &self.unfolding
    }

    /// The order of the base's messages, with the value that each delivery reads.
    pub fn causal_order(&self) -> &OrbitOrder {
        &self.order
    }

    /// How many images every transfer has, itself included.
    pub fn order(&self) -> usize {
        self.unfolding.group.order()
    }

    /// How many transfers the schedule has.
    pub fn transfers(&self) -> u64 {
        self.base().transfers.len() as u64 * self.order() as u64
    }

    /// How often a chunk passes a link: a transfer may carry many chunks.
    pub fn deliveries(&self) -> u64 {
        self.base().deliveries() as u64 * self.order() as u64
    }

    /// When the last transfer has arrived. Images have the times of the base, so the base's last arrival is that of
    /// all.
    pub fn makespan(&self) -> Micros {
        self.base().makespan()
    }

    /// The plain schedule; like every other, it is a claim until it is verified.
    ///
    /// # Errors
    /// [`TooManyTransfers`] where there are more than `limit`.
    pub fn expand(&self, limit: usize) -> Result<Schedule, TooManyTransfers> {
        let (transfers, limit) = (self.transfers(), limit as u64);
        if transfers > limit {
            return Err(TooManyTransfers { transfers, limit });
        }
        let mut all = Vec::with_capacity(transfers as usize);
        for transfer in &self.base().transfers {
            all.extend((0..self.order() as u32).map(|element| self.unfolding.image(element, transfer)));
        }
        Ok(Schedule { transfers: all, ..self.base().clone() })
    }

    /// The use of every link and every resource when the schedule is played at its stated times.
    pub fn usage(&self) -> (Vec<Usage>, Vec<Usage>) {
        let (topology, orbits) = (&self.topology, self.unfolding.links.orbits());
        let mut sizes: Vec<Vec<topology::Bytes>> = vec![Vec::new(); orbits];
        for transfer in &self.base().transfers {
            let orbit = self.unfolding.links.orbit(transfer.link.0);
            sizes[orbit as usize].push(self.demand().message_bytes(&transfer.chunks));
        }
        let mut links = vec![Usage::default(); topology.links().len()];
        let mut resources = vec![Usage::default(); topology.resources().len()];
        // Links of one orbit cost the same, and so do resources of equal α and β under them.
        let mut known: BTreeMap<(u32, Option<[u64; 2]>), Usage> = BTreeMap::new();
        for id in topology.link_ids() {
            let (link, orbit) = (topology.link(id), self.unfolding.links.orbit(id.0));
            let mut sum = |key: Option<[u64; 2]>, busy: &dyn Fn(topology::Bytes) -> Micros| {
                *known.entry((orbit, key)).or_insert_with(|| {
                    let mut usage = Usage::default();
                    sizes[orbit as usize].iter().for_each(|&bytes| usage.add(busy(bytes), bytes));
                    usage
                })
            };
            links[id.index()] = sum(None, &|bytes| link.occupancy(bytes));
            for &resource in &link.resources {
                let shared = topology.resource(resource);
                let more = sum(Some([shared.alpha.0, shared.beta.0].map(f64::to_bits)), &|bytes| {
                    shared.occupancy(link, bytes)
                });
                let all = &mut resources[resource.index()];
                all.busy += more.busy;
                all.bytes += more.bytes;
                all.messages += more.messages;
            }
        }
        let makespan = self.makespan();
        for usage in links.iter_mut().chain(&mut resources).filter(|_| makespan > Micros::ZERO) {
            usage.utilisation = usage.busy / makespan;
        }
        (links, resources)
    }
}

impl Unfolding {
    /// The image of a transfer.
    fn image(&self, element: u32, transfer: &Transfer) -> Transfer {
        let mut chunks: ChunkList = transfer.chunks.iter().map(|&chunk| self.moved_chunk(element, chunk)).collect();
        chunks.sort_unstable();
        Transfer { chunks, ..self.moved(element, transfer) }
    }

    /// The same message between the images of its ranks.
    pub fn moved(&self, element: u32, transfer: &Transfer) -> Transfer {
        let rank = |rank: Rank| self.moved_rank(element, rank);
        let link = LinkId(self.links.image(&self.group, element, transfer.link.0));
        Transfer { from: rank(transfer.from), to: rank(transfer.to), link, ..transfer.clone() }
    }

    /// The image of a rank.
    pub fn moved_rank(&self, element: u32, rank: Rank) -> Rank {
        Rank(self.ranks.image(&self.group, element, rank.0))
    }

    /// The image of a chunk.
    pub fn moved_chunk(&self, element: u32, chunk: ChunkId) -> ChunkId {
        ChunkId(self.chunks.image(&self.group, element, chunk.0))
    }

    /// The elements that the generators are.
    pub fn generators(&self) -> impl Iterator<Item = u32> {
        self.group.generators()
    }

    /// The element that undoes `element`.
    pub fn inverse(&self, element: u32) -> u32 {
        self.group.quotient(0, element)
    }

    /// One element after the other.
    pub fn product(&self, one: u32, other: u32) -> u32 {
        self.group.product(one, other)
    }

    /// The first rank of a rank's orbit, and the element that maps that one to it.
    pub fn first_rank(&self, rank: Rank) -> (Rank, u32) {
        (Rank(self.ranks.first(self.ranks.orbit(rank.0))), self.ranks.element(rank.0))
    }

    /// The first rank of each orbit.
    pub fn first_ranks(&self) -> impl Iterator<Item = Rank> {
        (0..self.ranks.orbits() as u32).map(|orbit| Rank(self.ranks.first(orbit)))
    }

    /// The first chunk of a chunk's orbit, and the element that maps that one to it.
    pub fn first_chunk(&self, chunk: ChunkId) -> (ChunkId, u32) {
        (ChunkId(self.chunks.first(self.chunks.orbit(chunk.0))), self.chunks.element(chunk.0))
    }

    /// The first chunk of each orbit.
    pub fn first_chunks(&self) -> impl Iterator<Item = ChunkId> {
        (0..self.chunks.orbits() as u32).map(|orbit| ChunkId(self.chunks.first(orbit)))
    }
}

#[cfg(test)]
mod tests;
