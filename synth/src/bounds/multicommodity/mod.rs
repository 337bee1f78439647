//! Maximum concurrent flow: the least time in which links could carry a demand if data were a fluid.
//!
//! The principal type is [`ConcurrentFlow`]. Where every chunk has one destination nothing is copied, so a schedule is
//! a flow. The linear program has one commodity per set of holders instead of one per pair. The optimum is the same,
//! and the columns are fewer by a factor of the number of destinations [1]. Its flows are routes worth rounding
//! ([`crate::strategies::matching`]). Its duals are prices on links that prove a bound ([`crate::bounds::bounds`]).
//! Neither use relies on the solver's arithmetic: rounded routes are scheduled, and prices are evaluated by shortest
//! paths.
//!
//! [1] Basu et al., "Efficient All-to-All Collective Communication Schedules for Direct-Connect Topologies",
//! arXiv:2309.13541.

#[cfg(feature = "solver")]
mod linear_program;

use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, RankSet};
use std::collections::BTreeMap;

/// The most columns (commodities × links) of a program: solving it takes a few tenths of a second.
#[cfg(feature = "solver")]
const COLUMNS: usize = 6_000;

#[derive(Clone, Debug)]
pub(crate) struct Commodity {
    /// The chunks, ascending; all may use the same links.
    pub(crate) chunks: Vec<ChunkId>,
    /// For each rank, how many bytes must reach it.
    pub(crate) wanted: Vec<f64>,
    /// For each link, how many bytes it carries.
    pub(crate) flow: Vec<f64>,
}

/// An optimal solution of the linear program, within the solver's tolerances.
#[derive(Clone, Debug)]
pub(crate) struct ConcurrentFlow {
    /// The commodities, in the order of their holders.
    pub(crate) commodities: Vec<Commodity>,
    /// For each link, the price of a unit of its time.
    pub(crate) link_prices: Vec<f64>,
    /// For each resource, the price of a unit of its time.
    pub(crate) resource_prices: Vec<f64>,
}

/// The maximum concurrent flow of `problem`. `None` where a chunk has several destinations or is summed, where the
/// program would be too large, where nothing has to move or moving takes no time, and where the solver fails or the
/// time is up.
#[cfg(feature = "solver")]
pub(crate) fn concurrent_flow(problem: &Problem, deadline: &Deadline) -> Option<ConcurrentFlow> {
    linear_program::solve(problem, commodities(problem)?, deadline)
}

/// Without a solver there are no flows.
#[cfg(not(feature = "solver"))]
pub(crate) fn concurrent_flow(_problem: &Problem, _deadline: &Deadline) -> Option<ConcurrentFlow> {
    None
}

/// The chunks of `problem` by holders, their flows still zero.
#[cfg(feature = "solver")]
fn commodities(problem: &Problem) -> Option<Vec<Commodity>> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let (ranks, links) = (topology.rank_count(), topology.links().len());
    let mut by_holders: BTreeMap<&RankSet, Commodity> = BTreeMap::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let mut lacking = chunk.lacking();
        let Some(destination) = lacking.next() else { continue };
        if chunk.combine || lacking.next().is_some() {
            return None;
        }
        let empty = || Commodity { chunks: Vec::new(), wanted: vec![0.0; ranks], flow: vec![0.0; links] };
        let commodity = by_holders.entry(&chunk.holders).or_insert_with(empty);
        commodity.chunks.push(id);
        commodity.wanted[destination.index()] += demand.bytes_of(id).0;
        if by_holders.len() * links > COLUMNS {
            return None;
        }
    }
    Some(by_holders.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::{LinkId, Rank, Topology, resolve};

    fn all_to_all(spec: &str, pair_bytes: u64) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let ranks = topology.rank_count();
        let request = Request::new(Collective::AllToAll, ranks, ranks as u64 * pair_bytes);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// How long the busiest link or resource is busy.
    fn busiest(topology: &Topology, flow: &ConcurrentFlow) -> f64 {
        let carried = |link: LinkId| flow.commodities.iter().map(|one| one.flow[link.index()]).sum::<f64>();
        let of_link = topology.link_ids().map(|id| topology.link(id).beta.0 * carried(id));
        let of_resource = topology.resources().iter().enumerate().map(|(index, resource)| {
            let users = topology.users(topology::ResourceId::from_index(index));
            resource.beta.0 * users.iter().map(|&link| carried(link)).sum::<f64>()
        });
        of_link.chain(of_resource).fold(0.0, f64::max)
    }

    /// Published optima for one megabyte between every pair of ranks, in µs.
    #[test]
    fn published_optima() {
        for (spec, optimum) in [
            ("dgx1", 106.666_666_7),
            ("ndv2x1", 106.666_666_7),
            ("ndv2x2", 5_120.0),
            ("ndv2x4", 15_360.0),
            ("mesh2d:4x4,alpha=0.5us,bandwidth=1GBps", 16_000.0),
            ("torus2d:4x4,alpha=0.5us,bandwidth=1GBps", 8_000.0),
            ("torus2d:6x6,alpha=0.5us,bandwidth=1GBps", 27_000.0),
        ] {
            let problem = all_to_all(spec, 1_000_000);
            let flow = concurrent_flow(&problem, &Deadline::default()).expect("a program of this size is solved");
            let found = busiest(&problem.topology, &flow);
            assert!((found / optimum - 1.0).abs() < 1e-7, "{spec}: {found} µs, not {optimum}");
        }
    }

    #[test]
    fn flows_bring_everybody_what_is_wanted() {
        let problem = all_to_all("ndv2x2", 1_000);
        let topology = &problem.topology;
        let flow = concurrent_flow(&problem, &Deadline::default()).expect("a program of this size is solved");
        assert_eq!(flow.commodities.len(), 16);
        for (source, commodity) in topology.ranks().zip(&flow.commodities) {
            let over = |links: &[LinkId]| links.iter().map(|link| commodity.flow[link.index()]).sum::<f64>();
            for rank in topology.ranks().filter(|&rank| rank != source) {
                let stays = over(topology.incoming(rank)) - over(topology.outgoing(rank));
                assert!((stays - 1_000.0).abs() < 1e-4, "{stays} bytes from {source} stay at {rank}");
            }
        }
    }

    #[test]
    fn forbidden_links_carry_nothing() {
        let mut problem = all_to_all("clique:4", 1_000);
        let topology = problem.topology.clone();
        let forbidden = topology.links().iter().map(|link| (link.to == Rank(1)).then_some(7)).collect();
        let mut constraints = crate::problem::Constraints { forbidden, ..crate::problem::Constraints::none() };
        problem.constraints = Arc::new(constraints.clone());
        assert!(concurrent_flow(&problem, &Deadline::default()).is_none(), "nothing reaches rank 1");
        let only = topology.links().iter().position(|link| (link.from, link.to) == (Rank(0), Rank(1)));
        let only = only.expect("a link for every pair");
        constraints.forbidden[only] = None;
        problem.constraints = Arc::new(constraints);
        let flow = concurrent_flow(&problem, &Deadline::default()).expect("all now goes over the one link");
        let carried: f64 = flow.commodities.iter().map(|commodity| commodity.flow[only]).sum();
        assert!((carried - 3_000.0).abs() < 1e-6, "{carried} bytes");
        let other = topology.link_ids().find(|&id| topology.link(id).to == Rank(1) && id.index() != only);
        let other = other.expect("a link for every pair").index();
        assert!(flow.commodities.iter().all(|commodity| commodity.flow[other] == 0.0));
    }

    #[test]
    fn copies_sums_and_large_programs_are_not_flows() {
        let of = |spec: &str, collective| {
            let topology = Arc::new(resolve(spec).expect("a known topology"));
            let request = Request::new(collective, topology.rank_count(), 1 << 20);
            let demand = Demand::new(request).expect("a valid request");
            concurrent_flow(&Problem::new(topology, Arc::new(demand)), &Deadline::default())
        };
        for collective in [Collective::AllGather, Collective::Broadcast, Collective::ReduceScatter] {
            assert!(of("ring:4", collective).is_none(), "{collective}");
        }
        for collective in [Collective::Gather, Collective::Scatter, Collective::SendRecv, Collective::AllToAll] {
            assert!(of("ring:4", collective).is_some(), "{collective}");
        }
        assert!(of("torus2d:16x16", Collective::AllToAll).is_none());
    }
}
