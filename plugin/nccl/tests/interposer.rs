//! The library in front of NCCL: programs in C call it, over a library that records what it is called with, and over the real
//! NCCL where there is one.
#![allow(clippy::unwrap_used, missing_docs)]

mod built;
#[path = "built/names.rs"]
mod names;

use built::{CRATE, compile, library, real_nccl};
use names::names_of;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The collectives, and what the library asks itself.
const ASKED: [&str; 3] = ["ncclGetVersion", "ncclCommCount", "ncclCommUserRank"];
/// Functions that make and end communicators and groups; `ranks.c` calls them.
const LIFECYCLE: [&str; 17] = [
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommGetAsyncError",
    "ncclCommInitAll",
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommInitRankScalable",
    "ncclCommGrow",
    "ncclCommRevoke",
    "ncclCommShrink",
    "ncclCommSplit",
    "ncclGroupEnd",
    "ncclGroupSimulateEnd",
    "ncclGroupStart",
    "ncclRecv",
    "ncclSend",
];
const COLLECTIVES: [&str; 9] = [
    "ncclAllGather",
    "ncclAllReduce",
    "ncclAlltoAll",
    "ncclBcast",
    "ncclBroadcast",
    "ncclGather",
    "ncclReduce",
    "ncclReduceScatter",
    "ncclScatter",
];

/// A folder with the program that calls.
struct Place {
    folder: TempDir,
    /// How many functions `names.h` has.
    plain: usize,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = names_of(&library());
        let is_looked_at = |name: &str| ASKED.contains(&name) || LIFECYCLE.contains(&name);
        let is_plain = |name: &&str| !is_looked_at(name) && !COLLECTIVES.contains(&name.trim_end_matches("Config"));
        let own = names.iter().filter_map(|name| name.strip_prefix('p')).filter(is_plain);
        let mut header = String::new();
        for (number, name) in own.enumerate() {
            writeln!(header, "F({name}, {number})").unwrap();
        }
        std::fs::write(folder.path().join("names.h"), &header).unwrap();
        let place = Self { folder, plain: header.lines().count() };
        compile("calls.c", &place.path("calls"), &["-I", place.folder.path().to_str().unwrap()]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A library that records, in a folder of its own.
    fn recorder(&self, folder: &str, version: &str) -> PathBuf {
        std::fs::create_dir(self.path(folder)).unwrap();
        let path = self.path(folder).join("libnccl.so.2");
        let version = format!("-DVERSION_CODE={version}");
        compile("recorder.c", &path, &["-shared", "-fPIC", &version, "-I", self.folder.path().to_str().unwrap()]);
        path
    }

    fn calls(&self, what: &str, variables: &[(&str, &Path)]) -> Outcome {
        self.calls_of(what, &library(), variables)
    }

    fn calls_of(&self, what: &str, library: &Path, variables: &[(&str, &Path)]) -> Outcome {
        let mut command = Command::new(self.path("calls"));
        command.arg(what).arg(library);
        run(command, variables)
    }
}

/// What a program has written.
struct Outcome {
    wrote: String,
    said: String,
}

fn run(mut command: Command, variables: &[(&str, &Path)]) -> Outcome {
    for name in ["NCCL", "TABLE", "DEBUG", "STATS", "DISABLE"] {
        command.env_remove(format!("ANTIPHON_{name}"));
    }
    let output = command.env_remove("LD_LIBRARY_PATH").envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {said}", output.status);
    Outcome { wrote: String::from_utf8(output.stdout).unwrap(), said }
}

#[test]
fn arguments_arrive_in_every_function() {
    let place = Place::new();
    let recorder = place.recorder("nccl", "23007");
    let Outcome { wrote, said } = place.calls("every", &[("ANTIPHON_NCCL", &recorder)]);
    assert_eq!((wrote, said), (format!("{}\n", 2 * place.plain), String::new()));
    assert!(place.plain > 55);
}

/// What the program `some` wants to reach NCCL, in order; the last line is that of a child process.
const SOME: &str = "\
AllReduce 1 2 10 7 3 9
AllReduce 1 2 10 7 3 9
AllReduce 1 2 10 7 3 9
AllReduce 1 2 25 7 0 0
AllReduce 1 2 1099511627776 8 0 0
AllGather 3 4 5 9 0
ReduceScatter 3 4 5 0 1 0
Reduce 5 6 7 2 1 3 8
ReduceConfig 5 6 7 2 1 3 8 10
Broadcast 7 7 100 1 2 0
AllReduce 1 2 11 7 3 0
AllReduce 0 0 1 7 0 0
without a communicator: 4
AllReduce 0 0 1 99 0 0
of no type: 0
AllReduce 1 2 10 7 3 0
";

#[test]
fn collectives_go_on_to_nccl_silently() {
    let place = Place::new();
    let recorder = place.recorder("nccl", "23007");
    let (nccl, table) = (("ANTIPHON_NCCL", recorder.as_path()), place.path("table.json"));
    std::fs::write(&table, TABLE).unwrap();
    let on: &Path = "1".as_ref();
    let disabled = place.path("disabled.json");
    let runs: [&[(&str, &Path)]; 3] = [
        &[nccl],
        &[nccl, ("ANTIPHON_TABLE", &table)],
        &[
            nccl,
            ("ANTIPHON_TABLE", &table),
            ("ANTIPHON_DEBUG", "trace".as_ref()),
            ("ANTIPHON_DISABLE", on),
            ("ANTIPHON_STATS", &disabled),
        ],
    ];
    for (variables, says) in runs.into_iter().zip([false, false, true]) {
        let Outcome { wrote, said } = place.calls("some", variables);
        assert_eq!(wrote, SOME);
        assert_eq!(said.lines().count(), usize::from(says), "{said}");
    }
    assert!(!disabled.exists());
    // The real library is found without its name where the system's loader finds it.
    let found = place.calls("some", &[("LD_LIBRARY_PATH", recorder.parent().unwrap())]);
    assert_eq!((found.wrote.as_str(), found.said.as_str()), (SOME, ""));
}

const TABLE: &str = r#"{"format": "antiphon-table/1",
    "key": {"ranks": 4, "machines": [0, 0, 0, 0], "version": "0.1.0", "policy": 1},
    "cells": [{"collective": "allreduce", "ranges": [
        {"from_bytes": 0, "to_bytes": 100, "plan": null, "evidence": []},
        {"from_bytes": 100, "to_bytes": 200, "plan": "n", "evidence": []},
        {"from_bytes": 200, "to_bytes": null, "plan": "ours", "evidence": []}]}],
    "plans": {"n": {"format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll"}, "ours": {}}}"#;

#[test]
fn what_serves_a_call_and_why_is_said_and_counted() {
    let place = Place::new();
    let recorder = place.recorder("nccl", "23007");
    let (table, numbers) = (place.path("table.json"), place.path("numbers-%p.json"));
    std::fs::write(&table, TABLE).unwrap();
    let variables = [
        ("ANTIPHON_NCCL", recorder.as_path()),
        ("ANTIPHON_TABLE", &table),
        ("ANTIPHON_DEBUG", "info".as_ref()),
        ("ANTIPHON_STATS", &numbers),
    ];
    let Outcome { wrote, said } = place.calls("some", &variables);
    assert_eq!(wrote, SOME);
    let expected = [
        &format!("NCCL 2.30.7 of {} is behind this library", recorder.display()),
        "allreduce of 4 ranks, 40 bytes: NCCL, because the table chooses stock",
        "allreduce of 4 ranks, 100 bytes: NCCL, because the table chooses NCCL's ring with ll, which NCCL hears from its tuner",
        "allreduce of 4 ranks, 8796093022208 bytes: NCCL, because the table chooses the plan `ours`, but its communicator was not \
         seen being made",
        "allgather of 4 ranks, 40 bytes: NCCL, because the table has nothing for this collective",
        "reducescatter of 4 ranks, 20 bytes: NCCL, because the table has nothing for this collective",
        "reduce of 4 ranks, 28 bytes: NCCL, because the table has nothing for this collective",
        "reduce of 4 ranks, 28 bytes: NCCL, because the call has a configuration of its own",
        "broadcast of 4 ranks, 100 bytes: NCCL, because the table has nothing for this collective",
        "allreduce: NCCL, because its communicator is not ready, or it or the type of elements is none",
    ];
    assert_eq!(said, expected.map(|line| format!("antiphon: {line}\n")).concat());
    // One file, that of the parent; NCCL's own call of ncclBroadcast is not counted once more.
    let names: Vec<_> = std::fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_numbers = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("numbers-");
    let [path] = names.iter().filter(is_numbers).collect::<Vec<_>>()[..] else { panic!("{names:?}") };
    let numbers: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(numbers["nccl"]["version"], "2.30.7");
    let calls = numbers["calls"].as_array().unwrap();
    let count = |collective: &str, why: &str| {
        let is_it = |entry: &&serde_json::Value| {
            entry["collective"] == collective && entry["why"].as_str().unwrap().contains(why)
        };
        calls.iter().filter(is_it).map(|entry| entry["calls"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(count("allreduce", "stock"), 3);
    assert_eq!(count("allreduce", "not ready"), 2);
    assert_eq!((count("broadcast", "nothing"), count("reduce", "configuration")), (1, 1));
    assert_eq!(calls.iter().map(|entry| entry["calls"].as_u64().unwrap()).sum::<u64>(), 12);
}

#[test]
fn a_table_that_cannot_be_read_changes_nothing() {
    let place = Place::new();
    let recorder = place.recorder("nccl", "23007");
    let table = place.path("table.json");
    std::fs::write(&table, &TABLE[..TABLE.len() / 2]).unwrap();
    let Outcome { wrote, said } =
        place.calls("some", &[("ANTIPHON_NCCL", recorder.as_path()), ("ANTIPHON_TABLE", &table)]);
    assert_eq!(wrote, SOME);
    assert!(
        said.starts_with("antiphon: no plans: ") && said.contains("table.json:") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn without_a_usable_nccl_calls_fail_and_say_why() {
    let place = Place::new();
    std::fs::create_dir(place.path("ours")).unwrap();
    let ours = place.path("ours").join("libnccl.so.2");
    std::fs::copy(library(), &ours).unwrap();
    std::fs::write(place.path("text"), "no library").unwrap();
    let odd = place.path("odd.so");
    std::fs::write(place.path("odd.c"), "int other(void) { return 0; }\n").unwrap();
    compile(place.path("odd.c").to_str().unwrap(), &odd, &["-shared", "-fPIC"]);
    let strange = place.recorder("strange", "7");
    let (text, none) = (place.path("text"), place.path("none"));
    let cases: [(&str, &Path, &Path, &[&str]); 7] = [
        ("ANTIPHON_STATS", &none, &library(), &["there is no libnccl.so.2", "hint: ANTIPHON_NCCL=", "none is loaded"]),
        ("ANTIPHON_NCCL", &none, &library(), &["none cannot be loaded", "No such file"]),
        ("ANTIPHON_NCCL", &text, &library(), &["text cannot be loaded", "file too short"]),
        ("ANTIPHON_NCCL", &odd, &library(), &["odd.so is no NCCL: it has no ncclGetVersion"]),
        ("ANTIPHON_NCCL", &strange, &library(), &["is no NCCL: ncclGetVersion says 7"]),
        ("ANTIPHON_NCCL", &ours, &library(), &["is Antiphon's own library, not NCCL"]),
        // The name under which NCCL is looked for is that of this library.
        (
            "LD_LIBRARY_PATH",
            &place.path("ours"),
            &ours,
            &["there is no libnccl.so.2", "is Antiphon's own library, not NCCL"],
        ),
    ];
    for (variable, value, loaded, expected) in cases {
        let Outcome { wrote, said } = place.calls_of("look", loaded, &[(variable, value)]);
        let (wrote, why) = (wrote.lines().collect::<Vec<_>>(), said.trim_end());
        let [version, means, group] = wrote[..] else { panic!("{wrote:?}") };
        assert_eq!((version, group), ("2 -1", "2"), "{variable}");
        assert_eq!(why, format!("antiphon: every call of NCCL fails: {means}"));
        for part in expected {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}

#[test]
fn old_libraries_and_missing_functions_are_told() {
    let place = Place::new();
    let old = place.recorder("old", "21703");
    let info: &Path = "info".as_ref();
    let Outcome { wrote, said } = place.calls("look", &[("ANTIPHON_NCCL", old.as_path()), ("ANTIPHON_DEBUG", info)]);
    assert_eq!(wrote, "0 21703\n", "its calls go on");
    assert!(said.contains("is NCCL 2.17.3, and plans need 2.18.0 or newer"), "{said}");
    // A function that this NCCL lacks: the recorder has no ncclAllGatherConfig.
    std::fs::write(place.path("lacks.c"), LACKS).unwrap();
    compile(place.path("lacks.c").to_str().unwrap(), &place.path("lacks"), &[library().to_str().unwrap()]);
    let Outcome { wrote, said } = run(
        Command::new(place.path("lacks")),
        &[("ANTIPHON_NCCL", old.as_path()), ("LD_LIBRARY_PATH", library().parent().unwrap())],
    );
    assert_eq!(wrote, "5 5\n");
    assert_eq!(said, "antiphon: a call of ncclAllGatherConfig fails: NCCL 2.17.3 does not have it\n");
}

const LACKS: &str = r#"#include <stdio.h>
int ncclAllGatherConfig(void *, void *, unsigned long, int, void *, void *, void *);
int main(void) {
    int first = ncclAllGatherConfig(0, 0, 1, 7, 0, 0, 0);
    printf("%d %d\n", first, ncclAllGatherConfig(0, 0, 1, 7, 0, 0, 0));
    return 0;
}
"#;

/// A program that was written for NCCL's header behaves the same with NCCL alone, with this library preloaded, and with it in NCCL's
/// place.
#[test]
fn long_the_real_nccl_answers_through_the_library() {
    let Some(nccl) = real_nccl() else {
        // `.ci/setup gpu` has told why.
        return eprintln!("skipped: there is no libnccl.so.2 (`.ci/setup gpu` gets it)");
    };
    let place = Place::new();
    let stubs = Path::new(CRATE).join("tests/c/cuda");
    let headers = nccl.parent().unwrap().join("../include");
    let program = |name: &str, library: &Path| {
        let path = place.path(name);
        let arguments =
            ["-I", stubs.to_str().unwrap(), "-isystem", headers.to_str().unwrap(), library.to_str().unwrap()];
        compile("program.c", &path, &arguments);
        path
    };
    let (plain, ours) = (program("plain", &nccl), program("ours", &library()));
    let beside = ("LD_LIBRARY_PATH", nccl.parent().unwrap());
    let alone = run(Command::new(&plain), &[beside]);
    assert!(alone.wrote.contains("unique id 0 0\nthey differ: 1\n"), "{}", alone.wrote);
    let (library, info) = (library(), Path::new("info"));
    let preloaded = run(Command::new(&plain), &[beside, ("LD_PRELOAD", &library)]);
    assert_eq!((preloaded.wrote.as_str(), preloaded.said.as_str()), (alone.wrote.as_str(), ""), "silent without a GPU");
    let told = run(Command::new(&plain), &[beside, ("LD_PRELOAD", &library), ("ANTIPHON_DEBUG", info)]);
    assert_eq!(told.wrote, alone.wrote);
    assert!(told.said.contains(&format!("of {} is behind", nccl.display())), "{}", told.said);
    assert!(!told.said.contains("is newer than this library"), "{}", told.said);
    let both = std::env::join_paths([nccl.parent().unwrap(), library.parent().unwrap()]).unwrap();
    let replaced = run(Command::new(&ours), &[("LD_LIBRARY_PATH", Path::new(&both))]);
    assert_eq!((replaced.wrote.as_str(), replaced.said.as_str()), (alone.wrote.as_str(), ""));
    // Every name of the real library is here.
    let known = names_of(&library);
    let missing: Vec<_> = names_of(&nccl).into_iter().filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// PyTorch without a GPU notices nothing; what it asks of NCCL is answered by the real one.
#[test]
fn long_pytorch_without_a_gpu_notices_nothing() {
    let python = Path::new(CRATE).join("../../target/python/torch/bin/python");
    let has_torch =
        |python: &Path| Command::new(python).args(["-c", "import torch"]).output().is_ok_and(|it| it.status.success());
    let (true, Some(nccl)) = (has_torch(&python), real_nccl()) else {
        return eprintln!("skipped: there is no PyTorch or no NCCL (`.ci/setup torch` and `.ci/setup gpu` get them)");
    };
    let folder = tempfile::tempdir().unwrap();
    let run_with = |program: &str, variables: &[(&str, &Path)]| {
        let mut command = Command::new(&python);
        command.args(["-c", program]).current_dir(folder.path());
        run(command, variables)
    };
    let ours = library();
    let preload = ("LD_PRELOAD", ours.as_path());
    let alone = run_with(TRAINS, &[]);
    assert_eq!(alone.wrote, "[1.0, 1.0, 1.0]\n");
    let preloaded = run_with(TRAINS, &[preload]);
    assert_eq!((preloaded.wrote, preloaded.said), (alone.wrote, alone.said));
    let asks = "import torch; print(len(torch.cuda.nccl.unique_id()))";
    let Outcome { wrote, said } =
        run_with(asks, &[preload, ("ANTIPHON_NCCL", &nccl), ("ANTIPHON_DEBUG", Path::new("info"))]);
    assert_eq!(wrote, "128\n");
    assert!(said.contains("is behind this library"), "{said}");
}

const TRAINS: &str = "
import os, torch, torch.distributed as dist
assert not torch.cuda.is_available()
dist.init_process_group('gloo', init_method='file://' + os.getcwd() + '/meet', rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
";
