//! Ranks that die, stop, or disagree: no rank hangs, the verdict names the right rank, and no process is left.

use crate::agents::{signal, when_it_works};
use crate::cut::cut;
use crate::plans::PlanSpec;
use crate::worker::{Mischief, launch, start_launcher};
use runtime::{Cause, DType, ExecutionOptions, Hosts, JobSpec, Phase, RunError, Trial, Verdict};
use schedule::Collective;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::{Duration, Instant};
use topology::Rank;

const RANKS: usize = 4;
const READY_LIMIT: Duration = Duration::from_secs(20);

fn spec(limit: Duration) -> JobSpec {
    apart(limit, Hosts::One)
}

fn apart(limit: Duration, hosts: Hosts) -> JobSpec {
    let options =
        ExecutionOptions { work_limit: limit, ready_limit: READY_LIMIT, hosts, ..ExecutionOptions::default() };
    JobSpec { ranks: RANKS, options, ..JobSpec::default() }
}

fn plan() -> PlanSpec {
    PlanSpec { chunks: 2, ..PlanSpec::new("ring:4", Collective::AllReduce) }
}

fn endless() -> Trial {
    Trial { repetitions: 1_000_000, ..Trial::once(1000, DType::F32) }
}

pub(crate) fn is_running(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Sends `signal` to `victim` after `delay` of an endless trial. Returns the verdict and the reports of other ranks.
fn fault(
    signal: &str,
    victim: usize,
    delay: Duration,
    limit: Duration,
    hosts: Hosts,
) -> (Verdict, Vec<(Rank, String)>) {
    let mut job = launch(&apart(limit, hosts), |_| Mischief::None).unwrap();
    let processes = job.process_ids();
    let (signal, target) = (signal.to_owned(), processes[victim].to_string());
    let (sent, was_sent) = std::sync::mpsc::channel();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(delay);
        assert!(Command::new("kill").args([signal, target]).status().unwrap().success());
        sent.send(Instant::now()).unwrap();
    });
    let error = job.run(&plan().to_string(), &[], &plan().program(), &endless()).unwrap_err();
    let took = was_sent.recv().unwrap().elapsed();
    killer.join().unwrap();
    assert!(!processes.iter().any(|&process| is_running(process)), "a process is left");
    let RunError::Ended { verdict, reports, .. } = error else { panic!("{error}") };
    // On a busy computer the signal may come while ranks still get ready, which has its own deadline.
    let limit = if verdict.phase == Phase::Prepare { READY_LIMIT } else { limit };
    assert!(took < limit + Duration::from_secs(2), "{verdict}: the error came after {took:?}");
    let again = job.run(&plan().to_string(), &[], &plan().program(), &endless()).unwrap_err();
    assert!(matches!(again, RunError::Verdict(same) if same == verdict), "{again}");
    (verdict, reports)
}

fn assert_all_others_said(verdict: Verdict, reports: &[(Rank, String)], victim: usize) {
    let others: Vec<_> = (0..RANKS).filter(|&rank| rank != victim).map(Rank::from_index).collect();
    assert_eq!(reports.iter().map(|report| report.0).collect::<Vec<_>>(), others);
    assert!(reports.iter().all(|report| report.1 == verdict.to_string()), "{reports:?}");
}

#[test]
fn a_killed_rank_is_named_by_every_live_rank() {
    for (victim, delay) in [(0, 30), (1, 95), (2, 170), (3, 61)] {
        let limit = Duration::from_secs(10);
        let (verdict, reports) = fault("-KILL", victim, Duration::from_millis(delay), limit, Hosts::One);
        assert_eq!((verdict.rank, verdict.cause), (Rank::from_index(victim), Cause::Died));
        assert_all_others_said(verdict, &reports, victim);
    }
}

#[test]
fn a_stopped_rank_is_named_when_the_deadline_has_passed() {
    for (victim, delay) in [(0, 150), (2, 90)] {
        let limit = Duration::from_secs(1);
        let (verdict, reports) = fault("-STOP", victim, Duration::from_millis(delay), limit, Hosts::One);
        assert_eq!((verdict.rank, verdict.cause), (Rank::from_index(victim), Cause::Silent));
        assert_all_others_said(verdict, &reports, victim);
    }
}

#[test]
fn a_rank_whose_sockets_end_with_it_is_named() {
    for (signal, cause, victim, delay) in [("-KILL", Cause::Died, 1, 160), ("-STOP", Cause::Silent, 3, 120)] {
        let limit = Duration::from_secs(1);
        let (verdict, reports) = fault(signal, victim, Duration::from_millis(delay), limit, Hosts::Each);
        assert_eq!((verdict.rank, verdict.cause), (Rank::from_index(victim), cause));
        assert_all_others_said(verdict, &reports, victim);
    }
}

#[test]
fn a_rank_whose_connections_are_cut_is_named_and_ends_the_job() {
    let limit = Duration::from_secs(10);
    let mut job = launch(&apart(limit, Hosts::Each), |_| Mischief::None).unwrap();
    let processes = job.process_ids();
    let victim = processes[1];
    // A connection that is cut while it is being made could be made again, so the cut comes later.
    let cutter = when_it_works(&job, 1, move || assert!(cut(victim), "rank 1 has no connections"));
    let begin = Instant::now();
    let error = job.run(&plan().to_string(), &[], &plan().program(), &endless()).unwrap_err();
    assert!(begin.elapsed() < limit, "the error came after {:?}", begin.elapsed());
    cutter.join().unwrap();
    let RunError::Ended { verdict, evidence, .. } = error else { panic!("{error}") };
    assert_eq!((verdict.rank, verdict.cause), (Rank(1), Cause::Cut), "{evidence}");
    assert!(!processes.iter().any(|&process| is_running(process)), "a process is left");
}

#[test]
fn a_stopped_rank_that_takes_no_orders_is_named() {
    let mut spec = spec(Duration::from_secs(10));
    spec.options.ready_limit = Duration::from_secs(3);
    let mut job = launch(&spec, |_| Mischief::None).unwrap();
    let processes = job.process_ids();
    assert!(Command::new("kill").args(["-STOP", &processes[1].to_string()]).status().unwrap().success());
    // More bytes than the channel holds.
    let source = "x".repeat(1 << 20);
    let begin = Instant::now();
    let error = job.run(&source, &[], &plan().program(), &Trial::once(1, DType::F32)).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(6), "the error came after {:?}", begin.elapsed());
    let RunError::Ended { verdict, .. } = error else { panic!("{error}") };
    assert_eq!(verdict, Verdict { rank: Rank(1), cause: Cause::Silent, phase: Phase::Prepare });
    assert!(!processes.iter().any(|&process| is_running(process)), "a process is left");
}

#[test]
fn long_faults_at_many_moments() {
    let rounds = if std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long") { 40 } else { 1 };
    for round in 0..rounds {
        let (victim, delay) = (round % RANKS, Duration::from_millis(7 * round as u64 + 1));
        let (signal, cause) = if round % 2 == 0 { ("-KILL", Cause::Died) } else { ("-STOP", Cause::Silent) };
        let hosts = if round / 2 % 2 == 0 { Hosts::Each } else { Hosts::One };
        let (verdict, _) = fault(signal, victim, delay, Duration::from_secs(1), hosts);
        assert_eq!((verdict.rank, verdict.cause), (Rank::from_index(victim), cause), "round {round}");
    }
}

#[test]
fn another_plan_or_none_on_one_rank_is_an_error_on_all() {
    for (mischief, cause) in [(Mischief::OtherPlan, Cause::Disagrees), (Mischief::NoPlan, Cause::Failed)] {
        let odd = |rank| if rank == Rank(2) { mischief } else { Mischief::None };
        let mut job = launch(&spec(Duration::from_secs(10)), odd).unwrap();
        let error = job.run(&plan().to_string(), &[], &plan().program(), &endless()).unwrap_err();
        let RunError::Ended { verdict, reports, .. } = error else { panic!("{error}") };
        assert_eq!(verdict, Verdict { rank: Rank(2), cause, phase: Phase::Prepare });
        for rank in [0, 1, 3] {
            assert!(reports.contains(&(Rank(rank), verdict.to_string())), "{reports:?}");
        }
    }
}

#[test]
fn a_worker_that_dies_at_once_is_named() {
    let odd = |rank| if rank == Rank(1) { Mischief::DiesAtOnce } else { Mischief::None };
    let Err(error) = launch(&spec(Duration::from_secs(10)), odd) else { panic!("the job has only three ranks") };
    assert_eq!(error.to_string(), "rank 1 died during getting ready: exit status: 3; rank 1 has finished 0 steps");
}

#[test]
fn workers_leave_with_the_job() {
    let job = launch(&spec(Duration::from_secs(10)), |_| Mischief::None).unwrap();
    let processes = job.process_ids();
    assert!(processes.iter().all(|&process| is_running(process)));
    drop(job);
    assert!(!processes.iter().any(|&process| is_running(process)));
}

#[test]
fn workers_leave_when_the_launcher_is_killed() {
    let mut launcher = start_launcher(&plan());
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    let workers = lines.find_map(|line| line.unwrap().rsplit_once("workers ").map(|(_, ids)| ids.to_owned())).unwrap();
    let workers: Vec<u32> = workers.split(' ').map(|id| id.parse().unwrap()).collect();
    assert_eq!(workers.len(), RANKS);
    // A stopped worker cannot react.
    signal(workers[1], "-STOP");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while workers.iter().any(|&process| is_running(process)) {
        assert!(Instant::now() < deadline, "workers outlive their launcher");
        std::thread::yield_now();
    }
}
