//! What can go wrong in a call.

use crate::launcher::LaunchError;
use runtime::RunError;
use std::sync::Arc;

/// The result of a call.
pub type CommResult<T> = Result<T, CommError>;

/// Why a call did not complete.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A buffer or a rank does not fit the call. Nothing was sent, and the communicator stays as it is.
    #[error("{0}")]
    Argument(String),
    /// A peer is lost, late or does something else. This call and all later ones of the communicator end with it.
    #[error(transparent)]
    Run(#[from] Arc<RunError>),
    /// The environment does not say which rank this is, or nonsense.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// There is no plan, which would be a defect of ours.
    #[error("no plan: {0}")]
    NoPlan(String),
}

impl From<RunError> for CommError {
    fn from(error: RunError) -> Self {
        Self::Run(Arc::new(error))
    }
}
