//! How fast bytes move from one rank to another on this computer.
//!
//! Prints medians; run it on an idle computer with `cargo bench -p runtime`.
#![expect(clippy::print_stdout, reason = "the table is the result")]

use runtime::{ExecutionOptions, ThreadProbe};
use topology::{Exchange, Probe, Rank};

fn main() {
    let mut probe = ThreadProbe::new(2, ExecutionOptions::default());
    println!("{:>12} {:>12} {:>8}", "bytes", "µs", "GB/s");
    for power in [6, 12, 16, 20, 23, 26] {
        let bytes = 1u64 << power;
        let exchange = Exchange { from: Rank(0), to: Rank(1), bytes, messages: 1 };
        let mut times: Vec<f64> = probe.run(&[exchange], 21).into_iter().flatten().map(|times| times[0].0).collect();
        times.sort_by(f64::total_cmp);
        if let Some(median) = times.get(times.len() / 2) {
            println!("{bytes:>12} {median:>12.1} {:>8.2}", bytes as f64 / median / 1e3);
        }
    }
}
