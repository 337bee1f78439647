//! The rules of the house that a machine can check: crate edges, module docs, file sizes, words that must not
//! occur, and that no data file is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const CRATES: &[&str] = &["topology", "schedule", "program", "interop", "synth", "runtime", "tune", "antiphon"];

/// Whoever imports a crate may also import what lies below it; `synth` and `runtime` never meet.
const ALLOWED: &[(&str, &[&str])] = &[
    ("topology", &[]),
    ("schedule", &["topology"]),
    ("synth", &["schedule", "topology"]),
    ("runtime", &["schedule", "topology"]),
    ("tune", &["runtime", "schedule", "topology"]),
    ("antiphon", &["topology", "schedule", "program", "interop", "synth", "runtime", "tune"]),
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
            let ours = CRATES.contains(&dependency);
            assert!(!ours || allowed[name].contains(&dependency), "{name} must not import {dependency}");
        }
    }
}

#[test]
fn every_source_file_says_what_it_owns() {
    for path in files_under("", "rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//!"), "{} has no module documentation", path.display());
    }
}

#[test]
fn no_room_is_too_large() {
    for path in files_under("", "rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        assert!(lines <= 430, "{} has {lines} lines before its tests", path.display());
    }
}

#[test]
fn nothing_is_ignored_or_left_to_do() {
    // Spelled in pieces, so that this file does not find itself.
    for word in [concat!("#[", "ignore"), concat!("todo", "!("), concat!("unimplemented", "!(")] {
        for path in files_under("", "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn unsafe_code_stays_where_it_belongs() {
    for path in files_under("", "rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        let relative = path.strip_prefix(ROOT).unwrap();
        let welcome = relative.starts_with("runtime") || relative.starts_with("synth/src/solver");
        let has_unsafe = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.contains(concat!("unsafe", " {")) || code.contains(concat!("unsafe", " fn"))
        });
        assert!(!has_unsafe || welcome, "{} contains unsafe code", path.display());
    }
}

#[test]
fn the_architecture_document_fits_and_numbers_its_invariants() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("ARCHITECTURE.md")).unwrap();
    assert!(text.lines().count() <= 200, "ARCHITECTURE.md is longer than 200 lines");
    for number in 1..=11 {
        assert!(text.contains(&format!("\n{number}. ")), "invariant {number} is missing");
    }
    for name in CRATES.iter().filter(|name| **name != "antiphon") {
        assert!(text.contains(&format!("`{name}/`")), "the code map does not mention {name}/");
    }
}

#[test]
fn no_test_file_is_forgotten() {
    let main = std::fs::read_to_string(Path::new(ROOT).join("tests/main.rs")).unwrap();
    for path in files_under("tests", "rs") {
        if path.parent() != Some(&Path::new(ROOT).join("tests")) {
            continue;
        }
        let module = path.file_stem().unwrap().to_str().unwrap();
        assert!(module == "main" || main.contains(&format!("mod {module};")), "tests/{module}.rs is not compiled");
    }
}

/// All files with this extension below a folder of the repository, sorted; build output left out.
fn files_under(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}
