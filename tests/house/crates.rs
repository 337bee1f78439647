//! Which crate may import which.

use super::{CRATES, ROOT};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Whoever imports a crate may also import what lies below it; `synth` and `runtime` meet only where calls are dispatched.
const ALLOWED: &[(&str, &[&str])] = &[
    ("topology", &[]),
    ("schedule", &["topology"]),
    ("program", &["schedule", "topology"]),
    ("interop", &["program", "schedule", "topology"]),
    ("synth", &["schedule", "topology"]),
    ("ptx", &[]),
    ("fake-cuda", &["ptx"]),
    ("fake-nccl", &[]),
    ("runtime", &["program", "schedule", "topology", "ptx", "fake-cuda", "fake-nccl"]),
    ("tune", &["runtime", "program", "schedule", "topology"]),
    ("comm", &["runtime", "synth", "tune", "program", "schedule", "topology"]),
    ("plugin", &["comm", "runtime", "synth", "tune", "program", "schedule", "topology"]),
    (
        "plugin-nccl",
        &["comm", "interop", "tune", "runtime", "program", "schedule", "topology", "ptx", "fake-cuda", "fake-nccl"],
    ),
    ("python", &["comm", "runtime", "synth", "tune", "program", "schedule", "topology"]),
    (
        "antiphon",
        &["topology", "schedule", "program", "interop", "synth", "runtime", "tune", "comm", "fake-cuda", "fake-nccl"],
    ),
];

#[test]
fn crates_depend_only_on_what_lies_below_them() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let seen: BTreeSet<_> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    assert_eq!(seen, CRATES.iter().copied().collect(), "a crate was added: say here what it may import");
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let dependency = dependency["name"].as_str().unwrap();
            let ours = CRATES.contains(&dependency) && dependency != name;
            assert!(!ours || allowed[name].contains(&dependency), "{name} must not import {dependency}");
        }
    }
}
