//! Plans compared with published ones, and how they change as machines grow and the planner gets more time.
//!
//! `cargo bench -p antiphon --bench plans` plans every row with the binary, lets the checker of the tests judge it, and writes
//! the tables of `BENCHMARKS.md` (see `tables`). Arguments name the tables to write (`published`, `growth`, `anytime`, `tacos`, `milp`).
#![expect(clippy::print_stdout, reason = "the rows are the progress")]

#[path = "../tests/checker.rs"]
#[expect(clippy::unwrap_used, reason = "a test that finds nonsense panics")]
mod checker;
mod peers;
#[path = "../tests/random.rs"]
mod random;
#[expect(dead_code, reason = "its rows are written one by one, as they are found")]
mod tables;

use checker::{Wish, judge};
use peers::instances::irregular_instances;
use peers::irregular::{groups, random_graph, unequal, without_cables};
use peers::tacos;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tables::write_between;
use tempfile::TempDir;

/// The costs of published measurements on tori and meshes.
const TORUS: &str = "alpha=0.5us,bandwidth=50GiBps";

/// Topology, collective, size, chunks, further options, published result.
type Instance<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, &'a str);

const PUBLISHED: &[Instance<'_>] = &[
    ("dgx1", "allgather", "1GB", "1", "", "causal TACOS 10001"),
    ("dgx1", "allgather", "1GB", "2", "", "causal TACOS 7502"),
    ("dgx1", "allgather", "1GB", "4", "", "causal TACOS 6257"),
    ("dgx1", "allgather", "1GB", "8", "", "causal TACOS 5951"),
    ("ndv2x2", "allgather", "1GB", "1", "", "TE-CCL 43750 in 43 s"),
    ("ndv2x2", "allgather", "1GB", "auto", "", "TE-CCL 43750 in 43 s"),
    ("ndv2x2", "allgather", "1MB", "auto", "", "TE-CCL 48.75 in 47 s"),
    ("ndv2x2", "allgather", "1KB", "auto", "", "TE-CCL 4.137 in 574 s"),
    ("ndv2x4", "allgather", "1GB", "auto", "", "TE-CCL 65000 in 221 s"),
    ("dgx2x2", "allgather", "1GB", "auto", "", "TE-CCL 7750 in 2700 s"),
    ("dgx2x2", "allgather", "1MB", "auto", "", "TE-CCL 10.75 in 8181 s"),
    ("dgx2x2", "allgather", "1KB", "auto", "", "TE-CCL 4.006 in 18422 s"),
    ("ndv2x2", "alltoall", "1GB", "1", "", "TACCL 320049 in 1215 s"),
    ("dgx2x2", "alltoall", "1GB", "1", "", "TE-CCL 80500 in 1590 s"),
    ("torus2d:4x4", "allgather", "16MiB", "1", "--gap 3%", "TACOS median 100.2"),
    ("torus2d:8x8", "allgather", "64MiB", "1", "--gap 3%", "TACOS median 340.5"),
    ("torus2d:16x16", "allgather", "256MiB", "1", "--gap 3%", "TACOS 1302 in 0.46 s"),
    ("torus2d:16x16", "allgather", "256MiB", "1", "", "TACOS 1302 in 0.46 s"),
    ("torus2d:32x32", "allgather", "1GiB", "1", "--gap 3%", "TACOS 5168 in 84 s"),
    ("torus2d:32x32", "allgather", "1GiB", "1", "", "TACOS 5168 in 84 s"),
    ("torus2d:64x64", "allgather", "4GiB", "1", "--gap 3%", ""),
    ("mesh2d:16x16", "allgather", "256MiB", "1", "--gap 3%", "TACOS 2564 in 0.69 s"),
    ("mesh2d:16x16", "allgather", "1GiB", "4", "--gap 3%", "TACOS 10216 in 15 s"),
    ("torus3d:8x8x8", "allgather", "512MiB", "1", "--gap 3%", "TACOS 1723 in 3.7 s"),
    ("mesh3d:8x8x8", "allgather", "512MiB", "1", "--gap 3%", "TACOS 3425 in 4.1 s"),
    ("ndv2x1,costs=taccl-1mb", "allgather", "8MB", "1", "sk1-ndv2-n1", "TACCL 69"),
    ("ndv2x1,costs=taccl-32kb", "allgather", "256000", "1", "sk1-ndv2-n1", "TACCL 3.0"),
    ("ndv2x1,costs=taccl-1kb", "allgather", "8KB", "1", "sk1-ndv2-n1", "TACCL 0.98"),
    ("ndv2x2,costs=taccl-1mb", "allgather", "16MB", "1", "sk1-ndv2-n2", "TACCL 924.6"),
    ("ndv2x2,costs=taccl-1kb", "allgather", "16KB", "1", "sk2-ndv2-n2", "TACCL 10.16"),
    ("ndv2x4,costs=taccl-1mb", "allgather", "32MB", "1", "sk1-ndv2-n4", "TACCL 2628"),
    ("dgx2x2,costs=taccl-1mb", "allgather", "64MB", "2", "sk1-dgx2-n2", "TACCL 563.8"),
    ("dgx2x2,costs=taccl-1kb", "allgather", "32KB", "1", "sk2-dgx2-n2", "TACCL 15.50"),
    ("ndv2x2,costs=taccl-1mb", "alltoall", "16MB", "1", "sk1-ndv2-n2", "TACCL 6829"),
    ("dgx-a100x2", "allgather", "1GB", "auto", "", "ForestColl 2884.6 (bound), trees in 3.7 s"),
    ("dgx-a100x4", "allgather", "1GB", "auto", "", "ForestColl 3750 (bound), trees in 30 s"),
    ("mi250x2", "allgather", "1GB", "auto", "", "ForestColl 2823.8 (bound), trees in 7.2 s"),
    ("h800x64", "alltoall", "512MB", "auto", "--gap 5%", "PCCL 512 ranks in 701 s"),
    ("dgx1", "allreduce", "64MB", "auto", "", ""),
    ("ndv2x2", "allreduce", "64MB", "auto", "", ""),
    ("dgx-a100x2", "allreduce", "1GB", "auto", "", ""),
];

/// Machines of growing size, with the size of the AllGather.
const GROWTH: &[(&str, &str)] = &[
    ("torus2d:4x4", "16MiB"),
    ("torus2d:8x8", "64MiB"),
    ("torus2d:16x16", "256MiB"),
    ("torus2d:32x32", "1GiB"),
    ("torus2d:64x64", "4GiB"),
    ("mesh2d:4x4", "16MiB"),
    ("mesh2d:8x8", "64MiB"),
    ("mesh2d:16x16", "256MiB"),
    ("mesh2d:32x32", "1GiB"),
    ("h800x2", "16MiB"),
    ("h800x8", "64MiB"),
    ("h800x32", "256MiB"),
    ("h800x64", "512MiB"),
    ("h800x128", "1GiB"),
];

const ANYTIME: &[Instance<'_>] = &[
    ("dgx1", "allgather", "1GB", "auto", "", ""),
    ("ndv2x2", "allgather", "1MB", "auto", "", ""),
    ("dgx2x2", "allgather", "1MB", "auto", "", ""),
    ("mi250x2", "allgather", "1GB", "auto", "", ""),
    ("torus2d:16x16", "allgather", "256MiB", "1", "", ""),
    ("dragonfly:4x4x4", "allgather", "64MB", "auto", "", ""),
    ("tests/data/unequal.yaml", "allreduce", "64MB", "auto", "", ""),
];
const SECONDS: &[f64] = &[0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, table) in [
        ("published", published as fn() -> String),
        ("growth", growth),
        ("anytime", anytime),
        ("tacos", beside_tacos),
        ("milp", milp_alone),
    ] {
        if given.is_empty() || given.iter().any(|it| it == name) {
            write_between(name, &table());
        }
    }
}

/// One plan: the report, the wall-clock seconds of the whole command, and the folder with the plan.
struct Planned {
    report: Value,
    seconds: f64,
    folder: TempDir,
}

/// The plan in its folder.
const PLAN: &str = "plan.json";

fn plan(&(spec, collective, size, chunks, more, _): &Instance<'_>) -> Planned {
    let spec = with_costs(spec);
    let more = if more.starts_with("sk") { format!("--sketch sketches/{more}.yaml") } else { more.to_owned() };
    let line =
        format!("synth --topology {spec} --collective {collective} --size {size} --chunks {chunks} {more} --json -o");
    let folder = tempfile::tempdir().expect("a place for plans");
    let started = Instant::now();
    let output = antiphon(&format!("{line} {}", folder.path().join(PLAN).display()));
    let seconds = started.elapsed().as_secs_f64();
    Planned { report: serde_json::from_slice(&output).unwrap_or_default(), seconds, folder }
}

/// The verdict of the tests' checker, which shares no code with the project.
fn verdict(path: &Path, spec: &str, collective: &str) -> &'static str {
    /// Larger files are judged by `antiphon verify`.
    const LARGEST: u64 = 48 << 20;
    let size = path.metadata().map_or(0, |it| it.len());
    let Ok(text) = std::fs::read(path) else { return "none" };
    if size > LARGEST || text[..text.len().min(4096)].windows(10).any(|it| it == b"\"symmetry\"") {
        let ran = Command::new(env!("CARGO_BIN_EXE_antiphon")).arg("verify").arg(path).output();
        return if ran.expect("the binary runs").status.success() { "verify" } else { "WRONG" };
    }
    let schedule: Value = serde_json::from_slice(&text).expect("a plan is JSON");
    let topology: Value =
        serde_json::from_slice(&antiphon(&format!("topology show {spec} --json"))).expect("a topology");
    let (ranks, bytes) = (schedule["ranks"].as_u64().expect("ranks"), schedule["size_bytes"].as_u64().expect("a size"));
    if judge(&schedule, &topology, &Wish::all(collective, ranks, bytes)).is_ok() { "checker" } else { "WRONG" }
}

fn published() -> String {
    let mut table = "| topology | collective, size, C | strategy | makespan µs | bound µs | gap | seconds | judged by | published |\n\
                     |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for instance in PUBLISHED {
        let &(spec, collective, size, chunks, more, peer) = instance;
        let Planned { report, seconds, folder } = plan(instance);
        let verdict = verdict(&folder.path().join(PLAN), &with_costs(spec), collective);
        let under = match more {
            "" => String::new(),
            sketch if sketch.starts_with("sk") => format!(" under `{sketch}`"),
            options => format!(" `{options}`"),
        };
        let row = format!(
            "| `{spec}`{under} | {collective} {size}, {chunks} | {} | {} | {} ({}) | {} | {seconds:.2} | {verdict} | {peer} |",
            text(&report["strategy"]),
            short(&report["makespan_us"]),
            short(&report["lower_bound_us"]),
            text(&report["bound"]),
            gap(&report["gap"]),
        );
        keep(&mut table, &row);
    }
    table
}

fn growth() -> String {
    let mut table =
        "| topology | ranks | makespan µs | gap | seconds to 3 % | memory |\n|---|---|---|---|---|---|\n".to_owned();
    for &(spec, size) in GROWTH {
        let Planned { report, seconds, .. } = plan(&(spec, "allgather", size, "1", "--gap 3%", ""));
        let shown: Value = serde_json::from_slice(&antiphon(&format!("topology show {} --json", with_costs(spec))))
            .unwrap_or_default();
        let memory = report["peak_memory_bytes"].as_f64().map_or_else(String::new, |it| format!("{:.0} MB", it / 1e6));
        let row = format!(
            "| `{spec}` | {} | {} | {} | {seconds:.2} | {memory} |",
            shown["ranks"],
            short(&report["makespan_us"]),
            gap(&report["gap"]),
        );
        keep(&mut table, &row);
    }
    table
}

fn anytime() -> String {
    let heads: String = SECONDS.iter().fold(String::new(), |mut line, at| {
        write!(line, " {at} s |").expect("strings take any text");
        line
    });
    let mut table = format!("| gap after | collective, size |{heads}\n|---|---|{}\n", "---|".repeat(SECONDS.len()));
    for instance in ANYTIME {
        let Planned { report, .. } = plan(instance);
        let bound = report["lower_bound_us"].as_f64().unwrap_or(f64::NAN);
        let fell = report["milestones"].as_array().cloned().unwrap_or_default();
        let mut row = format!("| `{}` | {} {} |", instance.0, instance.1, instance.2);
        for &at in SECONDS {
            let known = fell.iter().filter(|it| it["seconds"].as_f64().is_some_and(|seconds| seconds <= at));
            let best = known.filter_map(|it| it["makespan_us"].as_f64()).fold(f64::INFINITY, f64::min);
            let cell =
                if best.is_finite() { format!("{:.2} %", (best / bound - 1.0) * 100.0) } else { "–".to_owned() };
            write!(row, " {cell} |").expect("strings take any text");
        }
        keep(&mut table, &row);
    }
    table
}

/// The machines of the comparison with TACOS: a name, a SPEC or a topology, and the numbers of chunks. Each rank has 1 MB, on
/// `dgx1` 125 MB, for which TACOS's results are published.
fn tacos_machines() -> Vec<(String, Value, &'static [usize])> {
    let grid = |spec: &str| topology::resolve(&with_costs(spec)).expect("a SPEC");
    let mut machines: Vec<(String, Value, &'static [usize])> =
        vec![("`dgx1`, 125 MB".into(), "dgx1".into(), &[1, 2, 4, 8])];
    for (ranks, seed, chunks) in [
        (8, 1, &[1, 2, 4][..]),
        (13, 2, &[1, 2, 4]),
        (24, 3, &[1, 2, 4]),
        (50, 4, &[1, 2, 4]),
        (100, 5, &[1, 2]),
        (200, 6, &[1]),
    ] {
        machines.push((format!("random, {ranks} ranks"), random_graph(ranks, seed), chunks));
    }
    for (spec, cables, chunks) in [
        ("torus2d:5x5", 3, &[1, 2, 4][..]),
        ("torus2d:7x9", 5, &[1, 2]),
        ("torus3d:6x6x3", 9, &[1]),
        ("mesh2d:9x11", 4, &[1, 2]),
    ] {
        machines.push((format!("`{spec}` without {cables} cables"), without_cables(&grid(spec), cables, 7), chunks));
    }
    for sizes in [&[3, 5, 7][..], &[2, 6], &[4, 3, 2, 9]] {
        let words: Vec<String> = sizes.iter().map(usize::to_string).collect();
        machines.push((format!("machines of {} ranks", words.join(", ")), unequal(sizes), &[1, 2, 4]));
    }
    for (count, size, chunks) in [(5, 4, &[1, 2, 4][..]), (9, 8, &[1, 2])] {
        machines.push((format!("{count} groups of {size} ranks"), groups(count, size), chunks));
    }
    machines
}

fn beside_tacos() -> String {
    /// Runs of each variant of TACOS: many on small machines.
    const RUNS: [u64; 2] = [400, 50];
    const SMALL: usize = 24;
    let mut table =
        "| machine | C | TACOS | ours | above the bound | judged by |\n|---|---|---|---|---|---|\n".to_owned();
    for (name, machine, counts) in tacos_machines() {
        let folder = tempfile::tempdir().expect("a place for topologies");
        let file = folder.path().join("machine.json");
        std::fs::write(&file, machine.to_string()).expect("room for a topology");
        let spec = machine.as_str().map_or_else(|| file.display().to_string(), str::to_owned);
        let topology = topology::load(&spec).expect("a topology");
        let each = if spec == "dgx1" { 125_000_000 } else { 1_000_000 };
        let runs = RUNS[usize::from(topology.rank_count() > SMALL)];
        let mut columns: [Vec<String>; 5] = Default::default();
        for &chunks in counts {
            let peer = tacos::best(&topology, chunks, topology::Bytes(each as f64 / chunks as f64), runs);
            let (size, count) = ((each * topology.rank_count()).to_string(), chunks.to_string());
            let Planned { report, folder, .. } = plan(&(&spec, "allgather", &size, &count, "--time-limit 5s", ""));
            let verdict = verdict(&folder.path().join(PLAN), &spec, "allgather");
            let cells =
                [count, format!("{peer:.1}"), short(&report["makespan_us"]), gap(&report["gap"]), verdict.to_owned()];
            columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
        }
        columns[4].dedup();
        keep(&mut table, &format!("| {name} | {} |", columns.map(|column| column.join(", ")).join(" | ")));
    }
    table
}

/// `milp` alone beside the best of all other strategies, each of which has as long.
fn milp_alone() -> String {
    const OTHERS: [&str; 8] = ["classic", "flow", "levels", "trees", "symmetric", "matching", "improve", "orbits"];
    const LIMIT: &str = "--time-limit 30s";
    let mut table =
        "| machine | collective, size | `milp` µs | by | best other µs | by | above the bound | judged by |\n\
                     |---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for instance in irregular_instances() {
        let folder = tempfile::tempdir().expect("a place for topologies");
        let file = folder.path().join("machine.json");
        std::fs::write(&file, instance.machine.to_string()).expect("room for a topology");
        let spec = file.display().to_string();
        let found = |strategy: &str| {
            let more = format!("--strategy {strategy} {LIMIT}");
            plan(&(&spec, instance.collective, instance.size, "1", &more, ""))
        };
        let own = found("milp");
        let judged = verdict(&own.folder.path().join(PLAN), &spec, instance.collective);
        let others = OTHERS.map(|strategy| found(strategy).report);
        let makespan = |report: &Value| report["makespan_us"].as_f64().unwrap_or(f64::INFINITY);
        let best = others.iter().min_by(|a, b| makespan(a).total_cmp(&makespan(b))).expect("there are others");
        let cells = [
            format!("| {} | {} {}", instance.name, instance.collective, instance.size),
            format!("{} | {}", short(&own.report["makespan_us"]), text(&own.report["strategy"])),
            format!("{} | {}", short(&best["makespan_us"]), text(&best["strategy"])),
            format!("{} | {judged} |", gap(&own.report["gap"])),
        ];
        keep(&mut table, &cells.join(" | "));
    }
    table
}

/// Adds a row to a table, and prints it.
fn keep(table: &mut String, row: &str) {
    println!("{row}");
    table.push_str(row);
    table.push('\n');
}

/// Grids have the costs of the published measurements.
fn with_costs(spec: &str) -> String {
    let is_grid = spec.starts_with("torus") || spec.starts_with("mesh");
    if is_grid { format!("{spec},{TORUS}") } else { spec.to_owned() }
}

fn antiphon(line: &str) -> Vec<u8> {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(env!("CARGO_BIN_EXE_antiphon")).args(arguments).output().expect("the binary runs");
    if !output.status.success() {
        println!("{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.stdout
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn short(value: &Value) -> String {
    let Some(number) = value.as_f64() else { return "–".to_owned() };
    let digits = (5 - number.abs().max(1e-9).log10().floor() as i32).clamp(0, 6) as usize;
    let fixed = format!("{number:.digits$}");
    if fixed.contains('.') { fixed.trim_end_matches('0').trim_end_matches('.').to_owned() } else { fixed }
}

fn gap(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), |gap| format!("{:.2} %", gap * 100.0))
}
