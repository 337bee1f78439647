//! Ranks that are processes call NCCL's functions, over the fake NCCL of `tests/nccl` and the fake driver of `tests/cuda`: directly, with
//! this library preloaded, and with it in NCCL's place.
#![allow(clippy::unwrap_used, missing_docs)]

mod built;

use built::{CRATE, compile, library, real_nccl};
use program::testing::schedules::{
    Random, clique, demand, direct, random_trees, ring_allgather, ring_allreduce, ring_reducescatter,
};
use schedule::{Collective, VerifiedSchedule, file};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Long enough for what happens on a busy computer.
const PATIENT: (&str, &str) = ("FAKE_NCCL_LIMIT_MS", "60000");
/// For ranks that wait for what never comes: all ranks have to start within this time.
const SHORT: (&str, &str) = ("FAKE_NCCL_LIMIT_MS", "5000");

/// The two fakes under the names of what they stand for, and the program.
struct Place {
    folder: TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Alone,
    Preloaded,
    Instead,
}

impl Place {
    fn new(extra: &[&str]) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let built = std::env::current_exe().unwrap();
        for (name, fake) in [("libcuda.so", "libfake_cuda.so"), ("libnccl.so.2", "libfake_nccl.so")] {
            std::os::unix::fs::symlink(built.with_file_name(fake), place.path(name)).unwrap();
        }
        std::fs::create_dir(place.path("instead")).unwrap();
        let link = |program: &str, nccl: &Path| {
            let (cuda, nccl) = (place.path("libcuda.so"), nccl.to_str().unwrap().to_owned());
            let arguments = [extra, &[nccl.as_str(), cuda.to_str().unwrap()]].concat();
            compile("ranks.c", &place.path(program), &arguments);
        };
        link("ranks", &place.path("libnccl.so.2"));
        link("instead/ranks", &library());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The driver of the computer, and the NCCL that ANTIPHON_NCCL names.
    fn with_gpu() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let nccl = std::env::var("ANTIPHON_NCCL").expect("ANTIPHON_NCCL=/path/to/libnccl.so.2, of 2.30.3 or newer");
        std::os::unix::fs::symlink(nccl, place.path("libnccl.so.2")).unwrap();
        std::fs::create_dir(place.path("instead")).unwrap();
        let folders = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let folders: Vec<_> =
            folders.split(':').chain(["/usr/local/nvidia/lib64"]).map(|at| format!("-L{at}")).collect();
        for (program, nccl) in [("ranks", place.path("libnccl.so.2")), ("instead/ranks", library())] {
            let mut arguments: Vec<_> = folders.iter().map(String::as_str).collect();
            arguments.extend([nccl.to_str().unwrap(), "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]);
            compile("ranks.c", &place.path(program), &arguments);
        }
        place
    }

    /// What the ranks say, and what this library says.
    fn run(&self, way: Way, ranks: usize, mode: &str, variables: &[(&str, &str)]) -> (Vec<String>, String) {
        let program = if way == Way::Instead { "instead/ranks" } else { "ranks" };
        let mut command = Command::new(self.path(program));
        for name in ["NCCL", "TABLE", "DEBUG", "STATS", "DISABLE"] {
            command.env_remove(format!("ANTIPHON_{name}"));
        }
        let mut folders = [self.folder.path(), library().parent().unwrap()].map(Path::to_path_buf).to_vec();
        folders.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
        command.args([ranks.to_string().as_str(), mode]).env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
        command.envs(variables.iter().copied());
        match way {
            Way::Alone => {}
            Way::Preloaded => drop(command.env("LD_PRELOAD", library())),
            Way::Instead => drop(command.env("ANTIPHON_NCCL", self.path("libnccl.so.2"))),
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let lines: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), ranks, "{lines:?} {said}");
        (lines, said)
    }
}

const WAYS: [Way; 3] = [Way::Alone, Way::Preloaded, Way::Instead];

/// With a GPU (`make gpu-test`): the same program over the real NCCL, by NCCL alone and by plans. All ranks share the first GPU.
#[test]
fn the_real_nccl_and_plans_serve_a_program_on_a_gpu() {
    if !std::env::var("ANTIPHON_GPU").is_ok_and(|driver| driver == "real") {
        return;
    }
    let place = Place::with_gpu();
    let numbers = place.path("numbers-%p.json");
    let (table, several) = (place.path("table.json"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1"));
    std::fs::write(&table, table_for(2, 8).to_string()).unwrap();
    for way in WAYS {
        for ranks in [1, 2] {
            let (lines, said) = place.run(way, ranks, "right", &[several, ("REAL_NCCL", "1")]);
            assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
            let (lines, said) = place.run(way, ranks, "nonblocking", &[several]);
            assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        }
        if way == Way::Alone {
            continue;
        }
        let variables = [
            several,
            ("REAL_NCCL", "1"),
            ("ANTIPHON_TABLE", table.to_str().unwrap()),
            ("ANTIPHON_STATS", numbers.to_str().unwrap()),
            ("ANTIPHON_DEBUG", "info"),
        ];
        let (lines, said) = place.run(way, 2, "right", &variables);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?} {said}");
        let counted = place.counted("numbers-");
        assert_eq!(counted.len(), 2, "{said}");
        for calls in counted {
            // Both parts of the split have one rank, which NCCL serves.
            let served = ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "reduce"];
            assert_eq!(served.map(|name| by_plans(&calls, name)), [3, 1, 1, 1, 1, 2], "{said}");
        }
    }
}

#[test]
fn collectives_messages_and_several_communicators() {
    let place = Place::new(&[]);
    for way in WAYS {
        for ranks in [1, 2, 4] {
            for seed in ["1", "2"] {
                let (lines, said) = place.run(way, ranks, "right", &[PATIENT, ("FAKE_CUDA_SEED", seed)]);
                assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
                assert_eq!(said, "", "it is silent");
            }
        }
        let (lines, _) = place.run(way, 3, "nonblocking", &[PATIENT]);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?}");
    }
}

/// One rank speaks, and every process counts its own calls.
#[test]
fn calls_of_real_communicators_are_counted() {
    let place = Place::new(&[]);
    for way in [Way::Preloaded, Way::Instead] {
        let numbers = place.path(&format!("{way:?}-%p.json"));
        let variables = [PATIENT, ("ANTIPHON_DEBUG", "info"), ("ANTIPHON_STATS", numbers.to_str().unwrap())];
        let (lines, said) = place.run(way, 3, "right", &variables);
        assert!(lines.iter().all(|line| line == "right 0"), "{lines:?} {said}");
        let once = |text: &str| assert_eq!(said.matches(text).count(), 1, "{text}: {said}");
        once("antiphon: allreduce of 3 ranks, 20 bytes: NCCL, because there is no table");
        once("antiphon: allgather of 3 ranks, 60 bytes: NCCL");
        once("antiphon: alltoall of 3 ranks, 60 bytes: NCCL");
        let is_ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{way:?}-"));
        let files = std::fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().path()).filter(is_ours);
        let mut seen = 0;
        for path in files {
            let numbers: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let calls = numbers["calls"].as_array().unwrap();
            let count = |name: &str, why: &str| {
                let entries = calls.iter().filter(|entry| entry["collective"] == name);
                let entries = entries.filter(|entry| entry["why"].as_str().unwrap().contains(why));
                entries.map(|entry| entry["calls"].as_u64().unwrap()).sum::<u64>()
            };
            // Two in the program's collectives, one of no bytes, one in a group, one of a rank alone, one where all meet, and one after
            // the communicator's end.
            assert_eq!((count("allreduce", ""), count("broadcast", ""), count("reduce", "")), (7, 2, 3));
            seen += 1;
        }
        assert_eq!(seen, 3, "one file of each rank");
    }
}

/// A tuning table for so many ranks of one machine: a plan for each collective that plans serve, from so many bytes on.
fn table_for(ranks: usize, from_bytes: u64) -> Value {
    let trees = |collective| random_trees(&clique(ranks), &demand(collective, ranks, 1), &mut Random(5));
    let plans: [(&str, VerifiedSchedule); 6] = [
        ("allreduce", ring_allreduce(ranks, 1)),
        ("allgather", ring_allgather(ranks, 1)),
        ("reducescatter", ring_reducescatter(ranks, 1)),
        ("broadcast", trees(Collective::Broadcast)),
        ("alltoall", direct(&demand(Collective::AllToAll, ranks, 1))),
        ("reduce", trees(Collective::Reduce)),
    ];
    let (mut cells, mut texts) = (Vec::new(), serde_json::Map::new());
    for (name, schedule) in plans {
        let mut text = Vec::new();
        file::write(&schedule, &mut text).unwrap();
        texts.insert(name.to_owned(), serde_json::from_slice(&text).unwrap());
        let stock = json!({"from_bytes": 0, "to_bytes": from_bytes, "plan": null, "evidence": []});
        let ours = json!({"from_bytes": from_bytes, "to_bytes": null, "plan": name, "evidence": []});
        cells.push(json!({"collective": name, "ranges": [stock, ours]}));
    }
    let key = json!({"ranks": ranks, "machines": vec![0; ranks], "version": "0.1.0", "policy": 1});
    json!({"format": "antiphon-table/1", "key": key, "cells": cells, "plans": texts})
}

impl Place {
    /// The calls that the processes of a run have counted, and removes the files.
    fn counted(&self, name: &str) -> Vec<Vec<Value>> {
        let is_ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(name);
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path()).filter(is_ours);
        let read = |path: PathBuf| {
            let numbers: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            std::fs::remove_file(path).unwrap();
            numbers["calls"].as_array().unwrap().clone()
        };
        files.map(read).collect()
    }
}

/// How many calls of a collective were served by plans.
fn by_plans(calls: &[Value], collective: &str) -> u64 {
    let entries = calls.iter().filter(|entry| entry["collective"] == collective && entry["served_by"] == "plan");
    entries.map(|entry| entry["calls"].as_u64().unwrap()).sum()
}

/// The same programs as without plans, unchanged: several communicators, one with the ranks the other way round, calls in place, split
/// communicators, groups, and calls after the end.
#[test]
fn plans_serve_programs_that_know_nothing_of_them() {
    let place = Place::new(&[]);
    let numbers = place.path("numbers-%p.json");
    for (way, ranks) in [(Way::Preloaded, 2), (Way::Instead, 3), (Way::Preloaded, 4)] {
        // The ranks 0 and 2 of four have a communicator of their own, with a table of its own.
        let tables = place.path(&format!("tables-{ranks}"));
        std::fs::create_dir(&tables).unwrap();
        for of in [2, ranks] {
            std::fs::write(tables.join(format!("{of}.json")), table_for(of, 8).to_string()).unwrap();
        }
        let variables = [
            PATIENT,
            ("ANTIPHON_TABLE", tables.to_str().unwrap()),
            ("ANTIPHON_STATS", numbers.to_str().unwrap()),
            ("ANTIPHON_DEBUG", "info"),
        ];
        let (lines, said) = place.run(way, ranks, "right", &variables);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        let bytes = 20 * ranks;
        assert!(said.contains(&format!("allreduce of {ranks} ranks, 20 bytes: the plan ")), "{said}");
        assert!(said.contains(&format!("allgather of {ranks} ranks, {bytes} bytes: the plan ")), "{said}");
        assert!(said.contains("the table chooses the plan `reduce`, but it is for another root"), "{said}");
        assert!(said.contains("0 bytes: NCCL, because the table chooses stock"), "{said}");
        let counted = place.counted("numbers-");
        assert_eq!(counted.len(), ranks);
        let mut gathered = 0;
        for calls in counted {
            let served = ["allreduce", "reducescatter", "broadcast", "alltoall", "reduce"];
            assert_eq!(served.map(|name| by_plans(&calls, name)), [3, 1, 1, 2, 2], "{calls:?}");
            gathered += by_plans(&calls, "allgather");
        }
        let in_split = if ranks == 4 { 2 } else { 0 };
        assert_eq!(gathered, ranks as u64 + in_split, "{ranks} ranks: {said}");
    }
}

impl Place {
    /// What ranks say that have plans for everything, what this library says, and how many calls of these collectives plans have served on
    /// each rank.
    fn with_plans<const N: usize>(
        &self,
        (way, ranks): (Way, usize),
        mode: &str,
        collectives: [&str; N],
        more: &[(&str, &str)],
    ) -> (Vec<String>, String, Vec<[u64; N]>) {
        let (table, numbers) = (self.path(&format!("table-{ranks}.json")), self.path("served-%p.json"));
        std::fs::write(&table, table_for(ranks, 8).to_string()).unwrap();
        let mine = [
            ("ANTIPHON_TABLE", table.to_str().unwrap()),
            ("ANTIPHON_STATS", numbers.to_str().unwrap()),
            ("ANTIPHON_DEBUG", "info"),
        ];
        let (lines, said) = self.run(way, ranks, mode, &[&mine, more].concat());
        let counted = self.counted("served-").into_iter();
        (lines, said, counted.map(|calls| collectives.map(|name| by_plans(&calls, name))).collect())
    }
}

/// Plans wait for the end of a group, begin in an order of communicators that all ranks have, and leave streams as NCCL leaves them.
#[test]
fn plans_serve_calls_in_groups() {
    let place = Place::new(&[]);
    for way in WAYS {
        let (lines, said) = place.run(way, 3, "groups", &[PATIENT]);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?} {said}");
    }
    for (way, ranks, seed) in [(Way::Preloaded, 2, "1"), (Way::Instead, 3, "2"), (Way::Preloaded, 4, "3")] {
        let served = ["allreduce", "allgather", "reduce"];
        let more = [PATIENT, ("FAKE_CUDA_SEED", seed)];
        let (lines, said, counted) = place.with_plans((way, ranks), "streams", served, &more);
        assert!(lines.iter().all(|line| line == "right 0"), "{way:?}, {ranks} ranks: {lines:?} {said}");
        // 2 in groups of one communicator, 16 in those of two, 4 and 8 in several streams, and one after what did nothing.
        assert_eq!(counted, vec![[2 + 16 + 4 + 1, 2 + 8, 2]; ranks], "{said}");
        assert!(!said.contains("inside of a group"), "{said}");
    }
    let (lines, said, counted) = place.with_plans((Way::Preloaded, 2), "pair", ["allreduce"], &[PATIENT]);
    assert_eq!((lines, counted), (vec!["right 0".to_owned(); 2], vec![[0]; 2]), "{said}");
    assert!(said.contains("inside of a group, and several ranks of its communicator are in one process"), "{said}");
}

/// A rank that fails inside of a group, in a message of a plan or by a wrong call, ends the others too.
#[test]
fn faults_in_groups_reach_all_ranks() {
    let place = Place::new(&[]);
    // Operation 1 compares tables; NCCL has nothing in these groups.
    for fault in ["1:3:error", "1:6:stall", "1:9:exit"] {
        let more = [SHORT, ("FAKE_NCCL_FAULT", fault)];
        let (lines, said, _) = place.with_plans((Way::Instead, 3), "group fault", [], &more);
        let is_end =
            |line: &str| line.starts_with("after ") || line.starts_with("ncclGroupEnd() ") || line == "exit 86";
        assert!(lines.iter().all(|line| is_end(line)), "{fault}: {lines:?} {said}");
        assert!(fault.contains("exit") == (lines[1] == "exit 86"), "{fault}: {lines:?}");
    }
    let (lines, said, counted) = place.with_plans((Way::Preloaded, 3), "group error", ["allreduce"], &[SHORT]);
    assert_eq!(lines[2], "ncclGroupEnd() 4", "{lines:?} {said}");
    assert!(lines[..2].iter().all(|line| line.contains(" 6")), "{lines:?} {said}");
    assert_eq!(counted, [[1], [1]], "the rank that is wrong begins nothing, and so counts nothing");
}

/// Ranks whose tables differ, that have none, that make their communicators without blocking, or whose streams record graphs: NCCL
/// serves all calls of all of them.
#[test]
fn where_ranks_could_decide_differently_nccl_serves_all() {
    let place = Place::new(&[]);
    let numbers = place.path("numbers-%p.json");
    let garbage = place.path("garbage.json");
    std::fs::write(&garbage, &table_for(2, 8).to_string()[..300]).unwrap();
    let strange = place.path("strange.json");
    let mut wrong = table_for(2, 8);
    wrong["plans"]["allreduce"] = json!({"format": "antiphon-schedule/1"});
    std::fs::write(&strange, wrong.to_string()).unwrap();
    let (table, other) = (place.path("table.json"), place.path("other.json"));
    std::fs::write(&table, table_for(2, 8).to_string()).unwrap();
    std::fs::write(&other, table_for(2, 16).to_string()).unwrap();
    for (mine, why) in [(&other, "rank 1 has another table, or another version"), (&garbage, "rank 1 has no plans")] {
        let variables = [
            PATIENT,
            ("ANTIPHON_TABLE", table.to_str().unwrap()),
            ("OTHER_TABLE", mine.to_str().unwrap()),
            ("ANTIPHON_STATS", numbers.to_str().unwrap()),
            ("ANTIPHON_DEBUG", "info"),
        ];
        let (lines, said) = place.run(Way::Instead, 2, "right", &variables);
        assert!(lines.iter().all(|line| line == "right 0"), "{lines:?} {said}");
        assert!(said.contains(&format!("but its communicator runs no plans: {why}")), "{said}");
        for calls in place.counted("numbers-") {
            assert_eq!(by_plans(&calls, "allreduce"), 0, "{calls:?}");
        }
    }
    for (file, mode, says) in [
        (&garbage, "right", Some("no plans: ")),
        (&strange, "right", Some("no plans: ")),
        (&table, "nonblocking", None),
    ] {
        let variables =
            [PATIENT, ("ANTIPHON_TABLE", file.to_str().unwrap()), ("ANTIPHON_STATS", numbers.to_str().unwrap())];
        let (lines, said) = place.run(Way::Preloaded, 2, mode, &variables);
        assert!(lines.iter().all(|line| line == "right 0"), "{mode}: {lines:?} {said}");
        // One line of each rank.
        let expected = says.map_or(0, |_| 2);
        assert_eq!(
            (said.lines().count(), said.matches(says.unwrap_or("no plans")).count()),
            (expected, expected),
            "{said}"
        );
        for calls in place.counted("numbers-") {
            assert_eq!(by_plans(&calls, "allreduce"), 0, "{calls:?}");
        }
    }
}

/// Where NCCL hangs or gives garbage, the fake says what is wrong; so a program that is right with it is right.
#[test]
fn what_is_wrong_is_an_error_of_every_rank() {
    let place = Place::new(&[]);
    let cases: [(&str, usize, &[&str]); 9] = [
        ("counts", 3, &["after 5: collective 0: rank 0 calls", "count: 5"]),
        ("operations", 2, &["after 5: collective 0:"]),
        ("kinds", 2, &["after 5: collective 0:", "AllGather"]),
        ("ends", 2, &["after 5: rank 0 sends 4 elements of type 2, and rank 1 receives 5 of type 2"]),
        ("order", 2, &["after 6: "]),
        ("early", 2, &["too early 5"]),
        ("arguments", 2, &["group 4"]),
        ("host", 2, &["is no memory of the device"]),
        ("absent", 1, &["right 0"]),
    ];
    for (mode, ranks, expected) in cases {
        let (lines, _) = place.run(Way::Preloaded, ranks, mode, &[if mode == "order" { SHORT } else { PATIENT }]);
        for line in &lines {
            // Who hears of it last may hear that another rank has ended.
            let is_gone = line.contains("is gone") || mode == "early" && line == "too early 6";
            let is_told = expected.iter().all(|part| line.contains(part)) || is_gone;
            assert!(is_told, "{mode}: {lines:?}");
        }
        assert!(expected.iter().all(|part| lines.iter().any(|line| line.contains(part))), "{mode}: {lines:?}");
    }
    let (lines, _) = place.run(Way::Alone, 3, "absent", &[SHORT]);
    assert!(lines[..2].iter().all(|line| line.starts_with("after 6: ")), "{lines:?}");
    assert_eq!(lines[2], "right 0");
}

#[test]
fn faults_reach_all_ranks() {
    let place = Place::new(&[]);
    for (fault, own) in [
        ("1:2:error", "after 2: rank 1 fails in operation 2"),
        ("1:2:stall", "after 6: rank 1 has waited"),
        ("1:2:exit", "exit 86"),
    ] {
        let (lines, _) = place.run(Way::Instead, 3, "fault", &[SHORT, ("FAKE_NCCL_FAULT", fault)]);
        assert!(lines[1].starts_with(own), "{fault}: {lines:?}");
        assert!([0, 2].into_iter().all(|rank| lines[rank].starts_with("after 6: ")), "{fault}: {lines:?}");
    }
}

/// The same program with NCCL's own header.
#[test]
fn long_programs_for_the_real_header_run_unchanged() {
    let Some(nccl) = real_nccl() else {
        // `.ci/setup gpu` has told why.
        return eprintln!("skipped: there is no nccl.h (`.ci/setup gpu` gets it)");
    };
    let stubs = Path::new(CRATE).join("tests/c/cuda");
    let headers = nccl.parent().unwrap().join("../include");
    let flags = ["-DWITH_NCCL_H", "-I", stubs.to_str().unwrap(), "-isystem", headers.to_str().unwrap()];
    let place = Place::new(&flags);
    for way in WAYS {
        for mode in ["right", "nonblocking"] {
            let (lines, said) = place.run(way, 2, mode, &[PATIENT]);
            assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?} {said}");
        }
    }
}
