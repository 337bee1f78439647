//! The causal order of messages: ties, cycles, and a tolerance that is used once.

use crate::plans::{link, machine, ring};
use schedule::{Chunk, ChunkId, Collective, CompressedSchedule, Demand, Generator, RankSet, Request, Schedule};
use schedule::{ReduceOp, Rejection, Transfer, TransferKind, VerifiedSchedule, verify, verify_compressed};
use std::sync::Arc;
use topology::{Latency, LinkId, Micros, Rank, Topology};

const COPY: TransferKind = TransferKind::Copy;
const REDUCE: TransferKind = TransferKind::Reduce;

/// Chunks over a link, with their times.
fn sent(topology: &Topology, chunks: &[u32], id: u32, kind: TransferKind, start: f64, end: f64) -> Transfer {
    let link = topology.link(LinkId(id));
    Transfer {
        chunks: chunks.iter().copied().map(ChunkId).collect(),
        from: link.from,
        to: link.to,
        link: LinkId(id),
        kind,
        start: Micros(start),
        end: Micros(end),
    }
}

/// Verifies transfers in exactly this order.
fn judged(topology: &Arc<Topology>, request: Request, transfers: Vec<Transfer>) -> Result<VerifiedSchedule, Rejection> {
    let demand = Arc::new(Demand::new(request).expect("a small request"));
    verify(Schedule { transfers, ..Schedule::new(topology, demand, Vec::new(), "by hand") }, topology)
}

fn kinds(rejection: &Rejection) -> Vec<&'static str> {
    let mut kinds: Vec<_> = rejection.violations.iter().map(|violation| violation.kind()).collect();
    kinds.dedup();
    kinds
}

/// A ring of links 0→1, 1→2, … of equal cost.
fn one_way(ranks: usize, alpha: f64, beta: f64) -> Arc<Topology> {
    machine(ranks, (0..ranks).map(|i| link(i, (i + 1) % ranks, alpha, beta, Latency::Occupies)).collect(), Vec::new())
}

/// An AllGather of three ranks in which every rank sends its own chunk and, at the same time, the chunk that it
/// receives meanwhile. The base is one transfer of each orbit; the generators make its images for all ranks.
fn circle(topology: &Topology, size: u64, start: f64, duration: f64) -> CompressedSchedule {
    let demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 3, size)).unwrap());
    let transfers = vec![sent(topology, &[0, 2], 0, COPY, start, start + duration)];
    let base = Schedule::new(topology, demand, transfers, "by hand");
    let turned = || (0..3).map(|it| (it + 1) % 3);
    let generator = Generator {
        ranks: turned().map(Rank).collect(),
        links: turned().map(LinkId).collect(),
        chunks: turned().map(ChunkId).collect(),
    };
    CompressedSchedule { base, generators: vec![generator] }
}

#[test]
fn messages_that_wait_in_a_circle_are_refused() {
    for (alpha, start) in [(0.0, 0.0), (0.0, 5.0), (0.7, 8e6)] {
        let topology = one_way(3, alpha, 0.0);
        let compressed = circle(&topology, 0, start, alpha);
        let rejection = verify_compressed(compressed.clone(), &topology).unwrap_err();
        assert!(kinds(&rejection).contains(&"sent_before_held"), "{rejection}");
        let plain = (0..3).map(|i| sent(&topology, &[i, (i + 2) % 3], i, COPY, start, start + alpha)).collect();
        let rejection = judged(&topology, Request::new(Collective::AllGather, 3, 0), plain).unwrap_err();
        assert!(kinds(&rejection).contains(&"sent_before_held"), "{rejection}");
    }
}

/// The same as two messages one after the other is right, even where both take no time.
#[test]
fn the_same_without_a_circle_is_accepted() {
    let topology = one_way(3, 0.0, 0.0);
    let mut compressed = circle(&topology, 0, 0.0, 0.0);
    compressed.base.transfers =
        vec![sent(&topology, &[2], 0, COPY, 0.0, 0.0), sent(&topology, &[0], 0, COPY, 0.0, 0.0)];
    let verified = verify_compressed(compressed, &topology).unwrap();
    verify(verified.expand(6).unwrap(), &topology).unwrap();
}

/// A message that forwards a chunk may stand before the message that brings it, if both take no time: the format asks
/// only for ascending starts.
#[test]
fn messages_without_duration_may_be_listed_in_any_order() {
    let topology = one_way(4, 0.0, 0.0);
    let hops = |order: [u32; 3]| order.map(|id| sent(&topology, &[0], id, COPY, 0.0, 0.0)).to_vec();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let verified = judged(&topology, Request::new(Collective::Broadcast, 4, 0), hops(order)).unwrap();
        let links = verified.order().departures().iter().map(|&at| verified.schedule().transfers[at as usize].link.0);
        assert_eq!(links.collect::<Vec<_>>(), [0, 1, 2]);
    }
}

/// A message that takes no time forwards a chunk slightly before the chunk arrives.
#[test]
fn what_arrives_within_the_tolerance_is_there() {
    let links = vec![link(0, 1, 10.0000005, 0.0, Latency::Occupies), link(1, 2, 0.0, 0.0, Latency::Occupies)];
    let topology = machine(3, links, Vec::new());
    let transfers = vec![sent(&topology, &[0], 0, COPY, 0.0, 10.0000005), sent(&topology, &[0], 1, COPY, 10.0, 10.0)];
    let verified = judged(&topology, Request::new(Collective::Broadcast, 3, 0), transfers).unwrap();
    assert!(verified.order().place(0) < verified.order().place(1));
}

/// A chain in which every hop leaves slightly before the previous one has arrived.
fn early_chain(hops: usize, lead: f64) -> Result<VerifiedSchedule, Rejection> {
    let topology =
        machine(hops + 1, (0..hops).map(|i| link(i, i + 1, 1.0, 0.0, Latency::Occupies)).collect(), Vec::new());
    let mut now = 0.0;
    let hop = |id: usize| {
        let start = now * (1.0 - lead);
        now = start + 1.0;
        sent(&topology, &[0], id as u32, COPY, start, now)
    };
    judged(&topology, Request::new(Collective::Broadcast, hops + 1, 0), (0..hops).map(hop).collect())
}

#[test]
fn the_tolerance_does_not_grow_with_the_chain() {
    early_chain(2, 0.9e-7).unwrap();
    assert_eq!(kinds(&early_chain(3, 0.9e-7).unwrap_err()), ["sent_before_held"]);
    assert_eq!(kinds(&early_chain(1000, 0.9e-7).unwrap_err()), ["sent_before_held"]);
    early_chain(1000, 1e-12).unwrap();
}

/// A chain in which every message waits for the link, not for a chunk.
#[test]
fn the_tolerance_does_not_grow_through_links_either() {
    let topology = one_way(2, 1.0, 0.0);
    let mut request = Request::new(Collective::Broadcast, 2, 0);
    request.chunks_per_rank = 40;
    let mut now = 0.0;
    let behind = |chunk: u32| {
        let start = now * (1.0 - 0.9e-7);
        now = start + 1.0;
        sent(&topology, &[chunk], 0, COPY, start, now)
    };
    let rejection = judged(&topology, request, (0..40).map(behind).collect()).unwrap_err();
    assert_eq!(kinds(&rejection), ["link_overlap"]);
}

/// Late in a schedule, two ranks exchange their sums in less time than the tolerance.
#[test]
fn short_messages_late_in_a_schedule_are_told_apart() {
    let topology = ring(2, Latency::Occupies);
    let chunk = Chunk {
        holders: RankSet::all(2),
        wanted_by: RankSet::all(2),
        combine: true,
        bytes: None,
        release: topology::Micros::ZERO,
    };
    let request = Request { op: Some(ReduceOp::Sum), ..Request::new(Collective::Custom, 2, 0) };
    let demand = Demand::from_chunks(request, vec![chunk]).unwrap();
    let transfers =
        vec![sent(&topology, &[0], 0, REDUCE, 4e7, 4e7 + 1.0), sent(&topology, &[0], 1, REDUCE, 4e7, 4e7 + 1.0)];
    verify(Schedule::new(&topology, Arc::new(demand), transfers, "exchange"), &topology).unwrap();
}

/// Rank 1 counts rank 0 twice; then it gets the whole sum as a copy.
#[test]
fn a_double_count_that_a_copy_overwrites_does_no_harm() {
    let topology = ring(2, Latency::Occupies);
    let mut request = Request::new(Collective::AllReduce, 2, 0);
    request.chunks_per_rank = 1;
    let hop = |chunk, link, kind, start| sent(&topology, &[chunk], link, kind, start, start + 1.0);
    // Links 0 and 3 lead from 0 to 1, links 1 and 2 back.
    let good = vec![
        hop(0, 0, REDUCE, 0.0),
        hop(1, 0, REDUCE, 1.0),
        hop(0, 1, REDUCE, 0.0),
        hop(1, 1, COPY, 2.0),
        hop(0, 0, REDUCE, 2.0),
        hop(0, 0, COPY, 3.0),
    ];
    let sorted = |mut transfers: Vec<Transfer>| {
        transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
        transfers
    };
    judged(&topology, request.clone(), sorted(good.clone())).unwrap();
    let rejection = judged(&topology, request, sorted(good[..5].to_vec())).unwrap_err();
    assert_eq!(kinds(&rejection), ["double_reduce"]);
}
