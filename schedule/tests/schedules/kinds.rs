//! For each rule: a schedule that breaks it, and the text of the violation.

use crate::plans::{link, machine, ring};
use expect_test::{Expect, expect};
use schedule::{ChunkId, Collective, Demand, LowerBound, Message, RankSet, Request, Schedule};
use schedule::{Transfer, TransferKind, replay, verify};
use std::sync::Arc;
use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Resource, ResourceId, Topology};

/// Parses `chunks link kind` lines such as `0,1 @2 copy` and times them.
fn timed(topology: &Topology, request: Request, lines: &str) -> Schedule {
    let message = |line: &str| {
        let [chunks, link, kind] = line.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        Message {
            chunks: chunks.split(',').map(|id: &str| ChunkId(id.parse().unwrap())).collect(),
            link: LinkId(link.trim_start_matches('@').parse().unwrap()),
            kind: if kind == "copy" { TransferKind::Copy } else { TransferKind::Reduce },
        }
    };
    let messages: Vec<_> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(message).collect();
    let demand = Demand::new(request).unwrap();
    let transfers = replay(&demand, topology, &messages).unwrap();
    Schedule::new(topology, Arc::new(demand), transfers, "by hand")
}

/// Chunk i from rank i around the ring of three (links 2i from i to i + 1); a step takes 2 µs.
fn gather() -> (Schedule, Arc<Topology>) {
    let topology = ring(3, Latency::Occupies);
    let request = Request::new(Collective::AllGather, 3, 300);
    let schedule = timed(&topology, request, "0 @0 copy\n 1 @2 copy\n 2 @4 copy\n 2 @0 copy\n 0 @2 copy\n 1 @4 copy");
    (schedule, topology)
}

/// One chunk, summed 1 → 2 → 0 and copied back 0 → 1, 1 → 2.
fn reduce() -> (Schedule, Arc<Topology>) {
    let topology = ring(3, Latency::Occupies);
    let mut request = Request::new(Collective::AllReduce, 3, 300);
    request.chunks_per_rank = 1;
    let tree = |chunk: u32| format!("{chunk} @2 reduce\n{chunk} @4 reduce\n{chunk} @0 copy\n{chunk} @2 copy\n");
    let schedule = timed(&topology, request, &(0..3).map(tree).collect::<String>());
    (schedule, topology)
}

/// Changes a good schedule and compares the violations.
fn check((mut schedule, topology): (Schedule, Arc<Topology>), change: impl FnOnce(&mut Schedule), expected: Expect) {
    verify(schedule.clone(), &topology).unwrap();
    change(&mut schedule);
    let rejection = verify(schedule, &topology).unwrap_err();
    let lines: Vec<_> = rejection.violations.iter().map(|found| format!("{}: {found}\n", found.kind())).collect();
    expected.assert_eq(&lines.concat());
}

fn delay(transfer: &mut Transfer, by: f64) {
    transfer.start += Micros(by);
    transfer.end += Micros(by);
}

#[test]
fn structure() {
    let with = |request: Request| Arc::new(Demand::new(request).unwrap());
    let ranks = |ranks| Request { ranks, members: RankSet::all(3), ..Request::new(Collective::AllGather, 3, 300) };
    check(
        gather(),
        |s| s.topology.digest = Some("beef".to_owned()),
        expect![[r#"
        wrong_topology: the schedule was made for topology by hand with digest beef, but this one has digest 0f64e3cee573e15fceb852f841b562eb85b3d0f00adee62b1c9fc6f50052f988
    "#]],
    );
    check(
        gather(),
        |s| s.demand = with(ranks(4)),
        expect![[r#"
        wrong_rank_count: the schedule is for 4 ranks, but the topology has 3
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].chunks.clear(),
        expect![[r#"
        empty_message: transfer 5 (link 4) carries no chunk
        wrong_duration: transfer 5 (link 4) starts at 2 µs and states its end as 4 µs; the link's cost makes it 3 µs
        not_delivered: rank 0 wants chunk 1 and never gets it
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].chunks.push(ChunkId(1)),
        expect![[r#"
        repeated_chunk: transfer 5 (link 4) lists chunk 1 more than once
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].chunks.push(ChunkId(9)),
        expect![[r#"
        unknown_chunk: transfer 5 carries chunk 9, but there are only 3 chunks
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].link = LinkId(77),
        expect![[r#"
        unknown_link: transfer 5 uses link 77, but there are only 6 links; a link's id is its position in the topology's list, from 0
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].to = Rank(1),
        expect![[r#"
        wrong_ends: transfer 5 goes from rank 2 to rank 1, but link 4 leads from rank 2 to rank 0; a link's id is its position in the topology's list, from 0
        not_delivered: rank 0 wants chunk 1 and never gets it
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].to = Rank(u32::MAX),
        expect![[r#"
        wrong_ends: transfer 5 goes from rank 2 to rank 4294967295, but link 4 leads from rank 2 to rank 0; a link's id is its position in the topology's list, from 0
        not_delivered: rank 0 wants chunk 1 and never gets it
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].kind = TransferKind::Reduce,
        expect![[r#"
        reduce_of_plain_chunk: transfer 5 (link 4) reduces chunk 1, which is not a combining chunk
    "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].end = Micros(f64::NAN),
        expect![[r#"
        bad_time: transfer 5 (link 4) is timed 2 µs to NaN µs; times must be finite and not negative
        not_delivered: rank 0 wants chunk 1 and never gets it
    "#]],
    );
    check(
        gather(),
        |s| delay(&mut s.transfers[0], -1.0),
        expect![[r#"
            bad_time: transfer 0 (link 0) is timed -1 µs to 1 µs; times must be finite and not negative
        "#]],
    );
    check(
        gather(),
        |s| s.transfers[5].end = Micros(3.9),
        expect![[r#"
        wrong_duration: transfer 5 (link 4) starts at 2 µs and states its end as 3.9 µs; the link's cost makes it 4 µs
    "#]],
    );
    check(
        gather(),
        |s| s.transfers.swap(2, 3),
        expect![[r#"
        not_sorted: transfer 3 starts at 0 µs, before the one listed ahead of it (2 µs); sort them by start
    "#]],
    );
    let bound = |value| Some(LowerBound { value: Micros(value), name: "cut".to_owned() });
    check(
        gather(),
        |s| s.bound = bound(4.1),
        expect![[r#"
        bound_above_makespan: the lower bound 4.1 µs (cut) is above the makespan 4 µs, so it is not a bound
    "#]],
    );
    check(
        gather(),
        |s| s.bound = bound(f64::NAN),
        expect![[r#"
        bound_above_makespan: the lower bound NaN µs (cut) is above the makespan 4 µs, so it is not a bound
    "#]],
    );
}

#[test]
fn causality() {
    check(
        gather(),
        |s| drop(s.transfers.remove(5)),
        expect![[r#"
        not_delivered: rank 0 wants chunk 1 and never gets it
    "#]],
    );
    check(
        gather(),
        |s| drop(s.transfers.remove(0)),
        expect![[r#"
        sent_before_held: transfer 3 (link 2) sends chunk 0 from rank 1 at 2 µs, which that rank never holds
        not_delivered: rank 1 wants chunk 0 and never gets it
        not_delivered: rank 2 wants chunk 0 and never gets it
    "#]],
    );
    check(
        gather(),
        |s| delay(&mut s.transfers[4], -0.5),
        expect![[r#"
        not_sorted: transfer 4 starts at 1.5 µs, before the one listed ahead of it (2 µs); sort them by start
        sent_before_held: transfer 4 (link 2) sends chunk 0 from rank 1 at 1.5 µs, but that rank holds it only from 2 µs
        not_delivered: rank 2 wants chunk 0 and never gets it
        link_overlap: transfer 4 enters link 2 at 1.5 µs, while transfer 1 keeps it busy until 2 µs
    "#]],
    );
    check(
        reduce(),
        |s| s.transfers.retain(|t| t.chunks[0] != ChunkId(1)),
        expect![[r#"
        missing_contribution: rank 0 ends with chunk 1 without the contribution of rank 1 (and 1 other)
        missing_contribution: rank 1 ends with chunk 1 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 2 ends with chunk 1 without the contribution of rank 0 (and 1 other)
    "#]],
    );
    check(
        reduce(),
        |s| drop(s.transfers.remove(0)),
        expect![[r#"
        missing_contribution: rank 0 ends with chunk 0 without the contribution of rank 1
        missing_contribution: rank 1 ends with chunk 0 without the contribution of rank 1
        missing_contribution: rank 2 ends with chunk 0 without the contribution of rank 1
    "#]],
    );
    check(
        reduce(),
        |s| s.transfers.iter_mut().for_each(|t| t.kind = TransferKind::Reduce),
        expect![[r#"
        double_reduce: transfer 2 (link 0) reduces chunk 0 into rank 1 at 6 µs, which already counts the contribution of rank 1
        double_reduce: transfer 3 (link 2) reduces chunk 0 into rank 2 at 8 µs, which already counts the contribution of rank 1 (and 1 other)
        double_reduce: transfer 6 (link 0) reduces chunk 1 into rank 1 at 14 µs, which already counts the contribution of rank 1
        double_reduce: transfer 7 (link 2) reduces chunk 1 into rank 2 at 16 µs, which already counts the contribution of rank 1 (and 1 other)
        double_reduce: transfer 10 (link 0) reduces chunk 2 into rank 1 at 22 µs, which already counts the contribution of rank 1
        double_reduce: transfer 11 (link 2) reduces chunk 2 into rank 2 at 24 µs, which already counts the contribution of rank 1 (and 1 other)
    "#]],
    );
    check(
        reduce(),
        |s| s.transfers.iter_mut().for_each(|t| t.kind = TransferKind::Copy),
        expect![[r#"
        missing_contribution: rank 0 ends with chunk 0 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 1 ends with chunk 0 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 2 ends with chunk 0 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 0 ends with chunk 1 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 1 ends with chunk 1 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 2 ends with chunk 1 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 0 ends with chunk 2 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 1 ends with chunk 2 without the contribution of rank 0 (and 1 other)
        missing_contribution: rank 2 ends with chunk 2 without the contribution of rank 0 (and 1 other)
    "#]],
    );
}

/// Two ranks send their parts to a third over links of the same speed. Both may arrive together, but not together with
/// a copy.
#[test]
fn reduces_may_land_together_and_copies_may_not() {
    let links = vec![link(1, 0, 1.0, 0.01, Latency::Occupies), link(2, 0, 1.0, 0.01, Latency::Occupies)];
    let topology = machine(3, links, Vec::new());
    let schedule = timed(&topology, Request::new(Collective::Reduce, 3, 100), "0 @0 reduce\n0 @1 reduce");
    let together = Micros(2.0);
    assert!(schedule.transfers.iter().all(|transfer| transfer.end == together));
    check(
        (schedule, topology),
        |s| s.transfers[0].kind = TransferKind::Copy,
        expect![[r#"
        colliding_copy: transfer 1 (link 1) brings combining chunk 0 to rank 0 at 2 µs, the same instant as transfer 0, and one of the two is a copy
        missing_contribution: rank 0 ends with chunk 0 without the contribution of rank 0
    "#]],
    );
}

/// A ring of transfers that take no time: each would bring what the next sends, but no rank ever had it.
#[test]
fn nothing_justifies_itself() {
    let links = vec![
        link(0, 1, 0.0, 0.01, Latency::Occupies),
        link(1, 2, 0.0, 0.01, Latency::Occupies),
        link(2, 1, 0.0, 0.01, Latency::Occupies),
    ];
    let topology = machine(3, links, Vec::new());
    let schedule = timed(&topology, Request::new(Collective::Broadcast, 3, 0), "0 @0 copy\n0 @1 copy\n0 @2 copy");
    check(
        (schedule, topology),
        |s| drop(s.transfers.remove(0)),
        expect![[r#"
        sent_before_held: transfer 0 (link 1) sends chunk 0 from rank 1 at 0 µs, which that rank never holds
        sent_before_held: transfer 1 (link 2) sends chunk 0 from rank 2 at 0 µs, which that rank never holds
        not_delivered: rank 1 wants chunk 0 and never gets it
        not_delivered: rank 2 wants chunk 0 and never gets it
    "#]],
    );
}

#[test]
fn exclusivity() {
    check(
        gather(),
        |s| delay(&mut s.transfers[3], -0.5),
        expect![[r#"
        sent_before_held: transfer 3 (link 0) sends chunk 2 from rank 0 at 1.5 µs, but that rank holds it only from 2 µs
        not_delivered: rank 1 wants chunk 2 and never gets it
        link_overlap: transfer 3 enters link 0 at 1.5 µs, while transfer 0 keeps it busy until 2 µs
    "#]],
    );
    let shared = |latency| {
        let resources = vec![Resource::new("nic", MicrosPerByte(0.005))];
        let over = |to| Link { resources: [ResourceId(0)].into(), ..link(0, to, 1.0, 0.01, latency) };
        let topology = machine(3, vec![over(1), over(2)], resources);
        let schedule = timed(&topology, Request::new(Collective::Broadcast, 3, 100), "0 @0 copy\n0 @1 copy");
        (schedule, topology)
    };
    // α occupies the resource: free at 1.5; α pipelines: free at 0.5.
    assert_eq!(shared(Latency::Occupies).0.transfers[1].start, Micros(1.5));
    assert_eq!(shared(Latency::Pipelines).0.transfers[1].start, Micros(0.5));
    check(
        shared(Latency::Occupies),
        |s| delay(&mut s.transfers[1], -0.1),
        expect![[r#"
        resource_overlap: transfer 1 (link 1) enters resource 0 (nic) at 1.4 µs, while transfer 0 keeps it busy until 1.5 µs
    "#]],
    );
    check(
        shared(Latency::Pipelines),
        |s| delay(&mut s.transfers[1], -0.1),
        expect![[r#"
        resource_overlap: transfer 1 (link 1) enters resource 0 (nic) at 0.4 µs, while transfer 0 keeps it busy until 0.5 µs
    "#]],
    );
}

/// Messages shorter than the tolerance at their time must still follow each other on a link.
#[test]
fn the_tolerance_is_used_once() {
    let topology = machine(2, vec![link(0, 1, 0.0, 0.01, Latency::Occupies)], Vec::new());
    let mut request = Request::new(Collective::Broadcast, 2, 8);
    request.chunks_per_rank = 8;
    let lines: String = (0..8).map(|chunk| format!("{chunk} @0 copy\n")).collect();
    let mut schedule = timed(&topology, request, &lines);
    for transfer in &mut schedule.transfers {
        (transfer.start, transfer.end) = (Micros(1e5), Micros(1e5 + 0.01));
    }
    let rejection = verify(schedule, &topology).unwrap_err();
    assert!(rejection.violations.iter().all(|violation| violation.kind() == "link_overlap"));
    assert_eq!(rejection.violations.total(), 6); // the second just fits the tolerance
}

/// Members in the middle of a line; the rank between them only relays.
#[test]
fn a_relay_is_no_member() {
    let topology = ring(4, Latency::Pipelines);
    let members: RankSet = [Rank(0), Rank(2)].into_iter().collect();
    let request = Request { members, ..Request::new(Collective::AllGather, 4, 200) };
    let schedule = timed(&topology, request, "0 @0 copy\n0 @2 copy\n1 @4 copy\n1 @6 copy");
    check(
        (schedule, topology),
        |s| drop(s.transfers.pop()),
        expect![[r#"
        not_delivered: rank 0 wants chunk 1 and never gets it
    "#]],
    );
}

/// The keys that `verify --json` prints besides the text.
#[test]
fn evidence_is_typed() {
    let (mut schedule, topology) = gather();
    delay(&mut schedule.transfers[4], -0.5);
    let rejection = verify(schedule, &topology).unwrap_err();
    let found = rejection.violations.iter().find(|violation| violation.kind() == "sent_before_held").unwrap();
    assert_eq!(found.chunk(), Some(ChunkId(0)));
    assert_eq!(found.rank(), Some(Rank(1)));
    assert_eq!(found.link(), Some(LinkId(2)));
    assert_eq!(found.time(), Some(Micros(1.5)));
}
