//! The bound by distance: some chunk has to get from its holders to the ranks that want it.

use super::{Bound, Certificate, Scope};
use crate::problem::distance::PathTree;
use crate::problem::{Deadline, Problem};
use schedule::{Chunk, ChunkId, RankSet};
use topology::{Bytes, LinkId, Micros, Rank};

/// The most shortest-path trees that are computed; fewer sources weaken the bound but keep it valid.
const SOURCES: usize = 512;
/// The most work for all trees of one kind together, in links visited: one or two tenths of a second.
const WORK: usize = 6_000_000;

/// The longest of all shortest paths, once for this chunking and once for α alone (any chunking).
pub(super) fn latency(problem: &Problem, deadline: &Deadline) -> Vec<Bound> {
    let trees = trees(problem);
    let sized = farthest(problem, &trees, |id| problem.demand.bytes_of(id), deadline);
    let bare = farthest(problem, &trees, |_| Bytes::ZERO, deadline);
    let bound = |(value, links): (Micros, Vec<LinkId>), scope| Bound {
        name: "latency",
        scope,
        value,
        certificate: Certificate::Path { links },
    };
    vec![bound(bare, Scope::AnyChunking), bound(sized, Scope::ThisChunking)]
}

/// Chunks with the same holders, which share a shortest-path tree because a path may start at any holder.
struct SharedTree {
    from: RankSet,
    chunks: Vec<ChunkId>,
}

/// The trees of all chunks, or an even selection where there are too many.
fn trees(problem: &Problem) -> Vec<SharedTree> {
    let demand = &*problem.demand;
    let mut trees: Vec<SharedTree> = Vec::new();
    let mut previous: Option<(ChunkId, &Chunk)> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let like = previous.replace((id, chunk));
        if like.is_some_and(|(_, like)| like == chunk) {
            continue;
        }
        match (chunk.combine, like) {
            (true, _) => {
                let each = |&rank: &Rank| SharedTree { from: RankSet::one(rank), chunks: vec![id] };
                trees.extend(chunk.holders.iter().map(each));
            }
            (false, Some((before, like)))
                if like.holders == chunk.holders && demand.bytes_of(before) == demand.bytes_of(id) =>
            {
                trees.last_mut().expect("the chunk before has a tree").chunks.push(id);
            }
            (false, _) => trees.push(SharedTree { from: chunk.holders.clone(), chunks: vec![id] }),
        }
    }
    let affordable = (WORK / problem.topology.links().len().max(1)).clamp(1, SOURCES);
    let stride = trees.len().div_ceil(affordable).max(1);
    trees.into_iter().step_by(stride).collect()
}

/// The longest of the shortest paths; if the deadline has passed, of the first tree only.
fn farthest(
    problem: &Problem,
    trees: &[SharedTree],
    bytes: impl Fn(ChunkId) -> Bytes,
    deadline: &Deadline,
) -> (Micros, Vec<LinkId>) {
    let topology = &*problem.topology;
    let mut worst = (0.0, Vec::new());
    for (number, SharedTree { from, chunks }) in trees.iter().enumerate() {
        if number > 0 && deadline.has_passed() {
            break;
        }
        let bytes = bytes(chunks[0]);
        let length = |id: LinkId| problem.allows(chunks[0], id).then(|| topology.link(id).transfer_time(bytes).0);
        let tree = PathTree::new(topology, from.iter().copied(), length);
        let distance = |rank: &Rank| tree.distance[rank.index()];
        let wanting = chunks.iter().flat_map(|&chunk| problem.demand.chunk(chunk).wanted_by.iter());
        // A rank that cannot be reached at all is reported elsewhere, with the reason.
        let reached = wanting.filter(|rank| distance(rank).is_finite());
        let Some(rank) = reached.max_by(|a, b| distance(a).total_cmp(&distance(b))) else { continue };
        if distance(rank) > worst.0 {
            worst = (distance(rank), tree.path_to(topology, *rank));
        }
    }
    (Micros(worst.0), worst.1)
}
