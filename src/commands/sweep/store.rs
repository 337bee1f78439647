//! The folder of a sweep: what is asked, what is finished, and the lock that keeps a second sweep away.
//!
//! The principal type is [`Store`]:
//!
//! | file | is |
//! |---|---|
//! | `manifest.json` | all that the answer depends on; a sweep that asks for anything else is refused |
//! | `cells/N.json` | the [`Record`] of finished cell N |
//! | `plans/N.json` | its plan |
//! | `windows/S/` | of series S, what `synth --sizes` writes |
//! | `results.json` | everything, merged |
//!
//! A file appears under its name only when it is complete and on the disk, so that a sweep can be killed at any time;
//! `windows/` is written anew whenever a sweep ends.

use super::cells::Cell;
use crate::failure::{Failure, Outcome, io_failure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How the names of files begin that are being written.
const UNFINISHED: &str = ".unfinished-";

/// How a cell ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Record {
    /// There is a plan.
    Found {
        /// When it is done, in µs.
        makespan_us: f64,
        /// No plan is faster.
        lower_bound_us: f64,
        /// Which bound that is.
        bound: String,
        /// makespan / bound − 1.
        gap: Option<f64>,
        /// Who found it.
        strategy: String,
        /// Why the search ended.
        stop_reason: String,
        /// How the data is cut.
        chunks_per_rank: u32,
        /// How many messages.
        transfers: usize,
        /// How long the search took; not in the merged results, which are the same in every run.
        seconds: f64,
    },
    /// There is no plan, for a good reason.
    None {
        /// Such as that the sketch is infeasible.
        reason: String,
    },
    /// Its workers died. A sweep that continues this one tries again.
    Failed {
        /// How.
        reason: String,
    },
}

/// An open folder.
pub(crate) struct Store {
    folder: PathBuf,
    /// Locked as long as this sweep lives, however it ends.
    _lock: File,
}

impl Store {
    /// Opens `folder` for the sweep that `manifest` describes, and makes it if it is not there.
    ///
    /// # Errors
    /// Bad input: a folder in use, one of another sweep, one that cannot be written.
    pub(crate) fn open(folder: &Path, manifest: &str) -> Outcome<Self> {
        let fail = |error| io_failure(folder, error);
        ["cells", "plans"].iter().try_for_each(|it| fs::create_dir_all(folder.join(it))).map_err(fail)?;
        let lock = File::create(folder.join("lock")).map_err(fail)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let reason = anyhow::anyhow!("{}: another sweep is at work here", folder.display());
                return Err(Failure::bad_input(reason).hint("wait for it, or name another folder with -o"));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let store = Self { folder: folder.to_owned(), _lock: lock };
        ["", "cells", "plans"].iter().try_for_each(|it| store.sweep_out(it)).map_err(fail)?;
        let path = folder.join("manifest.json");
        match fs::read_to_string(&path) {
            Ok(there) if there == manifest => {}
            Ok(_) => {
                let reason = anyhow::anyhow!("{}: is of a sweep that asks for something else", path.display());
                let hint = "name another folder with -o, or ask for the same topologies (and their contents), \
                            collectives, sizes, sketches (and their contents), chunks, strategy, limits and seed";
                return Err(Failure::bad_input(reason).hint(hint));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => store.write("manifest.json", manifest)?,
            Err(error) => return Err(io_failure(&path, error)),
        }
        Ok(store)
    }

    /// Removes what a sweep that was killed had not finished writing.
    fn sweep_out(&self, folder: &str) -> io::Result<()> {
        for entry in fs::read_dir(self.folder.join(folder))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Where the plan of a cell is, relative to the folder.
    pub(crate) fn plan_name(number: usize) -> String {
        format!("plans/{number}.json")
    }

    /// Where a file of the folder is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The record of a cell, if it is finished. What is damaged, or failed, counts as not finished.
    pub(crate) fn record(&self, number: usize) -> Option<Record> {
        let text = fs::read_to_string(self.path(&format!("cells/{number}.json"))).ok()?;
        let record = serde_json::from_str(&text).ok()?;
        match record {
            Record::Failed { .. } => None,
            Record::Found { .. } if !self.path(&Self::plan_name(number)).is_file() => None,
            _ => Some(record),
        }
    }

    /// Keeps the record of a finished cell.
    pub(crate) fn keep(&self, number: usize, record: &Record) -> Outcome {
        let text = serde_json::to_string_pretty(record).map_err(Failure::no)?;
        self.write(&format!("cells/{number}.json"), &format!("{text}\n"))
    }

    /// Writes a file of the folder, all or nothing.
    pub(crate) fn write(&self, name: &str, text: &str) -> Outcome {
        let path = self.path(name);
        whole(&path, |out| out.write_all(text.as_bytes())).map_err(|error| io_failure(&path, error))
    }
}

/// Writes a file all or nothing: under another name, to the disk, and then under its own.
pub(crate) fn whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
    let mut out = io::BufWriter::new(temporary);
    write(&mut out)?;
    let temporary = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|error| error.error)?;
    // So that the name survives a power failure as well.
    File::open(folder)?.sync_all()
}

/// A cell and its record, as in the merged results.
#[derive(Serialize)]
pub(crate) struct Merged<'a> {
    number: usize,
    #[serde(flatten)]
    cell: &'a Cell,
    #[serde(flatten)]
    outcome: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
}

impl<'a> Merged<'a> {
    pub(crate) fn new(number: usize, cell: &'a Cell, record: Option<&Record>) -> Outcome<Self> {
        let mut outcome = match record {
            Some(record) => serde_json::to_value(record).map_err(Failure::no)?,
            None => serde_json::json!({"status": "open"}),
        };
        if let Some(fields) = outcome.as_object_mut() {
            fields.remove("seconds");
        }
        let plan = matches!(record, Some(Record::Found { .. })).then(|| Store::plan_name(number));
        Ok(Self { number, cell, outcome, plan })
    }
}
