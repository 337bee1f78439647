//! Element types and the reductions over them.
//!
//! The principal type is [`DType`]. Kernels work on bytes, not on typed slices: ring memory and callers' buffers
//! need not be aligned, and `from_ne_bytes` on fixed-size arrays compiles to the same vector code as typed loads.
//! To add a type: one line in the table below.

use schedule::ReduceOp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What the kernels and the reference need of an element.
pub(crate) trait Element: Copy + PartialEq {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

macro_rules! element {
    (float $($type:ty),+) => { $(element!(@ $type, |a, b| a + b, |a, b| a * b);)+ };
    (int $($type:ty),+) => { $(element!(@ $type, |a, b| a.wrapping_add(b), |a, b| a.wrapping_mul(b));)+ };
    (@ $type:ty, |$a:ident, $b:ident| $sum:expr, |$c:ident, $d:ident| $product:expr) => {
        impl Element for $type {
            fn sum(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
            fn product(self, other: Self) -> Self {
                let ($c, $d) = (self, other);
                $product
            }
            fn smaller(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            fn larger(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
        }
    };
}

element!(float f32, f64);
element!(int i32, i64);

/// The reductions of one type and operator.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// `acc = acc ⊕ other`.
    pub(crate) accumulate: fn(&mut [u8], &[u8]),
    /// `out = a ⊕ b`.
    pub(crate) combine: fn(&mut [u8], &[u8], &[u8]),
}

macro_rules! kernels {
    ($type:ty, $apply:path) => {{
        const N: usize = size_of::<$type>();
        Kernel {
            accumulate: |acc, other| {
                for (acc, other) in acc.as_chunks_mut::<N>().0.iter_mut().zip(other.as_chunks::<N>().0) {
                    *acc = $apply(<$type>::from_ne_bytes(*acc), <$type>::from_ne_bytes(*other)).to_ne_bytes();
                }
            },
            combine: |out, a, b| {
                let operands = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
                for (out, (a, b)) in out.as_chunks_mut::<N>().0.iter_mut().zip(operands) {
                    *out = $apply(<$type>::from_ne_bytes(*a), <$type>::from_ne_bytes(*b)).to_ne_bytes();
                }
            },
        }
    }};
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

            /// The reduction of this type; `None` where it is not supported.
            pub(crate) fn kernel(self, op: ReduceOp) -> Option<Kernel> {
                match self { $(Self::$name => Some(match op {
                    ReduceOp::Sum => kernels!($type, Element::sum),
                    ReduceOp::Prod => kernels!($type, Element::product),
                    ReduceOp::Min => kernels!($type, Element::smaller),
                    ReduceOp::Max => kernels!($type, Element::larger),
                    ReduceOp::Avg => return None,
                })),+ }
            }

            /// Writes `value`, a small integer that every type represents exactly, as element `index` of `buffer`.
            pub(crate) fn store(self, buffer: &mut [u8], index: usize, value: i64) {
                let at = index * self.size()..(index + 1) * self.size();
                match self { $(Self::$name => buffer[at].copy_from_slice(&(value as $type).to_ne_bytes())),+ }
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
    fn kernels_agree_with_scalar_arithmetic_at_any_alignment_and_length() {
        let apply = |op, a: i64, b: i64| match op {
            ReduceOp::Sum => a + b,
            ReduceOp::Prod => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max | ReduceOp::Avg => a.max(b),
        };
        for &dtype in DType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
                let kernel = dtype.kernel(op).unwrap();
                for (length, shift) in [(0, 0), (1, 1), (7, 3), (64, 0), (129, 5)] {
                    let mut memory = vec![[0u8; 3000]; 3];
                    for index in 0..length {
                        let (a, b) = (index as i64 * 3 - 50, 23 - 2 * index as i64);
                        dtype.store(&mut memory[0][shift..], index, a);
                        dtype.store(&mut memory[1][shift..], index, b);
                        dtype.store(&mut memory[2], index, apply(op, a, b));
                    }
                    let bytes = length * dtype.size();
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
    fn an_average_is_not_a_fold() {
        assert!(DType::ALL.iter().all(|dtype| dtype.kernel(ReduceOp::Avg).is_none()));
    }
}
