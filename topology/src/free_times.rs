//! From when on every link and every resource is free again after the messages so far.
//!
//! The principal type is [`FreeTimes`], the state of every list scheduler. It is the only place that decides when the
//! next message of a link can start: after the previous message of the link, and after those on the link's resources.

use crate::{Bytes, LinkId, Micros, ResourceId, Topology};

/// From when on links and resources are free; all are at time zero.
#[derive(Clone, PartialEq, Debug)]
pub struct FreeTimes {
    links: Vec<Micros>,
    resources: Vec<Micros>,
}

impl FreeTimes {
    /// Nothing has been sent yet.
    pub fn new(topology: &Topology) -> Self {
        Self {
            links: vec![Micros::ZERO; topology.links().len()],
            resources: vec![Micros::ZERO; topology.resources().len()],
        }
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.links.fill(Micros::ZERO);
        self.resources.fill(Micros::ZERO);
    }

    /// From when on a link itself is free.
    #[inline]
    pub fn link(&self, id: LinkId) -> Micros {
        self.links[id.index()]
    }

    /// From when on a resource is free.
    #[inline]
    pub fn resource(&self, id: ResourceId) -> Micros {
        self.resources[id.index()]
    }

    /// From when on a link and all its resources are free.
    #[inline]
    pub fn earliest(&self, topology: &Topology, id: LinkId) -> Micros {
        let resources = topology.link(id).resources.iter().map(|&resource| self.resource(resource));
        resources.fold(self.link(id), Micros::max)
    }

    /// A message of `bytes` leaves over a link at `start`, no earlier than [`Self::earliest`].
    #[inline]
    pub fn occupy(&mut self, topology: &Topology, id: LinkId, start: Micros, bytes: Bytes) {
        let link = topology.link(id);
        self.links[id.index()] = start + link.occupancy(bytes);
        for &resource in &link.resources {
            self.resources[resource.index()] = start + topology.resource(resource).occupancy(link, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latency, Link, MicrosPerByte, Rank, Resource, TopologyParts};

    /// Two links that share a port as fast as they are, twice as fast as the second.
    fn machine(latency: Latency, busy: f64) -> Topology {
        let link = |to, beta| Link {
            from: Rank(0),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(beta),
            latency,
            resources: [ResourceId(0)].into(),
        };
        let links = vec![link(1, 0.01), link(2, 0.02)];
        let resources = vec![Resource { alpha: Micros(busy), ..Resource::new("tx", MicrosPerByte(0.01)) }];
        Topology::new(TopologyParts { ranks: 3, links, resources, ..TopologyParts::default() }).unwrap()
    }

    #[test]
    fn a_message_holds_up_its_link_and_those_that_share_with_it() {
        let after = |latency| {
            let (topology, bytes) = (machine(latency, 0.0), Bytes(100.0));
            let mut free = FreeTimes::new(&topology);
            free.occupy(&topology, LinkId(1), Micros(3.0), bytes);
            let earliest = [0, 1].map(|link| free.earliest(&topology, LinkId(link)).0);
            free.clear();
            assert_eq!(free, FreeTimes::new(&topology));
            earliest
        };
        assert_eq!(after(Latency::Occupies), [5.0, 6.0]);
        assert_eq!(after(Latency::Pipelines), [4.0, 5.0]);
    }

    #[test]
    fn a_resource_takes_its_own_time_per_message_where_the_delay_of_links_does_not_occupy() {
        let after = |latency| {
            let (topology, bytes) = (machine(latency, 0.75), Bytes(100.0));
            let mut free = FreeTimes::new(&topology);
            free.occupy(&topology, LinkId(1), Micros(3.0), bytes);
            [0, 1].map(|link| free.earliest(&topology, LinkId(link)).0)
        };
        // α of 1 µs occupies the resource already; where it does not, the resource's own 0.75 µs do.
        assert_eq!(after(Latency::Occupies), [5.0, 6.0]);
        assert_eq!(after(Latency::Pipelines), [4.75, 5.0]);
    }
}
