//! A route for every chunk, for AllToAll and other demands in which every chunk has one destination.
//!
//! The principal type is [`Routing`]. Copies cannot help here, so a chunk is a path, and the loads of the links decide.
//! There are three ways of finding routes. [`Routing::spread_out`] finds shortest paths in rounds, with lengths that
//! grow with the loads of links and resources. [`Routing::follow`] rounds the maximum concurrent flow, chunk by chunk,
//! along the links where most of the flow is left. [`Routing::relieve`] moves one chunk to where it adds least to the
//! high powers of all loads, so that repeating it does not raise the peaks.

use super::instance::Instance;
use crate::bounds::multicommodity::ConcurrentFlow;
use crate::problem::distance::LimitedPaths;
use crate::problem::options::DeadlinePoll;
use crate::strategies::shuffle::shuffle;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::ChunkId;
use topology::{Bytes, LinkId, Rank};

/// The links of every chunk's way, first link first; empty where a chunk stays.
pub(crate) type ChunkRoutes = Vec<Vec<LinkId>>;

/// Parameters of [`Routing::spread_out`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RouteParams {
    /// How much longer the most loaded link is made to look than an idle one; 0 gives shortest paths.
    pub(super) strength: f64,
    pub(super) rounds: u32,
    /// How many chunks of one rank are routed with the same loads.
    pub(super) stride: usize,
}

/// The power of loads that [`Routing::relieve`] minimises: so high that the largest loads count most.
const POWER: i32 = 8;
/// The cost of a microsecond on the way relative to one of load, so that detours need a reason.
const DETOUR: f64 = 1e-3;

/// How often the deadline is checked, in links visited: every tenth of a second.
const POLLED: u64 = 1 << 22;

/// Routes of all chunks, and the loads of links and resources under them.
pub(super) struct Routing<'a> {
    instance: &'a Instance<'a>,
    routes: ChunkRoutes,
    load: LinkLoads,
}

impl<'a> Routing<'a> {
    pub(super) fn new(instance: &'a Instance<'a>) -> Self {
        Self { instance, routes: vec![Vec::new(); instance.demand.chunks().len()], load: LinkLoads::new(instance) }
    }

    pub(super) fn instance(&self) -> &'a Instance<'a> {
        self.instance
    }

    pub(super) fn routes(&self) -> &ChunkRoutes {
        &self.routes
    }

    /// Gives a chunk another route, and returns its old one.
    pub(super) fn replace(&mut self, id: ChunkId, route: Vec<LinkId>) -> Vec<LinkId> {
        let bytes = self.instance.demand.bytes_of(id);
        self.load.change(self.instance, &self.routes[id.index()], bytes, -1.0);
        self.load.change(self.instance, &route, bytes, 1.0);
        std::mem::replace(&mut self.routes[id.index()], route)
    }

    /// Routes every chunk with lengths that grow with the loads, several times; `false` if the deadline passes before
    /// all chunks have a route.
    pub(super) fn spread_out(&mut self, spreading: RouteParams, random: &mut Pcg64Mcg) -> bool {
        let mut poll = self.poll();
        let demand = self.instance.demand;
        let mut order = self.travellers();
        for round in 0..spreading.rounds {
            shuffle(&mut order, |below| (random.next_u64() % below as u64) as usize);
            // Chunks that are routed together must stand next to each other.
            if spreading.stride > 1 {
                order.sort_by_key(|&id| demand.chunk(id).holders[0]);
            }
            let steepness = spreading.strength * f64::from(round + 1) / f64::from(spreading.rounds);
            let alike = |a: &ChunkId, b: &ChunkId| {
                demand.chunk(*a).holders == demand.chunk(*b).holders && demand.bytes_of(*a) == demand.bytes_of(*b)
            };
            for group in order.chunk_by(alike).flat_map(|group| group.chunks(spreading.stride)) {
                for &id in group {
                    self.replace(id, Vec::new());
                }
                let bytes = demand.bytes_of(group[0]);
                let tree = self.tree(group[0], |link| {
                    let time = self.instance.topology.link(link).transfer_time(bytes).0.max(f64::MIN_POSITIVE);
                    time * (1.0 + steepness * self.load.of(self.instance, link))
                });
                for &id in group {
                    self.replace(id, self.path(&tree, id));
                }
                if poll.is_over_after(self.instance.topology.links().len() + group.len()) {
                    return round > 0;
                }
            }
        }
        true
    }

    /// Routes every chunk along the links with the most flow left in its commodity; `false` if the deadline passes
    /// before all chunks have a route.
    pub(super) fn follow(&mut self, flow: &ConcurrentFlow, random: &mut Pcg64Mcg) -> bool {
        let topology = self.instance.topology;
        let mut poll = self.poll();
        for commodity in &flow.commodities {
            let mut left = commodity.flow.clone();
            let mut order = commodity.chunks.clone();
            shuffle(&mut order, |below| (random.next_u64() % below as u64) as usize);
            for id in order {
                let bytes = self.instance.demand.bytes_of(id);
                let tree = self.tree(id, |link| {
                    let lacking = Bytes((bytes.0 - left[link.index()]).max(0.0));
                    let link = topology.link(link);
                    link.byte_time(lacking).0 + DETOUR * link.transfer_time(bytes).0
                });
                let route = self.path(&tree, id);
                route.iter().for_each(|link| left[link.index()] -= bytes.0);
                self.replace(id, route);
                if poll.is_over_after(topology.links().len()) {
                    return false;
                }
            }
        }
        true
    }

    /// Moves every chunk once to where it adds least to the high powers of the loads, as far as the time permits.
    pub(super) fn relieve_all(&mut self, random: &mut Pcg64Mcg) {
        let mut poll = self.poll();
        let mut order = self.travellers();
        shuffle(&mut order, |below| (random.next_u64() % below as u64) as usize);
        for id in order {
            self.relieve(id, 0.0, random);
            if poll.is_over_after(self.instance.topology.links().len()) {
                return;
            }
        }
    }

    fn poll(&self) -> DeadlinePoll<'a> {
        DeadlinePoll::new(&self.instance.deadline, POLLED)
    }

    /// Moves a chunk to where it adds least to the high powers of the loads. Each link is made to look longer by a
    /// random part of its length, up to `noise`.
    pub(super) fn relieve(&mut self, id: ChunkId, noise: f64, random: &mut Pcg64Mcg) {
        self.replace(id, Vec::new());
        let bytes = self.instance.demand.bytes_of(id);
        // At least as large as any load or message, so that powers do not overflow on an idle machine.
        let messages = self.instance.topology.links().iter().map(|link| link.transfer_time(bytes).0);
        let unit = messages.fold(self.load.current_peak().max(f64::MIN_POSITIVE), f64::max);
        let tree = self.tree(id, |link| {
            let added = self.load.added(self.instance, link, bytes, unit);
            let way = DETOUR * self.instance.topology.link(link).transfer_time(bytes).0 / unit;
            (added + way) * (1.0 + noise * f64::from(random.next_u32() % 1024) / 1024.0)
        });
        let route = self.path(&tree, id);
        self.replace(id, route);
    }

    /// The chunks that have to move.
    fn travellers(&self) -> Vec<ChunkId> {
        self.instance.demand.chunk_ids().filter(|&id| destination(self.instance, id).is_some()).collect()
    }

    /// The shortest paths of a chunk over the links that it may use, with ways that the sketch permits.
    fn tree(&self, id: ChunkId, mut length: impl FnMut(LinkId) -> f64) -> LimitedPaths {
        let Instance { problem, demand, .. } = self.instance;
        let holders = demand.chunk(id).holders.iter().copied();
        LimitedPaths::new(problem, holders, |link| problem.allows(id, link).then(|| length(link)))
    }

    fn path(&self, tree: &LimitedPaths, id: ChunkId) -> Vec<LinkId> {
        destination(self.instance, id).map_or_else(Vec::new, |to| tree.path_to(to))
    }
}

/// The one rank that needs `chunk` and does not start with it.
fn destination(instance: &Instance<'_>, chunk: ChunkId) -> Option<Rank> {
    instance.demand.chunk(chunk).lacking().next()
}

/// How long each link and resource is busy under the routes.
struct LinkLoads {
    links: Vec<f64>,
    resources: Vec<f64>,
    /// The largest load so far, which is the unit of all others.
    peak: f64,
}

impl LinkLoads {
    fn new(instance: &Instance<'_>) -> Self {
        let topology = instance.topology;
        Self {
            links: vec![0.0; topology.links().len()],
            resources: vec![0.0; topology.resources().len()],
            peak: f64::MIN_POSITIVE,
        }
    }

    fn change(&mut self, instance: &Instance<'_>, route: &[LinkId], bytes: Bytes, sign: f64) {
        for &id in route {
            let link = instance.topology.link(id);
            self.links[id.index()] += sign * link.occupancy(bytes).0;
            self.peak = self.peak.max(self.links[id.index()]);
            for &resource in &link.resources {
                let busy = instance.topology.resource(resource).occupancy(link, bytes).0;
                self.resources[resource.index()] += sign * busy;
                self.peak = self.peak.max(self.resources[resource.index()]);
            }
        }
    }

    /// The load of a link or of its busiest resource, relative to the largest load so far.
    fn of(&self, instance: &Instance<'_>, id: LinkId) -> f64 {
        let resources = instance.topology.link(id).resources.iter();
        let busiest = resources.map(|resource| self.resources[resource.index()]).fold(0.0, f64::max);
        self.links[id.index()].max(busiest) / self.peak
    }

    fn current_peak(&self) -> f64 {
        self.links.iter().chain(&self.resources).copied().fold(0.0, f64::max)
    }

    /// What a message over a link adds to the high powers of all loads, with `unit` as the unit of loads.
    fn added(&self, instance: &Instance<'_>, id: LinkId, bytes: Bytes, unit: f64) -> f64 {
        let link = instance.topology.link(id);
        let more = |load: f64, busy: f64| {
            let load = load.max(0.0);
            ((load + busy) / unit).powi(POWER) - (load / unit).powi(POWER)
        };
        let shared = link
            .resources
            .iter()
            .map(|&id| more(self.resources[id.index()], instance.topology.resource(id).occupancy(link, bytes).0));
        more(self.links[id.index()], link.occupancy(bytes).0) + shared.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::multicommodity::concurrent_flow;
    use crate::problem::Problem;
    use crate::symmetry::Mirror;
    use rand_pcg::rand_core::SeedableRng;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::resolve;

    fn all_to_all(spec: &str, chunks: u32) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let ranks = topology.rank_count();
        let request = Request::new(Collective::AllToAll, ranks, ranks as u64 * 1_000_000).with_chunks(chunks);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// Checks that every route leads from the holder to the destination.
    fn check_routes(problem: &Problem, routes: &ChunkRoutes) {
        for (chunk, route) in problem.demand.chunks().iter().zip(routes) {
            let at = route.iter().fold(chunk.holders[0], |at, &link| {
                let link = problem.topology.link(link);
                assert_eq!(link.from, at, "{route:?} is broken");
                link.to
            });
            assert_eq!(at, chunk.wanted_by[0]);
        }
    }

    #[test]
    fn rounded_flows_come_close_to_the_fluid() {
        for (spec, optimum) in [("dgx1", 106.67), ("ndv2x2", 5_120.0), ("switch:5", 80.0)] {
            let problem = all_to_all(spec, 6);
            let instance =
                Instance::new(&problem, Mirror::plain(&problem.topology), &crate::problem::Deadline::default())
                    .expect("a connected topology");
            let flow = concurrent_flow(&problem, &crate::problem::Deadline::default())
                .expect("a program of this size is solved");
            let mut random = Pcg64Mcg::seed_from_u64(1);
            let mut routing = Routing::new(&instance);
            routing.follow(&flow, &mut random);
            check_routes(&problem, routing.routes());
            let peak = routing.load.current_peak();
            assert!((1.0 - 1e-9..1.4).contains(&(peak / optimum)), "{spec}: {peak} µs of {optimum}");
        }
    }

    #[test]
    fn relief_finds_a_way_on_an_idle_machine() {
        let topology = Arc::new(resolve("dgx1").expect("a known machine"));
        for bytes in [0, 1, 1 << 40] {
            let mut request = Request::new(Collective::SendRecv, 8, bytes);
            request.members = [Rank(0), Rank(5)].into_iter().collect();
            let demand = Arc::new(Demand::new(request).expect("a valid request"));
            let problem = Problem::new(topology.clone(), demand);
            let instance =
                Instance::new(&problem, Mirror::plain(&problem.topology), &crate::problem::Deadline::default())
                    .expect("a connected topology");
            let mut routing = Routing::new(&instance);
            routing.relieve_all(&mut Pcg64Mcg::seed_from_u64(1));
            check_routes(&problem, routing.routes());
        }
    }

    #[test]
    fn relief_lowers_the_peak_and_keeps_the_books() {
        let problem = all_to_all("dgx1", 3);
        let instance = Instance::new(&problem, Mirror::plain(&problem.topology), &crate::problem::Deadline::default())
            .expect("a connected topology");
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let mut routing = Routing::new(&instance);
        routing.spread_out(RouteParams { strength: 0.0, rounds: 1, stride: 1 }, &mut random);
        let before = routing.load.current_peak();
        (0..3).for_each(|_| routing.relieve_all(&mut random));
        check_routes(&problem, routing.routes());
        assert!(routing.load.current_peak() < 0.9 * before, "{} of {before}", routing.load.current_peak());
        let mut counted = LinkLoads::new(&instance);
        for (id, route) in problem.demand.chunk_ids().zip(routing.routes()) {
            counted.change(&instance, route, problem.demand.bytes_of(id), 1.0);
        }
        for (kept, counted) in routing.load.links.iter().zip(&counted.links) {
            assert!((kept - counted).abs() < 1e-9 * before);
        }
    }
}
