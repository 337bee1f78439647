//! The table of textbook algorithms: which there are for a collective, and in which order they are tried.
//!
//! The principal function is [`in_order`].

use super::{Inapplicable, RoundHop, exchange, nested, ring, tree};
use crate::problem::Problem;
use schedule::Collective;

/// How many messages follow each other, as the number of ranks grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum RoundGrowth {
    One,
    Logarithmic,
    Linear,
}

/// An algorithm: its name in reports, and its hops.
pub(super) struct TextbookAlgorithm {
    pub(super) name: &'static str,
    rounds: RoundGrowth,
    pub(super) hops: fn(&Problem) -> Result<Vec<RoundHop>, Inapplicable>,
    /// Whether it searches for paths, from each rank that has something over all links.
    pub(super) is_search: bool,
}

/// Shortest paths.
const TREE: TextbookAlgorithm =
    TextbookAlgorithm { is_search: true, ..algorithm("classic/tree", RoundGrowth::Logarithmic, tree::shortest_paths) };

const fn algorithm(
    name: &'static str,
    rounds: RoundGrowth,
    hops: fn(&Problem) -> Result<Vec<RoundHop>, Inapplicable>,
) -> TextbookAlgorithm {
    TextbookAlgorithm { name, rounds, hops, is_search: false }
}

/// The algorithms of each collective. Reducing collectives never get here.
fn algorithms(collective: Collective) -> Vec<TextbookAlgorithm> {
    use RoundGrowth::{Linear, Logarithmic, One};
    match collective {
        Collective::AllGather => vec![
            algorithm("classic/ring", Linear, ring::all_gather),
            algorithm("classic/two-way-ring", Linear, ring::all_gather_two_way),
            algorithm("classic/nested", Logarithmic, nested::all_gather),
            algorithm("classic/recursive-doubling", Logarithmic, exchange::recursive_doubling),
            algorithm("classic/bruck", Logarithmic, exchange::bruck),
            algorithm("classic/all-pairs", One, exchange::all_pairs),
            TREE,
        ],
        Collective::Broadcast => vec![
            algorithm("classic/chain", Linear, ring::chain),
            algorithm("classic/binomial", Logarithmic, tree::binomial_broadcast),
            TREE,
        ],
        Collective::Scatter => vec![
            algorithm("classic/binomial", Logarithmic, tree::binomial_scatter),
            algorithm("classic/all-pairs", One, exchange::all_pairs),
            TREE,
        ],
        Collective::Gather => vec![
            algorithm("classic/binomial", Logarithmic, tree::binomial_gather),
            algorithm("classic/all-pairs", One, exchange::all_pairs),
            TREE,
        ],
        Collective::AllToAll => vec![
            algorithm("classic/all-pairs", One, exchange::all_pairs),
            algorithm("classic/ring", Linear, ring::all_to_all),
            algorithm("classic/nested", Logarithmic, nested::all_to_all),
            TREE,
        ],
        Collective::AllToAllV
        | Collective::SendRecv
        | Collective::Custom
        | Collective::ReduceScatter
        | Collective::AllReduce
        | Collective::Reduce => vec![algorithm("classic/all-pairs", One, exchange::all_pairs), TREE],
    }
}

/// The algorithms for a problem. There may be time for the first one only, if it has many hops.
pub(super) fn in_order(problem: &Problem, has_many_hops: bool) -> Vec<TextbookAlgorithm> {
    let mut algorithms = algorithms(problem.demand.request().collective);
    if has_many_hops && (latency_rules(problem) || is_direct(problem)) || is_shallow_faster(problem) {
        algorithms.sort_by_key(|algorithm| algorithm.rounds);
    } else if has_many_hops && !problem.demand.request().collective.is_rooted() {
        // Plans of few messages are made and verified sooner, and searches take longest.
        algorithms.sort_by_key(|algorithm| (algorithm.is_search, algorithm.rounds != RoundGrowth::Logarithmic));
    }
    algorithms
}

/// Whether every rank has a link of its own to every other one. Then nothing is gained by passing chunks on.
fn is_direct(problem: &Problem) -> bool {
    let (topology, ranks) = (&problem.topology, problem.topology.rank_count());
    let is_complete = |rank| topology.outgoing(rank).len() + 1 == ranks;
    topology.resources().is_empty()
        && topology.links().len() == ranks * (ranks - 1)
        && topology.ranks().all(is_complete)
}

/// Whether so few chunks go from one rank to so many that a chain is never full, and a tree is several times as fast.
fn is_shallow_faster(problem: &Problem) -> bool {
    let request = problem.demand.request();
    let (ranks, chunks) = (request.members.len(), u64::from(request.chunks_per_rank));
    let rounds = u64::from(ranks.max(1).ilog2() + 1);
    request.collective == Collective::Broadcast && 4 * rounds * chunks < ranks as u64
}

/// Whether a message to one rank after the other takes longer, on the links with the least α, than all bytes of the request take
/// on the slowest link.
pub(super) fn latency_rules(problem: &Problem) -> bool {
    let links = problem.topology.links();
    let alpha = links.iter().map(|link| link.alpha.0).fold(f64::INFINITY, f64::min);
    let beta = links.iter().map(|link| link.beta.0).fold(0.0, f64::max);
    let request = problem.demand.request();
    alpha * request.members.len() as f64 > beta * request.size_bytes as f64
}
