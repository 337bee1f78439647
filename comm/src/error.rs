//! What can go wrong in a call.

use crate::launcher::LaunchError;
use runtime::{RunError, RunErrorKind, chain};
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
    /// A rank has no GPU, no driver or no NCCL, or these refuse something. All ranks get the same.
    #[error("{0}")]
    Gpu(String),
    /// There is no plan, which would be a defect of ours.
    #[error("no plan: {0}")]
    NoPlan(String),
}

impl From<RunError> for CommError {
    fn from(error: RunError) -> Self {
        Self::Run(Arc::new(error))
    }
}

/// An error, its causes, and what to do about it, on one line: for programs in other languages, which see nothing else.
pub fn explained(error: &CommError) -> String {
    let text = chain(error);
    match error {
        CommError::Run(error) => hint_of(error).map_or(text.clone(), |hint| format!("{text}; hint: {hint}")),
        _ => text,
    }
}

fn hint_of(error: &RunError) -> Option<&'static str> {
    match (error, error.kind()) {
        (RunError::Absent { .. } | RunError::Unreachable { .. }, RunErrorKind::Late) => {
            Some("all ranks must be started, with the same address of rank 0")
        }
        (_, RunErrorKind::Late) => Some("ANTIPHON_TIMEOUT=SECONDS lets calls wait longer"),
        (_, RunErrorKind::PeerLost) => {
            Some("once ranks have joined, rebuild makes a communicator of those that are left")
        }
        (_, RunErrorKind::Mismatch) => Some("all ranks must make the same calls in the same order"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Rank;

    #[test]
    fn an_error_says_what_to_do() {
        let late = RunError::Absent {
            missing: vec![Rank(1)],
            at: "h:1".to_owned(),
            limit: std::time::Duration::from_secs(1),
            refused: 0,
        };
        let lost = || {
            let source = std::io::Error::other("it is gone");
            RunError::Lane { rank: Rank(0), peer: Rank(1), source }
        };
        let placed = RunError::Placed { error: Box::new(lost()), places: "rank 1 is on n1".to_owned() };
        assert_eq!(placed.kind(), RunErrorKind::PeerLost);
        let other = RunError::OtherCall { rank: Rank(0), peer: Rank(1), calls: [1, 2] };
        let launch = CommError::Launch(LaunchError { text: "x".to_owned(), hint: Some("y".to_owned()) });
        let cases = [
            (late.into(), "hint: all ranks must be started"),
            (lost().into(), "rank 1: it is gone; hint: once ranks have joined, rebuild"),
            (placed.into(), "rank 1: it is gone (rank 1 is on n1); hint: once ranks have joined, rebuild"),
            (other.into(), "; hint: all ranks must make the same calls"),
            (launch, "x; hint: y"),
        ];
        for (error, expected) in cases {
            let text = explained(&error);
            assert!(text.contains(expected) && text.matches("hint: ").count() == 1 && !text.contains('\n'), "{text}");
        }
    }
}
