//! The number of elements in each slot of a program.
//!
//! The principal type is [`PartShape`]. Each slot has a *part*, which determines its size: two slots with the same part
//! have the same size for every element count, so data may move between them.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The sizes of parts, for any element count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartShape {
    /// A block of `count` elements is cut into parts that are as equal as possible ([`balanced`]).
    Equal {
        /// The number of parts.
        parts: u32,
    },
    /// Parts with given weights: `unit` weights are `count` elements. The lengths are exact if `unit / count` divides
    /// every cut; otherwise cuts are rounded down. Parts with equal cuts always have equal lengths.
    Weighted {
        /// For each part, its start and its end as weights within the piece that it is cut from; ascending.
        cuts: Vec<(u64, u64)>,
        /// The weight that `count` elements have.
        unit: u64,
    },
}

impl PartShape {
    /// How many parts there are.
    pub fn parts(&self) -> u32 {
        match self {
            Self::Equal { parts } => *parts,
            Self::Weighted { cuts, .. } => cuts.len() as u32,
        }
    }

    /// How many elements a part has; saturates instead of overflowing, and is 0 for a part that does not exist.
    pub fn length(&self, count: u64, part: u32) -> u64 {
        match self {
            Self::Equal { parts } if part >= *parts => 0,
            Self::Equal { parts } => {
                let range = balanced(count, *parts, part);
                range.end - range.start
            }
            Self::Weighted { cuts, unit } => {
                let (start, end) = cuts.get(part as usize).copied().unwrap_or_default();
                let elements = |weight: u64| u128::from(weight) * u128::from(count) / u128::from((*unit).max(1));
                u64::try_from(elements(end) - elements(start.min(end))).unwrap_or(u64::MAX)
            }
        }
    }

    /// Whether all parts have the same number of elements.
    pub fn divides(&self, count: u64) -> bool {
        match self {
            Self::Equal { parts } => count.is_multiple_of(u64::from((*parts).max(1))),
            Self::Weighted { .. } => {
                let first = self.length(count, 0);
                (1..self.parts()).all(|part| self.length(count, part) == first)
            }
        }
    }
}

/// The elements of part `part` of `parts` in a block of `count`. Parts differ by at most one element, and some are
/// empty where there are more parts than elements.
pub fn balanced(count: u64, parts: u32, part: u32) -> Range<u64> {
    let cut = |part: u32| (u128::from(count) * u128::from(part) / u128::from(parts.max(1))) as u64;
    cut(part)..cut(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_block_and_differ_by_at_most_one() {
        for (count, parts) in [(0, 3), (1, 3), (7, 3), (10, 1), (u64::MAX, 7)] {
            let ranges: Vec<Range<u64>> = (0..parts).map(|part| balanced(count, parts, part)).collect();
            assert_eq!((ranges[0].start, ranges[parts as usize - 1].end), (0, count));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let shape = PartShape::Equal { parts };
            let lengths = (0..parts).map(|part| shape.length(count, part));
            assert!(lengths.clone().max().unwrap() - lengths.clone().min().unwrap() <= 1);
            assert_eq!(lengths.sum::<u64>(), count);
            assert_eq!(shape.divides(count), count.is_multiple_of(u64::from(parts)));
        }
    }

    #[test]
    fn weights_are_exact_where_they_divide_and_close_elsewhere() {
        let shape = PartShape::Weighted { cuts: vec![(0, 8), (8, 8), (8, 12), (0, 20)], unit: 32 };
        let lengths = |count| (0..4).map(|part| shape.length(count, part)).collect::<Vec<_>>();
        assert_eq!(lengths(8), [2, 0, 1, 5]);
        assert_eq!(lengths(32), [8, 0, 4, 20]);
        assert_eq!(lengths(9), [2, 0, 1, 5]);
        assert_eq!(lengths(3), [0, 0, 1, 1]);
        assert_eq!(lengths(0), [0; 4]);
        assert_eq!(shape.length(8, 4), 0, "there is no part 4");
        let large = PartShape::Weighted { cuts: vec![(0, u64::MAX), (0, 1)], unit: 1 };
        assert_eq!(large.length(u64::MAX, 0), u64::MAX, "it saturates");
    }
}
