//! How many bytes per µs a set of links carries at most, given the resources that they share.
//!
//! The principal function is [`capacity`]. Without resources it is a sum. With resources it is a maximum flow: every
//! resource is a vertex of limited throughput, and every link leads through its resources in turn, those of few senders
//! first and those of few receivers last. The result is exact where each link has a sending and a receiving port.
//! Otherwise it is an upper estimate, so that a bound from it stays valid.

use super::flow::{FlowNetwork, UNLIMITED, WorkBudget};
use topology::{Link, LinkId, Rank, ResourceId, Topology};

/// The most work of one flow: a tenth of a second. Flows over a million links cost less.
const WORK: WorkBudget = WorkBudget::new(20_000_000);

/// Where more links share resources, no flow is computed: its arcs alone would take gigabytes, and its work would run out.
const MOST_LINKS: usize = 1 << 22;

/// Bytes per µs over `links` together; infinite where some β is zero and no resource limits that link.
pub(crate) fn capacity(topology: &Topology, links: &[LinkId]) -> f64 {
    let alone = || links.iter().map(|&id| rate(topology.link(id).beta.0)).sum();
    if links.iter().all(|&id| topology.link(id).resources.is_empty()) {
        return alone();
    }
    let places = places(topology, links);
    let flow = if links.len() > MOST_LINKS { None } else { flow(topology, links, &places) };
    // If the work runs out, only one resource of each link counts. This gives no smaller capacity, so still an upper
    // estimate.
    let flow = flow.unwrap_or_else(|| {
        [true, false].map(|first| grouped(topology, links, &places, first)).into_iter().fold(alone(), f64::min)
    });
    if flow < UNLIMITED * 1e-3 { flow } else { f64::INFINITY }
}

fn rate(beta: f64) -> f64 {
    if beta > 0.0 { 1.0 / beta } else { f64::INFINITY }
}

/// The maximum flow over `links` and their resources; `None` if the work runs out.
fn flow(topology: &Topology, links: &[LinkId], places: &[f64]) -> Option<f64> {
    let mut vertex_of = vec![0; places.len()];
    let used = (0..places.len()).filter(|&resource| places[resource].is_finite());
    let vertices: Vec<(usize, usize)> = used.zip((2..).step_by(2)).collect();
    let (source, sink) = (0, 1);
    let mut network = FlowNetwork::new(2 + 2 * vertices.len());
    for &(resource, vertex) in &vertices {
        vertex_of[resource] = vertex;
        let shared = topology.resource(ResourceId::from_index(resource));
        network.connect(vertex, vertex + 1, rate(shared.beta.0).min(UNLIMITED));
    }
    let mut way = Vec::new();
    for &id in links {
        let link = topology.link(id);
        let mut at = source;
        // Every arc has the link's own limit, so that other links of a shared resource cannot use this link's arcs for
        // more.
        let own = rate(link.beta.0).min(UNLIMITED);
        find_way(link, places, &mut way);
        for resource in &way {
            network.connect(at, vertex_of[resource.index()], own);
            at = vertex_of[resource.index()] + 1;
        }
        network.connect(at, sink, own);
    }
    network.max_flow(source, sink, &mut WORK.clone()).ok()
}

/// The resources of a link in the order in which bytes pass them.
fn find_way(link: &Link, places: &[f64], way: &mut Vec<ResourceId>) {
    way.clear();
    way.extend_from_slice(&link.resources);
    way.sort_by(|a, b| places[a.index()].total_cmp(&places[b.index()]));
}

/// The capacity if the links share only the first (or only the last) resource on their ways.
fn grouped(topology: &Topology, links: &[LinkId], places: &[f64], first: bool) -> f64 {
    let mut alone = 0.0;
    let mut groups = vec![0.0; places.len()];
    let mut way = Vec::new();
    for &id in links {
        let link = topology.link(id);
        find_way(link, places, &mut way);
        match if first { way.first() } else { way.last() } {
            Some(resource) => groups[resource.index()] += rate(link.beta.0),
            None => alone += rate(link.beta.0),
        }
    }
    let limited = groups.into_iter().zip(topology.resources()).filter(|(sum, _)| *sum > 0.0);
    alone + limited.map(|(sum, resource)| rate(resource.beta.0).min(sum)).sum::<f64>()
}

/// The place of each resource on the way of the bytes: its sending ranks per receiving rank; infinite for those that no
/// link uses. The port of one sender leads to many receivers, and comes first; an up-link lies between the ports of senders
/// and of receivers.
fn places(topology: &Topology, links: &[LinkId]) -> Vec<f64> {
    let count = topology.resources().len();
    let ranks = |end: fn(&Link) -> Rank| {
        // Link by link of one rank after the other, so that the last rank of each resource is all there is to know.
        let mut next = vec![0; topology.rank_count() + 1];
        links.iter().for_each(|&id| next[end(topology.link(id)).index() + 1] += 1);
        (0..topology.rank_count()).for_each(|rank| next[rank + 1] += next[rank]);
        let mut by_end = vec![LinkId(0); links.len()];
        for &id in links {
            let place = &mut next[end(topology.link(id)).index()];
            by_end[*place] = id;
            *place += 1;
        }
        let (mut last, mut ranks) = (vec![None; count], vec![0.0; count]);
        for link in by_end.into_iter().map(|id| topology.link(id)) {
            for resource in &link.resources {
                if last[resource.index()].replace(end(link)) != Some(end(link)) {
                    ranks[resource.index()] += 1.0;
                }
            }
        }
        ranks
    };
    let (senders, receivers) = (ranks(|link| link.from), ranks(|link| link.to));
    let place = |(from, to): (f64, f64)| if to > 0.0 { from / to } else { f64::INFINITY };
    senders.into_iter().zip(receivers).map(place).collect()
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
