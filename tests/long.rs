//! Random machines, random faults, random bytes. `make test` runs a few of each, `make test-long` many
//! (`ANTIPHON_TEST_EFFORT=long`); every case is named by its seed.

use crate::binary::{antiphon, read, repository};
use crate::checker::{Wish, judge};
use crate::launch::children_of;
use crate::random::Random;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How many cases to try.
fn cases(short: u64, long: u64) -> std::ops::Range<u64> {
    match std::env::var("ANTIPHON_TEST_EFFORT").as_deref() {
        Ok("long") => 0..long,
        _ => 0..short,
    }
}

/// A strongly connected machine: a cycle in random order, chords, mixed costs, shared resources, parallel links. `busy` is the
/// time in µs that a message takes of each resource, however short it is.
fn machine(random: &mut Random, busy: f64) -> Value {
    let ranks = 2 + random.below(9);
    let mut order: Vec<u64> = (0..ranks).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    let mut pairs: Vec<(u64, u64)> = (0..order.len()).map(|i| (order[i], order[(i + 1) % order.len()])).collect();
    for _ in 0..random.below(2 * ranks) {
        let (from, to) = (random.below(ranks), random.below(ranks));
        if from != to {
            pairs.push((from, to));
        }
    }
    let resources = random.below(4);
    let betas = [1e-5, 2e-5, 1e-4, 3e-4];
    let links = pairs.iter().enumerate().map(|(id, (from, to))| {
        let shared: Vec<u64> = (0..resources).filter(|_| random.below(3) == 0).collect();
        json!({"id": id, "from": from, "to": to, "alpha_us": f64::max(*random.pick(&[0.0, 0.3, 0.7, 2.6]), busy),
            "beta_us_per_byte": *random.pick(&betas), "latency": *random.pick(&["occupies", "pipelines"]),
            "resources": shared})
    });
    let links: Vec<Value> = links.collect();
    let resource = |id: u64| match busy > 0.0 {
        true => json!({"id": id, "name": format!("shared{id}"), "beta_us_per_byte": 1e-5, "alpha_us": busy}),
        false => json!({"id": id, "name": format!("shared{id}"), "beta_us_per_byte": 1e-5}),
    };
    let resources: Vec<Value> = (0..resources).map(resource).collect();
    json!({"format": "antiphon-topology/1", "name": "random", "ranks": ranks, "links": links, "resources": resources})
}

#[test]
fn long_random_machines_get_right_plans() {
    let folder = tempfile::tempdir().unwrap();
    let collectives =
        ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv"];
    for seed in cases(24, 100) {
        let mut random = Random(seed);
        let machine = machine(&mut random, if seed % 2 == 0 { 0.0 } else { 0.3 });
        let (spec, plan) = (folder.path().join("machine.json"), folder.path().join("plan.json"));
        std::fs::write(&spec, machine.to_string()).unwrap();
        let collective = *random.pick(&collectives);
        let size = *random.pick(&[1, 1000, 99_999, 8_000_000]);
        let chunks = *random.pick(&["1", "2", "3", "auto"]);
        let strategy = *random.pick(&["matching", "matching", "milp", "auto"]);
        let line = format!(
            "synth --topology {} --collective {collective} --size {size} --chunks {chunks} --strategy {strategy} --time-limit 10s",
            spec.display()
        );
        let ran = antiphon(&format!("{line} --force -o {}", plan.display()));
        // Models of a machine that is not small may have no answer in this time.
        if strategy == "milp" && ran.code == 1 && ran.stderr.contains("stopped before a schedule was found") {
            continue;
        }
        assert_eq!(ran.code, 0, "seed {seed}: {line}\n{}\n{machine}", ran.stderr);
        let wish = Wish::all(collective, machine["ranks"].as_u64().unwrap(), size);
        let normalized = antiphon(&format!("topology show {} --json", spec.display())).ok().json();
        let verdict = judge(&read(&plan), &normalized, &wish);
        assert!(verdict.is_ok(), "seed {seed}: {line}: {verdict:?}\n{machine}");
    }
}

#[test]
fn long_damaged_files_never_crash_a_parser() {
    let folder = tempfile::tempdir().unwrap();
    let sketch = repository("sketches/sk1-ndv2-n2.yaml");
    let sources: [(&Path, &str, &str); 3] = [
        (&repository("tests/data/example-topology.json"), "json", "topology check FILE"),
        (&repository("tests/data/example-schedule.json"), "json", "verify FILE"),
        (&sketch, "yaml", "sketch check FILE --topology ndv2x2,costs=taccl-1mb"),
    ];
    for seed in cases(60, 600) {
        let mut random = Random(seed);
        let (source, extension, command) = random.pick(&sources);
        let mut bytes = std::fs::read(source).unwrap();
        for _ in 0..=random.below(3) {
            damage(&mut bytes, &mut random);
        }
        let path = folder.path().join(format!("damaged.{extension}"));
        std::fs::write(&path, &bytes).unwrap();
        let ran = antiphon(&command.replace("FILE", path.to_str().unwrap()));
        let told = ran.code == 0 || !ran.stderr.is_empty();
        assert!((0..=2).contains(&ran.code) && told, "seed {seed}: exit {}: {}", ran.code, ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "seed {seed}: {}", ran.stderr);
    }
}

/// Cuts, repeats or flips bytes, or inserts characters that break numbers and brackets.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len().max(1) as u64) as usize;
    let fragments: [&[u8]; 8] = [b"-1", b"1e999", b"NaN", b"999999999999", b"[[[[[[[[", b"\"", b"null", b"\xff\xfe"];
    match random.below(4) {
        0 => bytes.truncate(at),
        1 => {
            let piece = bytes[at..(at + 40).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        2 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        _ => drop(bytes.splice(at..at, random.pick(&fragments).iter().copied())),
    }
}

/// Emulated machines of 3 to 32 ranks take the predicted time, within 5 %, where links are the bottleneck: half a
/// second and more, in which two cores could move a megabyte for every rank many times.
#[test]
fn long_emulated_machines_keep_to_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let machines = [
        ("ring:3,alpha=5us,bandwidth=10GBps", "allreduce"),
        ("dgx1", "allgather"),
        ("ndv2x2", "alltoall"),
        ("switch:8,alpha=2us,bandwidth=25GBps", "allgather"),
        ("torus2d:4x4,alpha=1us,bandwidth=50GBps", "alltoall"),
        ("line:4,alpha=5us,bandwidth=10GBps,latency=pipelines", "broadcast"),
        ("fat-tree:2x2x2", "reducescatter"),
        ("torus2d:4x8,alpha=1us,bandwidth=50GBps", "allgather"),
        ("dgx2x2", "allreduce"),
        ("ndv2x4", "alltoall"),
    ];
    for case in cases(1, machines.len() as u64) {
        let (machine, collective) = machines[case as usize];
        let plan = folder.path().join("plan.json");
        let synth = format!("synth --topology {machine} --collective {collective} --size 1MB --strategy matching");
        let report = antiphon(&format!("{synth} --chunks 1 --json --force -o {}", plan.display())).ok().json();
        let predicted = 600_000.0;
        let slowdown = predicted / report["makespan_us"].as_f64().unwrap();
        let run = format!("run {} --topology {machine} --emulate {machine} --slowdown {slowdown}", plan.display());
        let mut errors = Vec::new();
        // Other work on the computer may delay a run, but cannot make it early.
        let kept = (0..3).any(|_| {
            let rows = antiphon(&format!("{run} --iterations 3 --warmups 1 --json")).ok();
            let row: Value = serde_json::from_str(rows.stdout.lines().next().unwrap()).unwrap();
            assert_eq!(row["wrong"], 0, "{machine} {collective}: {row}");
            errors.push(row["time_us"].as_f64().unwrap() / predicted - 1.0);
            errors.iter().all(|error| *error > -0.001) && errors.last().is_some_and(|error| *error < 0.05)
        });
        assert!(kept, "{machine} {collective}: off by {errors:?}");
    }
}

#[test]
fn long_a_rank_killed_or_stopped_at_any_time_is_named() {
    for seed in cases(4, 24) {
        let mut random = Random(seed);
        let ranks = 2 + random.below(4);
        let collective = *random.pick(&["allreduce", "allgather", "alltoall", "broadcast"]);
        let line = format!(
            "run --collective {collective} --size 400000 --ranks {ranks} --iterations 1000000 --timeout 3s --ready-timeout 20s"
        );
        let mut child = Command::new(env!("CARGO_BIN_EXE_antiphon"))
            .args(line.split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let rank = random.below(ranks) as usize;
        let Some(victim) = busy_worker(child.id(), rank, ranks as usize, 2 + random.below(40)) else {
            drop(child.kill().and_then(|()| child.wait()));
            panic!("seed {seed}: the workers did not start");
        };
        let signal = *random.pick(&["-KILL", "-STOP"]);
        assert!(Command::new("kill").args([signal, &victim.to_string()]).status().unwrap().success());
        let started = Instant::now();
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "seed {seed}: {message}");
        assert!(message.contains(&format!("rank {rank}")), "seed {seed}, rank {rank}: {message}");
        // Used processor time does not show that all have voted, and getting ready has its own deadline.
        let limit = Duration::from_secs(if message.contains("during getting ready") { 20 } else { 3 });
        let took = started.elapsed();
        assert!(took < limit + Duration::from_secs(6), "seed {seed}: took {took:?}: {message}");
        assert!(!Path::new(&format!("/proc/{victim}")).exists(), "seed {seed}: process {victim} is left");
    }
}

/// The process of a rank, after it has used this many ticks of processor time.
fn busy_worker(launcher: u32, rank: usize, ranks: usize, ticks: u64) -> Option<u32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let mut workers = children_of(launcher);
        // Children are in the order in which they were started.
        workers.sort_unstable();
        if workers.len() == ranks && workers.iter().all(|pid| used_ticks(*pid) >= ticks) {
            return Some(workers[rank]);
        }
        std::thread::yield_now();
    }
    None
}

fn used_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = after_name.split_whitespace().skip(11).map(|ticks| ticks.parse::<u64>().unwrap_or(0));
    fields.next().unwrap_or(0) + fields.next().unwrap_or(0)
}
