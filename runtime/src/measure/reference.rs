//! What a collective must compute, from its definition alone.
//!
//! The principal type is [`Reference`]. It never looks at a program: element i of a rank's output follows from the
//! definition of the collective (nccl-tests' conventions [1]), so the reference can judge any plan. Inputs are small
//! integers that differ by rank and element. They are exact in their type, and so are all their sums and products. So
//! every order of reduction gives the same bytes, and one wrong element is found. An average is the exact sum, divided
//! in integers and rounded here, without the division that is under test.
//!
//! [1] <https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>

use crate::dtype::DType;
use crate::measure::listed::{ListedElements, Piece};
use schedule::{Collective, Demand, ReduceOp, Request};
use topology::Rank;

/// A collective with inputs that follow from a seed.
pub struct Reference<'a> {
    demand: &'a Demand,
    request: &'a Request,
    /// Present if the collective lists its chunks one by one.
    listed: Option<ListedElements<'a>>,
    /// The program's reduction; it overrides the one of the request.
    op: Option<ReduceOp>,
    count: usize,
    dtype: DType,
    seed: u64,
    summands: usize,
    /// The smallest input, and the number of possible inputs. Some operators use other inputs.
    lowest: i64,
    spread: u64,
}

/// Where a rank's input and output lie in the memory of a call, in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferPlaces {
    /// Elements of input.
    pub input: usize,
    /// Elements of output.
    pub output: usize,
    /// In place: where the input starts in the common buffer.
    pub input_at: usize,
    /// In place: where the output starts in the common buffer.
    pub output_at: usize,
}

impl<'a> Reference<'a> {
    /// The numbers of a call of `count` elements, as the collective counts them.
    pub fn new(demand: &'a Demand, op: Option<ReduceOp>, count: usize, dtype: DType, seed: u64) -> Self {
        let request = demand.request();
        let is_listed = request.collective.is_listed();
        let listed = is_listed.then(|| ListedElements::new(demand, count));
        // How many values may have to be added. All sums must be exact.
        let summands = match op {
            Some(ReduceOp::Sum | ReduceOp::Avg) if is_listed => request.ranks,
            Some(ReduceOp::Sum | ReduceOp::Avg) => request.members.len(),
            Some(ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max) | None => 1,
        };
        let (lowest, highest) = dtype.exact();
        let (lowest, highest) = (lowest / summands.max(1) as i64, highest / summands.max(1) as i64);
        let spread = (highest - lowest + 1) as u64;
        Self { demand, request, listed, op, count, dtype, seed, summands, lowest, spread }
    }

    fn member(&self, rank: Rank) -> Option<usize> {
        self.request.members.binary_search(&rank).ok()
    }

    /// Where a rank's input and output lie, and how long they are.
    pub fn places(&self, rank: Rank) -> BufferPlaces {
        if let Some(listed) = &self.listed {
            let end = |pieces: Vec<Piece>| pieces.last().map_or(0, |last| last.at + last.length);
            let (input, output) = (end(listed.input(rank)), end(listed.output(rank)));
            let (input_at, output_at) = listed.shared(rank);
            return BufferPlaces { input, output, input_at, output_at };
        }
        let Some(member) = self.member(rank) else {
            return BufferPlaces { input: 0, output: 0, input_at: 0, output_at: 0 };
        };
        let all = self.request.members.len() * self.count;
        let one = self.count;
        let of_root = |elements| if self.request.root == Some(rank) { elements } else { 0 };
        let (input, output) = match self.request.collective {
            Collective::AllGather => (one, all),
            Collective::ReduceScatter => (all, one),
            Collective::AllToAll => (all, all),
            Collective::Broadcast => (of_root(one), one),
            Collective::Reduce => (one, of_root(one)),
            Collective::Gather => (one, of_root(all)),
            Collective::Scatter => (of_root(all), one),
            Collective::AllReduce | Collective::SendRecv => (one, one),
            Collective::AllToAllV | Collective::Custom => (0, 0), // listed
        };
        let mine = |small: usize, large: usize| if small > 0 && small < large { member * one } else { 0 };
        let (input_at, output_at) = (mine(input, output), mine(output, input));
        BufferPlaces { input, output, input_at, output_at }
    }

    /// Element `index` of a listed chunk at `holder`. Without a reduction, all holders have the same value.
    fn listed_value(&self, listed: &ListedElements<'_>, piece: Piece, holder: Rank, index: usize) -> i64 {
        let combine = self.demand.chunk(piece.chunk).combine;
        let (rank, member) = if combine { (holder, holder.index()) } else { (Rank(self.request.ranks as u32), 0) };
        self.value(rank, member, listed.start(piece.chunk) + index)
    }

    /// Element `index` of a listed chunk at its receivers, before the division of an average.
    fn listed_result(&self, listed: &ListedElements<'_>, piece: Piece, index: usize) -> i64 {
        let holders = &self.demand.chunk(piece.chunk).holders;
        let held = holders.iter().map(|&holder| self.listed_value(listed, piece, holder, index));
        match self.demand.chunk(piece.chunk).combine {
            true => held.reduce(|a, b| self.fold(a, b)).unwrap_or(0),
            false => held.take(1).sum(),
        }
    }

    /// Element `index` of the input of `rank`, which is the `member`-th member.
    fn value(&self, rank: Rank, member: usize, index: usize) -> i64 {
        let noise = mix(self.seed ^ (u64::from(rank.0) << 40) ^ index as u64);
        match self.op {
            // Too many summands for an exact sum if every member contributed: only some members do.
            Some(ReduceOp::Sum | ReduceOp::Avg) if self.spread == 1 => {
                let most = self.dtype.exact().1 as usize;
                i64::from((member + index).is_multiple_of(self.summands / most + 1))
            }
            // Products are powers of two. Only the first members make them large.
            Some(ReduceOp::Prod) if member < 7 => [1, 2, -1, 1][(noise >> 62) as usize],
            Some(ReduceOp::Prod) => [1, -1][(noise >> 63) as usize],
            // Computes a number below the spread without a division.
            Some(ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Min | ReduceOp::Max) | None => {
                self.lowest + ((u128::from(noise) * u128::from(self.spread)) >> 64) as i64
            }
        }
    }

    /// Element `index` of the input of `rank`.
    pub(crate) fn input(&self, rank: Rank, index: usize) -> i64 {
        self.value(rank, self.member(rank).unwrap_or(0), index)
    }

    /// Element `index` of the output of `rank`, before the division of an average.
    pub(crate) fn output(&self, rank: Rank, index: usize) -> i64 {
        let members = &self.request.members;
        let me = self.member(rank).unwrap_or(0);
        let (block, at) = (index / self.count.max(1), index % self.count.max(1));
        let root = self.request.root.unwrap_or(members[0]);
        match self.request.collective {
            Collective::AllGather | Collective::Gather => self.value(members[block], block, at),
            Collective::AllToAll => self.value(members[block], block, me * self.count + at),
            Collective::ReduceScatter => self.reduced(me * self.count + at),
            Collective::AllReduce | Collective::Reduce => self.reduced(at),
            Collective::Scatter => self.input(root, me * self.count + at),
            Collective::SendRecv => self.input(members[(me + members.len() - 1) % members.len()], at),
            Collective::Broadcast => self.input(root, at),
            Collective::AllToAllV | Collective::Custom => 0, // listed
        }
    }

    fn reduced(&self, index: usize) -> i64 {
        let values = self.request.members.iter().enumerate().map(|(member, &rank)| self.value(rank, member, index));
        values.reduce(|a, b| self.fold(a, b)).unwrap_or(0)
    }

    fn fold(&self, a: i64, b: i64) -> i64 {
        match self.op {
            Some(ReduceOp::Prod) => a.wrapping_mul(b),
            Some(ReduceOp::Min) => a.min(b),
            Some(ReduceOp::Max) => a.max(b),
            Some(ReduceOp::Sum | ReduceOp::Avg) | None => a + b,
        }
    }

    /// The number by which a sum is divided at the end, if the operator is an average.
    pub(crate) fn divisor(&self) -> Option<u64> {
        (self.op == Some(ReduceOp::Avg)).then_some(self.request.members.len().max(1) as u64)
    }

    /// Writes the input of `rank` at element `at` of `buffer`.
    pub fn fill(&self, rank: Rank, buffer: &mut [u8], at: usize) {
        if let Some(listed) = &self.listed {
            for piece in listed.input(rank) {
                let size = self.dtype.size();
                let buffer = &mut buffer[(at + piece.at) * size..][..piece.length * size];
                self.dtype.store(buffer, |index| self.listed_value(listed, piece, rank, index));
            }
            return;
        }
        let bytes = self.places(rank).input * self.dtype.size();
        let member = self.member(rank).unwrap_or(0);
        let buffer = &mut buffer[at * self.dtype.size()..][..bytes];
        self.dtype.store(buffer, |index| self.value(rank, member, index));
    }

    /// How many elements, from element `at` on, differ from the output of `rank`.
    pub fn wrong(&self, rank: Rank, buffer: &[u8], at: usize) -> u64 {
        if let Some(listed) = &self.listed {
            let wrong = listed.output(rank).into_iter().map(|piece| {
                let chunk = self.demand.chunk(piece.chunk);
                let divided = chunk.combine && self.op == Some(ReduceOp::Avg);
                let divisor = divided.then_some(chunk.holders.len() as u64);
                let value = |index| self.listed_result(listed, piece, index);
                self.differing(buffer, at + piece.at, piece.length, divisor, value)
            });
            return wrong.sum();
        }
        let output = self.places(rank).output;
        self.differing(buffer, at, output, self.divisor(), |index| self.output(rank, index))
    }

    /// How many elements of an input buffer differ from what [`Self::fill`] wrote.
    pub fn changed(&self, rank: Rank, buffer: &[u8]) -> u64 {
        if let Some(listed) = &self.listed {
            let changed = listed.input(rank).into_iter().map(|piece| {
                let value = |index| self.listed_value(listed, piece, rank, index);
                self.differing(buffer, piece.at, piece.length, None, value)
            });
            return changed.sum();
        }
        let input = self.places(rank).input;
        let member = self.member(rank).unwrap_or(0);
        self.differing(buffer, 0, input, None, |index| self.value(rank, member, index))
    }

    fn differing(
        &self,
        buffer: &[u8],
        at: usize,
        count: usize,
        divisor: Option<u64>,
        value: impl Fn(usize) -> i64,
    ) -> u64 {
        let size = self.dtype.size();
        let mut expected = [0; 4096];
        let mut wrong = 0;
        for (block, found) in buffer[at * size..][..count * size].chunks(expected.len()).enumerate() {
            let expected = &mut expected[..found.len()];
            let first = block * (4096 / size);
            match divisor {
                None => self.dtype.store(expected, |index| value(first + index)),
                Some(by) => store_averages(self.dtype, expected, by, |index| value(first + index)),
            }
            if expected != found {
                let differs = |(expected, found): &(&[u8], &[u8])| expected != found;
                wrong += expected.chunks(size).zip(found.chunks(size)).filter(differs).count() as u64;
            }
        }
        wrong
    }
}

/// Writes sums divided by a number of members. Integers are rounded towards zero, floats to the nearest, ties to even.
fn store_averages(dtype: DType, expected: &mut [u8], by: u64, sum: impl Fn(usize) -> i64) {
    let format = match dtype {
        // The sum is so small that the division does not depend on the type.
        DType::I32 | DType::I64 | DType::U8 => return dtype.store(expected, |index| sum(index) / by as i64),
        DType::F32 => FloatFormat { digits: 24, least: -149 },
        DType::F64 => FloatFormat { digits: 53, least: -1074 },
        DType::F16 => FloatFormat { digits: 11, least: -24 },
        DType::Bf16 => FloatFormat { digits: 8, least: -133 },
    };
    dtype.store_real(expected, |index| format.quotient(sum(index), by));
}

/// A binary format of IEEE 754: the number of binary digits, and the exponent of its smallest number.
#[derive(Clone, Copy)]
struct FloatFormat {
    digits: u32,
    least: i32,
}

impl FloatFormat {
    /// The number of this format that is nearest to `sum / by`; ties go to even. The absolute value of the sum must be
    /// below 2²⁸, and zero or at least `by` / 2⁴⁰.
    fn quotient(self, sum: i64, by: u64) -> f64 {
        /// Binary digits behind the point. They suffice for any format and the rounding.
        const POINT: i32 = 100;
        if sum == 0 {
            return 0.0;
        }
        let scaled = u128::from(sum.unsigned_abs()) << POINT;
        let (whole, rest) = (scaled / u128::from(by), scaled % u128::from(by));
        let dropped = ((128 - whole.leading_zeros()).saturating_sub(self.digits) as i32).max(POINT + self.least);
        let (kept, tail) = (whole >> dropped, whole & ((1 << dropped) - 1));
        let half = 1_u128 << (dropped - 1);
        let is_up = tail > half || tail == half && (rest > 0 || kept % 2 == 1);
        // Both factors are exact, and so is their product.
        let magnitude = (kept + u128::from(is_up)) as f64 * 2f64.powi(dropped - POINT);
        if sum < 0 { -magnitude } else { magnitude }
    }
}

/// SplitMix64's finaliser [Steele et al., OOPSLA 2014].
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Rank;

    fn demand(collective: Collective) -> Demand {
        Demand::new(Request::new(collective, 3, 0)).unwrap()
    }

    /// Checks the outputs of ranks 0, 1 and 2 for blocks of two elements, written as (rank, element) of inputs.
    fn check(collective: Collective, expected: [&[(u32, usize)]; 3]) {
        let demand = demand(collective);
        let reference = Reference::new(&demand, None, 2, DType::F32, 9);
        for (rank, expected) in (0..3).map(Rank).zip(expected) {
            assert_eq!(reference.places(rank).output, expected.len(), "{collective}, rank {rank}");
            for (index, &(from, element)) in expected.iter().enumerate() {
                let value = reference.input(Rank(from), element);
                assert_eq!(reference.output(rank, index), value, "{collective}, rank {rank}, element {index}");
            }
        }
    }

    #[test]
    fn outputs_are_the_inputs_that_the_definition_names() {
        let gathered: &[(u32, usize)] = &[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)];
        check(Collective::AllGather, [gathered; 3]);
        check(Collective::Gather, [gathered, &[], &[]]);
        check(Collective::Broadcast, [&[(0, 0), (0, 1)]; 3]);
        check(Collective::Scatter, [&[(0, 0), (0, 1)], &[(0, 2), (0, 3)], &[(0, 4), (0, 5)]]);
        check(Collective::SendRecv, [&[(2, 0), (2, 1)], &[(0, 0), (0, 1)], &[(1, 0), (1, 1)]]);
        let exchanged =
            |first| vec![(0, first), (0, first + 1), (1, first), (1, first + 1), (2, first), (2, first + 1)];
        check(Collective::AllToAll, [&exchanged(0), &exchanged(2), &exchanged(4)]);
    }

    #[test]
    fn reductions_take_one_value_of_every_member_and_stay_exact() {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            let (all, part) = (demand(Collective::AllReduce), demand(Collective::ReduceScatter));
            let (all, part) =
                (Reference::new(&all, Some(op), 6, DType::F32, 9), Reference::new(&part, Some(op), 2, DType::F32, 9));
            for index in 0..2 {
                let [a, b, c] = [0, 1, 2].map(|rank| all.input(Rank(rank), index));
                let expected = match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b + c,
                    ReduceOp::Prod => a * b * c,
                    ReduceOp::Min => a.min(b).min(c),
                    ReduceOp::Max => a.max(b).max(c),
                };
                assert_eq!(all.output(Rank(1), index), expected);
                assert_eq!(expected as f32 as i64, expected);
            }
            assert_eq!(part.output(Rank(2), 1), all.output(Rank(0), 5), "block 2 starts at element 4");
        }
    }

    #[test]
    fn averages_are_rounded_without_the_division_under_test() {
        let format = |digits, least| FloatFormat { digits, least };
        // Binary thirds, ties and subnormal numbers, computed by hand.
        assert_eq!(format(11, -24).quotient(1, 3), 1365.0 / 4096.0);
        assert_eq!(format(8, -133).quotient(-2, 3), -171.0 / 256.0);
        assert_eq!((format(2, -24).quotient(5, 2), format(2, -24).quotient(7, 2)), (2.0, 4.0));
        assert_eq!(format(11, -24).quotient(3, 1 << 25), 2.0 / f64::from(1 << 24));
        assert_eq!((format(24, -149).quotient(0, 7), format(24, -149).quotient(14, 7)), (0.0, 2.0));
        for (sum, by) in [(1, 3), (-1_000_001, 7), (4_194_303, 11), (4_194_303, 4096), (5, 96)] {
            assert_eq!(format(24, -149).quotient(sum, by), f64::from(sum as f32 / by as f32), "{sum}/{by}");
            assert_eq!(format(53, -1074).quotient(sum, by), sum as f64 / by as f64, "{sum}/{by}");
        }
        // An error of one unit in the last place is found, in every type.
        for &dtype in DType::ALL {
            let mut bytes = vec![0; dtype.size()];
            let demand = demand(Collective::AllReduce);
            let reference = Reference::new(&demand, Some(ReduceOp::Avg), 1, dtype, 9);
            store_averages(dtype, &mut bytes, 3, |index| reference.output(Rank(0), index));
            assert_eq!(reference.wrong(Rank(0), &bytes, 0), 0, "{dtype}");
            bytes[if cfg!(target_endian = "little") { 0 } else { dtype.size() - 1 }] ^= 1;
            assert_eq!(reference.wrong(Rank(0), &bytes, 0), 1, "{dtype}");
        }
    }

    #[test]
    fn inputs_differ_by_rank_element_and_seed() {
        let demand = demand(Collective::AllGather);
        let value = |seed, rank, index| Reference::new(&demand, None, 2, DType::F32, seed).input(Rank(rank), index);
        let mut values: Vec<_> =
            (0..4).flat_map(|at| [value(at, 0, 0), value(9, at as u32, 1), value(9, 0, 2 + at as usize)]).collect();
        let count = values.len();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), count);
    }
}
