//! Faults while ranks tune: eleven kinds, in six phases. Nobody hangs, no result is wrong, no two ranks run different plans in one
//! call, and whoever is left names the rank. The ranks are processes that use the library as any program would.

use crate::cut::cut;
use crate::random::Random;
use comm::{CandidateFunction, CandidateMemory, Collective, Communicator, Op, TuneCandidate, TuneOptions, table_of};
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RANKS: usize = 3;
/// How long a call may go without progress.
const LIMIT: Duration = Duration::from_secs(1);
/// Every live rank has to end within this; ranks wait for each other for twelve limits at most, and the computer is busy.
const DEADLINE: Duration = Duration::from_secs(60);
/// What a rank says that has not met the others: somebody else on the computer has taken the address, and the case is tried again.
const NOT_JOINED: &str = "not joined";
const FAULT: &str = "ANTIPHON_TEST_FAULT";
/// Where a rank says that its fault has happened. On a slow computer the tuner's budget ends before the call of a fault.
const HAPPENED: &str = "ANTIPHON_TEST_HAPPENED";

const KINDS: [&str; 11] = [
    "kill",
    "stop",
    "pause",
    "error",
    "late-error",
    "slow",
    "cut-control",
    "cut-data",
    "wrong",
    "other-table",
    "coordinator",
];
const PHASES: [&str; 6] = ["prepare", "warm-up", "timed", "gather", "commit", "dispatch"];

/// A fault of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fault {
    kind: &'static str,
    phase: &'static str,
    rank: usize,
    seed: u64,
}

impl Fault {
    fn of(kind: &'static str, phase: &'static str, seed: u64) -> Self {
        let rank = if kind == "coordinator" { 0 } else { 1 + Random(seed).below(RANKS as u64 - 1) as usize };
        Self { kind, phase, rank, seed }
    }

    /// Whether the rank is lost, so that the others cannot go on.
    fn loses(self) -> bool {
        // A function that fails loses nothing but itself.
        let is_of_function = matches!(self.phase, "warm-up" | "timed") && matches!(self.kind, "error" | "late-error");
        !matches!(self.kind, "slow" | "wrong" | "other-table") && !is_of_function
    }

    /// As text for the program.
    fn text(self) -> String {
        format!("{} {} {} {}", self.kind, self.phase, self.rank, self.seed)
    }

    fn from_environment() -> Option<Self> {
        let text = std::env::var(FAULT).ok()?;
        let mut words = text.split(' ');
        let mut word = |of: &[&'static str]| -> Option<&'static str> {
            let word = words.next()?;
            of.iter().copied().find(|known| *known == word)
        };
        let (kind, phase) = (word(&KINDS)?, word(&PHASES)?);
        Some(Self { kind, phase, rank: words.next()?.parse().ok()?, seed: words.next()?.parse().ok()? })
    }

    /// Does it, in this process. What it returns is why this rank does not go on.
    fn happen(self, comm: &Communicator) -> Result<(), String> {
        note_that_it_happens();
        let own = std::process::id();
        let signal = |name: &str| drop(Command::new("kill").args([name, &own.to_string()]).status());
        match self.kind {
            "kill" | "coordinator" => signal("-KILL"),
            "stop" => signal("-STOP"),
            "pause" => {
                let later = format!("sleep {}; kill -CONT {own}", 2 * LIMIT.as_secs() + 1);
                drop(Command::new("sh").args(["-c", &later]).spawn());
                signal("-STOP");
            }
            "error" => return Err("a fault of the test".to_owned()),
            "late-error" => {
                comm.abort();
                return Err("a fault of the test".to_owned());
            }
            "slow" => std::thread::sleep(LIMIT / 3),
            "cut-control" | "cut-data" => drop(cut(own)),
            _ => {}
        }
        Ok(())
    }
}

/// Tells the test, which may live longer than this process.
fn note_that_it_happens() {
    if let Some(path) = std::env::var_os(HAPPENED) {
        std::fs::write(path, "").unwrap();
    }
}

/// An AllReduce of floats by the library; `before` and `after` are what a fault makes of it.
fn candidate(fault: Option<Fault>) -> TuneCandidate {
    let calls = AtomicUsize::new(0);
    let function: Arc<CandidateFunction> = Arc::new(move |comm, _, memory| {
        let CandidateMemory::InPlace(bytes) = memory else { return Err("it is not in place".to_owned()) };
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let first = fault.map_or(0, |fault| match fault.phase {
            "warm-up" => 0,
            // After the calls of the check.
            _ => 16 + (fault.seed % 20) as usize,
        });
        let own = fault.filter(|fault| comm.rank() == fault.rank && matches!(fault.phase, "warm-up" | "timed"));
        match own.filter(|_| call == first) {
            Some(Fault { kind: "late-error", .. }) => note_that_it_happens(),
            Some(fault) => fault.happen(comm)?,
            None => {}
        }
        let floats = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        let mut vector: Vec<f32> = floats.collect();
        comm.all_reduce(&mut vector, Op::Sum).map_err(|error| error.to_string())?;
        bytes.chunks_exact_mut(4).zip(vector).for_each(|(four, value)| four.copy_from_slice(&value.to_le_bytes()));
        match own.map(|fault| fault.kind) {
            // From now on it is wrong.
            Some("wrong") if call >= first => bytes[0] ^= 1,
            Some("late-error") if call == first => return Err("a fault of the test".to_owned()),
            _ => {}
        }
        Ok(())
    });
    TuneCandidate::function("mine", vec![Collective::AllReduce], function)
}

/// Tunes and then makes checked calls. What happened, a line each.
fn tune_and_use(comm: &Communicator, fault: Option<Fault>, said: &mut String) -> Result<(), String> {
    let told = |error: comm::CommError| comm::chain(&error);
    let own = fault.filter(|fault| fault.rank == comm.rank());
    let at = |phase: &str| match own.filter(|fault| fault.phase == phase) {
        Some(fault) => fault.happen(comm),
        None => Ok(()),
    };
    let options = TuneOptions {
        collectives: vec![Collective::AllReduce],
        sizes: vec![4000, 400_000],
        budget: Duration::from_millis(600),
        limit: LIMIT,
        ..TuneOptions::default()
    };
    at("prepare")?;
    let candidates = comm.candidates(&options, vec![candidate(fault)]).map_err(told)?;
    let samples = comm.measure(&options.grid(comm.size()), &candidates, &options, |_| {}).map_err(told)?;
    for refusal in samples.iter().flat_map(|cell| &cell.candidates).filter_map(|of| of.refusal.as_ref()) {
        writeln!(said, "refused because of rank {}: {}", refusal.rank, refusal.why).unwrap();
    }
    at("gather")?;
    // Rank 0 makes the table and hands it out.
    let key = comm.table_key().map_err(told)?;
    let end = comm.launch_end(&candidates, key).map_err(told)?;
    let table = table_of(&[samples], &end.texts, end.key, "f32", |_| 4)?.table;
    let mut text = serde_json::to_vec(&table).unwrap();
    let mut length = [text.len() as i64];
    comm.broadcast(&mut length, 0).map_err(told)?;
    text.resize(length[0] as usize, 0);
    comm.broadcast(&mut text, 0).map_err(told)?;
    let mut table: tune::TuningTable = serde_json::from_slice(&text).unwrap();
    at("commit")?;
    if own.is_some_and(|fault| fault.kind == "other-table") {
        // As if another version had been here.
        table.key.version.push('x');
    }
    if let Err(error) = comm.use_table(&table) {
        writeln!(said, "not used: {}", told(error)).unwrap();
        // Whether ranks still are where the others are, the next call tells.
    }
    for call in 0..40 {
        if call == 10 {
            at("dispatch")?;
        }
        let count = if call % 2 == 0 { 1000 } else { 100_000 };
        let mut vector = vec![1.0 + comm.rank() as f32; count];
        comm.all_reduce(&mut vector, Op::Sum).map_err(told)?;
        let sum = (comm.size() * (comm.size() + 1) / 2) as f32;
        if vector.iter().any(|value| *value != sum) {
            writeln!(said, "WRONG at call {call}").unwrap();
        }
        writeln!(said, "call {call} ran {}", comm.last_plan()).unwrap();
    }
    Ok(())
}

/// The program of the matrix. By itself it is one rank without a fault.
#[test]
fn a_rank_of_the_matrix_tunes_and_uses_the_table() {
    let mut said = String::new();
    let joined = Communicator::from_env().map_err(|error| format!("{NOT_JOINED}: {}", comm::chain(&error)));
    let ended = joined.and_then(|comm| {
        comm.set_time_limit(LIMIT);
        tune_and_use(&comm, Fault::from_environment(), &mut said)
    });
    if let Err(why) = &ended {
        writeln!(said, "ended: {why}").unwrap();
    }
    match std::env::var_os("ANTIPHON_TEST_OUT") {
        Some(path) => std::fs::write(path, said).unwrap(),
        None => assert!(ended.is_ok() && said.contains("call 39"), "{said}"),
    }
}

/// What a case came to.
#[derive(Default, Debug)]
struct Verdict {
    hangs: usize,
    wrong: usize,
    mixed: usize,
    /// Whether the fault has happened.
    happened: bool,
    /// Whether those that are left name the rank; `None` if there is nothing to name.
    names: Option<bool>,
}

fn judge(fault: Fault, folder: &Path) -> (Verdict, String) {
    let master = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let out = |rank: usize| folder.join(format!("{rank}.txt"));
    let happened = folder.join("happened");
    let start = |rank: usize| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tuning_faults::a_rank_of_the_matrix_tunes_and_uses_the_table"])
            .env(FAULT, fault.text())
            .env("ANTIPHON_TEST_OUT", out(rank))
            .env(HAPPENED, &happened)
            .env("ANTIPHON_RANK", rank.to_string())
            .env("ANTIPHON_SIZE", RANKS.to_string())
            .env("ANTIPHON_MASTER", &master)
            .env("ANTIPHON_SECRET", "a secret for tests only")
            .env("ANTIPHON_TIMEOUT", LIMIT.as_secs().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if fault.kind == "cut-data" {
            command.env("ANTIPHON_HOST", format!("machine {rank}"));
        }
        command.spawn().unwrap()
    };
    (0..RANKS).map(out).chain([happened.clone()]).for_each(|path| drop(std::fs::remove_file(path)));
    let mut children: Vec<Child> = (0..RANKS).map(start).collect();
    let begin = Instant::now();
    let live: Vec<usize> = (0..RANKS).filter(|rank| fault.kind != "stop" || *rank != fault.rank).collect();
    let mut verdict = Verdict::default();
    while live.iter().any(|&rank| children[rank].try_wait().unwrap().is_none()) {
        if begin.elapsed() > DEADLINE {
            verdict.hangs = live.iter().filter(|&&rank| children[rank].try_wait().unwrap().is_none()).count();
            break;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    for child in &mut children {
        drop(child.kill());
        drop(child.wait());
    }
    let said: Vec<String> = (0..RANKS).map(|rank| std::fs::read_to_string(out(rank)).unwrap_or_default()).collect();
    verdict.wrong = said.iter().filter(|said| said.contains("WRONG")).count();
    // The plan of a call, on all ranks that have made it.
    for call in 0..40 {
        let start = format!("call {call} ran ");
        let plans = said.iter().filter_map(|said| said.lines().find_map(|line| line.strip_prefix(start.as_str())));
        let mut plans: Vec<&str> = plans.collect();
        plans.dedup();
        verdict.mixed += usize::from(plans.len() > 1);
    }
    let others: Vec<&String> = (0..RANKS).filter(|rank| *rank != fault.rank).map(|rank| &said[rank]).collect();
    let name = format!("rank {}", fault.rank);
    let is_named = |said: &&&String| {
        said.lines().any(|line| !line.starts_with("call ") && line.contains(&name))
            && (!fault.loses() || said.contains("ended: "))
    };
    let has_failed = said.iter().any(|said| said.lines().any(|line| !line.starts_with("call ")));
    verdict.names = has_failed.then(|| others.iter().all(|said| is_named(&said)));
    verdict.happened = happened.exists();
    if verdict.happened && !has_failed && fault.loses() && !matches!(fault.kind, "pause" | "cut-control" | "cut-data") {
        verdict.names = Some(false);
    }
    (verdict, said.join("\n---\n"))
}

#[test]
fn long_faults_while_tuning_hang_nobody_and_name_the_rank() {
    // `long` takes every kind in every phase once, `whole` with twenty seeds: half an hour.
    let effort = std::env::var("ANTIPHON_TEST_EFFORT").unwrap_or_default();
    let mut cases: Vec<Fault> = Vec::new();
    for seed in 0..if effort == "whole" { 20 } else { 1 } {
        let all = KINDS.iter().flat_map(|&kind| PHASES.iter().map(move |&phase| (kind, phase)));
        cases.extend(all.enumerate().map(|(index, (kind, phase))| Fault::of(kind, phase, seed * 100 + index as u64)));
    }
    if effort.is_empty() {
        // Every kind and every phase at least once.
        cases.retain(|fault| {
            let place = |list: &[&str], of: &str| list.iter().position(|one| *one == of).unwrap();
            (place(&KINDS, fault.kind) + place(&PHASES, fault.phase)) % 5 == 0
        });
    }
    let (mut happened, mut right, mut asked, mut told) = (0, 0, 0, String::new());
    for fault in &cases {
        let folder = tempfile::tempdir().unwrap();
        let mut tries = (0..3).map(|_| judge(*fault, folder.path()));
        let (verdict, said) = tries.find(|(_, said)| !said.contains(NOT_JOINED)).expect("the ranks meet");
        assert_eq!((verdict.hangs, verdict.wrong, verdict.mixed), (0, 0, 0), "{fault:?}\n{said}");
        happened += usize::from(verdict.happened);
        if let Some(names) = verdict.names {
            asked += 1;
            right += usize::from(names);
            if !names {
                writeln!(told, "{fault:?}\n{said}").unwrap();
            }
        }
    }
    println!("{happened} of {} faults happened, {right} of {asked} were ascribed to their rank", cases.len());
    // Those of the phase `timed`, a sixth, may come after the end of the tuner's budget.
    assert!(4 * happened >= 3 * cases.len(), "{happened} of {} faults happened", cases.len());
    // Where a rank waits for one that waits for the lost one, both may run out of time in the same millisecond. Then the first names
    // the second, which it cannot know better: 1 of 56 on 2026-11-25, and 1 of 12 in another run. Of few cases one may be so.
    assert!(asked - right <= (asked / 20).max(1), "{right} of {asked}\n{told}");
}
