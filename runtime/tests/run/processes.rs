//! The same plans with one process per rank.

use crate::plans::{COLLECTIVES, PlanSpec};
use crate::worker::{Mischief, launch};
use runtime::{DType, JobSpec, RunError, Trial};
use schedule::Collective;

#[test]
fn one_job_runs_every_collective_in_place_and_not() {
    let mut job = launch(&JobSpec { ranks: 5, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    for collective in COLLECTIVES {
        for in_place in [false, true] {
            let spec = PlanSpec { in_place, chunks: 2, ..PlanSpec::new("ring:5", collective) };
            for (count, dtype) in [(0, DType::F32), (17, DType::I32), (30_000, DType::F64)] {
                let trial = Trial { warmups: 1, repetitions: 3, ..Trial::once(count, dtype) };
                let report = job.run(&spec.to_string(), &spec.program(), &trial).unwrap();
                assert_eq!((report.wrong(), report.spans().len()), (0, 3), "{spec}");
            }
        }
    }
}

#[test]
fn more_repetitions_than_a_report_holds_are_refused_before_any_work() {
    let mut job = launch(&JobSpec { ranks: 2, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    let spec = PlanSpec::new("ring:2", Collective::AllReduce);
    let trial = Trial::once(1, DType::F32);
    let endless = Trial { repetitions: (1 << 20) + 1, ..trial.clone() };
    let error = job.run(&spec.to_string(), &spec.program(), &endless).unwrap_err();
    assert!(matches!(error, RunError::TooManyRepetitions { limit: 0x10_0000, .. }), "{error}");
    // The job goes on.
    assert_eq!(job.run(&spec.to_string(), &spec.program(), &trial).unwrap().wrong(), 0);
}

#[test]
fn nine_ranks_outnumber_the_cores() {
    let mut job = launch(&JobSpec { ranks: 9, ..JobSpec::default() }, |_| Mischief::None).unwrap();
    let spec = PlanSpec::new("clique:9", Collective::AllReduce);
    let trial = Trial { repetitions: 5, ..Trial::once(100_000, DType::F32) };
    let report = job.run(&spec.to_string(), &spec.program(), &trial).unwrap();
    assert_eq!(report.wrong(), 0);
    for repetition in 0..5 {
        let starts = report.ranks.iter().map(|rank| rank.samples[repetition].start);
        let ends = report.ranks.iter().map(|rank| rank.samples[repetition].end);
        assert!(starts.max() < ends.max(), "nobody starts after the last end");
    }
}
