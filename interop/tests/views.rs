//! Pictures of a timeline: trace, graph and page.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use expect_test::expect;
use interop::view;
use schedule::{ChunkId, Collective, Demand, Message, Request, Schedule, Timeline, TransferKind, VerifiedSchedule};
use schedule::{replay, verify};
use std::sync::Arc;
use topology::LinkId;

/// Two chunks from rank 0 around a ring of three: 2 µs a step, the second right behind the first.
fn pipeline() -> VerifiedSchedule {
    of_machine("by hand")
}

fn of_machine(name: &str) -> VerifiedSchedule {
    let topology = topology::resolve("ring:3,alpha=1us,bandwidth=0.1GBps").unwrap().renamed(name);
    let topology = Arc::new(topology);
    let mut request = Request::new(Collective::Broadcast, 3, 200);
    request.chunks_per_rank = 2;
    let demand = Demand::new(request).unwrap();
    let message = |(chunk, link)| Message {
        chunks: [ChunkId(chunk)].into_iter().collect(),
        link: LinkId(link),
        kind: TransferKind::Copy,
    };
    let order: Vec<_> = [(0, 0), (1, 0), (0, 1), (1, 1)].into_iter().map(message).collect();
    let transfers = replay(&demand, &topology, &order).unwrap();
    let schedule = Schedule::new(&topology, Arc::new(demand), transfers, "by hand");
    verify(schedule, &topology).unwrap()
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes).expect("memory takes everything");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn the_trace_is_json_with_one_event_per_track_and_transfer() {
    let verified = pipeline();
    let text = written(|out| view::trace(&Timeline::of(&verified), out));
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(spans.len(), 4);
    expect![[r#"{"args":{"arrives_us":4.0,"chunks":[1],"from":0,"kind":"copy","to":1,"transfer":1},"dur":2.0,"name":"chunk 1","ph":"X","pid":0,"tid":0,"ts":2.0}"#]]
        .assert_eq(&spans[1].to_string());
}

#[test]
fn the_graph() {
    let verified = pipeline();
    expect![[r#"
        digraph schedule {
          label="broadcast on by hand: 6 µs";
          node [shape=circle];
          subgraph cluster_0 { label="machine 0"; 0; 1; 2; }
          0 -> 1 [label="200 B in 2, busy 67%"];
          1 -> 2 [label="200 B in 2, busy 67%"];
        }
    "#]]
    .assert_eq(&written(|out| view::dot(&Timeline::of(&verified), out)));
}

/// Thirds of a microsecond and of a chunk are shown with four digits.
#[test]
fn numbers_are_for_people() {
    let verified = pipeline();
    let mut timeline = Timeline::of(&verified);
    timeline.size_bytes = 63_999_999;
    for message in &mut timeline.messages {
        message.end = message.end * (1.0 / 0.0009);
    }
    let page = written(|out| view::html(&timeline, out));
    assert!(page.contains(r#""title":"broadcast of 64 MB on by hand","facts":"makespan 6.667 ms""#), "{page}");
    assert!(written(|out| view::dot(&timeline, out)).contains(r#"label="broadcast on by hand: 6.667 ms""#));
}

#[test]
fn the_page_is_self_contained() {
    let verified = of_machine("</script><b>\"");
    let page = written(|out| view::html(&Timeline::of(&verified), out));
    for outside in ["http", "src=", "href", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("</script>").count(), 1);
    let data = page.split_once("const data = ").unwrap().1.split_once(";\nconst ROW").unwrap().0;
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!((&data["makespan"], &data["facts"]), (&6.0.into(), &"makespan 6 µs".into()));
    assert_eq!(data["tracks"][1]["spans"][1], serde_json::json!([4.0, 2.0, 6.0, 1, "chunk 1 1 → 2"]));
}
