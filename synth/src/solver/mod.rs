//! Linear and 0/1 models, and how a solve ends.
//!
//! The principal types are [`Model`], which a formulation fills row by row, and [`Ending`], the result of [`solve`].
//! Only this module uses the C API of HiGHS. Short linear programs elsewhere in the crate use `good_lp`. The C API is
//! needed for three features: callbacks with the incumbent, interruption, and a sparse warm start.
//!
//! Work is limited by counts (simplex iterations, nodes), so that equal inputs give equal results. The deadline is an
//! additional limit for users.

#[cfg(not(feature = "solver"))]
mod absent;
#[cfg(feature = "solver")]
mod highs;
mod refutation;

#[cfg(not(feature = "solver"))]
pub(crate) use absent::{prices, ray, solve};
#[cfg(feature = "solver")]
pub(crate) use highs::{prices, ray, solve};

use crate::problem::Deadline;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Column(u32);

impl Column {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The model: minimise cost·x subject to row_lower ≤ A·x ≤ row_upper and lower ≤ x ≤ upper, some of x integer.
///
/// Rows are kept in compressed sparse form, in the order they were added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    cost: Vec<f64>,
    lower: Vec<f64>,
    upper: Vec<f64>,
    whole: Vec<bool>,
    row_lower: Vec<f64>,
    row_upper: Vec<f64>,
    row_start: Vec<i32>,
    entries: Vec<i32>,
    values: Vec<f64>,
}

impl Model {
    /// A new 0/1 column without cost.
    pub(crate) fn binary(&mut self) -> Column {
        self.column(0.0, 1.0, true)
    }

    /// A new continuous column without cost.
    pub(crate) fn continuous(&mut self, lower: f64, upper: f64) -> Column {
        self.column(lower, upper, false)
    }

    /// A new integer column without cost.
    pub(crate) fn integer(&mut self, lower: f64, upper: f64) -> Column {
        self.column(lower, upper, true)
    }

    fn column(&mut self, lower: f64, upper: f64, whole: bool) -> Column {
        let column = Column(u32::try_from(self.cost.len()).expect("models are bounded far below 2^32 columns"));
        self.cost.push(0.0);
        self.lower.push(lower);
        self.upper.push(upper);
        self.whole.push(whole);
        column
    }

    /// Sets the objective's coefficient of a column (the objective is minimised).
    pub(crate) fn set_cost(&mut self, column: Column, cost: f64) {
        self.cost[column.index()] = cost;
    }

    /// Adds to the objective's coefficient of a column.
    pub(crate) fn add_cost(&mut self, column: Column, cost: f64) {
        self.cost[column.index()] += cost;
    }

    /// Narrows a column to a single value.
    pub(crate) fn fix(&mut self, column: Column, value: f64) {
        self.lower[column.index()] = value;
        self.upper[column.index()] = value;
    }

    /// Adds lower ≤ Σ coefficient·column ≤ upper. A column named twice counts with the sum of its coefficients.
    pub(crate) fn row(&mut self, lower: f64, terms: impl IntoIterator<Item = (Column, f64)>, upper: f64) {
        let mut terms: Vec<(Column, f64)> = terms.into_iter().collect();
        terms.sort_by_key(|&(column, _)| column);
        terms.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0.0 };
            same
        });
        let start = i32::try_from(self.entries.len()).expect("models are bounded far below 2^31 coefficients");
        self.row_start.push(start);
        for (column, value) in terms.into_iter().filter(|&(_, value)| value != 0.0) {
            self.entries.push(column.0 as i32);
            self.values.push(value);
        }
        self.row_lower.push(lower);
        self.row_upper.push(upper);
    }

    /// Adds Σ coefficient·column ≤ upper.
    pub(crate) fn at_most(&mut self, terms: impl IntoIterator<Item = (Column, f64)>, upper: f64) {
        self.row(f64::NEG_INFINITY, terms, upper);
    }

    /// Adds Σ coefficient·column = value.
    pub(crate) fn equal(&mut self, terms: impl IntoIterator<Item = (Column, f64)>, value: f64) {
        self.row(value, terms, value);
    }

    /// The model of some rows and the columns in them, with no integer columns and no objective.
    pub(crate) fn part(&self, rows: &[usize]) -> Self {
        let mut place: BTreeMap<i32, Column> = BTreeMap::new();
        let mut part = Self::default();
        for &row in rows {
            let start = self.row_start[row] as usize;
            let end = self.row_start.get(row + 1).map_or(self.entries.len(), |&end| end as usize);
            let terms: Vec<(Column, f64)> = (start..end)
                .map(|at| {
                    let (entry, column) = (self.entries[at], self.entries[at] as usize);
                    let bounds = (self.lower[column], self.upper[column]);
                    (*place.entry(entry).or_insert_with(|| part.continuous(bounds.0, bounds.1)), self.values[at])
                })
                .collect();
            part.row(self.row_lower[row], terms, self.row_upper[row]);
        }
        part
    }

    /// The same model with no integer columns.
    pub(crate) fn relaxed(mut self) -> Self {
        self.whole.fill(false);
        self
    }

    pub(crate) fn columns(&self) -> usize {
        self.cost.len()
    }

    pub(crate) fn rows(&self) -> usize {
        self.row_lower.len()
    }
}

/// Limits and options of one solve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controls<'a> {
    /// The most simplex iterations in all.
    pub(crate) iterations: u64,
    /// The most nodes of the search tree.
    pub(crate) nodes: u64,
    /// Stop once (incumbent − bound) / incumbent is at most this.
    pub(crate) relative_gap: f64,
    /// Only solutions with a smaller objective are of interest.
    pub(crate) cutoff: Option<f64>,
    /// Whether heuristics may solve models within the model, and the search does not begin again. Their work is counted when they
    /// end, and they do not hear an interruption: only for small models.
    pub(crate) has_inner_models: bool,
    /// Seed of the solver's own random choices.
    pub(crate) seed: u64,
    /// When to stop at the latest.
    pub(crate) deadline: &'a Deadline,
}

impl<'a> Controls<'a> {
    /// So many iterations, and otherwise to the end, with the first seed.
    pub(crate) fn within(iterations: u64, deadline: &'a Deadline) -> Self {
        Self {
            iterations,
            nodes: u64::MAX,
            relative_gap: 0.0,
            cutoff: None,
            has_inner_models: false,
            seed: 0,
            deadline,
        }
    }

    /// No limits: solve to the end.
    #[cfg(test)]
    pub(crate) fn unlimited(deadline: &'a Deadline) -> Self {
        Self::within(u64::MAX, deadline)
    }
}

/// How a model ends without limits.
#[cfg(test)]
pub(crate) fn solved(model: &Model, start: &[(Column, f64)]) -> Ending {
    let deadline = Deadline::default();
    solve(model, start, &Controls::unlimited(&deadline), &mut |_| {}).expect("HiGHS works").ending
}

/// The solver's ray for a model, without limits.
#[cfg(test)]
pub(crate) fn solver_ray(model: &Model) -> Option<Vec<f64>> {
    let deadline = Deadline::default();
    ray(model, &Controls::unlimited(&deadline)).expect("HiGHS works")
}

/// A report of the solver while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelIncumbent {
    /// The objective of the best solution so far.
    pub(crate) objective: f64,
    /// The best proven bound on the objective.
    pub(crate) bound: f64,
}

/// A feasible solution.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Solution {
    values: Vec<f64>,
    pub(crate) objective: f64,
}

impl Solution {
    pub(crate) fn value(&self, column: Column) -> f64 {
        self.values[column.index()]
    }

    pub(crate) fn is_set(&self, column: Column) -> bool {
        self.value(column) > 0.5
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Ending {
    /// The best solution, within the gap that was asked for.
    Optimal(Solution),
    /// There is no solution (below the cutoff, if one was given).
    Infeasible,
    /// The objective is unbounded below.
    Unbounded,
    /// A limit was reached; the best solution so far and the best bound stand.
    Limit {
        /// The best solution so far.
        incumbent: Option<Solution>,
        /// The best proven bound on the objective; −∞ if there is none.
        bound: f64,
    },
}

/// How a solve ended, and the work that it took.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SolverOutcome {
    pub(crate) ending: Ending,
    /// Simplex iterations in all; may exceed the limit by the iterations between two callbacks.
    pub(crate) iterations: u64,
    pub(crate) nodes: u64,
}
