//! Sets of contributors to a sum, each stored once.
//!
//! The principal type is [`Contributors`]. A set is a binary tree over the positions of a chunk's holders, with 64
//! positions in a leaf. Equal trees are stored as one node, so two sets are equal exactly if their ids are, and similar
//! sets share most of their nodes. For example, each sum that goes around a ring is a range of positions; it adds a few
//! nodes to those of the previous sum.

use std::collections::BTreeMap;

/// The id of a set in its [`Contributors`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SumId(u32);

impl SumId {
    /// The empty set; no sum is empty.
    pub(super) const NONE: Self = Self(0);
}

/// A part of a set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum SetNode {
    /// 64 positions, one bit for each.
    Leaf(u64),
    /// The lower and the upper half of the positions.
    Branch(SumId, SumId),
}

/// All sets of one execution.
pub(super) struct Contributors {
    nodes: Vec<SetNode>,
    /// How many positions each node has.
    counts: Vec<u32>,
    ids: BTreeMap<SetNode, SumId>,
}

impl Contributors {
    pub(super) fn new() -> Self {
        // The empty set has the number 0 as a leaf and as a branch of any height.
        Self { nodes: vec![SetNode::Leaf(0)], counts: vec![0], ids: BTreeMap::new() }
    }

    /// The positions from `start` to `end` (exclusive) of `holders`.
    pub(super) fn range(&mut self, start: usize, end: usize, holders: usize) -> SumId {
        let leaves = holders.div_ceil(64).next_power_of_two();
        self.part(start, end, 0, 64 * leaves)
    }

    /// The part of a range that lies in the `length` positions from `first` on.
    fn part(&mut self, start: usize, end: usize, first: usize, length: usize) -> SumId {
        let (from, to) = (start.saturating_sub(first).min(length), end.saturating_sub(first).min(length));
        if from >= to {
            return SumId::NONE;
        }
        if length == 64 {
            return self.node(SetNode::Leaf(u64::MAX >> (64 - (to - from)) << from));
        }
        let half = length / 2;
        let lower = self.part(start, end, first, half);
        let upper = self.part(start, end, first + half, half);
        self.node(SetNode::Branch(lower, upper))
    }

    /// The union, and the first position that is in both.
    pub(super) fn add(&mut self, a: SumId, b: SumId) -> (SumId, Option<usize>) {
        if a == SumId::NONE {
            return (b, None);
        }
        if b == SumId::NONE {
            return (a, None);
        }
        match (self.nodes[a.0 as usize], self.nodes[b.0 as usize]) {
            (SetNode::Leaf(a), SetNode::Leaf(b)) => {
                let twice = (a & b != 0).then(|| (a & b).trailing_zeros() as usize);
                (self.node(SetNode::Leaf(a | b)), twice)
            }
            (SetNode::Branch(a_lower, a_upper), SetNode::Branch(b_lower, b_upper)) => {
                let (lower, twice) = self.add(a_lower, b_lower);
                let (upper, later) = self.add(a_upper, b_upper);
                let half = || 64 << self.height(lower).max(self.height(upper));
                let twice = twice.or_else(|| later.map(|position| half() + position));
                (self.node(SetNode::Branch(lower, upper)), twice)
            }
            (SetNode::Leaf(_), SetNode::Branch(..)) | (SetNode::Branch(..), SetNode::Leaf(_)) => {
                unreachable!("sets of one chunk have trees of one height")
            }
        }
    }

    /// The number of levels of branches above the leaves.
    fn height(&self, of: SumId) -> u32 {
        match self.nodes[of.0 as usize] {
            SetNode::Leaf(_) => 0,
            SetNode::Branch(lower, upper) => 1 + self.height(if lower == SumId::NONE { upper } else { lower }),
        }
    }

    /// How many contributors there are.
    pub(super) fn count(&self, of: SumId) -> u32 {
        self.counts[of.0 as usize]
    }

    fn node(&mut self, node: SetNode) -> SumId {
        let next = SumId(self.nodes.len() as u32);
        let id = *self.ids.entry(node).or_insert(next);
        if id == next {
            self.nodes.push(node);
            self.counts.push(match node {
                SetNode::Leaf(positions) => positions.count_ones(),
                SetNode::Branch(lower, upper) => self.count(lower) + self.count(upper),
            });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Compares random sets with those of the standard library.
    #[test]
    fn sets_are_those_that_they_should_be() {
        let mut random = crate::testing::schedules::Random(9);
        for holders in [1, 2, 63, 64, 65, 200, 1000] {
            let mut all = Contributors::new();
            let mut known: BTreeMap<SumId, BTreeSet<usize>> = BTreeMap::new();
            for _ in 0..50 {
                let (mut id, mut set) = (SumId::NONE, BTreeSet::new());
                for _ in 0..=random.below(6) {
                    let start = random.below(holders);
                    let end = start + 1 + random.below((holders - start).min(40));
                    let added = all.range(start, end, holders);
                    let (union, twice) = all.add(id, added);
                    assert_eq!(twice, (start..end).find(|position| set.contains(position)));
                    (id, set) = (union, set.into_iter().chain(start..end).collect());
                    assert_eq!(all.count(id) as usize, set.len());
                    assert_eq!(*known.entry(id).or_insert_with(|| set.clone()), set, "equal numbers, equal sets");
                }
                let numbers = known.iter().filter(|(_, other)| **other == set).count();
                assert_eq!(numbers, 1, "equal sets, equal numbers");
            }
        }
    }

    /// Every sum of every chunk of an allreduce around a ring of 1024 ranks: half a million ranges.
    #[test]
    fn sums_around_a_ring_take_few_nodes() {
        const RANKS: usize = 1024;
        let mut all = Contributors::new();
        let mut sums = 0;
        for first in 0..RANKS {
            let mut sum = all.range(first, first + 1, RANKS);
            for next in (first + 1..first + RANKS).map(|next| next % RANKS) {
                let one = all.range(next, next + 1, RANKS);
                let (more, twice) = all.add(sum, one);
                assert_eq!(twice, None);
                (sum, sums) = (more, sums + 1);
            }
            assert_eq!(sum, all.range(0, RANKS, RANKS));
        }
        assert!(all.nodes.len() < sums * 3 / 2, "{} nodes for {sums} sums", all.nodes.len());
    }
}
