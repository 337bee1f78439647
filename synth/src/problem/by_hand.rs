//! Machines, problems and message orders that tests write by hand.

use crate::problem::Problem;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use schedule::{ChunkId, Collective, Demand, Message, Request, TransferKind, replay};
use std::sync::Arc;
use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

/// A collective of all ranks of a machine.
pub(crate) fn asked(topology: Topology, collective: Collective, size: u64) -> Problem {
    let request = Request::new(collective, topology.rank_count(), size);
    Problem::new(Arc::new(topology), Arc::new(Demand::new(request).expect("a valid request")))
}

/// Messages that copy a chunk from one rank to another, as (chunk, from, to), each over the first link between the two.
pub(crate) fn copies(topology: &Topology, sent: &[(u32, u32, u32)]) -> Vec<Message> {
    let message = |&(chunk, from, to): &(u32, u32, u32)| Message {
        chunks: [ChunkId(chunk)].into_iter().collect(),
        link: topology.between(Rank(from), Rank(to)).next().expect("the ranks are linked"),
        kind: TransferKind::Copy,
    };
    sent.iter().map(message).collect()
}

/// From, to, α in µs, β in µs per byte, whether the link uses the shared port.
pub(crate) type Wire = (u32, u32, f64, f64, bool);

/// A machine of `ranks` ranks and the given links; some links share one port, which takes `port` µs per byte.
pub(crate) fn wired(ranks: usize, wires: &[Wire], latency: Latency, port: f64) -> TopologyParts {
    let link = |&(from, to, alpha, beta, shared): &Wire| Link {
        from: Rank(from),
        to: Rank(to),
        alpha: Micros(alpha),
        beta: MicrosPerByte(beta),
        latency,
        resources: shared.then_some(ResourceId(0)).into_iter().collect(),
    };
    TopologyParts {
        name: "wires".into(),
        ranks,
        links: wires.iter().map(link).collect(),
        resources: vec![Resource::new("port", MicrosPerByte(port))],
        ..TopologyParts::default()
    }
}

/// A broadcast of `chunks` chunks of one byte from rank 0.
pub(crate) fn broadcast(parts: TopologyParts, chunks: u32) -> Problem {
    let request = Request::new(Collective::Broadcast, parts.ranks, u64::from(chunks)).with_chunks(chunks);
    let topology = Topology::new(parts).expect("a machine");
    Problem::new(Arc::new(topology), Arc::new(Demand::new(request).expect("a valid request")))
}

/// A ring with some chords, in which links may share any of a few resources.
pub(crate) fn random_machine(seed: u64) -> Topology {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut below = |limit: u32| random.next_u32() % limit;
    let ranks = 3 + below(4);
    let beta = |step: u32| MicrosPerByte(f64::from(1 + step) / 1000.0);
    let mut eighths = Pcg64Mcg::seed_from_u64(!seed);
    let mut alpha = || Micros(f64::from(eighths.next_u32() % 3) / 8.0);
    let resource = |beta| Resource { alpha: alpha(), ..Resource::new("shared", beta) };
    let resources: Vec<Resource> = (0..1 + below(4)).map(|_| beta(below(4))).map(resource).collect();
    let chords = below(2 * ranks);
    let ends: Vec<(u32, u32)> = (0..ranks)
        .map(|rank| (rank, (rank + 1) % ranks))
        .chain((0..chords).map(|_| {
            let from = below(ranks);
            (from, (from + 1 + below(ranks - 1)) % ranks)
        }))
        .collect();
    let links = ends.into_iter().map(|(from, to)| {
        let mut shared: Vec<ResourceId> = (0..below(3)).map(|_| ResourceId(below(resources.len() as u32))).collect();
        shared.sort_unstable();
        shared.dedup();
        let slowest = shared.iter().map(|id| resources[id.index()].beta).fold(beta(below(4)), MicrosPerByte::max);
        let latency = if below(2) == 0 { Latency::Occupies } else { Latency::Pipelines };
        let alpha = Micros(f64::from(below(5)) / 4.0);
        let alpha = shared.iter().map(|id| resources[id.index()].alpha).fold(alpha, Micros::max);
        Link { from: Rank(from), to: Rank(to), alpha, beta: slowest, latency, resources: shared.into() }
    });
    let parts = TopologyParts { ranks: ranks as usize, links: links.collect(), ..TopologyParts::default() };
    Topology::new(TopologyParts { resources, ..parts }).expect("a valid topology")
}

/// The makespan of the best order of messages, by trying all: messages of one chunk each, or of any number if `merged`.
pub(crate) fn optimum(problem: &Problem, merged: bool) -> f64 {
    let mut best = f64::INFINITY;
    extend(problem, merged, &mut Vec::new(), &mut best);
    best
}

fn extend(problem: &Problem, merged: bool, order: &mut Vec<Message>, best: &mut f64) {
    let (demand, topology) = (&problem.demand, &problem.topology);
    let ends = replay(demand, topology, order).expect("a valid order").into_iter().map(|transfer| transfer.end.0);
    let end = ends.fold(0.0, f64::max);
    if end >= *best {
        return;
    }
    let brought = |chunk: ChunkId, rank: Rank| {
        order.iter().any(|message| message.chunks.contains(&chunk) && topology.link(message.link).to == rank)
    };
    let has = |chunk: ChunkId, rank: Rank| demand.chunk(chunk).holders.has(rank) || brought(chunk, rank);
    let mut next: Vec<(LinkId, Vec<ChunkId>)> = Vec::new();
    for link in topology.link_ids() {
        let (from, to) = (topology.link(link).from, topology.link(link).to);
        let useful: Vec<ChunkId> = demand.chunk_ids().filter(|&chunk| has(chunk, from) && !has(chunk, to)).collect();
        let sets = (1..1u32 << useful.len()).filter(|set| merged || set.count_ones() == 1);
        next.extend(sets.map(|set| {
            let chosen = useful.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
            (link, chosen.map(|(_, &chunk)| chunk).collect())
        }));
    }
    if next.is_empty() {
        *best = end;
    }
    for (link, chunks) in next {
        order.push(Message { chunks: chunks.into_iter().collect(), link, kind: TransferKind::Copy });
        extend(problem, merged, order, best);
        order.pop();
    }
}
