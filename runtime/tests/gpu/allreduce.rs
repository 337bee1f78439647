//! AllReduce on registered buffers, by the code that ships.

use crate::{Driver, LIMIT};
use program::testing::schedules::{Random, demand};
use runtime::{
    DType, GpuAllReduce, GpuBuffer, GpuDevice, GpuError, GpuLaunch, PeerAlgorithm, PeerAllReduce, PeerCall, Reference,
};
use schedule::{Collective, Demand, ReduceOp};
use std::sync::Arc;
use std::time::Duration;
use topology::Rank;

const PLAIN: PeerCall = PeerCall {
    algorithm: PeerAlgorithm::OneShot,
    ranks: 3,
    count: 45,
    dtype: DType::F32,
    op: ReduceOp::Sum,
    in_place: false,
    blocks: 2,
};

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

/// All ranks of an AllReduce, and who judges it.
struct Tried {
    ranks: GpuAllReduce,
    demand: Arc<Demand>,
    call: PeerCall,
}

impl Tried {
    fn new(gpu: &GpuDevice, call: PeerCall, threads: u32, poll_limit: u64) -> Result<Self, GpuError> {
        let ranks = GpuAllReduce::new(gpu, PeerAllReduce::new(call).unwrap(), (threads, poll_limit))?;
        Ok(Self { ranks, demand: demand(Collective::AllReduce, call.ranks, 1), call })
    }

    fn reference(&self, number: u64) -> Reference<'_> {
        Reference::new(&self.demand, Some(self.call.op), self.call.count as usize, self.call.dtype, number << 32)
    }

    /// Fills all buffers for a call.
    fn fill(&mut self, number: u64) {
        let bytes = self.call.count as usize * self.call.dtype.size();
        for rank in (0..self.call.ranks).map(Rank::from_index) {
            let mut input = vec![0; bytes];
            self.reference(number).fill(rank, &mut input, 0);
            self.ranks.write(rank, GpuBuffer::Output, &vec![0xA5; bytes]).unwrap();
            // In place it is the same memory.
            self.ranks.write(rank, GpuBuffer::Input, &input).unwrap();
        }
    }

    /// How many elements are wrong after a call.
    fn wrong(&self, number: u64) -> u64 {
        let of_rank = |rank| {
            let reference = self.reference(number);
            let wrong = reference.wrong(rank, &self.ranks.read(rank, GpuBuffer::Output).unwrap(), 0);
            let input = self.ranks.read(rank, GpuBuffer::Input).unwrap();
            wrong + if self.call.in_place { 0 } else { reference.changed(rank, &input) }
        };
        (0..self.call.ranks).map(Rank::from_index).map(of_rank).sum()
    }
}

fn right(gpu: &GpuDevice, call: PeerCall, threads: u32) {
    let mut tried = Tried::new(gpu, call, threads, u64::MAX).unwrap();
    for number in 0..3 {
        tried.fill(number);
        tried.ranks.call(LIMIT).unwrap_or_else(|error| panic!("call {number}, {call:?}: {error}"));
        assert_eq!(tried.wrong(number), 0, "call {number}, {call:?}");
    }
}

#[test]
fn every_type_and_number_of_ranks_is_right() {
    let driver = Driver::take();
    let (gpu, mut random) = (driver.gpu(), Random(5));
    for &algorithm in PeerAlgorithm::ALL {
        for (at, &dtype) in DType::ALL.iter().enumerate() {
            let (op, in_place) = (OPS[at % OPS.len()], at % 2 == 0);
            let (ranks, count) = (2 + at, 1 + random.below(500) as u64);
            let blocks = 1 + random.below(2) as u32;
            let call = PeerCall { algorithm, ranks, count, dtype, op, in_place, blocks };
            right(&gpu, call, 1 + random.below(8) as u32);
        }
    }
}

#[test]
fn a_graph_repeats_calls() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    for &algorithm in PeerAlgorithm::ALL {
        let mut tried = Tried::new(&gpu, PeerCall { algorithm, ..PLAIN }, 4, u64::MAX).unwrap();
        for (number, launch) in (0..).zip([GpuLaunch::Graph, GpuLaunch::Direct, GpuLaunch::Graph, GpuLaunch::Graph]) {
            tried.fill(number);
            // A call out of place leaves its input, so that several give the same.
            tried.ranks.repeat(1 + number as u32, launch, LIMIT).unwrap();
            assert_eq!(tried.wrong(number), 0, "{launch:?}, call {number}, {algorithm:?}");
        }
    }
}

#[test]
fn a_late_call_is_ended_and_the_next_one_works() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    let mut tried = Tried::new(&gpu, PLAIN, 4, u64::MAX).unwrap();
    // Nothing is done at once; should it be once, then not a hundred times.
    let late = (0..100).find_map(|number| {
        tried.fill(number);
        tried.ranks.call(Duration::ZERO).err()
    });
    assert_eq!(late, Some(GpuError::Late { limit: Duration::ZERO }));
    assert_eq!(tried.ranks.call(LIMIT), Err(GpuError::Broken));
    tried.ranks.reset().unwrap();
    for number in 0..2 {
        tried.fill(number);
        tried.ranks.call(LIMIT).unwrap();
        assert_eq!(tried.wrong(number), 0);
    }
}

#[test]
fn a_rank_that_others_wait_for_is_named() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    // Each wait may look for as long as it takes until a GPU compares the number of looks. Ranks do not end at the same time.
    let call = PeerCall { count: 1 << 13, blocks: 1, ..PLAIN };
    let mut tried = Tried::new(&gpu, call, 4, 1).unwrap();
    let error = (0..100).find_map(|number| {
        tried.fill(number);
        tried.ranks.call(LIMIT).err()
    });
    let Some(GpuError::PeerMissing(wait)) = error else { panic!("{error:?}") };
    assert!(wait.rank != wait.peer && wait.peer.index() < call.ranks, "{wait:?}");
    let said = GpuError::PeerMissing(wait).to_string();
    assert!(said.starts_with(&format!("rank {}: gave up waiting for rank {} at the ", wait.rank, wait.peer)), "{said}");
    // The next one works, if it may take its time.
    right(&gpu, call, 4);
}

#[test]
fn blocks_that_do_not_fit_at_the_same_time_are_refused() {
    let driver = Driver::take();
    let gpu = driver.gpu();
    let call = PeerCall { ranks: 2, blocks: 1024, ..PLAIN };
    match Tried::new(&gpu, call, 512, u64::MAX) {
        Err(GpuError::NotResident { blocks: 2048, threads: 512, room }) => assert!(room >= gpu.multiprocessors()),
        other => panic!("{:?}", other.map(|_| "it was accepted")),
    }
}

/// With a GPU: large buffers and blocks of all their threads.
#[test]
fn large_buffers_are_right_on_a_gpu() {
    let driver = Driver::take();
    if driver.fake.is_some() {
        // The PTX machine would need hours. `make gpu-test` runs it.
        return;
    }
    let gpu = driver.gpu();
    for &algorithm in PeerAlgorithm::ALL {
        for &dtype in DType::ALL {
            for in_place in [false, true] {
                let call = PeerCall { algorithm, ranks: 8, count: 1_000_003, dtype, in_place, blocks: 8, ..PLAIN };
                right(&gpu, call, 512);
            }
        }
    }
}
