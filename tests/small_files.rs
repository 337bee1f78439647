//! Small files that named too much, and messages that misled.

use crate::binary::{antiphon, antiphon_in};
use std::fs;

#[test]
fn a_short_file_cannot_name_a_huge_machine() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let plan = |spec: &str, ranks: usize| {
        let text = format!(
            r#"{{"format": "antiphon-schedule/1", "topology": {{"name": "{spec}"}}, "collective": "sendrecv", "ranks": {ranks},
            "members": [0], "size_bytes": 8, "chunks_per_rank": 1, "chunk_bytes": 8,
            "chunks": [{{"id": 0, "holders": [0], "wanted_by": [0], "combine": false}}],
            "transfers": [], "makespan_us": 0}}"#
        );
        fs::write(folder.path().join("plan.json"), text).unwrap();
    };
    for spec in ["clique:1100", "clique:2040", "clique:7000", "switch:1500", "h800x512", "h800x2048"] {
        plan(spec, 1100);
        for command in ["verify", "explain", "simulate"] {
            let refused = here(&format!("{command} plan.json"));
            assert_eq!(refused.code, 2, "{spec}: {}", refused.stdout);
            let says = ["links: ", "is more than the 1048576", "--topology SPEC"];
            assert!(says.iter().all(|it| refused.stderr.contains(it)), "{spec}: {}", refused.stderr);
        }
    }
    plan("clique:1000", 1000);
    let verified = here("verify plan.json");
    assert!(!verified.stderr.contains("is more than"), "{}", verified.stderr);
}

#[test]
fn searches_that_ended_are_done_and_broken_ones_have_failed() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let shown = here("synth --topology ring:5 --collective allgather --size 1MB --time-limit 1s -v -o plan.json").ok();
    assert!(shown.stdout.contains("  done") && !shown.stdout.contains("exhausted"), "{}", shown.stdout);
    // Files that older versions have written hold the old word.
    let old = fs::read_to_string(folder.path().join("plan.json")).unwrap().replace("\"done\"", "\"exhausted\"");
    assert!(old.contains("\"exhausted\""), "{old}");
    fs::write(folder.path().join("old.json"), old).unwrap();
    here("verify old.json").ok();
}

#[test]
fn the_same_refusal_is_told_once() {
    let line = "synth --topology ring:4,direction=both --collective broadcast --size 8MB --time-limit 1s -v";
    let shown = antiphon(line).ok().stdout;
    let mut refusals: Vec<(&str, &str)> = Vec::new();
    for row in shown.lines().filter(|row| row.contains("not applicable")) {
        let (name, why) = (row.split_whitespace().next().unwrap(), row.split_once("not applicable").unwrap().1);
        assert!(!refusals.contains(&(name, why)), "{shown}");
        refusals.push((name, why));
    }
    assert!(!refusals.is_empty(), "{shown}");
}

#[test]
fn a_long_critical_path_is_cut_in_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    here("synth --topology ring:64 --collective allgather --size 64KB --strategy classic --chunks 1 -o plan.json").ok();
    let steps = |text: &str| text.lines().filter(|line| line.starts_with("  ") && line.contains('→')).count();
    let (short, long) = (here("explain plan.json").ok().stdout, here("explain plan.json -v").ok().stdout);
    assert!(short.contains("39 more (-v or --json shows all)"), "{short}");
    assert!(steps(&short) == 24 && steps(&long) == 63, "{} {}\n{short}", steps(&short), steps(&long));
}

#[test]
fn a_sketch_that_is_taken_for_a_plan_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.yaml"), "# mine\nchunks_per_rank: 2\n").unwrap();
    let refused = antiphon_in(folder.path(), "verify mine.yaml");
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("this is a sketch") && refused.stderr.contains("sketch check"),
        "{}",
        refused.stderr
    );
}

#[test]
fn errors_say_a_spec_once_and_numbers_are_short() {
    let refused = antiphon("topology show rng");
    assert_eq!(refused.stderr.matches("`rng`").count(), 1, "{}", refused.stderr);
    let refused = antiphon("topology show clique:x");
    assert_eq!(refused.stderr.matches("`clique:x`").count(), 1, "{}", refused.stderr);
    let folder = tempfile::tempdir().unwrap();
    let link = "{from: 0, to: 1, alpha_us: 1e308, beta_us_per_byte: 0, latency: occupies, resources: []}";
    let text =
        format!("format: antiphon-topology/1\nname: t\nranks: 2\nmachines: [[0, 1]]\nlinks: [{link}]\nresources: []\n");
    fs::write(folder.path().join("t.yaml"), text).unwrap();
    let refused = antiphon_in(folder.path(), "topology show ./t.yaml");
    assert!(refused.stderr.contains("1e308") && refused.stderr.contains("10¹⁵"), "{}", refused.stderr);
    assert!(refused.stderr.len() < 200, "{}", refused.stderr);
}

#[test]
fn a_table_that_another_version_measured_or_that_does_not_fit_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line);
    let table = r#"{"format": "antiphon-table/1", "key": {"ranks": 2, "machines": [0, 0], "version": "0.0.1", "policy": 1},
        "cells": [], "plans": {}}"#;
    fs::write(folder.path().join("table.json"), table).unwrap();
    let run =
        |table: &str| here(&format!("run --table {table} --collective broadcast --ranks 2 --size 1KB --iterations 1"));
    let refused = run("table.json");
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    assert!(refused.stderr.contains("version `0.0.1`") && refused.stderr.contains("tune"), "{}", refused.stderr);
    here("synth --topology clique:3 --collective broadcast --size 1KB -o plan.json").ok();
    let told = run("plan.json").ok();
    assert!(told.stderr.contains("for 3 ranks, not for 2") && told.stderr.contains("stock"), "{}", told.stderr);
}
