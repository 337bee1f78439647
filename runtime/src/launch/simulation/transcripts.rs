//! The simulation says the same as a real job. Both are compared with the files in `runtime/tests/control/`: the real jobs by
//! `runtime/tests/run/transcripts.rs`, with the same form.

use super::play;
use super::setup::{FOR_EVER, InjectedFault, Party, SimulationSetup};
use super::world::SimulatedWorld;
use crate::verdict::Phase;
use expect_test::expect_file;

#[path = "../../../tests/control/form.rs"]
mod form;

const RANKS: usize = 3;

fn job(tasks: u64, faults: Vec<(u64, InjectedFault)>) -> SimulationSetup {
    SimulationSetup { seed: 3, ranks: RANKS, tasks, delay: 2, lost: 0, doubled: 0, faults }
}

/// A job with a fault that befalls a rank at the first moment at which the verdict is on this phase.
fn faulty(fault: InjectedFault, phase: Phase) -> SimulationSetup {
    let has_phase = |world: &SimulatedWorld| match world.outcomes.first() {
        Some(Err((verdict, _))) => verdict.phase == phase,
        _ => false,
    };
    let mut setups = (1..200).map(|moment| job(1, vec![(10 * moment, fault)]));
    setups.find(|setup| has_phase(&play(setup.clone()))).expect("the fault befalls the rank in this phase")
}

fn check(name: &str, setup: SimulationSetup) {
    let transcript = form::transcript_of(|| drop(play(setup)));
    expect_file![format!("{}/tests/control/{name}.txt", env!("CARGO_MANIFEST_DIR"))].assert_eq(&transcript);
}

#[test]
fn two_tasks_are_told_and_said_as_in_a_real_job() {
    check("two_tasks", job(2, Vec::new()));
}

#[test]
fn a_worker_that_dies_is_told_and_said_as_in_a_real_job() {
    check("worker_dies", faulty(InjectedFault::Crash(Party::Worker(1)), Phase::Work));
}

#[test]
fn a_worker_that_stops_is_told_and_said_as_in_a_real_job() {
    check("worker_stops", faulty(InjectedFault::Stop(Party::Worker(1), FOR_EVER), Phase::Work));
}

#[test]
fn a_worker_without_a_plan_is_told_and_said_as_in_a_real_job() {
    check("no_plan", faulty(InjectedFault::NoPlan(2), Phase::Prepare));
}

#[test]
fn a_worker_with_another_plan_is_told_and_said_as_in_a_real_job() {
    check("other_plan", faulty(InjectedFault::OtherPlan(1), Phase::Prepare));
}

#[test]
fn an_agent_that_dies_is_told_and_said_as_in_a_real_job() {
    check("agent_dies", faulty(InjectedFault::Crash(Party::Agent(2)), Phase::Work));
}
