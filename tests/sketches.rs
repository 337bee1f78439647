//! Sketches: what they forbid stays unused, what is wrong with them has a place, and none is forgotten.

use crate::binary::{antiphon, read, repository};

#[test]
fn every_shipped_sketch_resolves_and_says_why_it_exists() {
    let mut found = 0;
    for entry in std::fs::read_dir(repository("sketches")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with('#'), "{} does not say why it exists", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap();
        let spec = match name {
            name if name.contains("ndv2") => format!("ndv2x{},costs=taccl-1mb", machines(name)),
            name if name.contains("dgx2") => format!("dgx2x{},costs=taccl-1mb", machines(name)),
            _ => "ndv2x1".to_owned(),
        };
        antiphon(&format!("sketch check {} --topology {spec}", path.display())).ok();
        found += 1;
    }
    assert!(found >= 8, "only {found} sketches");
}

fn machines(name: &str) -> &str {
    ["4", "2", "1"].into_iter().find(|count| name.contains(&format!("-n{count}"))).unwrap_or("1")
}

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
            let line = format!("{line} --sketch {} --strategy {strategy} -o {}", sketch.display(), plan.display());
            antiphon(&line).ok();
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
