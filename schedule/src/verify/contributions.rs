//! The contributions that a value counts, as a set of holders by position.
//!
//! The principal type is [`Contributions`]. Sets that were copied share their memory, and a set takes no memory where it
//! has no member: a short file can name a collective of very many ranks whose values count one or two of them each.

use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// How many words of 64 positions are kept together.
const LEAF: usize = 32;

/// A set of positions, one bit each.
#[derive(Clone)]
pub(super) struct Contributions {
    leaves: SmallVec<[WordLeaf; 1]>,
}

/// The words of [`LEAF`] × 64 positions, fewer at the end; `None` where no position is a member.
type WordLeaf = Option<Arc<[u64]>>;

impl Contributions {
    /// The set of `own` alone, or of nobody, out of so many positions.
    pub(super) fn new(own: Option<usize>, positions: usize) -> Self {
        let words = positions.div_ceil(64);
        let mut leaves: SmallVec<[WordLeaf; 1]> = smallvec![None; words.div_ceil(LEAF)];
        if let Some(own) = own {
            let (leaf, word) = (own / 64 / LEAF, own / 64 % LEAF);
            let length = LEAF.min(words - leaf * LEAF);
            leaves[leaf] = Some((0..length).map(|at| u64::from(at == word) << (own % 64)).collect());
        }
        Self { leaves }
    }

    /// Adds the members of another set of as many positions.
    pub(super) fn add(&mut self, other: &Self) {
        for (own, more) in self.leaves.iter_mut().zip(&other.leaves) {
            match (own, more) {
                (_, None) => {}
                (own @ None, Some(more)) => *own = Some(more.clone()),
                (Some(own), Some(more)) => {
                    if own.iter().zip(&**more).any(|(word, more)| more & !word != 0) {
                        Arc::make_mut(own).iter_mut().zip(&**more).for_each(|(word, more)| *word |= more);
                    }
                }
            }
        }
    }

    /// The first position that is in both sets, and how many more there are.
    pub(super) fn common(&self, other: &Self) -> Option<(usize, usize)> {
        let words = self.words().zip(other.words()).filter_map(|(own, other)| Some((own?, other?)));
        let both = words.flat_map(|((at, own), (_, other))| {
            own.iter().zip(other).enumerate().map(move |(word, (own, other))| (at + word, own & other))
        });
        first_and_rest(both)
    }

    /// The first of so many positions that is not in the set, and how many more there are.
    pub(super) fn missing(&self, positions: usize) -> Option<(usize, usize)> {
        let members: usize =
            self.leaves.iter().flatten().flat_map(|leaf| leaf.iter()).map(|word| word.count_ones() as usize).sum();
        let rest = (positions - members).checked_sub(1)?;
        let is_full = |leaf: &WordLeaf| leaf.as_ref().is_some_and(|leaf| leaf.iter().all(|&word| word == u64::MAX));
        let leaf = self.leaves.iter().position(|leaf| !is_full(leaf))?;
        let words = self.leaves[leaf].as_deref().unwrap_or_default();
        let word = words.iter().position(|&word| word != u64::MAX).unwrap_or(0);
        let bit = words.get(word).map_or(0, |word| word.trailing_ones() as usize);
        Some(((leaf * LEAF + word) * 64 + bit, rest))
    }

    /// The leaves, each with the number of its first word.
    fn words(&self) -> impl Iterator<Item = Option<(usize, &[u64])>> {
        self.leaves.iter().enumerate().map(|(at, leaf)| leaf.as_deref().map(|words| (at * LEAF, words)))
    }
}

/// The position of the first one bit, and the number of the others, of words with their numbers.
fn first_and_rest(words: impl Iterator<Item = (usize, u64)>) -> Option<(usize, usize)> {
    let mut words = words.filter(|&(_, word)| word != 0);
    let (at, word) = words.next()?;
    let rest: u32 = words.map(|(_, word)| word.count_ones()).sum();
    Some((at * 64 + word.trailing_zeros() as usize, (word.count_ones() - 1 + rest) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sets_are_as_lists_of_their_members_say() {
        for positions in [1, 63, 64, 65, 2048, 2049, 5000] {
            let mut random = 1 + positions as u64;
            let mut draw = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % positions
            };
            let sets: Vec<(Contributions, BTreeSet<usize>)> = (0..12)
                .map(|size| {
                    let mut set = (Contributions::new(None, positions), BTreeSet::new());
                    for own in (0..size * positions / 8).map(|_| draw()) {
                        set.0.add(&Contributions::new(Some(own), positions));
                        set.1.insert(own);
                    }
                    set
                })
                .collect();
            for (set, members) in &sets {
                let mut missing = (0..positions).filter(|position| !members.contains(position));
                assert_eq!(set.missing(positions), missing.next().map(|first| (first, missing.count())));
                for (other, others) in &sets {
                    let mut common = members.intersection(others).copied();
                    assert_eq!(set.common(other), common.next().map(|first| (first, common.count())));
                    let (mut sum, all) = (set.clone(), members.union(others).count());
                    sum.add(other);
                    assert_eq!(sum.missing(positions).map_or(0, |(_, rest)| rest + 1), positions - all);
                }
            }
        }
    }
}
