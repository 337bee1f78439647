//! Antiphon next to Open MPI and Gloo: on this computer, over its memory and over TCP, and between hosts with shaped links.
//!
//! All of these are measured in the same place and the same run: Open MPI with its own choice, and with the best of the
//! algorithms that can be forced (a short contest finds it); Gloo; the algorithm that Antiphon takes without a plan;
//! and, between hosts, a plan for their true topology. Every time is a median of global spans, from the first start to
//! the last end of any rank. Each program has several turns, and the better one counts. Buffers are filled before every
//! repetition, and results are checked. Calls are out of place, except Broadcast and Gloo's AllReduce, which have no
//! other form.
//!
//! Run it with `make cluster-bench`; shapes given as arguments replace the list. Hosts have a system's default
//! settings: its congestion control, segments of 64 KB and the kernel's own buckets.
#![expect(clippy::print_stdout, reason = "the table is the result")]
#![allow(clippy::print_stderr, reason = "what is missing, and how far it is, are no part of the table")]

#[path = "../tests/binary.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "the tests need more of it, and stop at the first surprise")]
mod binary;
#[path = "../tests/cluster/fabric/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests need more of it")]
mod fabric;
#[path = "../tests/cluster/ours.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod ours;
#[path = "../tests/cluster/peers/mod.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod peers;
mod tables;

use fabric::{Cluster, Place, Spec};
use ours::Plan;
use peers::{Cell, Peers, ROUNDS, Times};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The columns of the tables: for places on this computer, and for hosts, which have plans and bounds.
const HEADS: [&[&str]; 2] = [
    &["where", "collective, size", "Open MPI", "best forced", "Gloo", "ours", "best of theirs / ours"],
    &[
        "where",
        "collective, size",
        "Open MPI",
        "best forced",
        "Gloo",
        "ours",
        "planned",
        "bound",
        "bound / ours",
        "best of theirs / ours",
    ],
];

/// About how many seconds each turn of a measurement takes, and each turn of the contest of Open MPI's algorithms.
const SECONDS: [f64; 2] = [0.15, 0.03];

const COLLECTIVES: [&str; 5] = ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"];

/// The α of a message over TCP between two hosts, for the plans: two wake-ups and two queues.
const ALPHA: Duration = Duration::from_micros(100);

/// Where to measure.
enum Site {
    Memory,
    Loopback,
    Hosts(Spec),
}

struct Shape {
    name: &'static str,
    site: Site,
    /// The number of ranks; between hosts, of each host.
    ranks: usize,
    sizes: &'static [u64],
    /// How often everything is measured. Once is enough where links are slow.
    turns: u32,
}

/// The shapes that are measured by default, and those that are measured only when they are named.
fn shapes() -> [Vec<Shape>; 2] {
    const WIRE: &[u64] = &[64 << 10, 1 << 20, 4 << 20];
    const LOCAL: &[u64] = &[1 << 10, 64 << 10, 1 << 20, 16 << 20];
    const LONG: &[u64] = &[1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
    let local = |name, site, ranks, sizes| Shape { name, site, ranks, sizes, turns: 2 };
    let hosts =
        |name, spec: Spec, ranks| Shape { name, site: Site::Hosts(spec.coarse()), ranks, sizes: WIRE, turns: 1 };
    let usual = vec![
        local("memory-2", Site::Memory, 2, LONG),
        local("memory-4", Site::Memory, 4, LOCAL),
        local("tcp-2", Site::Loopback, 2, LOCAL),
        local("tcp-4", Site::Loopback, 4, LOCAL),
        hosts("uniform", Spec::star(&[500; 4]), 1),
        hosts("unequal", Spec::star(&[500, 500, 500, 125]), 1),
    ];
    let more = vec![
        local("memory-3", Site::Memory, 3, LOCAL),
        local("memory-5", Site::Memory, 5, LOCAL),
        local("tcp-3", Site::Loopback, 3, LOCAL),
        hosts("eight", Spec::star(&[200; 8]), 1),
        hosts("two-tier", Spec::racks(2, 2, 500, 100), 1),
        hosts("shared-nic", Spec::star(&[200; 3]), 2),
    ];
    [usual, more]
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let folder = tempfile::tempdir().expect("a place for plans and programs");
    let peers = Peers::prepare(folder.path());
    for told in [peers.mpi.as_ref().err(), peers.gloo.as_ref().err()].into_iter().flatten() {
        println!("without a peer: {told}");
    }
    let [usual, more] = shapes();
    let asked = |shape: &Shape| given.iter().any(|name| name == shape.name);
    let wanted = |(rare, shape): &(bool, Shape)| if given.is_empty() { !rare } else { asked(shape) };
    let all = usual.into_iter().map(|shape| (false, shape)).chain(more.into_iter().map(|shape| (true, shape)));
    let [mut here, mut hosts] = [tables::head(HEADS[0]), tables::head(HEADS[1])];
    for (_, shape) in all.filter(wanted) {
        let begin = Instant::now();
        match &shape.site {
            Site::Memory => here += &measure(&shape, Place::Here(shape.ranks), None, &peers, folder.path()),
            Site::Loopback => here += &measure(&shape, Place::Loopback(shape.ranks), None, &peers, folder.path()),
            Site::Hosts(spec) => {
                let Some(cluster) = Cluster::or_skip(spec) else { return };
                let place = Place::Hosts(&cluster, shape.ranks);
                hosts += &measure(&shape, place, Some(spec), &peers, folder.path());
            }
        }
        eprintln!("{} took {:.0} s", shape.name, begin.elapsed().as_secs_f64());
    }
    println!("times in µs\n{here}\n{hosts}");
    if given.is_empty() {
        tables::write_between("on-this-computer", &here);
        tables::write_between("between-hosts", &hosts);
    }
}

/// The times of all programs for each cell.
#[derive(Default)]
struct Results {
    default: Times,
    forced: Times,
    gloo: Times,
    classic: Times,
    planned: Times,
}

/// Measures everything in one shape; returns its rows.
fn measure(shape: &Shape, place: Place<'_>, spec: Option<&Spec>, peers: &Peers, folder: &Path) -> String {
    let cells: Vec<Cell> =
        COLLECTIVES.iter().flat_map(|&collective| shape.sizes.iter().map(move |&size| (collective, size))).collect();
    let plan = |&cell: &Cell| Some((cell, Plan::make(&spec?.topology(shape.ranks, ALPHA), cell, folder)));
    let plans: BTreeMap<Cell, Plan> = cells.iter().filter_map(plan).collect();
    let chosen = contest(place, peers, &cells);
    let mut results = Results::default();
    for turn in 1..=shape.turns {
        eprintln!("{}: turn {turn} of {}", shape.name, shape.turns);
        better(&mut results.default, peers.open_mpi(place, &cells, SECONDS[0], None));
        for round in 1..=ROUNDS {
            let of_round: Vec<Cell> = cells.iter().filter(|cell| chosen.get(cell) == Some(&round)).copied().collect();
            better(&mut results.forced, peers.open_mpi(place, &of_round, SECONDS[0], Some(round)));
        }
        better(&mut results.gloo, peers.gloo(place, &cells, SECONDS[0]));
        for &cell in &cells {
            let plan = plans.get(&cell);
            // A rough estimate on one computer: some GB/s, and some tens of µs for each hop.
            let estimate = plan.map_or(cell.1 as f64 / 1e3 + 50.0, |plan| plan.makespan);
            better(&mut results.classic, [(cell, ours::classic(place, cell, repetitions(estimate)))]);
            let planned = plan.map(|plan| (cell, plan.run(place, cell.1, repetitions(estimate))));
            better(&mut results.planned, planned);
        }
    }
    cells.iter().map(|cell| row(shape.name, cell, &results, (&chosen, &plans))).collect()
}

/// Keeps the better time of each cell.
fn better(times: &mut Times, more: impl IntoIterator<Item = (Cell, f64)>) {
    for (cell, time) in more {
        times.entry(cell).and_modify(|best| *best = best.min(time)).or_insert(time);
    }
}

/// The best of Open MPI's algorithms for each cell.
fn contest(place: Place<'_>, peers: &Peers, cells: &[Cell]) -> BTreeMap<Cell, u32> {
    let mut best: BTreeMap<Cell, (f64, u32)> = BTreeMap::new();
    for round in 1..=ROUNDS {
        eprintln!("forcing Open MPI to algorithm {round} of {ROUNDS}");
        for (cell, time) in peers.open_mpi(place, cells, SECONDS[1], Some(round)) {
            let least = best.entry(cell).or_insert((time, round));
            if time < least.0 {
                *least = (time, round);
            }
        }
    }
    best.into_iter().map(|(cell, (_, round))| (cell, round)).collect()
}

fn row(
    name: &str,
    cell: &Cell,
    results: &Results,
    (chosen, plans): (&BTreeMap<Cell, u32>, &BTreeMap<Cell, Plan>),
) -> String {
    let of = |times: &Times| times.get(cell).copied();
    let least = |times: &[&Times]| times.iter().filter_map(|times| of(times)).min_by(f64::total_cmp);
    let ratio = |over: Option<f64>, under: Option<f64>| over.zip(under).map(|(over, under)| over / under);
    let none = || "–".to_owned();
    let forced = chosen.get(cell).map_or_else(String::new, |round| format!(" ({round})"));
    let theirs = least(&[&results.default, &results.forced, &results.gloo]);
    let ours = least(&[&results.classic, &results.planned]);
    let mut cells = vec![
        name.to_owned(),
        format!("{} {}", cell.0, size(cell.1)),
        micros(of(&results.default)),
        micros(of(&results.forced)) + &forced,
        micros(of(&results.gloo)),
        micros(of(&results.classic)),
    ];
    if let Some(plan) = plans.get(cell) {
        let share = ratio(Some(plan.bound), ours).map_or_else(none, |share| format!("{:.0} %", share * 100.0));
        cells.extend([micros(of(&results.planned)), micros(Some(plan.bound)), share]);
    }
    cells.push(ratio(theirs, ours).map_or_else(none, |wins| format!("{wins:.2}×")));
    tables::row(cells.iter().map(String::as_str))
}

/// `64 KiB`.
fn size(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// At least three digits, in groups of three from ten thousand on.
fn micros(time: Option<f64>) -> String {
    match time {
        None => "–".to_owned(),
        Some(time) if time < 99.95 => format!("{time:.1}"),
        Some(time) if time < 9999.5 => format!("{time:.0}"),
        Some(time) => {
            let whole = time.round() as u64;
            format!("{} {:03}", whole / 1000, whole % 1000)
        }
    }
}

/// How often to repeat a call that takes about this many µs.
fn repetitions(estimate: f64) -> u32 {
    ((SECONDS[0] * 1e6 / (estimate + 1000.0)) as u32).clamp(3, 2000)
}
