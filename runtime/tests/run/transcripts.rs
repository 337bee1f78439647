//! A real job says the same as the simulation of the control protocol. Both are compared with the files in
//! `runtime/tests/control/`: the simulation by `runtime/src/launch/simulation/transcripts.rs`.

use crate::agents::{Spread, endless, kill, plan, run, signal, when_it_works};
use crate::worker::{Mischief, command};
use runtime::{DType, RunError, Trial};
use std::time::Duration;

#[path = "../control/form.rs"]
mod form;

const MACHINES: [&str; 3] = ["a", "b", "c"];
const LIMIT: Duration = Duration::from_secs(20);
/// Where a worker stops: it is noticed after this time.
const SHORT_LIMIT: Duration = Duration::from_secs(5);

/// What happens to the job's first task, which then fails.
enum RealFault {
    /// A worker of an agent misbehaves.
    Odd(usize, Mischief),
    /// A signal to an agent's worker while it works.
    Worker(usize, &'static str),
    /// An agent is killed while its worker works.
    Agent(usize),
}

/// A task that goes well: one that a misbehaving worker does as it should.
fn task(spread: &mut Spread) {
    let plan = crate::plans::PlanSpec { chunks: 1, ..plan(MACHINES.len()) };
    assert_eq!(run(spread.job(), &plan, &Trial::once(100, DType::F32)).expect("nothing is wrong"), 0);
}

fn check(name: &str, play: impl FnOnce()) {
    let transcript = form::transcript_of(play);
    let file = format!("{}/tests/control/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let expected = std::fs::read_to_string(&file).expect("the simulation has written it");
    assert_eq!(transcript, expected, "the real job differs from {file}");
}

/// A job whose first task fails. If its agents are all there, it is rebuilt and does another task.
fn faulty(fault: &RealFault) {
    let mischief = |rank| match *fault {
        RealFault::Odd(odd, mischief) if odd == rank => mischief,
        _ => Mischief::None,
    };
    let limit = if matches!(fault, RealFault::Worker(_, "-STOP")) { SHORT_LIMIT } else { LIMIT };
    let (mut spread, error) = Spread::with_odd(&MACHINES, (limit, LIMIT), mischief);
    assert!(error.is_none(), "{error:?}");
    let blow = match *fault {
        RealFault::Odd(..) => None,
        RealFault::Worker(victim, name) => {
            let worker = spread.worker(victim);
            Some(when_it_works(spread.job(), victim, move || signal(worker, name)))
        }
        RealFault::Agent(victim) => {
            let agent = spread.agent(victim);
            Some(when_it_works(spread.job(), victim, move || kill(agent)))
        }
    };
    let error = run(spread.job(), &plan(MACHINES.len()), &endless()).expect_err("a rank is at fault");
    assert!(matches!(error, RunError::Ended { .. }), "{error}");
    blow.map_or(Ok(()), std::thread::JoinHandle::join).expect("the fault befell the rank");
    match (spread.job().rebuild(|_| command(Mischief::None)), fault) {
        (Ok(()), _) => task(&mut spread),
        (Err(RunError::Departed { .. }), RealFault::Agent(_)) => {}
        (Err(error), _) => panic!("{error}"),
    }
    spread.end();
}

#[test]
fn two_tasks_are_told_and_said_as_in_the_simulation() {
    check("two_tasks", || {
        let mut spread = Spread::form(&MACHINES, LIMIT);
        task(&mut spread);
        task(&mut spread);
        spread.end();
    });
}

#[test]
fn a_worker_that_dies_is_told_and_said_as_in_the_simulation() {
    check("worker_dies", || faulty(&RealFault::Worker(1, "-KILL")));
}

#[test]
fn a_worker_that_stops_is_told_and_said_as_in_the_simulation() {
    check("worker_stops", || faulty(&RealFault::Worker(1, "-STOP")));
}

#[test]
fn a_worker_without_a_plan_is_told_and_said_as_in_the_simulation() {
    check("no_plan", || faulty(&RealFault::Odd(2, Mischief::NoPlan)));
}

#[test]
fn a_worker_with_another_plan_is_told_and_said_as_in_the_simulation() {
    check("other_plan", || faulty(&RealFault::Odd(1, Mischief::OtherPlan)));
}

#[test]
fn an_agent_that_dies_is_told_and_said_as_in_the_simulation() {
    check("agent_dies", || faulty(&RealFault::Agent(2)));
}
