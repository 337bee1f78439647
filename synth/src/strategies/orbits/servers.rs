//! What the messages of an orbit of links keep busy: the orbit itself, and the ports and NICs that its links share.
//!
//! The principal type is [`Servers`]. A server is an orbit of links or an orbit of resources. A group is fit for a walk
//! if every resource is used by at most one link of each orbit. Then an image of a base transfer occupies each resource
//! of an orbit at most once, so that a resource is busy at the same times as all of its images: one calendar stands for
//! all of them. (Where a port is used by two links of one orbit, two images of each message would meet there.)

use petgraph::unionfind::UnionFind;
use smallvec::SmallVec;
use topology::symmetry::Action;
use topology::{Bytes, LinkId, Micros, ResourceId, Topology};

/// The servers of each orbit of links, and the orbits that use each server. Orbits of links come first, by number.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    /// For each orbit of links, one resource of each orbit of resources that it uses, and the server's number.
    of_links: Vec<SmallVec<[(u32, ResourceId); 4]>>,
    /// For each server that is an orbit of resources, the orbits of links that use it, ascending.
    users: Vec<Vec<u32>>,
}

impl Servers {
    /// The servers of a machine under a group; `None` if some resource is used by two links of one orbit.
    pub(super) fn new(topology: &Topology, links: &Action, generators: &[&[u32]]) -> Option<Self> {
        let mut joined = UnionFind::new(topology.resources().len());
        for generator in generators {
            generator.iter().enumerate().for_each(|(one, &image)| {
                joined.union(one, image as usize);
            });
        }
        let mut of_links = vec![SmallVec::new(); links.orbits()];
        let mut users: Vec<Vec<u32>> = Vec::new();
        for (index, representative) in joined.into_labeling().into_iter().enumerate() {
            let id = ResourceId::from_index(index);
            let mut orbits: Vec<u32> = topology.users(id).iter().map(|link| links.orbit(link.0)).collect();
            orbits.sort_unstable();
            if orbits.windows(2).any(|pair| pair[0] == pair[1]) {
                return None;
            }
            if index == representative && !orbits.is_empty() {
                let server = (links.orbits() + users.len()) as u32;
                orbits.iter().for_each(|&orbit| of_links[orbit as usize].push((server, id)));
                users.push(orbits);
            }
        }
        Some(Self { of_links, users })
    }

    /// How many servers there are, orbits of links included.
    pub(super) fn count(&self) -> usize {
        self.of_links.len() + self.users.len()
    }

    /// Whether links share anything.
    pub(super) fn is_shared(&self) -> bool {
        !self.users.is_empty()
    }

    /// The servers that a message over a link of `orbit` occupies, besides the orbit itself.
    pub(super) fn shared(&self, orbit: u32) -> impl Iterator<Item = u32> + '_ {
        self.of_links[orbit as usize].iter().map(|&(server, _)| server)
    }

    /// All servers that a message of `bytes` over a link of `orbit` occupies, and for how long.
    pub(super) fn busy<'a>(
        &'a self,
        topology: &'a Topology,
        orbit: u32,
        link: LinkId,
        bytes: Bytes,
    ) -> impl Iterator<Item = (u32, Micros)> + Clone + 'a {
        let link = topology.link(link);
        let shared = self.of_links[orbit as usize].iter();
        let shared = shared.map(move |&(server, id)| (server, topology.resource(id).occupancy(link, bytes)));
        std::iter::once((orbit, link.occupancy(bytes))).chain(shared)
    }

    /// The orbits of links that use a server.
    pub(super) fn users(&self, server: u32) -> &[u32] {
        &self.users[server as usize - self.of_links.len()]
    }

    /// Whether a server is an orbit of links.
    pub(super) fn is_links(&self, server: u32) -> bool {
        (server as usize) < self.of_links.len()
    }
}

/// When each server is free.
pub(super) struct ServerCalendar {
    free: Vec<Micros>,
}

impl ServerCalendar {
    /// All servers are free from the start.
    pub(super) fn new(servers: &Servers) -> Self {
        Self { free: vec![Micros::ZERO; servers.count()] }
    }

    /// Books a message on all of `busy`, no earlier than `ready`; returns when it starts.
    pub(super) fn book(&mut self, ready: Micros, busy: impl Iterator<Item = (u32, Micros)> + Clone) -> Micros {
        let start = busy.clone().fold(ready, |start, (server, _)| start.max(self.free[server as usize]));
        busy.for_each(|(server, busy)| self.free[server as usize] = start + busy);
        start
    }
}
