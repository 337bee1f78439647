//! Scalar types and the reductions over them.
//!
//! The principal type is [`DType`]; its documentation has the rules of all results. Kernels work on bytes, not on typed
//! slices: memory of rings and of callers need not be aligned. `from_ne_bytes` on arrays of fixed size compiles to the
//! same vector code as typed loads. A new type needs an implementation of [`Scalar`] and one line in the table below.

use crate::reduction::Operations;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use schedule::ReduceOp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What kernels and the reference need of an element type.
trait Scalar: Copy {
    /// The least and the greatest integer of a range in which every integer is exact.
    const EXACT: (i64, i64);
    fn kernel(op: ReduceOp) -> Kernel;
    /// The value of an integer that is exact in this type. An integer type takes any integer, which wraps.
    fn of(value: i64) -> Self;
    /// The value of a number that this type represents exactly.
    fn of_real(value: f64) -> Self;
    fn divided(self, by: u64) -> Self;
}

/// The reduction kernels of one type and one operator.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// `acc = acc ⊕ other`.
    pub(crate) accumulate: fn(&mut [u8], &[u8]),
    /// `out = a ⊕ b`.
    pub(crate) combine: fn(&mut [u8], &[u8], &[u8]),
}

/// Picks the kernel of an operator. `$make` builds one for `$type` from an operation on `$wide`, the type of the
/// computation.
macro_rules! by_operator {
    ($make:ident, $type:ty, $wide:ty, $op:expr) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Avg => $make!($type, <$wide as Operations>::sum),
            ReduceOp::Prod => $make!($type, <$wide as Operations>::product),
            ReduceOp::Min => $make!($type, <$wide as Operations>::least),
            ReduceOp::Max => $make!($type, <$wide as Operations>::greatest),
        }
    };
}

/// How many elements a kernel computes before it searches them for NaNs. A block of two-byte floats and its binary32
/// copies fit into the first-level cache.
const BLOCK: usize = 256;

/// A kernel that computes in the type of its elements.
macro_rules! narrow_kernel {
    ($type:ty, $apply:expr) => {{
        const N: usize = size_of::<$type>();
        const APPLY: fn($type, $type) -> $type = $apply;
        #[inline(always)]
        fn unify(block: &mut [[u8; N]]) {
            for bytes in block {
                *bytes = <$type>::from_ne_bytes(*bytes).with_one_nan().to_ne_bytes();
            }
        }
        Kernel {
            accumulate: |acc, other| {
                let blocks = acc.as_chunks_mut::<N>().0.chunks_mut(BLOCK).zip(other.as_chunks::<N>().0.chunks(BLOCK));
                for (acc, other) in blocks {
                    let mut is_odd = false;
                    for (acc, other) in acc.iter_mut().zip(other) {
                        let result = APPLY(<$type>::from_ne_bytes(*acc), <$type>::from_ne_bytes(*other));
                        is_odd |= result.is_no_number();
                        *acc = result.to_ne_bytes();
                    }
                    if is_odd {
                        unify(acc);
                    }
                }
            },
            combine: |out, a, b| {
                let operands = a.as_chunks::<N>().0.chunks(BLOCK).zip(b.as_chunks::<N>().0.chunks(BLOCK));
                for (out, (a, b)) in out.as_chunks_mut::<N>().0.chunks_mut(BLOCK).zip(operands) {
                    let mut is_odd = false;
                    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                        let result = APPLY(<$type>::from_ne_bytes(*a), <$type>::from_ne_bytes(*b));
                        is_odd |= result.is_no_number();
                        *out = result.to_ne_bytes();
                    }
                    if is_odd {
                        unify(out);
                    }
                }
            },
        }
    }};
}

/// A kernel that converts blocks to binary32 and back, because these conversions have vector instructions.
macro_rules! wide_kernel {
    ($type:ty, $apply:expr) => {{
        const APPLY: fn(f32, f32) -> f32 = $apply;
        fn apply(a: &mut [f32; BLOCK], b: &[f32; BLOCK]) {
            let mut is_odd = false;
            for (a, b) in a.iter_mut().zip(b) {
                *a = APPLY(*a, *b);
                is_odd |= a.is_nan();
            }
            if is_odd {
                a.iter_mut().for_each(|value| *value = value.with_one_nan());
            }
        }
        Kernel {
            accumulate: |acc, other| {
                for (acc, other) in acc.chunks_mut(2 * BLOCK).zip(other.chunks(2 * BLOCK)) {
                    let mut a = <$type>::widen(acc);
                    apply(&mut a, &<$type>::widen(other));
                    <$type>::narrow(&a, acc);
                }
            },
            combine: |out, a, b| {
                let operands = a.chunks(2 * BLOCK).zip(b.chunks(2 * BLOCK));
                for (out, (a, b)) in out.chunks_mut(2 * BLOCK).zip(operands) {
                    let mut a = <$type>::widen(a);
                    apply(&mut a, &<$type>::widen(b));
                    <$type>::narrow(&a, out);
                }
            },
        }
    }};
}

macro_rules! floats {
    ($($type:ty),+) => { $(
        impl Scalar for $type {
            const EXACT: (i64, i64) = (-(1 << 22), 1 << 22);
            fn kernel(op: ReduceOp) -> Kernel {
                by_operator!(narrow_kernel, $type, $type, op)
            }
            fn of(value: i64) -> Self {
                value as Self
            }
            fn of_real(value: f64) -> Self {
                value as Self
            }
            fn divided(self, by: u64) -> Self {
                (self / by as Self).with_one_nan()
            }
        }
    )+ };
}

macro_rules! integers {
    ($($type:ty, $lowest:expr, $highest:expr;)+) => { $(
        impl Scalar for $type {
            const EXACT: (i64, i64) = ($lowest, $highest);
            fn kernel(op: ReduceOp) -> Kernel {
                by_operator!(narrow_kernel, $type, $type, op)
            }
            fn of(value: i64) -> Self {
                value as Self
            }
            fn of_real(value: f64) -> Self {
                value as Self
            }
            fn divided(self, by: u64) -> Self {
                (i128::from(self) / i128::from(by)) as Self
            }
        }
    )+ };
}

macro_rules! halves {
    ($($type:ty, $exact:expr;)+) => { $(
        impl Scalar for $type {
            const EXACT: (i64, i64) = (-$exact, $exact);
            fn kernel(op: ReduceOp) -> Kernel {
                by_operator!(wide_kernel, $type, f32, op)
            }
            fn of(value: i64) -> Self {
                Self::from_f32(value as f32)
            }
            fn of_real(value: f64) -> Self {
                Self::from_f64(value)
            }
            fn divided(self, by: u64) -> Self {
                Self::from_f32(self.to_f32().divided(by))
            }
        }

        impl Half for $type {
            fn widen(bytes: &[u8]) -> [f32; BLOCK] {
                let (mut bits, mut wide) = ([0; BLOCK], [0.0; BLOCK]);
                let elements = bytes.as_chunks::<2>().0;
                bits.iter_mut().zip(elements).for_each(|(bits, bytes)| *bits = u16::from_ne_bytes(*bytes));
                let count = elements.len();
                bits[..count].reinterpret_cast::<Self>().convert_to_f32_slice(&mut wide[..count]);
                wide
            }

            fn narrow(wide: &[f32; BLOCK], bytes: &mut [u8]) {
                let mut bits = [0; BLOCK];
                let elements = bytes.as_chunks_mut::<2>().0;
                let count = elements.len();
                bits[..count].reinterpret_cast_mut::<Self>().convert_from_f32_slice(&wide[..count]);
                elements.iter_mut().zip(&bits).for_each(|(bytes, bits)| *bytes = bits.to_ne_bytes());
            }
        }
    )+ };
}

/// A two-byte float; its reductions are computed in binary32.
trait Half {
    /// Converts up to [`BLOCK`] elements; the rest of the block is zero.
    fn widen(bytes: &[u8]) -> [f32; BLOCK];
    fn narrow(wide: &[f32; BLOCK], bytes: &mut [u8]);
}

floats!(f32, f64);
integers! {
    i32, -(1 << 22), 1 << 22;
    i64, -(1 << 22), 1 << 22;
    u8, 0, 255;
}
halves! {
    f16, 1 << 11;
    bf16, 1 << 8;
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident, $type:ty, $text:literal;)+) => {
        /// The type of an element, and the rules of its reductions.
        ///
        /// A reduction of two values gives the same bits in either order of its operands, on every machine. So if the
        /// plan reduces each element in one order, all ranks get the same bits for any input.
        ///
        /// * Integers wrap. Floats follow IEEE 754-2019, round to nearest even, and keep subnormal numbers.
        /// * `min` and `max` of floats are `minimum` and `maximum` of the standard: a NaN gives a NaN, and −0 is less
        ///   than +0.
        /// * Every NaN that a float operation returns is the same: quiet, positive, without a payload (`7fc00000`,
        ///   `7ff8000000000000`, `7e00`, `7fc0`). An element that is only copied keeps its bits.
        /// * `avg` is the sum, divided once at the end by the number of members. Floats round the quotient once (`f16`
        ///   and `bf16` divide in binary32 first, which does not change the result). Integers truncate it towards zero.
        ///   A sum of integers that wrapped is divided as it is.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum DType { $($(#[$doc])* #[serde(rename = $text)] $name),+ }

        impl DType {
            /// Every type, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The spelling on the command line and in tables.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// The size of one element, in bytes.
            pub fn size(self) -> usize {
                match self { $(Self::$name => size_of::<$type>()),+ }
            }

            /// The reduction of this type. `avg` has the kernel of the sum; [`Self::divide`] does the rest.
            pub(crate) fn kernel(self, op: ReduceOp) -> Kernel {
                match self { $(Self::$name => <$type>::kernel(op)),+ }
            }

            /// Divides every element of `buffer` by `by`, as `avg` does.
            pub(crate) fn divide(self, buffer: &mut [u8], by: u64) {
                match self { $(Self::$name => {
                    for bytes in buffer.as_chunks_mut::<{ size_of::<$type>() }>().0 {
                        *bytes = <$type>::from_ne_bytes(*bytes).divided(by).to_ne_bytes();
                    }
                })+ }
            }

            /// The least and the greatest integer of a range in which every integer is exact. Test data stay inside it.
            pub(crate) fn exact(self) -> (i64, i64) {
                match self { $(Self::$name => <$type>::EXACT),+ }
            }

            /// Like [`Self::store`], for numbers that this type represents exactly.
            pub(crate) fn store_real(self, buffer: &mut [u8], value: impl Fn(usize) -> f64) {
                match self { $(Self::$name => {
                    let elements = buffer.as_chunks_mut::<{ size_of::<$type>() }>().0;
                    for (index, bytes) in elements.iter_mut().enumerate() {
                        *bytes = <$type>::of_real(value(index)).to_ne_bytes();
                    }
                })+ }
            }

            /// Writes as many elements as fit into `buffer`. Each value is exact in this type, or wraps.
            pub(crate) fn store(self, buffer: &mut [u8], mut value: impl FnMut(usize) -> i64) {
                match self { $(Self::$name => {
                    let elements = buffer.as_chunks_mut::<{ size_of::<$type>() }>().0;
                    for (index, bytes) in elements.iter_mut().enumerate() {
                        *bytes = <$type>::of(value(index)).to_ne_bytes();
                    }
                })+ }
            }
        }
    };
}

dtypes! {
    /// IEEE binary32.
    F32, f32, "f32";
    /// IEEE binary64.
    F64, f64, "f64";
    /// 32-bit two's complement; sums and products wrap.
    I32, i32, "i32";
    /// 64-bit two's complement; sums and products wrap.
    I64, i64, "i64";
    /// Bytes; sums and products wrap.
    U8, u8, "u8";
    /// IEEE binary16.
    F16, f16, "f16";
    /// The upper half of a binary32.
    Bf16, bf16, "bf16";
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|dtype| dtype.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|dtype| dtype.as_str()).collect();
            format!("unknown element type `{text}`; one of: {}", known.join(" "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_agree_with_integer_arithmetic_at_any_alignment_and_length() {
        let apply = |op, a: i64, b: i64| match op {
            ReduceOp::Sum | ReduceOp::Avg => a + b,
            ReduceOp::Prod => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
        };
        for &dtype in DType::ALL {
            // Small enough that products are exact in every type.
            let (lowest, step) = if dtype.exact().0 < 0 { (-7, 2) } else { (0, 1) };
            for &op in ReduceOp::ALL {
                let kernel = dtype.kernel(op);
                for (length, shift) in [(0, 0), (1, 1), (7, 3), (64, 0), (129, 5), (777, 1)] {
                    let value = |index: usize, times: usize| lowest + step * (index * times % 8) as i64;
                    let mut memory = vec![vec![0u8; 8 * 800]; 3];
                    let bytes = length * dtype.size();
                    dtype.store(&mut memory[0][shift..][..bytes], |index| value(index, 3));
                    dtype.store(&mut memory[1][shift..][..bytes], |index| value(index, 5));
                    dtype.store(&mut memory[2][..bytes], |index| apply(op, value(index, 3), value(index, 5)));
                    let (a, b, expected) = (&memory[0][shift..][..bytes], &memory[1][shift..][..bytes], &memory[2]);
                    let mut out = vec![0; bytes + 1];
                    (kernel.combine)(&mut out[1..], a, b);
                    assert_eq!(out[1..], expected[..bytes], "{dtype} {op} {length}");
                    let mut acc = a.to_vec();
                    (kernel.accumulate)(&mut acc, b);
                    assert_eq!(acc, expected[..bytes], "{dtype} {op} {length}");
                }
            }
        }
    }

    #[test]
    fn two_byte_floats_round_each_step_once_to_nearest_even() {
        let sum = |dtype: DType, a: u16, b: u16| {
            let mut acc = a.to_ne_bytes();
            (dtype.kernel(ReduceOp::Sum).accumulate)(&mut acc, &b.to_ne_bytes());
            u16::from_ne_bytes(acc)
        };
        // 2048 + 1 lies between 2048 and 2050, 2050 + 1 between 2050 and 2052: both go to the even significand.
        assert_eq!(sum(DType::F16, 0x6800, 0x3c00), 0x6800);
        assert_eq!(sum(DType::F16, 0x6801, 0x3c00), 0x6802);
        // 65504 + 65504 is infinite; 256 + 1 stays, 258 + 1 becomes 260.
        assert_eq!(sum(DType::F16, 0x7bff, 0x7bff), 0x7c00);
        assert_eq!(sum(DType::Bf16, 0x4380, 0x3f80), 0x4380);
        assert_eq!(sum(DType::Bf16, 0x4381, 0x3f80), 0x4382);
    }

    #[test]
    fn averages_truncate_integers_and_round_floats() {
        let third = |dtype: DType, value| {
            let mut memory = [0; 8];
            let bytes = &mut memory[..dtype.size()];
            dtype.store(bytes, |_| value);
            dtype.divide(bytes, 3);
            bytes.to_vec()
        };
        assert_eq!(third(DType::I32, -8), (-2i32).to_ne_bytes());
        assert_eq!(third(DType::I64, 8), 2i64.to_ne_bytes());
        assert_eq!(third(DType::U8, 254), [84]);
        assert_eq!(third(DType::F32, 1), (1.0f32 / 3.0).to_ne_bytes());
        assert_eq!(third(DType::F64, 1), (1.0f64 / 3.0).to_ne_bytes());
        assert_eq!(third(DType::F16, 1), 0x3555u16.to_ne_bytes());
        assert_eq!(third(DType::Bf16, 2), 0x3f2bu16.to_ne_bytes());
    }

    /// The layout of a float type.
    struct Bits {
        dtype: DType,
        width: u32,
        significand: u32,
    }

    const FLOATS: [Bits; 4] = [
        Bits { dtype: DType::F32, width: 32, significand: 23 },
        Bits { dtype: DType::F64, width: 64, significand: 52 },
        Bits { dtype: DType::F16, width: 16, significand: 10 },
        Bits { dtype: DType::Bf16, width: 16, significand: 7 },
    ];

    impl Bits {
        fn sign(&self) -> u64 {
            1 << (self.width - 1)
        }

        fn infinity(&self) -> u64 {
            self.sign() - (1 << self.significand)
        }

        fn is_nan(&self, bits: u64) -> bool {
            bits & !self.sign() > self.infinity()
        }

        /// The NaN of all results: quiet, positive, without a payload.
        fn nan(&self) -> u64 {
            self.infinity() | 1 << (self.significand - 1)
        }

        /// NaNs of every kind, infinities, both zeroes, the smallest and largest of all kinds, ordinary numbers.
        fn special(&self) -> Vec<u64> {
            let (infinity, one) = (self.infinity(), (self.infinity() / 2) & !((1 << self.significand) - 1));
            let least_normal = 1 << self.significand;
            let numbers =
                [0, 1, least_normal - 1, least_normal, least_normal + 1, one, one + 1, infinity - 1, infinity];
            let nans = [self.nan(), self.nan() + 1, infinity + 1, self.sign() - 1];
            numbers.into_iter().chain(nans).flat_map(|bits| [bits, bits | self.sign()]).collect()
        }

        fn bytes(&self, bits: u64) -> Vec<u8> {
            match self.width {
                16 => (bits as u16).to_ne_bytes().to_vec(),
                32 => (bits as u32).to_ne_bytes().to_vec(),
                _ => bits.to_ne_bytes().to_vec(),
            }
        }

        fn bits(&self, bytes: &[u8]) -> u64 {
            match self.width {
                16 => u16::from_ne_bytes(bytes.try_into().unwrap()).into(),
                32 => u32::from_ne_bytes(bytes.try_into().unwrap()).into(),
                _ => u64::from_ne_bytes(bytes.try_into().unwrap()),
            }
        }

        /// The value of a bit pattern, exactly.
        fn number(&self, bits: u64) -> f64 {
            let bias = (1i32 << (self.width - self.significand - 2)) - 1;
            let exponent = ((bits & !self.sign()) >> self.significand) as i32;
            let fraction = bits & ((1 << self.significand) - 1);
            let whole = if exponent > 0 { fraction | 1 << self.significand } else { fraction };
            let scale = exponent.max(1) - bias - self.significand as i32;
            // In two steps, because the smallest power is not a normal number.
            let magnitude = whole as f64 * 2f64.powi(scale / 2) * 2f64.powi(scale - scale / 2);
            if bits & self.sign() == 0 { magnitude } else { -magnitude }
        }

        /// The bits of the value nearest to `number`; ties go to even. `number` is exact, or close enough.
        fn nearest(&self, number: f64) -> u64 {
            let sign = if number.is_sign_negative() { self.sign() } else { 0 };
            let (mut low, mut high) = (0, self.infinity());
            while high - low > 1 {
                let middle = (low + high) / 2;
                if self.number(middle) <= number.abs() { low = middle } else { high = middle }
            }
            // Above the largest number, infinity counts as the next number with the same spacing.
            let next = match high == self.infinity() {
                true => self.number(high - 1) + (self.number(high - 1) - self.number(high - 2)),
                false => self.number(high),
            };
            let (down, up) = (number.abs() - self.number(low), next - number.abs());
            let is_up = up < down || up == down && low % 2 == 1;
            sign | if is_up { high } else { low }
        }

        /// The result that IEEE 754-2019 requires, with the one NaN of this project.
        fn expected(&self, op: ReduceOp, [a, b]: [u64; 2]) -> u64 {
            if self.is_nan(a) || self.is_nan(b) {
                return self.nan();
            }
            let real = |bits: u64| match bits & !self.sign() == self.infinity() {
                true => f64::INFINITY.copysign(if bits & self.sign() == 0 { 1.0 } else { -1.0 }),
                false => self.number(bits),
            };
            // The order of values: negative numbers, −0, +0, positive numbers.
            let rank = |bits: u64| {
                if bits & self.sign() == 0 { i128::from(bits) } else { -1 - i128::from(bits & !self.sign()) }
            };
            let number = match op {
                ReduceOp::Min => return if rank(a) < rank(b) { a } else { b },
                ReduceOp::Max => return if rank(a) > rank(b) { a } else { b },
                ReduceOp::Sum | ReduceOp::Avg => real(a) + real(b),
                ReduceOp::Prod => real(a) * real(b),
            };
            match number {
                number if number.is_nan() => self.nan(),
                number if number.is_infinite() || self.width == 64 => self.bits_of(number),
                number => self.nearest(number),
            }
        }

        fn bits_of(&self, number: f64) -> u64 {
            let sign = if number.is_sign_negative() { self.sign() } else { 0 };
            if self.width == 64 { number.to_bits() } else { sign | self.infinity() }
        }
    }

    /// Every pair of special values, in both orders of the operands, in a vector and alone.
    #[test]
    fn floats_follow_the_standard_and_no_order_of_operands_shows() {
        for of in FLOATS {
            let special = of.special();
            let pairs: Vec<[u64; 2]> = special.iter().flat_map(|&a| special.iter().map(move |&b| [a, b])).collect();
            let column = |at: usize| -> Vec<u8> { pairs.iter().flat_map(|pair| of.bytes(pair[at])).collect() };
            let (first, second, size) = (column(0), column(1), of.dtype.size());
            for &op in ReduceOp::ALL {
                let kernel = of.dtype.kernel(op);
                let (mut forth, mut back) = (vec![0; first.len()], second.clone());
                (kernel.combine)(&mut forth, &first, &second);
                (kernel.accumulate)(&mut back, &first);
                for (index, pair) in pairs.iter().enumerate() {
                    let place = index * size..(index + 1) * size;
                    let expected = of.expected(op, *pair);
                    let mut alone = first[place.clone()].to_vec();
                    (kernel.accumulate)(&mut alone, &second[place.clone()]);
                    for found in [&forth[place.clone()], &back[place], &alone] {
                        let found = of.bits(found);
                        assert_eq!(found, expected, "{} {op} {pair:x?}: {found:x}, not {expected:x}", of.dtype);
                    }
                }
            }
        }
    }

    #[test]
    fn averages_of_special_values_are_rounded_once_and_have_one_nan() {
        for of in FLOATS {
            for bits in of.special() {
                for by in [1, 2, 3, 7, 64] {
                    let mut bytes = of.bytes(bits);
                    of.dtype.divide(&mut bytes, by);
                    let found = of.bits(&bytes);
                    let expected = match bits & !of.sign() {
                        magnitude if magnitude > of.infinity() => of.nan(),
                        magnitude if magnitude == of.infinity() => bits,
                        _ if of.width == 64 => (f64::from_bits(bits) / by as f64).to_bits(),
                        _ => of.nearest(of.number(bits) / by as f64),
                    };
                    assert_eq!(found, expected, "{} {bits:x} / {by}", of.dtype);
                }
            }
        }
    }
}
