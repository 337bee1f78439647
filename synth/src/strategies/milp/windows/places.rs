//! Links and resources, which messages use one after the other.

use crate::problem::Problem;
use topology::{Bytes, LinkId, ResourceId};

/// A link, or a resource of links.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum BusyPlace {
    Link(LinkId),
    Resource(ResourceId),
}

impl BusyPlace {
    /// How long a message over a link that uses this place keeps it busy, in microseconds.
    pub(super) fn busy(self, problem: &Problem, link: LinkId, bytes: Bytes) -> f64 {
        let link = problem.topology.link(link);
        match self {
            Self::Link(_) => link.occupancy(bytes).0,
            Self::Resource(id) => problem.topology.resource(id).occupancy(link, bytes).0,
        }
    }
}

/// The places that a message over a link uses.
pub(super) fn places(problem: &Problem, link: LinkId) -> impl Iterator<Item = BusyPlace> {
    let resources = problem.topology.link(link).resources.iter().copied().map(BusyPlace::Resource);
    std::iter::once(BusyPlace::Link(link)).chain(resources)
}
