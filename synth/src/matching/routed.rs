//! AllToAll and other demands where every chunk goes to one rank: routes first, then an order per link.
//!
//! The principal function is [`route`]. Copies cannot help here, so a chunk is a path. Paths are found one after
//! the other on lengths that grow with what a link or a resource already carries, and found again in rounds while
//! the most loaded link stands out. [`order`] then lets every free link take the waiting chunk that still has the
//! longest way to go (Hu's rule).

use super::calendar::{Calendar, Event};
use super::distance::{Key, PathTree};
use super::instance::Instance;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, ChunkList, Message};
use std::collections::BinaryHeap;
use topology::{Bytes, LinkId, Micros, Rank};

/// The links of every chunk's way, first link first; empty where a chunk stays.
pub(super) type Routes = Vec<Vec<LinkId>>;

/// How routes are chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Routing {
    /// How much longer the most loaded link seems than an idle one; 0 takes shortest paths.
    pub(super) spreading: f64,
    /// How often every chunk is routed.
    pub(super) rounds: u32,
    /// How many chunks of one rank share a look at the loads.
    pub(super) stride: usize,
}

/// Longer than any path, in microseconds.
const PROHIBITIVE: f64 = 1e15;

/// A route for every chunk.
pub(super) fn route(instance: &Instance<'_>, routing: Routing, random: &mut Pcg64Mcg) -> Routes {
    let demand = instance.demand;
    let mut routes: Routes = vec![Vec::new(); demand.chunks().len()];
    let mut load = Load::new(instance);
    // Under a hop limit a path crosses as seldom as it can, however long it gets.
    let toll = if instance.problem.constraints.max_machine_hops.is_some() { PROHIBITIVE } else { 0.0 };
    let mut order: Vec<ChunkId> = demand.chunk_ids().filter(|&id| destination(instance, id).is_some()).collect();
    let (topology, problem) = (instance.topology, instance.problem);
    for round in 0..routing.rounds {
        shuffle(&mut order, random);
        // Chunks of one rank stand together where they share a look.
        if routing.stride > 1 {
            order.sort_by_key(|&id| demand.chunk(id).holders[0]);
        }
        let steepness = routing.spreading * f64::from(round + 1) / f64::from(routing.rounds);
        let alike = |a: &ChunkId, b: &ChunkId| {
            demand.chunk(*a).holders == demand.chunk(*b).holders && demand.bytes_of(*a) == demand.bytes_of(*b)
        };
        for group in order.chunk_by(alike).flat_map(|group| group.chunks(routing.stride)) {
            let bytes = demand.bytes_of(group[0]);
            for &id in group {
                load.change(instance, &routes[id.index()], bytes.0, -1.0);
            }
            let length = |link: LinkId| {
                let price = 1.0 + steepness * load.of(instance, link);
                let toll = if topology.crosses_machines(topology.link(link)) { toll } else { 0.0 };
                let time = topology.link(link).transfer_time(bytes).0.max(f64::MIN_POSITIVE);
                problem.allows(group[0], link).then_some(time * price + toll)
            };
            let tree = PathTree::new(topology, demand.chunk(group[0]).holders.iter().copied(), length);
            for &id in group {
                let Some(to) = destination(instance, id) else { continue };
                routes[id.index()] = tree.path_to(topology, to);
                load.change(instance, &routes[id.index()], bytes.0, 1.0);
            }
        }
    }
    routes
}

/// The one rank that needs `chunk` and does not start with it.
pub(super) fn destination(instance: &Instance<'_>, chunk: ChunkId) -> Option<Rank> {
    let chunk = instance.demand.chunk(chunk);
    chunk.wanted_by.iter().copied().find(|&rank| !chunk.holders.has(rank))
}

fn shuffle(order: &mut [ChunkId], random: &mut Pcg64Mcg) {
    for last in (1..order.len()).rev() {
        order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}

/// How long every link and resource is busy with what is routed over it.
struct Load {
    links: Vec<f64>,
    resources: Vec<f64>,
    /// The largest load seen so far: the scale of all others.
    peak: f64,
}

impl Load {
    fn new(instance: &Instance<'_>) -> Self {
        let topology = instance.topology;
        Self {
            links: vec![0.0; topology.links().len()],
            resources: vec![0.0; topology.resources().len()],
            peak: f64::MIN_POSITIVE,
        }
    }

    fn change(&mut self, instance: &Instance<'_>, route: &[LinkId], bytes: f64, sign: f64) {
        for &id in route {
            let link = instance.topology.link(id);
            self.links[id.index()] += sign * link.occupancy(Bytes(bytes)).0;
            self.peak = self.peak.max(self.links[id.index()]);
            for &resource in &link.resources {
                let busy = instance.topology.resource(resource).occupancy(link, Bytes(bytes)).0;
                self.resources[resource.index()] += sign * busy;
                self.peak = self.peak.max(self.resources[resource.index()]);
            }
        }
    }

    /// The load of a link or of its busiest resource, relative to the largest load seen.
    fn of(&self, instance: &Instance<'_>, id: LinkId) -> f64 {
        let resources = instance.topology.link(id).resources.iter();
        let busiest = resources.map(|resource| self.resources[resource.index()]).fold(0.0, f64::max);
        self.links[id.index()].max(busiest) / self.peak
    }
}

/// A chunk that waits for a link: first the one with the longest way to go, then by chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Waiting {
    remaining: Key,
    lot: u32,
    chunk: ChunkId,
}

/// An order of messages along `routes`; each carries at most `merge` chunks.
pub(super) fn order(instance: &Instance<'_>, routes: &Routes, merge: usize, random: &mut Pcg64Mcg) -> Vec<Message> {
    let mut queues = Queues::new(instance, routes, merge, random);
    queues.run();
    queues.calendar.into_messages()
}

struct Queues<'a> {
    instance: &'a Instance<'a>,
    routes: &'a Routes,
    merge: usize,
    /// For each chunk, how many links of its route are behind it.
    hop: Vec<u32>,
    lots: Vec<u32>,
    waiting: Vec<BinaryHeap<Waiting>>,
    calendar: Calendar<'a>,
    awake: Vec<LinkId>,
}

impl<'a> Queues<'a> {
    fn new(instance: &'a Instance<'a>, routes: &'a Routes, merge: usize, random: &mut Pcg64Mcg) -> Self {
        let topology = instance.topology;
        let mut queues = Self {
            hop: vec![0; routes.len()],
            lots: routes.iter().map(|_| random.next_u32()).collect(),
            waiting: vec![BinaryHeap::new(); topology.links().len()],
            calendar: Calendar::new(topology, instance.demand),
            awake: Vec::new(),
            instance,
            routes,
            merge,
        };
        instance.demand.chunk_ids().for_each(|chunk| queues.wait(chunk));
        queues
    }

    /// Puts a chunk into the queue of the next link of its route, if there is one.
    fn wait(&mut self, chunk: ChunkId) {
        let ahead = &self.routes[chunk.index()][self.hop[chunk.index()] as usize..];
        let Some(&next) = ahead.first() else { return };
        let remaining = ahead.iter().map(|&link| self.instance.duration(link, chunk).0).sum();
        let lot = self.lots[chunk.index()];
        self.waiting[next.index()].push(Waiting { remaining: Key::new(remaining), lot, chunk });
        self.awake.push(next);
    }

    fn run(&mut self) {
        let mut happened = Vec::new();
        self.choose(Micros::ZERO);
        while let Some(now) = self.calendar.next(&mut happened) {
            happened.iter().for_each(|&event| self.happen(event));
            self.choose(now);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::LinkFree(link) => self.awake.push(link),
            Event::ResourceFree(resource) => self.awake.extend_from_slice(self.instance.topology.users(resource)),
            Event::Arrived(message) => {
                for chunk in self.calendar.message(message).chunks.clone() {
                    self.hop[chunk.index()] += 1;
                    self.wait(chunk);
                }
            }
        }
    }

    /// Lets the free links send, the one whose first chunk has the longest way to go before the others.
    fn choose(&mut self, now: Micros) {
        let first = |link: LinkId| self.waiting[link.index()].peek().map(|&first| (first, link));
        let mut ready: Vec<(Waiting, LinkId)> = self.awake.iter().filter_map(|&link| first(link)).collect();
        self.awake.clear();
        ready.sort_unstable_by(|a, b| b.cmp(a));
        ready.dedup();
        for (_, id) in ready {
            if !self.calendar.is_free(id, now) {
                continue;
            }
            let merge = self.merge.min(self.waiting[id.index()].len());
            let chunks = (0..merge).filter_map(|_| self.waiting[id.index()].pop()).map(|waiting| waiting.chunk);
            let mut chunks: ChunkList = chunks.collect();
            chunks.sort_unstable();
            self.calendar.send(now, id, chunks);
        }
    }
}
