//! AllReduce on registered buffers: one-shot and two-shot, by the kernels of `runtime/cuda/allreduce.cu`.
//!
//! The principal type is [`PeerAllReduce`]. Every rank has mapped the input and the output of all ranks, so there are no messages:
//! ranks read each other's inputs, and meet at the beginning and at the end of a call. As for [`KernelPlan`], no GPU is needed
//! for the tables.
//!
//! [`KernelPlan`]: super::kernel_plan::KernelPlan

use super::kernel_plan::{KernelNeeds, KernelTables, operation};
use super::tables::{Encode, longs, words};
use crate::dtype::DType;
use schedule::ReduceOp;
use topology::Rank;

/// `MOST_RANKS` of the kernel.
const MOST_RANKS: usize = 8;
/// The most blocks of a rank.
const MOST_BLOCKS: u32 = 1024;
const LONG: u64 = 8;
/// Vectors of the kernel, in bytes.
const VECTOR: u64 = 16;

/// How an AllReduce on registered buffers goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PeerAlgorithm {
    /// Every rank reads the inputs of all ranks.
    OneShot,
    /// Every rank reduces its slice, and puts it into the outputs of all ranks.
    TwoShot,
}

impl PeerAlgorithm {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::OneShot, Self::TwoShot];

    /// Its name among the functions of a tuning table.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneShot => "one-shot kernel",
            Self::TwoShot => "two-shot kernel",
        }
    }
}

/// What is reduced, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCall {
    /// One-shot or two-shot.
    pub algorithm: PeerAlgorithm,
    /// How many ranks, 2 to 8.
    pub ranks: usize,
    /// Elements of each rank.
    pub count: u64,
    /// Their type.
    pub dtype: DType,
    /// The reduction.
    pub op: ReduceOp,
    /// Whether input and output of a rank are the same memory; for all ranks alike.
    pub in_place: bool,
    /// How many blocks of the grid each rank has, 1 to 1024.
    pub blocks: u32,
}

/// Why the kernel cannot do a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerCallError {
    /// Too few or too many ranks or blocks.
    #[error(
        "an AllReduce on registered buffers has 2 to 8 ranks, each with 1 to 1024 blocks, and not {ranks} with {blocks}"
    )]
    Grid {
        /// How many ranks.
        ranks: usize,
        /// How many blocks each has.
        blocks: u32,
    },
    /// The buffers are larger than the address space.
    #[error("{elements} elements of {dtype} are more than a GPU can address")]
    TooLarge {
        /// Elements of each rank.
        elements: u64,
        /// Their type.
        dtype: DType,
    },
}

/// An AllReduce on registered buffers. All ranks add in the order of the ranks, so they have the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAllReduce(PeerCall);

/// Addresses as one rank sees them. Buffers may be aligned as an element; at multiples of 16 bytes the kernel moves more at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAddresses {
    /// The input of each rank; in place the same as `output`.
    pub input: Vec<u64>,
    /// The output of each rank.
    pub output: Vec<u64>,
    /// The shared memory of each rank, at a multiple of 16.
    pub shared: Vec<u64>,
    /// The rank's own memory, at a multiple of 16.
    pub private: u64,
    /// The word that ends all waits when it is not zero.
    pub abort: u64,
    /// How often a wait looks before it sets the abort word.
    pub poll_limit: u64,
}

/// A wait that has ended in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerWait {
    /// Who has waited.
    pub rank: Rank,
    /// For whom.
    pub peer: Rank,
    /// At the end of the call, and not at its beginning.
    pub is_at_end: bool,
}

impl PeerWait {
    /// What to say of several waits: for a rank that waits for nobody itself, if there is one.
    pub fn decisive(waits: &[Self]) -> Option<Self> {
        let waits_itself = |peer: Rank| waits.iter().any(|wait| wait.rank == peer);
        waits.iter().find(|wait| !waits_itself(wait.peer)).or(waits.first()).copied()
    }
}

/// Where the parts of a rank's own memory begin.
struct PeerLayout {
    reports: u64,
    scratch: u64,
    end: u64,
}

impl PeerAllReduce {
    /// # Errors
    /// [`PeerCallError`] if the kernel cannot do it.
    pub fn new(call: PeerCall) -> Result<Self, PeerCallError> {
        let PeerCall { ranks, blocks, count, dtype, .. } = call;
        if !(2..=MOST_RANKS).contains(&ranks) || !(1..=MOST_BLOCKS).contains(&blocks) {
            return Err(PeerCallError::Grid { ranks, blocks });
        }
        let bytes = count.checked_mul(dtype.size() as u64).filter(|bytes| *bytes <= isize::MAX as u64 / 2);
        bytes.ok_or(PeerCallError::TooLarge { elements: count, dtype })?;
        Ok(Self(call))
    }

    /// What was asked for.
    pub fn call(&self) -> &PeerCall {
        &self.0
    }

    /// The bytes of an input or an output.
    pub fn buffer_bytes(&self) -> u64 {
        self.0.count * self.0.dtype.size() as u64
    }

    /// The memory and the blocks of each rank. Shared memory is zero before the first call.
    pub fn needs(&self) -> KernelNeeds {
        let blocks = self.0.blocks as usize;
        KernelNeeds { shared_bytes: blocks as u64 * ROW, private_bytes: self.layout().end, blocks }
    }

    fn layout(&self) -> PeerLayout {
        let reports = (u64::from(self.0.blocks) * LONG).next_multiple_of(VECTOR);
        let scratch = reports + u64::from(self.0.blocks) * ROW;
        let keeps_aside = self.0.in_place && self.0.algorithm == PeerAlgorithm::OneShot;
        let end = if keeps_aside { scratch + self.buffer_bytes().max(VECTOR) } else { scratch };
        PeerLayout { reports, scratch, end }
    }

    /// The tables of a rank, for these addresses.
    pub fn tables(&self, rank: Rank, at: &PeerAddresses) -> KernelTables {
        let PeerCall { algorithm, ranks, count, op, blocks: parts, .. } = self.0;
        let layout = self.layout();
        let scratch = if layout.end > layout.scratch { at.private + layout.scratch } else { 0 };
        let buffers = at.input.iter().chain(&at.output).chain([&scratch]);
        let is_aligned = buffers.fold(0, |all, address| all | address).is_multiple_of(VECTOR);
        let is_two_shot = algorithm == PeerAlgorithm::TwoShot;
        let mut blocks = Vec::new();
        for part in 0..parts {
            let block = PeerBlock {
                peers: std::array::from_fn(|peer| match peer < ranks {
                    true => [at.input[peer], at.output[peer], at.shared[peer]],
                    false => [0; 3],
                }),
                scratch,
                epoch: at.private + u64::from(part) * LONG,
                abort: at.abort,
                reports: at.private + layout.reports + u64::from(part) * ROW,
                poll_limit: at.poll_limit,
                count,
                rank: rank.0,
                ranks: ranks as u32,
                part,
                share: if is_two_shot { rank.0 * parts + part } else { part },
                shares: if is_two_shot { ranks as u32 * parts } else { parts },
                operation: operation(Some(op)),
                divisor: if op == ReduceOp::Avg { ranks as u32 } else { 0 },
                is_aligned,
                is_two_shot,
            };
            block.encode(&mut blocks);
        }
        KernelTables { blocks, private: vec![0; layout.scratch as usize] }
    }

    /// For whom a rank has waited in vain, from the beginning of its own memory after a call.
    pub fn waits(&self, rank: Rank, private: &[u8]) -> Vec<PeerWait> {
        let layout = self.layout();
        let reports = private.get(layout.reports as usize..layout.scratch as usize).unwrap_or_default();
        let mut waits = Vec::new();
        for (at, report) in reports.chunks_exact(LONG as usize).enumerate() {
            let wait = |is_at_end| PeerWait { rank, peer: Rank::from_index(at % MOST_RANKS), is_at_end };
            match report {
                [0, ..] => {}
                [meeting, ..] => waits.push(wait(*meeting == AT_END)),
                [] => {}
            }
        }
        waits
    }
}

/// A word for each rank.
const ROW: u64 = MOST_RANKS as u64 * LONG;
/// `END` of the kernel.
const AT_END: u8 = 2;

/// The entry point for elements of a type.
pub fn allreduce_kernel_name(dtype: DType) -> String {
    format!("antiphon_allreduce_{}", dtype.as_str())
}

/// `Block` of `runtime/cuda/peers.cuh`.
struct PeerBlock {
    /// Input, output and flags of each rank.
    peers: [[u64; 3]; MOST_RANKS],
    scratch: u64,
    epoch: u64,
    abort: u64,
    reports: u64,
    poll_limit: u64,
    count: u64,
    rank: u32,
    ranks: u32,
    part: u32,
    share: u32,
    shares: u32,
    operation: u32,
    divisor: u32,
    is_aligned: bool,
    is_two_shot: bool,
}

impl Encode for PeerBlock {
    const BYTES: u64 = 280;

    fn encode(&self, out: &mut Vec<u8>) {
        self.peers.iter().for_each(|peer| longs(out, *peer));
        longs(out, [self.scratch, self.epoch, self.abort, self.reports, self.poll_limit, self.count]);
        words(out, [self.rank, self.ranks, self.part, self.share, self.shares]);
        words(out, [self.operation, self.divisor, self.is_aligned.into(), self.is_two_shot.into(), 0]);
    }
}
