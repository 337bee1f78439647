//! Ranks and coordinators that are killed, stopped or cut off in the middle of a run: every live rank names the rank at
//! fault, in time.

use super::{Launched, children_of, is_running};
use crate::binary::Ran;
use crate::cut::cut;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Polls until `condition`; fails with `what` if that takes too long.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    // A worker that has heard nothing yet waits for half a minute.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// The process with the fault.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Victim {
    /// The process that the launcher started.
    Rank(usize),
    /// The worker of the rank.
    Worker(usize),
}

/// The fault.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Blow {
    Kill,
    Stop,
    /// All its TCP connections are cut.
    Cut,
}

/// When the fault happens.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Moment {
    /// The ranks have their workers.
    Joined,
    /// All have the plan, and run warm-up repetitions.
    WarmUp,
    /// All have the plan, and work.
    Work,
    /// A collective is done, and another is prepared or running.
    Next,
}

/// Puts a fault into `victim` in the middle of a run; returns the messages of the live ranks, and how long they took.
fn fault(hosts: &[&str], moment: Moment, blow: Blow, victim: Victim) -> (Vec<(usize, Ran)>, Duration) {
    let repeated = match moment {
        Moment::Joined | Moment::Work => "--size 1MB --iterations 1000000",
        Moment::WarmUp => "--size 1MB --warmups 1000000",
        Moment::Next => "--size 1KB,1MB,1KB,1MB,1KB,1MB,1KB,1MB --iterations 500 --json",
    };
    let arguments = format!("run --collective allreduce --timeout 2s --ready-timeout 20s {repeated}");
    let mut launched = Launched::explicit(hosts, &arguments);
    // Output to a closed pipe fails.
    let _rows = (moment == Moment::Next).then(|| launched.first_row());
    let ranks: Vec<u32> = launched.children.iter().flatten().map(Child::id).collect();
    let mut workers = Vec::new();
    wait_until("not every rank has a worker", || {
        workers = ranks.iter().flat_map(|&rank| children_of(rank)).collect();
        workers.len() == ranks.len()
    });
    // All workers have the plan when each has the memory of a collective.
    wait_until("the ranks have no plan", || {
        moment == Moment::Joined
            || workers.iter().all(|worker| {
                let maps = std::fs::read_to_string(format!("/proc/{worker}/maps")).unwrap_or_default();
                maps.matches("memfd:antiphon").count() > 1
            })
    });
    let (target, dead) = match victim {
        Victim::Rank(rank) => (ranks[rank], (blow != Blow::Cut).then_some(rank)),
        Victim::Worker(rank) => (workers[rank], None),
    };
    let begin = Instant::now();
    let signal = |name: &str| Command::new("kill").args([name, &target.to_string()]).status().unwrap().success();
    assert!(match blow {
        Blow::Kill => signal("-KILL"),
        Blow::Stop => signal("-STOP"),
        Blow::Cut => cut(target),
    });
    let silent = dead.and_then(|rank| launched.children[rank].take());
    let live: Vec<usize> = (0..ranks.len()).filter(|&rank| Some(rank) != dead).collect();
    let said: Vec<_> = live.into_iter().zip(launched.end()).collect();
    let took = begin.elapsed();
    // Including ranks whose launcher is stopped but still there.
    wait_until("a worker outlives its job", || !workers.iter().any(|&worker| is_running(worker)));
    if let Some(mut child) = silent {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    (said, took)
}

const APART: [&str; 4] = ["alpha", "alpha", "beta", "gamma"];

#[test]
fn a_rank_that_dies_or_stops_is_named_with_its_machine_by_every_live_rank() {
    let cases = [
        (Blow::Kill, Victim::Worker(1), "rank 1 died", "alpha"),
        (Blow::Kill, Victim::Rank(1), "rank 1 was lost", "alpha"),
        (Blow::Kill, Victim::Worker(2), "rank 2 died", "beta"),
        (Blow::Kill, Victim::Rank(3), "rank 3 was lost", "gamma"),
        (Blow::Stop, Victim::Worker(3), "rank 3 stopped responding", "gamma"),
        (Blow::Stop, Victim::Rank(2), "rank 2 stopped responding", "beta"),
    ];
    for (blow, victim, expected, machine) in cases {
        let (said, took) = fault(&APART, Moment::Work, blow, victim);
        assert_eq!(said.len(), if matches!(victim, Victim::Rank(_)) { 3 } else { 4 });
        // Some may not have voted for the plan yet, and getting ready has its own deadline.
        let is_ready = !said.iter().any(|(_, ran)| ran.stderr.contains("during getting ready"));
        for (rank, ran) in said {
            let words = &ran.stderr;
            assert_eq!(ran.code, 1, "{blow:?} {victim:?}, rank {rank}: {words}");
            let place = format!("on machine {machine} has finished");
            assert!(words.contains(expected) && words.contains(&place), "{blow:?} {victim:?}, rank {rank}: {words}");
        }
        let limit = Duration::from_secs(if is_ready { 2 } else { 20 });
        assert!(took < limit + Duration::from_secs(6), "{blow:?} {victim:?}: {took:?}");
    }
}

/// It continues when its workers have ended, and says why they have.
#[test]
fn a_stopped_launcher_holds_its_workers_no_longer_than_the_limit() {
    let line = "run --collective allreduce --size 64KB --iterations 1000000 --timeout 1s";
    let launched = Launched::start(&["local"], line, |_| ("--ranks 2".to_owned(), Vec::new()));
    let launcher = launched.processes()[0];
    let mut workers = Vec::new();
    wait_until("not every rank has a worker", || {
        workers = children_of(launcher);
        workers.len() == 2
    });
    let signal = |name: &str| Command::new("kill").args([name, &launcher.to_string()]).status().unwrap().success();
    assert!(signal("-STOP"));
    // Ended workers are still its children, because it cannot wait for them.
    wait_until("a worker outlives its limit", || !workers.iter().any(|&worker| is_running(worker)));
    assert!(signal("-CONT"));
    let said = launched.end();
    // On a busy computer the workers had not connected when the launcher was stopped.
    let is_told = ["error: rank ", "error: starting a worker"].iter().any(|words| said[0].stderr.contains(words));
    assert!(said[0].code == 1 && is_told, "{}", said[0].stderr);
}

#[test]
fn long_without_a_coordinator_every_rank_ends_and_says_so() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    let moments = [Moment::Work, Moment::Joined, Moment::WarmUp, Moment::Next];
    for moment in moments.into_iter().take(if is_long { 4 } else { 1 }) {
        for blow in [Blow::Kill, Blow::Stop, Blow::Cut] {
            let (said, took) = fault(&APART, moment, blow, Victim::Rank(0));
            assert_eq!(said.len(), if blow == Blow::Cut { 4 } else { 3 });
            for (rank, ran) in said {
                let expected = match rank {
                    0 => "rank 0 was cut off from others".to_owned(),
                    _ => format!("rank {rank} on machine {} lost the coordinator, rank 0,", APART[rank]),
                };
                let words = &ran.stderr;
                assert!(ran.code == 1 && words.contains(&expected), "{blow:?} in {moment:?}, rank {rank}: {words}");
            }
            assert!(took < Duration::from_secs(8), "{blow:?} in {moment:?}: {took:?}");
        }
    }
}

/// A launcher sends its signals to all ranks, and some end before others hear of it. Rank 0 keeps what it has measured by itself,
/// also where nobody answers any more.
#[test]
fn rank_0_of_an_interrupted_launcher_keeps_the_cells_that_are_complete() {
    use rustix::process::{Pid, Signal, kill_process};
    for (signal, others) in [(Signal::INT, Signal::STOP), (Signal::TERM, Signal::STOP), (Signal::TERM, Signal::KILL)] {
        let folder = tempfile::tempdir().unwrap();
        let (log, table) = (folder.path().join("log"), folder.path().join("table.json"));
        let line = "tune --collective allreduce --sizes 64,1KiB,64KiB,1MiB --budget 60s";
        let files = format!("--log {} -o {}", log.display(), table.display());
        let mut launched = Launched::explicit(&["a", "a", "b"], &format!("{line} {files}"));
        wait_until("no cell", || std::fs::metadata(log.join("rank-0.jsonl")).is_ok_and(|file| file.len() > 0));
        let processes = launched.processes();
        let send = |rank: usize, signal| kill_process(Pid::from_raw(processes[rank] as i32).unwrap(), signal).unwrap();
        send(1, others);
        send(2, others);
        send(0, signal);
        let begin = Instant::now();
        let output = launched.take(0).unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{signal:?}: {said}");
        assert!(said.contains("of 4 cells that were complete"), "{said}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{signal:?}: it waited for the others");
        assert_eq!(crate::binary::read(&table)["cells"][0]["collective"], "allreduce");
    }
}

/// Any rank but rank 0 has nothing to keep, and ends as well.
#[test]
fn other_ranks_of_an_interrupted_launcher_end_too() {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = tempfile::tempdir().unwrap();
    let (log, table) = (folder.path().join("log"), folder.path().join("table.json"));
    let line = "tune --collective allreduce --sizes 64,1KiB,64KiB,1MiB --budget 60s";
    let launched = Launched::explicit(&["a", "a"], &format!("{line} --log {} -o {}", log.display(), table.display()));
    wait_until("no cell", || std::fs::metadata(log.join("rank-0.jsonl")).is_ok_and(|file| file.len() > 0));
    for process in launched.processes() {
        kill_process(Pid::from_raw(process as i32).unwrap(), Signal::INT).unwrap();
    }
    let ran = launched.end();
    assert!(ran.iter().all(|ran| ran.code == 130), "{}, {}", ran[0].stderr, ran[1].stderr);
    assert!(table.exists());
}
