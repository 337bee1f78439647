//! `antiphon-schedule/1`: the published example, round trips, and what a file may get wrong.

use crate::plans::{Dice, any_plan, any_started_plan, plan, ring};
use expect_test::{Expect, expect};
use schedule::{Chunk, ChunkId, Collective, Demand, RankSet, Request, file, verify};
use std::sync::Arc;
use topology::{Bytes, Latency, Rank, Topology};

const EXAMPLE: &str = include_str!("../../../tests/data/example-schedule.json");

fn example_topology() -> Arc<Topology> {
    let text = include_str!("../../../tests/data/example-topology.json");
    Arc::new(topology::from_json(text, "example").expect("published as valid"))
}

fn written(schedule: &schedule::VerifiedSchedule) -> String {
    let mut bytes = Vec::new();
    file::write(schedule, &mut bytes).expect("memory takes everything");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn the_example_verifies_and_reads_back() {
    let verified = file::read(EXAMPLE, "example").unwrap().verify(&example_topology()).unwrap();
    let text = written(&verified);
    let again = file::read(&text, "again").unwrap().verify(&example_topology()).unwrap();
    assert_eq!(again, verified);
    assert_eq!(written(&again), text);
    expect![[r#"
        {
        "format": "antiphon-schedule/1",
        "topology": {"name":"ring:3,alpha=1us,bandwidth=100MBps"},
        "collective": "allgather",
        "root": null,
        "ranks": 3,
        "size_bytes": 300,
        "chunks_per_rank": 1,
        "chunk_bytes": 100.0,
        "chunks": [
         {"id": 0, "holders": [0], "wanted_by": [0, 1, 2], "combine": false},
         {"id": 1, "holders": [1], "wanted_by": [0, 1, 2], "combine": false},
         {"id": 2, "holders": [2], "wanted_by": [0, 1, 2], "combine": false}
        ],
        "transfers": [
         {"chunks": [0], "from": 0, "to": 1, "link": 0, "kind": "copy", "start_us": 0.0, "end_us": 2.0},
         {"chunks": [1], "from": 1, "to": 2, "link": 1, "kind": "copy", "start_us": 0.0, "end_us": 2.0},
         {"chunks": [2], "from": 2, "to": 0, "link": 2, "kind": "copy", "start_us": 0.0, "end_us": 2.0},
         {"chunks": [2], "from": 0, "to": 1, "link": 0, "kind": "copy", "start_us": 2.0, "end_us": 4.0},
         {"chunks": [0], "from": 1, "to": 2, "link": 1, "kind": "copy", "start_us": 2.0, "end_us": 4.0},
         {"chunks": [1], "from": 2, "to": 0, "link": 2, "kind": "copy", "start_us": 2.0, "end_us": 4.0}
        ],
        "makespan_us": 4.0,
        "lower_bound_us": 4.0,
        "bound": "ingress",
        "gap": 0.0,
        "produced_by": {"strategy":"classic/ring","seed":0,"options":{}}
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn what_is_written_reads_back_to_the_bit() {
    let plans = (0..300).map(|seed| (seed, any_plan(seed))).chain((0..100).map(|seed| (seed, any_started_plan(seed))));
    for (seed, (schedule, topology)) in plans {
        let verified = verify(schedule, &topology).unwrap();
        let text = written(&verified);
        let again = file::read(&text, "again").unwrap().verify(&topology).unwrap();
        assert_eq!(again, verified, "seed {seed}");
        assert_eq!(written(&again), text, "seed {seed}");
    }
}

/// Only chunks of custom collectives start later, and a start is a time that a plan can have.
#[test]
fn releases_are_refused_where_there_are_none() {
    let release = |time: &str| format!("\"combine\": false, \"release_us\": {time}}}");
    let standard = EXAMPLE.replacen("\"combine\": false}", &release("2.0"), 1);
    let standard = if standard == EXAMPLE {
        EXAMPLE.replacen("\"combine\": false", "\"combine\": false, \"release_us\": 2.0", 1)
    } else {
        standard
    };
    let refused = file::read(&standard, "bad.json").unwrap_err().to_string();
    assert!(refused.contains("chunk 0 has a release_us, which only chunks of a custom collective have"), "{refused}");
    let (plan, topology) = any_started_plan(7);
    let text = written(&verify(plan, &topology).unwrap());
    let (before, rest) = text.split_once("\"release_us\": ").expect("it starts later");
    let after = &rest[rest.find('}').unwrap()..];
    for wrong in ["-1.0", "1e6", "1e10", "1e999", "\"soon\""] {
        let refused = file::read(&format!("{before}\"release_us\": {wrong}{after}"), "bad.json").unwrap_err();
        assert!(refused.to_string().starts_with("bad.json:"), "{refused}");
    }
    // A reader that takes the chunk to be there earlier accepts the plan; one that takes it to come later does not.
    let earlier = file::read(&format!("{before}\"release_us\": 0.0{after}"), "g.json").unwrap();
    assert!(earlier.verify(&topology).is_ok());
    let later = file::read(&format!("{before}\"release_us\": 1e5{after}"), "g.json").unwrap();
    assert!(later.verify(&topology).is_err());
}

/// A file may number its chunks as it likes; after reading, they are numbered as the demand numbers them.
#[test]
fn chunk_ids_become_canonical() {
    let mut text = EXAMPLE.to_owned();
    for (old, new) in
        [("\"id\": 0", "\"id\": 700000000000"), ("[\n    0\n   ],\n   \"from\"", "[700000000000], \"from\"")]
    {
        assert!(text.contains(old));
        text = text.replace(old, new);
    }
    let read = file::read(&text, "renumbered").unwrap();
    assert_eq!(read.schedule.transfers[0].chunks[0], ChunkId(0));
    read.verify(&example_topology()).unwrap();
}

/// Replaces the first `old` of the example by `new` and lists the violations.
fn check_violations(old: &str, new: &str, expected: Expect) {
    assert!(EXAMPLE.contains(old), "{old}");
    let read = file::read(&EXAMPLE.replacen(old, new, 1), "example").unwrap();
    let rejection = read.verify(&example_topology()).unwrap_err();
    let lines: Vec<_> = rejection.violations.iter().map(|v| format!("{}: {v}\n", v.kind())).collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn statements_that_do_not_follow_are_violations() {
    check_violations(
        "\"makespan_us\": 4.0",
        "\"makespan_us\": 3.5",
        expect![[r#"
        wrong_makespan: makespan_us is stated as 3.5 µs, but the last transfer ends at 4 µs
    "#]],
    );
    check_violations(
        "\"gap\": 0.0",
        "\"gap\": 0.1",
        expect![[r#"
        wrong_gap: gap is stated as 0.1, but makespan / bound - 1 is 0
    "#]],
    );
    check_violations(
        "\"lower_bound_us\": 4.0",
        "\"lower_bound_us\": 5.0",
        expect![[r#"
        wrong_gap: gap is stated as 0, but makespan / bound - 1 is -0.2
        bound_above_makespan: the lower bound 5 µs (ingress) is above the makespan 4 µs, so it is not a bound
    "#]],
    );
    check_violations(
        "\"chunk_bytes\": 100",
        "\"chunk_bytes\": 50",
        expect![[r#"
        wrong_chunk_bytes: chunk_bytes is 50 B, but the request makes it 100 B
    "#]],
    );
    check_violations(
        "\"combine\": false",
        "\"combine\": true",
        expect![[r#"
        wrong_demand: chunk 0 of the file, held by ranks 0 and wanted by ranks 0-2, is no part of the collective
        wrong_demand: the file has no chunk held by ranks 0 and wanted by ranks 0-2, which the collective needs
        unknown_chunk: transfer 0 carries chunk 3, but there are only 3 chunks
        unknown_chunk: transfer 4 carries chunk 3, but there are only 3 chunks
        not_delivered: rank 1 wants chunk 0 and never gets it
        not_delivered: rank 2 wants chunk 0 and never gets it
    "#]],
    );
    check_violations(
        "\"combine\": false",
        "\"combine\": false, \"bytes\": 99",
        expect![[r#"
        wrong_chunk_bytes: chunk 0 of the file has 99 B, but the request makes it 100 B
    "#]],
    );
    check_violations(
        "\"chunks_per_rank\": 1",
        "\"chunks_per_rank\": 2",
        expect![[r#"
        wrong_chunk_bytes: chunk_bytes is 100 B, but the request makes it 50 B
        wrong_demand: the file has no chunk held by ranks 0 and wanted by ranks 0-2, which the collective needs (and 2 others)
        wrong_duration: transfer 0 (link 0) starts at 0 µs and states its end as 2 µs; the link's cost makes it 1.5 µs
        wrong_duration: transfer 1 (link 1) starts at 0 µs and states its end as 2 µs; the link's cost makes it 1.5 µs
        wrong_duration: transfer 2 (link 2) starts at 0 µs and states its end as 2 µs; the link's cost makes it 1.5 µs
        wrong_duration: transfer 3 (link 0) starts at 2 µs and states its end as 4 µs; the link's cost makes it 3.5 µs
        wrong_duration: transfer 4 (link 1) starts at 2 µs and states its end as 4 µs; the link's cost makes it 3.5 µs
        wrong_duration: transfer 5 (link 2) starts at 2 µs and states its end as 4 µs; the link's cost makes it 3.5 µs
        not_delivered: rank 1 wants chunk 1 and never gets it
        not_delivered: rank 2 wants chunk 1 and never gets it
        not_delivered: rank 0 wants chunk 3 and never gets it
        not_delivered: rank 2 wants chunk 3 and never gets it
        not_delivered: rank 0 wants chunk 5 and never gets it
        not_delivered: rank 1 wants chunk 5 and never gets it
    "#]],
    );
    check_violations(
        "[\n    0\n   ],\n   \"from\"",
        "[17], \"from\"",
        expect![[r#"
        unknown_chunk: transfer 0 carries chunk 17, but there are only 3 chunks
        sent_before_held: transfer 4 (link 1) sends chunk 0 from rank 1 at 2 µs, which that rank never holds
        not_delivered: rank 1 wants chunk 0 and never gets it
        not_delivered: rank 2 wants chunk 0 and never gets it
    "#]],
    );
}

fn check_error(text: &str, expected: Expect) {
    expected.assert_eq(&file::read(text, "bad.json").unwrap_err().to_string());
}

#[test]
fn what_is_no_schedule_is_an_error_with_a_place() {
    let with = |old: &str, new: &str| {
        assert!(EXAMPLE.contains(old), "{old}");
        EXAMPLE.replacen(old, new, 1)
    };
    check_error("", expect!["bad.json:1:1: the text ends here, and something is missing: was the file cut off?"]);
    check_error("[1, 2]", expect!["bad.json:1:2: found the number `1`, expected a text"]);
    check_error(
        &EXAMPLE[..700],
        expect!["bad.json:59:17: the text ends here, and something is missing: was the file cut off?"],
    );
    check_error(
        &with("schedule/1", "schedule/9"),
        expect!["bad.json:2:32: unknown format `antiphon-schedule/9`, expected `antiphon-schedule/1`"],
    );
    check_error(
        &with("\"gap\"", "\"gpa\""),
        expect![
            "bad.json:121:6: unknown field `gpa`, expected one of `format`, `topology`, `collective`, `op`, `root`, `ranks`, `members`, `size_bytes`, `chunks_per_rank`, `chunk_bytes`, `chunks`, `symmetry`, `transfers`, `makespan_us`, `lower_bound_us`, `bound`, `gap`, `produced_by`"
        ],
    );
    check_error(
        &with("allgather", "allgathr"),
        expect![
            "bad.json:6:25: unknown word `allgathr`, expected one of `allgather`, `reducescatter`, `allreduce`, `alltoall`, `alltoallv`, `broadcast`, `reduce`, `gather`, `scatter`, `sendrecv`, `custom`"
        ],
    );
    check_error(&with("\"id\": 1", "\"id\": 0"), expect!["bad.json:37:2: chunk id 0 is used twice"]);
    check_error(&with("\"makespan_us\": 4.0", "\"makespan_us\": NaN"), expect!["bad.json:118:17: expected value"]);
    check_error(
        &with("\"makespan_us\": 4.0", "\"makespan_us\": 1e999"),
        expect!["bad.json:118:21: number out of range"],
    );
    check_error(
        &with("\"from\": 0", "\"from\": -1"),
        expect!["bad.json:55:13: found the number `-1`, expected a whole number from 0 to 4294967295"],
    );
    check_error(
        &with("\"ranks\": 3", "\"ranks\": 1000000000"),
        expect!["bad.json:8:20: 1000000000 ranks are more than the 131072 that are supported"],
    );
    check_error(
        &with("\"size_bytes\": 300", "\"size_bytes\": 1000000000000000000"),
        expect!["bad.json:9:34: 1000000000000000000 bytes are more than the 1125899906842624 that are supported"],
    );
    check_error(
        &with("\"chunks_per_rank\": 1", "\"chunks_per_rank\": 4000000000"),
        expect!["bad.json:10:30: the file lists 3 chunks, but with this many per rank there are 12000000000"],
    );
    check_error(
        &with("\"chunks_per_rank\": 1", "\"chunks_per_rank\": 1000000"),
        expect!["bad.json:10:27: the file lists 3 chunks, but with this many per rank there are 3000000"],
    );
    check_error(&with("\"root\": null", "\"root\": 1"), expect!["bad.json:7:10: allgather has no root"]);
}

/// Every way to cut the file short is a typed error.
#[test]
fn truncated_files() {
    let end = EXAMPLE.trim_end().len();
    for length in 0..end {
        assert!(file::read(&EXAMPLE[..length], "cut").is_err(), "{length} bytes");
    }
}

/// Where chunks do not follow from the request, they come from the file.
#[test]
fn listed_chunks_read_back() {
    let topology = ring(4, Latency::Occupies);
    let matrix: Vec<Vec<u64>> = (0..4).map(|i| (0..4).map(|j| (i * j * 10) % 70).collect()).collect();
    let request = Request::new(Collective::AllToAllV, 4, 1000);
    let by_matrix = Demand::from_matrix(request, &matrix).unwrap();
    let chunk = |bytes| Chunk {
        holders: [Rank(0), Rank(2)].into_iter().collect(),
        wanted_by: RankSet::all(4),
        combine: false,
        bytes,
        release: topology::Micros::ZERO,
    };
    let request = Request::new(Collective::Custom, 4, 1000);
    let by_hand = Demand::from_chunks(request, vec![chunk(None), chunk(Some(Bytes(0.5)))]).unwrap();
    for demand in [by_matrix, by_hand] {
        let verified = verify(plan(demand, &topology, &mut Dice(5)), &topology).unwrap();
        let again = file::read(&written(&verified), "again").unwrap().verify(&topology).unwrap();
        assert_eq!(again, verified);
    }
}

/// The data that an AllToAll rank keeps for itself may be listed; the ids of other chunks do not change.
#[test]
fn own_shares_may_be_listed() {
    let topology = ring(3, Latency::Occupies);
    let demand = Demand::new(Request::new(Collective::AllToAll, 3, 900)).unwrap();
    let verified = verify(plan(demand, &topology, &mut Dice(5)), &topology).unwrap();
    let text = written(&verified);
    let own = |id: u32, rank: u32| {
        format!("{{\"id\": {id}, \"holders\": [{rank}], \"wanted_by\": [{rank}], \"combine\": false}}")
    };
    let listed = text.replace("\"chunks\": [\n", &format!("\"chunks\": [\n {}, {},\n", own(100, 0), own(101, 2)));
    assert_ne!(listed, text);
    assert_eq!(file::read(&listed, "listed").unwrap().verify(&topology).unwrap(), verified);
    // Each rank keeps one chunk, and there is no rank 7.
    for extra in [format!("{}, {}", own(100, 0), own(101, 0)), own(100, 7)] {
        let listed = text.replace("\"chunks\": [\n", &format!("\"chunks\": [\n {extra},\n"));
        let refused = file::read(&listed, "listed").unwrap().verify(&topology).unwrap_err();
        assert!(refused.to_string().contains("wrong_demand"), "{refused}");
    }
}

/// Random damage gives an error, a violation or the same meaning, but never a panic.
#[test]
fn damaged_files() {
    let (topology, dice) = (example_topology(), &mut Dice(11));
    let mut refused = 0;
    for _ in 0..3000 {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        for _ in 0..1 + dice.below(3) {
            let place = dice.below(bytes.len());
            bytes[place] = b"0123456789-.e,:[]{}\"nt "[dice.below(23)];
        }
        let text = String::from_utf8(bytes).unwrap();
        let judged = file::read(&text, "damaged").map(|read| read.verify(&topology));
        refused += usize::from(!matches!(judged, Ok(Ok(_))));
    }
    assert!((500..3000).contains(&refused), "{refused}");
}
