//! Routes of base chunks that one rank wants each, such that no server is much busier than the others.
//!
//! The principal function is [`balanced_routes`]. The load of a server is what all base chunks keep it busy, which is
//! what each port of its orbit is kept busy by all chunks together. Chunks take their shortest ways first. Then servers
//! have prices that grow with their loads, and chunks choose the cheapest ways again, a few at a time, in several
//! rounds [1]. The best round counts. Among equal ways, those come first whose first link is on few other ways: so all
//! links are busy from the start.
//!
//! [1] Garg and Könemann, "Faster and Simpler Algorithms for Multicommodity Flow and Other Fractional Packing
//! Problems", SIAM J. Comput. 37 (2007).

use super::Orbits;
use crate::problem::distance::PathTree;
use crate::problem::{Deadline, Problem};
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::{LinkId, Rank};

/// The work of all rounds, in links visited by searches for paths: about a second.
const WORK: usize = 100_000_000;
/// For each round, how many times dearer the busiest server is than an idle one, as an exponent.
const EAGERNESS: [f64; 4] = [0.0, 1.0, 2.0, 4.0];
/// The first round may take one part in this many of the time.
const FIRST_PART: u32 = 4;
/// What the load of the first link of a way counts, next to the time of servers that the way takes.
const FIRST: f64 = 1e-3;
/// The same for the duration of a way: it decides between equal ones.
const DURATION: f64 = 1e-6;

/// The links of each base chunk's way, in order; `None` if several ranks lack a chunk, or a rank cannot be reached.
pub(super) fn balanced_routes(
    orbits: &Orbits,
    problem: &Problem,
    base: &[ChunkId],
    deadline: &Deadline,
) -> Option<Vec<Vec<LinkId>>> {
    let mut by_source: BTreeMap<Rank, Vec<(usize, Rank)>> = BTreeMap::new();
    for (index, &id) in base.iter().enumerate() {
        let chunk = problem.demand.chunk(id);
        let mut lacking = chunk.lacking();
        match (lacking.next(), lacking.next(), &chunk.holders[..]) {
            (None, ..) => {}
            (Some(to), None, &[from]) if !chunk.combine => by_source.entry(from).or_default().push((index, to)),
            _ => return None,
        }
    }
    let visited = problem.topology.links().len() * by_source.len().max(1);
    let most = by_source.values().map(Vec::len).max().unwrap_or(0);
    let batches = (WORK / EAGERNESS.len() / visited.max(1)).clamp(1, most.max(1));
    let mut routes = BalancedRoutes {
        orbits,
        problem,
        base,
        loads: vec![0.0; orbits.servers.count()],
        first: vec![0.0; orbits.links.orbits()],
        links: vec![Vec::new(); base.len()],
    };
    let mut best: Option<(f64, Vec<Vec<LinkId>>)> = None;
    let opening = deadline.part(FIRST_PART);
    for eagerness in EAGERNESS {
        for batch in 0..batches {
            // Without time, what is left of the first round is one batch.
            let is_last = best.is_none() && opening.has_passed();
            for (&source, wanted) in &by_source {
                let batch: Vec<(usize, Rank)> = match is_last {
                    true => (batch..batches).flat_map(|at| wanted.iter().skip(at).step_by(batches)).copied().collect(),
                    false => wanted.iter().copied().skip(batch).step_by(batches).collect(),
                };
                routes.choose(source, &batch, eagerness)?;
            }
            if is_last || best.is_some() && deadline.has_passed() {
                break;
            }
        }
        let busiest = routes.busiest();
        if best.as_ref().is_none_or(|(least, _)| busiest < *least) {
            best = Some((busiest, routes.links.clone()));
        }
        if deadline.has_passed() {
            break;
        }
    }
    best.map(|(_, links)| links)
}

/// The routes so far, and what they keep busy.
struct BalancedRoutes<'a> {
    orbits: &'a Orbits,
    problem: &'a Problem,
    base: &'a [ChunkId],
    /// For each server, in µs.
    loads: Vec<f64>,
    /// For each orbit of links, what first links of routes keep it busy.
    first: Vec<f64>,
    links: Vec<Vec<LinkId>>,
}

impl BalancedRoutes<'_> {
    /// Chooses routes from `source` for the chunks of `batch` anew; `None` if a rank cannot be reached.
    fn choose(&mut self, source: Rank, batch: &[(usize, Rank)], eagerness: f64) -> Option<()> {
        let Some(&(first, _)) = batch.first() else { return Some(()) };
        batch.iter().for_each(|&(chunk, _)| self.count(chunk, -1.0));
        let (costs, busiest) = (self.costs(self.base[first], eagerness), self.busiest().max(f64::MIN_POSITIVE));
        let allowed = |id: LinkId| self.problem.allows(self.base[first], id);
        let length = |id: LinkId| {
            let orbit = self.orbits.links.orbit(id.0) as usize;
            let is_first = self.problem.topology.link(id).from == source;
            let crowd = if is_first { self.first[orbit] / busiest } else { 0.0 };
            allowed(id).then(|| costs[orbit] * (1.0 + FIRST * crowd))
        };
        let tree = PathTree::new(&self.problem.topology, [source], length);
        for &(chunk, to) in batch {
            self.links[chunk] = tree.path_to(&self.problem.topology, to);
            if !tree.distance[to.index()].is_finite() {
                return None;
            }
            self.count(chunk, 1.0);
        }
        Some(())
    }

    /// Adds what a chunk's route keeps busy, `times` times.
    fn count(&mut self, chunk: usize, times: f64) {
        let bytes = self.problem.demand.bytes_of(self.base[chunk]);
        for (hop, &link) in self.links[chunk].iter().enumerate() {
            let orbit = self.orbits.links.orbit(link.0);
            if hop == 0 {
                self.first[orbit as usize] += times * self.problem.topology.link(link).occupancy(bytes).0;
            }
            for (server, busy) in self.orbits.servers.busy(&self.problem.topology, orbit, link, bytes) {
                self.loads[server as usize] += times * busy.0;
            }
        }
    }

    fn busiest(&self) -> f64 {
        self.loads.iter().copied().fold(0.0, f64::max)
    }

    /// For each orbit of links, what a chunk pays on it.
    fn costs(&self, chunk: ChunkId, eagerness: f64) -> Vec<f64> {
        let (topology, links) = (&self.problem.topology, &self.orbits.links);
        let bytes = self.problem.demand.bytes_of(chunk);
        let busiest = self.busiest().max(f64::MIN_POSITIVE);
        let price = |server: u32| (eagerness * (self.loads[server as usize] / busiest - 1.0)).exp();
        let cost = |orbit: u32| {
            let id = LinkId(links.first(orbit));
            let paid =
                self.orbits.servers.busy(topology, orbit, id, bytes).map(|(server, busy)| price(server) * busy.0);
            paid.sum::<f64>() + DURATION * topology.link(id).transfer_time(bytes).0
        };
        (0..links.orbits() as u32).map(cost).collect()
    }
}
