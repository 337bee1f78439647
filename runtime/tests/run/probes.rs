//! Probes: the measurements of the profiler, in threads and processes, on this computer and on emulated machines.

use crate::plans::machine;
use crate::worker::{Mischief, launch};
use runtime::{Emulation, ExecutionOptions, JobSpec, ThreadProbe};
use std::sync::Arc;
use topology::{Exchange, Micros, Probe, Rank};

/// Links with α = 2 ms and β = 5 ms/MB.
const MACHINE: &str = "ring:3,alpha=2000us,bandwidth=0.2GBps";

fn exchange(from: u32, to: u32, bytes: u64, messages: u32) -> Exchange {
    Exchange { from: Rank(from), to: Rank(to), bytes, messages }
}

fn emulated() -> ExecutionOptions {
    ExecutionOptions {
        emulation: Some(Emulation::new(Arc::new(machine(MACHINE)), 1.0).unwrap()),
        ..ExecutionOptions::default()
    }
}

/// Three exchanges at the same time. Every message costs its α.
fn assert_costs_of_the_machine(probe: &mut dyn Probe) {
    let exchanges = [exchange(0, 1, 1_000_000, 1), exchange(1, 2, 100_000, 4), exchange(2, 0, 0, 3)];
    let runs = probe.run(&exchanges, 5).unwrap();
    assert_eq!(runs.len(), 5);
    for (index, expected) in [7_000.0, 10_000.0, 6_000.0].into_iter().enumerate() {
        let time = runs.iter().map(|times| times[index]).reduce(Micros::min).unwrap();
        let ratio = time / Micros(expected);
        // The best of several runs. The upper limit is loose, because other tests share the cores.
        assert!((0.99..1.5).contains(&ratio), "{time} measured, {expected} µs expected");
    }
}

#[test]
fn an_emulated_machine_shows_its_costs() {
    assert_costs_of_the_machine(&mut ThreadProbe::new(3, emulated()));
    let spec = JobSpec { ranks: 3, options: emulated(), emulated_source: MACHINE.to_owned() };
    let mut job = launch(&spec, |_| Mischief::None).unwrap();
    assert_costs_of_the_machine(&mut job);
}

#[test]
fn more_bytes_take_longer_on_this_computer() {
    let mut job = launch(&JobSpec { ranks: 4, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    let mut threads = ThreadProbe::new(4, ExecutionOptions::default());
    for probe in [&mut job as &mut dyn Probe, &mut threads] {
        assert_eq!(probe.rank_count(), 4);
        let short = probe.run(&[exchange(3, 1, 64, 1)], 1).unwrap()[0][0];
        let long = probe.run(&[exchange(3, 1, 1 << 26, 1)], 1).unwrap()[0][0];
        assert!(Micros::ZERO < short && short < long, "{short}, {long}");
        assert_eq!(probe.run(&[], 2).unwrap(), [[], []]);
    }
}

#[test]
fn impossible_exchanges_are_refused() {
    let mut probe = ThreadProbe::new(3, ExecutionOptions::default());
    for bad in [exchange(0, 0, 1, 1), exchange(0, 3, 1, 1), exchange(0, 1, u64::MAX, 1), exchange(0, 1, 1, u32::MAX)] {
        assert!(probe.run(&[bad], 1).is_err(), "{bad:?}");
    }
    let no_link =
        ExecutionOptions { emulation: Some(Emulation::new(Arc::new(machine("line:3")), 1.0).unwrap()), ..emulated() };
    let mut line = ThreadProbe::new(3, no_link);
    assert!(line.connects(Rank(0), Rank(1)) && !line.connects(Rank(0), Rank(2)));
    assert!(line.run(&[exchange(0, 2, 1, 1)], 1).is_err());
}
