//! Memory that processes map from each other, and AllReduce over it, by the code that ships: a process for each rank, each with a GPU.
//!
//! The driver is the fake one of `tests/cuda`. Ranks are processes of this test, which tell each other things through files.
#![allow(clippy::unwrap_used, missing_docs)]
#![expect(unsafe_code, reason = "loads a library")]

mod gather;

use gather::{FileGather, Job, PROCESS};
use libloading::Library;
use program::testing::schedules::{Random, demand};
use runtime::{
    ALLREDUCE_PTX, DType, GpuBuffer, GpuDevice, GpuError, GpuLaunch, GpuRankAllReduce, PeerAlgorithm, PeerAllReduce,
    PeerCall, PeerGather, PeerMemory, PeerTerms, Reference,
};
use schedule::{Collective, Demand, ReduceOp};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use topology::Rank;

/// Long enough for the slowest computer.
const LIMIT: Duration = Duration::from_secs(120);
/// For what never comes.
const SHORT: Duration = Duration::from_secs(4);
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
const THREADS: u32 = 4;

const PLAIN: PeerCall = PeerCall {
    algorithm: PeerAlgorithm::OneShot,
    ranks: 3,
    count: 45,
    dtype: DType::F32,
    op: ReduceOp::Sum,
    in_place: false,
    blocks: 2,
};

/// The fake driver, under the name by which cudarc looks for it.
fn driver() -> &'static Library {
    static FAKE: OnceLock<Library> = OnceLock::new();
    FAKE.get_or_init(|| {
        let library = std::env::current_exe().unwrap().with_file_name("libfake_cuda.so");
        // SAFETY: the library has no constructors.
        unsafe { Library::new(&library) }.unwrap_or_else(|error| panic!("{}: {error}", library.display()))
    })
}

/// What was not given back.
fn held() -> usize {
    // SAFETY: a function without arguments that returns a number.
    unsafe { driver().get::<extern "C" fn() -> usize>(b"fakeCudaHeld\0").unwrap()() }
}

/// This rank of an AllReduce, and who judges it.
struct Tried {
    rank: GpuRankAllReduce,
    demand: Arc<Demand>,
    call: PeerCall,
}

impl Tried {
    fn reference(&self, number: u64) -> Reference<'_> {
        Reference::new(&self.demand, Some(self.call.op), self.call.count as usize, self.call.dtype, number << 32)
    }

    fn fill(&mut self, number: u64) {
        let mut input = vec![0; self.call.count as usize * self.call.dtype.size()];
        self.reference(number).fill(self.rank.rank(), &mut input, 0);
        if !self.call.in_place {
            self.rank.write(GpuBuffer::Output, &vec![0xA5; input.len()]).unwrap();
        }
        self.rank.write(GpuBuffer::Input, &input).unwrap();
    }

    fn wrong(&self, number: u64) -> u64 {
        let (reference, rank) = (self.reference(number), self.rank.rank());
        let wrong = reference.wrong(rank, &self.rank.read(GpuBuffer::Output).unwrap(), 0);
        let input = self.rank.read(GpuBuffer::Input).unwrap();
        wrong + if self.call.in_place { 0 } else { reference.changed(rank, &input) }
    }
}

/// A process that is a rank.
struct Process {
    gpu: GpuDevice,
    gather: FileGather,
    words: Vec<String>,
}

impl Process {
    fn take(text: &str) -> Self {
        driver();
        let mut words = text.split(' ').map(str::to_owned);
        let mut next = || words.next().unwrap();
        let (rank, ranks, folder) = (next().parse().unwrap(), next().parse().unwrap(), next().into());
        let named = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let gather = FileGather {
            folder,
            rank: Rank::from_index(rank),
            ranks,
            limit: named("PEER_LIMIT_MS").map_or(LIMIT, Duration::from_millis),
            round: 0,
            leaves_at: named("PEER_LEAVES_AT").map(|round| round as usize),
        };
        Self { gpu: GpuDevice::open(0).unwrap(), words: words.collect(), gather }
    }

    fn rank(&self) -> usize {
        self.gather.rank.index()
    }

    fn made(&mut self, call: PeerCall, poll_limit: u64) -> Result<Tried, String> {
        let plan = PeerAllReduce::new(call).unwrap();
        let rank = GpuRankAllReduce::new(&self.gpu, plan, &mut self.gather, (THREADS, poll_limit), SHORT);
        let demand = demand(Collective::AllReduce, call.ranks, 1);
        Ok(Tried { rank: rank.map_err(|error| error.to_string())?, demand, call })
    }

    /// Several calls in a row, each with other inputs, of which some are graphs; how many elements are wrong.
    fn right(&mut self, call: PeerCall, calls: u64) -> u64 {
        let mut tried = self.made(call, u64::MAX).unwrap();
        let mut wrong = 0;
        for number in 0..calls {
            tried.fill(number);
            let launch = if number % 3 == 1 { GpuLaunch::Graph } else { GpuLaunch::Direct };
            tried.rank.repeat(1, launch, LIMIT).unwrap_or_else(|error| panic!("call {number}, {call:?}: {error}"));
            wrong += tried.wrong(number);
        }
        if !call.in_place {
            // A call out of place leaves its input, so that several give the same.
            tried.rank.repeat(3, GpuLaunch::Graph, LIMIT).unwrap();
            wrong += tried.wrong(calls - 1);
        }
        tried.rank.close(&mut self.gather).unwrap();
        wrong
    }
}

/// A rank. It is a test only so that it can be started.
#[test]
fn rank_process() {
    let Ok(text) = std::env::var(PROCESS) else { return };
    let mut process = Process::take(&text);
    let said = match process.words[0].as_str() {
        "shares" => shares(&mut process),
        "types" => types(&mut process),
        "calls" => calls(&mut process),
        "leaves" => leaves(&mut process),
        "absent" => absent(&mut process),
        "refused" => refused(&mut process),
        other => panic!("{other}"),
    };
    drop(process);
    println!("\nsaid {said} held {}", held());
}

/// Memory alone: every rank writes to every other one through its own addresses.
fn shares(process: &mut Process) -> String {
    let terms = PeerTerms { bytes: 1000, number: 7, ready: Ok(()), limit: SHORT };
    match PeerMemory::new(&process.gpu, &mut process.gather, &terms) {
        Err(error) => error.to_string(),
        Ok(memory) => {
            let own = memory.address(memory.rank());
            let others = memory.addresses();
            // The addresses of all ranks, as all see them, differ.
            let words: Vec<u8> = others.iter().flat_map(|address| address.to_le_bytes()).collect();
            let all: Vec<u8> = process.gather.gather(&words).unwrap().concat();
            let mut known: Vec<&[u8]> = all.chunks(8).collect();
            known.sort_unstable();
            known.dedup();
            assert!(own != 0 && known.len() == others.len() * others.len(), "{others:x?}");
            let way = memory.way();
            memory.close(&mut process.gather).unwrap();
            format!("{way:?}")
        }
    }
}

fn types(process: &mut Process) -> String {
    let ranks = process.gather.ranks;
    let mut random = Random(ranks as u64);
    let mut wrong = 0;
    for &algorithm in PeerAlgorithm::ALL {
        // Two ranks try all types, many ranks share two cores.
        for &dtype in DType::ALL.iter().skip(if ranks > 3 { ranks % 4 } else { 0 }).step_by(if ranks > 3 { 4 } else { 1 }) {
            let (op, in_place) = (OPS[random.below(OPS.len())], random.below(2) == 0);
            let (count, blocks) = (random.below(200) as u64, 1 + random.below(3) as u32);
            wrong += process.right(PeerCall { algorithm, ranks, count, dtype, op, in_place, blocks }, 3);
        }
    }
    format!("wrong {wrong}")
}

fn calls(process: &mut Process) -> String {
    let call = PeerCall {
        ranks: process.gather.ranks,
        algorithm: PeerAlgorithm::ALL[process.words[1].parse::<usize>().unwrap()],
        in_place: process.words[2] == "true",
        count: 300,
        ..PLAIN
    };
    let mut tried = process.made(call, u64::MAX).unwrap();
    let mut wrong = 0;
    for number in 0..4 {
        tried.fill(number);
        match tried.rank.call(LIMIT) {
            Ok(()) => wrong += tried.wrong(number),
            Err(error) => return error.to_string(),
        }
    }
    let closed = tried.rank.close(&mut process.gather);
    closed.map_or_else(|error| error.to_string(), |()| format!("wrong {wrong}"))
}

/// The last rank leaves without a word before its second call.
fn leaves(process: &mut Process) -> String {
    let call = PeerCall { ranks: process.gather.ranks, ..PLAIN };
    let mut tried = process.made(call, u64::MAX).unwrap();
    for number in 0..2 {
        if number == 1 && process.rank() + 1 == call.ranks {
            std::process::exit(86);
        }
        tried.fill(number);
        if let Err(error) = tried.rank.call(LIMIT) {
            return error.to_string();
        }
    }
    "nothing happened".to_owned()
}

/// The last rank does not call at first. The others say so, and the next call works.
fn absent(process: &mut Process) -> String {
    let call = PeerCall { ranks: process.gather.ranks, blocks: 1, ..PLAIN };
    let by_polls = process.words[1] == "polls";
    let mut tried = process.made(call, if by_polls { 1_000_000 } else { u64::MAX }).unwrap();
    tried.fill(0);
    process.gather.gather(&[]).unwrap();
    let is_absent = process.rank() + 1 == call.ranks;
    let limit = if by_polls { LIMIT } else { SHORT };
    let said = if is_absent { Ok(()) } else { tried.rank.call(limit) };
    if !is_absent {
        assert_eq!(tried.rank.call(limit), Err(GpuError::Broken));
    }
    // With a limit that a busy computer does not reach.
    tried.rank.reset(&process.gpu, &mut process.gather).unwrap();
    let mut wrong = 0;
    if !by_polls {
        tried.fill(1);
        tried.rank.call(LIMIT).unwrap();
        wrong = tried.wrong(1);
    }
    tried.rank.close(&mut process.gather).unwrap();
    format!("{}, wrong {wrong}", said.map_or_else(|error| error.to_string(), |()| "absent".to_owned()))
}

/// A call that one rank cannot do.
fn refused(process: &mut Process) -> String {
    let count = if process.words[1] == "counts" && process.rank() == 1 { 7 } else { 8 };
    let blocks = if process.words[1] == "blocks" { 1000 } else { 1 };
    let call = PeerCall { ranks: process.gather.ranks, count, blocks, ..PLAIN };
    process.made(call, u64::MAX).map_or_else(|error| error, |_| "made".to_owned())
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

/// What one rank cannot do, all ranks hear, and nothing stays mapped.
#[test]
fn what_fails_on_one_rank_fails_on_all() {
    let visible = |rank: usize| {
        let others: Vec<String> = (0..3).filter(|other| *other != rank).map(|other| (100 + other).to_string()).collect();
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
                let mut variables = vec![("PEER_LIMIT_MS", "2000".to_owned()), ("FAKE_CUDA_LACKS", way.to_owned())];
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
                let kept = if way.is_empty() || round < 2 { "held 0" } else { "held 2" };
                assert!(said[rank].ends_with(kept), "round {round}: {said:?}");
            }
        }
    }
}

#[test]
fn every_type_and_number_of_ranks_is_right() {
    for (ranks, way) in [(2, ""), (3, "descriptors"), (4, ""), (5, "descriptors"), (6, ""), (7, ""), (8, "")] {
        assert_eq!(job(ranks, "types", &lacking(way)), vec!["wrong 0 held 0"; ranks], "{ranks} ranks {way}");
    }
}

#[test]
fn a_rank_that_ends_between_calls_is_named() {
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
fn without_meeting(meeting: usize) -> String {
    let kernel = &ALLREDUCE_PTX[..ALLREDUCE_PTX.find("\n}\n").unwrap() + 3];
    let (mut text, mut number) = (String::new(), 0);
    for line in kernel.lines() {
        let is_wait = line.contains("ld.acquire.sys");
        let register = line.split_whitespace().find(|word| word.starts_with('%'));
        match register.filter(|_| is_wait && number / 2 == meeting) {
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
            let run = |kernel: Option<usize>| {
                let file = folder.path().join("kernel.ptx");
                kernel.into_iter().for_each(|meeting| std::fs::write(&file, without_meeting(meeting)).unwrap());
                job(3, &mode, &|rank| {
                    let mut variables = vec![("PEER_LIMIT_MS", "10000".to_owned())];
                    variables.extend((rank == 1).then(|| ("FAKE_CUDA_SLOW_MS", "3".to_owned())));
                    variables.extend(kernel.map(|_| ("FAKE_CUDA_PTX", file.display().to_string())));
                    variables
                })
            };
            assert_eq!(run(None), vec!["wrong 0 held 0"; 3], "{mode}");
            for meeting in 0..2 {
                let said = run(Some(meeting));
                assert!(said.iter().any(|line| line != "wrong 0 held 0"), "{mode}, meeting {meeting}: {said:?}");
            }
        }
    }
}
