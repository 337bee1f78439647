//! What a rank does, in a process of its own.

use crate::gather::FileGather;
use crate::{LIMIT, PLAIN, SHORT};
use libloading::Library;
use program::testing::schedules::{Random, demand};
use runtime::{
    DType, GpuBuffer, GpuDevice, GpuError, GpuLaunch, GpuRankAllReduce, PeerAlgorithm, PeerAllReduce, PeerCall,
    PeerGather, PeerMemory, PeerTerms, Reference,
};
use schedule::{Collective, Demand, ReduceOp};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use topology::Rank;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
const THREADS: u32 = 4;

/// Whether the driver is that of the computer.
pub(crate) fn is_real() -> bool {
    std::env::var("ANTIPHON_GPU").is_ok_and(|driver| driver == "real")
}

/// The fake driver, under the name by which cudarc looks for it. None: it is that of the computer.
fn driver() -> Option<&'static Library> {
    static FAKE: OnceLock<Option<Library>> = OnceLock::new();
    let load = || {
        let library = std::env::current_exe().unwrap().with_file_name("libfake_cuda.so");
        // SAFETY: the library has no constructors.
        unsafe { Library::new(&library) }.unwrap_or_else(|error| panic!("{}: {error}", library.display()))
    };
    FAKE.get_or_init(|| (!is_real()).then(load)).as_ref()
}

/// Ranks take the GPUs of the computer in turn; with the fake driver each has one of its own.
fn gpu(rank: usize) -> GpuDevice {
    let count = if driver().is_some() { 1 } else { GpuDevice::count().unwrap() };
    GpuDevice::open(rank % count.max(1)).unwrap()
}

/// What was not given back, if the driver has no fault. Only the fake one tells.
pub(crate) fn held() -> usize {
    let Some(driver) = driver() else { return 0 };
    // SAFETY: functions without arguments that return a number.
    unsafe {
        assert_eq!(driver.get::<extern "C" fn() -> i32>(b"fakeCudaFault\0").unwrap()(), 0, "the driver has a fault");
        driver.get::<extern "C" fn() -> usize>(b"fakeCudaHeld\0").unwrap()()
    }
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
pub(crate) struct Process {
    gpu: GpuDevice,
    gather: FileGather,
    pub(crate) words: Vec<String>,
}

impl Process {
    pub(crate) fn take(text: &str) -> Self {
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
            fails_at: named("PEER_FAILS_AT").map(|round| round as usize),
        };
        Self { gpu: gpu(rank), words: words.collect(), gather }
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

/// Memory alone: every rank writes to every other one through its own addresses.
pub(crate) fn shares(process: &mut Process) -> String {
    let terms = PeerTerms { bytes: 1000, number: 7, ready: Ok(()), machine: None, limit: SHORT };
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
            let (way, is_last) = (memory.way(), process.rank() + 1 == others.len());
            // Whoever does not wait for the last rank frees what it has mapped.
            let late = Duration::from_millis(if is_last { 200 } else { 0 });
            std::thread::sleep(late);
            if process.words[0] == "shares" {
                memory.close(&mut process.gather).unwrap();
            } else {
                drop(memory);
            }
            if process.words[0] == "again" {
                // All have dropped theirs.
                process.gather.gather(&[]).unwrap();
                let again = PeerMemory::new(&process.gpu, &mut process.gather, &terms).unwrap();
                again.close(&mut process.gather).unwrap();
            }
            format!("{way:?}")
        }
    }
}

pub(crate) fn types(process: &mut Process) -> String {
    let ranks = process.gather.ranks;
    let mut random = Random(ranks as u64);
    let mut wrong = 0;
    for &algorithm in PeerAlgorithm::ALL {
        // Two ranks try all types, many ranks share two cores.
        for &dtype in
            DType::ALL.iter().skip(if ranks > 3 { ranks % 4 } else { 0 }).step_by(if ranks > 3 { 4 } else { 1 })
        {
            let (op, in_place) = (OPS[random.below(OPS.len())], random.below(2) == 0);
            let (count, blocks) = (random.below(200) as u64, 1 + random.below(3) as u32);
            wrong += process.right(PeerCall { algorithm, ranks, count, dtype, op, in_place, blocks }, 3);
        }
    }
    format!("wrong {wrong}")
}

pub(crate) fn calls(process: &mut Process) -> String {
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
pub(crate) fn leaves(process: &mut Process) -> String {
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
pub(crate) fn absent(process: &mut Process) -> String {
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
pub(crate) fn refused(process: &mut Process) -> String {
    let count = if process.words[1] == "counts" && process.rank() == 1 { 7 } else { 8 };
    let blocks = if process.words[1] == "blocks" { 1000 } else { 1 };
    let call = PeerCall { ranks: process.gather.ranks, count, blocks, ..PLAIN };
    process.made(call, u64::MAX).map_or_else(|error| error, |_| "made".to_owned())
}
