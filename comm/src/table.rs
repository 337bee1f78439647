//! Plans from files: which plan serves which call.
//!
//! The principal type is [`PlanTable`]. It reads what `antiphon synth` writes: one plan, which serves its collective at every
//! size, or the index of the plans of several sizes (`synth --sizes`), or a folder of such files. It reads the tuning tables of
//! `antiphon tune` as well. A plan serves any data type, any reduction, and calls in place or not. It is verified before it is
//! used. A plan that cannot serve a call is never used silently: stock serves the call, and one line says why.

mod fit;

use crate::numbers::mixed;
use crate::stock::CallKind;
use program::{LowerOptions, VerifiedProgram, adds_differently, check, lower};
use runtime::DType;
use schedule::file::ScheduleFile;
use schedule::{Collective, Demand, ReduceOp, Request, Schedule, VerifiedSchedule, file};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use topology::Topology;
use topology::document::{Document, TextError};
use tune::{NcclChoice, TableKey, TuningTable};

/// Plans from files.
#[derive(Debug, Default)]
pub struct PlanTable {
    entries: Vec<TableEntry>,
    /// The tuning tables that were read: their files, and for whom they were measured.
    keys: Vec<(String, TableKey)>,
    functions: Vec<TableFunction>,
    /// If this is set, tables that were measured on an emulated machine serve nothing, unless it is this one.
    only_for: Option<Option<String>>,
    /// A number that tables have in common only if they have the same plans for the same sizes.
    digest: u64,
}

/// A plan, and the calls that it serves.
#[derive(Debug)]
struct TableEntry {
    range: EntryRange,
    plan: TablePlan,
}

/// Which sizes an entry serves, and where.
#[derive(Debug)]
struct EntryRange {
    /// From this size on (inclusive), in bytes as the collective counts them.
    from_bytes: u64,
    /// Up to this size (exclusive); `None` for no end.
    to_bytes: Option<u64>,
    /// The machine of each rank, counted in the order of their first ranks, if it matters.
    machines: Option<Arc<[u32]>>,
}

impl EntryRange {
    const ALL: Self = Self { from_bytes: 0, to_bytes: None, machines: None };

    fn holds(&self, bytes: u64) -> bool {
        bytes >= self.from_bytes && self.to_bytes.is_none_or(|end| bytes < end)
    }
}

/// Numbers of machines, counted anew in the order of their first ranks.
pub(crate) fn in_order(machines: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    let mut known: Vec<u32> = Vec::new();
    machines.map(move |machine| {
        let seen = known.iter().position(|of| *of == machine);
        seen.unwrap_or_else(|| {
            known.push(machine);
            known.len() - 1
        }) as u32
    })
}

/// A function that a table names, and the calls that it serves.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TableFunction {
    pub(crate) name: Arc<str>,
    pub(crate) collective: Collective,
    /// From this size on (inclusive), in bytes as the collective counts them.
    pub(crate) from_bytes: u64,
    /// Up to this size (exclusive).
    pub(crate) to_bytes: u64,
    pub(crate) dtype: DType,
    pub(crate) op: Option<ReduceOp>,
    /// The machine of each rank, counted in the order of their first ranks.
    machines: Arc<[u32]>,
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

/// The index that `antiphon synth --sizes` writes beside its plans.
#[derive(Deserialize)]
struct SweepIndex {
    windows: Vec<SweepWindow>,
}

/// The sizes that one of its plans is for.
#[derive(Deserialize)]
struct SweepWindow {
    from_bytes: u64,
    to_bytes: u64,
    /// Relative to the index.
    file: String,
}

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
        Self::default().with_all(path)
    }

    /// The same for ranks that run: tables that were measured on an emulated machine serve only ranks that emulate it,
    /// whose topology has this digest. [`Self::misfit`] names those that do not serve.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_for(path: &Path, emulated: Option<&str>) -> Result<Self, TableFault> {
        Self { only_for: Some(emulated.map(str::to_owned)), ..Self::default() }.with_all(path)
    }

    fn with_all(self, path: &Path) -> Result<Self, TableFault> {
        let mut table = self;
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
        let shown = path.display().to_string();
        let document = Document::json(&shown, &text);
        let wrong = |error: TextError| TableFault(error.to_string());
        let key: FormatKey = document.parse().map_err(wrong)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        match key.format.as_str() {
            file::FORMAT => self.push(&path.display().to_string(), &text, EntryRange::ALL),
            SWEEP_FORMAT => {
                let index: SweepIndex = document.parse().map_err(wrong)?;
                let windows = index.windows.into_iter();
                windows.map(|it| (it.file, it.from_bytes, it.to_bytes)).try_for_each(|it| self.add_plan(folder, it))
            }
            TuningTable::FORMAT => {
                let table = TuningTable::parse(&text, &shown).map_err(|error| TableFault(error.to_string()))?;
                self.add_tuned(&table, &shown)
            }
            other => Err(fault(
                path,
                format!("the format `{}` is neither that of a plan nor that of a table", topology::shorten(other)),
            )),
        }
    }

    fn add_plan(&mut self, folder: &Path, (file, from, to): (String, u64, u64)) -> Result<(), TableFault> {
        let path = folder.join(file);
        let range = EntryRange { from_bytes: from, to_bytes: Some(to), machines: None };
        self.push(&path.display().to_string(), &text_of(&path)?, range)
    }

    /// The plans of a tuning table; `origin` names it.
    ///
    /// # Errors
    /// [`TableFault`] if rules that this library does not know have made it, or a plan is none.
    pub(crate) fn add_tuned(&mut self, table: &TuningTable, origin: &str) -> Result<(), TableFault> {
        let TableKey { machines, policy, version, .. } = &table.key;
        if *policy != TuningTable::POLICY {
            let known = TuningTable::POLICY;
            return Err(TableFault(format!(
                "{origin}: it was made by the rules {policy}, and this library has {known}"
            )));
        }
        if version != env!("CARGO_PKG_VERSION") {
            let version = topology::shorten(version);
            let own = env!("CARGO_PKG_VERSION");
            return Err(TableFault(format!(
                "{origin}: version `{version}` has measured it, and this is {own}; hint: `antiphon tune` measures again"
            )));
        }
        self.keys.push((origin.to_owned(), table.key.clone()));
        if self.is_from_elsewhere(&table.key) {
            return Ok(());
        }
        let machines: Arc<[u32]> = machines.as_slice().into();
        for (collective, range) in table.ranges() {
            let odd = range.evidence.iter().find_map(|evidence| evidence.dtype.parse::<DType>().err());
            if let Some(why) = odd {
                return Err(TableFault(format!("{origin}, {collective}: {why}")));
            }
            let Some(plan) = &range.plan else { continue };
            let choice = NcclChoice::of_plan(&table.plans[plan]);
            if choice.map_err(|why| TableFault(format!("{origin}, plan `{plan}`: {why}")))?.is_some() {
                // NCCL serves these sizes, where there is NCCL.
                continue;
            }
            let machines = Some(machines.clone());
            let range = EntryRange { from_bytes: range.from_bytes, to_bytes: range.to_bytes, machines };
            let origin = format!("{origin}, plan `{plan}`");
            self.push(&origin, &table.plans[plan].to_string(), range)?;
            let request = self.entries.last().map(|entry| entry.plan.schedule.demand.request());
            if let Some(request) = request.filter(|it| it.collective != collective || it.ranks != table.key.ranks) {
                let Request { collective: its, ranks, .. } = request;
                let wanted = table.key.ranks;
                return Err(TableFault(format!(
                    "{origin}: it is {its} of {ranks} ranks, and cannot serve {collective} of {wanted}"
                )));
            }
        }
        for (collective, range) in table.functions() {
            let dtype = range.dtype.parse().map_err(|why| TableFault(format!("{origin}, {collective}: {why}")))?;
            let name = range.function.as_str().into();
            let from_bytes = range.from_bytes;
            let to_bytes = range.to_bytes;
            let op = range.op;
            let machines = machines.clone();
            self.push_function(TableFunction { name, collective, from_bytes, to_bytes, dtype, op, machines });
        }
        Ok(())
    }

    fn push_function(&mut self, named: TableFunction) {
        let TableFunction { name, collective, from_bytes, to_bytes, dtype, op, .. } = &named;
        let reduction = op.map_or_else(String::new, |op| op.to_string());
        let text = format!("{collective} {dtype} {reduction} {from_bytes} {to_bytes} {name}\n");
        self.digest = text.bytes().fold(self.digest, |digest, byte| mixed(digest, byte.into()));
        self.functions.push(named);
    }

    /// The functions that the tables name for ranks on these machines.
    pub(crate) fn functions(&self, machines: &[u32]) -> impl Iterator<Item = &TableFunction> {
        let machines: Vec<u32> = in_order(machines.iter().copied()).collect();
        self.functions.iter().filter(move |of| *of.machines == *machines)
    }

    fn push(&mut self, origin: &str, text: &str, range: EntryRange) -> Result<(), TableFault> {
        let file = file::read(text, origin).map_err(|error| TableFault(error.to_string()))?;
        let topology = topology_of(&file).map_err(|why| TableFault(format!("{origin}: {why}")))?;
        let ScheduleFile { schedule, mismatches, .. } = file;
        if let Some(mismatch) = mismatches.into_iter().next() {
            return Err(TableFault(format!("{origin}: {mismatch}")));
        }
        let name = format!("{} of {origin}", schedule.produced_by.strategy);
        let size = |bytes: u64| mixed(self.digest, bytes);
        self.digest = mixed(size(range.from_bytes), range.to_bytes.unwrap_or(u64::MAX));
        self.digest = text.bytes().fold(self.digest, |digest, byte| mixed(digest, byte.into()));
        self.entries.push(TableEntry { range, plan: TablePlan { name, schedule, topology } });
        Ok(())
    }

    /// Adds a plan that serves its collective at every size, under a name.
    pub fn add_schedule(&mut self, name: impl Into<String>, schedule: &VerifiedSchedule) {
        let (topology, schedule) = (schedule.topology().clone(), schedule.schedule().clone());
        let plan = TablePlan { name: name.into(), schedule, topology };
        self.entries.push(TableEntry { range: EntryRange::ALL, plan });
    }

    /// Checks all plans as they are checked before they serve a call.
    ///
    /// # Errors
    /// What is wrong with the first that is not valid.
    pub fn verify(&self) -> Result<(), String> {
        (0..self.len()).try_for_each(|entry| {
            let request = self.entries[entry].plan.schedule.demand.request();
            let Request { collective, root, op, .. } = *request;
            self.program(entry, CallKind { collective, root, op, in_place: false }).map(drop)
        })
    }

    /// Whether there are no plans, and no names of functions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.functions.is_empty()
    }

    /// A number that tables have in common only if they have the same plans for the same sizes, in the same order.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many plans there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How a plan was made, and its file.
    pub(crate) fn name(&self, entry: usize) -> &str {
        &self.entries[entry].plan.name
    }

    /// The plan of an entry as a file.
    ///
    /// # Errors
    /// If it is not valid.
    pub(crate) fn text(&self, entry: usize) -> Result<String, String> {
        let TablePlan { name, schedule, topology } = &self.entries[entry].plan;
        let verified = schedule::verify(schedule.clone(), topology).map_err(|_| format!("{name}: it is not valid"))?;
        let mut text = Vec::new();
        file::write(&verified, &mut text).map_err(|error| format!("{name}: {error}"))?;
        String::from_utf8(text).map_err(|error| format!("{name}: {error}"))
    }

    /// The plan of an entry with another reduction: which messages move does not depend on it.
    fn schedule(&self, entry: usize, op: Option<ReduceOp>) -> Result<VerifiedSchedule, String> {
        let TablePlan { name, schedule, topology } = &self.entries[entry].plan;
        let mut schedule = schedule.clone();
        let request = schedule.demand.request();
        // Listed chunks do not follow from a request.
        if request.op != op && !request.collective.is_listed() {
            let request = Request { op, ..request.clone() };
            let demand = Demand::new(request).map_err(|error| format!("{name}: {error}"))?;
            let demand = demand.with_chunk_bytes(schedule.demand.chunk_bytes());
            schedule.demand = Arc::new(demand.map_err(|error| format!("{name}: {error}"))?);
        }
        schedule::verify(schedule, topology).map_err(|rejection| {
            let first = rejection.violations.into_iter().next();
            format!("{name}: {}", first.map_or_else(String::new, |first| first.to_string()))
        })
    }

    /// The program of an entry for a kind of call, and its name.
    ///
    /// # Errors
    /// Why it cannot serve the call.
    pub(crate) fn program(&self, entry: usize, kind: CallKind) -> Result<(VerifiedProgram, Arc<str>), String> {
        let name = self.name(entry);
        let verified = self.schedule(entry, kind.op)?;
        let refused = |why: &dyn std::fmt::Display| format!("{name}: {why}");
        // The data type is not known here.
        if let Some(chunk) = adds_differently(&verified) {
            return Err(refused(&format!("ranks add up chunk {chunk} in different ways, floats might differ")));
        }
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
