//! `ANTIPHON_TABLE` in a program in C: right, wrong on all ranks, wrong on one, missing on one.

use crate::processes::{Ended, Ranks, compiled, run};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const RANKS: usize = 4;
/// Seconds that a call may go without progress: ranks that do not agree would wait so long.
const TIMEOUT: u32 = 40;
/// A function that the library has itself, so the table needs no plan.
const CHOICE: &str = "stock reducescatter + allgather";

const TABLE: &str = r#"{"format": "antiphon-table/1",
    "key": {"ranks": 4, "machines": [0, 0, 0, 0], "version": "VERSION", "policy": 1},
    "cells": [{"collective": "allreduce",
        "ranges": [{"from_bytes": 0, "to_bytes": null, "plan": null, "evidence": []}],
        "functions": [{"from_bytes": 0, "to_bytes": 2000, "function": "CHOICE", "dtype": "f32", "op": "sum",
            "evidence": []}]}],
    "plans": {}}"#;

/// The program, and tables beside it.
struct Tables {
    folder: TempDir,
    program: PathBuf,
}

impl Tables {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = compiled("tests/c/tables.c", &folder);
        Self { folder, program }
    }

    /// A table with something changed; its path.
    fn with(&self, name: &str, from: &str, to: &str) -> String {
        let table = TABLE.replace("VERSION", env!("CARGO_PKG_VERSION")).replace("CHOICE", CHOICE);
        assert!(table.contains(from), "{from}");
        let path = self.folder.path().join(name);
        std::fs::write(&path, table.replacen(from, to, 1)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What each rank says. It has ended long before anybody has waited for another in vain.
    fn said(&self, tables: &[&str]) -> Vec<String> {
        let begin = Instant::now();
        let how = Ranks { ranks: RANKS, machines: 1, timeout: TIMEOUT };
        let ended = run(Path::new(&self.program), tables, how, |_| true);
        let said = |(rank, Ended { status, said }): (usize, Ended)| {
            assert!(status.success(), "{tables:?}, rank {rank}: {said}");
            said
        };
        let said = ended.into_iter().enumerate().map(said).collect();
        assert!(begin.elapsed() < Duration::from_secs(TIMEOUT.into()) / 2, "{tables:?}");
        said
    }

    /// All ranks use stock, and rank 0 says why, on one line.
    fn refused(&self, tables: &[&str], why: &str) -> Vec<String> {
        let said = self.said(tables);
        for (rank, text) in said.iter().enumerate() {
            let plan = text.lines().find(|line| line.starts_with("plan: allreduce of 256 f32, in place: "));
            let plan = plan.unwrap_or_else(|| panic!("rank {rank}: {text}"));
            // It says the same reason to the program as on standard error.
            let reason = why.trim_start_matches("because ").trim_start_matches("no table is used: ");
            let is_told = plan.contains(", stock, because ") && plan.contains(reason);
            assert!(is_told && !plan.contains(CHOICE), "rank {rank}, {why}: {text}");
        }
        let lines: Vec<&str> =
            said[0].lines().filter(|line| line.starts_with("antiphon: ") && line.contains(why)).collect();
        assert_eq!(lines.len(), 1, "{why}: {}", said[0]);
        said
    }
}

#[test]
fn all_ranks_use_a_table_or_none_does_and_a_line_says_why() {
    let tables = Tables::new();
    let right = tables.with("right.json", "", "");
    let all = |path: &str| vec![path.to_owned(); RANKS];
    let call = |paths: Vec<String>, why: &str| {
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        tables.refused(&paths, why)
    };
    for text in tables.said(&[right.as_str(); RANKS]) {
        assert!(text.contains(CHOICE) && !text.contains("antiphon: "), "{text}");
    }
    let key = r#""policy": 1"#;
    for (number, (from, to, why)) in [
        ("[0, 0, 0, 0]", "[0, 0, 1, 1]", "measured with 4 ranks on 2 machines, not 4 ranks on 1 machine"),
        (
            r#"4, "machines": [0, 0, 0, 0]"#,
            r#"2, "machines": [0, 0]"#,
            "measured with 2 ranks on 1 machine, not 4 ranks",
        ),
        (key, r#""policy": 1, "transport": "tcp""#, "measured with the transport tcp, not shm"),
        (key, r#""policy": 1, "hardware": ["Z80"]"#, "measured with machine 0 as `Z80`, not `"),
        (key, r#""policy": 1, "topology": "abc""#, "measured on an emulated machine, not on this one"),
        (key, r#""policy": 7"#, "no table is used: "),
        (r#""version": ""#, r#""version": "7."#, "no table is used: "),
    ]
    .into_iter()
    .enumerate()
    {
        let wrong = tables.with(&format!("{number}.json"), from, to);
        let said = call(all(&wrong), why);
        assert!(said[1..].iter().all(|text| !text.contains("antiphon: ")), "one line for all: {said:?}");
        let mut one = all(&right);
        one[2] = wrong;
        call(one, "because the ranks have different tables: rank 2 ");
    }
    for (given, why) in [("-", "different tables: rank 1 has none"), ("/nowhere.json", "rank 1 cannot use its own")] {
        let mut one = all(&right);
        one[1] = given.to_owned();
        let said = call(one, why);
        let says_why = said[1].contains("rank 1 cannot use its table: ") && said[1].contains("/nowhere.json");
        assert_eq!(says_why, given != "-", "{}", said[1]);
    }
}
