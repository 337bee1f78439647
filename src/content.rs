//! The data to be moved where it does not follow from the collective: the byte matrix of an alltoallv, the chunks of a
//! custom collective.
//!
//! The principal type is [`Content`], read from the files of `--matrix` and `--demand`. [`differences`] compares it
//! with the chunks that a schedule lists.

use crate::failure::{Failure, Outcome, read_text};
use schedule::{Chunk, Collective, Demand, DemandError, Findings, ReduceOp, Request, Violation};
use std::path::Path;

/// The content of a request.
pub(crate) enum Content {
    /// Nothing: the chunks follow from the collective.
    Standard,
    /// The bytes of every pair (alltoallv).
    Matrix(Vec<Vec<u64>>),
    /// The chunks (custom).
    Listed(Vec<Chunk>),
}

impl Content {
    /// Reads the files that a request names.
    pub(crate) fn read(matrix: Option<&Path>, demand: Option<&Path>) -> Outcome<Self> {
        Ok(match (matrix, demand) {
            (Some(path), _) => {
                let matrix = synth::matrix::parse(&read_text(path)?, &path.display().to_string());
                Self::Matrix(matrix.map_err(Failure::bad_input)?)
            }
            (None, Some(path)) => {
                let chunks = synth::matrix::parse_chunks(&read_text(path)?, &path.display().to_string());
                Self::Listed(chunks.map_err(Failure::bad_input)?)
            }
            (None, None) => Self::Standard,
        })
    }

    /// The size of the request; `given` is the user's size. If chunks have their own sizes, it follows from them.
    pub(crate) fn size(&self, given: Option<u64>) -> Outcome<u64> {
        let follows = match self {
            Self::Standard => false,
            Self::Matrix(_) => true,
            Self::Listed(chunks) => chunks.iter().all(|chunk| chunk.bytes.is_some()),
        };
        let needed = || Failure::bad_input(anyhow::anyhow!("--size is needed: it does not follow from the chunks"));
        if follows { Ok(given.unwrap_or(0)) } else { given.ok_or_else(needed) }
    }

    /// The demand of a request with this content.
    pub(crate) fn demand(&self, request: Request) -> Result<Demand, DemandError> {
        match self {
            Self::Standard => Demand::new(request),
            Self::Matrix(matrix) => Demand::from_matrix(request, matrix),
            Self::Listed(chunks) => {
                // The default reduction of combining chunks is the sum.
                let sum = chunks.iter().any(|chunk| chunk.combine).then_some(ReduceOp::Sum);
                Demand::listed(Request { op: request.op.or(sum), ..request }, chunks.clone())
            }
        }
    }
}

/// The differences between a schedule's demand and the user's matrix or demand file; `None` if the user gives none.
pub(crate) fn differences(
    claimed: &Demand,
    matrix: Option<&Path>,
    demand: Option<&Path>,
) -> Outcome<Option<Findings<Violation>>> {
    let collective = claimed.request().collective;
    check_flags(collective, matrix.is_some(), demand.is_some(), false)?;
    let content = Content::read(matrix, demand)?;
    if matches!(content, Content::Standard) {
        return Ok(None);
    }
    let asked = content.demand(claimed.request().clone())?;
    Ok(Some(schedule::check_asked(claimed, &asked)))
}

/// Checks that `--matrix` and `--demand` are used only with their collectives.
pub(crate) fn check_flags(collective: Collective, matrix: bool, demand: bool, needed: bool) -> Outcome {
    let flags = [(Collective::AllToAllV, matrix, "--matrix"), (Collective::Custom, demand, "--demand")];
    for (of, given, flag) in flags {
        if given && collective != of {
            return Err(Failure::bad_input(anyhow::anyhow!("{flag} is for {of} only, and this is {collective}")));
        }
        if needed && !given && collective == of {
            return Err(Failure::bad_input(anyhow::anyhow!("{of} needs {flag}")));
        }
    }
    Ok(())
}
