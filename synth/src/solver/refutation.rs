//! Proofs that a model has no solution, not even a fractional one: Farkas multipliers, checked in whole numbers.
//!
//! The principal function is [`Model::refutation`]. Every solution obeys the sum of the rows, each times its
//! multiplier. If no point within the bounds of the columns obeys this inequality, there is no solution. The solver
//! suggests multipliers in floating point. They are accepted only after they were rounded to whole numbers and the sum
//! was computed here exactly.

use super::Model;

/// Denominators to try: the rays of these models are usually small fractions, and the last denominator is a fine grid
/// for the others.
const DENOMINATORS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 12.0, 60.0, 1e6];

impl Model {
    /// Multipliers of rows near `ray` that prove that there is no solution: (row, multiplier), rows ascending. A
    /// multiplier above zero uses the row's lower limit, one below zero its upper limit.
    ///
    /// `None` if no rounding of `ray` is a proof, or if the model has coefficients that are not whole.
    pub(crate) fn refutation(&self, ray: &[f64]) -> Option<Vec<(usize, i64)>> {
        let largest = ray.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        if !(largest.is_finite() && largest > 0.0) {
            return None;
        }
        // The smallest entry above the noise is taken as the unit.
        let noise = largest * 1e-7;
        let smallest = ray.iter().map(|value| value.abs()).filter(|&value| value > noise).fold(largest, f64::min);
        let scales =
            DENOMINATORS.iter().map(|denominator| denominator / smallest).filter(|&scale| scale * largest < 1e12);
        scales.flat_map(|scale| [scale, -scale]).find_map(|scale| {
            let whole = ray.iter().map(|value| (value * scale).round() as i64);
            let multipliers: Vec<(usize, i64)> =
                whole.enumerate().filter(|&(row, times)| times != 0 && self.side(row, times).is_some()).collect();
            self.is_refuted_by(&multipliers).then_some(multipliers)
        })
    }

    /// The limit that a multiplier of this sign uses, if the row has that limit.
    fn side(&self, row: usize, times: i64) -> Option<i128> {
        whole(if times > 0 { self.row_lower[row] } else { self.row_upper[row] })
    }

    /// Whether no point within the bounds of the columns obeys Σ times·row ≥ Σ times·side.
    fn is_refuted_by(&self, multipliers: &[(usize, i64)]) -> bool {
        let mut sum: Vec<i128> = vec![0; self.columns()];
        let mut needed: i128 = 0;
        for &(row, times) in multipliers {
            let Some(side) = self.side(row, times) else { return false };
            needed += i128::from(times) * side;
            let start = self.row_start[row] as usize;
            let end = self.row_start.get(row + 1).map_or(self.entries.len(), |&end| end as usize);
            for entry in start..end {
                let Some(value) = whole(self.values[entry]) else { return false };
                sum[self.entries[entry] as usize] += i128::from(times) * value;
            }
        }
        let mut most: i128 = 0;
        for (column, &weight) in sum.iter().enumerate().filter(|(_, weight)| **weight != 0) {
            let Some(bound) = whole(if weight > 0 { self.upper[column] } else { self.lower[column] }) else {
                return false;
            };
            most += weight * bound;
        }
        most < needed
    }
}

/// The number, if it is whole and small enough for exact sums.
fn whole(value: f64) -> Option<i128> {
    (value.fract() == 0.0 && value.abs() < 1e12).then_some(value as i128)
}

#[cfg(test)]
mod tests {
    use super::super::{Model, solver_ray};

    /// x + y ≥ `needed` and x + y ≤ 1.
    fn sharing(needed: f64) -> Model {
        let mut model = Model::default();
        let (x, y) = (model.binary(), model.binary());
        model.at_most([(x, 1.0), (y, 1.0)], 1.0);
        model.row(needed, [(x, 1.0), (y, 1.0)], f64::INFINITY);
        model
    }

    #[test]
    fn a_contradiction_is_proven_and_nothing_else() {
        let impossible = sharing(2.0);
        let ray = solver_ray(&impossible).expect("two are more than one");
        let proof = impossible.refutation(&ray).expect("a proof");
        assert_eq!(proof.len(), 2);
        assert_eq!(proof[0].1, -proof[1].1);
        assert_eq!(sharing(1.0).refutation(&[-1.0, 1.0]), None);
        assert_eq!(impossible.refutation(&[-1.0, 0.0]), None);
        assert_eq!(impossible.refutation(&[0.0, f64::NAN]), None);
    }

    #[test]
    fn a_solver_that_finds_a_point_has_no_ray() {
        assert_eq!(solver_ray(&sharing(1.0)), None);
    }
}
