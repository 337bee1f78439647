//! Schedules as files: `antiphon-schedule/1` (design page 2).
//!
//! [`read`] gives a [`ScheduleFile`]: the schedule, re-expressed over the demand that its collective means, and
//! whatever the file states that does not follow from it. Those are violations, not errors, so that a verifier
//! lists them beside the others; only what is no schedule at all is a [`FileError`]. [`write`] takes verified
//! schedules only, and the same schedule gives the same bytes.

mod layout;
mod resolve;
mod write;

pub use write::write;

use crate::{DemandError, Rejection, Schedule, VerifiedSchedule, Violation, verify};
use topology::Topology;

/// What the `format` key of a schedule says.
pub const FORMAT: &str = "antiphon-schedule/1";

/// A schedule that was read, not yet verified.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleFile {
    /// The schedule, with chunks numbered as [`crate::Demand`] numbers them.
    pub schedule: Schedule,
    /// What the file states that does not follow from its request and transfers.
    pub mismatches: Vec<Violation>,
}

impl ScheduleFile {
    /// Verifies what was read; mismatches of the file are violations as well.
    ///
    /// # Errors
    /// Every violation, those of the file first.
    pub fn verify(self, topology: &Topology) -> Result<VerifiedSchedule, Rejection> {
        let Self { schedule, mut mismatches } = self;
        match verify(schedule, topology) {
            Ok(verified) if mismatches.is_empty() => Ok(verified),
            Ok(verified) => Err(Rejection { violations: mismatches, schedule: Box::new(verified.into_schedule()) }),
            Err(rejection) => {
                mismatches.extend(rejection.violations);
                Err(Rejection { violations: mismatches, schedule: rejection.schedule })
            }
        }
    }
}

/// Reads a schedule. `origin` names the source in errors, such as the file's path.
///
/// Memory is bounded by the length of `text`: a short file cannot ask for a large demand.
///
/// # Errors
/// Text that is not JSON, unknown or repeated keys, values of the wrong type, chunk ids that repeat, and
/// requests that no collective answers.
pub fn read(text: &str, origin: &str) -> Result<ScheduleFile, FileError> {
    let file: layout::File = serde_json::from_str(text).map_err(|error| FileError::syntax(&error, origin))?;
    resolve::resolve(file, origin)
}

/// Why a text is no schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Not JSON, or not the keys and types of a schedule.
    #[error("{origin}:{line}:{column}: {message}")]
    Syntax {
        /// Where the text comes from.
        origin: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there, and what would be accepted.
        message: String,
    },
    /// The request is not one that a collective answers.
    #[error("{origin}: {source}")]
    Demand {
        /// Where the text comes from.
        origin: String,
        /// Why.
        source: DemandError,
    },
    /// Far fewer chunks than the request has.
    #[error(
        "{origin}: lists {listed} chunks, but the request has {expected}\nhint: check `ranks`, `members` and `chunks_per_rank`"
    )]
    TooFewChunks {
        /// Where the text comes from.
        origin: String,
        /// How many the file lists.
        listed: usize,
        /// How many the request has.
        expected: u64,
    },
}

impl FileError {
    fn syntax(error: &serde_json::Error, origin: &str) -> Self {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        // serde_json appends the position, which stands in front here.
        let message = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text).to_owned();
        Self::Syntax { origin: origin.to_owned(), line, column, message }
    }
}
