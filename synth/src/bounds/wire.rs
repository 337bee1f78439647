//! The bound by volume: all deliveries together, over all links together.
//!
//! A copied chunk is delivered once to everybody who lacks it. A sum of h contributions takes h − 1 deliveries to
//! be complete somewhere for the first time, and one more for everybody else who wants it: no delivery can be
//! both, for whoever passes a complete sum on had it before the first rank did. For AllReduce this is the
//! 2·(k − 1)·M over the total bandwidth.

use super::{Bound, Certificate, Scope, capacity::capacity};
use crate::Problem;
use schedule::Chunk;
use topology::{LinkId, Micros, MicrosPerByte};

/// `None` where nothing has to move.
pub(super) fn wire(problem: &Problem) -> Option<Bound> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let of = |(id, chunk)| deliveries(chunk) as f64 * demand.bytes_of(id).0;
    let bytes: f64 = demand.chunk_ids().zip(demand.chunks()).map(of).sum();
    let links: Vec<LinkId> = topology.link_ids().filter(|&link| problem.allows_link(link)).collect();
    let alpha = links.iter().map(|&link| topology.link(link).alpha.0).fold(f64::INFINITY, f64::min);
    let capacity = capacity(topology, &links);
    if bytes == 0.0 || capacity == 0.0 {
        return None;
    }
    let value = Micros(alpha + bytes / capacity);
    let certificate = Certificate::Volume { bytes, capacity: MicrosPerByte(1.0 / capacity) };
    Some(Bound { name: "wire", scope: Scope::AnyChunking, value, certificate })
}

/// How many times a chunk must at least be delivered to a rank.
fn deliveries(chunk: &Chunk) -> usize {
    let having = chunk.holders.iter().filter(|&&rank| chunk.wanted_by.has(rank)).count();
    let lacking = chunk.wanted_by.len() - having;
    if !chunk.combine {
        return lacking;
    }
    let both = chunk.wanted_by.len() - lacking;
    if chunk.wanted_by.is_empty() {
        return 0;
    }
    // The first rank to be complete saves most if it both contributes and wants.
    let saved = if both > 0 { 2 } else { 1 };
    (chunk.holders.len() + chunk.wanted_by.len()).saturating_sub(saved)
}
