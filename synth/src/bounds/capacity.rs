//! How many bytes per µs a set of links carries at most, given the resources that they share.
//!
//! The principal function is [`capacity`]. Without resources it is a sum. With resources it is a maximum flow: every
//! resource is a vertex of limited throughput, and every link leads through its resources in turn, those of few senders
//! first and those of few receivers last. The result is exact where each link has a sending and a receiving port.
//! Otherwise it is an upper estimate, so that a bound from it stays valid.

use super::flow::{FlowNetwork, UNLIMITED, WorkBudget};
use std::collections::BTreeMap;
use topology::{Link, LinkId, Rank, ResourceId, Topology};

/// The most work of one flow: a tenth of a second. Flows over a million links cost less.
const WORK: WorkBudget = WorkBudget::new(20_000_000);

/// Bytes per µs over `links` together; infinite where some β is zero and no resource limits that link.
pub(crate) fn capacity(topology: &Topology, links: &[LinkId]) -> f64 {
    let rate = |beta: f64| if beta > 0.0 { 1.0 / beta } else { f64::INFINITY };
    let alone = || links.iter().map(|&id| rate(topology.link(id).beta.0)).sum();
    if links.iter().all(|&id| topology.link(id).resources.is_empty()) {
        return alone();
    }
    let places = places(topology, links);
    let vertex_of: BTreeMap<ResourceId, usize> = places.keys().copied().zip((2..).step_by(2)).collect();
    let (source, sink) = (0, 1);
    let mut network = FlowNetwork::new(2 + 2 * vertex_of.len());
    for (&resource, &vertex) in &vertex_of {
        network.connect(vertex, vertex + 1, rate(topology.resource(resource).beta.0).min(UNLIMITED));
    }
    for &id in links {
        let link = topology.link(id);
        let mut at = source;
        // Every arc has the link's own limit, so that other links of a shared resource cannot use this link's arcs for
        // more.
        let own = rate(link.beta.0).min(UNLIMITED);
        for resource in way(link, &places) {
            network.connect(at, vertex_of[&resource], own);
            at = vertex_of[&resource] + 1;
        }
        network.connect(at, sink, own);
    }
    // If the work runs out, only one resource of each link counts. This gives no smaller capacity, so still an upper
    // estimate.
    let flow = network.max_flow(source, sink, &mut WORK.clone());
    let flow = flow.unwrap_or_else(|_| {
        [true, false].map(|first| grouped(topology, links, &places, first)).into_iter().fold(alone(), f64::min)
    });
    if flow < UNLIMITED * 1e-3 { flow } else { f64::INFINITY }
}

/// The resources of a link in the order in which bytes pass them.
fn way(link: &Link, places: &BTreeMap<ResourceId, f64>) -> Vec<ResourceId> {
    let mut way = link.resources.to_vec();
    way.sort_by(|a, b| places[a].total_cmp(&places[b]));
    way
}

/// The capacity if the links share only the first (or only the last) resource on their ways.
fn grouped(topology: &Topology, links: &[LinkId], places: &BTreeMap<ResourceId, f64>, first: bool) -> f64 {
    let rate = |beta: f64| if beta > 0.0 { 1.0 / beta } else { f64::INFINITY };
    let mut alone = 0.0;
    let mut groups: BTreeMap<ResourceId, f64> = BTreeMap::new();
    for &id in links {
        let link = topology.link(id);
        let way = way(link, places);
        match if first { way.first() } else { way.last() } {
            Some(&resource) => *groups.entry(resource).or_default() += rate(link.beta.0),
            None => alone += rate(link.beta.0),
        }
    }
    let limited = groups.into_iter().map(|(resource, sum)| rate(topology.resource(resource).beta.0).min(sum));
    alone + limited.sum::<f64>()
}

/// The place of each resource on the way of the bytes: its sending ranks per receiving rank. The port of one sender
/// leads to many receivers, and comes first; an up-link lies between the ports of senders and of receivers.
fn places(topology: &Topology, links: &[LinkId]) -> BTreeMap<ResourceId, f64> {
    let ranks = |end: fn(&Link) -> Rank| {
        let at =
            |id: LinkId| topology.link(id).resources.iter().map(move |&resource| (resource, end(topology.link(id))));
        let mut pairs: Vec<(ResourceId, Rank)> = links.iter().flat_map(|&id| at(id)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs.chunk_by(|a, b| a.0 == b.0).map(|ranks| (ranks[0].0, ranks.len() as f64)).collect::<Vec<_>>()
    };
    let (senders, receivers) = (ranks(|link| link.from), ranks(|link| link.to));
    senders.into_iter().zip(receivers).map(|((resource, from), (_, to))| (resource, from / to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{Latency, Micros, MicrosPerByte, Resource, TopologyParts};

    #[test]
    fn shared_ports_limit_a_cut() {
        let link = |from, to, resources: &[u32]| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.5),
            latency: Latency::Occupies,
            resources: resources.iter().map(|&id| ResourceId(id)).collect(),
        };
        let resource = |beta| Resource::new("port", MicrosPerByte(beta));
        let links = vec![link(0, 2, &[0, 1]), link(0, 3, &[0]), link(1, 2, &[1]), link(1, 3, &[])];
        let resources = vec![resource(0.5), resource(0.25)];
        let parts = TopologyParts { ranks: 4, links, resources, ..TopologyParts::default() };
        let topology = Topology::new(parts).expect("a valid topology");
        let of = |ids: &[u32]| capacity(&topology, &ids.iter().map(|&id| LinkId(id)).collect::<Vec<_>>());
        assert_eq!(of(&[3]), 2.0);
        assert_eq!(of(&[0, 1]), 2.0);
        assert_eq!(of(&[0, 2]), 4.0);
        assert_eq!(of(&[1, 3]), 4.0);
    }
}
