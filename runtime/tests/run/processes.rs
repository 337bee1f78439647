//! The same plans with one process per rank.

use crate::plans::{COLLECTIVES, PlanSpec};
use crate::worker::{Mischief, launch};
use runtime::{DType, Emulation, ExecutionOptions, Hosts, JobSpec, RunError, Trial};
use schedule::Collective;
use std::net::Ipv6Addr;
use std::sync::Arc;

fn options(hosts: Hosts) -> ExecutionOptions {
    ExecutionOptions { hosts, ..ExecutionOptions::default() }
}

fn every_collective(options: ExecutionOptions) {
    let mut job = launch(&JobSpec { ranks: 5, options, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    for collective in COLLECTIVES {
        for in_place in [false, true] {
            let spec = PlanSpec { in_place, chunks: 2, ..PlanSpec::new("ring:5", collective) };
            for (count, dtype) in [(0, DType::F32), (17, DType::I32), (10_007, DType::Bf16), (30_000, DType::F64)] {
                let trial = Trial { warmups: 1, repetitions: 3, ..Trial::once(count, dtype) };
                let report = job.run(&spec.to_string(), &[], &spec.program(), &trial).unwrap();
                assert_eq!((report.wrong(), report.spans().len()), (0, 3), "{spec}");
            }
        }
    }
}

#[test]
fn one_job_runs_every_collective_in_place_and_not() {
    every_collective(options(Hosts::One));
}

#[test]
fn the_same_over_sockets() {
    every_collective(options(Hosts::Each));
    every_collective(ExecutionOptions { interfaces: vec![Ipv6Addr::LOCALHOST.into()], ..options(Hosts::Each) });
}

/// The shared memory has no room for a ring. Sockets need no ring.
#[test]
fn what_goes_over_sockets_needs_no_rings() {
    let plan = PlanSpec::new("clique:4", Collective::AllToAll);
    for (hosts, fits) in
        [(Hosts::Each, true), (Hosts::Of(vec![0, 1, 2, 3]), true), (Hosts::Of(vec![0, 1, 1, 0]), false)]
    {
        let options = ExecutionOptions { arena_bytes: 64, ..options(hosts) };
        let mut job = launch(&JobSpec { ranks: 4, options, ..JobSpec::default() }, |_| Mischief::None).unwrap();
        match job.run(&plan.to_string(), &[], &plan.program(), &Trial::once(1000, DType::F32)) {
            Ok(report) => assert!(fits && report.wrong() == 0),
            Err(error) => assert!(!fits && matches!(error, RunError::TooManyConnections { .. }), "{error}"),
        }
    }
}

/// Every lane spreads its bytes over sockets of several interfaces.
#[test]
fn the_same_over_several_interfaces() {
    let interfaces = ["127.0.0.1", "::1", "127.0.0.2"].map(|address| address.parse().unwrap()).to_vec();
    every_collective(ExecutionOptions { interfaces, ..options(Hosts::Each) });
}

/// Rings and sockets in one program. A socket may split an element, which must be whole for a ring.
#[test]
fn the_same_on_two_computers() {
    every_collective(options(Hosts::Of(vec![0, 0, 1, 1, 0])));
}

#[test]
fn emulated_links_keep_their_pace_over_sockets() {
    let machine = "ring:3,alpha=1000us,bandwidth=0.1GBps";
    let emulation = Emulation::new(Arc::new(crate::plans::machine(machine)), 1.0).unwrap();
    let options = ExecutionOptions { emulation: Some(emulation), ..options(Hosts::Each) };
    let spec = JobSpec { ranks: 3, options, emulated_source: machine.to_owned() };
    let mut job = launch(&spec, |_| Mischief::None).unwrap();
    // Two hops of 1 ms + 400 kB at 10 ns per byte.
    let plan = PlanSpec { size: 1_200_000, ..PlanSpec::new(machine, Collective::AllGather) };
    let trial = Trial { repetitions: 5, ..Trial::once(100_000, DType::F32) };
    let report = job.run(&plan.to_string(), &[], &plan.program(), &trial).unwrap();
    let best = report.spans().into_iter().reduce(topology::Micros::min).unwrap();
    assert_eq!(report.wrong(), 0);
    // The upper limit is loose because other tests share the cores.
    assert!((0.99 * 10_000.0..1.5 * 10_000.0).contains(&best.0), "{best} measured, 10 ms expected");
}

#[test]
fn more_repetitions_than_a_report_holds_are_refused_before_any_work() {
    let mut job = launch(&JobSpec { ranks: 2, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    let spec = PlanSpec::new("ring:2", Collective::AllReduce);
    let trial = Trial::once(1, DType::F32);
    let endless = Trial { repetitions: (1 << 20) + 1, ..trial.clone() };
    let error = job.run(&spec.to_string(), &[], &spec.program(), &endless).unwrap_err();
    assert!(matches!(error, RunError::TooManyRepetitions { limit: 0x10_0000, .. }), "{error}");
    // The job goes on.
    assert_eq!(job.run(&spec.to_string(), &[], &spec.program(), &trial).unwrap().wrong(), 0);
}

#[test]
fn nine_ranks_outnumber_the_cores() {
    let mut job = launch(&JobSpec { ranks: 9, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    let spec = PlanSpec::new("clique:9", Collective::AllReduce);
    let trial = Trial { repetitions: 5, ..Trial::once(100_000, DType::F32) };
    let report = job.run(&spec.to_string(), &[], &spec.program(), &trial).unwrap();
    assert_eq!(report.wrong(), 0);
    for repetition in 0..5 {
        let starts = report.ranks.iter().map(|rank| rank.samples[repetition].start);
        let ends = report.ranks.iter().map(|rank| rank.samples[repetition].end);
        assert!(starts.max() < ends.max(), "nobody starts after the last end");
    }
}
