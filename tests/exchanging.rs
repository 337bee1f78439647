//! AllReduces whose ranks exchange sums, on machines on which that once went wrong.

use crate::binary::antiphon_in;
use std::path::Path;

/// Plans an AllReduce on a machine of `tests/data`, verifies it with its program, and gives what was said of the plan.
fn planned(folder: &Path, machine: &str, options: &str) -> serde_json::Value {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(machine);
    let line =
        format!("synth --topology {} --collective allreduce {options} -o plan.json --force --json", machine.display());
    let told = antiphon_in(folder, &line).ok().json();
    let verified = antiphon_in(folder, "verify plan.json --program --json").ok().json();
    assert!(verified["adds_differently"].is_null(), "{options}: {verified}");
    told
}

/// What a later round brings could arrive before what an earlier one does, and ranks would add in different orders.
#[test]
fn uneven_links_change_no_bits() {
    let folder = tempfile::tempdir().unwrap();
    for size in [7, 700, 70_000] {
        planned(folder.path(), "uneven-five.json", &format!("--size {size} --chunks 1 --time-limit 1s"));
    }
}

/// Chunks take parallel links in turn, so messages that cross carry different chunks.
#[test]
fn parallel_links_lose_no_plans() {
    let folder = tempfile::tempdir().unwrap();
    for strategy in ["levels", "trees"] {
        let options = format!("--size 100 --chunks 1 --time-limit 2s --strategy {strategy}");
        let told = planned(folder.path(), "parallel-three.json", &options);
        let makespan = told["makespan_us"].as_f64().unwrap();
        assert!(makespan < 5.64, "{strategy}: {makespan}");
        assert!(!told.to_string().contains("missing_contribution"), "{told}");
    }
}

/// An exchange is one more way of a sum between machines than a sketch allows.
#[test]
fn sketches_that_count_hops_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = "name: hops\ntopology: {machines: 4, ranks_per_machine: 1, such_as: \"x\"}\nmax_machine_hops: 1\n";
    std::fs::write(folder.path().join("hops.yaml"), sketch).unwrap();
    for strategy in ["matching", "milp"] {
        for seed in [2, 3] {
            let options =
                format!("--size 400 --chunks 1 --time-limit 2s --strategy {strategy} --seed {seed} --sketch hops.yaml");
            let told = planned(folder.path(), "four-machines.json", &options);
            assert!(told["makespan_us"].as_f64().is_some(), "{told}");
        }
    }
}

/// A plan for groups that start at once is timed anew for their starts; then other parts of a sum may be the last ones.
#[test]
fn groups_that_start_later_exchange_anew() {
    let folder = tempfile::tempdir().unwrap();
    let groups = "groups:
  - {members: [0-3], collective: allreduce, size: 4KB}
  - {members: [2-5], collective: allreduce, size: 40KB, start: 0.7us}
  - {members: [0,2,4], collective: broadcast, root: 0, size: 40KB, start: 0.3us}
";
    std::fs::write(folder.path().join("groups.yaml"), groups).unwrap();
    for strategy in ["matching", "trees"] {
        let line = format!(
            "synth --topology line:6 --demand groups.yaml --collective custom --time-limit 2s --strategy {strategy} \
             -o plan.json --force --json"
        );
        let told = antiphon_in(folder.path(), &line).ok().json();
        assert!(told["makespan_us"].as_f64().unwrap() < 6.9, "{strategy}: {told}");
        antiphon_in(folder.path(), "verify plan.json").ok();
    }
}
