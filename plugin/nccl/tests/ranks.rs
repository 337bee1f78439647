//! Ranks that are processes call NCCL's functions, over the fake NCCL of `tests/nccl` and the fake driver of `tests/cuda`: directly, with
//! this library preloaded, and with it in NCCL's place.
#![allow(clippy::unwrap_used, missing_docs)]

mod built;
#[allow(dead_code, reason = "other tests need more of it")]
mod place;

use built::{compile, library};
use place::{PATIENT, Place, SHORT, WAYS, Way, by_plans, table_for};
use serde_json::json;
use std::path::PathBuf;

impl Place {
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
}

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

/// Ranks whose tables differ, or that have none: NCCL serves all calls of all of them.
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
    for file in [&garbage, &strange] {
        let variables =
            [PATIENT, ("ANTIPHON_TABLE", file.to_str().unwrap()), ("ANTIPHON_STATS", numbers.to_str().unwrap())];
        let (lines, said) = place.run(Way::Preloaded, 2, "right", &variables);
        assert!(lines.iter().all(|line| line == "right 0"), "{lines:?} {said}");
        // One line of each rank.
        assert_eq!((said.lines().count(), said.matches("no plans: ").count()), (2, 2), "{said}");
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
    let Some(place) = Place::with_real_header() else {
        return eprintln!("skipped: there is no nccl.h (`.ci/setup gpu` gets it)");
    };
    for way in WAYS {
        for mode in ["right", "nonblocking"] {
            let (lines, said) = place.run(way, 2, mode, &[PATIENT]);
            assert!(lines.iter().all(|line| line == "right 0"), "{way:?}: {lines:?} {said}");
        }
    }
}
