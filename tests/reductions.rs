//! Whether all ranks end a reduction with the same bits, whichever strategy has made the plan.

use crate::binary::antiphon_in;
use program::{LowerOptions, adds_differently, check, lower};
use runtime::{Call, DType, ExecutionOptions, run_threads};
use schedule::{Collective, Demand, ReduceOp, Request, VerifiedSchedule};
use std::sync::Arc;
use std::time::Duration;
use synth::{Problem, SearchOptions, StrategyKind, synthesize};

/// Sums of these depend on their order.
const VALUES: [f32; 8] = [1.0, 1e30, -1e30, 3.0, 1e-7, -1e30, 1e30, 0.1];
const COUNT: usize = 96;

/// The ranks whose sums have other bits than those of rank 0.
fn others(schedule: &VerifiedSchedule) -> Vec<usize> {
    let program = check(lower(schedule, &LowerOptions::default()).unwrap()).unwrap();
    let ranks = program.program().ranks.len();
    let of_rank = |rank: usize| (0..COUNT).flat_map(move |at| VALUES[(rank + at) % VALUES.len()].to_ne_bytes());
    let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| of_rank(rank).collect()).collect();
    let mut outputs = vec![vec![0; 4 * COUNT]; ranks];
    let calls = inputs.iter().zip(&mut outputs).map(|(input, output)| Call::OutOfPlace { input, output });
    run_threads(&program, COUNT as u64, DType::F32, calls.collect(), &ExecutionOptions::default()).unwrap();
    (0..ranks).filter(|&rank| outputs[rank] != outputs[0]).collect()
}

#[test]
fn plans_of_every_strategy_give_the_same_sum_on_all_ranks() {
    let mut planned = 0;
    for spec in ["clique:3", "dgx1", "ring:5"] {
        let topology = Arc::new(topology::resolve(spec).unwrap());
        for (size, &strategy) in
            [1 << 10, 1 << 22].into_iter().flat_map(|size| StrategyKind::ALL.iter().map(move |it| (size, it)))
        {
            let mut request = Request::new(Collective::AllReduce, topology.rank_count(), size);
            request.op = Some(ReduceOp::Sum);
            let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
            let limit = Some(Duration::from_millis(300));
            let search = SearchOptions { strategy: Some(strategy), time_limit: limit, ..SearchOptions::default() };
            // Not every strategy has a plan for every machine.
            let Ok(found) = synthesize(&[problem], &search, &|_| {}) else { continue };
            planned += 1;
            assert_eq!(adds_differently(&found.schedule), None, "{spec}, {size} bytes, {strategy:?}");
            let others = others(&found.schedule);
            assert!(others.is_empty(), "{spec}, {size} bytes, {strategy:?}: {others:?} have other bits than rank 0");
        }
    }
    assert!(planned > 20, "{planned} plans");
}

/// Blocks of ranks merge: some of a block send its sum on, and the others only receive those of other blocks. With more bytes, each
/// member of a block adds up a share.
#[test]
fn blocks_that_merge_give_the_same_sum_on_all_ranks() {
    let small = ["dgx2x2", "dgx1", "torus2d:3x4", "mesh2d:4x4", "fat-tree:4x4", "h800x2"].map(|spec| (spec, 4096));
    let larger = ["torus2d:4x4", "torus2d:3x4", "torus3d:3x3x3", "dgx1", "h800x2"].map(|spec| (spec, 64_000));
    let (mut merged, mut shared) = (0, 0);
    for (spec, size) in small.into_iter().chain(larger) {
        let topology = Arc::new(topology::resolve(spec).unwrap());
        let mut request = Request::new(Collective::AllReduce, topology.rank_count(), size);
        request.op = Some(ReduceOp::Sum);
        let problem = Problem::new(topology, Arc::new(Demand::new(request).unwrap()));
        let search = SearchOptions { time_limit: Some(Duration::from_secs(1)), ..SearchOptions::default() };
        let found = synthesize(&[problem], &search, &|_| {}).unwrap();
        merged += usize::from(found.report.strategy == "classic/multiplying");
        shared += usize::from(found.report.strategy == "classic/shares");
        assert_eq!(adds_differently(&found.schedule), None, "{spec}, {}", found.report.strategy);
        let others = others(&found.schedule);
        assert!(others.is_empty(), "{spec}, {}: {others:?} have other bits than rank 0", found.report.strategy);
    }
    assert!(merged > 2, "{merged} plans merge blocks");
    assert!(shared > 2, "{shared} plans share the work");
}

/// Two pairs of ranks with a link each way, and a way between the pairs in one direction only. In another order of rounds, all ranks
/// would have all values, but two of them as (0 + 3) + (1 + 2).
#[test]
fn one_way_links_give_the_same_sum_on_all_ranks() {
    let pairs = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 1), (1, 3), (3, 0)];
    let link =
        |(from, to): (u32, u32)| serde_json::json!({"from": from, "to": to, "alpha_us": 1.0, "beta_us_per_byte": 2e-5});
    let machine = serde_json::json!({
        "format": "antiphon-topology/1", "name": "one-way", "ranks": 4, "links": pairs.map(link)
    });
    let topology = Arc::new(topology::from_json(&machine.to_string(), "one-way").unwrap());
    for size in [1024, 65_536, 1 << 20] {
        let mut request = Request::new(Collective::AllReduce, 4, size).with_chunks(2);
        request.op = Some(ReduceOp::Sum);
        let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
        let search = SearchOptions { time_limit: Some(Duration::from_millis(300)), ..SearchOptions::default() };
        let found = synthesize(&[problem], &search, &|_| {}).unwrap();
        assert_eq!(adds_differently(&found.schedule), None, "{size}: {}", found.report.strategy);
        assert!(others(&found.schedule).is_empty(), "{size}: {}", found.report.strategy);
    }
}

/// Rank 0 ends with ((a + b) + c) + d and the others with (a + b) + (c + d): both commands say so. A plan of ours is silent.
#[test]
fn plans_that_add_differently_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let synth = "synth --topology clique:4 --collective allreduce --strategy classic --size 4KB -o plan.json -q";
    antiphon_in(folder, synth).ok();
    let verify = |file: &str| antiphon_in(folder, &format!("verify {file} --json")).ok();
    assert!(verify("plan.json").json()["adds_differently"].is_null());
    let mut plan: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("plan.json")).unwrap()).unwrap();
    let steps =
        [(1, 0, 0.0), (0, 1, 0.0), (3, 2, 0.0), (2, 0, 0.3), (2, 1, 0.6), (0, 2, 0.6), (3, 0, 0.9), (2, 3, 1.5)];
    let transfers = steps.iter().map(|&(from, to, start)| {
        let link = from * 3 + to - i32::from(to > from);
        let kind = if start > 1.0 { "copy" } else { "reduce" };
        serde_json::json!({
            "chunks": [0, 1, 2, 3], "from": from, "to": to, "link": link, "kind": kind, "start_us": start, "end_us": start + 0.58,
        })
    });
    plan["transfers"] = transfers.collect();
    plan["makespan_us"] = 2.08.into();
    ["bound", "lower_bound_us", "gap"].iter().for_each(|key| drop(plan.as_object_mut().unwrap().remove(*key)));
    std::fs::write(folder.join("uneven.json"), plan.to_string()).unwrap();
    let verified = verify("uneven.json");
    assert_eq!(verified.json()["adds_differently"], 0);
    let ran = antiphon_in(folder, "run uneven.json --iterations 5").ok();
    let largest = antiphon_in(folder, "run uneven.json --op max --iterations 5").ok();
    assert!(!largest.stderr.contains("different ways"), "a maximum has no order: {}", largest.stderr);
    for stderr in [verified.stderr, ran.stderr] {
        assert!(stderr.contains("add up chunk 0 in different ways"), "{stderr}");
    }
}
