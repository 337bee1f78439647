//! Tables that are confirmed while a program runs.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use comm::{Communicator, Config, Op, PlanTable, RankPlaces};
use schedule::{Collective, Demand, ReduceOp, Request, file};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use synth::{Problem, SearchOptions, StrategyKind};
use tune::{ChoiceRange, TableCell, TableKey, TuningTable};

const RANKS: usize = 3;
/// On a busy machine many comparisons may be needed, because the noise hides the difference.
const MOST_CALLS: usize = 100_000;
const CALLS_AFTER: usize = 100;
const EVERY: u32 = 8;
/// What is said of calls that stock serves.
const FASTER: &str = "stock, because it was faster than the table's plan in this program";
const IN_TURN: &str = "stock, because this call is timed, and its turn has come beside the table's plan";

/// A table whose plan sends a short vector around a ring in 64 chunks, twice: no other way is as slow.
fn slow_table(path: &Path, emulated: Option<&str>) {
    let topology = Arc::new(topology::resolve("ring:3").unwrap());
    let mut request = Request::new(Collective::AllReduce, RANKS, 3 * 64 * 4).with_chunks(64);
    request.op = Some(ReduceOp::Sum);
    let problem = Problem::new(topology, Arc::new(Demand::new(request).unwrap()));
    let options = SearchOptions { strategy: Some(StrategyKind::Classic), ..SearchOptions::default() };
    let plan = synth::synthesize(&[problem], &options, &|_| {}).unwrap().schedule;
    let mut text = Vec::new();
    file::write(&plan, &mut text).unwrap();
    let ranges =
        vec![ChoiceRange { from_bytes: 0, to_bytes: None, plan: Some("slow".to_owned()), evidence: Vec::new() }];
    let table = TuningTable::new(
        TableKey { topology: emulated.map(str::to_owned), ..TableKey::of(vec![0; RANKS], env!("CARGO_PKG_VERSION")) },
        vec![TableCell::of_any(Collective::AllReduce, ranges)],
        BTreeMap::from([("slow".to_owned(), serde_json::from_slice(&text).unwrap())]),
    );
    table.write(path).unwrap();
}

/// What has served each call, on each rank: up to some calls after the one from which on stock serves, or `most`. All ranks end
/// after the same call if they change plans at the same call. The lengths of vectors come in turn.
fn served(table: &Path, every: u32, most: usize, lengths: &'static [usize]) -> Vec<Vec<String>> {
    let master = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let rank = |rank: usize| {
        let config = Config {
            table: Some(table.to_owned()),
            confirm_every: every,
            secret: Some("a secret of this test".to_owned()),
            ..Config::new(rank, RANKS, master.clone())
        };
        move || {
            let comm = Communicator::connect(&config).unwrap();
            let call = |number: usize| {
                let mut vector = vec![number as f32; lengths[number % lengths.len()]];
                comm.all_reduce(&mut vector, Op::Sum).unwrap();
                assert!(vector.iter().all(|sum| *sum == (RANKS * number) as f32), "call {number}");
                comm.last_plan()
            };
            let mut served: Vec<String> = Vec::new();
            let mut left = most;
            while left > 0 {
                served.push(call(served.len() % 1000));
                let is_first_of_stock = served[served.len() - 1].contains(FASTER) && left > CALLS_AFTER;
                left = if is_first_of_stock { CALLS_AFTER } else { left - 1 };
            }
            let statistics = comm.statistics();
            let by_plan =
                |plan: &str| served.iter().filter(|said| said.contains(&format!(": {plan}, "))).count() as u64;
            for (plan, counted) in &statistics.plans {
                assert_eq!(by_plan(plan), counted.calls, "{plan} has served what is said of it");
                assert_eq!(counted.digests.values().sum::<u64>(), counted.calls, "{counted:?}");
            }
            served
        }
    };
    let ranks: Vec<_> = (0..RANKS).map(|number| std::thread::spawn(rank(number))).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn all_ranks_leave_a_plan_that_is_slower_than_stock_at_the_same_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    slow_table(&path, None);
    // All the same, or never the same twice in a row, all between 512 and 1023 bytes.
    for lengths in [&[192][..], &[192, 129, 250, 200, 255, 131, 177]] {
        let all = served(&path, EVERY, MOST_CALLS, lengths);
        assert!(all.iter().all(|rank| *rank == all[0]), "every call has the same plan on all ranks");
        let is_of_table = |plan: &String| plan.contains("table.json");
        let last = &all[0][all[0].len() - 1];
        assert!(is_of_table(&all[0][0]) && all[0].len() < MOST_CALLS, "{last}");
        let left = all[0].iter().position(|plan| plan.contains(FASTER)).unwrap();
        assert!(left > 80 * EVERY as usize, "not before it was compared twice: {left}");
        let is_timed = |plan: &&String| plan.contains(IN_TURN);
        let (before, after) = all[0].split_at(left);
        assert!(before.iter().all(|plan| is_of_table(plan) || is_timed(&plan)));
        assert!(before.iter().filter(is_timed).count() >= 40);
        assert!(after.iter().all(|plan| plan.contains(FASTER) || is_of_table(plan)));
    }
}

#[test]
fn a_plan_stays_if_nobody_asks_for_confirmation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    slow_table(&path, None);
    let all = served(&path, 0, 2000, &[192]);
    assert!(all.iter().flatten().all(|plan| plan.contains("table.json")));
}

/// Links that are paced say nothing about those that are here.
#[test]
fn a_table_of_an_emulated_machine_serves_only_ranks_that_emulate_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    slow_table(&path, Some("abc"));
    let read = |emulated| PlanTable::read_for(&path, emulated).unwrap();
    assert_eq!([None, Some("abd"), Some("abc")].map(|emulated| read(emulated).is_empty()), [true, true, false]);
    let why = read(None).misfits(RankPlaces::on(&[0; RANKS])).remove(0);
    assert!(why.contains("was measured on an emulated machine") && why.contains("table.json"), "{why}");
    assert!(
        read(Some("abc")).misfits(RankPlaces::on(&[0; RANKS])).is_empty()
            && !PlanTable::read(&path).unwrap().is_empty()
    );
    let all = served(&path, 0, 3, &[192]);
    assert!(
        all.iter()
            .flatten()
            .all(|plan| plan.contains("stock, because ") && plan.contains("it was measured on an emulated machine")),
        "{all:?}"
    );
}
