//! What a link's messages take of the time of the link itself, or of a resource.

use topology::{Bytes, LinkId, Micros, MicrosPerByte, ResourceId, Topology};

/// A link as one of those that share a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupant {
    pub(super) link: LinkId,
    /// Per message.
    pub(super) alpha: Micros,
    beta: MicrosPerByte,
}

impl Occupant {
    /// Of the time of the link itself.
    pub(super) fn of_itself(topology: &Topology, id: LinkId) -> Self {
        let link = topology.link(id);
        Self { link: id, alpha: link.occupancy(Bytes::ZERO), beta: link.beta }
    }

    /// Of the time of a resource, with the resource's own β.
    pub(super) fn of_resource(topology: &Topology, resource: ResourceId, link: LinkId) -> Self {
        let resource = topology.resource(resource);
        Self { link, alpha: resource.occupancy(topology.link(link), Bytes::ZERO), beta: resource.beta }
    }

    /// What a chunk of `bytes` adds to a message.
    pub(super) fn byte_time(&self, bytes: Bytes) -> f64 {
        (self.beta * bytes).0
    }
}
