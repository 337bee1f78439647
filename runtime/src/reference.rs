//! What a collective must compute, from its definition alone.
//!
//! The principal type is [`Reference`]. It never looks at a program: element i of a rank's output is written down
//! from the definition of the collective (nccl-tests' conventions [1]), so it can judge any plan. Inputs are small
//! integers that differ by rank and element and are exact in every type, so any order of reduction gives the same
//! bytes, and one wrong element is found.
//!
//! [1] https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

use crate::dtype::DType;
use schedule::{Collective, Demand, ReduceOp, Request};
use topology::Rank;

/// A seeded instance of a collective.
pub(crate) struct Reference<'a> {
    request: &'a Request,
    /// The program's reduction, which rules over the request's.
    op: Option<ReduceOp>,
    count: usize,
    seed: u64,
}

/// Where a rank's input and output lie in the memory of a call, in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Places {
    /// Elements of input.
    pub(crate) input: usize,
    /// Elements of output.
    pub(crate) output: usize,
    /// In place: where the input starts in the common buffer.
    pub(crate) input_at: usize,
    /// In place: where the output starts in the common buffer.
    pub(crate) output_at: usize,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(demand: &'a Demand, op: Option<ReduceOp>, count: usize, seed: u64) -> Self {
        Self { request: demand.request(), op, count, seed }
    }

    fn member(&self, rank: Rank) -> Option<usize> {
        self.request.members.binary_search(&rank).ok()
    }

    /// How much a rank sends and receives.
    pub(crate) fn places(&self, rank: Rank) -> Places {
        let Some(member) = self.member(rank) else {
            return Places { input: 0, output: 0, input_at: 0, output_at: 0 };
        };
        let (all, one) = (self.request.members.len() * self.count, self.count);
        let of_root = |elements| if self.request.root == Some(rank) { elements } else { 0 };
        let (input, output) = match self.request.collective {
            Collective::AllGather => (one, all),
            Collective::ReduceScatter => (all, one),
            Collective::AllToAll => (all, all),
            Collective::Broadcast => (of_root(one), one),
            Collective::Reduce => (one, of_root(one)),
            Collective::Gather => (one, of_root(all)),
            Collective::Scatter => (of_root(all), one),
            _ => (one, one),
        };
        let mine = |small: usize, large: usize| if small > 0 && small < large { member * one } else { 0 };
        let (input_at, output_at) = (mine(input, output), mine(output, input));
        Places { input, output, input_at, output_at }
    }

    /// Element `index` of the input of `rank`.
    pub(crate) fn input(&self, rank: Rank, index: usize) -> i64 {
        let noise = mix(self.seed ^ mix((u64::from(rank.0) << 40) ^ index as u64));
        let spread = 1 << 22;
        match self.op {
            // Sums over all members stay below 2^23, products are powers of two: both exact in binary32.
            Some(ReduceOp::Sum | ReduceOp::Avg) => {
                let limit = (spread / self.request.members.len().max(1) as u64).max(1);
                (noise % (2 * limit + 1)) as i64 - limit as i64
            }
            Some(ReduceOp::Prod) => [1, 2, -1, 1][(noise % 4) as usize],
            Some(ReduceOp::Min | ReduceOp::Max) | None => (noise % (2 * spread + 1)) as i64 - spread as i64,
        }
    }

    /// Element `index` of the output of `rank`.
    pub(crate) fn output(&self, rank: Rank, index: usize) -> i64 {
        let members = &self.request.members;
        let me = self.member(rank).unwrap_or(0);
        let (block, at) = (index / self.count.max(1), index % self.count.max(1));
        let root = self.request.root.unwrap_or(members[0]);
        match self.request.collective {
            Collective::AllGather | Collective::Gather => self.input(members[block], at),
            Collective::AllToAll => self.input(members[block], me * self.count + at),
            Collective::ReduceScatter => self.reduced(me * self.count + at),
            Collective::AllReduce | Collective::Reduce => self.reduced(at),
            Collective::Scatter => self.input(root, me * self.count + at),
            Collective::SendRecv => self.input(members[(me + members.len() - 1) % members.len()], at),
            _ => self.input(root, at),
        }
    }

    fn reduced(&self, index: usize) -> i64 {
        let values = self.request.members.iter().map(|&rank| self.input(rank, index));
        let fold = |a: i64, b: i64| match self.op {
            Some(ReduceOp::Prod) => a.wrapping_mul(b),
            Some(ReduceOp::Min) => a.min(b),
            Some(ReduceOp::Max) => a.max(b),
            _ => a + b,
        };
        values.reduce(fold).unwrap_or(0)
    }

    /// Writes the input of `rank` at element `at` of `buffer`.
    pub(crate) fn fill(&self, rank: Rank, dtype: DType, buffer: &mut [u8], at: usize) {
        for index in 0..self.places(rank).input {
            dtype.store(buffer, at + index, self.input(rank, index));
        }
    }

    /// How many of the elements from `at` on differ from the output of `rank`.
    pub(crate) fn wrong(&self, rank: Rank, dtype: DType, buffer: &[u8], at: usize) -> u64 {
        let output = self.places(rank).output;
        self.differing(dtype, buffer, at, output, |index| self.output(rank, index))
    }

    /// How many elements of an input buffer differ from what [`Self::fill`] wrote.
    pub(crate) fn changed(&self, rank: Rank, dtype: DType, buffer: &[u8]) -> u64 {
        let input = self.places(rank).input;
        self.differing(dtype, buffer, 0, input, |index| self.input(rank, index))
    }

    fn differing(&self, dtype: DType, buffer: &[u8], at: usize, count: usize, value: impl Fn(usize) -> i64) -> u64 {
        let mut expected = [0; 8];
        let size = dtype.size();
        let differs = |&index: &usize| {
            dtype.store(&mut expected, 0, value(index));
            buffer[(at + index) * size..][..size] != expected[..size]
        };
        (0..count).filter(differs).count() as u64
    }
}

/// SplitMix64's finaliser [Steele et al., OOPSLA 2014].
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
