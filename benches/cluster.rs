//! Antiphon next to Open MPI and Gloo: on this computer, and between hosts with shaped links.
//!
//! For each shape of a cluster the same hosts and the same run measure all: Open MPI with its own choice and with the
//! best of the algorithms that it can be forced to, Gloo, the classic algorithm that Antiphon takes without a plan,
//! and a plan synthesized for the shape's true topology. Every time is a median of global spans, from the first start
//! to the last end of any rank. Run it with `make cluster-bench`; shapes given as arguments replace the list.
#![expect(clippy::print_stdout, reason = "the table is the result")]
#![allow(clippy::print_stderr, reason = "what is missing is no part of the table")]

#[path = "../tests/cluster/fabric/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests need more of it")]
mod fabric;
#[path = "../tests/cluster/ours.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod ours;
#[path = "../tests/cluster/peers/mod.rs"]
mod peers;

use fabric::{Cluster, Place, Spec};
use ours::Plan;
use peers::{Cell, Peers, ROUNDS, Times};
use std::time::Duration;

/// About how long each measurement repeats.
const SECONDS: f64 = 0.6;

const COLLECTIVES: [&str; 5] = ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"];

/// What a message costs over TCP between two hosts, for the plans: two wake-ups and the way through two queues.
const ALPHA: Duration = Duration::from_micros(100);

/// A cluster to measure in; no hosts stand for this computer.
struct Shape {
    name: &'static str,
    spec: Option<Spec>,
    /// Ranks of each host.
    ranks: usize,
    sizes: &'static [u64],
}

fn shapes() -> Vec<Shape> {
    const WIRE: &[u64] = &[64 << 10, 1 << 20, 4 << 20, 16 << 20];
    const MEMORY: &[u64] = &[8, 1 << 10, 64 << 10, 1 << 20, 16 << 20];
    let shape = |name, spec, ranks, sizes| Shape { name, spec, ranks, sizes };
    vec![
        shape("here-2", None, 2, MEMORY),
        shape("here-4", None, 4, MEMORY),
        shape("uniform", Some(Spec::star(&[500; 4])), 1, WIRE),
        shape("eight", Some(Spec::star(&[200; 8])), 1, WIRE),
        shape("unequal", Some(Spec::star(&[500, 500, 500, 125])), 1, WIRE),
        shape("two-tier", Some(Spec::racks(2, 2, 500, 100)), 1, WIRE),
        shape("shared-nic", Some(Spec::star(&[200; 3])), 2, WIRE),
    ]
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let folder = tempfile::tempdir().expect("a place for plans and programs");
    let peers = Peers::prepare(folder.path());
    for told in [peers.mpi.as_ref().err(), peers.gloo.as_ref().err()].into_iter().flatten() {
        println!("without a peer: {told}");
    }
    for shape in shapes().iter().filter(|shape| given.is_empty() || given.iter().any(|name| name == shape.name)) {
        let cluster = match &shape.spec {
            None => None,
            Some(spec) => match Cluster::or_skip(spec) {
                Some(cluster) => Some(cluster),
                None => return,
            },
        };
        let place = cluster.as_ref().map_or(Place::Here(shape.ranks), |cluster| Place::Hosts(cluster, shape.ranks));
        measure(shape, place, &peers, folder.path());
    }
}

/// Measures everything in one shape, and prints its rows.
fn measure(shape: &Shape, place: Place<'_>, peers: &Peers, folder: &std::path::Path) {
    let cells: Vec<Cell> =
        COLLECTIVES.iter().flat_map(|&collective| shape.sizes.iter().map(move |&size| (collective, size))).collect();
    let default = peers.open_mpi(place, &cells, SECONDS, None);
    let mut forced: Vec<Times> = Vec::new();
    for round in 1..=ROUNDS {
        forced.push(peers.open_mpi(place, &cells, SECONDS, Some(round)));
    }
    let gloo = peers.gloo(place, &cells, SECONDS);
    println!(
        "{:<11} {:<14} {:>9} {:>11} {:>14} {:>11} {:>11} {:>11} {:>11} {:>7} {:>7}",
        shape.name,
        "collective",
        "bytes",
        "Open MPI",
        "best forced",
        "Gloo",
        "classic",
        "planned",
        "bound",
        "share",
        "wins"
    );
    for cell in cells {
        let best = forced.iter().enumerate().filter_map(|(round, times)| Some((*times.get(&cell)?, round + 1)));
        let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
        let theirs = [default.get(&cell).copied(), best.map(|best| best.0), gloo.get(&cell).copied()];
        let theirs = theirs.into_iter().flatten().min_by(f64::total_cmp);
        let plan = shape.spec.as_ref().map(|spec| Plan::make(&spec.topology(shape.ranks, ALPHA), cell, folder));
        // On one computer: some GB/s, and some tens of µs for each hop.
        let estimate = plan.as_ref().map_or(cell.1 as f64 / 1e3 + 50.0, |plan| plan.makespan);
        let classic = ours::classic(place, cell, repetitions(estimate));
        let planned = plan.as_ref().map(|plan| plan.run(place, cell.1, repetitions(plan.makespan)));
        let show = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.1}"));
        let forced = best.map_or_else(|| "-".to_owned(), |(time, round)| format!("{time:.1} ({round})"));
        let bound = plan.as_ref().map(|plan| plan.bound);
        let ours = planned.map_or(classic, |planned| planned.min(classic));
        let percent = bound.map_or_else(|| "-".to_owned(), |bound| format!("{:.0} %", bound / ours * 100.0));
        let wins = theirs.map_or_else(|| "-".to_owned(), |theirs| format!("{:.2}×", theirs / ours));
        println!(
            "{:<11} {:<14} {:>9} {:>11} {:>14} {:>11} {:>11} {:>11} {:>11} {:>7} {:>7}",
            shape.name,
            cell.0,
            cell.1,
            show(default.get(&cell).copied()),
            forced,
            show(gloo.get(&cell).copied()),
            show(Some(classic)),
            show(planned),
            show(bound),
            percent,
            wins
        );
    }
}

/// How often to repeat what takes about so many µs.
fn repetitions(estimate: f64) -> u32 {
    ((SECONDS * 1e6 / (estimate + 3000.0)) as u32).clamp(3, 2000)
}
