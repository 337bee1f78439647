//! Partitions of ranks, links, chunks or resources into sets.

use std::collections::BTreeMap;

/// The same sets, where each label is replaced by the number of the first member of its set.
pub(crate) fn by_first(mut sets: Vec<usize>) -> Vec<usize> {
    let mut first = BTreeMap::new();
    sets.iter_mut().enumerate().for_each(|(member, set)| *set = *first.entry(*set).or_insert(member));
    sets
}
