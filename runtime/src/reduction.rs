//! The arithmetic of reductions.
//!
//! The principal trait is [`Operations`]. The documentation of `DType` defines the results.

/// Reduction of two values. Every operation gives the same bits in either order of its operands, except for which NaN
/// results: of two ranks that exchange values, each may pass its own value first. No branches, so that the compiler can
/// use vector instructions.
pub(crate) trait Operations: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Whether the value is a NaN. NaNs are rare, so a block is searched for them only if it has at least one.
    fn is_no_number(self) -> bool;
    /// The value itself; for a NaN, the only NaN that results may have.
    fn with_one_nan(self) -> Self;
}

macro_rules! floats {
    ($($type:ty, $bits:ty, $nan:literal;)+) => { $(
        impl Operations for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                // Each select is one instruction. `one` and `two` differ only for a NaN, which stays a NaN with the
                // other bits, and for zeroes of different sign, where the sign bit of −0 wins.
                let (one, two) = (if self < other { self } else { other }, if other < self { other } else { self });
                Self::from_bits(one.to_bits() | two.to_bits())
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let (one, two) = (if self > other { self } else { other }, if other > self { other } else { self });
                let nan = <$bits>::from(self.is_nan() | other.is_nan()).wrapping_neg();
                Self::from_bits(one.to_bits() & two.to_bits() | nan)
            }
            #[inline(always)]
            fn is_no_number(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn with_one_nan(self) -> Self {
                if self.is_nan() { Self::from_bits($nan) } else { self }
            }
        }
    )+ };
}

macro_rules! integers {
    ($($type:ty),+) => { $(
        impl Operations for $type {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
            fn is_no_number(self) -> bool {
                false
            }
            fn with_one_nan(self) -> Self {
                self
            }
        }
    )+ };
}

floats! {
    f32, u32, 0x7fc0_0000;
    f64, u64, 0x7ff8_0000_0000_0000;
}
integers!(i32, i64, u8);
