//! Faults at random moments in real jobs: kills, stops, pauses and cuts, on local ranks and on ranks that another
//! program starts. No job hangs, no result is wrong, no process is left, and the errors name the right rank.

use crate::binary::Ran;
use crate::cut::cut;
use crate::launch::{Launched, children_of, is_running};
use crate::random::Random;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a job may be without progress, and how long it may take to get ready.
const LIMIT: Duration = Duration::from_secs(1);
const READY: Duration = Duration::from_secs(4);
/// How much longer ranks may take to end, on a computer that is busy with other tests; an idle one needs a second.
const GRACE: Duration = Duration::from_secs(4);
/// How many jobs run at the same time; most of them only wait for a deadline.
const LANES: usize = 3;

/// A fault of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Kill,
    Stop,
    /// It is stopped, and continues when the others have ended, but not before twice the limit.
    Pause,
    /// Its TCP connections are cut.
    Cut,
}

impl Deed {
    fn stops(self) -> bool {
        matches!(self, Self::Stop | Self::Pause)
    }
}

/// The process with the fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// The process that was started for the rank; for local ranks, rank 0 stands for all.
    Rank(usize),
    /// The worker of the rank.
    Worker(usize),
}

/// One job and its fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    is_local: bool,
    ranks: usize,
    tcp: bool,
    deed: Deed,
    victim: Victim,
    /// The time after the ranks have got their workers.
    after: Duration,
}

impl Victim {
    fn rank(self) -> usize {
        match self {
            Self::Rank(rank) | Self::Worker(rank) => rank,
        }
    }
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let is_local = random.below(2) == 0;
        let ranks = 2 + random.below(4) as usize;
        let rank = random.below(ranks as u64) as usize;
        let deed = [Deed::Kill, Deed::Stop, Deed::Pause, Deed::Cut][random.below(4) as usize];
        let victim = match (is_local, random.below(3)) {
            (false, 0) => Victim::Rank(rank),
            (true, 0) if deed == Deed::Kill => Victim::Rank(0),
            _ => Victim::Worker(rank),
        };
        let tcp = deed == Deed::Cut || random.below(2) == 0;
        // From the first moment, in which ranks get ready, to the middle of the work.
        let after = Duration::from_millis(random.below(1200));
        Self { is_local, ranks, tcp, deed, victim, after }
    }

    /// Whether the first line of a rank's message names the rank with the fault.
    fn is_named(&self, speaker: usize, line: &str) -> bool {
        if line.contains("lost the coordinator, rank 0,") || line.contains("could not join rank 0") {
            // It names its own connection, which is also the coordinator's.
            return matches!(self.victim, Victim::Rank(hit) if hit == 0 || hit == speaker);
        }
        let digits = |rest: &str| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok();
        let named: Option<usize> = line.strip_prefix("rank ").and_then(digits);
        // A connection has two ends. If a rank was cut off from several others, the error must name it.
        named == Some(self.victim.rank()) || named.is_some() && self.deed == Deed::Cut && self.ranks == 2
    }
}

/// The result of a case.
struct Found {
    /// How much later than the deadline the others ended.
    over: Duration,
    /// Whether all processes that ended named the right rank.
    is_named: bool,
    words: String,
}

/// Sends a signal to a process, which may have ended.
fn signal(process: u32, name: &str) {
    drop(Command::new("kill").args([name, &process.to_string()]).output());
}

/// Waits until `found` finds something.
fn await_some<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn inject(seed: u64) -> Found {
    let case = Case::of(seed);
    let Case { is_local, ranks, tcp, deed, victim, after } = case;
    let transport = if tcp { "tcp" } else { "auto" };
    let line = format!(
        "run --collective allreduce --size 256KB --iterations 1000000 --timeout {}s --ready-timeout {}s --json --transport {transport}",
        LIMIT.as_secs(),
        READY.as_secs()
    );
    let hosts: Vec<String> = (0..ranks).map(|rank| format!("host{}", rank / 2)).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let mut launched = match is_local {
        true => Launched::start(&["local"], &line, |_| (format!("--ranks {ranks}"), Vec::new())),
        false => Launched::explicit(&hosts, &line),
    };
    let parents = launched.processes();
    // Children are started in the order of their ranks.
    let worker_of = |rank: usize| {
        let (parent, index) = if is_local { (parents[0], rank) } else { (parents[rank], 0) };
        let mut children = children_of(parent);
        children.sort_unstable();
        children.get(index).copied()
    };
    let workers: Vec<u32> = (0..ranks).map(|rank| await_some("a rank has no worker", || worker_of(rank))).collect();
    std::thread::sleep(after);
    let target = match victim {
        Victim::Rank(rank) => parents[rank],
        Victim::Worker(rank) => workers[rank],
    };
    let begin = strike(deed, target, &parents);
    let held = match victim {
        Victim::Rank(rank) if deed.stops() => launched.take(rank).map(|child| (rank, child)),
        _ => None,
    };
    let silent = held.as_ref().map(|(rank, _)| *rank);
    let said: Vec<_> = (0..parents.len()).filter(|&rank| Some(rank) != silent).zip(launched.end()).collect();
    let took = begin.elapsed();
    if deed == Deed::Pause {
        std::thread::sleep((2 * LIMIT).saturating_sub(took));
        signal(target, "-CONT");
    }
    if let Some((_, mut child)) = held {
        if deed == Deed::Pause {
            await_some("a rank that was paused does not end", || child.try_wait().unwrap());
        }
        drop(child.kill());
        child.wait().unwrap();
    }
    await_some("a worker outlives its job", || (!workers.iter().any(|&worker| is_running(worker))).then_some(()));
    found(seed, &case, &said, took)
}

/// Puts the fault into a process; returns the time.
fn strike(deed: Deed, target: u32, parents: &[u32]) -> Instant {
    let begin = Instant::now();
    let mut cut_at = None;
    match deed {
        Deed::Kill => signal(target, "-KILL"),
        Deed::Stop | Deed::Pause => signal(target, "-STOP"),
        // A connection that is cut while it is being made may be made again.
        Deed::Cut => await_some("nobody misses what was cut", || {
            if cut(target) {
                cut_at.get_or_insert_with(Instant::now);
            }
            parents.iter().any(|&parent| !is_running(parent)).then_some(())
        }),
    }
    cut_at.unwrap_or(begin)
}

/// Judges the messages of the processes that ended by themselves, after `took`.
fn found(seed: u64, case: &Case, said: &[(usize, Ran)], took: Duration) -> Found {
    let mut words = format!("seed {seed}: {case:?}, after {took:?}\n");
    let (mut is_named, mut limit) = (true, if case.deed.stops() { LIMIT } else { Duration::ZERO });
    for (speaker, ran) in said {
        assert!(!ran.stderr.contains("panicked"), "seed {seed}: {case:?}: {}", ran.stderr);
        let rows = ran.stdout.lines().filter_map(|row| serde_json::from_str::<serde_json::Value>(row).ok());
        rows.for_each(|row| assert_eq!(row["wrong"], 0, "seed {seed}: {case:?}: {row}"));
        words.push_str(&format!("  exit {}: {}\n", ran.code, ran.stderr.trim().replace('\n', "\n    ")));
        if case.deed.stops() && ran.stderr.contains("during getting ready") {
            limit = READY;
        }
        // A killed process prints nothing.
        let is_dead = case.deed == Deed::Kill && case.victim == Victim::Rank(*speaker);
        // Warnings of refused connections may come before.
        let errors = ran.stderr.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let error = errors.filter_map(|error| Some(error["text"].as_str()?.to_owned())).next().unwrap_or_default();
        let first = error.lines().next().unwrap_or_default();
        is_named &= if is_dead { ran.code == -1 } else { ran.code == 1 && case.is_named(*speaker, first) };
    }
    Found { over: took.saturating_sub(limit), is_named, words }
}

/// Injects a fault for each seed.
fn inject_all(seeds: std::ops::Range<u64>) -> Vec<Found> {
    let (left, all) = (Mutex::new(seeds), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(seed) = { left.lock().unwrap().next() } {
                let found = inject(seed);
                assert!(found.over < GRACE, "{}", found.words);
                all.lock().unwrap().push(found);
            }
        };
        (0..LANES).for_each(|_| drop(scope.spawn(work)));
    });
    all.into_inner().unwrap()
}

/// A handful, and all of them where there is time: the right rank is named in 95 of a hundred, so in each of a handful, and all
/// else holds in all. (Of 200 and of six times 6 on two busy cores none named another.)
#[test]
fn long_random_faults_name_the_right_rank_and_leave_nothing_behind() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    let all = inject_all(0..if is_long { 60 } else { 6 });
    let slowest = all.iter().map(|found| found.over).max().unwrap_or_default();
    let unnamed: Vec<&str> = all.iter().filter(|found| !found.is_named).map(|found| &*found.words).collect();
    println!("of {} at most {slowest:?} beyond the deadline; somebody else is named by {unnamed:#?}", all.len());
    assert!(unnamed.len() <= all.len() / 20, "{} of {} named somebody else", unnamed.len(), all.len());
}

#[test]
fn long_healthy_ranks_on_a_busy_computer_raise_no_alarm() {
    let is_long = std::env::var("ANTIPHON_TEST_EFFORT").is_ok_and(|effort| effort == "long");
    let (cores, iterations) =
        (std::thread::available_parallelism().map_or(2, usize::from), if is_long { 1500 } else { 300 });
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for transport in ["shm", "tcp"] {
            let line = format!(
                "run --collective allreduce --size 64KB --ranks {} --iterations {iterations} --transport {transport} --timeout 2s --json",
                2 * cores
            );
            let ran = crate::binary::antiphon(&line);
            over.fetch_or(ran.code != 0, std::sync::atomic::Ordering::Relaxed);
            let ran = ran.ok();
            assert!(ran.stdout.lines().all(|row| row.contains("\"wrong\":0")), "{}", ran.stdout);
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
