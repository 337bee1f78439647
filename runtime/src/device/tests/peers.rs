//! AllReduce on registered buffers on the PTX machine: every rank is a device of its own, whose calls follow each other in a stream.

use super::arithmetic::elements;
use crate::device::ALLREDUCE_PTX;
use crate::device::peers::{
    PeerAddresses, PeerAlgorithm, PeerAllReduce, PeerCall, PeerCallError, PeerWait, allreduce_kernel_name,
};
use crate::dtype::DType;
use program::testing::schedules::Random;
use ptx::{Fault, Launch, Machine, Module};
use schedule::ReduceOp;
use std::sync::LazyLock;
use topology::Rank;

/// The kernels as they ship.
pub(super) static MODULE: LazyLock<Module> = LazyLock::new(|| Module::parse(ALLREDUCE_PTX).unwrap());

/// What a rank does between two calls: each block carries out two copies, of which the table says destination, source and bytes.
static COPIES: LazyLock<Module> = LazyLock::new(|| {
    let text = "\
.visible .entry copy(
.param .u64 table
)
{
ld.param.u64 %rd1, [table];
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %rd2, %r1, 48;
add.s64 %rd1, %rd1, %rd2;
mov.u32 %r2, 0;
$copy:
ld.global.u64 %rd3, [%rd1];
ld.global.u64 %rd4, [%rd1+8];
ld.global.u64 %rd5, [%rd1+16];
mov.u32 %r3, %tid.x;
cvt.u64.u32 %rd6, %r3;
$byte:
setp.ge.u64 %p1, %rd6, %rd5;
@%p1 bra $next;
add.s64 %rd7, %rd4, %rd6;
ld.global.u8 %r4, [%rd7];
add.s64 %rd8, %rd3, %rd6;
st.global.u8 [%rd8], %r4;
mov.u32 %r5, %ntid.x;
cvt.u64.u32 %rd9, %r5;
add.s64 %rd6, %rd6, %rd9;
bra $byte;
$next:
add.s64 %rd1, %rd1, 24;
add.s32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 2;
@%p2 bra $copy;
ret;
}
";
    Module::parse(text).unwrap()
});

/// How a call is repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) call: PeerCall,
    pub(super) threads: u32,
    pub(super) seed: u64,
    /// How many calls follow each other, each with other inputs.
    pub(super) calls: usize,
    pub(super) poll_limit: u64,
}

impl Terms {
    pub(super) const PLAIN: Self = Self {
        call: PeerCall {
            algorithm: PeerAlgorithm::OneShot,
            ranks: 3,
            count: 45,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            in_place: false,
            blocks: 2,
        },
        threads: 4,
        seed: 1,
        calls: 3,
        poll_limit: u64::MAX,
    };
}

/// What the calls came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Right,
    /// Rank and call.
    Wrong(usize, usize),
    Fault(Fault),
}

struct PeerMemory {
    input: u64,
    output: u64,
    private: u64,
    abort: u64,
    /// The inputs of all calls, and then their results.
    calls: u64,
}

struct PeerJob {
    machine: Machine,
    plan: PeerAllReduce,
    terms: Terms,
    ranks: Vec<PeerMemory>,
    devices: Vec<u32>,
    grid: u64,
    /// The inputs of each rank, for each call.
    inputs: Vec<Vec<Vec<u8>>>,
}

impl PeerJob {
    /// Allocates and fills all memory. `change` may make what a rank is told wrong.
    fn new(terms: Terms, change: impl Fn(Rank, &mut PeerAddresses, &mut PeerCall)) -> Self {
        let call = terms.call;
        let plan = PeerAllReduce::new(call).unwrap();
        let (mut machine, mut random) = (Machine::new(), Random(terms.seed));
        let (needs, bytes) = (plan.needs(), plan.buffer_bytes() as usize);
        let mut memory = |bytes: usize, align: u64| machine.allocate(bytes.max(1), align);
        // Buffers of callers are aligned as their elements are, or better.
        let size = call.dtype.size() as u64;
        let align = if random.below(3) == 0 { size } else { 16 };
        let shared: Vec<u64> = (0..call.ranks).map(|_| memory(needs.shared_bytes as usize, 128)).collect();
        let of_rank = |_| {
            let output = memory(bytes, align);
            let input = if call.in_place { output } else { memory(bytes, align) };
            let (private, abort) = (memory(needs.private_bytes as usize, 16), memory(4, 4));
            PeerMemory { input, output, private, abort, calls: memory(2 * bytes * terms.calls, 16) }
        };
        let ranks: Vec<PeerMemory> = (0..call.ranks).map(of_rank).collect();
        let (mut blocks, mut devices, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        for (index, memory) in ranks.iter().enumerate() {
            let mut at = PeerAddresses {
                input: ranks.iter().map(|rank| rank.input).collect(),
                output: ranks.iter().map(|rank| rank.output).collect(),
                shared: shared.clone(),
                private: memory.private,
                abort: memory.abort,
                poll_limit: terms.poll_limit,
            };
            let (rank, mut told) = (Rank::from_index(index), call);
            change(rank, &mut at, &mut told);
            let tables = PeerAllReduce::new(told).unwrap().tables(rank, &at);
            machine.write(memory.private, &tables.private).unwrap();
            blocks.extend(tables.blocks);
            devices.extend(vec![index as u32; needs.blocks]);
            let of_calls = (0..terms.calls).map(|_| elements(call.dtype, &mut random, call.count as usize));
            let of_calls: Vec<Vec<u8>> = of_calls.collect();
            machine.write(memory.calls, &of_calls.concat()).unwrap();
            inputs.push(of_calls);
        }
        let grid = machine.allocate(blocks.len(), 16);
        machine.write(grid, &blocks).unwrap();
        Self { machine, plan, terms, ranks, devices, grid, inputs }
    }

    /// The table of the copies before call `next`: the result of the call before it, and its input.
    fn copies(&mut self, next: usize) -> u64 {
        let (bytes, calls) = (self.plan.buffer_bytes(), self.terms.calls);
        let mut table: Vec<u8> = Vec::new();
        for memory in &self.ranks {
            let place = |at: usize| memory.calls + bytes * at as u64;
            let result = if next > 0 { [place(calls + next - 1), memory.output, bytes] } else { [0; 3] };
            let input = if next < calls { [memory.input, place(next), bytes] } else { [0; 3] };
            // The first block of a rank does it.
            let mut words = [result, input].concat();
            words.resize(6 * self.terms.call.blocks as usize, 0);
            table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let at = self.machine.allocate(table.len(), 16);
        self.machine.write(at, &table).unwrap();
        at
    }

    fn run(&mut self, module: &Module) -> Result<(), Fault> {
        let tables: Vec<[u64; 1]> = (0..=self.terms.calls).map(|next| [self.copies(next)]).collect();
        let (kernel, grid) = (allreduce_kernel_name(self.terms.call.dtype), [self.grid]);
        let Terms { threads, seed, .. } = self.terms;
        let launch = Launch { kernel: "copy", devices: &self.devices, threads, parameters: &[], seed };
        let mut launches = Vec::new();
        for (at, table) in tables.iter().enumerate() {
            launches.push((&*COPIES, Launch { parameters: table, ..launch.clone() }));
            if at < self.terms.calls {
                launches.push((module, Launch { kernel: &kernel, parameters: &grid, ..launch.clone() }));
            }
        }
        self.machine.launch_in_order(&launches).map(drop)
    }

    /// The reduction of all inputs of a call, one rank after the other.
    fn expected(&self, call: usize) -> Vec<u8> {
        let PeerCall { dtype, op, ranks, .. } = self.terms.call;
        let mut sum = self.inputs[0][call].clone();
        for input in &self.inputs[1..] {
            let before = sum.clone();
            (dtype.kernel(op).combine)(&mut sum, &before, &input[call]);
        }
        if op == ReduceOp::Avg {
            dtype.divide(&mut sum, ranks as u64);
        }
        sum
    }

    fn outcome(&mut self, module: &Module) -> Outcome {
        if let Err(fault) = self.run(module) {
            return Outcome::Fault(fault);
        }
        let bytes = self.plan.buffer_bytes() as usize;
        for call in 0..self.terms.calls {
            let expected = self.expected(call);
            for (rank, memory) in self.ranks.iter().enumerate() {
                let place = memory.calls + (bytes * (self.terms.calls + call)) as u64;
                if self.machine.read(place, bytes).unwrap() != expected {
                    return Outcome::Wrong(rank, call);
                }
                let input = self.machine.read(memory.input, bytes).unwrap();
                if !self.terms.call.in_place && Some(&input) != self.inputs[rank].last() {
                    return Outcome::Wrong(rank, call);
                }
            }
        }
        Outcome::Right
    }
}

/// Runs calls as `terms` say.
pub(super) fn run(terms: Terms) -> Outcome {
    run_changed(terms, &MODULE, |_, _, _| {})
}

/// The same with another kernel, or other tables.
pub(super) fn run_changed(
    terms: Terms,
    module: &Module,
    change: impl Fn(Rank, &mut PeerAddresses, &mut PeerCall),
) -> Outcome {
    PeerJob::new(terms, change).outcome(module)
}

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

#[test]
fn every_type_with_every_reduction() {
    for &algorithm in PeerAlgorithm::ALL {
        for &dtype in DType::ALL {
            for (seed, op) in (0..).zip(OPS) {
                for in_place in [false, true] {
                    let call = PeerCall { algorithm, dtype, op, in_place, count: 131, ..Terms::PLAIN.call };
                    let terms = Terms { call, seed, calls: 2, ..Terms::PLAIN };
                    assert_eq!(run(terms), Outcome::Right, "{terms:?}");
                }
            }
        }
    }
}

#[test]
fn two_to_eight_ranks_and_counts_that_nothing_divides() {
    let mut random = Random(4);
    for ranks in 2..=8 {
        for count in [0, 1, 3, 17, 64, 97, 250] {
            for in_place in [false, true] {
                for &algorithm in PeerAlgorithm::ALL {
                    let (dtype, op) = (DType::ALL[random.below(DType::ALL.len())], OPS[random.below(OPS.len())]);
                    let blocks = 1 + random.below(3) as u32;
                    let call = PeerCall { algorithm, ranks, count, dtype, op, in_place, blocks };
                    // Also fewer threads than peers.
                    let (threads, seed) = (1 + random.below(9) as u32, random.draw());
                    let terms = Terms { call, threads, seed, calls: 2, ..Terms::PLAIN };
                    assert_eq!(run(terms), Outcome::Right, "{terms:?}");
                }
            }
        }
    }
}

#[test]
fn calls_follow_each_other_in_many_interleavings() {
    for seed in 0..60 {
        for &algorithm in PeerAlgorithm::ALL {
            for in_place in [false, true] {
                let call = PeerCall { algorithm, in_place, ranks: 2 + seed as usize % 3, ..Terms::PLAIN.call };
                let terms = Terms { call, seed, calls: 4, threads: 3, ..Terms::PLAIN };
                assert_eq!(run(terms), Outcome::Right, "{terms:?}");
            }
        }
    }
}

/// A rank that never comes: the others give up after so many polls, and say for whom they have waited.
#[test]
fn ranks_that_never_come_are_named() {
    for missing in 0..4 {
        for &algorithm in PeerAlgorithm::ALL {
            let call = PeerCall { algorithm, ranks: 4, ..Terms::PLAIN.call };
            let terms = Terms { call, calls: 1, poll_limit: 2000, ..Terms::PLAIN };
            let mut job = PeerJob::new(terms, |_, _, _| {});
            // It has been told to stop before it begins.
            let aborted = job.ranks[missing].abort;
            job.machine.write(aborted, &1u32.to_le_bytes()).unwrap();
            job.run(&MODULE).unwrap();
            let mut waits = Vec::new();
            for (index, memory) in job.ranks.iter().enumerate() {
                let private = job.machine.read(memory.private, job.plan.needs().private_bytes as usize).unwrap();
                waits.extend(job.plan.waits(Rank::from_index(index), &private));
                assert_eq!(job.machine.read(memory.abort, 4).unwrap(), 1u32.to_le_bytes(), "rank {index}");
            }
            // Every block of every other rank.
            assert_eq!(waits.len(), 3 * 2, "{waits:?}");
            let peer = Rank::from_index(missing);
            assert!(waits.iter().all(|wait| wait.peer == peer && wait.rank != peer && !wait.is_at_end), "{waits:?}");
            assert_eq!(PeerWait::decisive(&waits), waits.first().copied());
        }
    }
}

#[test]
fn who_waits_for_nobody_is_to_blame() {
    let wait = |rank, peer, is_at_end| PeerWait { rank: Rank(rank), peer: Rank(peer), is_at_end };
    let waits = [wait(0, 1, true), wait(1, 2, false), wait(0, 2, false)];
    assert_eq!(PeerWait::decisive(&waits), Some(waits[1]));
    let each_other = [wait(0, 1, true), wait(1, 0, true)];
    assert_eq!(PeerWait::decisive(&each_other), Some(each_other[0]));
    assert_eq!(PeerWait::decisive(&[]), None);
}

#[test]
fn what_the_kernel_cannot_do_is_refused() {
    let call = Terms::PLAIN.call;
    for (ranks, blocks) in [(1, 1), (9, 1), (2, 0), (2, 1025)] {
        let refused = PeerAllReduce::new(PeerCall { ranks, blocks, ..call });
        assert_eq!(refused, Err(PeerCallError::Grid { ranks, blocks }));
    }
    let elements = u64::MAX / 4;
    let refused = PeerAllReduce::new(PeerCall { count: elements, ..call });
    assert_eq!(refused, Err(PeerCallError::TooLarge { elements, dtype: DType::F32 }));
}
