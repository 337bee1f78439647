//! Plans and tables from files and folders.

use super::{EntryRange, PlanTable, SizeChoice, TableEntry, TableFunction, TablePlan, TunedCell, TunedFile};
use crate::log::printable;
use crate::numbers::mixed;
use runtime::DType;
use schedule::file::{self, ScheduleFile};
use schedule::{Collective, Request};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use topology::Topology;
use topology::document::{Document, TextError};
use tune::{NcclChoice, TableCell, TableKey, TuningTable};

/// A file that is no table, or names one that is not there.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TableFault(String);

/// So many files of a folder that are left out get a line each.
const MOST_NOTES: usize = 4;

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
    let text = topology::read_text_up_to(&path.to_string_lossy(), tune::LONGEST_FILE);
    text.map_err(|error| TableFault(error.to_string()))
}

/// The files of a folder that may be tables: the index first, then by name, so that all ranks read them in the same order.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, TableFault> {
    let listed = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut files: Vec<PathBuf> =
        listed.map_err(|error| fault(folder, error))?.iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == "json"));
    files.sort_by_key(|file| (file.file_name().is_none_or(|name| name != "index.json"), file.clone()));
    match files.is_empty() {
        true => Err(fault(folder, "the folder has no file whose name ends with .json")),
        false => Ok(files),
    }
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
    /// whose topology has this digest. [`Self::misfits`] names those that do not serve. What cannot be used of a folder is left
    /// out, and [`Self::notes`] says why.
    ///
    /// # Errors
    /// As [`Self::read`]; for a folder, if nothing in it can be used.
    pub fn read_for(path: &Path, emulated: Option<&str>) -> Result<Self, TableFault> {
        Self { only_for: Some(emulated.map(str::to_owned)), ..Self::default() }.with_all(path)
    }

    fn with_all(mut self, path: &Path) -> Result<Self, TableFault> {
        if !path.is_dir() {
            self.add(path, &mut BTreeSet::new())?;
            return Ok(self);
        }
        // Plans that an index names serve only the sizes that it says.
        let mut named = BTreeSet::new();
        let mut faults: Vec<String> = Vec::new();
        let mut has_any = false;
        for file in files_of(path)? {
            if named.contains(&file) {
                continue;
            }
            match self.add_whole(&file, &mut named) {
                Ok(()) => has_any = true,
                Err(fault) if self.only_for.is_none() => return Err(fault),
                Err(TableFault(why)) => faults.push(why),
            }
        }
        if !has_any && let Some(first) = faults.first() {
            return Err(TableFault(first.clone()));
        }
        self.notes.splice(0..0, faults.into_iter().map(|why| format!("{why}; it is left out")));
        let more = self.notes.len().saturating_sub(MOST_NOTES);
        if more > 0 {
            self.notes.truncate(MOST_NOTES);
            self.notes.push(format!("{}: {}", path.display(), topology::counted(more, "more such line")));
        }
        Ok(self)
    }

    /// Adds a file, or nothing of it.
    fn add_whole(&mut self, path: &Path, named: &mut BTreeSet<PathBuf>) -> Result<(), TableFault> {
        let lengths = [self.entries.len(), self.tuned.len(), self.cells.len(), self.functions.len(), self.notes.len()];
        let digest = self.digest;
        self.add(path, named).inspect_err(|_| {
            let [entries, tuned, cells, functions, notes] = lengths;
            self.entries.truncate(entries);
            self.tuned.truncate(tuned);
            self.cells.truncate(cells);
            self.functions.truncate(functions);
            self.notes.truncate(notes);
            self.digest = digest;
        })
    }

    fn add(&mut self, path: &Path, named: &mut BTreeSet<PathBuf>) -> Result<(), TableFault> {
        let text = text_of(path)?;
        let shown = path.display().to_string();
        let document = Document::json(&shown, &text);
        let wrong = |error: TextError| TableFault(error.to_string());
        let key: FormatKey = document.parse().map_err(wrong)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        match key.format.as_str() {
            file::FORMAT => self.push(&shown, &text, Some(EntryRange::ALL)).map(drop),
            SWEEP_FORMAT => {
                let index: SweepIndex = document.parse().map_err(wrong)?;
                named.extend(index.windows.iter().map(|window| folder.join(&window.file)));
                index.windows.into_iter().try_for_each(|window| self.add_window(folder, &window))
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

    fn add_window(&mut self, folder: &Path, window: &SweepWindow) -> Result<(), TableFault> {
        let path = folder.join(&window.file);
        let range = EntryRange { from_bytes: window.from_bytes, to_bytes: Some(window.to_bytes) };
        self.push(&path.display().to_string(), &text_of(&path)?, Some(range)).map(drop)
    }

    /// The choices of a tuning table; `origin` names it.
    ///
    /// # Errors
    /// [`TableFault`] if rules that this library does not know have made it, or a plan is none.
    pub(crate) fn add_tuned(&mut self, table: &TuningTable, origin: &str) -> Result<(), TableFault> {
        let TableKey { policy, version, .. } = &table.key;
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
        let (key, links) = (table.key.clone(), table.links.clone());
        self.tuned.push(TunedFile { origin: origin.to_owned(), key, links });
        if self.is_from_elsewhere(&table.key) {
            return Ok(());
        }
        self.note_first(table, origin);
        self.mix(&serde_json::to_string(&table.key).unwrap_or_default());
        self.mix(&serde_json::to_string(&table.links).unwrap_or_default());
        let mut entries = BTreeMap::new();
        table.cells.iter().try_for_each(|cell| self.add_cell((table, cell), origin, &mut entries))
    }

    /// Says which choices do not count, because another table comes first.
    fn note_first(&mut self, table: &TuningTable, origin: &str) {
        let Some((last, others)) = self.tuned.split_last() else { return };
        let comes_first = |class: &TableCell| {
            self.cells.iter().find(|of| {
                let (op, dtype) = (of.op, of.dtype.map(|dtype| dtype.to_string()));
                let is_same = (of.collective, op, dtype, of.in_place)
                    == (class.collective, class.op, class.dtype.clone(), class.in_place);
                is_same && others[of.table].key.difference(&last.key).is_none()
            })
        };
        let both = table.cells.iter().filter_map(|cell| Some((comes_first(cell)?, cell)));
        let both: Vec<(usize, String)> = both.map(|(first, cell)| (first.table, cell.class().to_string())).collect();
        if let Some((first, _)) = both.first() {
            let classes: Vec<&str> = both.iter().map(|(_, class)| class.as_str()).collect();
            let (first, classes) = (&self.tuned[*first].origin, classes.join(", "));
            self.notes.push(format!("{origin}: {first} comes first for {classes}"));
        }
    }

    /// A cell of the table that was read last.
    fn add_cell(
        &mut self,
        (table, cell): (&TuningTable, &TableCell),
        origin: &str,
        entries: &mut BTreeMap<String, Option<usize>>,
    ) -> Result<(), TableFault> {
        let collective = cell.collective;
        let index = self.tuned.len() - 1;
        let known =
            |dtype: &String| dtype.parse::<DType>().map_err(|why| TableFault(format!("{origin}, {collective}: {why}")));
        cell.ranges.iter().flat_map(|range| &range.evidence).try_for_each(|of| known(&of.dtype).map(drop))?;
        let dtype = cell.dtype.as_ref().map(known).transpose()?;
        self.mix(&cell.class().to_string());
        let mut ranges = Vec::with_capacity(cell.ranges.len());
        for range in &cell.ranges {
            let choice = match &range.plan {
                None if range.evidence.is_empty() => SizeChoice::Unmeasured,
                None => SizeChoice::Stock,
                Some(name) => self
                    .entry_of((table, collective, name), origin, entries)?
                    .map_or(SizeChoice::Nccl, SizeChoice::Plan),
            };
            let number = choice.entry().map_or(0, |entry| entry as u64 + 1);
            self.digest = mixed(mixed(self.digest, range.from_bytes), number);
            ranges.push((range.from_bytes, choice));
        }
        let (op, in_place) = (cell.op, cell.in_place);
        self.cells.push(TunedCell { table: index, collective, op, dtype, in_place, ranges });
        for range in &cell.functions {
            let (name, dtype) = (range.function.as_str().into(), known(&range.dtype)?);
            let (from_bytes, to_bytes, op) = (range.from_bytes, range.to_bytes, range.op);
            let reduction = op.map_or_else(String::new, |op| op.to_string());
            let sizes = || range.evidence.iter().map(|of| of.bytes);
            let measured = sizes().min().zip(sizes().max()).map(|(least, most)| [least, most]);
            self.mix(&format!("{collective} {dtype} {reduction} {from_bytes} {to_bytes} {measured:?} {name}\n"));
            let named = TableFunction { name, collective, from_bytes, to_bytes, dtype, op, measured, table: index };
            self.functions.push(named);
        }
        Ok(())
    }

    /// The entry of a plan of a tuning table, which is read once; `None` if it is NCCL that serves these sizes, where there is
    /// NCCL.
    fn entry_of(
        &mut self,
        (table, collective, name): (&TuningTable, Collective, &String),
        origin: &str,
        entries: &mut BTreeMap<String, Option<usize>>,
    ) -> Result<Option<usize>, TableFault> {
        let origin = format!("{origin}, plan `{name}`");
        let entry = match entries.get(name) {
            Some(known) => *known,
            None => {
                let choice = NcclChoice::of_plan(&table.plans[name]);
                let is_nccls = choice.map_err(|why| TableFault(format!("{origin}: {why}")))?.is_some();
                let text = || table.plans[name].to_string();
                let entry = if is_nccls { None } else { Some(self.push(&origin, &text(), None)?) };
                entries.insert(name.clone(), entry);
                entry
            }
        };
        let request = entry.map(|entry| self.entries[entry].plan.schedule.demand.request());
        match request.filter(|it| it.collective != collective || it.ranks != table.key.ranks) {
            None => Ok(entry),
            Some(Request { collective: its, ranks, .. }) => {
                let wanted = table.key.ranks;
                Err(TableFault(format!(
                    "{origin}: it is {its} of {ranks} ranks, and cannot serve {collective} of {wanted}"
                )))
            }
        }
    }

    /// Adds a plan that a text holds, and returns its entry.
    ///
    /// # Errors
    /// [`TableFault`] if it is none.
    pub(crate) fn add_text(&mut self, origin: &str, text: &str) -> Result<usize, TableFault> {
        self.push(origin, text, Some(EntryRange::ALL))
    }

    /// Adds a plan, and returns its entry.
    fn push(&mut self, origin: &str, text: &str, range: Option<EntryRange>) -> Result<usize, TableFault> {
        let file = file::read(text, origin).map_err(|error| TableFault(error.to_string()))?;
        let topology = topology_of(&file).map_err(|why| TableFault(format!("{origin}: {why}")))?;
        let ScheduleFile { schedule, mismatches, .. } = file;
        if let Some(mismatch) = mismatches.into_iter().next() {
            return Err(TableFault(format!("{origin}: {mismatch}")));
        }
        let name = printable(&format!("{} of {origin}", schedule.produced_by.strategy));
        if let Some(range) = range {
            self.digest = mixed(mixed(self.digest, range.from_bytes), range.to_bytes.unwrap_or(u64::MAX));
            let request = schedule.demand.request();
            let first = self.entries.iter().find(|entry| {
                let Request { collective, ranks, root, .. } = entry.plan.schedule.demand.request();
                let is_same = (*collective, *ranks, *root) == (request.collective, request.ranks, request.root);
                is_same && entry.range.is_some_and(|of| of.overlaps(&range))
            });
            if let Some(first) = first {
                self.notes.push(format!("{origin}: {} comes first for {}", first.plan.name, request.collective));
            }
        }
        self.mix(text);
        self.entries.push(TableEntry { range, plan: TablePlan { name, schedule, topology } });
        Ok(self.entries.len() - 1)
    }

    fn mix(&mut self, text: &str) {
        self.digest = text.bytes().fold(self.digest, |digest, byte| mixed(digest, byte.into()));
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
