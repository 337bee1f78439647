//! How long a communicator takes to find what serves a call, and to begin it.
//!
//! Run it with `cargo bench -p antiphon --bench lookup`. The communicator has one rank, so a call moves nothing: what remains
//! is the look-up among all sizes that were called before, and the dispatch. Sizes and collectives alternate, so that no call
//! finds the plan of the one before. Each of the first lines is measured call by call, with the cost of the clock in it.
#![expect(clippy::print_stdout, reason = "the table is the result")]

use comm::{Communicator, Op};
use std::hint::black_box;
use std::time::Instant;

/// Calls in a row of measurements.
const CALLS: usize = 200_000;
/// The smallest vector has one element, the largest this power of two.
const SIZES: u32 = 14;

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
    divan::main();
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
fn another_size(bencher: divan::Bencher<'_, '_>) {
    let (comm, mut vectors) = (communicator(), vectors());
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 5) % vectors.len();
        all_reduce(&comm, &mut vectors[next]);
    });
}
