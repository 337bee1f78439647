//! Many kinds of faults in every phase of a job: the right verdict comes in time, no process is left, and a new epoch
//! works.

use crate::agents::{Spread, endless, kill, plan, run, signal, when_it_works};
use crate::cut::cut;
use crate::faults::is_running;
use crate::plans::PlanSpec;
use crate::worker::{Mischief, command};
use runtime::{Cause, DType, RunError, Trial};
use std::time::{Duration, Instant};
use topology::Rank;

/// How long a job may go without progress.
const LIMIT: Duration = Duration::from_secs(1);
/// How long ranks may take to get ready.
const READY: Duration = Duration::from_secs(5);
/// How much more time an error may take: ranks report their errors, and other tests share this computer.
const GRACE: Duration = Duration::from_secs(3);

/// The fault of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    KillWorker,
    StopWorker,
    /// The worker continues after twice the longest limit.
    PauseWorker,
    KillAgent,
    StopAgent,
    CutData,
    CutControl,
}

/// The phase in which the fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// While the plan is loaded.
    Prepare,
    WarmUp,
    Work,
    /// Between two collectives.
    After,
}

const KINDS: [Kind; 7] = [
    Kind::KillWorker,
    Kind::StopWorker,
    Kind::PauseWorker,
    Kind::KillAgent,
    Kind::StopAgent,
    Kind::CutData,
    Kind::CutControl,
];
const PHASES: [Phase; 4] = [Phase::Prepare, Phase::WarmUp, Phase::Work, Phase::After];

/// Causes the fault. Returns its moment.
fn act(kind: Kind, agent: u32, worker: u32) -> Instant {
    let moment = Instant::now();
    match kind {
        Kind::KillWorker => kill(worker),
        Kind::StopWorker => signal(worker, "-STOP"),
        Kind::PauseWorker => {
            signal(worker, "-STOP");
            let until = Instant::now() + 2 * READY;
            std::thread::spawn(move || {
                while Instant::now() < until {
                    std::thread::park_timeout(until - Instant::now());
                }
                // If the worker is gone by then, that is fine.
                let _ = std::process::Command::new("kill").args(["-CONT", &worker.to_string()]).output();
            });
        }
        Kind::KillAgent => kill(agent),
        Kind::StopAgent => signal(agent, "-STOP"),
        Kind::CutData => assert!(cut(worker), "the worker has no connection"),
        Kind::CutControl => assert!(cut(agent), "the agent has no connection"),
    }
    moment
}

fn check(kind: Kind, phase: Phase, victim: usize) {
    let mut spread = Spread::with(&["a", "b", "c"], LIMIT, READY);
    let (agent, worker) = (spread.agent(victim), spread.worker(victim));
    let all: Vec<u32> = spread.workers();
    let once = Trial::once(1000, DType::F32);
    let trial = match phase {
        Phase::Prepare | Phase::Work | Phase::After => endless(),
        Phase::WarmUp => Trial { warmups: 1_000_000, ..endless() },
    };
    if phase == Phase::After {
        assert_eq!(run(spread.job(), &plan(3), &once).unwrap(), 0);
    }
    let acts = match phase {
        Phase::WarmUp | Phase::Work => when_it_works(spread.job(), victim, move || act(kind, agent, worker)),
        Phase::Prepare | Phase::After => {
            // Before the rank is asked, so it will not answer.
            let moment = act(kind, agent, worker);
            std::thread::spawn(move || moment)
        }
    };
    // A fault between two collectives shows when the next one is prepared.
    let limit = if matches!(phase, Phase::Prepare | Phase::After) { READY } else { LIMIT };
    let error = run(spread.job(), &plan(3), &trial).unwrap_err();
    let end = Instant::now();
    let took = end - acts.join().unwrap();
    let what = format!("{kind:?} of rank {victim} in {phase:?}");
    let RunError::Ended { verdict, evidence, .. } = error else { panic!("{what}: {error}") };
    assert!(took < limit + GRACE, "{what}: after {took:?}: {verdict}: {evidence}");
    let cause = match kind {
        Kind::KillWorker => Cause::Died,
        Kind::KillAgent | Kind::CutControl => Cause::Lost,
        Kind::StopWorker | Kind::PauseWorker | Kind::StopAgent => Cause::Silent,
        Kind::CutData => Cause::Cut,
    };
    let named = (verdict.rank, verdict.cause);
    assert_eq!(named, (Rank::from_index(victim), cause), "{what}: {verdict}: {evidence}");
    if matches!(kind, Kind::KillWorker | Kind::StopWorker | Kind::PauseWorker | Kind::CutData) {
        spread.job().rebuild(|_| command(Mischief::None)).unwrap();
        let many = Trial { repetitions: 1000, ..Trial::once(1000, DType::F32) };
        assert_eq!(run(spread.job(), &plan(3), &many).unwrap(), 0, "{what}");
    }
    if kind == Kind::StopAgent {
        signal(agent, "-CONT");
    }
    spread.end();
    let deadline = Instant::now() + Duration::from_secs(10);
    while all.iter().any(|&process| is_running(process)) {
        assert!(Instant::now() < deadline, "{what}: a worker is left");
        std::thread::yield_now();
    }
}

/// A worker is stopped for less than the limit, but longer than silent ranks may be. The job waits for it.
fn check_nap(phase: Phase, victim: usize) {
    const NAP: Duration = Duration::from_millis(1200);
    let mut spread = Spread::with(&["a", "b", "c"], Duration::from_secs(8), Duration::from_secs(20));
    let worker = spread.worker(victim);
    let once = Trial::once(1000, DType::F32);
    let trial = match phase {
        Phase::WarmUp => Trial { warmups: 2000, ..once },
        _ => Trial { repetitions: 2000, ..once },
    };
    if phase == Phase::After {
        assert_eq!(run(spread.job(), &plan(3), &once).unwrap(), 0);
    }
    let wake = move || {
        std::thread::sleep(NAP);
        signal(worker, "-CONT");
    };
    let nap = if matches!(phase, Phase::WarmUp | Phase::Work) {
        when_it_works(spread.job(), victim, move || {
            signal(worker, "-STOP");
            wake();
        })
    } else {
        signal(worker, "-STOP");
        std::thread::spawn(wake)
    };
    let wrong = run(spread.job(), &plan(3), &trial);
    nap.join().unwrap();
    assert_eq!(wrong.unwrap(), 0, "a nap of rank {victim} in {phase:?}");
    assert_eq!(spread.end(), [0, 0]);
}

/// A worker differs from the others, from the first plan on or from the second.
fn check_odd(mischief: Mischief, phase: Phase, victim: usize) {
    let odd = |rank| if rank == victim { mischief } else { Mischief::None };
    let begin = Instant::now();
    let (mut spread, error) = Spread::with_odd(&["a", "b", "c"], (LIMIT, 4 * READY), odd);
    let what = format!("{mischief:?} of rank {victim} in {phase:?}");
    let once = Trial::once(1000, DType::F32);
    let error = error.unwrap_or_else(|| {
        if phase == Phase::After {
            assert_eq!(run(spread.job(), &PlanSpec { chunks: 1, ..plan(3) }, &once).unwrap(), 0, "{what}");
        }
        run(spread.job(), &plan(3), &once).unwrap_err()
    });
    let RunError::Ended { verdict, evidence, .. } = error else { panic!("{what}: {error}") };
    // The error comes without waiting for a deadline.
    assert!(begin.elapsed() < 4 * READY, "{what}: after {:?}", begin.elapsed());
    let (cause, words) = match mischief {
        Mischief::NoPlan => (Cause::Failed, "the file is gone"),
        Mischief::OtherProtocol => (Cause::Disagrees, "it speaks protocol 9999, the launcher"),
        _ => (Cause::Disagrees, "its plan is"),
    };
    assert_eq!((verdict.rank, verdict.cause), (Rank::from_index(victim), cause), "{what}: {verdict}: {evidence}");
    assert!(evidence.contains(words), "{what}: {evidence}");
    assert_eq!(spread.end(), [1, 1], "{what}");
}

/// Data connections can be cut only while ranks work.
fn is_possible(kind: Kind, phase: Phase) -> bool {
    kind != Kind::CutData || matches!(phase, Phase::WarmUp | Phase::Work)
}

/// One phase for each kind of fault. In long runs, all phases, with two victims in turn.
#[test]
fn long_each_kind_of_fault_is_named_and_the_job_goes_on() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    for (index, kind) in KINDS.into_iter().enumerate() {
        if is_long {
            for (turn, phase) in PHASES.into_iter().enumerate().filter(|&(_, phase)| is_possible(kind, phase)) {
                check(kind, phase, 1 + (index + turn) % 2);
            }
        } else {
            let phase = PHASES[index % PHASES.len()];
            check(kind, if is_possible(kind, phase) { phase } else { Phase::Work }, 1 + index % 2);
        }
    }
}

#[test]
fn long_a_rank_that_naps_is_waited_for_in_every_phase() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    for (index, phase) in PHASES.into_iter().enumerate().filter(|(index, _)| is_long || *index == 2) {
        check_nap(phase, 1 + index % 2);
    }
}

#[test]
fn a_rank_with_another_plan_or_protocol_or_none_is_named_on_every_machine() {
    for (index, phase) in [Phase::Prepare, Phase::After].into_iter().enumerate() {
        check_odd(Mischief::OtherPlan, phase, 1 + index);
        check_odd(Mischief::NoPlan, phase, 2 - index);
    }
    (1..=2).for_each(|victim| check_odd(Mischief::OtherProtocol, Phase::Prepare, victim));
}
