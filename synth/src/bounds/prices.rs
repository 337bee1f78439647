//! The bound by prices: chunks that travel far use many links.
//!
//! The principal type is [`Prices`]. Every link and every resource has a price for its time; the sum of all prices is 1.
//! On every link of its way, a byte pays the price of the time that it takes there. No byte pays less than on its
//! cheapest way, and the payments of all bytes together are at most T − α. Any prices give a bound. The best prices are
//! the duals of the maximum concurrent flow. Their value is computed by shortest paths, so a solver's rounding can make
//! the bound weaker but never wrong.
//!
//! Where the linear program is too large, the search starts from equal prices, which are the best for AllToAll on
//! uniform topologies. Elsewhere, links and resources in demand raise their prices, round by round, which comes within
//! a few per cent of the best [1].
//!
//! [1] Garg and Könemann, "Faster and Simpler Algorithms for Multicommodity Flow and Other Fractional Packing
//! Problems", SIAM J. Comput. 37 (2007).

use super::{Bound, Certificate, Scope};
use crate::bounds::multicommodity::{ConcurrentFlow, concurrent_flow};
use crate::problem::distance::PathTree;
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, RankSet};
use topology::{Bytes, LinkId, Micros, Rank, ResourceId, Topology};

/// The most shortest-path trees; the chunks of other sources count as free, which keeps the bound valid.
const SOURCES: usize = 1024;
/// The most work of all trees together, in links visited. First, where every chunk has one destination: about a second,
/// because the bound often binds. Second, where copies make the bound weak: little.
const WORK: [usize; 2] = [40_000_000, 4_000_000];

/// Rounds of the price search. With fewer than the least number of rounds, the result is no better than the start.
const LEAST_ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 100;
/// The initial price of a link behind a port, relative to the port's.
const BEGINNING: f64 = 0.05;
/// By how much the busiest link or resource raises its price in the first round, as an exponent.
const EAGERNESS: f64 = 1.0;

/// The bound that can be proven by `deadline`; `None` where values are reduced on the way or nothing has to move.
pub(super) fn flow(problem: &Problem, deadline: &Deadline) -> Option<Bound> {
    if problem.demand.chunks().iter().any(|chunk| chunk.combine) {
        return None;
    }
    let prices = match concurrent_flow(problem, deadline) {
        Some(ConcurrentFlow { link_prices, resource_prices, .. }) => {
            Prices { links: link_prices, resources: resource_prices }
        }
        // The price search takes half of the time, so that time is left to evaluate its result.
        None => prices_in_rounds(problem, Prices::equal(problem), &deadline.part(2)),
    };
    prices.normalised()?.bound(problem, deadline)
}

/// The price of a unit of time on each link and on each resource.
#[derive(Clone, Debug)]
struct Prices {
    links: Vec<f64>,
    resources: Vec<f64>,
}

impl Prices {
    /// Equal prices for every resource, and for every usable link without resources.
    fn equal(problem: &Problem) -> Self {
        let topology = &problem.topology;
        let sells = |id: LinkId| problem.allows_link(id) && topology.link(id).resources.is_empty();
        Self {
            links: topology.link_ids().map(|id| f64::from(sells(id))).collect(),
            resources: vec![1.0; topology.resources().len()],
        }
    }

    /// The prices scaled to add up to 1; `None` where all are zero.
    fn normalised(mut self) -> Option<Self> {
        let sum: f64 = self.links.iter().chain(&self.resources).sum();
        self.links.iter_mut().chain(&mut self.resources).for_each(|price| *price /= sum);
        (sum.is_finite() && sum > 0.0).then_some(self)
    }

    /// The price of a byte on a link and its resources, in µs.
    fn per_byte(&self, topology: &Topology, id: LinkId) -> f64 {
        let link = topology.link(id);
        let shared = |&id: &ResourceId| topology.resource(id).beta.0 * self.resources[id.index()];
        link.beta.0 * self.links[id.index()] + link.resources.iter().map(shared).sum::<f64>()
    }

    /// The bound that these prices prove; `None` where no byte pays anything.
    fn bound(self, problem: &Problem, deadline: &Deadline) -> Option<Bound> {
        let topology = &problem.topology;
        let per_byte: Vec<f64> = topology.link_ids().map(|id| self.per_byte(topology, id)).collect();
        let paid = paid(problem, &per_byte, deadline);
        if paid == 0.0 {
            return None;
        }
        // Everything that is paid is paid on a link with a price, and not before the least α of those links has passed.
        let sold = topology.link_ids().filter(|&id| problem.allows_link(id) && per_byte[id.index()] > 0.0);
        let alpha = sold.map(|id| topology.link(id).alpha.0).fold(f64::INFINITY, f64::min);
        let Self { links, resources } = self;
        // Sums of thousands of terms have rounding errors; 10⁻¹² less keeps the value a bound.
        let value = Micros(alpha + paid * (1.0 - 1e-12));
        let certificate = Certificate::Prices { links, resources };
        Some(Bound { name: "flow", scope: Scope::AnyChunking, value, certificate })
    }
}

/// Prices found in rounds: all chunks take their cheapest ways, then links and resources raise their prices in
/// proportion to the time that is bought of them. The best prices of all rounds are kept. Where chunks are copied, the
/// cheapest ways are no measure of the load, and the start is returned.
fn prices_in_rounds(problem: &Problem, start: Prices, deadline: &Deadline) -> Prices {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    if demand.chunks().iter().any(|chunk| chunk.wanted_by.len() != 1) {
        return start;
    }
    let sources = demand.chunks().chunk_by(|a, b| a.holders == b.holders).count();
    let rounds = (WORK[0] / (sources * (topology.links().len() + topology.rank_count())).max(1)).min(MOST_ROUNDS);
    if rounds < LEAST_ROUNDS {
        return start;
    }
    let Some(start) = start.clone().normalised() else { return start };
    let Some(PricedLoads { paid, .. }) = PricedLoads::new(problem, &start, deadline) else { return start };
    let mut best = (paid, start.clone());
    // Links behind ports get a small price to begin with, because a price of zero would never rise.
    let least = BEGINNING * start.links.iter().chain(&start.resources).copied().fold(0.0, f64::max);
    let mut prices = start;
    let usable = topology.link_ids().filter(|&id| problem.allows_link(id));
    usable.for_each(|id| prices.links[id.index()] = prices.links[id.index()].max(least));
    let Some(mut prices) = prices.normalised() else { return best.1 };
    for round in 1..=rounds {
        let Some(PricedLoads { links, resources, paid }) = PricedLoads::new(problem, &prices, deadline) else { break };
        if paid > best.0 {
            best = (paid, prices.clone());
        }
        let most = links.iter().chain(&resources).copied().fold(f64::MIN_POSITIVE, f64::max);
        let step = EAGERNESS / (round as f64).sqrt();
        let raise = |price: &mut f64, bought: &f64| *price *= (step * bought / most).exp();
        prices.links.iter_mut().zip(&links).for_each(|(price, bought)| raise(price, bought));
        prices.resources.iter_mut().zip(&resources).for_each(|(price, bought)| raise(price, bought));
        let Some(next) = prices.normalised() else { break };
        prices = next;
    }
    best.1
}

/// How much time of every link and resource is paid for if all chunks take their cheapest ways.
struct PricedLoads {
    links: Vec<f64>,
    resources: Vec<f64>,
    /// The sum of all payments.
    paid: f64,
}

impl PricedLoads {
    /// Takes the cheapest ways; `None` if the deadline passes meanwhile.
    fn new(problem: &Problem, prices: &Prices, deadline: &Deadline) -> Option<Self> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let per_byte: Vec<f64> = topology.link_ids().map(|id| prices.per_byte(topology, id)).collect();
        let mut bytes_on = vec![0.0; topology.links().len()];
        let mut paid = 0.0;
        let mut first = 0;
        for run in demand.chunks().chunk_by(|a, b| a.holders == b.holders) {
            if deadline.has_passed() {
                return None;
            }
            let ids = (first..).map(ChunkId).take(run.len());
            let length = |link: LinkId| problem.allows(ChunkId(first), link).then(|| per_byte[link.index()]);
            let tree = PathTree::new(topology, run[0].holders.iter().copied(), length);
            let mut through = vec![0.0; topology.rank_count()];
            for (chunk, id) in run.iter().zip(ids) {
                let to = chunk.wanted_by[0].index();
                if tree.distance[to].is_finite() {
                    through[to] += demand.bytes_of(id).0;
                    paid += demand.bytes_of(id).0 * tree.distance[to];
                }
            }
            // From the far end of the tree to its root.
            let mut order: Vec<Rank> = topology.ranks().filter(|rank| tree.last[rank.index()].is_some()).collect();
            order.sort_unstable_by(|a, b| tree.distance[b.index()].total_cmp(&tree.distance[a.index()]).then(a.cmp(b)));
            for rank in order {
                let Some(link) = tree.last[rank.index()] else { continue };
                bytes_on[link.index()] += through[rank.index()];
                through[topology.link(link).from.index()] += through[rank.index()];
            }
            first += run.len() as u32;
        }
        let mut resources = vec![0.0; topology.resources().len()];
        let mut links = vec![0.0; bytes_on.len()];
        for (id, bytes) in topology.link_ids().zip(bytes_on) {
            let (link, bytes) = (topology.link(id), Bytes(bytes));
            links[id.index()] = link.byte_time(bytes).0;
            for &resource in &link.resources {
                resources[resource.index()] += topology.resource(resource).byte_time(bytes).0;
            }
        }
        Some(Self { links, resources, paid })
    }
}

/// The least that all bytes pay; chunks that are not reached before `deadline` count as free.
fn paid(problem: &Problem, per_byte: &[f64], deadline: &Deadline) -> f64 {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let copied = demand.chunks().iter().any(|chunk| chunk.wanted_by.len() > 1);
    let affordable = (WORK[usize::from(copied)] / topology.links().len().max(1)).clamp(1, SOURCES);
    let mut paid = 0.0;
    let mut trees = 0;
    let mut previous: Option<(&RankSet, PathTree)> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let tree = match previous.take() {
            Some((holders, tree)) if *holders == chunk.holders => tree,
            _ if trees == affordable || deadline.has_passed() => break,
            _ => {
                trees += 1;
                let length = |link: LinkId| problem.allows(id, link).then(|| per_byte[link.index()]);
                PathTree::new(topology, chunk.holders.iter().copied(), length)
            }
        };
        paid += demand.bytes_of(id).0 * farthest(problem, id, &tree);
        previous = Some((&chunk.holders, tree));
    }
    paid
}

/// The least that a byte of a chunk pays: one copy goes all the way to its farthest destination.
fn farthest(problem: &Problem, chunk: ChunkId, tree: &PathTree) -> f64 {
    let wanted = problem.demand.chunk(chunk).wanted_by.iter().map(|rank| tree.distance[rank.index()]);
    wanted.filter(|distance| distance.is_finite()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::synthesize;
    use crate::problem::by_hand::random_machine;
    use crate::problem::{SearchOptions, StrategyKind};
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::resolve;

    fn all_to_all(topology: Topology, pair_bytes: u64) -> Problem {
        let ranks = topology.rank_count();
        let request = Request::new(Collective::AllToAll, ranks, ranks as u64 * pair_bytes);
        Problem::new(Arc::new(topology), Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// The bound that a certificate proves, computed independently: all pairs by Floyd and Warshall.
    fn proven(problem: &Problem, certificate: &Certificate) -> f64 {
        let topology = &problem.topology;
        let Certificate::Prices { links, resources } = certificate else { panic!("prices, not {certificate:?}") };
        assert!(links.iter().chain(resources).all(|&price| price >= 0.0));
        let sum = links.iter().chain(resources).sum::<f64>();
        assert!((sum - 1.0).abs() < 1e-12, "prices add up to {sum}");
        let ranks = topology.rank_count();
        let mut cost = vec![vec![f64::INFINITY; ranks]; ranks];
        let mut alpha = f64::INFINITY;
        for (link, price) in topology.links().iter().zip(links) {
            let shared = link.resources.iter().map(|id| resources[id.index()] * topology.resource(*id).beta.0);
            let pays = price * link.beta.0 + shared.sum::<f64>();
            if pays > 0.0 {
                alpha = alpha.min(link.alpha.0);
            }
            let direct = &mut cost[link.from.index()][link.to.index()];
            *direct = direct.min(pays);
        }
        for via in 0..ranks {
            for from in 0..ranks {
                for to in 0..ranks {
                    cost[from][to] = cost[from][to].min(cost[from][via] + cost[via][to]);
                }
            }
        }
        let demand = &problem.demand;
        let paid = demand.chunk_ids().map(|id| {
            let (from, to) = (demand.chunk(id).holders[0], demand.chunk(id).wanted_by[0]);
            demand.bytes_of(id).0 * cost[from.index()][to.index()]
        });
        alpha + paid.sum::<f64>()
    }

    #[test]
    fn certificates_prove_the_published_optima() {
        for (spec, pair_bytes, expected) in [
            ("ndv2x1", 1 << 17, 13.981_013_3 + 0.7),
            ("dgx1", 125_000_000, 13_333.333_3 + 0.7),
            ("ndv2x2", 62_500_000, 320_000.0 + 1.3),
            ("dgx2x1", 1_000_000, 120.0 + 0.7),
            ("mesh2d:4x4,alpha=1us,bandwidth=1GBps", 1_000, 16.0 + 1.0),
            ("torus2d:4x4,alpha=1us,bandwidth=1GBps", 1_000, 8.0 + 1.0),
            // Too large for the linear program, so that equal prices are used.
            ("torus2d:8x8,alpha=1us,bandwidth=1GBps", 1_000, 64.0 + 1.0),
        ] {
            let problem = all_to_all(resolve(spec).expect("a known topology"), pair_bytes);
            let bound = flow(&problem, &Deadline::default()).expect("something moves");
            assert!((bound.value.0 / expected - 1.0).abs() < 1e-8, "{spec}: {} µs, not {expected}", bound.value);
            assert!((bound.value.0 / proven(&problem, &bound.certificate) - 1.0).abs() < 1e-11, "{spec}");
        }
    }

    #[test]
    fn random_machines_with_shared_resources_keep_above_the_bound() {
        let options = SearchOptions { strategy: Some(StrategyKind::Matching), ..SearchOptions::default() };
        let mut decided = 0;
        for seed in 0..40 {
            let mut problem = all_to_all(random_machine(seed), 1_000);
            let bound = flow(&problem, &Deadline::default()).expect("something moves");
            assert!((bound.value.0 / proven(&problem, &bound.certificate) - 1.0).abs() < 1e-11, "machine {seed}");
            let equal =
                Prices::equal(&problem).normalised().and_then(|prices| prices.bound(&problem, &Deadline::default()));
            let equal = equal.expect("something is sold").value;
            decided += u32::from(equal < bound.value * 0.99);
            // The α of the two may differ; 1 µs is the largest.
            assert!(equal.0 <= bound.value.0 + 1.0, "machine {seed}: equal prices prove {equal}, not {}", bound.value);
            for chunks in [1, 3] {
                let request = problem.demand.request().clone().with_chunks(chunks);
                problem.demand = Arc::new(Demand::new(request).expect("a valid request"));
                let found = synthesize(std::slice::from_ref(&problem), &options, &|_| {}).expect("a schedule");
                let makespan = found.schedule.schedule().makespan();
                assert!(makespan.0 >= bound.value.0 * (1.0 - 1e-9), "machine {seed}: {makespan} < {}", bound.value);
            }
        }
        assert!(decided > 10, "the duals say more than equal prices on {decided} machines only");
    }

    #[test]
    fn prices_in_rounds_come_near_the_best_and_are_never_above() {
        for seed in 0..20 {
            let problem = all_to_all(random_machine(seed), 1_000);
            let of = |prices: Prices| {
                let prices = prices.normalised().expect("something is sold");
                prices.bound(&problem, &Deadline::default()).expect("something moves").value.0
            };
            let Some(flow) = concurrent_flow(&problem, &Deadline::default()) else { panic!("machine {seed} is small") };
            let best = of(Prices { links: flow.link_prices, resources: flow.resource_prices });
            let prices_in_rounds = of(prices_in_rounds(&problem, Prices::equal(&problem), &Deadline::default()));
            // The α of the two may differ; 1 µs is the largest.
            assert!(
                prices_in_rounds <= best + 1.0 && prices_in_rounds >= 0.95 * best - 1.0,
                "machine {seed}: {prices_in_rounds} of {best}"
            );
        }
    }

    #[test]
    fn the_same_prices_every_time() {
        let problem = all_to_all(resolve("ndv2x2").expect("a machine"), 1_000);
        assert_eq!(flow(&problem, &Deadline::default()), flow(&problem, &Deadline::default()));
    }
}
