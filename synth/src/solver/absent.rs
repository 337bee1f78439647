//! What stands for the solver where the crate is built without the feature `solver`: programs that only want textbook
//! algorithms do not link HiGHS.

use super::{Column, Controls, Model, ModelIncumbent, Solution, SolverOutcome};
use crate::problem::SynthError;

fn none<T>() -> Result<T, SynthError> {
    Err(SynthError::Solver("this program was built without the MILP solver".to_owned()))
}

/// See `highs::solve`.
///
/// # Errors
/// Always.
pub(crate) fn solve(
    _model: &Model,
    _start: &[(Column, f64)],
    _controls: &Controls<'_>,
    _on_incumbent: &mut dyn FnMut(ModelIncumbent),
) -> Result<SolverOutcome, SynthError> {
    none()
}

/// See `highs::ray`.
///
/// # Errors
/// Always.
pub(crate) fn ray(_model: &Model, _controls: &Controls<'_>) -> Result<Option<Vec<f64>>, SynthError> {
    none()
}

/// See `highs::prices`.
///
/// # Errors
/// Always.
pub(crate) fn prices(_model: &Model, _controls: &Controls<'_>) -> Result<Option<(Solution, Vec<f64>)>, SynthError> {
    none()
}
