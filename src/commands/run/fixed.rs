//! Plans from files, adapted to the flags.

use crate::cli::RunArgs;
use crate::commands::verify::adding_differently;
use crate::content;
use crate::failure::{Failure, Outcome, read_text};
use crate::foreign;
use crate::loading::{ForeignSource, MemoryMode};
use crate::plan;
use crate::screen::Screen;
use crate::workbench::{Installed, Workbench};
use program::{adds_differently, play};
use schedule::{Demand, ReduceOp, Request, VerifiedSchedule, verify};
use std::path::Path;
use std::sync::Arc;
use synth::{Constraints, SizeTask};
use topology::{Micros, Rank, Topology};

/// A plan from a file.
pub(super) enum Fixed {
    Schedule(VerifiedSchedule),
    /// If the topology is unknown, the links have no rates, and times cannot be predicted.
    Foreign {
        text: String,
        origin: String,
        request: Request,
        topology: Arc<Topology>,
        is_modelled: bool,
    },
}

impl Fixed {
    pub(super) fn request(&self) -> &Request {
        match self {
            Self::Schedule(schedule) => schedule.schedule().demand.request(),
            Self::Foreign { request, .. } => request,
        }
    }

    /// The predicted time of a call of `size` bytes on `on` (default: the plan's own topology); `None` if its order
    /// cannot be played there.
    pub(super) fn predicted(&self, size: u64, memory: MemoryMode, on: Option<&Arc<Topology>>) -> Option<Micros> {
        match self {
            Self::Schedule(schedule) => {
                let (own, plan) = (schedule.topology(), schedule.schedule());
                let topology = on.unwrap_or(own);
                let request = plan.demand.request().clone();
                if request.size_bytes == size && topology.digest() == own.digest() {
                    return Some(plan.makespan());
                }
                let (topology, constraints) = (topology.clone(), Arc::new(Constraints::none()));
                let chunks = Some(request.chunks_per_rank);
                let task = SizeTask { topology, constraints, request, chunks };
                synth::retimed(schedule, &task, size).map(|schedule| schedule.makespan())
            }
            Self::Foreign { text, origin, topology, is_modelled, .. } => {
                let topology = on.or(is_modelled.then_some(topology))?;
                let programs = foreign::read(text, origin, Some(size)).ok()?.verified(origin).ok()?;
                let in_place = memory == MemoryMode::InPlace;
                let program = programs.iter().find(|program| program.program().in_place == in_place)?;
                let program = foreign::bound(program, topology, None).ok()?;
                play(&program, topology).ok().map(|played| played.timeline.makespan())
            }
        }
    }

    pub(super) fn install(&self, op: Option<ReduceOp>, bench: &Workbench) -> Outcome<(Installed, String)> {
        match self {
            Self::Schedule(schedule) => {
                Ok((bench.install(schedule)?, schedule.schedule().produced_by.strategy.clone()))
            }
            Self::Foreign { text, origin, topology, .. } => {
                let source = ForeignSource { text, origin, op };
                let name = Path::new(origin).file_name().map_or_else(|| origin.into(), |name| name.to_string_lossy());
                Ok((bench.install_foreign(&source, topology)?, name.into_owned()))
            }
        }
    }
}

/// Opens a plan file, checks it against the flags, and sets the reduction that was asked for.
pub(super) fn open(path: &Path, args: &RunArgs, screen: &Screen) -> Outcome<Fixed> {
    let (text, origin) = (read_text(path)?, path.display().to_string());
    if !foreign::is_foreign(&text) {
        let schedule = plan::open_schedule(path, args.topology.as_deref())?;
        agrees(schedule.schedule().demand.request(), args)?;
        let (matrix, demand) = (args.matrix.as_deref(), args.demand.as_deref());
        let differences = content::differences(&schedule.schedule().demand, matrix, demand)?.unwrap_or_default();
        if let Some(first) = differences.iter().next() {
            let more = differences.total() - 1;
            return Err(Failure::no(anyhow::anyhow!("{origin}: is for other chunks: {first} (and {more} more)")));
        }
        let schedule = with_op(schedule, args)?;
        if let Some(chunk) = adds_differently(&schedule) {
            screen.note(&format!("note: {origin}: {}", adding_differently(chunk)));
        }
        return Ok(Fixed::Schedule(schedule));
    }
    if args.matrix.is_some() || args.demand.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!("{origin}: --matrix and --demand are for schedules")));
    }
    let mut plan = foreign::read(&text, &origin, None)?;
    let programs = plan.verified(&origin)?;
    plan.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let request = programs[0].program().demand.request().clone();
    agrees(&request, args)?;
    // If the topology is unknown, any two ranks have a link.
    let everyone = format!("clique:{}", request.ranks);
    let topology = plan::topology(args.topology.as_ref().or(args.emulate.as_ref()).unwrap_or(&everyone))?;
    let is_modelled = args.topology.is_some();
    Ok(Fixed::Foreign { text, origin, request, topology, is_modelled })
}

/// Checks that a plan is the one that the flags ask for.
fn agrees(request: &Request, args: &RunArgs) -> Outcome {
    let differs = |what: &str, given: String, has: String| {
        Err(Failure::bad_input(anyhow::anyhow!("the plan has {what} {has}, but {given} was asked for")))
    };
    if let Some(collective) = args.collective.filter(|&collective| collective != request.collective) {
        return differs("collective", collective.to_string(), request.collective.to_string());
    }
    if let Some(root) = args.root.filter(|&root| Some(Rank(root)) != request.root) {
        let has = request.root.map_or("none".to_owned(), |root| root.to_string());
        return differs("root", root.to_string(), has);
    }
    Ok(())
}

/// The schedule with the reduction asked for.
fn with_op(schedule: VerifiedSchedule, args: &RunArgs) -> Outcome<VerifiedSchedule> {
    let has = schedule.schedule().demand.request().op;
    let Some(op) = args.op.filter(|&op| Some(op) != has) else { return Ok(schedule) };
    let topology = schedule.topology().clone();
    let mut schedule = schedule.into_schedule();
    schedule.demand = Arc::new(Demand::clone(&schedule.demand).with_op(op)?);
    verify(schedule, &topology).map_err(Failure::no)
}
