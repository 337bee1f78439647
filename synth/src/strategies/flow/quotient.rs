//! A problem up to symmetry: one link and one chunk of each orbit, and what a message over a link keeps busy.
//!
//! The principal type is [`Quotient`]. All decisions are repeated by a group in which only the identity leaves a rank
//! in place. So a link carries as many messages as any of its images: loads need one number per orbit of links, and
//! routes are searched for one chunk of each orbit. Without symmetries every orbit has one member. A resource may be
//! used by several links of an orbit. Resources that equal numbers of links of the same orbits use are always equally
//! busy; they count as one [`SellerUse::seller`].

use crate::problem::Problem;
use crate::strategies::shuffle::shuffle;
use crate::symmetry::Mirror;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, RankSet};
use std::collections::BTreeMap;
use topology::{Bytes, LinkId, Micros, Rank, ResourceId};

/// How long a message over a link keeps the link itself, or a resource, busy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct SellerUse {
    /// The number of the seller, which is an orbit of links or a class of resources that are always equally busy.
    pub(crate) seller: u32,
    /// Busy time per message of this orbit, in µs; zero where α is pure delay.
    pub(crate) alpha: f64,
    /// Busy time per byte, in µs.
    pub(crate) beta: f64,
}

impl SellerUse {
    /// How long `bytes` keep the seller busy, in µs, where α counts with a weight.
    pub(crate) fn busy(&self, alpha_weight: f64, bytes: Bytes) -> f64 {
        self.alpha * alpha_weight + self.beta * bytes.0
    }
}

/// Chunks with the same holders, the same usable links and the same destination.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct WantedChunks {
    pub(crate) to: Rank,
    /// The size of each chunk.
    pub(crate) bytes: Bytes,
    /// One chunk of each orbit.
    pub(crate) chunks: Vec<ChunkId>,
}

/// What is wanted of chunks of the same holders.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HolderDemand {
    pub(crate) holders: RankSet,
    pub(crate) wanted: Vec<WantedChunks>,
}

/// A problem in which every chunk has one destination, up to the symmetries of a [`Mirror`].
#[derive(Debug)]
pub(crate) struct Quotient<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) mirror: Mirror,
    /// For each link, the number of its orbit.
    orbit: Vec<u32>,
    /// For each orbit of links, what a message over one of them, together with all its images, keeps busy.
    uses: Vec<Vec<SellerUse>>,
    sellers: usize,
    /// The sources, in the order of their first chunks.
    pub(crate) sources: Vec<HolderDemand>,
}

impl<'a> Quotient<'a> {
    /// The quotient of a problem; `None` where a chunk has several destinations or is summed.
    pub(crate) fn new(problem: &'a Problem, mirror: Mirror) -> Option<Self> {
        let sources = sources(problem, &mirror)?;
        let topology = &problem.topology;
        let mut number = BTreeMap::new();
        for link in topology.link_ids() {
            let next = number.len() as u32;
            number.entry(mirror.representative(link)).or_insert(next);
        }
        let orbit: Vec<u32> = topology.link_ids().map(|link| number[&mirror.representative(link)]).collect();
        let mut quotient = Self { problem, mirror, orbit, uses: Vec::new(), sellers: number.len(), sources };
        quotient.fill_uses();
        Some(quotient)
    }

    fn fill_uses(&mut self) {
        let topology = &self.problem.topology;
        self.uses = vec![Vec::new(); self.sellers];
        for link in topology.link_ids() {
            let orbit = self.orbit[link.index()];
            if self.uses[orbit as usize].is_empty() {
                let (alpha, beta) = (topology.link(link).occupancy(Bytes::ZERO).0, topology.link(link).beta.0);
                self.uses[orbit as usize].push(SellerUse { seller: orbit, alpha, beta });
            }
        }
        // By α and β, and how many links of each orbit use them.
        let mut alike: BTreeMap<_, u32> = BTreeMap::new();
        for (index, resource) in topology.resources().iter().enumerate() {
            // For each orbit, how many of its links use the resource, and the sum of their α.
            let mut users: BTreeMap<u32, (u32, f64)> = BTreeMap::new();
            for &link in topology.users(ResourceId::from_index(index)) {
                let (count, alpha) = users.entry(self.orbit[link.index()]).or_default();
                (*count, *alpha) = (*count + 1, *alpha + resource.occupancy(topology.link(link), Bytes::ZERO).0);
            }
            let cost = [resource.alpha.0, resource.beta.0].map(f64::to_bits);
            let counts: Vec<(u32, u32)> = users.iter().map(|(&orbit, &(count, _))| (orbit, count)).collect();
            let next = (self.orbits() + alike.len()) as u32;
            let seller = *alike.entry((cost, counts)).or_insert(next);
            if seller != next {
                continue;
            }
            for (orbit, (count, alpha)) in users {
                self.uses[orbit as usize].push(SellerUse { seller, alpha, beta: resource.beta.0 * f64::from(count) });
            }
        }
        self.sellers += alike.len();
    }

    pub(crate) fn orbits(&self) -> usize {
        self.uses.len()
    }

    /// The number of different loads.
    pub(crate) fn sellers(&self) -> usize {
        self.sellers
    }

    /// The orbit of a link, which is also the number of its seller.
    pub(crate) fn orbit(&self, link: LinkId) -> usize {
        self.orbit[link.index()] as usize
    }

    /// For every chunk, the time by which its way is made to look longer: below `most`, in a random order, and
    /// different for each orbit. All images of a chunk have the same value, so that they leave together and find ports
    /// and links free together.
    pub(crate) fn head_starts(&self, most: Micros, random: &mut Pcg64Mcg) -> Vec<Micros> {
        let wanted = self.sources.iter().flat_map(|source| &source.wanted);
        let mut order: Vec<ChunkId> = wanted.flat_map(|some| &some.chunks).copied().collect();
        shuffle(&mut order, |below| (random.next_u64() % below as u64) as usize);
        let mut starts = vec![Micros::ZERO; self.problem.demand.chunks().len()];
        for (place, &chunk) in order.iter().enumerate() {
            let start = most * (place as f64 / order.len() as f64);
            self.mirror.chunks(chunk).into_iter().for_each(|image| starts[image.index()] = start);
        }
        starts
    }

    /// What a message over a link of an orbit, together with its images, keeps busy.
    pub(crate) fn uses(&self, orbit: usize) -> &[SellerUse] {
        &self.uses[orbit]
    }
}

/// One chunk of each orbit that has to move, by holders, destination and size.
fn sources(problem: &Problem, mirror: &Mirror) -> Option<Vec<HolderDemand>> {
    let demand = &problem.demand;
    let mut known = vec![false; demand.chunks().len()];
    let mut sources: Vec<HolderDemand> = Vec::new();
    let mut number: BTreeMap<&RankSet, usize> = BTreeMap::new();
    let mut last: Option<(&RankSet, usize)> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let mut lacking = chunk.lacking();
        let Some(to) = lacking.next() else { continue };
        if chunk.is_sum() || lacking.next().is_some() {
            return None;
        }
        if std::mem::replace(&mut known[id.index()], true) {
            continue;
        }
        if mirror.order() > 1 {
            mirror.chunks(id).into_iter().for_each(|image| known[image.index()] = true);
        }
        // Chunks of the same holders stand next to each other.
        let index = match last {
            Some((holders, index)) if *holders == chunk.holders => index,
            _ => *number.entry(&chunk.holders).or_insert(sources.len()),
        };
        last = Some((&chunk.holders, index));
        if index == sources.len() {
            sources.push(HolderDemand { holders: chunk.holders.clone(), wanted: Vec::new() });
        }
        let bytes = demand.bytes_of(id);
        let wanted = &mut sources[index].wanted;
        match wanted.last_mut() {
            Some(some) if (some.to, some.bytes) == (to, bytes) => some.chunks.push(id),
            _ => wanted.push(WantedChunks { to, bytes, chunks: vec![id] }),
        }
    }
    Some(sources)
}
