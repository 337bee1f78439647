//! The model that chooses trees.
//!
//! The principal type is [`ColumnMaster`].
//!
//! | column | meaning |
//! |---|---|
//! | n\[c,t\] ∈ {0, 1, …} | how many chunks of class c take tree t |
//! | T | the end |
//!
//! | row | |
//! |---|---|
//! | Σ n\[c,t\] = chunks of c | for each class |
//! | Σ busy\[t,s\] · n\[c,t\] ≤ T | for each link and resource s |
//! | Σ height\[t\] · n\[c,t\] ≤ chunks of c · T | for each class: trees that take longer alone cannot be right |

use super::pool::{PooledTree, TreePool};
use crate::solver::{Column, Model, Solution};

/// The model over a pool.
pub(super) struct ColumnMaster<'a> {
    pool: &'a TreePool<'a>,
    pub(super) model: Model,
    /// For each class and tree.
    columns: Vec<Vec<Column>>,
    /// The slots that have a row, in the order of the rows; these are the first rows.
    slots: Vec<usize>,
}

impl<'a> ColumnMaster<'a> {
    /// `weight` says how much the mean height of trees counts beside the end.
    pub(super) fn new(pool: &'a TreePool<'a>, weight: f64) -> Self {
        let mut model = Model::default();
        let end = model.continuous(0.0, f64::INFINITY);
        model.set_cost(end, 1.0);
        let units = pool.classes.iter().map(ExactSizeIterator::len).sum::<usize>().max(1) as f64;
        let mut busy: Vec<Vec<(Column, f64)>> = vec![Vec::new(); pool.slots];
        let mut columns = Vec::with_capacity(pool.classes.len());
        for (class, trees) in pool.classes.iter().zip(&pool.trees) {
            let column = |tree: &PooledTree| {
                let column = model.integer(0.0, class.len() as f64);
                model.set_cost(column, weight * tree.height / units);
                tree.busy.iter().for_each(|&(slot, time)| busy[slot].push((column, time)));
                column
            };
            columns.push(trees.iter().map(column).collect::<Vec<_>>());
        }
        let slots: Vec<usize> = (0..pool.slots).filter(|&slot| !busy[slot].is_empty()).collect();
        for &slot in &slots {
            model.at_most(busy[slot].iter().copied().chain([(end, -1.0)]), 0.0);
        }
        for ((class, trees), columns) in pool.classes.iter().zip(&pool.trees).zip(&columns) {
            let count = class.len() as f64;
            let heights = columns.iter().zip(trees).map(|(&column, tree)| (column, tree.height / count));
            model.at_most(heights.chain([(end, -1.0)]), 0.0);
            model.equal(columns.iter().map(|&column| (column, 1.0)), count);
        }
        Self { pool, model, columns, slots }
    }

    /// The best packing.
    pub(super) fn start(&self) -> Vec<(Column, f64)> {
        let of_class = |(class, columns): (usize, &Vec<Column>)| {
            let count = |(tree, &column): (usize, &Column)| (column, self.pool.packed_count(class, tree) as f64);
            columns.iter().enumerate().map(count).collect::<Vec<_>>()
        };
        self.columns.iter().enumerate().flat_map(of_class).collect()
    }

    /// How many chunks of a class take a tree in a solution.
    pub(super) fn count(&self, solution: &Solution, class: usize, tree: usize) -> usize {
        solution.value(self.columns[class][tree]).round().max(0.0) as usize
    }

    /// The prices of a microsecond of each slot, and of the height of a tree of each class, from the duals of the rows.
    pub(super) fn prices(&self, duals: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut prices = vec![0.0; self.pool.slots];
        self.slots.iter().zip(duals).for_each(|(&slot, dual)| prices[slot] = dual.abs());
        // Each class has two rows: of its heights, and of its count.
        let heights = duals[self.slots.len()..].chunks_exact(2).zip(&self.pool.classes);
        (prices, heights.map(|(duals, class)| duals[0].abs() / class.len() as f64).collect())
    }
}
