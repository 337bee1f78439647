//! Emulated machines: measured times follow the cost model.

use crate::plans::PlanSpec;
use crate::worker::{Mischief, launch};
use runtime::{DType, Emulation, ExecutionOptions, JobSpec, RunError, Trial, TrialReport, try_threads};
use schedule::Collective;
use std::sync::Arc;

/// Two fast pairs, joined by slow links. Messages take milliseconds; copying their bytes takes almost no time.
const MACHINE: &str = "mesh2d:2x2,alpha=20us,bandwidth=0.1GBps/0.02GBps";
const COUNT: u64 = 1 << 15;

fn plan(collective: Collective) -> PlanSpec {
    PlanSpec { chunks: 2, size: 4 * COUNT * 4, ..PlanSpec::new(MACHINE, collective) }
}

fn options(slowdown: f64) -> ExecutionOptions {
    let emulation = Emulation::new(Arc::new(crate::plans::machine(MACHINE)), slowdown).unwrap();
    ExecutionOptions { emulation: Some(emulation), ..ExecutionOptions::default() }
}

fn assert_as_predicted(spec: &PlanSpec, slowdown: f64, report: &TrialReport) {
    assert_eq!(report.wrong(), 0, "{spec}");
    let predicted = spec.schedule().schedule().makespan() * slowdown;
    let best = report.spans().into_iter().reduce(topology::Micros::min).unwrap();
    let ratio = best / predicted;
    // The upper limit is loose, because other tests share the cores.
    assert!((0.98..1.5).contains(&ratio), "{spec}: {best} measured, {predicted} predicted");
}

#[test]
fn threads_take_the_predicted_time() {
    for collective in [Collective::AllGather, Collective::AllToAll, Collective::Scatter] {
        let trial = Trial { repetitions: 5, ..Trial::once(COUNT, DType::F32) };
        let report = try_threads(&plan(collective).program(), &trial, &options(2.0)).unwrap();
        assert_as_predicted(&plan(collective), 2.0, &report);
    }
}

#[test]
fn processes_take_the_predicted_time() {
    let spec = JobSpec { ranks: 4, options: options(1.0), emulated_source: MACHINE.to_owned() };
    let mut job = launch(&spec, |_| Mischief::None).unwrap();
    for collective in [Collective::AllGather, Collective::Gather] {
        let trial = Trial { repetitions: 5, ..Trial::once(COUNT, DType::F32) };
        let report = job.run(&plan(collective).to_string(), &[], &plan(collective).program(), &trial).unwrap();
        assert_as_predicted(&plan(collective), 1.0, &report);
    }
}

#[test]
fn a_plan_for_another_machine_is_refused() {
    let program = PlanSpec::new("clique:4", Collective::AllToAll).program();
    let error = try_threads(&program, &Trial::once(10, DType::F32), &options(1.0)).unwrap_err();
    assert!(matches!(error, RunError::Mismatch { .. }), "{error}");
}

#[test]
fn a_plan_whose_messages_take_days_is_refused_before_it_runs() {
    let program = plan(Collective::AllGather).program();
    // 20 µs × 10⁹ is less than a day, but 20 MB/s × 10⁹ is not.
    let error = try_threads(&program, &Trial::once(COUNT, DType::F32), &options(1e9)).unwrap_err();
    assert!(matches!(error, RunError::TooSlow { .. }), "{error}");
}
