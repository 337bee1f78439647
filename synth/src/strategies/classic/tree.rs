//! Trees: binomial trees over the members in order, and shortest-path trees over the topology.

use super::{Inapplicable, RoundHop, chunks_of, few_enough, from_root};
use crate::problem::Problem;
use crate::problem::distance::PathTree;
use schedule::{ChunkId, RankSet};
use topology::{Bytes, LinkId, Rank};

/// A toll on crossings that is longer than any path, in microseconds.
const PROHIBITIVE: f64 = 1e12;

/// Chunks of each size get their own paths, for up to this many trees: a tenth of a second on small machines.
const MOST_TREES: usize = 1 << 10;

/// So many links visited by a search take as long as to verify one passage.
const VISITS: usize = 64;

/// How long all searches for paths take, as the number of passages that take as long to plan and to verify.
pub(super) fn search_cost(problem: &Problem) -> usize {
    let chunks = problem.demand.chunks();
    let sources = chunks.windows(2).filter(|two| two[0].holders != two[1].holders).count() + 1;
    sources * problem.topology.links().len() / VISITS
}

/// Every chunk goes over shortest α–β paths from its holders to all ranks that want it; relays pass it on. Always
/// applies.
pub(super) fn shortest_paths(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let mut hops = Vec::new();
    let mut previous: Option<(&RankSet, Bytes, PathTree)> = None;
    let mut trees = 0;
    let shared = problem.constraints.owners.is_empty();
    let limited = problem.constraints.max_machine_hops.is_some();
    let mut round_of = vec![0u32; topology.rank_count()];
    let mut branch = Vec::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let bytes = demand.bytes_of(id);
        let length = |link: LinkId| {
            let time = topology.link(link).transfer_time(bytes).0.max(f64::MIN_POSITIVE);
            // Under a hop limit, a path crosses between machines as seldom as possible, however long it gets.
            let toll = if limited && topology.crosses_machines(topology.link(link)) { PROHIBITIVE } else { 0.0 };
            problem.allows(id, link).then_some(time + toll)
        };
        let tree = match previous.take() {
            // Where there are many sizes, one tree serves for all chunks of a rank.
            Some((holders, size, tree))
                if shared && *holders == chunk.holders && (size == bytes || trees > MOST_TREES) =>
            {
                tree
            }
            _ => {
                trees += 1;
                PathTree::new(topology, chunk.holders.iter().copied(), length)
            }
        };
        round_of.iter_mut().for_each(|round| *round = 0);
        for &rank in chunk.wanted_by.iter() {
            // Go back to a rank on an earlier path, or to the source, and add the hops from there.
            let back =
                std::iter::successors(tree.last[rank.index()], |&link| tree.last[topology.link(link).from.index()]);
            branch.extend(back.take_while(|&link| round_of[topology.link(link).to.index()] == 0));
            while let Some(link) = branch.pop() {
                let link = topology.link(link);
                let round = round_of[link.from.index()] + 1;
                round_of[link.to.index()] = round;
                hops.push(RoundHop { round, chunk: id, from: link.from, to: link.to });
            }
            few_enough(hops.len())?;
        }
        previous = Some((&chunk.holders, bytes, tree));
    }
    Ok(hops)
}

/// Round r: each of the first 2^r members (the root first) sends to the member 2^r places on.
pub(super) fn binomial_broadcast(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let members = from_root(problem);
    let edges = binomial(members.len());
    let hop = |chunk: ChunkId, edge: &Edge| RoundHop {
        // Chunks follow each other down the tree.
        round: edge.round + chunk.0,
        chunk,
        from: members[edge.parent],
        to: members[edge.child],
    };
    let chunks = problem.demand.chunk_ids();
    Ok(chunks.flat_map(|chunk| edges.iter().map(move |edge| (chunk, edge))).map(|(c, e)| hop(c, e)).collect())
}

/// In every round, the root sends on half of what it has to hand out, and so does every member that got a part.
pub(super) fn binomial_scatter(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    Ok(subtrees(problem, |edge, rounds, chunk, members| {
        // From the root down: large subtrees leave first.
        RoundHop { round: rounds - edge.round, chunk, from: members[edge.parent], to: members[edge.child] }
    }))
}

/// The reverse of [`binomial_scatter`].
pub(super) fn binomial_gather(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    Ok(subtrees(problem, |edge, _, chunk, members| RoundHop {
        round: edge.round,
        chunk,
        from: members[edge.child],
        to: members[edge.parent],
    }))
}

/// An edge of a binomial tree; members are numbered from the root.
#[derive(Clone, Copy, Debug)]
struct Edge {
    round: u32,
    parent: usize,
    child: usize,
}

/// The binomial tree in which the child is 2^round places after its parent.
fn binomial(count: usize) -> Vec<Edge> {
    let child = |child: usize| {
        let round = child.ilog2();
        Edge { round, parent: child - (1 << round), child }
    };
    (1..count).map(child).collect()
}

/// The hops of each subtree's chunks, for the tree in which a child's subtree is the 2^round members from the child on.
fn subtrees(problem: &Problem, hop: impl Fn(&Edge, u32, ChunkId, &[Rank]) -> RoundHop) -> Vec<RoundHop> {
    let members = from_root(problem);
    let sorted = &problem.demand.request().members;
    let rounds = usize::BITS - members.len().leading_zeros();
    let mut hops = Vec::new();
    for child in 1..members.len() {
        let round = child.trailing_zeros();
        let edge = Edge { round, parent: child - (1 << round), child };
        for below in child..members.len().min(child + (1 << round)) {
            let Ok(position) = sorted.binary_search(&members[below]) else { continue };
            hops.extend(chunks_of(problem, position).map(|chunk| hop(&edge, rounds, chunk, &members)));
        }
    }
    hops
}
