//! Ids and units, each its own type so that a chunk can never be passed where a rank is meant.
//!
//! Time is kept in microseconds, the unit of the field's papers and of our files, so that a number survives
//! parse → compute → print without a change of base.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// The most ranks a topology may have (the largest published torus has 40 000).
pub const MAX_RANKS: usize = 1 << 17;
/// The most links a topology may have: 16,384 ranks on rails have two thirds of that, in 2.5 GB of memory.
pub const MAX_LINKS: usize = 3 << 24;
/// The most links of a topology that a file describes, or names in a few words: a clique of 2048 has about as many.
pub(crate) const MAX_LISTED_LINKS: usize = 1 << 22;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into a dense table.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of the `index`-th entry of a dense table.
            ///
            /// # Panics
            /// If `index` does not fit 32 bits; tables are bounded far below that where they are built.
            #[inline]
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("tables are bounded below 2^32 entries"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// An endpoint: one process, one device. Ranks are logical and numbered from 0.
    Rank
}
id! {
    /// A directed link from one rank to another.
    LinkId
}
id! {
    /// Something that several links share.
    ResourceId
}

/// Prints a number with nine significant digits, without trailing zeros; very large and very small ones as `1.5e20`. Two
/// numbers that the verifier tells apart look different.
pub fn show_precise(value: f64) -> String {
    let size = value.abs();
    let is_whole = value.fract() == 0.0 && size < 1e15;
    if is_whole || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-9..1e15).contains(&size) {
        let short = format!("{value:.8e}").parse::<f64>();
        return short.map_or_else(|_| value.to_string(), |short| format!("{short:e}"));
    }
    let decimals = (8 - size.log10().floor() as i32).clamp(0, 18) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0.0);

            /// The larger of two quantities.
            #[must_use]
            #[inline]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// The smaller of two quantities.
            #[must_use]
            #[inline]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// A total order, for sorting.
            #[inline]
            pub fn total_cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl Add for $name {
            type Output = Self;
            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            #[inline]
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sub for $name {
            type Output = Self;
            #[inline]
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl Mul<f64> for $name {
            type Output = Self;
            #[inline]
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div for $name {
            type Output = f64;
            #[inline]
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match f.precision() {
                    Some(_) => self.0.fmt(f)?,
                    None => f.write_str(&show_precise(self.0))?,
                }
                f.write_str($unit)
            }
        }
    };
}

quantity! {
    /// Time in microseconds (the `_us` of every file).
    Micros, " µs"
}
quantity! {
    /// A number of bytes; fractional while planning, whole once lowered.
    Bytes, " B"
}
quantity! {
    /// Inverse bandwidth, β, in microseconds per byte (`0.00002` is 50 GB/s).
    MicrosPerByte, " µs/B"
}

impl Mul<Bytes> for MicrosPerByte {
    type Output = Micros;
    #[inline]
    fn mul(self, bytes: Bytes) -> Micros {
        Micros(self.0 * bytes.0)
    }
}

impl MicrosPerByte {
    /// β of a bandwidth given in decimal GB/s (10⁹ bytes per second).
    pub fn from_gbps(gbps: f64) -> Self {
        Self(1e-3 / gbps)
    }

    /// The bandwidth in decimal GB/s.
    pub fn gbps(self) -> f64 {
        1e-3 / self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (426.6666733333334, "426.666673"),
            (-0.1, "-0.1"),
            (20.03125, "20.03125"),
            (0.00002, "0.00002"),
            (408.0, "408"),
            (1e9, "1000000000"),
            (999_999_999.999_9, "1000000000"),
            (1e300, "1e300"),
            (-1.234_567_890_123e17, "-1.23456789e17"),
            (1e-12 / 3.0, "3.33333333e-13"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(show_precise(value), expected);
        }
        assert_eq!(
            (Micros(1.0 / 3.0).to_string(), format!("{:.1}", Bytes(2.0))),
            ("0.333333333 µs".into(), "2.0 B".into())
        );
    }
}
