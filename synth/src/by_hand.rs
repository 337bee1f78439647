//! Machines, problems and orders of messages that tests write down.

use crate::Problem;
use schedule::{ChunkId, Collective, Demand, Message, Request, TransferKind};
use std::sync::Arc;
use topology::{Latency, Link, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology, TopologyParts};

/// Copies of a chunk from a rank to another, in order, over the first link between them.
pub(crate) fn copies(topology: &Topology, sent: &[(u32, u32, u32)]) -> Vec<Message> {
    let message = |&(chunk, from, to): &(u32, u32, u32)| Message {
        chunks: [ChunkId(chunk)].into_iter().collect(),
        link: topology.between(Rank(from), Rank(to)).next().expect("the ranks are linked"),
        kind: TransferKind::Copy,
    };
    sent.iter().map(message).collect()
}

/// From, to, α in µs, µs per byte, whether it uses the shared port.
pub(crate) type Wire = (u32, u32, f64, f64, bool);

/// Ranks, wires between them, and a port (µs per byte) that some of the wires share.
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
        resources: vec![Resource { name: "port".into(), beta: MicrosPerByte(port) }],
        ..TopologyParts::default()
    }
}

/// A broadcast of `chunks` chunks of one byte from rank 0.
pub(crate) fn broadcast(parts: TopologyParts, chunks: u32) -> Problem {
    let request = Request::new(Collective::Broadcast, parts.ranks, u64::from(chunks)).with_chunks(chunks);
    let topology = Topology::new(parts).expect("a machine");
    Problem::new(Arc::new(topology), Arc::new(Demand::new(request).expect("a valid request")))
}
