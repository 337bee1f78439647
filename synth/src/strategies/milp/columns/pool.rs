//! The trees to choose from.
//!
//! The principal type is [`TreePool`].

use crate::strategies::Context;
use crate::strategies::trees::choice::{ChunkTree, TreeChoice};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::ops::Range;

/// A tree, and what it costs.
pub(super) struct PooledTree {
    pub(super) links: ChunkTree,
    /// How long it keeps slots busy, in µs.
    pub(super) busy: Vec<(usize, f64)>,
    /// When its last receiver has the chunk if nothing else is sent, in µs.
    pub(super) height: f64,
    /// How many chunks took it in the best packing.
    packed: usize,
}

/// For each class of equal chunks, its trees.
pub(super) struct TreePool<'a> {
    choice: &'a TreeChoice<'a>,
    pub(super) classes: Vec<Range<usize>>,
    pub(super) trees: Vec<Vec<PooledTree>>,
    known: BTreeSet<(usize, ChunkTree)>,
    pub(super) slots: usize,
}

impl<'a> TreePool<'a> {
    /// Packed trees, in several styles; `None` if some rank cannot be reached or there is no time.
    pub(super) fn packed(
        choice: &'a TreeChoice<'a>,
        styles: &[f64],
        context: &Context<'_>,
        random: &mut Pcg64Mcg,
    ) -> Option<Self> {
        let classes = choice.classes();
        let trees = classes.iter().map(|_| Vec::new()).collect();
        let mut pool = Self { choice, classes, trees, known: BTreeSet::new(), slots: choice.slots() };
        let mut lowest = f64::INFINITY;
        for &idle in styles {
            let target = context.bound.0;
            let Some(packed) = choice.packed(idle, target, context, random) else { continue };
            let peak = pool.peak(&packed);
            let is_best = peak < lowest;
            lowest = lowest.min(peak);
            if is_best {
                pool.trees.iter_mut().flatten().for_each(|tree| tree.packed = 0);
            }
            for (class, units) in pool.classes.clone().into_iter().enumerate() {
                for unit in units {
                    let at = pool.place_of(class, unit, packed[unit].clone());
                    pool.trees[class][at].packed += usize::from(is_best);
                }
            }
        }
        pool.trees.iter().all(|trees| !trees.is_empty()).then_some(pool)
    }

    /// The longest busy time of a slot.
    fn peak(&self, trees: &[ChunkTree]) -> f64 {
        let mut busy = vec![0.0; self.slots];
        let all = trees.iter().enumerate().flat_map(|(unit, tree)| self.choice.busy(unit, tree));
        all.for_each(|(slot, time)| busy[slot] += time);
        busy.into_iter().fold(0.0, f64::max)
    }

    /// Where a tree stands in its class, in which it joins if it is new.
    fn place_of(&mut self, class: usize, unit: usize, links: ChunkTree) -> usize {
        let mut key = links.clone();
        key.sort_unstable();
        if !self.known.insert((class, key.clone())) {
            let same = |tree: &PooledTree| {
                let mut other = tree.links.clone();
                other.sort_unstable();
                other == key
            };
            return self.trees[class].iter().position(same).unwrap_or(0);
        }
        let (mut busy, height) = (self.choice.busy(unit, &links), self.choice.height(unit, &links));
        busy.sort_unstable_by_key(|&(slot, _)| slot);
        self.trees[class].push(PooledTree { links, busy, height, packed: 0 });
        self.trees[class].len() - 1
    }

    /// The first unit of each class.
    pub(super) fn firsts(&self) -> impl Iterator<Item = usize> + use<'a, '_> {
        self.classes.iter().map(|units| units.start)
    }

    /// Adds a tree to each class.
    pub(super) fn add(&mut self, trees: Vec<ChunkTree>) {
        for (class, tree) in trees.into_iter().enumerate() {
            self.place_of(class, self.classes[class].start, tree);
        }
    }

    /// The number of all trees.
    pub(super) fn trees(&self) -> usize {
        self.trees.iter().map(Vec::len).sum()
    }

    /// How many chunks of a class took a tree in the best packing.
    pub(super) fn packed_count(&self, class: usize, tree: usize) -> usize {
        self.trees[class][tree].packed
    }

    /// A tree for each unit, where `count` says how many units of a class take a tree. Too few are filled up with the first tree.
    pub(super) fn trees_of(&self, count: impl Fn(usize, usize) -> usize) -> Vec<ChunkTree> {
        let of_class = |(class, units): (usize, &Range<usize>)| {
            let trees = self.trees[class].iter().enumerate();
            let chosen = trees.flat_map(|(at, tree)| std::iter::repeat_n(&tree.links, count(class, at)));
            let chosen = chosen.chain(std::iter::repeat(&self.trees[class][0].links));
            chosen.take(units.len()).cloned().collect::<Vec<_>>()
        };
        self.classes.iter().enumerate().flat_map(of_class).collect()
    }
}
