//! Element types and the reductions over them.
//!
//! The principal type is [`DType`]. Kernels work on bytes, not on typed slices: ring memory and callers' buffers
//! need not be aligned, and `from_ne_bytes` on fixed-size arrays compiles to the same vector code as typed loads.
//! To add a type: its [`Element`], and one line in the table below.
//!
//! Rules that a result depends on:
//! * Integers wrap. Floats follow IEEE 754, in the order that the program fixes.
//! * Each step of a reduction of `f16` or `bf16` is computed in binary32 and rounded once, to nearest even.
//! * `avg` is the sum, divided once at the end by the number of members: floats round that quotient once (`f16` and
//!   `bf16` divide in binary32 first), integers truncate it towards zero.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use schedule::ReduceOp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What the kernels and the reference need of an element.
trait Element: Copy {
    /// Every integer between these two is exact.
    const EXACT: (i64, i64);
    fn kernel(op: ReduceOp) -> Kernel;
    /// An exact integer; where the type wraps, any integer.
    fn of(value: i64) -> Self;
    fn divided(self, by: u64) -> Self;
}

/// The reductions of one type and operator.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// `acc = acc ⊕ other`.
    pub(crate) accumulate: fn(&mut [u8], &[u8]),
    /// `out = a ⊕ b`.
    pub(crate) combine: fn(&mut [u8], &[u8], &[u8]),
}

/// Picks the kernel of an operator; `$make` makes one of an operation on two values of `$type`.
macro_rules! by_operator {
    ($make:ident, $type:ty, $op:expr, $sum:expr, $product:expr) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Avg => $make!($type, $sum),
            ReduceOp::Prod => $make!($type, $product),
            ReduceOp::Min => $make!($type, |a, b| if b < a { b } else { a }),
            ReduceOp::Max => $make!($type, |a, b| if b > a { b } else { a }),
        }
    };
}

/// A kernel that works element by element.
macro_rules! narrow_kernel {
    ($type:ty, $apply:expr) => {{
        const N: usize = size_of::<$type>();
        const APPLY: fn($type, $type) -> $type = $apply;
        Kernel {
            accumulate: |acc, other| {
                for (acc, other) in acc.as_chunks_mut::<N>().0.iter_mut().zip(other.as_chunks::<N>().0) {
                    *acc = APPLY(<$type>::from_ne_bytes(*acc), <$type>::from_ne_bytes(*other)).to_ne_bytes();
                }
            },
            combine: |out, a, b| {
                let operands = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
                for (out, (a, b)) in out.as_chunks_mut::<N>().0.iter_mut().zip(operands) {
                    *out = APPLY(<$type>::from_ne_bytes(*a), <$type>::from_ne_bytes(*b)).to_ne_bytes();
                }
            },
        }
    }};
}

/// A kernel that converts a block at a time to binary32 and back: the conversions have vector instructions.
macro_rules! wide_kernel {
    ($type:ty, $apply:expr) => {{
        const APPLY: fn(f32, f32) -> f32 = $apply;
        Kernel {
            accumulate: |acc, other| {
                for (acc, other) in acc.chunks_mut(2 * WIDE).zip(other.chunks(2 * WIDE)) {
                    let (mut a, b) = (<$type>::widen(acc), <$type>::widen(other));
                    a.iter_mut().zip(&b).for_each(|(a, b)| *a = APPLY(*a, *b));
                    <$type>::narrow(&a, acc);
                }
            },
            combine: |out, a, b| {
                let operands = a.chunks(2 * WIDE).zip(b.chunks(2 * WIDE));
                for (out, (a, b)) in out.chunks_mut(2 * WIDE).zip(operands) {
                    let (mut a, b) = (<$type>::widen(a), <$type>::widen(b));
                    a.iter_mut().zip(&b).for_each(|(a, b)| *a = APPLY(*a, *b));
                    <$type>::narrow(&a, out);
                }
            },
        }
    }};
}

macro_rules! floats {
    ($($type:ty),+) => { $(
        impl Element for $type {
            const EXACT: (i64, i64) = (-(1 << 22), 1 << 22);
            fn kernel(op: ReduceOp) -> Kernel {
                by_operator!(narrow_kernel, $type, op, |a, b| a + b, |a, b| a * b)
            }
            fn of(value: i64) -> Self {
                value as Self
            }
            fn divided(self, by: u64) -> Self {
                self / by as Self
            }
        }
    )+ };
}

macro_rules! integers {
    ($($type:ty, $lowest:expr, $highest:expr;)+) => { $(
        impl Element for $type {
            const EXACT: (i64, i64) = ($lowest, $highest);
            fn kernel(op: ReduceOp) -> Kernel {
                by_operator!(narrow_kernel, $type, op, |a, b| a.wrapping_add(b), |a, b| a.wrapping_mul(b))
            }
            fn of(value: i64) -> Self {
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
        impl Element for $type {
            const EXACT: (i64, i64) = (-$exact, $exact);
            fn kernel(op: ReduceOp) -> Kernel {
                by_operator!(wide_kernel, $type, op, |a, b| a + b, |a, b| a * b)
            }
            fn of(value: i64) -> Self {
                Self::from_f32(value as f32)
            }
            fn divided(self, by: u64) -> Self {
                Self::from_f32(self.to_f32() / by as f32)
            }
        }

        impl Half for $type {
            fn widen(bytes: &[u8]) -> [f32; WIDE] {
                let (mut bits, mut wide) = ([0; WIDE], [0.0; WIDE]);
                let elements = bytes.as_chunks::<2>().0;
                bits.iter_mut().zip(elements).for_each(|(bits, bytes)| *bits = u16::from_ne_bytes(*bytes));
                let count = elements.len();
                bits[..count].reinterpret_cast::<Self>().convert_to_f32_slice(&mut wide[..count]);
                wide
            }

            fn narrow(wide: &[f32; WIDE], bytes: &mut [u8]) {
                let mut bits = [0; WIDE];
                let elements = bytes.as_chunks_mut::<2>().0;
                let count = elements.len();
                bits[..count].reinterpret_cast_mut::<Self>().convert_from_f32_slice(&wide[..count]);
                elements.iter_mut().zip(&bits).for_each(|(bytes, bits)| *bytes = bits.to_ne_bytes());
            }
        }
    )+ };
}

/// How many two-byte floats are converted at a time: a block and its images fit the first-level cache.
const WIDE: usize = 256;

/// A two-byte float, which is computed with in binary32.
trait Half {
    /// Up to [`WIDE`] elements; the rest is zero.
    fn widen(bytes: &[u8]) -> [f32; WIDE];
    fn narrow(wide: &[f32; WIDE], bytes: &mut [u8]);
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
        /// The type of an element.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum DType { $($(#[$doc])* #[serde(rename = $text)] $name),+ }

        impl DType {
            /// Every type, in the order the documentation lists them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The spelling on the command line and in tables.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// The size of one element, in bytes.
            pub fn size(self) -> usize {
                match self { $(Self::$name => size_of::<$type>()),+ }
            }

            /// The reduction of this type. That of `avg` is the sum: see [`Self::divide`].
            pub(crate) fn kernel(self, op: ReduceOp) -> Kernel {
                match self { $(Self::$name => <$type>::kernel(op)),+ }
            }

            /// Divides every element of `buffer`, by the rule of `avg`.
            pub(crate) fn divide(self, buffer: &mut [u8], by: u64) {
                match self { $(Self::$name => {
                    for bytes in buffer.as_chunks_mut::<{ size_of::<$type>() }>().0 {
                        *bytes = <$type>::from_ne_bytes(*bytes).divided(by).to_ne_bytes();
                    }
                })+ }
            }

            /// All integers between these two are exact, and none is outside that are needed to tell elements apart.
            pub(crate) fn exact(self) -> (i64, i64) {
                match self { $(Self::$name => <$type>::EXACT),+ }
            }

            /// Writes as many elements as fit into `buffer`; each is an integer that this type represents exactly, or
            /// to which it wraps.
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
}
