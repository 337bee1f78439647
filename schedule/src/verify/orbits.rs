//! The verifier of orbit-compressed schedules: the same rules, looked at for one of each orbit.
//!
//! The principal function is [`verify_compressed`]. `compressed` says why what holds for the base holds for all its images.
//! Violations name transfers by their position in the base, and say what happens to the chunk, link or resource that stands for its
//! orbit.

use super::{Rejection, Violation, causality, exclusivity, structure};
use crate::compressed::{Unfolding, check_symmetry};
use crate::{ChunkId, CompressedSchedule, Findings, Schedule, Transfer, VerifiedCompressed};
use std::sync::Arc;
use topology::Topology;

/// Checks a compressed schedule against its demand and `topology`, without expanding it.
///
/// # Errors
/// Every violation, with evidence; where a generator is no symmetry, nothing else is looked at.
pub fn verify_compressed(
    compressed: CompressedSchedule,
    topology: &Arc<Topology>,
) -> Result<VerifiedCompressed, Rejection> {
    let base = &compressed.base;
    let mut violations = Findings::default();
    structure::check(base, topology, &mut violations);
    // Ranks that only the demand knows have no place on this machine.
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
    for (orbit, history) in (0..).zip(histories(base, topology, &unfolding)) {
        let chunk = ChunkId(unfolding.chunks.first(orbit));
        causality::check_history(&base.demand, chunk, &history.transfers, &history.names, topology, &mut violations);
    }
    exclusivity::check_orbits(base, topology, &unfolding, &mut violations);
    if violations.is_empty() {
        return Ok(VerifiedCompressed::new(compressed, topology.clone(), unfolding));
    }
    Err(Rejection { violations, schedule: Box::new(compressed.base) })
}

/// What happens to the first chunk of an orbit.
#[derive(Clone, Default)]
struct History {
    /// Base transfers, pulled back so that the chunk they carry is the first one.
    transfers: Vec<Transfer>,
    /// Their positions in the base.
    names: Vec<u32>,
}

/// The histories of all orbits of chunks.
fn histories(base: &Schedule, topology: &Topology, unfolding: &Unfolding) -> Vec<History> {
    let mut histories = vec![History::default(); unfolding.chunks.orbits()];
    let (ranks, links) = (topology.rank_count(), topology.links().len());
    for (name, transfer) in (0..).zip(&base.transfers) {
        let exists = transfer.from.index() < ranks && transfer.to.index() < ranks && transfer.link.index() < links;
        if !exists || !structure::is_timed(transfer) {
            continue;
        }
        for &chunk in structure::known_chunks(base, transfer).iter() {
            // The element that brings this chunk to the first of its orbit.
            let back = unfolding.group.quotient(0, unfolding.chunks.element(chunk.0));
            let history = &mut histories[unfolding.chunks.orbit(chunk.0) as usize];
            let mut pulled = unfolding.moved(back, transfer);
            pulled.chunks = std::iter::once(ChunkId(unfolding.chunks.image(&unfolding.group, back, chunk.0))).collect();
            history.transfers.push(pulled);
            history.names.push(name);
        }
    }
    histories
}
