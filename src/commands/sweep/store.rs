//! The folder of a sweep: the request, the finished cells, and a lock against a second sweep.
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
//! A file gets its name only when it is complete and on the disk, so a sweep can be killed at any time. `windows/` is
//! written again whenever a sweep ends.

use super::cells::SweepCell;
use crate::failure::{Failure, Outcome, io_failure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The prefix of files that are being written.
const UNFINISHED: &str = ".unfinished-";

/// The result of a cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Record {
    /// There is a plan.
    Found {
        /// Its makespan, in µs.
        makespan_us: f64,
        /// No plan is faster.
        lower_bound_us: f64,
        /// The name of that bound.
        bound: String,
        /// makespan / bound − 1.
        gap: Option<f64>,
        /// The strategy that found it.
        strategy: String,
        /// Why the search ended.
        stop_reason: String,
        /// Its number of chunks per rank.
        chunks_per_rank: u32,
        /// How many messages.
        transfers: usize,
        /// How long the search took; not in the merged results, which are the same in every run.
        seconds: f64,
    },
    /// There is no plan for this problem.
    None {
        /// The reason, for example an infeasible sketch.
        reason: String,
    },
    /// Its workers died. If the sweep is continued, the cell is tried again.
    Failed {
        /// How they died.
        reason: String,
    },
}

/// An open folder.
pub(crate) struct Store {
    folder: PathBuf,
    /// Locked while this sweep runs; the system unlocks it, however the sweep ends.
    _lock: File,
}

impl Store {
    /// Opens `folder` for the sweep that `manifest` describes, and creates it if necessary.
    ///
    /// # Errors
    /// Bad input: a folder that is in use, that belongs to another sweep, or that cannot be written.
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

    /// Removes files that a killed sweep had not finished.
    fn sweep_out(&self, folder: &str) -> io::Result<()> {
        for entry in fs::read_dir(self.folder.join(folder))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The path of a cell's plan, relative to the folder.
    pub(crate) fn plan_name(number: usize) -> String {
        format!("plans/{number}.json")
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The record of a cell, if it is finished. Damaged or failed records count as not finished.
    pub(crate) fn record(&self, number: usize) -> Option<Record> {
        let text = fs::read_to_string(self.path(&format!("cells/{number}.json"))).ok()?;
        let record = serde_json::from_str(&text).ok()?;
        match record {
            Record::Failed { .. } => None,
            Record::Found { .. } if !self.path(&Self::plan_name(number)).is_file() => None,
            _ => Some(record),
        }
    }

    /// Stores the record of a finished cell.
    pub(crate) fn keep(&self, number: usize, record: &Record) -> Outcome {
        let text = serde_json::to_string_pretty(record).map_err(Failure::no)?;
        self.write(&format!("cells/{number}.json"), &format!("{text}\n"))
    }

    /// Writes a file of the folder completely or not at all.
    pub(crate) fn write(&self, name: &str, text: &str) -> Outcome {
        let path = self.path(name);
        whole(&path, |out| out.write_all(text.as_bytes())).map_err(|error| io_failure(&path, error))
    }
}

/// Writes a file completely or not at all: first under another name, then to the disk, then under its own name.
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
pub(crate) struct MergedRecord<'a> {
    number: usize,
    #[serde(flatten)]
    cell: &'a SweepCell,
    #[serde(flatten)]
    outcome: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
}

impl<'a> MergedRecord<'a> {
    pub(crate) fn new(number: usize, cell: &'a SweepCell, record: Option<&Record>) -> Outcome<Self> {
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
