//! Sets of ranks worth measuring as cuts: the beginnings of good orders.
//!
//! The principal function is [`sweeps`]. A flow from one rank finds the tightest cut for data that everybody wants.
//! Where every pair exchanges its own data, the tightest cut is a sparsest cut, which no flow finds. But there is an
//! order of the ranks of which the set is a beginning, and all beginnings of an order are measured in one pass: each
//! message and each link crosses a run of them. Orders that are tried:
//! - by the difference of the distances to two ranks. On a grid this is a coordinate if the two differ in that
//!   coordinate only, and on a torus the set of the ranks nearer to one of them is half of a ring;
//! - by the first eigenvectors of the Laplacian, where the graph is irregular [1].
//!
//! A set that is found may be any set; the bound measures it exactly.
//!
//! [1] Fiedler, "A property of eigenvectors of nonnegative symmetric matrices and its application to graph theory",
//! Czechoslovak Math. J. 25 (1975).

use crate::problem::{Deadline, Problem};
use schedule::Collective;
use topology::Rank;

/// The most work for all orders together, in links, ranks and chunks visited: some tenths of a second.
const WORK: usize = 60_000_000;
/// The ranks from which distances are measured, besides all others.
const ORIGINS: usize = 3;
/// The sets that are handed out.
const MOST: usize = 6;
/// The eigenvectors, and the iterations for each.
const EIGENVECTORS: usize = 3;
const ITERATIONS: usize = 300;

/// The best beginnings of all orders, the most promising first. None where every link shares resources, because the
/// rates of the links then say little about a set, or where one order is too much work.
pub(super) fn sweeps(problem: &Problem, deadline: &Deadline) -> Vec<Vec<bool>> {
    let topology = &*problem.topology;
    if topology.links().iter().all(|link| !link.resources.is_empty()) || topology.rank_count() < 3 {
        return Vec::new();
    }
    let sweep = Sweep::new(problem);
    // An AllGather of many ranks: one order alone would take longer than all of them may.
    if sweep.cost > WORK {
        return Vec::new();
    }
    let mut left = WORK;
    let mut found: Vec<(f64, Vec<bool>)> = Vec::new();
    let mut offer = |order: &[usize]| {
        for (ratio, inside) in sweep.best(order) {
            let is_new = found.iter().all(|(_, other)| *other != inside);
            if is_new && (found.len() < MOST || found.iter().any(|(other, _)| *other < ratio)) {
                found.push((ratio, inside));
                found.sort_by(|a, b| b.0.total_cmp(&a.0));
                found.truncate(MOST);
            }
        }
        left = left.saturating_sub(sweep.cost);
        left > 0 && !deadline.has_passed()
    };
    let mut go_on = sweep.eigenvectors().into_iter().all(|values| offer(&ordered(&values)));
    for origin in sweep.origins() {
        let here = sweep.distances(origin);
        for other in (0..topology.rank_count()).filter(|&other| other != origin) {
            let there = sweep.distances(other);
            let difference: Vec<f64> = here.iter().zip(&there).map(|(here, there)| here - there).collect();
            go_on = go_on && offer(&ordered(&difference));
            if !go_on {
                break;
            }
        }
    }
    found.into_iter().map(|(_, inside)| inside).collect()
}

/// The ranks by ascending value.
fn ordered(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    order
}

/// What crosses the beginnings of an order.
struct Sweep<'a> {
    problem: &'a Problem,
    /// The links that may be used: from, to, bytes per µs.
    links: Vec<(usize, usize, f64)>,
    next: Vec<Vec<usize>>,
    /// Whether every pair of the members exchanges as much as any other: then chunks need not be visited.
    is_uniform: bool,
    is_member: Vec<bool>,
    cost: usize,
}

impl<'a> Sweep<'a> {
    fn new(problem: &'a Problem) -> Self {
        let (topology, request) = (&*problem.topology, problem.demand.request());
        let ranks = topology.rank_count();
        let mut links = Vec::new();
        let mut next = vec![Vec::new(); ranks];
        for id in topology.link_ids().filter(|&id| problem.allows_link(id)) {
            let link = topology.link(id);
            let beta = link.resources.iter().map(|&id| topology.resource(id).beta.0).fold(link.beta.0, f64::max);
            links.push((link.from.index(), link.to.index(), 1.0 / beta.max(f64::MIN_POSITIVE)));
            next[link.from.index()].push(link.to.index());
        }
        let is_uniform = request.collective == Collective::AllToAll;
        let mut is_member = vec![false; ranks];
        request.members.iter().for_each(|rank| is_member[rank.index()] = true);
        let chunks = if is_uniform { 0 } else { problem.demand.chunks().iter().map(|it| 1 + it.wanted_by.len()).sum() };
        let cost = links.len() * 2 + ranks * 8 + chunks;
        Self { problem, links, next, is_uniform, is_member, cost }
    }

    /// The beginning, and the end, of an order with the largest ratio of bytes that must leave it to the rate of the
    /// links that do.
    fn best(&self, order: &[usize]) -> Vec<(f64, Vec<bool>)> {
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &rank)| place[rank] = at);
        let bytes = if self.is_uniform { self.uniform(order) } else { self.crossing(&place) };
        let mut rates = [Runs::new(order.len()), Runs::new(order.len())];
        for &(from, to, rate) in &self.links {
            let (from, to) = (place[from], place[to]);
            rates[usize::from(from > to)].add(from.min(to) + 1, from.max(to), rate);
        }
        let rates = rates.map(Runs::sums);
        let side = |side: usize| {
            let ratio = |cut: usize| if rates[side][cut] > 0.0 { bytes[side][cut] / rates[side][cut] } else { 0.0 };
            let cut = (1..order.len()).max_by(|&a, &b| ratio(a).total_cmp(&ratio(b)))?;
            let inside = place.iter().map(|&place| (place < cut) == (side == 0)).collect();
            (ratio(cut) > 0.0).then(|| (ratio(cut), inside))
        };
        (0..2).filter_map(side).collect()
    }

    /// The bytes that leave each beginning of the order, and those that leave the rest, if all pairs are alike.
    fn uniform(&self, order: &[usize]) -> [Vec<f64>; 2] {
        let all = self.is_member.iter().filter(|&&member| member).count();
        let mut before = 0;
        let mut bytes = vec![0.0; order.len() + 1];
        for (cut, &rank) in (1..).zip(order) {
            before += usize::from(self.is_member[rank]);
            bytes[cut] = (before * (all - before)) as f64;
        }
        [bytes.clone(), bytes]
    }

    /// The same for any demand.
    fn crossing(&self, place: &[usize]) -> [Vec<f64>; 2] {
        let demand = &self.problem.demand;
        let mut bytes = [Runs::new(place.len()), Runs::new(place.len())];
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let ends = |ranks: &[Rank]| {
                let places = ranks.iter().map(|rank| place[rank.index()]);
                places.fold((usize::MAX, 0), |(least, most), at| (least.min(at), most.max(at)))
            };
            if chunk.holders.is_empty() || chunk.wanted_by.is_empty() {
                continue;
            }
            let (held, wanted) = (ends(&chunk.holders), ends(&chunk.wanted_by));
            // A copy must leave a set that contains all holders; a contribution leaves one that contains any.
            let (forth, back) = if chunk.combine { (held.0, held.1) } else { (held.1, held.0) };
            bytes[0].add(forth + 1, wanted.1, demand.bytes_of(id).0);
            bytes[1].add(wanted.0 + 1, back, demand.bytes_of(id).0);
        }
        bytes.map(Runs::sums)
    }

    /// The distances from a rank in links; ranks that are not reached are the farthest.
    fn distances(&self, from: usize) -> Vec<f64> {
        let far = self.next.len() as f64;
        let mut distance = vec![far; self.next.len()];
        distance[from] = 0.0;
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for &to in &self.next[at] {
                if distance[to] == far {
                    distance[to] = distance[at] + 1.0;
                    queue.push_back(to);
                }
            }
        }
        distance
    }

    /// Ranks at the rim: the first is far from rank 0, each other one far from those before.
    fn origins(&self) -> Vec<usize> {
        let farthest = |distance: &[f64]| (0..distance.len()).max_by(|&a, &b| distance[a].total_cmp(&distance[b]));
        let Some(first) = farthest(&self.distances(0)) else { return Vec::new() };
        let mut origins = vec![first];
        let mut nearest = self.distances(first);
        while origins.len() < ORIGINS.min(nearest.len()) {
            let Some(next) = farthest(&nearest) else { break };
            nearest = nearest.iter().zip(self.distances(next)).map(|(a, b)| a.min(b)).collect();
            origins.push(next);
        }
        origins
    }

    /// The eigenvectors of the smallest eigenvalues of the Laplacian besides the constant one, by iteration.
    fn eigenvectors(&self) -> Vec<Vec<f64>> {
        let count = self.next.len();
        if self.links.len() * EIGENVECTORS * ITERATIONS > WORK / 2 {
            return Vec::new();
        }
        let mut degree = vec![0.0; count];
        for &(from, to, rate) in &self.links {
            degree[from] += rate;
            degree[to] += rate;
        }
        // Shifted so that the smallest eigenvalues become the largest.
        let shift = 2.0 * degree.iter().copied().fold(0.0, f64::max);
        let mut found: Vec<Vec<f64>> = vec![vec![1.0 / (count as f64).sqrt(); count]];
        for number in 1..=EIGENVECTORS {
            // Any start will do that is not orthogonal to the vector.
            let mut vector: Vec<f64> =
                (0..count).map(|at| ((at * 7919 + number * 104_729) % 1009) as f64 - 504.0).collect();
            for _ in 0..ITERATIONS {
                let mut next: Vec<f64> =
                    vector.iter().zip(&degree).map(|(value, degree)| (shift - degree) * value).collect();
                for &(from, to, rate) in &self.links {
                    next[from] += rate * vector[to];
                    next[to] += rate * vector[from];
                }
                for other in &found {
                    let part: f64 = next.iter().zip(other).map(|(a, b)| a * b).sum();
                    next.iter_mut().zip(other).for_each(|(value, other)| *value -= part * other);
                }
                let length = next.iter().map(|value| value * value).sum::<f64>().sqrt();
                if length <= 0.0 || !length.is_finite() {
                    return found.split_off(1);
                }
                next.iter_mut().for_each(|value| *value /= length);
                vector = next;
            }
            found.push(vector);
        }
        found.split_off(1)
    }
}

/// Sums over the beginnings of an order, each addend in a run of them.
struct Runs(Vec<f64>);

impl Runs {
    fn new(count: usize) -> Self {
        Self(vec![0.0; count + 2])
    }

    /// Adds to the beginnings of `first` to `last` ranks; to none if `last` is less.
    fn add(&mut self, first: usize, last: usize, value: f64) {
        if first <= last {
            self.0[first] += value;
            self.0[last + 1] -= value;
        }
    }

    fn sums(mut self) -> Vec<f64> {
        let mut sum = 0.0;
        self.0.iter_mut().for_each(|value| {
            sum += *value;
            *value = sum;
        });
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{Scope, bounds};
    use crate::problem::by_hand::random_machine;
    use schedule::{Demand, Request};
    use std::sync::Arc;
    use topology::{Topology, resolve};

    fn all_to_all(topology: Topology) -> Problem {
        let ranks = topology.rank_count();
        let request = Request::new(Collective::AllToAll, ranks, (ranks * 1_000_000) as u64);
        Problem::new(Arc::new(topology), Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn grids_and_tori_are_cut_in_two_halves() {
        // The links across the middle, of 50 bytes per ns each.
        for (spec, ranks, across) in [
            ("mesh2d:4x8", 32.0, 4.0),
            ("mesh2d:8x8", 64.0, 8.0),
            ("torus2d:4x8", 32.0, 8.0),
            ("torus2d:8x8", 64.0, 16.0),
            ("mesh3d:4x4x4", 64.0, 16.0),
            ("line:6", 6.0, 1.0),
        ] {
            let problem = all_to_all(resolve(&format!("{spec},bandwidth=50GBps,alpha=0us")).expect("a family"));
            let half = ranks / 2.0;
            let expected = half * half * 1e6 / (across * 50_000.0);
            let bounds = bounds(&problem, &Deadline::default());
            let cut = bounds.list.iter().find(|bound| bound.name == "cut" && bound.scope == Scope::AnyChunking);
            let found = cut.expect("a cut").value.0;
            assert!((found / expected - 1.0).abs() < 1e-9, "{spec}: {found}, not {expected}");
        }
    }

    /// One pass over an order says the same about each of its beginnings as the definition of a cut.
    #[test]
    fn passes_measure_what_cuts_are() {
        let mut measured = 0;
        for seed in 0..20 {
            let topology = Arc::new(random_machine(seed));
            let ranks = topology.rank_count();
            for collective in [Collective::AllGather, Collective::AllReduce, Collective::Gather, Collective::AllToAll] {
                let demand = Demand::new(Request::new(collective, ranks, 5_000)).expect("a valid request");
                let problem = Problem::new(topology.clone(), Arc::new(demand));
                let sweep = Sweep { is_uniform: false, ..Sweep::new(&problem) };
                let order: Vec<usize> = (0..ranks).map(|at| (at * 2 + 1) % ranks).collect();
                if ranks.is_multiple_of(2) {
                    continue;
                }
                let mut place = vec![0; ranks];
                order.iter().enumerate().for_each(|(at, &rank)| place[rank] = at);
                let bytes = sweep.crossing(&place);
                for cut in 1..ranks {
                    for (side, bytes) in bytes.iter().enumerate() {
                        let inside = |rank: &Rank| (place[rank.index()] < cut) == (side == 0);
                        let leaves = |chunk: &schedule::Chunk| {
                            let starts = match chunk.combine {
                                true => chunk.holders.iter().any(inside),
                                false => chunk.holders.iter().all(inside),
                            };
                            starts && chunk.wanted_by.iter().any(|rank| !inside(rank))
                        };
                        let all = problem.demand.chunk_ids().zip(problem.demand.chunks());
                        let expected: f64 =
                            all.filter(|(_, it)| leaves(it)).map(|(id, _)| problem.demand.bytes_of(id).0).sum();
                        assert!(
                            (bytes[cut] - expected).abs() < 1e-6,
                            "{collective} {seed} {cut}: {} {expected}",
                            bytes[cut]
                        );
                        measured += 1;
                    }
                }
            }
        }
        assert!(measured > 100);
    }
}
