//! Sets of ranks: holders of a chunk, its receivers, members of a collective.
//!
//! The principal type is [`RankSet`].

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use topology::Rank;

/// An ascending set of ranks. It is cheap to clone: a thousand chunks with the same receivers share one list.
#[derive(Clone, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RankSet(Arc<[Rank]>);

impl PartialEq for RankSet {
    /// Sets that share their memory, as those of most chunks do, are equal without comparing their ranks.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Ord for RankSet {
    /// Compares as lists; two sets that share their memory are equal at once.
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for RankSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl RankSet {
    /// The ranks `0..ranks`.
    pub fn all(ranks: usize) -> Self {
        (0..ranks).map(Rank::from_index).collect()
    }

    /// Just one rank.
    pub fn one(rank: Rank) -> Self {
        Self(Arc::new([rank]))
    }
}

impl FromIterator<Rank> for RankSet {
    /// Sorts and removes repetitions.
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut ranks: Vec<Rank> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        Self(ranks.into())
    }
}

impl RankSet {
    /// Whether `rank` is in the set (binary search).
    #[inline]
    pub fn has(&self, rank: Rank) -> bool {
        self.0.binary_search(&rank).is_ok()
    }

    /// The first rank that is not in `other`. Takes no time where `other` is a range of ranks that contains the set.
    pub(crate) fn first_outside(&self, other: &Self) -> Option<Rank> {
        if let ([first, .., last], [least, .., most]) = (&self.0[..], &other.0[..])
            && (most.0 - least.0) as usize == other.len() - 1
            && least <= first
            && last <= most
        {
            return None;
        }
        self.iter().copied().find(|&rank| !other.has(rank))
    }

    /// How many ranks are in both sets. Takes time in proportion to the smaller set.
    pub fn common(&self, other: &Self) -> usize {
        if Arc::ptr_eq(&self.0, &other.0) {
            return self.len();
        }
        let (small, large) = if self.len() < other.len() { (self, other) } else { (other, self) };
        small.iter().filter(|&&rank| large.has(rank)).count()
    }
}

impl fmt::Display for RankSet {
    /// Prints runs as ranges: `0-3,6`; of many runs only the first ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        for (index, run) in self.0.chunk_by(|a, b| a.0 + 1 == b.0).enumerate() {
            if index == SHOWN {
                return write!(f, ",… ({} ranks)", self.len());
            }
            let (first, last) = (run[0], run[run.len() - 1]);
            let comma = if index > 0 { "," } else { "" };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

impl Deref for RankSet {
    type Target = [Rank];
    #[inline]
    fn deref(&self) -> &[Rank] {
        &self.0
    }
}
