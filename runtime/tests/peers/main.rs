//! Memory that processes map from each other, and AllReduce over it, by the code that ships: a process for each rank, each with a GPU.
//!
//! The driver is the fake one of `tests/cuda`, unless ANTIPHON_GPU=real asks for that of the computer (`make gpu-test`): some tests run with
//! both. Ranks are processes of this test, which tell each other things through files.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(unsafe_code, reason = "loads a library")]

mod gather;
mod rank;

use gather::{Job, PROCESS};
use rank::Process;
use runtime::{ALLREDUCE_PTX, DType, GpuDevice, PeerAlgorithm, PeerCall};
use schedule::ReduceOp;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Long enough for the slowest computer.
const LIMIT: Duration = Duration::from_secs(120);
/// For what never comes.
const SHORT: Duration = Duration::from_secs(4);

const PLAIN: PeerCall = PeerCall {
    algorithm: PeerAlgorithm::OneShot,
    ranks: 3,
    count: 45,
    dtype: DType::F32,
    op: ReduceOp::Sum,
    in_place: false,
    blocks: 2,
};

/// A rank. It is a test only so that it can be started.
#[test]
fn rank_process() {
    let Ok(text) = std::env::var(PROCESS) else { return };
    let mut process = Process::take(&text);
    let said = match process.words[0].as_str() {
        "shares" | "drops" | "again" => rank::shares(&mut process),
        "types" => rank::types(&mut process),
        "calls" => rank::calls(&mut process),
        "leaves" => rank::leaves(&mut process),
        "absent" => rank::absent(&mut process),
        "refused" => rank::refused(&mut process),
        other => panic!("{other}"),
    };
    drop(process);
    println!("\nsaid {said} held {}", rank::held());
}

fn job(ranks: usize, mode: &str, of_rank: &dyn Fn(usize) -> Vec<(&'static str, String)>) -> Vec<String> {
    Job { ranks, mode, of_rank }.run()
}

fn nothing(_: usize) -> Vec<(&'static str, String)> {
    Vec::new()
}

fn lacking(what: &'static str) -> impl Fn(usize) -> Vec<(&'static str, String)> {
    move |_| vec![("FAKE_CUDA_LACKS", what.to_owned())]
}

/// How two processes share memory with the driver that is asked for, or why they do not. The fake driver always lets them. On a computer
/// with one GPU they share that, which a driver may refuse; then nothing between processes can be tried.
fn sharing() -> &'static Result<String, String> {
    static SHARES: OnceLock<Result<String, String>> = OnceLock::new();
    SHARES.get_or_init(|| {
        if !rank::is_real() {
            return Ok("two processes, over the fake driver".to_owned());
        }
        let (gpus, said) = (GpuDevice::count().unwrap(), job(2, "shares", &nothing));
        let shares = said[0] == said[1] && ["Descriptors held 0", "Handles held 0"].contains(&said[0].as_str());
        let place = match gpus {
            1 => "two processes on one GPU, which shows no order of memory between GPUs",
            _ => "two processes, each with a GPU",
        };
        if shares { Ok(format!("{place}: {}", said[0])) } else { Err(format!("{place}, share no memory: {said:?}")) }
    })
}

/// With the driver that is asked for.
#[test]
fn two_processes_share_memory() {
    match sharing() {
        Ok(how) => println!("{how}"),
        Err(why) => return println!("skipped: {why}"),
    }
    assert!(job(2, "shares", &nothing).iter().all(|line| line.ends_with(" held 0")));
}

/// By the best way that all drivers have.
#[test]
fn ranks_share_memory_in_the_way_that_all_have() {
    assert_eq!(job(3, "shares", &nothing), vec!["Descriptors held 0"; 3]);
    assert_eq!(job(3, "shares", &lacking("descriptors")), vec!["Handles held 0"; 3]);
    let one_lacks = |rank| if rank == 1 { lacking("descriptors")(rank) } else { Vec::new() };
    assert_eq!(job(3, "shares", &one_lacks), vec!["Handles held 0"; 3]);
    let apart = |rank| lacking(if rank == 2 { "descriptors,ipc" } else { "descriptors" })(rank);
    let why = "the driver of rank 2 cannot share memory with other processes in the way that others can held 0";
    assert_eq!(job(3, "shares", &apart), vec![why; 3]);
    // A driver that has descriptors is taken to have handles too.
    let apart = |rank| lacking(if rank == 2 { "ipc" } else { "descriptors" })(rank);
    let said = job(3, "shares", &apart);
    assert!(said.iter().all(|line| line.starts_with("rank 2: making a handle of memory: ")), "{said:?}");
    // All processes on one GPU, as on a computer with a single one.
    let same = |_| vec![("FAKE_CUDA_GPU", "5".to_owned()), ("FAKE_CUDA_LACKS", "peers".to_owned())];
    assert_eq!(job(2, "shares", &same), vec!["Descriptors held 0"; 2]);
}

/// Nobody knows whether others have closed an allocation that is only dropped: it is kept, with its place. Descriptors need not be.
#[test]
fn memory_that_is_dropped_harms_nobody() {
    assert_eq!(job(3, "drops", &nothing), vec!["Descriptors held 0"; 3]);
    // The last one drops it when the others have left, and needs not keep it.
    let said = job(3, "drops", &lacking("descriptors"));
    assert_eq!(said[2], "Handles held 0", "{said:?}");
    assert!(said[..2].iter().all(|line| ["Handles held 0", "Handles held 2"].contains(&line.as_str())), "{said:?}");
    // Whoever shares memory again frees what it has kept, once the others have left.
    for way in ["", "descriptors"] {
        let said = job(3, "again", &lacking(way));
        assert!(said.iter().all(|line| line.ends_with("held 0")), "{way}: {said:?}");
    }
}

/// One rank alone does not hear the others when they have got handles of its memory: it keeps it.
#[test]
fn memory_whose_handles_are_out_is_kept() {
    for (way, kept) in [("descriptors", "held 2"), ("", "held 0")] {
        let said = job(3, "shares", &|rank| {
            let mut variables = lacking(way)(rank);
            variables.push(("PEER_LIMIT_MS", "5000".to_owned()));
            variables.extend((rank == 1).then(|| ("PEER_FAILS_AT", "1".to_owned())));
            variables
        });
        assert!(said[1].contains("did not meet for allocating memory") && said[1].ends_with(kept), "{said:?}");
        assert!([0, 2].into_iter().all(|rank| said[rank].contains("rank 1 did not come")), "{said:?}");
    }
}

/// What one rank cannot do, all ranks hear, and nothing stays mapped.
#[test]
fn what_fails_on_one_rank_fails_on_all() {
    let visible = |rank: usize| {
        let others: Vec<String> =
            (0..3).filter(|other| *other != rank).map(|other| (100 + other).to_string()).collect();
        let lacks = if rank == 1 { "peers" } else { "" };
        vec![("FAKE_CUDA_VISIBLE", others.join(",")), ("FAKE_CUDA_LACKS", lacks.to_owned())]
    };
    let why = "the GPU of rank 1 has no peer access to that of rank 0 held 0";
    assert_eq!(job(3, "shares", &visible), vec![why; 3]);
    for (way, fault, doing) in [
        ("", "import", "importing memory"),
        ("descriptors,", "import", "opening memory of another process"),
        ("", "access", "mapping memory"),
    ] {
        let of_rank = |rank| {
            let more = if rank == 1 { fault } else { "" };
            vec![("FAKE_CUDA_LACKS", format!("{way}{more}"))]
        };
        let said = job(3, "shares", &of_rank);
        assert!(said.iter().all(|line| *line == said[0] && line.ends_with("held 0")), "{said:?}");
        assert!(said[0].starts_with("rank 1: ") && said[0].contains(doing), "{said:?}");
    }
    let said = job(3, "refused counts", &nothing);
    assert_eq!(said, vec!["rank 1 asks for other memory, or for another call, than rank 0 held 0"; 3]);
    let said = job(2, "refused blocks", &nothing);
    assert!(said.iter().all(|line| line.starts_with("rank 0: the plan needs 1000 blocks")), "{said:?}");
}

/// A rank that leaves whenever they gather: the others have an error in time, and give back what they have.
#[test]
fn a_rank_that_leaves_while_ranks_gather_is_missed() {
    for way in ["", "descriptors"] {
        for round in 0..3 {
            let of_rank = |rank: usize| {
                let mut variables = vec![("PEER_LIMIT_MS", "5000".to_owned()), ("FAKE_CUDA_LACKS", way.to_owned())];
                variables.extend((rank == 1).then(|| ("PEER_LEAVES_AT", round.to_string())));
                variables
            };
            let begin = Instant::now();
            let said = job(3, "shares", &of_rank);
            assert!(begin.elapsed() < Duration::from_secs(60), "{said:?}");
            assert!(said[1].contains("86"), "{said:?}");
            for rank in [0, 2] {
                assert!(said[rank].contains("rank 1 did not come"), "round {round}: {said:?}");
                // An allocation that others may have open is kept, and so is its place.
                let kept = if way.is_empty() || round < 1 { "held 0" } else { "held 2" };
                assert!(said[rank].ends_with(kept), "round {round}: {said:?}");
            }
        }
    }
}

#[test]
fn every_type_and_number_of_ranks_is_right() {
    if let Err(why) = sharing() {
        return println!("skipped: {why}");
    }
    for (ranks, way) in [(2, ""), (3, "descriptors"), (4, ""), (5, "descriptors"), (6, ""), (7, ""), (8, "")] {
        assert_eq!(job(ranks, "types", &lacking(way)), vec!["wrong 0 held 0"; ranks], "{ranks} ranks {way}");
    }
}

#[test]
fn a_rank_that_ends_between_calls_is_named() {
    if let Err(why) = sharing() {
        return println!("skipped: {why}");
    }
    for ranks in [2, 4] {
        let begin = Instant::now();
        let said = job(ranks, "leaves", &nothing);
        assert!(begin.elapsed() < Duration::from_secs(60), "{said:?}");
        for (rank, line) in said.iter().enumerate().take(ranks - 1) {
            assert_eq!(*line, format!("rank {rank}: the process of rank {} is gone held 0", ranks - 1), "{said:?}");
        }
    }
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    if let Err(why) = sharing() {
        return println!("skipped: {why}");
    }
    for how in ["polls", "limit"] {
        let said = job(3, &format!("absent {how}"), &nothing);
        for (rank, line) in said.iter().enumerate().take(2) {
            let why = format!("rank {rank}: gave up waiting for rank 2 at the beginning of the call, wrong 0 held 0");
            assert_eq!(*line, why, "{how}: {said:?}");
        }
        assert_eq!(said[2], "absent, wrong 0 held 0", "{how}");
    }
}

/// The kernel for f32 without the waits of a meeting.
fn without_meeting(meeting: Option<usize>) -> String {
    let kernel = &ALLREDUCE_PTX[..ALLREDUCE_PTX.find("\n}\n").unwrap() + 3];
    let (mut text, mut number) = (String::new(), 0);
    for line in kernel.lines() {
        let is_wait = line.contains("ld.acquire.sys");
        let register = line.split_whitespace().find(|word| word.starts_with('%'));
        match register.filter(|_| is_wait && Some(number / 2) == meeting) {
            Some(register) => text.push_str(&format!("mov.b64 {register} -1;")),
            None => text.push_str(line),
        }
        number += usize::from(is_wait);
        text.push('\n');
    }
    assert_eq!(number, 4);
    text
}

/// Ranks whose GPUs are not equally fast, with calls in a row: no rank may be without either meeting, and with both all is right.
#[test]
fn neither_meeting_can_be_left_out_between_processes() {
    let folder = tempfile::tempdir().unwrap();
    for algorithm in 0..2 {
        for in_place in [false, true] {
            let mode = format!("calls {algorithm} {in_place}");
            for meeting in [None, Some(0), Some(1)] {
                let file = folder.path().join("kernel.ptx");
                std::fs::write(&file, without_meeting(meeting)).unwrap();
                let run = || {
                    job(3, &mode, &|rank| {
                        let mut variables = vec![("PEER_LIMIT_MS", "30000".to_owned())];
                        variables.extend((rank == 1).then(|| ("FAKE_CUDA_SLOW_MS", "3".to_owned())));
                        variables.push(("FAKE_CUDA_PTX", file.display().to_string()));
                        variables
                    })
                };
                // All say how many are wrong, and nothing else.
                let is_right = |said: &[String]| {
                    let wrong: Option<Vec<u64>> = said.iter().map(|line| wrong_of(line)).collect();
                    wrong
                        .unwrap_or_else(|| panic!("{mode}, meeting {meeting:?}: {said:?}"))
                        .iter()
                        .all(|wrong| *wrong == 0)
                };
                // On a busy computer fast ranks may be late, too, so that nothing is wrong although a meeting is missing.
                let attempts = if meeting.is_none() { 1 } else { 8 };
                let found = (0..attempts).any(|_| !is_right(&run()));
                assert_eq!(found, meeting.is_some(), "{mode}, meeting {meeting:?}");
            }
        }
    }
}

/// How many elements were wrong, of what a rank says that has no other fault.
fn wrong_of(line: &str) -> Option<u64> {
    line.strip_prefix("wrong ")?.strip_suffix(" held 0")?.parse().ok()
}
