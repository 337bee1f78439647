//! How long messages of a link occupy the link itself, or a resource.

use topology::{Bytes, LinkId, Micros, MicrosPerByte, ResourceId, Topology};

/// A link as a user of its own time or of a resource's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupant {
    pub(super) link: LinkId,
    /// Time per message.
    pub(super) alpha: Micros,
    beta: MicrosPerByte,
}

/// Whether messages over a link take time beside that of their bytes, of the link or of a resource.
pub(super) fn messages_cost(topology: &Topology, id: LinkId) -> bool {
    let resources = topology.link(id).resources.iter().map(|&resource| Occupant::of_resource(topology, resource, id));
    std::iter::once(Occupant::of_itself(topology, id)).chain(resources).any(|user| user.alpha > Micros::ZERO)
}

impl Occupant {
    /// The use of the link's own time.
    pub(super) fn of_itself(topology: &Topology, id: LinkId) -> Self {
        let link = topology.link(id);
        Self { link: id, alpha: link.occupancy(Bytes::ZERO), beta: link.beta }
    }

    /// The use of a resource's time, with the resource's own β.
    pub(super) fn of_resource(topology: &Topology, resource: ResourceId, link: LinkId) -> Self {
        let resource = topology.resource(resource);
        Self { link, alpha: resource.occupancy(topology.link(link), Bytes::ZERO), beta: resource.beta }
    }

    /// The time that a chunk of `bytes` adds to a message.
    pub(super) fn byte_time(&self, bytes: Bytes) -> f64 {
        (self.beta * bytes).0
    }
}
