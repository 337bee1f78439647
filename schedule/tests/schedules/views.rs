//! Simulation and critical path.

use crate::plans::{any_plan, any_started_plan, ring, switch};
use expect_test::{Expect, expect};
use schedule::explain::{CriticalPath, Wait, critical_path};
use schedule::{
    Chunk, ChunkId, Collective, Demand, Message, RankSet, ReduceOp, Request, Schedule, Transfer, TransferKind,
};
use schedule::{VerifiedSchedule, replay, simulate, verify};
use std::sync::Arc;
use topology::{Latency, LinkId, Micros, Rank, Topology};

fn message(chunk: u32, link: u32) -> Message {
    Message { chunks: [ChunkId(chunk)].into_iter().collect(), link: LinkId(link), kind: TransferKind::Copy }
}

fn timed(topology: &Arc<Topology>, request: Request, order: &[(u32, u32)]) -> VerifiedSchedule {
    let messages: Vec<_> = order.iter().map(|&(chunk, link)| message(chunk, link)).collect();
    let demand = Demand::new(request).expect("a small request");
    let transfers = replay(&demand, topology, &messages).expect("in causal order");
    verify(Schedule::new(topology, Arc::new(demand), transfers, "by hand"), topology).expect("a good order")
}

/// Two chunks from rank 0 around a ring of three: 2 µs a step, the second right behind the first.
fn pipeline() -> (VerifiedSchedule, Arc<Topology>) {
    let topology = ring(3, Latency::Occupies);
    let mut request = Request::new(Collective::Broadcast, 3, 200);
    request.chunks_per_rank = 2;
    (timed(&topology, request, &[(0, 0), (1, 0), (0, 2), (1, 2)]), topology)
}

#[test]
fn simulation_closes_gaps_and_counts() {
    let (verified, topology) = pipeline();
    let mut late = verified.clone().into_schedule();
    late.transfers[3].start += Micros(5.0);
    late.transfers[3].end += Micros(5.0);
    let late = verify(late, &topology).unwrap();
    let simulation = simulate(&late);
    assert_eq!((simulation.makespan, simulation.stated_makespan), (Micros(6.0), Micros(11.0)));
    assert_eq!(simulation.timeline, verified);
    let used: Vec<_> = simulation.links.iter().map(|usage| (usage.messages, usage.bytes.0, usage.busy.0)).collect();
    let idle = (0, 0.0, 0.0);
    assert_eq!(used, [(2, 200.0, 4.0), idle, (2, 200.0, 4.0), idle, idle, idle]);
    assert_eq!(simulation.links[0].utilisation, 4.0 / 6.0);
    assert_eq!(simulation.busiest(), (Some(LinkId(0)), None));
}

/// Two ranks add up each other's values at the same time. No order of the two messages expresses this; only their times
/// do.
#[test]
fn simulation_keeps_an_exchange() {
    let topology = ring(2, Latency::Occupies);
    let chunk = Chunk {
        holders: RankSet::all(2),
        wanted_by: RankSet::all(2),
        combine: true,
        bytes: None,
        release: topology::Micros::ZERO,
    };
    let request = Request { op: Some(ReduceOp::Sum), ..Request::new(Collective::Custom, 2, 100) };
    let demand = Demand::from_chunks(request, vec![chunk]).unwrap();
    let transfer = |from, to, link| Transfer {
        chunks: [ChunkId(0)].into_iter().collect(),
        from: Rank(from),
        to: Rank(to),
        link: LinkId(link),
        kind: TransferKind::Reduce,
        start: Micros::ZERO,
        end: Micros(2.0),
    };
    let schedule = Schedule::new(&topology, Arc::new(demand), vec![transfer(0, 1, 0), transfer(1, 0, 1)], "exchange");
    let verified = verify(schedule, &topology).unwrap();
    let simulation = simulate(&verified);
    assert_eq!(simulation.makespan, Micros(2.0));
    assert_eq!(simulation.timeline, verified);
}

#[test]
fn simulation_is_never_slower_and_no_link_is_busier_than_the_makespan() {
    for seed in 0..200 {
        let (schedule, topology) = any_plan(seed);
        let verified = verify(schedule, &topology).unwrap();
        let simulation = simulate(&verified);
        assert!(simulation.makespan <= simulation.stated_makespan, "seed {seed}");
        let usages = simulation.links.iter().chain(&simulation.resources);
        assert!(usages.map(|usage| usage.utilisation).all(|part| (0.0..=1.0 + 1e-9).contains(&part)), "seed {seed}");
    }
}

fn check_path((schedule, _): (VerifiedSchedule, Arc<Topology>), expected: Expect) {
    let CriticalPath { steps, latency, bandwidth, idle } = critical_path(&schedule);
    let steps: String = steps.iter().map(|step| format!("{step}\n")).collect();
    expected.assert_eq(&format!("{steps}latency {latency}, bandwidth {bandwidth}, idle {idle}\n"));
}

#[test]
fn the_critical_path_says_what_each_transfer_waited_for() {
    check_path(
        pipeline(),
        expect![[r#"
        0 µs – 2 µs  rank 0 → 1 over link 0, chunk 0
        2 µs – 4 µs  rank 0 → 1 over link 0, chunk 1; waited for the link
        4 µs – 6 µs  rank 1 → 2 over link 2, chunk 1; waited for chunk 1
        latency 3 µs, bandwidth 3 µs, idle 0 µs
    "#]],
    );
    // Everybody to rank 0 of a switch: its port is the bottleneck.
    let topology = switch(3, Latency::Pipelines);
    let into_0 = |from| topology.between(Rank(from), Rank(0)).next().unwrap().0;
    let gather = timed(&topology, Request::new(Collective::Gather, 3, 300), &[(1, into_0(1)), (2, into_0(2))]);
    check_path(
        (gather, topology),
        expect![[r#"
        0 µs – 3.4 µs  rank 1 → 0 over link 2, chunk 1
        2 µs – 5.4 µs  rank 2 → 0 over link 4, chunk 2; waited for resource 3
        latency 1.4 µs, bandwidth 4 µs, idle 0 µs
    "#]],
    );
}

/// The parts of the path add up, and every step starts when the step that it waited for is done (plus idle time).
#[test]
fn the_critical_path_covers_the_makespan() {
    let plans = (0..200).map(|seed| (seed, any_plan(seed))).chain((0..200).map(|seed| (seed, any_started_plan(seed))));
    let mut waited = 0;
    for (seed, (schedule, topology)) in plans {
        let verified = verify(schedule, &topology).unwrap();
        // As early as the order allows: playing it again changes nothing.
        assert_eq!(simulate(&verified).makespan, verified.schedule().makespan(), "seed {seed}");
        let path = critical_path(&verified);
        let (total, makespan) = (path.latency + path.bandwidth + path.idle, verified.schedule().makespan());
        assert!((total.0 - makespan.0).abs() < 1e-9, "seed {seed}: {total} of {makespan}");
        for pair in path.steps.windows(2) {
            assert_eq!(pair[1].waited_for.transfer(), Some(pair[0].transfer), "seed {seed}");
        }
        let Some(first) = path.steps.first() else { continue };
        match first.waited_for {
            Wait::Nothing => {}
            Wait::Start { chunk } => {
                assert_eq!(first.message.start, verified.schedule().demand.chunk(chunk).release, "seed {seed}");
                waited += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(waited > 50, "{waited}");
}
