//! The bound by prices: far chunks use many links.
//!
//! Prices on links are a solution of the dual of the multi-commodity flow problem, hence a bound. Here every
//! resource, and every link without one, sells its time at the same price: a byte pays the sum of their β on its
//! way, no byte pays less than on its shortest way, and the sellers have no more than T − α each. On uniform
//! topologies that is the best there is for AllToAll; elsewhere the cuts are better.

use super::{Bound, Certificate, Scope};
use crate::Problem;
use crate::matching::distance::PathTree;
use schedule::{ChunkId, RankSet};
use topology::{LinkId, Micros};

/// The most shortest-path trees; the chunks of further sources count as free, which keeps the bound valid.
const SOURCES: usize = 1024;

/// `None` where values are reduced on the way or nothing has to move.
pub(super) fn flow(problem: &Problem) -> Option<Bound> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    if demand.chunks().iter().any(|chunk| chunk.combine) {
        return None;
    }
    let price = |id: LinkId| {
        let link = topology.link(id);
        let shared = link.resources.iter().map(|&resource| topology.resource(resource).beta).sum();
        if link.resources.is_empty() { link.beta } else { shared }
    };
    let usable: Vec<LinkId> = topology.link_ids().filter(|&link| problem.allows_link(link)).collect();
    let alpha = usable.iter().map(|&link| topology.link(link).alpha.0).fold(f64::INFINITY, f64::min);
    let plain = usable.iter().filter(|&&link| topology.link(link).resources.is_empty()).count();
    let sellers = plain + topology.resources().len();
    let length = |id: LinkId| problem.allows_link(id).then(|| price(id).0);
    let mut paid = 0.0;
    let mut trees = 0;
    let mut previous: Option<(&RankSet, PathTree)> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let tree = match previous.take() {
            Some((holders, tree)) if *holders == chunk.holders => tree,
            _ if trees == SOURCES => break,
            _ => {
                trees += 1;
                PathTree::new(topology, chunk.holders.iter().copied(), length)
            }
        };
        paid += demand.bytes_of(id).0 * farthest(problem, id, &tree);
        previous = Some((&chunk.holders, tree));
    }
    if paid == 0.0 || sellers == 0 {
        return None;
    }
    let certificate = Certificate::Prices { prices: topology.link_ids().map(price).collect(), sellers };
    // Thousands of terms round: a part in 10¹² less keeps the sum a bound.
    let value = Micros(alpha + paid / sellers as f64 * (1.0 - 1e-12));
    Some(Bound { name: "flow", scope: Scope::AnyChunking, value, certificate })
}

/// What a byte of a chunk pays at least: one copy goes all the way to its farthest destination.
fn farthest(problem: &Problem, chunk: ChunkId, tree: &PathTree) -> f64 {
    let wanted = problem.demand.chunk(chunk).wanted_by.iter().map(|rank| tree.distance[rank.index()]);
    wanted.filter(|distance| distance.is_finite()).fold(0.0, f64::max)
}
