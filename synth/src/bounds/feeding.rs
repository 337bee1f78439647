//! The flow network of the cut bounds, with few arcs.
//!
//! The principal type is [`Feeding`]: a source feeds ranks, and links and resources carry. Behind a switch every port
//! sends to every other, which needs a number of arcs quadratic in the ports. Instead, ports that reach the same ports
//! share a vertex, where no link is slower than the slower of its two ports. This changes no flow.

use super::flow::{FlowNetwork, Spent, UNLIMITED, WorkBudget};
use crate::problem::Problem;
use std::collections::BTreeMap;
use topology::{Rank, ResourceId};

/// A ratio must grow by more than this (relative) to count as larger.
pub(super) const GROWS: f64 = 1e-12;

/// The network: a source feeds the ranks, links and resources carry.
pub(super) struct Feeding {
    network: FlowNetwork,
    source: usize,
    ranks: usize,
    /// The arc from the source to each rank that holds something, and the number of bytes that it holds.
    feeds: Vec<(usize, f64)>,
}

impl Feeding {
    pub(super) fn new(problem: &Problem, held: &[f64]) -> Self {
        let topology = &*problem.topology;
        let (ranks, resources) = (topology.rank_count(), topology.resources().len());
        let source = ranks + 2 * resources;
        let mut network = FlowNetwork::new(source + 1);
        for (index, resource) in topology.resources().iter().enumerate() {
            network.connect(ranks + 2 * index, ranks + 2 * index + 1, rate(resource.beta.0));
        }
        let Arcs { limited, free } = Arcs::new(problem);
        for (&(from, to), &rate) in &limited {
            network.connect(from, to, rate.min(UNLIMITED));
        }
        share(&mut network, free);
        let holding = held.iter().enumerate().filter(|(_, bytes)| **bytes > 0.0);
        let feeds = holding.map(|(rank, &bytes)| (network.connect(source, rank, bytes), bytes)).collect();
        Self { network, source, ranks, feeds }
    }

    /// The source's side of a minimum cut towards `sink`, where every rank is fed x times the bytes that it holds;
    /// `None` if everything reaches the sink.
    pub(super) fn cut(&mut self, x: f64, sink: Rank, work: &mut WorkBudget) -> Result<Option<Vec<bool>>, Spent> {
        let mut fed = 0.0;
        for &(arc, bytes) in &self.feeds {
            self.network.set_capacity(arc, x * bytes);
            fed += x * bytes;
        }
        let flow = self.network.max_flow(self.source, sink.index(), work)?;
        Ok((flow < fed * (1.0 - GROWS)).then(|| self.reached_from(self.source)))
    }

    /// The maximum flow from one rank to another, and the sender's side of a minimum cut.
    pub(super) fn between(&mut self, from: Rank, to: Rank, work: &mut WorkBudget) -> Result<(f64, Vec<bool>), Spent> {
        self.feeds.iter().for_each(|&(arc, _)| self.network.set_capacity(arc, 0.0));
        let flow = self.network.max_flow(from.index(), to.index(), work)?;
        Ok((flow, self.reached_from(from.index())))
    }

    /// The ranks on the near side of the cut.
    fn reached_from(&self, vertex: usize) -> Vec<bool> {
        let mut reached = self.network.reachable(vertex);
        reached.truncate(self.ranks);
        reached
    }
}

fn rate(beta: f64) -> f64 {
    if beta > 0.0 { (1.0 / beta).min(UNLIMITED) } else { UNLIMITED }
}

/// The arcs between ranks and resources; parallel arcs are merged.
struct Arcs {
    limited: BTreeMap<(usize, usize), f64>,
    /// Arcs between two resources of which at least one is no faster than the link.
    free: Free,
}

/// For each sending resource, the resources that it sends to, and those that may be added without changing any flow
/// (all by index). A port that receives for one rank may be added to the receivers of that rank's own sending port.
#[derive(Default)]
struct Free {
    to: BTreeMap<usize, Vec<usize>>,
    harmless: BTreeMap<usize, Vec<usize>>,
    /// The first vertex of resource 0; the vertices of the others follow.
    first: usize,
}

impl Arcs {
    fn new(problem: &Problem) -> Self {
        let topology = &*problem.topology;
        let ranks = topology.rank_count();
        let enter = |id: ResourceId| ranks + 2 * id.index();
        let mut limited: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        let mut free = Free { first: ranks, ..Free::default() };
        let mut sole = vec![(None, None); topology.resources().len()];
        for id in topology.link_ids().filter(|&id| problem.allows_link(id)) {
            let link = topology.link(id);
            let own = rate(link.beta.0);
            let mut at = link.from.index();
            for (position, &resource) in link.resources.iter().enumerate() {
                let before = position.checked_sub(1).map(|before| link.resources[before]);
                let slower = |before: ResourceId| {
                    let fastest = topology.resource(before).beta.max(topology.resource(resource).beta);
                    link.beta <= fastest
                };
                match before.filter(|&before| slower(before)) {
                    Some(before) => free.to.entry(before.index()).or_default().push(resource.index()),
                    None => *limited.entry((at, enter(resource))).or_default() += own,
                }
                at = enter(resource) + 1;
                let (from, to) = &mut sole[resource.index()];
                joined(from, link.from);
                joined(to, link.to);
            }
            *limited.entry((at, link.to.index())).or_default() += own;
        }
        for receivers in free.to.values_mut() {
            receivers.sort_unstable();
            receivers.dedup();
        }
        free.harmless = harmless(&free.to, &sole, ranks);
        Self { limited, free }
    }
}

/// Whether any rank was seen, and if all were the same, which one.
type Sole = Option<Option<Rank>>;

fn joined(sole: &mut Sole, rank: Rank) {
    *sole = match *sole {
        None => Some(Some(rank)),
        Some(Some(one)) if one == rank => Some(Some(rank)),
        _ => Some(None),
    };
}

/// For each resource that sends for one rank, the resources that receive for the same rank.
fn harmless(to: &BTreeMap<usize, Vec<usize>>, sole: &[(Sole, Sole)], ranks: usize) -> BTreeMap<usize, Vec<usize>> {
    let mut receiving: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for (resource, (_, to)) in sole.iter().enumerate() {
        if let Some(Some(rank)) = to {
            receiving[rank.index()].push(resource);
        }
    }
    let of = |resource: usize| sole[resource].0.flatten().map_or_else(Vec::new, |rank| receiving[rank.index()].clone());
    to.keys().map(|&resource| (resource, of(resource))).collect()
}

/// A hash of a list that does not depend on the order of its members.
fn print(members: &[usize]) -> u64 {
    members.iter().map(|&member| mixed(member)).fold(0, u64::wrapping_add)
}

fn mixed(member: usize) -> u64 {
    let mixed = (member as u64).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 29).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// Adds the free arcs. Senders with the same receivers share a hub vertex, and receivers with the same hubs share
/// another.
fn share(network: &mut FlowNetwork, mut free: Free) {
    complete(&mut free);
    let leave = |resource: usize| free.first + 2 * resource + 1;
    let enter = |resource: usize| free.first + 2 * resource;
    let mut senders: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
    for (&sender, receivers) in &free.to {
        senders.entry(receivers).or_default().push(leave(sender));
    }
    let mut hubs_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (receivers, senders) in senders {
        let hub = match senders[..] {
            [alone] => alone,
            _ => network.add_vertex(),
        };
        for sender in senders.into_iter().filter(|&sender| sender != hub) {
            network.connect(sender, hub, UNLIMITED);
        }
        receivers.iter().for_each(|&receiver| hubs_of.entry(receiver).or_default().push(hub));
    }
    let mut receivers: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
    for (&receiver, hubs) in &hubs_of {
        receivers.entry(hubs).or_default().push(enter(receiver));
    }
    for (hubs, receivers) in receivers {
        let shared = match (hubs, &receivers[..]) {
            ([hub], _) => *hub,
            (_, [alone]) => *alone,
            _ => network.add_vertex(),
        };
        for &hub in hubs.iter().filter(|&&hub| hub != shared) {
            network.connect(hub, shared, UNLIMITED);
        }
        for receiver in receivers.into_iter().filter(|&receiver| receiver != shared) {
            network.connect(shared, receiver, UNLIMITED);
        }
    }
}

/// Adds to each sender's list the harmless receiver, if any, that makes the list equal to those of most other senders.
fn complete(free: &mut Free) {
    let mut options: Vec<(u64, usize, Option<usize>)> = Vec::new();
    for (&sender, receivers) in &free.to {
        let own = print(receivers);
        options.push((own, sender, None));
        let missing = free.harmless[&sender].iter().filter(|harmless| receivers.binary_search(harmless).is_err());
        options.extend(missing.map(|&harmless| (own.wrapping_add(mixed(harmless)), sender, Some(harmless))));
    }
    options.sort_unstable();
    let mut chosen: BTreeMap<usize, (usize, Option<usize>)> = BTreeMap::new();
    for alike in options.chunk_by(|a, b| a.0 == b.0) {
        for &(_, sender, harmless) in alike {
            let best = chosen.entry(sender).or_insert((0, None));
            if alike.len() > best.0 {
                *best = (alike.len(), harmless);
            }
        }
    }
    for (sender, receivers) in &mut free.to {
        if let Some(harmless) = chosen[sender].1 {
            receivers.push(harmless);
            receivers.sort_unstable();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::resolve;

    const PLENTY: WorkBudget = WorkBudget::new(u64::MAX);

    fn problem(spec: &str) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let request = Request::new(Collective::AllGather, topology.rank_count(), 1 << 20);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// The network with an arc for every step of every link, and no shared vertices.
    fn plain(problem: &Problem) -> FlowNetwork {
        let topology = &*problem.topology;
        let ranks = topology.rank_count();
        let mut network = FlowNetwork::new(ranks + 2 * topology.resources().len());
        for (index, resource) in topology.resources().iter().enumerate() {
            network.connect(ranks + 2 * index, ranks + 2 * index + 1, rate(resource.beta.0));
        }
        for link in topology.links() {
            let mut at = link.from.index();
            for resource in &link.resources {
                network.connect(at, ranks + 2 * resource.index(), rate(link.beta.0));
                at = ranks + 2 * resource.index() + 1;
            }
            network.connect(at, link.to.index(), rate(link.beta.0));
        }
        network
    }

    #[test]
    fn sharing_changes_no_flow() {
        for spec in [
            "dgx-h100x3",
            "dgx-a100x2",
            "mi250x2",
            "h800x3",
            "gb200x1",
            "dgx2x2",
            "dgx2x3,costs=taccl-1mb",
            "ndv2x3,costs=taccl-1mb",
            "fat-tree:2x3x4",
            "dragonfly:2x2x3",
            "torus2d:3x4",
            "switch:7",
        ] {
            let problem = problem(spec);
            let ranks = problem.topology.rank_count();
            let (mut plain, mut shared) = (plain(&problem), Feeding::new(&problem, &vec![1.0; ranks]));
            for to in (1..ranks).step_by(1 + ranks / 6) {
                let expected = plain.max_flow(0, to, &mut PLENTY.clone()).expect("there is no end of work");
                let (found, inside) = shared
                    .between(Rank(0), Rank::from_index(to), &mut PLENTY.clone())
                    .expect("there is no end of work");
                assert!((found / expected - 1.0).abs() < 1e-9, "{spec} 0 → {to}: {found}, not {expected}");
                assert!(inside.len() == ranks && inside[0] && !inside[to], "{spec}");
            }
        }
    }

    #[test]
    fn ports_behind_a_switch_need_few_arcs() {
        let problem = problem("dgx-h100x8");
        let shared = Feeding::new(&problem, &[1.0; 64]);
        assert!(shared.network.arc_count() < 64 * 20, "{} arcs", shared.network.arc_count());
        assert!(plain(&problem).arc_count() > 64 * 180);
    }
}
