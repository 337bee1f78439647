//! Whether chunks that travel together save time.

use topology::{Latency, Link, Micros, Topology};

/// Whether one message over `link` is cheaper than two. Where α is pure delay or zero, a merged message only arrives
/// later.
pub(crate) fn merging_pays(link: &Link) -> bool {
    link.latency == Latency::Occupies && link.alpha > Micros::ZERO
}

/// Whether this holds for any link.
pub(crate) fn merging_pays_somewhere(topology: &Topology) -> bool {
    topology.links().iter().any(merging_pays)
}
