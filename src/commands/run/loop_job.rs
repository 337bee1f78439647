//! What `antiphon run --loop` measures, as the command line says it.
//!
//! The principal type is [`LoopJob`].

use super::fixed::{self, Fixed};
use crate::cli::{BufferOwner, RunArgs, TransportChoice};
use crate::failure::{Failure, Outcome};
use crate::launch::Launch;
use crate::screen::Screen;
use comm::{Config, DType, PlanTable, RankPlaces, RankTransport};
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// What the ranks are to do.
#[derive(Serialize, Deserialize)]
pub(super) struct LoopJob {
    pub(super) collective: Collective,
    pub(super) op: ReduceOp,
    pub(super) root: usize,
    pub(super) dtype: DType,
    /// In bytes, as `antiphon run` counts them.
    pub(super) sizes: Vec<u64>,
    /// Timed blocks, and untimed calls before them.
    pub(super) blocks: u32,
    pub(super) warmups: u32,
    pub(super) buffers: BufferOwner,
    /// A table, or one plan.
    pub(super) table: Option<PathBuf>,
    pub(super) transport: RankTransport,
    /// How long a call may go without progress, and how long to wait for the other ranks.
    pub(super) timeout: Option<Duration>,
    pub(super) joining: Duration,
}

impl LoopJob {
    /// What a rank does as the command line says, whatever the environment says.
    pub(super) fn configure(&self, config: &mut Config) {
        config.table.clone_from(&self.table);
        (config.transport, config.joining) = (self.transport, self.joining);
        config.timeout = self.timeout.unwrap_or(config.timeout);
    }

    /// Why the table does not serve ranks of this computer, where that is so.
    pub(super) fn misfits(&self, ranks: usize) -> Outcome<Vec<String>> {
        let Some(path) = &self.table else { return Ok(Vec::new()) };
        let is_alone = self.transport == RankTransport::Tcp;
        let machines: Vec<u32> = (0..ranks as u32).map(|rank| if is_alone { rank } else { 0 }).collect();
        let table = PlanTable::read_for(path, None).map_err(Failure::bad_input)?;
        let hardware = vec![comm::hardware(); ranks];
        let places = RankPlaces { machines: &machines, transport: Some(self.transport), hardware: Some(&hardware) };
        Ok([table.notes().to_vec(), table.misfits(places)].concat())
    }
}

/// The plan that was given, if one was.
pub(super) fn plan_of(args: &RunArgs, screen: &Screen) -> Outcome<Option<Fixed>> {
    let path = match &args.files[..] {
        [] => return Ok(None),
        [path] => path,
        _ => return Err(bad("--loop runs one plan: calls of a communicator are made one after the other")),
    };
    let plan = fixed::open(path, args, screen)?;
    let request = plan.request();
    match &plan {
        Fixed::Foreign { origin, .. } => Err(bad(&format!("{origin}: --loop runs schedules (JSON), as tables do"))),
        Fixed::Schedule(_) if request.members.len() != request.ranks => {
            Err(bad("--loop runs plans in which all ranks take part"))
        }
        Fixed::Schedule(_) => Ok(Some(plan)),
    }
}

/// How many ranks there are.
pub(super) fn ranks_of(args: &RunArgs, config: Option<&Config>, plan: Option<&Fixed>) -> Outcome<usize> {
    let needed = plan.map(|plan| plan.request().ranks);
    let given = config.map(|config| config.size).or(args.launch.ranks.map(|ranks| ranks as usize));
    match (given, needed) {
        (Some(given), Some(needed)) if given != needed => {
            Err(bad(&format!("the plan has {needed} ranks, but {given} are to run")))
        }
        (Some(given), _) => Ok(given),
        (None, Some(needed)) => Ok(Launch::local(needed)?.ranks()),
        (None, None) => Err(bad("--ranks is needed without a launcher")),
    }
}

/// What the ranks are to do, as the command line and the plan say.
pub(super) fn job_of(args: &RunArgs, ranks: usize, plan: Option<&Fixed>) -> Outcome<LoopJob> {
    let request = plan.map(Fixed::request);
    let collective = args.collective.or(request.map(|request| request.collective));
    let collective = collective.ok_or_else(|| bad("--loop needs --collective"))?;
    let sizes = args.size.as_ref().map(|sizes| sizes.0.clone());
    let root = args.root.or(request.and_then(|request| request.root).map(|root| root.0)).unwrap_or(0) as usize;
    if root >= ranks {
        return Err(bad("--root is not a rank"));
    }
    if !collective.takes_vectors() {
        return Err(unserved(collective));
    }
    Ok(LoopJob {
        collective,
        op: args.op.or(request.and_then(|request| request.op)).unwrap_or(ReduceOp::Sum),
        root,
        dtype: args.dtype,
        sizes: sizes.or(request.map(|request| vec![request.size_bytes])).ok_or_else(|| bad("--loop needs --size"))?,
        blocks: args.iterations,
        warmups: args.warmups,
        buffers: args.buffers,
        table: args.table.clone().or(args.files.first().cloned()),
        transport: match args.transport {
            TransportChoice::Auto => RankTransport::Auto,
            TransportChoice::Shm => RankTransport::Shm,
            TransportChoice::Tcp => RankTransport::Tcp,
            TransportChoice::Threads => return Err(bad("--loop starts one process per rank: auto, shm or tcp")),
        },
        timeout: args.timeout,
        joining: args.launch.ready_limit(ranks),
    })
}

fn bad(what: &str) -> Failure {
    Failure::bad_input(anyhow::anyhow!(what.to_owned()))
}

pub(super) fn unserved(collective: Collective) -> Failure {
    Failure::bad_input(anyhow::anyhow!("--loop does not run {collective}"))
}
