//! Compressed schedules for tests of this crate and of `program`, made by hand.

use crate::compressed::check_symmetry;
use crate::{ChunkId, Collective, CompressedSchedule, Demand, Generator, Request, Schedule, Transfer, TransferKind};
use std::collections::VecDeque;
use std::sync::Arc;
use topology::symmetry::{Colours, extend};
use topology::{LinkId, Micros, Rank, Topology, resolve};

/// The translations of a machine: for each, by how much ranks move and within which blocks.
pub type Turns = &'static [(u32, u32)];

pub const MACHINES: &[(&str, Turns)] = &[
    ("ring:5,alpha=1us,bandwidth=1GBps", &[(1, 5)]),
    ("torus2d:3x4,alpha=1us,bandwidth=1GBps", &[(4, 12), (1, 4)]),
    ("torus2d:4x4,alpha=1us,bandwidth=1GBps/2GBps", &[(4, 16), (1, 4)]),
    ("hypercube:3,alpha=1us,bandwidth=1GBps", &[(4, 8), (2, 4), (1, 2)]),
    ("clique:6,alpha=1us,bandwidth=1GBps", &[(1, 6)]),
    // Links share the ports of their ranks; or ports of one kind within machines, and of another between them.
    ("switch:6,alpha=1us,bandwidth=1GBps", &[(1, 6)]),
    ("h800x2", &[(8, 16), (1, 8)]),
    // The up-links of a leaf are shared by two ranks, which the group never maps to each other.
    ("fat-tree:2x2,alpha=1us,bandwidth=1GBps", &[(2, 4)]),
    // Several orbits of ranks, chunks and links.
    ("torus2d:4x4,alpha=1us,bandwidth=1GBps", &[(4, 16)]),
];

/// Here the group maps the ranks of a leaf to each other, so that two images of a message meet on the leaf's up-links.
pub const MEETING: (&str, Turns) = ("fat-tree:2x2,alpha=1us,bandwidth=1GBps", &[(2, 4), (1, 2)]);

pub const COLLECTIVES: [(Collective, u32); 5] = [
    (Collective::AllGather, 1),
    (Collective::AllGather, 2),
    (Collective::ReduceScatter, 1),
    (Collective::AllReduce, 1),
    (Collective::AllToAll, 1),
];

fn generators(topology: &Topology, turns: Turns, demand: &Demand) -> Vec<Generator> {
    let (count, chunks) = (topology.rank_count() as u32, demand.request().chunks_per_rank);
    let is_pairs = demand.request().collective == Collective::AllToAll;
    let generator = |&(offset, within): &(u32, u32)| {
        let image = |rank: u32| rank / within * within + (rank % within + offset) % within;
        let ranks: Vec<Rank> = topology.ranks().map(|rank| Rank(image(rank.0))).collect();
        let links = extend(topology, Colours::default(), &ranks).expect("a symmetry").links;
        let pair = |from: u32, to: u32| from * (ranks.len() as u32 - 1) + to - u32::from(to > from);
        let chunks = match is_pairs {
            false => (0..count).flat_map(|rank| (0..chunks).map(move |c| ChunkId(image(rank) * chunks + c))).collect(),
            true => {
                let pairs =
                    (0..count).flat_map(|from| (0..count).filter(move |&to| to != from).map(move |to| (from, to)));
                pairs.map(|(from, to)| ChunkId(pair(image(from), image(to)))).collect()
            }
        };
        Generator { chunks, ranks, links }
    };
    turns.iter().map(generator).collect()
}

/// A base with one message under way at a time: the first chunk of each orbit along a tree to all who want it. For a
/// ReduceScatter, the same backwards; for an AllReduce, first backwards and then forwards.
pub fn compressed(
    spec: &str,
    turns: Turns,
    collective: Collective,
    chunks: u32,
) -> (CompressedSchedule, Arc<Topology>) {
    let topology = Arc::new(resolve(spec).expect("a known topology"));
    let request = Request::new(collective, topology.rank_count(), 12_000).with_chunks(chunks);
    let demand = Arc::new(Demand::new(request).expect("a valid request"));
    let generators = generators(&topology, turns, &demand);
    let unfolding = check_symmetry(&generators, &topology, &demand).expect("symmetries");
    let mut messages = Vec::new();
    for chunk in (0..unfolding.chunks.orbits() as u32).map(|orbit| ChunkId(unfolding.chunks.first(orbit))) {
        let combine = demand.chunk(chunk).combine;
        let root = if combine { Rank(chunk.0 / chunks) } else { demand.chunk(chunk).holders[0] };
        if combine {
            let incoming = tree(&topology, root, None, true).into_iter().rev();
            messages.extend(incoming.map(|link| (chunk, link, TransferKind::Reduce)));
        }
        if collective != Collective::ReduceScatter {
            let wanted_by = &demand.chunk(chunk).wanted_by;
            let only = (wanted_by.len() == 1).then(|| wanted_by[0]);
            messages
                .extend(tree(&topology, root, only, false).into_iter().map(|link| (chunk, link, TransferKind::Copy)));
        }
    }
    let mut now = Micros::ZERO;
    let transfer = |(chunk, id, kind): (ChunkId, LinkId, TransferKind)| {
        let link = topology.link(id);
        let (start, end) = (now, now + link.transfer_time(demand.chunk_bytes()));
        now = end;
        Transfer { chunks: [chunk].into_iter().collect(), from: link.from, to: link.to, link: id, kind, start, end }
    };
    let transfers = messages.into_iter().map(transfer).collect();
    let base = Schedule::new(&topology, demand, transfers, "by hand");
    (CompressedSchedule { base, generators }, topology)
}

/// The links of a tree from (or to) `root`, those near the root first; of the path to one rank only, if one is given.
fn tree(topology: &Topology, root: Rank, only: Option<Rank>, reversed: bool) -> Vec<LinkId> {
    let mut by: Vec<Option<LinkId>> = vec![None; topology.rank_count()];
    let mut queue = VecDeque::from([root]);
    let mut links = Vec::new();
    while let Some(rank) = queue.pop_front() {
        let ways = if reversed { topology.incoming(rank) } else { topology.outgoing(rank) };
        for &link in ways {
            let next = if reversed { topology.link(link).from } else { topology.link(link).to };
            if next != root && by[next.index()].is_none() {
                by[next.index()] = Some(link);
                queue.push_back(next);
                links.push(link);
            }
        }
    }
    let Some(mut rank) = only else { return links };
    let mut path = Vec::new();
    while let Some(link) = by[rank.index()] {
        path.push(link);
        rank = topology.link(link).from;
    }
    path.reverse();
    path
}
