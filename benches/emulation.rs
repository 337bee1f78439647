//! How well measured times on an emulated machine agree with predicted ones.
//!
//! For each machine and collective: a plan, its makespan times the slowdown that makes it about [`aim`], and the median
//! time of local processes over paced links. Run it with `cargo bench -p antiphon --bench emulation`; machines given as
//! arguments replace the list. Without arguments it writes the table of `BENCHMARKS.md`.
#![expect(clippy::print_stdout, reason = "the table is the result")]

mod tables;

use serde_json::Value;
use std::process::Command;

/// The predicted time of a run, in µs: long enough that the links, not moving bytes or waking ranks, determine it.
fn aim(ranks: u64) -> f64 {
    if ranks <= 16 { 60_000.0 } else { 500_000.0 }
}

/// Equal and unequal links, shared ports and NICs, pure delays, odd rank counts.
const MACHINES: &[&str] = &[
    "ring:3,alpha=5us,bandwidth=10GBps",
    "ring:5,alpha=5us,bandwidth=10GBps,direction=both",
    "line:4,alpha=5us,bandwidth=10GBps,latency=pipelines",
    "clique:7,alpha=2us,bandwidth=25GBps",
    "mesh2d:2x3,alpha=1us,bandwidth=50GBps/10GBps",
    "torus2d:3x4,alpha=1us,bandwidth=50GBps",
    "hypercube:3,alpha=1us,bandwidth=50GBps",
    "switch:6,alpha=2us,bandwidth=25GBps",
    "switch:9,alpha=2us,bandwidth=25GBps,latency=pipelines",
    "dgx1",
    "ndv2x1",
    "ndv2x2",
    "dgx2x1",
    "dgx-a100x1",
    "torus2d:4x8,alpha=1us,bandwidth=50GBps",
    "ndv2x4",
    "dgx2x2",
    "dgx-a100x4",
];

const COLLECTIVES: &[&str] = &["allgather", "allreduce", "alltoall", "broadcast"];

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_whole = given.is_empty();
    let machines = if is_whole { MACHINES.iter().map(ToString::to_string).collect() } else { given };
    let mut table = tables::head(&[&["machine"], COLLECTIVES].concat());
    let folder = tempfile::tempdir().expect("a place for plans");
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().expect("a path in UTF-8");
    println!("{:<52} {:<10} {:>12} {:>12} {:>9}", "machine", "collective", "predicted ms", "measured ms", "error");
    let mut worst: f64 = 0.0;
    for machine in &machines {
        let shown = antiphon(&format!("topology show {machine} --json"));
        let aim = aim(shown[0]["ranks"].as_u64().expect("a topology has ranks"));
        let mut row = vec![format!("`{machine}`")];
        for collective in COLLECTIVES {
            let line = format!("synth --topology {machine} --collective {collective} --size 1MB --chunks 1");
            let report = antiphon(&format!("{line} --strategy matching --json --force -o {plan}"));
            let makespan = report[0]["makespan_us"].as_f64().expect("a plan has a makespan");
            let slowdown = aim / makespan;
            let line = format!("run {plan} --topology {machine} --emulate {machine} --slowdown {slowdown}");
            let rows = antiphon(&format!("{line} --iterations 5 --warmups 1 --json"));
            let measured = rows[0]["time_us"].as_f64().expect("a measured time");
            let error = measured / aim - 1.0;
            worst = worst.max(error.abs());
            let (predicted, measured, error) = (aim / 1e3, measured / 1e3, error * 100.0);
            println!("{machine:<52} {collective:<10} {predicted:>12.2} {measured:>12.2} {error:>8.2}%");
            row.push(format!("{error:.2} %"));
        }
        table.push_str(&tables::row(row.iter().map(String::as_str)));
    }
    if is_whole {
        tables::write_between("emulation", &table);
    }
    println!("largest error: {:.2} %", worst * 100.0);
}

fn antiphon(line: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_antiphon")).args(line.split(' ')).output();
    let output = output.expect("the binary was built with the benchmark");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    match serde_json::from_str(&text) {
        Ok(value) => vec![value],
        Err(_) => text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    }
}
