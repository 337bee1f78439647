//! Whether plans for the ranks of this computer take, one against another, what the measured model says.
//!
//! `make bench-tuning` asks for the bar of the project over a grid of collectives, sizes and strategies, on a computer that does nothing
//! else. Elsewhere only a model that says little fails.

use crate::alone;
use crate::binary::{antiphon_in, read};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use tune::kendall_tau;

/// Strategies, with the number of chunks that each rank's data is cut into.
const STRATEGIES: [&str; 7] = [
    "auto",
    "classic --chunks 1",
    "classic --chunks 4",
    "matching --chunks 1",
    "matching --chunks 4",
    "matching --chunks 16",
    "levels --chunks 1",
];
const COLLECTIVES: [&str; 3] = ["allreduce", "allgather", "alltoall"];
/// Repetitions of a plan in each round.
const ITERATIONS: usize = 15;
/// A profile that says that other programs computed beside it is made again, so often at most.
const PROFILES: usize = 5;

/// How much is measured, and what τ has to be.
struct Grid {
    sizes: &'static [u64],
    rounds: usize,
    least: f64,
}

impl Grid {
    fn of_environment() -> Self {
        match std::env::var("ANTIPHON_TEST_EFFORT").as_deref() {
            Ok("quiet") => Self { sizes: &[4 << 10, 64 << 10, 1 << 20, 8 << 20], rounds: 5, least: 0.8 },
            _ => Self { sizes: &[4 << 10, 1 << 20], rounds: 2, least: 0.3 },
        }
    }
}

/// What `profile` says on a busy computer.
const BUSY: &str = "warning: Other programs used ";

/// A plan: its file, what it is predicted to take, and what it took in each round, in microseconds: the quickest repetition, and the
/// middle one.
struct RankedPlan {
    file: String,
    predicted: f64,
    measured: Vec<[f64; 2]>,
}

/// Every plan of the strategies for a collective at a size; equal plans once.
fn plans(folder: &Path, collective: &str, size: u64) -> Vec<RankedPlan> {
    let mut seen = BTreeSet::new();
    let mut plans = Vec::new();
    for (number, strategy) in STRATEGIES.iter().enumerate() {
        let file = format!("{collective}-{size}-{number}.json");
        let line = format!("synth --topology measured.yaml --collective {collective} --size {size} --time-limit 1s");
        let ran = antiphon_in(folder, &format!("{line} --strategy {strategy} -o {file}"));
        if ran.code == 1 && ran.stderr.contains("has no schedule for this problem") {
            continue;
        }
        ran.ok();
        let plan = read(&folder.join(&file));
        let predicted = plan["makespan_us"].as_f64().unwrap();
        if seen.insert((predicted.to_bits(), plan["transfers"].as_array().unwrap().len())) {
            plans.push(RankedPlan { file, predicted, measured: Vec::new() });
        }
    }
    plans
}

/// What a plan takes out of place: the quickest of its repetitions, and the middle one.
fn measured(folder: &Path, file: &str) -> [f64; 2] {
    let ran = antiphon_in(folder, &format!("run {file} --iterations {ITERATIONS} --json")).ok();
    let line = ran.stdout.lines().next().unwrap();
    let told: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&told["wrong"], &told["in_place"]), (&0.into(), &false.into()), "{told}");
    ["min_us", "time_us"].map(|key| told[key].as_f64().unwrap())
}

#[test]
fn long_plans_take_one_against_another_what_a_profile_predicts() {
    let _alone = alone();
    let grid = Grid::of_environment();
    let folder = tempfile::tempdir().unwrap();
    let disturbed = || {
        let profiled = antiphon_in(folder.path(), "profile --ranks 4 --check 0 --force -o measured.yaml").ok();
        profiled.stderr.contains(BUSY)
    };
    (0..PROFILES).take_while(|_| disturbed()).for_each(drop);
    let cells = COLLECTIVES.iter().flat_map(|collective| grid.sizes.iter().map(move |size| (collective, *size)));
    let mut all: Vec<RankedPlan> =
        cells.flat_map(|(collective, size)| plans(folder.path(), collective, size)).collect();
    // Plans take turns, so that what else this computer does concerns all of them.
    for _ in 0..grid.rounds {
        for plan in &mut all {
            plan.measured.push(measured(folder.path(), &plan.file));
        }
    }
    let middle = |plan: &RankedPlan, which: usize| {
        let mut times: Vec<f64> = plan.measured.iter().map(|times| times[which]).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let pairs = |which| all.iter().map(|plan| (plan.predicted, middle(plan, which))).collect::<Vec<_>>();
    // The quickest repetitions count: other programs may run on the same cores.
    let [tau, of_middles] = [0, 1].map(|which| kendall_tau(&pairs(which)).unwrap());
    println!("τ of {} plans: {tau:.3}, by medians {of_middles:.3}", all.len());
    let listed =
        || all.iter().map(|plan| format!("{}: {:.1} µs, took {:.1}", plan.file, plan.predicted, middle(plan, 0)));
    assert!(
        tau >= grid.least,
        "τ {tau:.3} of {} plans\n{}\n{}",
        all.len(),
        listed().collect::<Vec<_>>().join("\n"),
        std::fs::read_to_string(folder.path().join("measured.yaml")).unwrap()
    );
}

/// Threads that compute, one for each core, until this is dropped.
struct BusyCores {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyCores {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().unwrap().get();
        let spin = |stop: Arc<AtomicBool>| move || while !stop.load(Relaxed) {};
        Self { threads: (0..cores).map(|_| std::thread::spawn(spin(stop.clone()))).collect(), stop }
    }
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_busy_computer_is_named() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let busy = BusyCores::start();
    let profiled = antiphon_in(folder.path(), "profile --ranks 2 --quick --check 0 -o measured.yaml").ok();
    assert!(profiled.stderr.contains(BUSY), "{}", profiled.stderr);
    let file = std::fs::read_to_string(folder.path().join("measured.yaml")).unwrap();
    assert!(file.contains("# Other programs used "), "{file}");
    let line = "tune --ranks 2 --collective allreduce --sizes 4KiB --budget 1s --launches 1 -o table.json";
    let tuned = antiphon_in(folder.path(), line).ok();
    drop(busy);
    assert!(tuned.stderr.contains(BUSY), "{}", tuned.stderr);
}
