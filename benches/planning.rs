//! How long planning takes, stage by stage: `cargo bench --bench planning`.

use divan::Bencher;
use program::{LowerOptions, check, lower};
use schedule::{Collective, Demand, Request, VerifiedSchedule, verify};
use std::sync::Arc;
use synth::{Problem, SearchOptions, StrategyKind, Synthesis, bounds, synthesize};

fn main() {
    divan::main();
}

/// Machines of growing size and irregularity.
const SPECS: [&str; 5] = ["dgx1", "ndv2x2", "dgx2x2", "torus2d:8x8", "torus2d:16x16"];
/// The machines on which a chunk for every pair of ranks is planned in seconds.
const PAIRS: [&str; 4] = ["dgx1", "ndv2x2", "dgx2x2", "torus2d:8x8"];
/// How long each row is measured.
const SECONDS: f64 = 1.0;
/// Bytes per rank: large enough for bandwidth to matter everywhere.
const PER_RANK: u64 = 1 << 20;

fn problem(spec: &str, collective: Collective) -> Problem {
    let topology = Arc::new(topology::resolve(spec).expect("a known machine"));
    let ranks = topology.rank_count();
    let demand = Demand::new(Request::new(collective, ranks, PER_RANK * ranks as u64)).expect("a valid request");
    Problem::new(topology, Arc::new(demand))
}

fn plan(problem: &Problem, strategy: StrategyKind) -> Synthesis {
    let options = SearchOptions { strategy: Some(strategy), ..SearchOptions::default() };
    synthesize(std::slice::from_ref(problem), &options, &|_| {}).expect("a plan")
}

fn planned(spec: &str) -> (Problem, VerifiedSchedule) {
    let problem = problem(spec, Collective::AllGather);
    let schedule = plan(&problem, StrategyKind::Matching).schedule;
    (problem, schedule)
}

#[divan::bench(args = SPECS, max_time = SECONDS)]
fn lower_bounds(bencher: Bencher, spec: &str) {
    let problem = problem(spec, Collective::AllGather);
    bencher.bench(|| bounds(&problem, &synth::Deadline::default()));
}

#[divan::bench(args = SPECS, sample_count = 3, sample_size = 1)]
fn matching_allgather(bencher: Bencher, spec: &str) {
    let problem = problem(spec, Collective::AllGather);
    bencher.bench(|| plan(&problem, StrategyKind::Matching));
}

#[divan::bench(args = PAIRS, sample_count = 3, sample_size = 1)]
fn matching_alltoall(bencher: Bencher, spec: &str) {
    let problem = problem(spec, Collective::AllToAll);
    bencher.bench(|| plan(&problem, StrategyKind::Matching));
}

#[divan::bench(args = ["dgx1", "torus2d:4x4"], sample_count = 3, sample_size = 1)]
fn milp_allgather(bencher: Bencher, spec: &str) {
    let problem = problem(spec, Collective::AllGather);
    bencher.bench(|| plan(&problem, StrategyKind::Milp));
}

#[divan::bench(args = SPECS, max_time = SECONDS)]
fn verification(bencher: Bencher, spec: &str) {
    let (problem, schedule) = planned(spec);
    let claims = || schedule.clone().into_schedule();
    bencher.with_inputs(claims).bench_values(|claim| verify(claim, &problem.topology).expect("a right schedule"));
}

#[divan::bench(args = SPECS, max_time = SECONDS)]
fn lowering(bencher: Bencher, spec: &str) {
    let (_, schedule) = planned(spec);
    bencher.bench(|| lower(&schedule, &LowerOptions::default()).expect("a program"));
}

#[divan::bench(args = SPECS, max_time = SECONDS)]
fn program_check(bencher: Bencher, spec: &str) {
    let (_, schedule) = planned(spec);
    let lowered = || lower(&schedule, &LowerOptions::default()).expect("a program");
    bencher.with_inputs(lowered).bench_values(|program| check(program).expect("a right program"));
}
