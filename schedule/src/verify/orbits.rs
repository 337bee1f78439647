//! The verifier of compressed schedules: the same rules, checked for one representative of each orbit.
//!
//! The principal function is [`verify_compressed`]. The header of `compressed` proves why a rule that holds for the
//! base holds for all its images. Violations name transfers by their position in the base, and chunks, links and
//! resources by the representative of their orbit.

use super::traffic::{Hop, ServerId, Traffic};
use super::{PlayedMessages, Rejection, Violation, structure};
use crate::compressed::check_symmetry;
use crate::{
    CausalOrder, ChunkId, CompressedSchedule, Findings, OrbitOrder, Schedule, Transfer, Unfolding, VerifiedCompressed,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{LinkId, Micros, Rank, ResourceId, Topology};

/// Checks a compressed schedule against its demand and `topology`, without expanding it.
///
/// # Errors
/// Every violation, with evidence; where a generator is no symmetry, nothing else is checked.
pub fn verify_compressed(
    compressed: CompressedSchedule,
    topology: &Arc<Topology>,
) -> Result<VerifiedCompressed, Rejection> {
    let base = &compressed.base;
    let mut violations = Findings::default();
    structure::check(base, topology, &mut violations);
    // Ranks that only the demand has do not exist on this machine.
    if base.demand.request().ranks != topology.rank_count() {
        return Err(Rejection { violations, schedule: Box::new(compressed.base) });
    }
    let unfolding = match check_symmetry(&compressed.generators, topology, &base.demand) {
        Ok(unfolding) => unfolding,
        Err((generator, reason)) => {
            violations.push(Violation::NoSymmetry { generator, reason });
            return Err(Rejection { violations, schedule: Box::new(compressed.base) });
        }
    };
    let traffic = OrbitTraffic::new(base, topology, &unfolding);
    let played = super::play(&traffic, topology, topology.rank_count(), &mut violations);
    if violations.is_empty() {
        return Ok(VerifiedCompressed::new(compressed, topology.clone(), unfolding, order(played)));
    }
    Err(Rejection { violations, schedule: Box::new(compressed.base) })
}

/// What is handed over of a base without violations.
fn order(PlayedMessages { moments, landings, tracks }: PlayedMessages) -> OrbitOrder {
    let of_track = |ends: &[u32]| {
        let hops = &tracks.hops[ends[0] as usize..ends[1] as usize];
        hops.iter().map(|hop| (hop.from, hop.to)).collect()
    };
    let ways = tracks.starts.windows(2).map(of_track).collect();
    OrbitOrder { order: CausalOrder::new(moments.into_departures(), &landings, tracks.starts, tracks.deliveries), ways }
}

/// One message of each orbit.
struct OrbitTraffic<'a> {
    base: &'a Schedule,
    topology: &'a Topology,
    unfolding: &'a Unfolding,
    /// For each orbit of links, the representatives of their resources, and how many links of the orbit use each.
    resources: Vec<BTreeMap<ResourceId, usize>>,
}

impl<'a> OrbitTraffic<'a> {
    fn new(base: &'a Schedule, topology: &'a Topology, unfolding: &'a Unfolding) -> Self {
        let mut resources = vec![BTreeMap::new(); unfolding.links.orbits()];
        for id in (0..topology.resources().len()).map(ResourceId::from_index) {
            for &user in topology.users(id).iter().filter(|_| unfolding.resources[id.index()] == id) {
                *resources[unfolding.links.orbit(user.0) as usize].entry(id).or_default() += 1;
            }
        }
        Self { base, topology, unfolding, resources }
    }

    /// The transfer, if its link exists on this machine.
    fn existing(&self, message: u32) -> Option<&Transfer> {
        let transfer = &self.base.transfers[message as usize];
        (transfer.link.index() < self.topology.links().len()).then_some(transfer)
    }
}

impl Traffic for OrbitTraffic<'_> {
    fn schedule(&self) -> &Schedule {
        self.base
    }

    fn track_count(&self) -> usize {
        self.unfolding.chunks.orbits()
    }

    fn chunk(&self, track: usize) -> ChunkId {
        ChunkId(self.unfolding.chunks.first(track as u32))
    }

    fn hops(&self, message: u32, give: &mut dyn FnMut(usize, Hop)) {
        let Some(transfer) = self.existing(message) else { return };
        let Unfolding { group, ranks, chunks, .. } = self.unfolding;
        for &chunk in structure::known_chunks(self.base, transfer).iter() {
            // The element that maps this chunk to the first of its orbit.
            let back = group.quotient(0, chunks.element(chunk.0));
            let moved = |rank: Rank| Rank(ranks.image(group, back, rank.0));
            let hop = Hop { from: moved(transfer.from), to: moved(transfer.to), kind: transfer.kind };
            give(chunks.orbit(chunk.0) as usize, hop);
        }
    }

    /// A link's representative serves one image of the message. A resource's representative serves one image for each
    /// link of the orbit that uses it.
    fn servers(&self, message: u32, give: &mut dyn FnMut(ServerId, Micros, usize)) {
        let Some(transfer) = self.existing(message) else { return };
        let bytes = self.base.demand.message_bytes(&structure::known_chunks(self.base, transfer));
        let (orbit, link) = (self.unfolding.links.orbit(transfer.link.0), self.topology.link(transfer.link));
        give(LinkId(self.unfolding.links.first(orbit)).index(), link.occupancy(bytes), 1);
        for (&resource, &users) in &self.resources[orbit as usize] {
            let busy = self.topology.resource(resource).occupancy(link, bytes);
            give(self.topology.links().len() + resource.index(), busy, users);
        }
    }
}
