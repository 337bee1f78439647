//! Whether every link and every resource serves one message at a time.
//!
//! Intervals are taken in order of their start, and the link's next free time is *accumulated*
//! (`free = max(free, start) + occupancy`), so that the tolerance of one comparison cannot be used again and
//! again by messages shorter than it.

use super::{Violation, clearly_before, structure};
use crate::compressed::Unfolding;
use crate::{Findings, Schedule};
use rayon::prelude::*;
use topology::{Bytes, LinkId, Micros, ResourceId, Topology};

/// How long a transfer keeps a link or resource busy, from its start.
#[derive(Clone, Copy)]
struct Interval {
    owner: u32,
    transfer: u32,
    start: Micros,
    length: Micros,
}

/// An interval that starts before the one ahead of it has left.
struct Overlap {
    owner: u32,
    transfer: usize,
    other: usize,
    start: Micros,
    free: Micros,
}

pub(super) fn check(schedule: &Schedule, topology: &Topology, violations: &mut Findings<Violation>) {
    let (mut on_links, mut on_resources) = (Vec::with_capacity(schedule.transfers.len()), Vec::new());
    for (index, transfer) in schedule.transfers.iter().enumerate() {
        let Some(link) = topology.links().get(transfer.link.index()) else { continue };
        if !structure::is_timed(transfer) {
            continue;
        }
        let bytes = schedule.demand.message_bytes(&structure::known_chunks(schedule, transfer));
        let interval = |owner, length| Interval { owner, transfer: index as u32, start: transfer.start, length };
        on_links.push(interval(transfer.link.0, link.occupancy(bytes)));
        for &resource in &link.resources {
            on_resources.push(interval(resource.0, topology.resource(resource).occupancy(link, bytes)));
        }
    }
    report(schedule, topology, on_links, on_resources, violations);
}

/// The same for one link and one resource of each orbit of a compressed schedule: every base transfer in the link's orbit has
/// one image on it, and one on the resource for each link of the orbit that uses it.
pub(super) fn check_orbits(
    base: &Schedule,
    topology: &Topology,
    unfolding: &Unfolding,
    violations: &mut Findings<Violation>,
) {
    let mut of_orbit: Vec<Vec<(u32, Micros, Bytes)>> = vec![Vec::new(); unfolding.links.orbits()];
    let (mut on_links, mut on_resources) = (Vec::with_capacity(base.transfers.len()), Vec::new());
    for (index, transfer) in (0..).zip(&base.transfers) {
        let Some(link) = topology.links().get(transfer.link.index()) else { continue };
        if !structure::is_timed(transfer) {
            continue;
        }
        let bytes = base.demand.message_bytes(&structure::known_chunks(base, transfer));
        let orbit = unfolding.links.orbit(transfer.link.0);
        of_orbit[orbit as usize].push((index, transfer.start, bytes));
        let (owner, length) = (unfolding.links.first(orbit), link.occupancy(bytes));
        on_links.push(Interval { owner, transfer: index, start: transfer.start, length });
    }
    for id in (0..topology.resources().len()).map(ResourceId::from_index) {
        if unfolding.resources[id.index()] != id {
            continue;
        }
        for &user in topology.users(id) {
            let link = topology.link(user);
            for &(transfer, start, bytes) in &of_orbit[unfolding.links.orbit(user.0) as usize] {
                let length = topology.resource(id).occupancy(link, bytes);
                on_resources.push(Interval { owner: id.0, transfer, start, length });
            }
        }
    }
    report(base, topology, on_links, on_resources, violations);
}

fn report(
    schedule: &Schedule,
    topology: &Topology,
    on_links: Vec<Interval>,
    on_resources: Vec<Interval>,
    violations: &mut Findings<Violation>,
) {
    violations.extend(overlaps(on_links).into_iter().map(|found| {
        let Overlap { owner, transfer, other, start, free } = found;
        Violation::LinkOverlap { transfer, other, link: LinkId(owner), start, free }
    }));
    violations.extend(overlaps(on_resources).into_iter().map(|found| {
        let Overlap { owner, transfer, other, start, free } = found;
        let (resource, link) = (ResourceId(owner), schedule.transfers[transfer].link);
        let name = topology.resource(resource).name.clone();
        Violation::ResourceOverlap { transfer, other, link, resource, name, start, free }
    }));
}

fn overlaps(mut intervals: Vec<Interval>) -> Vec<Overlap> {
    intervals.retain(|interval| interval.length > Micros::ZERO);
    intervals.par_sort_unstable_by(|a, b| {
        a.owner.cmp(&b.owner).then(a.start.total_cmp(&b.start)).then(a.transfer.cmp(&b.transfer))
    });
    let mut found = Vec::new();
    for of_owner in intervals.chunk_by(|a, b| a.owner == b.owner) {
        let mut free = of_owner[0].start + of_owner[0].length;
        let mut other = of_owner[0].transfer as usize;
        for next in &of_owner[1..] {
            let (transfer, start) = (next.transfer as usize, next.start);
            let overlaps = clearly_before(start, free);
            if overlaps {
                found.push(Overlap { owner: next.owner, transfer, other, start, free });
            }
            let leaves = if overlaps { start } else { start.max(free) } + next.length;
            if leaves > free {
                (free, other) = (leaves, transfer);
            }
        }
    }
    found
}
