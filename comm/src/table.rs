//! Plans from files: which plan serves which call.
//!
//! The principal type is [`PlanTable`]. It reads what `antiphon synth` writes: one plan, which serves its collective at every
//! size, or the index of the plans of several sizes (`synth --sizes`), or a folder of such files. It reads the tuning tables of
//! `antiphon tune` as well. A plan serves any data type, any reduction, and calls in place or not. It is verified before it is
//! used. A plan that cannot serve a call is never used silently: stock serves the call, and one line says why.

mod fit;
mod read;
mod why_stock;

use crate::stock::CallKind;
pub use fit::RankPlaces;
use program::{LowerOptions, VerifiedProgram, adds_differently, check, lower};
pub use read::TableFault;
use runtime::DType;
use schedule::{Collective, Demand, ReduceOp, Request, Schedule, VerifiedSchedule, file};
use std::num::NonZeroU32;
use std::sync::Arc;
use topology::Topology;
use tune::{MachineLinks, TableKey};

/// Plans from files.
#[derive(Debug, Default)]
pub struct PlanTable {
    entries: Vec<TableEntry>,
    /// The tuning tables that were read.
    tuned: Vec<TunedFile>,
    cells: Vec<TunedCell>,
    functions: Vec<TableFunction>,
    /// If this is set, tables that were measured on an emulated machine serve nothing, unless it is this one; and a file of a
    /// folder that is no table is left out, and not an error.
    only_for: Option<Option<String>>,
    /// A number that tables have in common only if they choose the same for the same calls.
    digest: u64,
    /// What was left out, a line each.
    notes: Vec<String>,
    is_textbook: bool,
}

/// A plan, and the calls that it serves.
#[derive(Debug)]
struct TableEntry {
    /// The sizes; `None` for a plan of a tuning table, whose cells say which.
    range: Option<EntryRange>,
    plan: TablePlan,
}

/// Which sizes an entry serves.
#[derive(Clone, Copy, Debug)]
struct EntryRange {
    /// From this size on (inclusive), in bytes as the collective counts them.
    from_bytes: u64,
    /// Up to this size (exclusive); `None` for no end.
    to_bytes: Option<u64>,
}

impl EntryRange {
    const ALL: Self = Self { from_bytes: 0, to_bytes: None };

    fn holds(&self, bytes: u64) -> bool {
        bytes >= self.from_bytes && self.to_bytes.is_none_or(|end| bytes < end)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.holds(other.from_bytes) || other.holds(self.from_bytes)
    }
}

/// A tuning table that was read.
#[derive(Debug)]
struct TunedFile {
    /// Where.
    origin: String,
    /// For whom it was measured.
    key: TableKey,
    /// What messages between the machines of these ranks cost.
    links: Option<MachineLinks>,
}

/// What a tuning table chooses for a class of calls.
#[derive(Debug)]
struct TunedCell {
    /// Which of the tuning tables.
    table: usize,
    collective: Collective,
    op: Option<ReduceOp>,
    dtype: Option<DType>,
    in_place: Option<bool>,
    /// From which size on (inclusive) what is chosen. In ascending order, the first from 0 bytes on.
    ranges: Vec<(u64, SizeChoice)>,
}

/// What a cell chooses for a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SizeChoice {
    /// This entry.
    Plan(usize),
    /// Stock, because nothing was faster.
    Stock,
    /// Stock, because nothing was measured.
    Unmeasured,
    /// NCCL, where there is NCCL.
    Nccl,
}

impl SizeChoice {
    /// The entry; `None` for stock.
    fn entry(self) -> Option<usize> {
        if let Self::Plan(entry) = self { Some(entry) } else { None }
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
    /// The smallest and the largest size at which it was measured.
    measured: Option<[u64; 2]>,
    /// Which of the tuning tables names it.
    table: usize,
}

/// A function that a table names, and the calls like which it was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredFunction {
    /// Its name.
    pub name: Arc<str>,
    /// What it does.
    pub collective: Collective,
    /// The smallest and the largest size at which it was measured, and chosen, in bytes as the collective counts them.
    pub bytes: [u64; 2],
    /// The type of elements.
    pub dtype: DType,
    /// The reduction.
    pub op: Option<ReduceOp>,
}

/// A plan that was read, and not yet verified.
#[derive(Debug)]
struct TablePlan {
    /// For statistics: how it was made, and its file.
    name: String,
    schedule: Schedule,
    topology: Arc<Topology>,
}

impl PlanTable {
    /// An empty table for textbook algorithms.
    pub(crate) fn of_textbook() -> Self {
        Self { is_textbook: true, ..Self::default() }
    }

    /// Adds a plan that serves its collective at every size, under a name.
    pub fn add_schedule(&mut self, name: impl Into<String>, schedule: &VerifiedSchedule) {
        let (topology, schedule) = (schedule.topology().clone(), schedule.schedule().clone());
        let plan = TablePlan { name: name.into(), schedule, topology };
        self.entries.push(TableEntry { range: Some(EntryRange::ALL), plan });
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

    /// What was left out of a folder, and why: a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A number that tables have in common only if they choose the same for the same calls of the same ranks.
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

    /// How many messages the plan of an entry has.
    pub(crate) fn messages(&self, entry: usize) -> usize {
        self.entries[entry].plan.schedule.transfers.len()
    }

    /// Whether the plans are textbook algorithms, which the library has made.
    pub(crate) fn is_textbook(&self) -> bool {
        self.is_textbook
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
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn schedule(&self, entry: usize, op: Option<ReduceOp>) -> Result<VerifiedSchedule, String> {
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

    /// The plan of an entry for a size, with its messages cut into pieces; `None` if it cannot be cut.
    pub(crate) fn in_pieces(&self, entry: usize, bytes: u64, pieces: NonZeroU32) -> Option<VerifiedSchedule> {
        let whole = self.schedule(entry, self.entries[entry].plan.schedule.demand.request().op).ok()?;
        schedule::verify(synth::in_pieces(&whole, bytes, pieces)?, whole.topology()).ok()
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
        let program = lower(&verified, &lowering).map_err(|error| refused(&error))?.with_rates(verified.topology());
        let program = check(program).map_err(|_| refused(&"the program checker refuses it"))?;
        Ok((program, format!("{} {name}", kind.collective).into()))
    }
}

#[cfg(test)]
mod tests;
