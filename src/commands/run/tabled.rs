//! The plans that a table chooses.

use super::{BOTH, GroupPlans, RunnablePlan, stock};
use crate::amounts::count;
use crate::cli::{RunArgs, TransportChoice};
use crate::failure::{Failure, Outcome};
use crate::known::machines_of;
use crate::loading::MemoryMode;
use crate::plan;
use crate::screen::Screen;
use crate::workbench::Workbench;
use comm::{PlanTable, RankPlaces, RankTransport};
use runtime::Group;
use schedule::{Collective, ReduceOp, Request};
use std::path::Path;
use std::rc::Rc;
use topology::Rank;

/// A table, and on which machines the ranks are that use it.
pub(super) struct RunTable {
    table: PlanTable,
    /// The machine of each rank, counted in the order of their first ranks.
    machines: Vec<u32>,
    transport: Option<RankTransport>,
    /// What each machine is, if it is this one.
    hardware: Option<Vec<String>>,
}

impl RunTable {
    /// Reads a table. If it was measured elsewhere, a note says that stock serves all calls.
    pub(super) fn open(args: &RunArgs, path: &Path, ranks: usize, bench: &Workbench, screen: &Screen) -> Outcome<Self> {
        let emulated = args.emulate.as_ref().map(|spec| plan::topology(spec)).transpose()?;
        let digest = emulated.as_ref().map(|topology| topology.digest());
        let table = PlanTable::read_for(path, digest.as_deref()).map_err(Failure::bad_input)?;
        // Ranks whose machines are not known are on this one, or on those that they emulate.
        let mut machines = emulated.map_or_else(|| vec![0; ranks], |topology| machines_of(&topology));
        for (machine, members) in (0..).zip(bench.machines().unwrap_or_default()) {
            members.iter().for_each(|rank| machines[rank.index()] = machine);
        }
        let transport = match args.transport {
            TransportChoice::Auto => Some(RankTransport::Auto),
            TransportChoice::Shm | TransportChoice::Threads => Some(RankTransport::Shm),
            TransportChoice::Tcp => Some(RankTransport::Tcp),
        };
        // Ranks of several machines are not all on this one.
        let is_here = digest.is_none() && machines.iter().all(|machine| *machine == 0);
        let hardware = is_here.then(|| vec![comm::hardware(); ranks]);
        let own = Self { table, machines, transport: transport.filter(|_| digest.is_none()), hardware };
        let misfits = own.table.misfits(own.places());
        own.table.notes().iter().chain(&misfits).for_each(|why| screen.note(&format!("note: {why}")));
        Ok(own)
    }

    fn places(&self) -> RankPlaces<'_> {
        let Self { machines, transport, hardware, .. } = self;
        RankPlaces { machines, transport: *transport, hardware: hardware.as_deref() }
    }

    /// What the table chooses for a size; `None` for stock. Calls in place that its plan cannot serve are stock's.
    pub(super) fn part(
        &self,
        args: &RunArgs,
        ranks: usize,
        size: u64,
        (bench, screen): (&Workbench, &Screen),
    ) -> Outcome<Option<GroupPlans>> {
        let collective = args.collective.unwrap_or(Collective::AllReduce);
        let mut asked = Request::new(collective, ranks, size);
        asked.op = collective.combines().then_some(args.op.unwrap_or(ReduceOp::Sum));
        asked.root = collective.is_rooted().then_some(Rank(args.root.unwrap_or(0)));
        asked.size_bytes = count(&asked, size, args.dtype, 1).1;
        let Some(found) = self.table.schedule_for(self.places(), &asked, args.dtype) else {
            let why = self.table.why_not(self.places(), &asked, args.dtype);
            why.iter().for_each(|why| screen.note(&format!("note: {why}")));
            return Ok(None);
        };
        let (schedule, _) = found.map_err(|why| Failure::bad_input(anyhow::anyhow!(why)))?;
        let installed = bench.install(&schedule)?;
        let name = format!("{} (table)", schedule.schedule().produced_by.strategy);
        let members: Vec<Rank> = (0..ranks).map(Rank::from_index).collect();
        let serves_all = installed.serves(MemoryMode::InPlace);
        let ready = |installed| (RunnablePlan { installed, name, model: None }, &BOTH[..]);
        let mut plans = vec![ready(installed)];
        if !serves_all {
            let others = stock::parts(args, &[Group::all(ranks)], ranks, Some(size), bench)?;
            let others = others.into_iter().filter_map(|part| Rc::into_inner(part.plans));
            plans.extend(others.flatten());
        }
        Ok(Some(GroupPlans { group: Group::all(ranks), members, plans: Rc::new(plans) }))
    }
}
