//! How large a plain schedule will be, before it is planned: how often chunks pass links, and what that costs.
//!
//! The principal functions are [`passages`] and [`verification_time`].

use super::Problem;
use schedule::{Chunk, Collective};
use std::time::Duration;
use topology::{Rank, Topology};

/// What planning, verifying and writing a plain schedule take each time that a chunk passes a link, on two cores: measured
/// 0.7 µs for 17 million passages, 1.5 µs for 51 million, 3.5 µs for 2 million where several links share ports.
const SECONDS_FOR_EACH: f64 = 2.5e-6;
/// The ranks from which distances are measured.
const SOURCES: usize = 8;
/// The listed chunks whose ways are measured.
const SAMPLED_CHUNKS: usize = 64;

/// About how long it takes to plan and to verify a plain schedule in which chunks pass links so often.
pub fn verification_time(passages: f64) -> Duration {
    Duration::try_from_secs_f64(passages * SECONDS_FOR_EACH).unwrap_or(Duration::MAX)
}

/// How many values have to arrive somewhere.
pub(crate) fn deliveries(problem: &Problem) -> u64 {
    let arriving = |chunk: &Chunk| {
        let summed = if chunk.combine { chunk.holders.len() } else { 0 };
        (chunk.wanted_by.len() + summed) as u64
    };
    problem.demand.chunks().iter().map(arriving).sum()
}

/// About how often chunks pass links on shortest ways. A chunk that many want is relayed by ranks that want it, so each
/// value passes one link; a chunk that one rank wants passes all links of its way.
pub fn passages(problem: &Problem) -> f64 {
    match problem.demand.is_unicast() && !problem.demand.has_sums() {
        // Chunks that somebody has listed may stay near.
        true if problem.demand.request().collective == Collective::Custom => {
            problem.demand.chunks().len() as f64 * mean_way(problem)
        }
        true => problem.demand.chunks().len() as f64 * mean_distance(&problem.topology),
        false => deliveries(problem) as f64,
    }
}

/// How many links a chunk passes that one rank wants, on average over some chunks.
fn mean_way(problem: &Problem) -> f64 {
    let chunks = problem.demand.chunks();
    let (mut hops, mut ways) = (0.0, 0.0);
    for chunk in chunks.iter().step_by(chunks.len().div_ceil(SAMPLED_CHUNKS).max(1)) {
        let from = hops_from(&problem.topology, chunk.holders[0].index());
        if let Some(&Some(hop)) = chunk.wanted_by.first().and_then(|rank| from.get(rank.index())) {
            (hops, ways) = (hops + f64::from(hop), ways + 1.0);
        }
    }
    hops / f64::max(ways, 1.0)
}

/// How many links it takes from one rank to another one, on average over all that are reached from some ranks.
fn mean_distance(topology: &Topology) -> f64 {
    let ranks = topology.rank_count();
    let sources = (0..ranks).step_by(ranks.div_ceil(SOURCES).max(1));
    let (mut hops, mut ways) = (0.0, 0.0);
    for source in sources {
        for hop in hops_from(topology, source).into_iter().flatten().filter(|&hop| hop > 0) {
            (hops, ways) = (hops + f64::from(hop), ways + 1.0);
        }
    }
    hops / f64::max(ways, 1.0)
}

/// How many links it takes to each rank; `None` for ranks that are not reached.
fn hops_from(topology: &Topology, source: usize) -> Vec<Option<u32>> {
    let mut hops = vec![None; topology.rank_count()];
    hops[source] = Some(0);
    let mut reached = vec![Rank::from_index(source)];
    let mut next = 0;
    while let Some(&rank) = reached.get(next) {
        next += 1;
        for &link in topology.outgoing(rank) {
            let to = topology.link(link).to;
            if hops[to.index()].is_none() {
                hops[to.index()] = hops[rank.index()].map(|hops| hops + 1);
                reached.push(to);
            }
        }
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;

    #[test]
    fn passages_are_the_links_of_shortest_ways() {
        for (spec, collective, expected) in [
            // Ways of 1 to 4 links each way around: 16 links for the seven others.
            ("ring:8,direction=both", Collective::AllToAll, 8.0 * 16.0),
            ("clique:5", Collective::AllToAll, 20.0),
            ("ring:8", Collective::AllGather, 8.0 * 8.0),
            ("ring:8", Collective::AllReduce, 8.0 * 16.0),
        ] {
            let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
            let request = Request::new(collective, topology.rank_count(), 1 << 20);
            let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
            assert!((passages(&problem) - expected).abs() < 1e-9, "{spec} {collective}: {}", passages(&problem));
        }
    }

    #[test]
    fn listed_chunks_that_stay_near_pass_few_links() {
        let topology = Arc::new(topology::resolve("line:64").expect("a known topology"));
        let neighbours = |first: u32| {
            let all = Request::new(Collective::AllToAll, 64, 1 << 10);
            Request { members: [Rank(first), Rank(first + 1)].into_iter().collect(), ..all }
        };
        let groups: Vec<_> = (0..32).map(|pair| neighbours(2 * pair).into()).collect();
        let problem = Problem::new(topology, Arc::new(Demand::joint(&groups).expect("a valid request")));
        assert!((passages(&problem) - 64.0).abs() < 1e-9, "{}", passages(&problem));
    }
}
