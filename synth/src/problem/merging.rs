//! Whether chunks that travel together save time.

use topology::{Latency, Link, Micros, Topology};

/// Whether one message over `link` is cheaper than two. Where α is pure delay or zero, and no resource takes a time for each message,
/// a merged message only arrives later.
pub(crate) fn merging_pays(topology: &Topology, link: &Link) -> bool {
    let occupies = link.latency == Latency::Occupies && link.alpha > Micros::ZERO;
    occupies || link.resources.iter().any(|&id| topology.resource(id).alpha > Micros::ZERO)
}

/// Whether this holds for any link.
pub(crate) fn merging_pays_somewhere(topology: &Topology) -> bool {
    topology.links().iter().any(|link| merging_pays(topology, link))
}
