//! Ranks that are processes call NCCL's functions, over the fake NCCL of `tests/nccl` and the fake driver of `tests/cuda`: directly, with
//! this library preloaded, and with it in NCCL's place.
#![allow(clippy::unwrap_used, missing_docs)]

mod built;

use built::{CRATE, compile, library, real_nccl};
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

    /// What the ranks say, and what this library says.
    fn run(&self, way: Way, ranks: usize, mode: &str, variables: &[(&str, &str)]) -> (Vec<String>, String) {
        let program = if way == Way::Instead { "instead/ranks" } else { "ranks" };
        let mut command = Command::new(self.path(program));
        for name in ["NCCL", "TABLE", "DEBUG", "STATS", "DISABLE"] {
            command.env_remove(format!("ANTIPHON_{name}"));
        }
        let folders = [self.folder.path(), library().parent().unwrap()].map(Path::to_path_buf);
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
            // Two in the program's collectives, one of no bytes, one of a rank alone, and one after the communicator's end.
            assert_eq!((count("allreduce", ""), count("broadcast", ""), count("reduce", "")), (5, 2, 1));
            seen += 1;
        }
        assert_eq!(seen, 3, "one file of each rank");
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
            let is_told = expected.iter().all(|part| line.contains(part)) || line.contains("is gone");
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
