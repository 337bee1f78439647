//! Which chunk counts are worth trying when the user does not fix one.
//!
//! More chunks pipeline better but pay α more often. The list ends where a chunk's time on the slowest link falls below
//! the smallest α, because finer cuts then only add latency. It also ends where the problem gets too large to find the
//! gain within seconds.

use super::Problem;
use schedule::{Collective, Request};
use topology::{Latency, LinkId, Topology};

/// The chunk counts tried: powers of two, and three times those, which suit machines with six links per rank. The
/// planner stops among them when finer cuts no longer gain.
const COUNTS: &[u32] = &[2, 3, 4, 6, 8, 12, 16, 32];
/// The same where one rank holds or receives all data. There only chunks that follow each other hide the hops, and few
/// chunks make few messages. A pipeline of d hops and C chunks takes (d − 1 + C)(α + Sβ/C), which is least at C² = (d −
/// 1)Sβ/α. Counts are left out that are less than 1/[`COARSE`] of that C for d = 2 over the fastest link.
const FOLLOWING: &[u32] = &[4, 16, 32, 64, 128, 256];
const COARSE: f64 = 8.0;
/// The same where α is pure delay. Counts up to [`FREE`] then cost nothing, however small the chunks are. More are not
/// free: an executor runs about one threadblock for each chunk on a connection, and has some dozens.
const PIPELINED: &[u32] = &[4, 16, 32];
const FREE: u32 = 16;
/// Chunks × links above which only one chunk per rank is tried. First: where chunks are copied. Second: where each
/// chunk follows one route. Third: where that route is one link through shared switches, so that no route is searched.
const LARGE: [u64; 3] = [400_000, 4_000_000, 600_000_000];

/// The same for sums that all ranks want, where ranks have unequal capacities: there trees that carry sums up and results
/// down gain most, and they need fine cuts. And the most messages of such a plan.
const LARGE_FOR_TREES: u64 = 4_000_000;
const MOST_OF_TREES: u64 = 1 << 20;

/// Whether a problem is small enough for strategies that try all chunk counts. Others are for
/// [`promising`](crate::strategies::Strategy::promising_count) counts.
pub(crate) fn is_for_all_strategies(problem: &Problem) -> bool {
    let request = problem.demand.request();
    let is_plain = request.collective == Collective::AllToAll || request.chunks_per_rank == 1;
    is_plain || chunk_links(&problem.topology, request) <= LARGE[0]
}

/// Chunks × links.
fn chunk_links(topology: &Topology, request: &Request) -> u64 {
    request.chunk_count().saturating_mul(topology.links().len() as u64)
}

/// Whether some ranks have more capacity than others.
fn has_unequal_ranks(topology: &Topology) -> bool {
    let rate = |links: &[LinkId]| links.iter().map(|&id| 1.0 / topology.link(id).beta.0).sum::<f64>();
    let mut rates = topology.ranks().map(|rank| rate(topology.outgoing(rank)) + rate(topology.incoming(rank)));
    let first = rates.next().unwrap_or(0.0);
    rates.any(|rate| (rate - first).abs() > UNEQUAL * first)
}

/// Capacities that differ by less (relative) are equal.
const UNEQUAL: f64 = 0.01;

/// Chunk counts to try for `request` on `topology`, ascending; never empty.
pub fn chunk_counts(topology: &Topology, request: &Request) -> Vec<u32> {
    // Chunks that the demand lists (pair by pair, or one by one) are not cut.
    if request.collective.is_listed() {
        return vec![1];
    }
    let slowest = topology.links().iter().map(|link| link.beta.0).fold(0.0, f64::max);
    let alpha = topology.links().iter().map(|link| link.alpha.0).fold(f64::INFINITY, f64::min);
    let is_delay = topology.links().iter().all(|link| link.latency == Latency::Pipelines);
    let ranks = topology.rank_count();
    let links = topology.links();
    // A link for every pair, and some of the links use more switches than others.
    let is_direct =
        links.len() >= ranks * (ranks - 1) && links.iter().any(|link| link.resources.len() != links[0].resources.len());
    let for_trees = request.collective == Collective::AllReduce && has_unequal_ranks(topology);
    let large = match request.collective {
        Collective::AllToAll if is_direct => LARGE[2],
        Collective::AllToAll => LARGE[1],
        Collective::AllReduce if for_trees => LARGE_FOR_TREES,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAllV => LARGE[0],
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => LARGE[0],
        Collective::SendRecv | Collective::Custom => LARGE[0],
    };
    let worthwhile = |&count: &u32| {
        let request = request.clone().with_chunks(count);
        let bytes = request.chunk_bytes().0;
        let chunk_links = chunk_links(topology, &request);
        let is_free = is_delay && count <= FREE;
        let messages = 2 * request.chunk_count().saturating_mul(ranks as u64);
        let is_small = chunk_links <= LARGE[0] || messages <= MOST_OF_TREES;
        bytes >= 1.0 && (is_free || slowest * bytes >= alpha) && chunk_links <= large && (!for_trees || is_small)
    };
    let fastest = links.iter().map(|link| link.beta.0).fold(f64::INFINITY, f64::min);
    let cut = (if is_delay { PIPELINED } else { COUNTS }, 0.0);
    let (counts, least) = match request.collective {
        Collective::Broadcast | Collective::Reduce => {
            (FOLLOWING, (request.size_bytes as f64 * fastest / alpha).sqrt() / COARSE)
        }
        Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => cut,
        Collective::AllToAllV | Collective::Gather | Collective::Scatter => cut,
        Collective::SendRecv | Collective::Custom => cut,
    };
    let counts: Vec<u32> = std::iter::once(1).chain(counts.iter().copied().take_while(worthwhile)).collect();
    let coarse = counts.iter().take_while(|&&count| f64::from(count) < least).count();
    counts[coarse.min(counts.len() - 1)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Rank;

    #[test]
    fn small_messages_are_not_cut_and_large_ones_are() {
        let topology = topology::resolve("ring:4,alpha=1us,bandwidth=1GBps").unwrap();
        for (size, expected) in
            [(0, vec![1]), (400, vec![1]), (16_000, vec![1, 2, 3, 4]), (1 << 30, vec![1, 2, 3, 4, 6, 8, 12, 16, 32])]
        {
            let request = Request::new(Collective::AllGather, 4, size);
            assert_eq!(chunk_counts(&topology, &request), expected, "{size} bytes");
        }
        let pipelined = topology::resolve("ring:4,alpha=1us,bandwidth=1GBps,latency=pipelines").unwrap();
        let request = Request::new(Collective::AllGather, 4, 400);
        assert_eq!(chunk_counts(&pipelined, &request), [1, 4, 16]);
    }

    #[test]
    fn what_all_get_from_one_is_cut_finely() {
        let topology = topology::resolve("ring:4,alpha=1us,bandwidth=1GBps").unwrap();
        let request = |size| Request { root: Some(Rank(0)), ..Request::new(Collective::Broadcast, 4, size) };
        assert_eq!(chunk_counts(&topology, &request(1000)), [1]);
        assert_eq!(chunk_counts(&topology, &request(40_000)), [1, 4, 16, 32]);
        assert_eq!(chunk_counts(&topology, &request(1_000_000)), [4, 16, 32, 64, 128, 256]);
        assert_eq!(chunk_counts(&topology, &request(1 << 30)), [256]);
    }

    #[test]
    fn sums_are_cut_finely_where_ranks_differ() {
        for (spec, counts) in
            [("mesh2d:16x16", &[1, 2, 3, 4, 6, 8][..]), ("torus2d:16x16", &[1]), ("mesh2d:40x40", &[1])]
        {
            let topology = topology::resolve(spec).unwrap();
            let request = Request::new(Collective::AllReduce, topology.rank_count(), 1 << 30);
            assert_eq!(chunk_counts(&topology, &request), counts, "{spec}");
            let whole = |count: u32| {
                let demand = schedule::Demand::new(request.clone().with_chunks(count)).unwrap();
                is_for_all_strategies(&Problem::new(std::sync::Arc::new(topology.clone()), std::sync::Arc::new(demand)))
            };
            let for_all: Vec<u32> = counts.iter().copied().filter(|&count| whole(count)).collect();
            assert_eq!(for_all, [1], "{spec}");
        }
    }

    #[test]
    fn where_chunks_are_listed_or_many_there_is_one_count() {
        for (spec, collective) in [
            ("ring:4", Collective::AllToAllV),
            ("ring:4", Collective::Custom),
            // This demand has a million chunks.
            ("torus2d:32x32", Collective::AllToAll),
        ] {
            let topology = topology::resolve(spec).unwrap();
            let request = Request::new(collective, topology.rank_count(), 1 << 40);
            assert_eq!(chunk_counts(&topology, &request), [1], "{spec} {collective}");
        }
    }
}
