//! Plans from files: which plan serves which call.
//!
//! The principal type is [`PlanTable`]. It reads what `antiphon synth` writes: one plan, which serves its collective at every
//! size, or the index of the plans of several sizes (`synth --sizes`), or a folder of such files. It reads the tuning tables of
//! `antiphon demo` as well. A plan serves any data type, any reduction, and calls in place or not. It is verified before it is used.
//! A plan that cannot serve a call is never used silently: stock serves the call, and one line says why.

use crate::stock::CallKind;
use program::{LowerOptions, VerifiedProgram, check, lower};
use schedule::file::ScheduleFile;
use schedule::{Collective, Demand, Request, Schedule, file};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use topology::Topology;
use tune::Table;

/// Plans from files.
#[derive(Debug, Default)]
pub struct PlanTable {
    entries: Vec<TableEntry>,
}

/// A plan, and the calls that it serves.
#[derive(Debug)]
struct TableEntry {
    /// From this size on (inclusive), in bytes as the collective counts them.
    from_bytes: u64,
    /// Up to this size (exclusive).
    to_bytes: u64,
    plan: TablePlan,
}

/// A plan that was read, and not yet verified.
#[derive(Debug)]
struct TablePlan {
    /// For statistics: how it was made, and its file.
    name: String,
    schedule: Schedule,
    topology: Arc<Topology>,
}

/// A file that is no table, or names one that is not there.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TableFault(String);

/// What the `format` key of the index of `synth --sizes` says.
const SWEEP_FORMAT: &str = "antiphon-sweep/1";

/// The index of `synth --sizes`.
#[derive(Deserialize)]
struct SweepIndex {
    windows: Vec<SweepWindow>,
}

#[derive(Deserialize)]
struct SweepWindow {
    from_bytes: u64,
    to_bytes: u64,
    /// Relative to the index.
    file: String,
}

/// What the `format` key of a file says.
#[derive(Deserialize)]
struct FormatKey {
    format: String,
}

fn fault(path: &Path, why: impl std::fmt::Display) -> TableFault {
    TableFault(format!("{}: {why}", path.display()))
}

fn text_of(path: &Path) -> Result<String, TableFault> {
    topology::read_text(&path.to_string_lossy()).map_err(|error| TableFault(error.to_string()))
}

impl PlanTable {
    /// Reads a file, or all files of a folder whose names end with `.json`.
    ///
    /// # Errors
    /// [`TableFault`] with the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, TableFault> {
        let mut table = Self::default();
        if !path.is_dir() {
            table.add(path)?;
            return Ok(table);
        }
        let listed = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut files: Vec<PathBuf> =
            listed.map_err(|error| fault(path, error))?.iter().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|found| found == "json"));
        // All ranks must read them in the same order.
        files.sort();
        // An index names its plans.
        let index = path.join("index.json");
        match files.contains(&index) {
            true => table.add(&index)?,
            false => files.iter().try_for_each(|file| table.add(file))?,
        }
        Ok(table)
    }

    fn add(&mut self, path: &Path) -> Result<(), TableFault> {
        let text = text_of(path)?;
        let key: FormatKey = serde_json::from_str(&text).map_err(|error| fault(path, error))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        match key.format.as_str() {
            file::FORMAT => self.push(path, &text, 0, u64::MAX),
            SWEEP_FORMAT => {
                let index: SweepIndex = serde_json::from_str(&text).map_err(|error| fault(path, error))?;
                let windows = index.windows.into_iter();
                windows.map(|it| (it.file, it.from_bytes, it.to_bytes)).try_for_each(|it| self.add_plan(folder, it))
            }
            Table::FORMAT => {
                let entries = Table::read(path).map_err(|error| TableFault(error.to_string()))?.entries.into_iter();
                let mut plans = entries.filter_map(|it| Some((it.plan.file?, it.from_bytes, it.to_bytes)));
                plans.try_for_each(|it| self.add_plan(folder, it))
            }
            other => Err(fault(path, format!("the format `{other}` is neither that of a plan nor that of a table"))),
        }
    }

    fn add_plan(&mut self, folder: &Path, (file, from_bytes, to_bytes): (String, u64, u64)) -> Result<(), TableFault> {
        let path = folder.join(file);
        self.push(&path, &text_of(&path)?, from_bytes, to_bytes)
    }

    fn push(&mut self, path: &Path, text: &str, from_bytes: u64, to_bytes: u64) -> Result<(), TableFault> {
        let origin = path.display().to_string();
        let file = file::read(text, &origin).map_err(|error| TableFault(error.to_string()))?;
        let topology = topology_of(&file).map_err(|why| fault(path, why))?;
        let ScheduleFile { schedule, mismatches, .. } = file;
        if let Some(mismatch) = mismatches.into_iter().next() {
            return Err(fault(path, mismatch));
        }
        let name = format!("{} of {origin}", schedule.produced_by.strategy);
        let plan = TablePlan { name, schedule, topology };
        self.entries.push(TableEntry { from_bytes, to_bytes, plan });
        Ok(())
    }

    /// Whether there are no plans.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Which entry serves a call of so many bytes, as the collective counts them: the first one that does.
    pub(crate) fn find(&self, ranks: usize, kind: CallKind, bytes: u64) -> Option<usize> {
        self.entries.iter().position(|entry| {
            let request = entry.plan.schedule.demand.request();
            let is_for_all = request.members.len() == request.ranks && request.ranks == ranks;
            let is_such = request.collective == kind.collective && request.root == kind.root;
            is_for_all && is_such && (entry.from_bytes..entry.to_bytes).contains(&bytes)
        })
    }

    /// The program of an entry for a kind of call, and its name.
    ///
    /// # Errors
    /// Why it cannot serve the call.
    pub(crate) fn program(&self, entry: usize, kind: CallKind) -> Result<(VerifiedProgram, Arc<str>), String> {
        let TablePlan { name, schedule, topology } = &self.entries[entry].plan;
        let mut schedule = schedule.clone();
        let request = schedule.demand.request();
        if request.op != kind.op && request.collective != Collective::Custom {
            // Which messages move does not depend on the reduction.
            let request = Request { op: kind.op, ..request.clone() };
            let demand = Demand::new(request).map_err(|error| format!("{name}: {error}"))?;
            let demand = demand.with_chunk_bytes(schedule.demand.chunk_bytes());
            schedule.demand = Arc::new(demand.map_err(|error| format!("{name}: {error}"))?);
        }
        let refused = |why: &dyn std::fmt::Display| format!("{name}: {why}");
        let verified = schedule::verify(schedule, topology).map_err(|rejection| {
            refused(&rejection.violations.into_iter().next().map_or_else(String::new, |first| first.to_string()))
        })?;
        let lowering = LowerOptions { in_place: kind.in_place, ..LowerOptions::default() };
        let program = lower(&verified, &lowering).map_err(|error| refused(&error))?;
        let program = check(program).map_err(|_| refused(&"the program checker refuses it"))?;
        Ok((program, format!("{} {name}", kind.collective).into()))
    }
}

/// The machine of a plan: in the file, or one that its name stands for.
fn topology_of(file: &ScheduleFile) -> Result<Arc<Topology>, String> {
    if let Some(topology) = &file.topology {
        return Ok(topology.clone());
    }
    let named = &file.schedule.topology;
    let found = topology::resolve(&named.name).map_err(|error| error.to_string())?;
    match named.digest.as_ref().is_none_or(|digest| *digest == found.digest()) {
        true => Ok(Arc::new(found)),
        false => Err(format!("the topology `{}` is not the one that the plan was made for", named.name)),
    }
}
