//! The tuner as NCCL calls it: by a program in C, and by the loader of the real NCCL where there is one.
#![allow(clippy::unwrap_used, missing_docs)]

mod built;
#[path = "built/names.rs"]
mod names;

use built::{compile, library, real_nccl};
use names::names_of;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn compiled(folder: &TempDir) -> PathBuf {
    let program = folder.path().join("tuner");
    compile("tuner.c", &program, &[]);
    program
}

/// A call of the tuner: the fields of a line that the program reads.
#[derive(Clone, Copy)]
struct Asked {
    collective: i32,
    bytes: u64,
    pipe_ops: i32,
    registered: i32,
    sides: (i32, i32),
    forbidden: (i32, i32),
}

const ALL_REDUCE: Asked =
    Asked { collective: 4, bytes: 4096, pipe_ops: 1, registered: 0, sides: (7, 3), forbidden: (-1, -1) };

/// One communicator, by a version of the interface.
struct Session<'a> {
    program: &'a Path,
    version: u32,
    ranks: usize,
    nodes: usize,
    /// A file for `ANTIPHON_TABLE`.
    table: Option<&'a Path>,
    nccl: Option<&'a Path>,
}

impl Session<'_> {
    /// What the tuner wants for each call (algorithm, protocol, channels), and what it has said.
    fn ask(&self, calls: &[Asked]) -> (Vec<[i32; 3]>, String) {
        let mut command = Command::new(self.program);
        command.arg(library()).args([self.version as usize, self.ranks, self.nodes].map(|number| number.to_string()));
        command.args(self.nccl).env_remove("ANTIPHON_TABLE").env_remove("NCCL_TUNER_CONFIG_FILE");
        command.envs(self.table.map(|path| ("ANTIPHON_TABLE", path)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        for Asked { collective, bytes, pipe_ops, registered, sides, forbidden } in calls {
            let ((algorithms, protocols), (algorithm, protocol)) = (sides, forbidden);
            writeln!(
                input,
                "{collective} {bytes} {pipe_ops} {registered} {algorithms} {protocols} {algorithm} {protocol}"
            )
            .unwrap();
        }
        drop(input);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "version {}: {said}", self.version);
        let numbers = |line: &str| {
            let numbers: Vec<i32> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            numbers.try_into().unwrap()
        };
        let answers: Vec<[i32; 3]> = String::from_utf8(output.stdout).unwrap().lines().map(numbers).collect();
        assert_eq!(answers.len(), calls.len());
        (answers, said)
    }
}

const RULES: &str = "\
# the first rule that fits is used
allreduce,0,65535,tree,ll,-1,1,4,-1,-1
allreduce,65536,1048575,ring,ll128,8,1,4,-1,1
allreduce,65536,1048575,nvls,simple,4,1,4,-1,0
allreduce,1048576,18446744073709551615,ring,simple,24,1,4,-1,-1
allgather,0,4096,pat,simple,-1,1,4,-1,-1
broadcast,8,8,ring,ll,1,-1,-1,-1,-1
";
const NOTHING: [i32; 3] = [-1, -1, -1];

#[test]
fn rules_reach_nccl_by_every_version() {
    let folder = tempfile::tempdir().unwrap();
    let (program, table) = (compiled(&folder), folder.path().join("rules.csv"));
    std::fs::write(&table, RULES).unwrap();
    let at = |bytes| Asked { bytes, ..ALL_REDUCE };
    let call = |collective, bytes| Asked { collective, bytes, ..ALL_REDUCE };
    for version in 2..=6 {
        let session = Session { program: &program, version, ranks: 4, nodes: 1, table: Some(&table), nccl: None };
        let calls = [
            at(0),
            at(65535),
            at(1 << 20),
            at(u64::MAX),
            call(0, 7),
            call(0, 8),
            call(0, 9),
            // Collectives without a rule, and numbers that NCCL does not have.
            call(1, 8),
            call(3, 8),
            call(5, 8),
            call(-1, 8),
            call(i32::MIN, 8),
            call(i32::MAX, 8),
        ];
        let (answers, said) = session.ask(&calls);
        let expected = [[0, 0, -1], [0, 0, -1], [1, 2, 24], [1, 2, 24], NOTHING, [1, 0, 1], NOTHING];
        assert_eq!(answers[..7], expected, "version {version}");
        assert!(answers[7..].iter().all(|answer| *answer == NOTHING), "version {version}: {answers:?}");
        assert!(said.contains("6 rules of ") && said.contains("name Antiphon"), "{said}");
        // An algorithm that version 2 does not have.
        let pat = if version == 2 { NOTHING } else { [6, 2, -1] };
        assert_eq!(session.ask(&[call(2, 4096)]).0, [pat], "version {version}");
        // Which buffers are registered is known from version 4 on; before, the first rule fits.
        let both = session.ask(&[Asked { registered: 1, ..at(65536) }, Asked { registered: 0, ..at(65536) }]).0;
        let expected = if version < 4 { [[1, 1, 8]; 2] } else { [[1, 1, 8], [4, 2, 4]] };
        assert_eq!(both, expected, "version {version}");
        // Other communicators.
        for (ranks, nodes) in [(5, 1), (4, 2), (0, 0), (usize::MAX, usize::MAX)] {
            assert_eq!(Session { ranks, nodes, ..session }.ask(&[at(8)]).0, [NOTHING], "version {version}");
        }
    }
}

#[test]
fn what_nccl_cannot_run_is_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let (program, table) = (compiled(&folder), folder.path().join("rules.csv"));
    std::fs::write(&table, RULES).unwrap();
    for version in 3..=6 {
        let session = Session { program: &program, version, ranks: 4, nodes: 1, table: Some(&table), nccl: None };
        let at = |bytes, sides, forbidden| Asked { bytes, sides, forbidden, ..ALL_REDUCE };
        let calls = [
            at(1 << 20, (7, 3), (1, 2)),   // forbidden
            at(1 << 20, (7, 3), (1, 1)),   // something else is forbidden
            at(1 << 20, (1, 3), (-1, -1)), // a table that is too small
            at(1 << 20, (7, 2), (-1, -1)),
            at(1 << 20, (0, 3), (-1, -1)),
            at(1 << 20, (7, 0), (-1, -1)),
            at(1 << 20, (-7, -3), (-1, -1)),
            at(1 << 20, (i32::MAX, i32::MAX), (-1, -1)),
            at(1 << 20, (16, 16), (-1, -1)), // a larger one, of a newer NCCL
            at(1 << 20, (2, 3), (-1, -1)),
        ];
        let wanted = [1, 2, 24];
        let expected = [NOTHING, wanted, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, wanted, wanted];
        assert_eq!(session.ask(&calls).0, expected, "version {version}");
    }
    // Version 2 says what the machine supports; the program takes more than two sides for support.
    let session = Session { program: &program, version: 2, ranks: 4, nodes: 1, table: Some(&table), nccl: None };
    std::fs::write(
        &table,
        "allreduce,0,9,nvls,simple,4,-1,-1\nallreduce,10,19,collnet_chain,simple,4,-1,-1\n\
                            allreduce,20,29,nvls,ll,4,-1,-1\n",
    )
    .unwrap();
    let at = |bytes, sides| Asked { bytes, sides, ..ALL_REDUCE };
    let calls = [at(5, (2, 3)), at(5, (2, 2)), at(15, (3, 2)), at(15, (2, 3)), at(25, (7, 3))];
    assert_eq!(session.ask(&calls).0, [[4, 2, 4], NOTHING, [3, 2, 4], NOTHING, NOTHING]);
}

#[test]
fn garbage_is_no_opinion_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder);
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let mut noise = Vec::new();
    let mut state = 1u64;
    for _ in 0..5000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        noise.push((state >> 33) as u8);
    }
    let empty = folder.path().join("empty folder");
    std::fs::create_dir(&empty).unwrap();
    let files = [
        (file("noise", &noise), "noise"),
        (file("half.json", br#"{"format": "antiphon-table/1", "key""#), "half.json:1:"),
        (file("wrong.csv", b"allreduce,0,9,ring,ll\n"), "wrong.csv:1:1: 5 fields"),
        (file("large.csv", &b"allreduce,0,9,ring,ll,1,1,1,1,1,1,1,1,1,1\n".repeat(9)), "fields"),
        (folder.path().join("none"), "none"),
        (file("empty", b""), "0 rules"),
        (file("plan.json", br#"{"format": "antiphon-schedule/1"}"#), "0 rules"),
        (empty, "0 rules"),
    ];
    for version in 2..=6 {
        for (table, expected) in &files {
            let session = Session { program: &program, version, ranks: 4, nodes: 1, table: Some(table), nccl: None };
            let (answers, said) = session.ask(&[ALL_REDUCE, Asked { bytes: 0, ..ALL_REDUCE }]);
            assert_eq!(answers, [NOTHING; 2], "{}", table.display());
            assert!(said.contains(expected), "{}: {said}", table.display());
            // 2 is a warning.
            assert_eq!(said.starts_with("2 "), !expected.starts_with('0'), "{said}");
        }
        let session = Session { program: &program, version, ranks: 4, nodes: 1, table: None, nccl: None };
        let (answers, said) = session.ask(&[ALL_REDUCE]);
        assert_eq!((answers, said.as_str()), (vec![NOTHING], "name Antiphon\n"), "without a table it says nothing");
    }
}

/// The table as `antiphon tune` writes it, in a folder beside a plan.
#[test]
fn tables_of_a_folder_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder);
    let tables = folder.path().join("tables");
    std::fs::create_dir(&tables).unwrap();
    let table = r#"{"format": "antiphon-table/1",
        "key": {"ranks": 2, "machines": [0, 0], "version": "1", "policy": 1},
        "cells": [{"collective": "allreduce", "ranges": [
            {"from_bytes": 0, "to_bytes": 100, "plan": null, "evidence": []},
            {"from_bytes": 100, "to_bytes": null, "plan": "n", "evidence": []}]}],
        "plans": {"n": {"format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll", "channels": 2}}}"#;
    std::fs::write(tables.join("table.json"), table).unwrap();
    std::fs::write(tables.join("plan.json"), r#"{"format": "antiphon-schedule/1"}"#).unwrap();
    std::fs::write(tables.join("notes.txt"), "not a table").unwrap();
    for version in 2..=6 {
        let session = Session { program: &program, version, ranks: 2, nodes: 1, table: Some(&tables), nccl: None };
        let at = |bytes| Asked { bytes, ..ALL_REDUCE };
        assert_eq!(session.ask(&[at(99), at(100)]).0, [NOTHING, [1, 0, 2]], "version {version}");
    }
}

/// Programs and NCCL look for names: there are those of the tuner, NCCL's, and one to be known by.
#[test]
fn nothing_but_the_tuner_and_the_names_of_nccl_is_exported() {
    let mut names = names_of(&library());
    names.retain(|name| name != "rust_eh_personality");
    let tuners = [2, 3, 4, 5, 6].map(|version| format!("ncclTunerPlugin_v{version}"));
    assert!(tuners.iter().all(|tuner| names.contains(tuner)));
    names.retain(|name| !tuners.contains(name) && name != "antiphon_nccl_version");
    // Each function has two names.
    let (own, public): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with('p'));
    assert_eq!(own, public.iter().map(|name| format!("p{name}")).collect::<Vec<_>>());
    assert!(public.iter().all(|name| name.starts_with("nccl")) && public.len() == 97, "{public:?}");
}

#[test]
fn long_the_loader_of_the_real_nccl_calls_every_version() {
    let Some(nccl) = real_nccl() else {
        // `.ci/setup gpu` has told why.
        return eprintln!("skipped: there is no libnccl.so.2 (`.ci/setup gpu` gets it)");
    };
    let folder = tempfile::tempdir().unwrap();
    let (program, table) = (compiled(&folder), folder.path().join("rules.csv"));
    std::fs::write(&table, RULES).unwrap();
    let at = |bytes| Asked { bytes, ..ALL_REDUCE };
    for version in 2..=6 {
        let session =
            Session { program: &program, version, ranks: 4, nodes: 1, table: Some(&table), nccl: Some(&nccl) };
        let (answers, said) = session.ask(&[at(8), at(1 << 20), Asked { collective: 1, ..at(8) }]);
        assert_eq!(answers, [[0, 0, -1], [1, 2, 24], NOTHING], "version {version}: {said}");
        let garbage = folder.path().join("garbage");
        std::fs::write(&garbage, "\0\u{1}garbage").unwrap();
        assert_eq!(Session { table: Some(&garbage), ..session }.ask(&[at(8)]).0, [NOTHING], "version {version}");
    }
}
