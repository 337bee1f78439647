//! One rank of a launch: it joins the others and measures with them.

use super::load::Burner;
use crate::failure::{Failure, Outcome};
use comm::{CommError, Communicator, Config, TuneJob};

/// Measures as one of the ranks that [`super::launch`] has started.
pub(crate) fn run() -> Outcome {
    let job = TuneJob::of_environment().map_err(Failure::bad_input)?;
    let job = job.ok_or_else(|| Failure::bad_input(anyhow::anyhow!("{} is not set", TuneJob::VARIABLE)))?;
    let mut config = Config::from_env().map_err(Failure::no)?;
    (config.table, config.joining) = (None, job.joining);
    let comm = Communicator::connect(&config).map_err(Failure::no)?;
    let _burner = job.loaded.then(Burner::start);
    job.run(&comm, Vec::new()).map_err(told)
}

/// Files that are no plans are the user's mistake.
pub(super) fn told(error: CommError) -> Failure {
    match error {
        CommError::Argument(_) => Failure::bad_input(error),
        _ => Failure::no(error),
    }
}
