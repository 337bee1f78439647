//! Schedules as files: `antiphon-schedule/1` (see `docs/formats.md`).
//!
//! [`read`] gives a [`ScheduleFile`]: the schedule, expressed with the chunks of its collective, and everything in the
//! file that does not follow from request and transfers. These mismatches are violations, not errors, so that a
//! verifier lists them with the others. Only a text that is no schedule at all is an error. [`write`] takes verified
//! schedules only, and the same schedule gives the same bytes.

mod layout;
mod resolve;
mod write;

pub use write::{write, write_compressed};

use crate::{
    CompressedSchedule, Findings, Generator, Rejection, Schedule, VerifiedCompressed, VerifiedSchedule, Violation,
    verify, verify_compressed,
};
use std::sync::Arc;
use topology::Topology;
use topology::document::{Document, PathSegment, TextError};

/// What the `format` key of a schedule says.
pub const FORMAT: &str = "antiphon-schedule/1";

/// A schedule that was read, not yet verified.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleFile {
    /// The schedule, with chunks numbered as [`crate::Demand`] numbers them.
    pub schedule: Schedule,
    /// The machine, where the file itself describes it.
    pub topology: Option<Arc<Topology>>,
    /// Values of the file that do not follow from its request and transfers.
    pub mismatches: Findings<Violation>,
}

impl ScheduleFile {
    /// Verifies the schedule; mismatches of the file are violations as well.
    ///
    /// # Errors
    /// Every violation, those of the file first.
    pub fn verify(self, topology: &Arc<Topology>) -> Result<VerifiedSchedule, Rejection> {
        let Self { schedule, mut mismatches, .. } = self;
        match verify(schedule, topology) {
            Ok(verified) if mismatches.is_empty() => Ok(verified),
            Ok(verified) => Err(Rejection { violations: mismatches, schedule: Box::new(verified.into_schedule()) }),
            Err(rejection) => {
                mismatches.append(rejection.violations);
                Err(Rejection { violations: mismatches, schedule: rejection.schedule })
            }
        }
    }
}

/// The two kinds of schedule files.
#[derive(Clone, PartialEq, Debug)]
pub enum AnyScheduleFile {
    /// Every transfer.
    Plain(ScheduleFile),
    /// One transfer of each orbit.
    Compressed(CompressedFile),
}

/// A compressed schedule that was read, not yet verified.
#[derive(Clone, PartialEq, Debug)]
pub struct CompressedFile {
    /// The base, with chunks numbered as [`crate::Demand`] numbers them, and the mismatches of the file.
    pub base: ScheduleFile,
    /// The generators that repeat it.
    pub generators: Vec<Generator>,
}

impl CompressedFile {
    /// Verifies the schedule without expanding it; mismatches of the file are violations as well.
    ///
    /// # Errors
    /// Every violation, those of the file first.
    pub fn verify(self, topology: &Arc<Topology>) -> Result<VerifiedCompressed, Rejection> {
        let Self { base: ScheduleFile { schedule: base, mut mismatches, .. }, generators } = self;
        match verify_compressed(CompressedSchedule { base, generators }, topology) {
            Ok(verified) if mismatches.is_empty() => Ok(verified),
            Ok(verified) => Err(Rejection { violations: mismatches, schedule: Box::new(verified.base().clone()) }),
            Err(rejection) => {
                mismatches.append(rejection.violations);
                Err(Rejection { violations: mismatches, schedule: rejection.schedule })
            }
        }
    }
}

/// Reads a plain schedule. `origin` names the source in errors, such as the file's path.
///
/// Memory is bounded by the length of `text`: a short file cannot cause a large demand.
///
/// # Errors
/// Text that is not JSON, unknown or repeated keys, values of the wrong type, chunk ids that repeat, and requests that
/// are not valid for their collective; each with its line and column.
pub fn read(text: &str, origin: &str) -> Result<ScheduleFile, TextError> {
    match read_any(text, origin)? {
        AnyScheduleFile::Plain(file) => Ok(file),
        AnyScheduleFile::Compressed(_) => {
            let reason = "the schedule is orbit-compressed, and a plain one is needed".to_owned();
            Err(Document::json(origin, text).fault(&[PathSegment::Key("symmetry")], reason))
        }
    }
}

/// Reads a schedule, plain or compressed (`crate::compressed` says what the keys mean).
///
/// Memory is bounded by the length of `text` here as well: a compressed schedule has a list of images of all chunks.
///
/// # Errors
/// As [`read`].
pub fn read_any(text: &str, origin: &str) -> Result<AnyScheduleFile, TextError> {
    let document = Document::json(origin, text);
    resolve::resolve(document.parse()?).map_err(|fault| document.fault(&[PathSegment::Key(fault.key)], fault.reason))
}
