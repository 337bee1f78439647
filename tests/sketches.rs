//! Sketches: plans do not use forbidden links, errors have a place, and no sketch file is forgotten.

use crate::binary::{antiphon, read};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn forbidden_links_stay_unused_by_every_strategy_and_collective() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = folder.path().join("sketch.yaml");
    std::fs::write(&sketch, "name: cut\nlinks:\n  forbid:\n    - {from: 0, to: 1}\n    - {from: 3, to: [2, 4]}\n")
        .unwrap();
    let plan = folder.path().join("plan.json");
    for collective in ["allgather", "reducescatter", "allreduce", "alltoall"] {
        for strategy in ["classic", "matching", "milp", "auto"] {
            let line = format!("synth --topology clique:5 --collective {collective} --size 1MB --chunks 1");
            let line =
                format!("{line} --sketch {} --strategy {strategy} --force -o {}", sketch.display(), plan.display());
            let told = antiphon(&format!("{line} --json")).ok().json();
            let winner = told["strategy"].as_str().unwrap();
            assert!(strategy == "auto" || winner.starts_with(strategy), "{collective}: {winner}, not {strategy}");
            for transfer in read(&plan)["transfers"].as_array().unwrap() {
                let ends = (transfer["from"].as_u64().unwrap(), transfer["to"].as_u64().unwrap());
                assert!(![(0, 1), (3, 2), (3, 4)].contains(&ends), "{collective} {strategy}: {transfer}");
            }
            antiphon(&format!("verify {} --sketch {}", plan.display(), sketch.display())).ok();
        }
    }
}

#[test]
fn an_infeasible_sketch_names_the_line_to_relax() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = folder.path().join("island.yaml");
    std::fs::write(&sketch, "name: island\nlinks:\n  forbid:\n    - {from: 0, to: 1}\n    - {from: 2, to: 1}\n")
        .unwrap();
    for strategy in ["auto", "matching", "milp"] {
        let line = format!("synth --topology clique:3 --collective allgather --size 1KB --strategy {strategy}");
        let ran = antiphon(&format!("{line} --sketch {}", sketch.display()));
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        let named = ran.stderr.contains("island.yaml:4") || ran.stderr.contains("island.yaml:5");
        assert!(named && ran.stderr.contains("hint:"), "{}", ran.stderr);
    }
}

#[test]
fn an_unknown_key_has_a_place_and_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = folder.path().join("typo.yaml");
    std::fs::write(&sketch, "name: typo\nlinks:\n  forbidd:\n    - {from: 0, to: 1}\n").unwrap();
    let ran = antiphon(&format!("sketch check {} --topology clique:3", sketch.display()));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("typo.yaml:3:") && ran.stderr.contains("forbid"), "{}", ran.stderr);
}

/// Two machines of three ranks with links between all ranks. Links between machines are slower, and slowest away from
/// the ranks beside the NICs (local rank 2 in both).
fn two_machines(folder: &Path) -> PathBuf {
    let mut links = Vec::new();
    for (from, to) in (0..6).flat_map(|from| (0..6).map(move |to| (from, to))).filter(|(from, to)| from != to) {
        let away = [from, to].iter().filter(|&rank| rank % 3 != 2).count();
        let beta = if from / 3 == to / 3 { 0.001 } else { 0.004 * (1 + away) as f64 };
        links.push(json!({"id": links.len(), "from": from, "to": to, "alpha_us": 1.0, "beta_us_per_byte": beta,
                          "latency": "occupies", "resources": []}));
    }
    let topology = json!({"format": "antiphon-topology/1", "name": "two", "ranks": 6, "machines": [[0, 1, 2], [3, 4, 5]],
                          "links": links, "resources": []});
    let path = folder.join("two.json");
    std::fs::write(&path, topology.to_string()).unwrap();
    path
}

/// Writes a sketch.
fn sketch(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn stages_are_kept_by_every_strategy_and_collective() {
    let folder = tempfile::tempdir().unwrap();
    let topology = two_machines(folder.path());
    let plan = folder.path().join("plan.json");
    for (name, stages) in [("three", "[inside, between, inside]"), ("two", "[between, inside]")] {
        let sketch = sketch(folder.path(), &format!("{name}.yaml"), &format!("stages: {stages}\n"));
        let every = ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "gather"];
        let runs = every.map(|collective| ("matching", collective)).into_iter();
        for (strategy, collective) in runs.chain([("milp", "allgather"), ("milp", "reducescatter")]) {
            let line = format!("synth --topology {} --collective {collective} --size 6KB", topology.display());
            let line = format!("{line} --chunks 1 --sketch {sketch} --strategy {strategy} --time-limit 2s");
            antiphon(&format!("{line} --force -o {}", plan.display())).ok();
            antiphon(&format!("verify {} --topology {} --sketch {sketch}", plan.display(), topology.display())).ok();
        }
    }
}

#[test]
fn every_violation_of_a_sketch_is_listed_with_its_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let topology = two_machines(folder.path());
    let plan = folder.path().join("plan.json");
    let free = format!("synth --topology {} --collective allgather --size 6KB --chunks 1", topology.display());
    antiphon(&format!("{free} --strategy classic --force -o {}", plan.display())).ok();
    let verify = format!("verify {} --topology {}", plan.display(), topology.display());
    for (kind, text) in [
        ("forbidden_link", "name: a\nlinks:\n  forbid: [between_machines, {from: 0}]\n"),
        ("not_its_sender", "name: b\nsenders:\n  0: [1]\n  1: [2]\n  2: [0]\n"),
        ("too_many_machine_hops", "name: c\nmax_machine_hops: 1\n"),
        ("out_of_stage", "name: d\nstages: [inside_machine, between_machines]\n"),
    ] {
        let sketch = sketch(folder.path(), &format!("{kind}.yaml"), text);
        if kind == "too_many_machine_hops" {
            let ring = "links:\n  allow_only: [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0]]\n";
            let ring = self::sketch(folder.path(), "ring.yaml", ring);
            antiphon(&format!("{free} --sketch {ring} --force -o {}", plan.display())).ok();
        }
        let ran = antiphon(&format!("{verify} --sketch {sketch} --json"));
        assert_eq!(ran.code, 1, "{kind}: {}", ran.stdout);
        let answer = ran.json();
        let violations = answer["violations"].as_array().unwrap();
        let found = violations.iter().find(|it| it["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {answer}"));
        assert!(
            found["text"].as_str().unwrap().contains("sketch line") && found["line"].as_u64().unwrap() > 0,
            "{found}"
        );
        assert!(found["transfer"].is_u64() && found["chunk"].is_u64() && found["time_us"].is_number(), "{found}");
        let ran = antiphon(&format!("{verify} --sketch {sketch}"));
        assert_eq!((ran.code, ran.stdout.lines().count()), (1, violations.len()), "{}", ran.stdout);
    }
}

#[test]
fn placement_is_chosen_obeyed_and_stored() {
    let folder = tempfile::tempdir().unwrap();
    let topology = two_machines(folder.path());
    let plan = folder.path().join("plan.json");
    let makespan = |placement: &str| {
        let text = format!("placement: {placement}\nrelays: {{0: [0]}}\nmax_machine_hops: 1\n");
        let sketch = sketch(folder.path(), "placed.yaml", &text);
        let line = format!("synth --topology {} --collective allgather --size 6KB --chunks 1", topology.display());
        let line = format!("{line} --strategy matching --sketch {sketch}");
        let report = antiphon(&format!("{line} --force -o {} --json", plan.display())).ok().json();
        antiphon(&format!("verify {} --topology {} --sketch {sketch}", plan.display(), topology.display())).ok();
        (report["makespan_us"].as_f64().unwrap(), read(&plan))
    };
    let (unplaced, file) = makespan("none");
    assert!(file["produced_by"]["options"].get("placement").is_none());
    let (placed, file) = makespan("auto");
    assert!(placed < 0.7 * unplaced, "{placed} of {unplaced} µs");
    let stored = file["produced_by"]["options"]["placement"].as_str().unwrap();
    let ranks: Vec<&str> = stored.split(' ').collect();
    assert_eq!((ranks.len(), ranks[0], ranks[3]), (6, "2", "5"));
    for transfer in file["transfers"].as_array().unwrap() {
        let ends = (transfer["from"].as_u64().unwrap(), transfer["to"].as_u64().unwrap());
        assert!(ends.0 / 3 == ends.1 / 3 || [(2, 5), (5, 2)].contains(&ends), "{transfer}");
    }
}

#[test]
fn a_taccl_sketch_is_imported_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let taccl = sketch(
        folder.path(),
        "pair.json",
        "{\"nnodes\": 2,\n \"intranode_sketch\": {\"strategy\": \"none\"},\n \"internode_sketch\": {\"strategy\": \"relay\", \
         \"internode_conn\": {\"2\": [2]}},\n \"symmetry_offsets\": [[3, 6]],\n \"hyperparameters\": {\"input_chunkup\": 1}}",
    );
    let topology = two_machines(folder.path());
    let ours = folder.path().join("pair.yaml");
    antiphon(&format!("sketch import {taccl} -o {} --topology {}", ours.display(), topology.display())).ok();
    let summary = antiphon(&format!("sketch check {} --topology {} --json", ours.display(), topology.display())).ok();
    let summary = summary.json();
    assert_eq!((summary["sketch"].as_str(), summary["allowed_links"].as_u64()), (Some("pair"), Some(14)));
    assert_eq!((summary["symmetries"].as_u64(), summary["max_machine_hops"].as_u64()), (Some(1), Some(1)));
    let printed = antiphon(&format!("sketch import {taccl}")).ok().stdout;
    assert!(printed.contains("relays: {2: [2]}") && printed.contains("chunks_per_rank: 1"), "{printed}");
    let broken = sketch(folder.path(), "broken.json", "{\"nnodes\": 2,\n \"intranode\": {}}");
    let ran = antiphon(&format!("sketch import {broken}"));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("broken.json:2:2") && ran.stderr.contains("intranode_sketch"), "{}", ran.stderr);
}

#[test]
fn few_or_many_connections_are_opened_as_the_sketch_wishes() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let open = |wish: &str| {
        let text = format!("relays: {{0: [1]}}\nmax_machine_hops: 1\nconnections: {wish}\n");
        let sketch = sketch(folder.path(), "wish.yaml", &text);
        let line = "synth --topology ndv2x2,costs=taccl-1mb --collective allgather --size 16MB --chunks 1";
        antiphon(&format!("{line} --strategy matching --sketch {sketch} --force -o {}", plan.display())).ok();
        antiphon(&format!("verify {} --sketch {sketch}", plan.display())).ok();
        let plan = read(&plan);
        let links: BTreeSet<u64> =
            plan["transfers"].as_array().unwrap().iter().map(|it| it["link"].as_u64().unwrap()).collect();
        (links.len(), plan["makespan_us"].as_f64().unwrap())
    };
    let ((few, quick), (many, also_quick)) = (open("few"), open("many"));
    assert!(few < many, "{few} and {many} links");
    assert!((quick - also_quick).abs() < 1e-6 * quick, "a wish costs no time: {quick} and {also_quick}");
}
