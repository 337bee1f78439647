//! Links and resources sorted by kind: what an operator would buy together.
//!
//! The principal type is [`HardwareKind`]. Resources are of one kind if they have the same speed and their names differ
//! only in numbers and direction (all ports of all NICs). Links are of one kind if their costs are equal and all of
//! them stay within machines, or all leave them. Links that are as slow as one of their resources are left out.

use std::collections::BTreeMap;
use topology::{Latency, LinkId, MicrosPerByte, ResourceId, Topology, TopologyParts, quantity};

/// Links, or resources, that are alike.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HardwareKind {
    /// The name for the user.
    pub(crate) name: String,
    /// Time per byte of each.
    pub(crate) beta: MicrosPerByte,
    pub(crate) members: Members,
}

/// The links or the resources of a kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Members {
    Links(Vec<LinkId>),
    Resources(Vec<ResourceId>),
}

impl Members {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Links(links) => links.len(),
            Self::Resources(resources) => resources.len(),
        }
    }
}

impl HardwareKind {
    /// All kinds of a machine: resources sorted by name, then links sorted by cost.
    pub(crate) fn all(topology: &Topology) -> Vec<Self> {
        let mut resources: BTreeMap<(String, u64), Vec<ResourceId>> = BTreeMap::new();
        for (index, resource) in topology.resources().iter().enumerate() {
            let key = (pattern(&resource.name), resource.beta.0.to_bits());
            resources.entry(key).or_default().push(ResourceId::from_index(index));
        }
        let mut links: BTreeMap<(bool, u64, u64, bool), Vec<LinkId>> = BTreeMap::new();
        for (id, link) in topology.link_ids().zip(topology.links()) {
            if link.resources.iter().all(|&resource| topology.resource(resource).beta < link.beta) {
                let occupies = link.latency == Latency::Occupies;
                let (beta, alpha) = (link.beta.0.to_bits(), link.alpha.0.to_bits());
                let key = (topology.crosses_machines(link), beta, alpha, occupies);
                links.entry(key).or_default().push(id);
            }
        }
        let names: Vec<String> = resources.keys().map(|(name, _)| name.clone()).collect();
        let of_resources = resources.into_iter().map(|((name, beta), members)| {
            let beta = MicrosPerByte(f64::from_bits(beta));
            // If several kinds have one name, the speed is added to each name.
            let is_one_of_several = names.iter().filter(|other| **other == name).count() > 1;
            let speed =
                if is_one_of_several { format!(" at {}", quantity::show_bandwidth(beta)) } else { String::new() };
            Self { name: name + &speed, beta, members: Members::Resources(members) }
        });
        let of_links = links.into_iter().map(|((crosses, beta, alpha, _), members)| {
            let beta = MicrosPerByte(f64::from_bits(beta));
            let place = if crosses { "between machines" } else { "within a machine" };
            let alpha = quantity::show_duration(topology::Micros(f64::from_bits(alpha)));
            let name = format!("links {place} at {}, α {alpha}", quantity::show_bandwidth(beta));
            Self { name, beta, members: Members::Links(members) }
        });
        of_resources.chain(of_links).collect()
    }

    /// The parts of `topology` with everything of this kind `factor` times as fast. A link that was as slow as one of
    /// these resources gets faster with it.
    pub(crate) fn faster(&self, topology: &Topology, factor: f64) -> TopologyParts {
        let mut parts = parts(topology);
        match &self.members {
            Members::Links(links) => {
                for link in links {
                    let link = &mut parts.links[link.index()];
                    let least = link.resources.iter().map(|id| parts.resources[id.index()].beta.0).fold(0.0, f64::max);
                    link.beta = MicrosPerByte((link.beta.0 / factor).max(least));
                }
            }
            Members::Resources(resources) => {
                for &id in resources {
                    parts.resources[id.index()].beta = MicrosPerByte(self.beta.0 / factor);
                }
                for &link in resources.iter().flat_map(|&id| topology.users(id)) {
                    let before = topology.link(link);
                    if before.resources.iter().any(|&id| topology.resource(id).beta == before.beta) {
                        let now = before.resources.iter().map(|id| parts.resources[id.index()].beta.0);
                        parts.links[link.index()].beta = MicrosPerByte(now.fold(0.0, f64::max));
                    }
                }
            }
        }
        parts
    }
}

pub(crate) fn parts(topology: &Topology) -> TopologyParts {
    TopologyParts {
        name: topology.name().to_owned(),
        ranks: topology.rank_count(),
        machines: topology.machines().to_vec(),
        links: topology.links().to_vec(),
        resources: topology.resources().to_vec(),
    }
}

/// A resource name with `*` for its numbers, and without its direction.
fn pattern(name: &str) -> String {
    let name = name.strip_suffix(".tx").or_else(|| name.strip_suffix(".rx")).unwrap_or(name);
    let mut pattern = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '0'..='9' if pattern.ends_with('*') => {}
            '0'..='9' => pattern.push('*'),
            other => pattern.push(other),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports of one name and two speeds are told apart.
    #[test]
    fn kinds_have_names_of_their_own() {
        let resolved = topology::resolve("switch:4,bandwidth=25GBps").expect("a known family");
        let mut parts = parts(&resolved);
        parts.resources[0].beta = MicrosPerByte(8e-5);
        for link in parts.links.iter_mut().filter(|link| link.resources.contains(&ResourceId(0))) {
            link.beta = MicrosPerByte(8e-5);
        }
        let names = |parts: TopologyParts| -> Vec<String> {
            let topology = Topology::new(parts).expect("a valid topology");
            HardwareKind::all(&topology).into_iter().map(|kind| kind.name).collect()
        };
        assert_eq!(names(parts), ["rank* at 25 GB/s", "rank* at 12.5 GB/s"]);
        assert_eq!(names(super::parts(&resolved)), ["rank*"]);
    }
}
