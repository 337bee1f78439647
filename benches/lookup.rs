//! How long a communicator takes to find what serves a call, and to begin it.
//!
//! Run it with `cargo bench -p antiphon --bench lookup`. The communicator has one rank, so a call moves nothing: what remains
//! is the look-up among all sizes that were called before, and the dispatch. Sizes and collectives alternate, so that no call
//! finds the plan of the one before. Each of the first lines is measured call by call, with the cost of the clock in it. The
//! table has another choice for each size, every second of which is stock.
#![expect(clippy::print_stdout, reason = "the table is the result")]

use comm::{Communicator, Config, Op};
use schedule::{Collective, Demand, ReduceOp, Request};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tune::{ChoiceRange, TableCell, TableKey, TuningTable};

/// Calls in a row of measurements.
const CALLS: usize = 200_000;
/// The smallest vector has one element, the largest this power of two.
const SIZES: u32 = 14;
/// More lengths in turn than a program has, as a loop whose lengths grow.
const LENGTHS: usize = 1000;

fn main() {
    println!("{:<40} {:>9} {:>9} {:>9}", "one rank, call by call, in ns", "p50", "p99", "p99.9");
    print_row("the clock alone", || {});
    let comm = communicator();
    let mut vectors = vectors();
    print_row("the same call again", || all_reduce(&comm, &mut vectors[3]));
    let mut next = 0;
    print_row("another size and place each time", || {
        next = (next + 5) % vectors.len();
        all_reduce(&comm, &mut vectors[next]);
    });
    let folder = tempfile::tempdir().expect("there is a place for files");
    let path = folder.path().join("table.json");
    table().write(&path).expect("there is room for a file");
    for (what, every) in [("a table", 0), ("a table, one call in 256 timed", 256)] {
        let comm = with_table(&path, every);
        print_row(&format!("{what}: another size each time"), || {
            next = (next + 5) % vectors.len();
            all_reduce(&comm, &mut vectors[next]);
        });
        let mut vector = vec![1.0; LENGTHS];
        print_row(&format!("{what}: {LENGTHS} lengths in turn"), || {
            next = (next + 7) % LENGTHS;
            all_reduce(&comm, &mut vector[..=next]);
        });
        let plans = comm.statistics().plans;
        let of_table: u64 = plans.iter().filter(|(name, _)| name.contains("table.json")).map(|(_, of)| of.calls).sum();
        assert!(of_table > CALLS as u64 / 2, "the table serves: {plans:?}");
    }
    divan::main();
}

/// A table for one rank.
fn table() -> TuningTable {
    let topology = Arc::new(topology::resolve("clique:1").expect("a machine"));
    let request = Request { op: Some(ReduceOp::Sum), ..Request::new(Collective::AllReduce, 1, 4) };
    let problem = synth::Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a request")));
    let plan = synth::textbook(&problem).expect("a plan").remove(0);
    let plan = schedule::verify(plan, &topology).expect("it is valid");
    let mut text = Vec::new();
    schedule::file::write(&plan, &mut text).expect("memory takes it");
    let range = |power: u32| ChoiceRange {
        from_bytes: if power == 0 { 0 } else { 4 << power },
        to_bytes: (power + 1 < SIZES).then_some(4 << (power + 1)),
        plan: power.is_multiple_of(2).then(|| "plan".to_owned()),
        evidence: Vec::new(),
    };
    TuningTable::new(
        TableKey::of(vec![0], env!("CARGO_PKG_VERSION")),
        vec![TableCell::of_any(Collective::AllReduce, (0..SIZES).map(range).collect())],
        BTreeMap::from([("plan".to_owned(), serde_json::from_slice(&text).expect("it is a file"))]),
    )
}

/// One rank with a table, which times one call in `every`; 0 for none.
fn with_table(path: &Path, every: u32) -> Communicator {
    let config = Config { table: Some(path.to_owned()), confirm_every: every, ..Config::new(0, 1, "") };
    Communicator::connect(&config).expect("one rank needs nobody")
}

/// The percentiles of the time of one call.
fn print_row(what: &str, mut call: impl FnMut()) {
    let mut times: Vec<u128> = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begin = Instant::now();
        call();
        times.push(begin.elapsed().as_nanos());
    }
    times.sort_unstable();
    let at = |share: f64| times[(share * CALLS as f64) as usize];
    println!("{what:<40} {:>9} {:>9} {:>9}", at(0.5), at(0.99), at(0.999));
}

fn communicator() -> Communicator {
    Communicator::local(1).expect("one rank needs nothing").remove(0)
}

/// A vector of each size.
fn vectors() -> Vec<Vec<f32>> {
    (0..SIZES).map(|power| vec![1.0; 1 << power]).collect()
}

fn all_reduce(comm: &Communicator, vector: &mut [f32]) {
    comm.all_reduce(black_box(vector), Op::Sum).expect("one rank agrees with itself");
}

#[divan::bench]
fn same_call(bencher: divan::Bencher<'_, '_>) {
    let (comm, mut vectors) = (communicator(), vectors());
    bencher.bench_local(|| all_reduce(&comm, &mut vectors[3]));
}

#[divan::bench]
fn another_size_with_a_table(bencher: divan::Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("there is a place for files");
    let path = folder.path().join("table.json");
    table().write(&path).expect("there is room for a file");
    let (comm, mut vectors) = (with_table(&path, 0), vectors());
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 5) % vectors.len();
        all_reduce(&comm, &mut vectors[next]);
    });
}

#[divan::bench]
fn another_size(bencher: divan::Bencher<'_, '_>) {
    let (comm, mut vectors) = (communicator(), vectors());
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 5) % vectors.len();
        all_reduce(&comm, &mut vectors[next]);
    });
}
