//! Partitions of ranks, links, chunks or resources into sets.

use std::collections::BTreeMap;

/// The same sets, each called by its first member instead of by a label.
pub(crate) fn by_first(mut sets: Vec<usize>) -> Vec<usize> {
    let mut first = BTreeMap::new();
    sets.iter_mut().enumerate().for_each(|(member, set)| *set = *first.entry(*set).or_insert(member));
    sets
}
