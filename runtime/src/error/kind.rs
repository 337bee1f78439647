//! Errors for callers who cannot look at their parts, such as other languages and other processes.
//!
//! The principal type is [`RunErrorKind`].

use super::RunError;
use crate::verdict::Cause;
use serde::{Deserialize, Serialize};
use std::fmt;
use topology::Rank;

/// What kind of trouble an error is, for callers who cannot look at its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunErrorKind {
    /// A rank is gone, or its connection.
    PeerLost,
    /// A rank did not do its part in time.
    Late,
    /// Ranks do not make the same call.
    Mismatch,
    /// A rank has ended all calls.
    Aborted,
    /// A value of the caller makes no sense.
    Argument,
    /// The operating system refused something.
    System,
    /// A defect.
    Internal,
}

impl RunErrorKind {
    pub(crate) const ALL: [Self; 7] =
        [Self::PeerLost, Self::Late, Self::Mismatch, Self::Aborted, Self::Argument, Self::System, Self::Internal];
}

/// Why no call of a communicator can succeed any more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Breach {
    /// The rank whose call failed first.
    pub by: Rank,
    /// The rank that was the cause, if it is known.
    pub cause: Option<Rank>,
    /// What kind of trouble it was.
    pub kind: RunErrorKind,
    /// What it was, in that rank's words.
    pub reason: String,
}

impl Breach {
    /// What the failure of a call of rank `by` means for all others.
    pub(crate) fn new(by: Rank, error: &RunError) -> Self {
        Self { by, cause: error.peer(), kind: error.kind(), reason: error.chain() }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RunErrorKind::Aborted => write!(f, "the calls of this communicator are over: {}", self.reason),
            _ => write!(f, "a call of rank {} failed, and so do all others: {}", self.by, self.reason),
        }
    }
}

impl RunError {
    /// The error of a call that cannot be made any more because of this one, which is one of rank `own`.
    pub(crate) fn again(&self, own: Rank) -> Self {
        match self {
            Self::Verdict(verdict) => Self::Verdict(*verdict),
            Self::Broken(breach) => Self::Broken(breach.clone()),
            // Why a connection has ended is found out when the error is told.
            Self::Lane { rank, peer, source } => {
                let source = std::io::Error::new(source.kind(), source.to_string());
                Self::Lane { rank: *rank, peer: *peer, source }
            }
            _ => Self::Broken(Breach::new(own, self)),
        }
    }

    /// The other rank that has to do with this error, if there is one.
    pub(crate) fn peer(&self) -> Option<Rank> {
        match self {
            Self::Lane { peer, .. } | Self::OtherCall { peer, .. } | Self::MessageLength { peer, .. } => Some(*peer),
            Self::Deadline { peer, .. } => *peer,
            _ => None,
        }
    }

    /// The other ranks that have to do with this error.
    pub(crate) fn named(&self) -> Vec<Rank> {
        match self {
            Self::Verdict(verdict) => vec![verdict.rank],
            Self::Broken(Breach { by, cause, .. }) => {
                let others = cause.iter().filter(|cause| *cause != by);
                std::iter::once(by).chain(others).copied().collect()
            }
            _ => self.peer().into_iter().collect(),
        }
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> RunErrorKind {
        match self {
            Self::Verdict(verdict) | Self::Ended { verdict, .. } => match verdict.cause {
                Cause::Died | Cause::Silent | Cause::Orphaned | Cause::Cut | Cause::Lost => RunErrorKind::PeerLost,
                Cause::Late => RunErrorKind::Late,
                Cause::Failed => RunErrorKind::Aborted,
                Cause::Disagrees => RunErrorKind::Mismatch,
            },
            Self::InWork { source, .. } => source.kind(),
            Self::Placed { error, .. } => error.kind(),
            Self::Broken(breach) => breach.kind,
            Self::Lane { .. } | Self::Abandoned { .. } | Self::Departed { .. } => RunErrorKind::PeerLost,
            Self::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                RunErrorKind::Argument
            }
            Self::Deadline { .. } | Self::Absent { .. } | Self::Unreachable { .. } => RunErrorKind::Late,
            Self::Stamp { .. } | Self::OtherCall { .. } | Self::MessageLength { .. } => RunErrorKind::Mismatch,
            Self::Declined { .. } | Self::Refused { .. } => RunErrorKind::Aborted,
            Self::BufferSize { .. } | Self::TooLarge { .. } | Self::Indivisible { .. } | Self::Mismatch { .. } => {
                RunErrorKind::Argument
            }
            Self::TooManyRepetitions { .. } | Self::TooSlow { .. } => RunErrorKind::Argument,
            Self::System { .. } | Self::Rendezvous { .. } | Self::OpenFiles { .. } => RunErrorKind::System,
            Self::NotEnoughMemory { .. } | Self::TooManyConnections { .. } => RunErrorKind::System,
            Self::Program { .. } | Self::Protocol { .. } => RunErrorKind::Internal,
        }
    }
}

/// An error and its chain of causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |cause| cause.source()) {
        let text = cause.to_string();
        // A transparent error says what its cause says.
        if texts.last() != Some(&text) {
            texts.push(text);
        }
    }
    texts.join(": ")
}
