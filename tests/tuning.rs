//! `antiphon tune`, from the ranks to a table that can be read, checked and compared.

use crate::binary::{antiphon, antiphon_in, read};
use serde_json::Value;

#[test]
fn a_table_holds_what_was_measured_and_its_plans() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("synth --topology clique:3 --collective allgather --size 64KB --chunks 3 -o mine.json").ok();
    let line =
        "tune --ranks 3 --collective allreduce,allgather --sizes 1KiB,64KiB --budget 6s --launches 2 --plans mine.json";
    let told = run(&format!("{line} -o table.json --samples samples.jsonl --json")).ok().json();
    assert_eq!(told["refused"], 0, "{told}");
    let table = read(&folder.path().join("table.json"));
    assert_eq!(table["format"], "antiphon-table/1");
    assert_eq!(table["key"]["machines"], Value::from(vec![0, 0, 0]));
    for cell in table["cells"].as_array().unwrap() {
        let mut next = Value::from(0);
        for range in cell["ranges"].as_array().unwrap() {
            assert_eq!(range["from_bytes"], next, "{cell}");
            next = range["to_bytes"].clone();
            if let Some(plan) = range["plan"].as_str() {
                assert!(table["plans"].get(plan).is_some(), "{plan}");
            }
        }
        assert!(next.is_null());
    }
    // Both sizes of both collectives were measured, and so was the plan that competes.
    let samples = std::fs::read_to_string(folder.path().join("samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = |name: &str, collective: &str| {
        let is_it = |line: &&Value| {
            line["launch"] == 1 && line["collective"] == collective && line["name"].as_str().unwrap().contains(name)
        };
        samples.iter().filter(is_it).count()
    };
    assert_eq!([first("stock", "allgather"), first("mine.json", "allgather")], [2, 2]);
    assert!(first("stock", "allreduce") >= 2 && first("mine.json", "allreduce") == 0);
    assert!(samples.iter().all(|line| line["refusal"].is_null()));

    run("tune verify table.json").ok();
    assert!(run("tune show table.json").ok().stdout.contains("allgather"));
    assert!(run("tune diff table.json table.json").ok().stdout.contains("no size has another choice"));
    assert_eq!(run(&format!("{line} -o table.json")).code, 2, "a table is not replaced unasked");
}

#[test]
fn tables_that_are_damaged_are_refused_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    run("tune --ranks 2 --collective allgather --sizes 1KiB --budget 2s --launches 1 -o table.json").ok();
    let path = folder.path().join("table.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (damaged, expected) in [
        (text[..text.len() / 2].to_owned(), "table.json:"),
        (text.replace("\"from_bytes\": 0", "\"from_bytes\": 1"), "a gap or overlap at 1 bytes"),
        (text.replace("antiphon-table/1", "antiphon-table/9"), "antiphon-table/9"),
        (text.replace("\"ranks\": 2", "\"ranks\": 3"), "has 3 ranks, and the machines of 2"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        for command in ["show", "verify"] {
            let ran = run(&format!("tune {command} table.json"));
            assert!(ran.code == 2 && ran.stderr.contains(expected), "{command}: {}", ran.stderr);
        }
    }
}

#[test]
fn what_cannot_be_tuned_is_named() {
    for (line, expected) in [
        ("tune --ranks 2 --collective alltoallv -o t.json", "alltoallv"),
        ("tune --ranks 2 --plans nothing.json -o t.json --budget 1s", "nothing.json"),
        ("tune --ranks 2", "--output"),
    ] {
        let ran = antiphon(line);
        assert!(ran.code != 0 && ran.stderr.contains(expected), "{line}: {}", ran.stderr);
    }
}

#[test]
fn what_a_table_chooses_for_nccl_becomes_rules() {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| antiphon_in(folder.path(), line);
    let table = serde_json::json!({
        "format": "antiphon-table/1",
        "key": {"ranks": 4, "machines": [0, 0, 1, 1], "version": "0.1.0", "policy": 1},
        "cells": [{"collective": "allreduce", "ranges": [
            {"from_bytes": 0, "to_bytes": 4096, "plan": null, "evidence": []},
            {"from_bytes": 4096, "to_bytes": null, "plan": "nccl-ring-ll128", "evidence": []}]}],
        "plans": {"nccl-ring-ll128": {"format": "antiphon-nccl/1", "algorithm": "ring", "protocol": "ll128", "channels": 16}},
    });
    std::fs::write(folder.path().join("t.json"), table.to_string()).unwrap();
    run("tune verify t.json").ok();
    let rule = "allreduce,4096,18446744073709551615,ring,ll128,16,2,4,-1,-1";
    assert!(run("tune nccl t.json").ok().stdout.ends_with(&format!("{rule}\n")));
    run("tune nccl t.json -o rules.csv").ok();
    let written = std::fs::read_to_string(folder.path().join("rules.csv")).unwrap();
    assert_eq!(run("tune nccl t.json --json").ok().json()["content"], written);
    assert_eq!(written.lines().nth(1), Some(rule));
    let wrong = table.to_string().replace("\"ring\"", "\"rings\"");
    std::fs::write(folder.path().join("w.json"), wrong).unwrap();
    for command in ["nccl", "verify"] {
        let ran = run(&format!("tune {command} w.json"));
        assert_eq!(ran.code, 2, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("nccl-ring-ll128") && ran.stderr.contains("rings"), "{}", ran.stderr);
    }
}
