//! The operations that reductions are made of.
//!
//! The principal trait is [`Operations`]. What they are to give is said where the types of elements are documented.

/// The four operations on two values. All are symmetric to the bit, but for which NaN the result is: two ranks that combine
/// the same values, each as the first operand its own, must get the same. Written without branches, so that they compile to
/// vector instructions.
pub(crate) trait Operations: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Whether it is a NaN. They are rare, so a block is looked through for them only if it has any.
    fn is_no_number(self) -> bool;
    /// The value itself, or if it is a NaN, the one that results have.
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
                // One instruction each. They differ where one is a NaN, which the other bits leave one, and in the sign of a zero.
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
