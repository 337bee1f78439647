//! Which plan of a table serves a call, and why none does.

use super::{MeasuredFunction, PlanTable, SizeChoice, TableEntry, TableFunction, TunedCell, TunedFile, in_order};
use crate::stock::{CallKind, measured_kind};
use runtime::DType;
use schedule::{ReduceOp, Request, VerifiedSchedule};
use tune::{MachineLinks, RankTransport, TableKey};

/// Where some ranks are, and how they reach each other: what decides which tuning tables serve them.
#[derive(Clone, Copy, Debug)]
pub struct RankPlaces<'a> {
    /// The machine of each rank.
    pub machines: &'a [u32],
    /// How the ranks exchange data; `None` if it does not matter.
    pub transport: Option<RankTransport>,
    /// What each machine is, by its number; `None` if it does not matter.
    pub hardware: Option<&'a [String]>,
}

impl<'a> RankPlaces<'a> {
    /// Ranks of which only the machines matter.
    pub fn on(machines: &'a [u32]) -> Self {
        Self { machines, transport: None, hardware: None }
    }

    /// The key of a table that these ranks measure.
    pub(crate) fn key(&self) -> TableKey {
        let machines: Vec<u32> = in_order(self.machines.iter().copied()).collect();
        let mut key = TableKey::of(machines, env!("CARGO_PKG_VERSION"));
        key.transport = self.transport.map(|of| of.among(key.machine_count()));
        if let Some(hardware) = self.hardware {
            let first = |machine: u32| key.machines.iter().position(|of| *of == machine);
            let all = (0..key.machine_count() as u32).filter_map(first);
            key.hardware = all.map(|rank| hardware_of(hardware, self.machines[rank]).to_owned()).collect();
        }
        key
    }
}

/// What a machine is; nothing if nobody knows.
fn hardware_of(all: &[String], machine: u32) -> &str {
    all.get(machine as usize).map_or("", String::as_str)
}

impl TunedCell {
    /// How well it suits calls of its collective: first whether it was measured for them, then by the reduction, the type of
    /// elements, and the place. What is said counts more than what is left open. A type of the same width is nearly the same, and
    /// where nothing is reduced any type is.
    fn nearness(&self, kind: CallKind, dtype: DType) -> (bool, [u8; 3]) {
        let of = |said: Option<bool>| said.map_or(1, |is_same| if is_same { 3 } else { 0 });
        let is_like = |own: DType| own.size() == dtype.size() || !kind.collective.combines();
        let by_type = match self.dtype {
            Some(own) if own != dtype && is_like(own) => 2,
            own => of(own.map(|own| own == dtype)),
        };
        let by_op = of(self.op.map(|op| Some(op) == kind.op));
        let by_place = of(self.in_place.map(|in_place| in_place == kind.in_place));
        let all = [by_op, by_type, by_place];
        (all.iter().all(|of| *of > 0), all)
    }

    /// What it chooses for a size.
    pub(super) fn at(&self, bytes: u64) -> SizeChoice {
        let after = self.ranges.partition_point(|(from, _)| *from <= bytes);
        let range = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        range.map_or(SizeChoice::Unmeasured, |(_, choice)| *choice)
    }
}

impl PlanTable {
    /// Whether a table was measured on an emulated machine that these ranks do not emulate.
    pub(super) fn is_from_elsewhere(&self, key: &TableKey) -> bool {
        key.topology.is_some() && self.only_for.as_ref().is_some_and(|emulated| *emulated != key.topology)
    }

    /// Whether a tuning table is for ranks at these places.
    fn fits(&self, table: usize, places: RankPlaces<'_>) -> bool {
        let RankPlaces { machines, transport, hardware } = places;
        let key = &self.tuned[table].key;
        // The first comparison is enough for all ranks of a job.
        let is_placed = key.machines == machines
            || key.machines.len() == machines.len()
                && in_order(machines.iter().copied()).eq(key.machines.iter().copied());
        let is_same = |own: RankTransport| transport.is_none_or(|of| of.among(key.machine_count()) == own);
        let is_such = |hardware: &[String]| {
            let mut ranks = key.machines.iter().zip(machines);
            key.hardware.is_empty()
                || ranks.all(|(of, machine)| key.hardware[*of as usize] == hardware_of(hardware, *machine))
        };
        is_placed && key.transport.is_none_or(is_same) && hardware.is_none_or(is_such)
    }

    /// Whether it says anything of calls of these ranks: it has a plan for as many, or was measured by such ranks.
    pub(crate) fn is_for(&self, places: RankPlaces<'_>) -> bool {
        let mut plans = self.entries.iter().filter(|entry| entry.range.is_some());
        let is_theirs = |table: usize| self.fits(table, places) && !self.is_from_elsewhere(&self.tuned[table].key);
        plans.any(|entry| entry.plan.schedule.demand.request().ranks == places.machines.len())
            || (0..self.tuned.len()).any(is_theirs)
    }

    /// Whether a tuning table was measured by ranks at these places.
    pub fn is_tuned_for(&self, places: RankPlaces<'_>) -> bool {
        (0..self.tuned.len())
            .any(|table| self.fits(table, places) && self.tuned[table].key.transport == places.transport)
    }

    /// What messages between the machines of these ranks cost, as the first table for them knows it.
    pub(crate) fn links(&self, places: RankPlaces<'_>) -> Option<&MachineLinks> {
        let is_theirs = |(table, TunedFile { key, .. }): &(usize, &TunedFile)| {
            // Machines have the same numbers, and are real.
            key.machines == places.machines && key.topology.is_none() && self.fits(*table, places)
        };
        self.tuned.iter().enumerate().filter(is_theirs).find_map(|(_, of)| of.links.as_ref())
    }

    /// Whether it matters what the machines are.
    pub(crate) fn compares_hardware(&self) -> bool {
        self.tuned.iter().any(|of| !of.key.hardware.is_empty())
    }

    /// The functions that the tables name for ranks at these places.
    pub(crate) fn functions<'a>(&'a self, places: RankPlaces<'a>) -> impl Iterator<Item = &'a TableFunction> {
        self.functions.iter().filter(move |of| self.fits(of.table, places))
    }

    /// The functions that the tables name for ranks at these places, with the sizes between which each was measured.
    pub fn measured_functions<'a>(&'a self, places: RankPlaces<'a>) -> impl Iterator<Item = MeasuredFunction> + 'a {
        self.functions(places).filter_map(|of| {
            let TableFunction { name, collective, dtype, op, measured, .. } = of;
            let (name, bytes) = (name.clone(), (*measured)?);
            Some(MeasuredFunction { name, collective: *collective, bytes, dtype: *dtype, op: *op })
        })
    }

    /// The plan that serves a call among ranks at these places, with the call's reduction, and its name; `None` if stock serves
    /// it.
    ///
    /// # Errors
    /// Why the plan cannot serve the call.
    pub fn schedule_for(
        &self,
        places: RankPlaces<'_>,
        asked: &Request,
        dtype: DType,
    ) -> Option<Result<(VerifiedSchedule, String), String>> {
        let Request { op, size_bytes, .. } = *asked;
        let entry = self.find(places, (kind_of(asked), dtype), size_bytes)?;
        Some(self.schedule(entry, op).map(|schedule| (schedule, self.name(entry).to_owned())))
    }

    /// Which entry serves a call of so many bytes, as the collective counts them: what the nearest cell of a tuning table says;
    /// without one, the first plan that serves such calls.
    pub(crate) fn find(&self, places: RankPlaces<'_>, (kind, dtype): (CallKind, DType), bytes: u64) -> Option<usize> {
        let ranks = places.machines.len();
        let tuned = self.nearest(places, (kind, dtype)).map(|cell| cell.at(bytes).entry());
        match tuned {
            Some(None) => None,
            Some(Some(entry)) if self.suits(entry, ranks, kind) => Some(entry),
            _ => (0..self.len()).find(|&entry| {
                let range = self.entries[entry].range;
                range.is_some_and(|range| range.holds(bytes)) && self.suits(entry, ranks, kind)
            }),
        }
    }

    /// The cell that decides about some calls.
    pub(super) fn nearest(&self, places: RankPlaces<'_>, (kind, dtype): (CallKind, DType)) -> Option<&TunedCell> {
        let mut nearest = None;
        for cell in self.cells.iter().filter(|cell| cell.collective == kind.collective) {
            let nearness = Some(cell.nearness(kind, dtype));
            if nearness > nearest.map(|(of, _)| of) && self.fits(cell.table, places) {
                nearest = nearness.map(|of| (of, cell));
            }
        }
        nearest.map(|(_, cell)| cell)
    }

    /// Whether a plan does what calls of a kind ask for among so many ranks.
    fn suits(&self, entry: usize, ranks: usize, kind: CallKind) -> bool {
        let request = self.entries[entry].plan.schedule.demand.request();
        let is_for_all = request.members.len() == request.ranks && request.ranks == ranks;
        is_for_all && request.collective == kind.collective && request.root == kind.root
    }

    /// Whether an entry is for calls of so many bytes among so many ranks, whoever else is.
    pub(crate) fn serves(&self, entry: usize, ranks: usize, kind: CallKind, bytes: u64) -> bool {
        self.holds(entry, bytes) && self.suits(entry, ranks, kind)
    }

    /// Whether an entry is for a size.
    pub(super) fn holds(&self, entry: usize, bytes: u64) -> bool {
        let of_cells = || self.cells.iter().any(|cell| cell.at(bytes).entry() == Some(entry));
        self.entries[entry].range.map_or_else(of_cells, |range| range.holds(bytes))
    }

    /// Which tuning tables do not serve ranks at these places, and why: a line each.
    pub fn misfits(&self, places: RankPlaces<'_>) -> Vec<String> {
        (0..self.tuned.len()).filter_map(|table| self.misfit(table, places)).collect()
    }

    /// Which tuning tables serve ranks at these places only if it does not matter what the machines are, and why: a line each.
    pub fn of_other_hardware(&self, places: RankPlaces<'_>) -> Vec<String> {
        let elsewhere = RankPlaces { hardware: None, ..places };
        let is_other = |table: &usize| self.fits(*table, elsewhere) && !self.fits(*table, places);
        (0..self.tuned.len()).filter(is_other).filter_map(|table| self.misfit(table, places)).collect()
    }

    /// Why a tuning table does not serve ranks at these places, if that is so.
    pub(super) fn misfit(&self, table: usize, places: RankPlaces<'_>) -> Option<String> {
        let TunedFile { origin, key, .. } = &self.tuned[table];
        if self.is_from_elsewhere(key) {
            return Some(format!("{origin} serves no calls: it was measured on an emulated machine, not on this one"));
        }
        // Which emulated machine it is was compared above, where it matters.
        let own = TableKey { topology: key.topology.clone(), ..places.key() };
        let why = key.difference(&own)?;
        Some(format!("{origin} serves no calls of these ranks: it was measured with {why}"))
    }

    /// Why no plan serves calls of a kind that the table has plans for, if that is so.
    pub fn why_not(&self, places: RankPlaces<'_>, asked: &Request, dtype: DType) -> Option<String> {
        let Request { collective, root, size_bytes, .. } = *asked;
        if self.find(places, (kind_of(asked), dtype), size_bytes).is_some() {
            return None;
        }
        let machines = places.machines;
        let entry = (0..self.len()).find(|&entry| {
            let request = self.entries[entry].plan.schedule.demand.request();
            request.collective == collective && self.holds(entry, size_bytes)
        })?;
        let TableEntry { range, plan } = &self.entries[entry];
        let (name, request) = (&plan.name, plan.schedule.demand.request());
        let why = match () {
            () if request.ranks != machines.len() => format!("for {} ranks, not for {}", request.ranks, machines.len()),
            () if request.members.len() != request.ranks => "for some of the ranks only".to_owned(),
            () if request.root != root => {
                let shown = |root: Option<topology::Rank>| root.map_or("none".to_owned(), |root| root.to_string());
                format!("for root {}, not for root {}", shown(request.root), shown(root))
            }
            () if range.is_none() => "for other machines".to_owned(),
            () => return None,
        };
        Some(format!("{name} cannot serve {collective}: it is {why}; stock serves it"))
    }
}

/// The kind of a call of which nobody has said where its result is to be: where it was measured.
fn kind_of(asked: &Request) -> CallKind {
    let Request { collective, root, op, .. } = *asked;
    CallKind { root, op, ..measured_kind(collective, op.unwrap_or(ReduceOp::Sum)) }
}
