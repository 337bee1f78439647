//! Many violations of one kind: they are counted, and their text stays short.

use crate::plans::ring;
use expect_test::{Expect, expect};
use schedule::{Chunk, ChunkId, Collective, Demand, RankSet, Request, Schedule, verify};
use std::sync::Arc;
use topology::{Latency, Rank};

/// The violations of an empty schedule for many ranks are a short text.
#[test]
fn long_lists_are_counted() {
    let topology = ring(100, Latency::Occupies);
    let holders = RankSet::one(Rank(0));
    let chunk =
        Chunk { holders, wanted_by: RankSet::all(100), combine: false, bytes: None, release: topology::Micros::ZERO };
    let demand = Demand::from_chunks(Request::new(Collective::Custom, 100, 1), vec![chunk]).unwrap();
    let empty = Schedule::new(&topology, Arc::new(demand), Vec::new(), "nothing");
    let violations = verify(empty, &topology).unwrap_err().violations;
    assert_eq!(violations.total(), 16);
    let last = violations.iter().last().unwrap().to_string();
    expect!["rank 16 wants chunk 0 and never gets it (and 83 other ranks)"].assert_eq(&last);
}

/// Chunks that no transfer carries are counted from the request, and a long list is cut off.
#[test]
fn what_nobody_moves_is_counted() {
    let topology = ring(100, Latency::Occupies);
    let empty = |collective, expected: Expect| {
        let demand = Arc::new(Demand::new(Request::new(collective, 100, 10_000)).unwrap());
        let schedule = Schedule::new(&topology, demand, Vec::new(), "nothing");
        let violations = verify(schedule, &topology).unwrap_err().violations;
        let of_one = violations.iter().filter(|found| found.chunk() == Some(ChunkId(1)));
        let lines: Vec<_> = of_one.map(ToString::to_string).collect();
        let (first, last) = (&lines[0], &lines[lines.len() - 1]);
        let (listed, more) = (violations.iter().count(), violations.more());
        expected.assert_eq(&format!("{first}\n{last}\n{listed} and {more} more\n"));
    };
    empty(
        Collective::AllGather,
        expect![[r#"
            rank 0 wants chunk 1 and never gets it
            rank 16 wants chunk 1 and never gets it (and 83 other ranks)
            1000 and 600 more
        "#]],
    );
    empty(
        Collective::AllReduce,
        expect![[r#"
            rank 0 ends with chunk 1 without the contribution of rank 1 (and 98 others)
            rank 15 ends with chunk 1 without the contribution of rank 0 (and 98 others); and 84 other ranks end without parts of it
            1000 and 600 more
        "#]],
    );
}
