//! `antiphon worker`: one rank of a job; its launcher gives it orders over standard input.

use crate::failure::{Failure, Outcome};
use crate::loading::Files;

/// Serves one job.
pub(crate) fn run() -> Outcome {
    let control = runtime::control_from_stdin().map_err(Failure::bad_input)?;
    // The launcher knows the error, and reports for all ranks.
    drop(runtime::serve(control, &Files));
    Ok(())
}
