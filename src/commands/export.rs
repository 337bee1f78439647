//! `antiphon export`: a plan in another format.

use crate::cli::{ExportArgs, ExportFormat, LoweringArgs, NcclPath, NcclProtocol};
use crate::failure::{Failure, Outcome, write_to};
use crate::foreign;
use crate::lowered;
use crate::plan::{self, Verified};
use crate::screen::Screen;
use clap::ValueEnum;
use interop::view;
use interop::{msccl, mscclpp, nccl};
use program::{VerifiedProgram, play};
use schedule::{Request, Timeline};
use serde_json::json;
use std::io::{self, Write};
use topology::{Rank, Topology};

/// The `format` of the answer.
const FORMAT: &str = "antiphon-export/1";
/// The most threadblocks of a rank that MSCCL's runtimes can run on the GPUs they were made for: one for each
/// multiprocessor of an A100.
const MAX_THREADBLOCKS: u32 = 108;

/// Runs the command.
pub(crate) fn run(args: &ExportArgs, screen: &Screen) -> Outcome {
    screen.may_write(&args.output)?;
    let verified = plan::open_verified(&args.plan.file, args.plan.topology.as_deref(), args.plan.size, screen)?;
    match args.format {
        ExportFormat::Trace => {
            let timeline = timeline(&verified, args)?;
            write_or_print(args, screen, |out| view::trace(&timeline, out))
        }
        ExportFormat::Dot => {
            let timeline = timeline(&verified, args)?;
            write_or_print(args, screen, |out| view::dot(&timeline, out))
        }
        ExportFormat::Program => {
            let program = program(verified, args)?;
            write_or_print(args, screen, |out| writeln!(out, "{}", program.program()))
        }
        ExportFormat::MscclXml => msccl_file(verified, args, msccl::Dialect::Msccl, screen),
        ExportFormat::MscclXmlExecutor => msccl_file(verified, args, msccl::Dialect::Executor, screen),
        ExportFormat::MscclppJson => mscclpp_file(verified, args, screen),
        ExportFormat::NcclGraph => nccl_graph(&verified, args, screen),
    }
}

fn nccl_graph(verified: &Verified, args: &ExportArgs, screen: &Screen) -> Outcome {
    let Verified::Schedule(schedule) = verified else {
        return Err(Failure::bad_input(anyhow::anyhow!("a graph file of NCCL is made of a plan, not of a program")));
    };
    let path = match args.path {
        NcclPath::Nvl => nccl::PathType::NvLink,
        NcclPath::Pix => nccl::PathType::PcieSwitch,
        NcclPath::Pxb => nccl::PathType::PcieSwitches,
        NcclPath::Phb => nccl::PathType::HostBridge,
        NcclPath::Sys => nccl::PathType::System,
    };
    let graph = nccl::rings(schedule).map_err(Failure::no)?;
    screen.note(&format!("{} channels of {:.4} GB/s each", graph.channels.len(), graph.speed));
    write_or_print(args, screen, |out: &mut dyn Write| nccl::write_graph(&graph, path, out))
}

fn timeline(verified: &Verified, args: &ExportArgs) -> Outcome<Timeline> {
    match verified {
        Verified::Schedule(schedule) => Ok(Timeline::of(schedule)),
        Verified::Programs(programs) => {
            let topology = plan::needed_topology(args.plan.topology.as_deref())?;
            let program = foreign::bound(&programs[0], &topology, None)?;
            Ok(play(&program, &topology).map_err(Failure::no)?.timeline)
        }
    }
}

/// The plan as a program, in place if that is asked for.
fn program(verified: Verified, args: &ExportArgs) -> Outcome<VerifiedProgram> {
    match verified {
        Verified::Schedule(schedule) => {
            // MSCCL files have this limit anyway, so the program is made to satisfy it.
            let is_msccl = matches!(args.format, ExportFormat::MscclXml | ExportFormat::MscclXmlExecutor);
            let LoweringArgs { fuse, max_threadblocks, .. } = args.lowering;
            let max_threadblocks = max_threadblocks.filter(|_| fuse || !is_msccl);
            lowered::lowered(
                &schedule,
                &LoweringArgs { max_threadblocks, ..args.lowering.clone() }.options(args.in_place),
            )
        }
        Verified::Programs(programs) => {
            let asked = programs.iter().find(|program| program.program().in_place == args.in_place);
            lowered::replicated(asked.unwrap_or(&programs[0]), args.lowering.instances)
        }
    }
}

fn msccl_file(verified: Verified, args: &ExportArgs, dialect: msccl::Dialect, screen: &Screen) -> Outcome {
    let planned = planned_window(&verified);
    let program = program(verified, args)?;
    let request = program.program().demand.request();
    let (min_bytes, max_bytes) = window(args, planned, request, dialect);
    let options = msccl::AlgorithmExportOptions {
        dialect,
        protocol: match args.protocol {
            NcclProtocol::Simple => msccl::Protocol::Simple,
            NcclProtocol::Ll => msccl::Protocol::Ll,
            NcclProtocol::Ll128 => msccl::Protocol::Ll128,
        },
        name: args.name.clone().unwrap_or_else(|| format!("antiphon_{}_{}", request.collective, request.members.len())),
        min_bytes,
        max_bytes,
        max_blocks: args.lowering.max_threadblocks.unwrap_or(MAX_THREADBLOCKS) as usize,
    };
    let algorithm = msccl::export(&program, &options).map_err(Failure::no)?;
    write_or_print(args, screen, |out: &mut dyn Write| msccl::write(&algorithm, out))
}

/// The size window of a plan from a sweep: the first size, and the first that is too large.
fn planned_window(verified: &Verified) -> Option<(u64, u64)> {
    let Verified::Schedule(schedule) = verified else { return None };
    let options = &schedule.schedule().produced_by.options;
    let bytes = |key: &str| options.get(key)?.parse().ok();
    Some((bytes(synth::FROM_BYTES)?, bytes(synth::TO_BYTES)?)).filter(|(from, to)| from < to)
}

/// The sizes that a file serves: those that the user gives, else the window of a sweep's plan, else half an octave
/// around the planned size, so that files for sizes that double have no gaps and do not overlap. For a gather, the
/// runtimes count the bytes of one rank.
fn window(args: &ExportArgs, planned: Option<(u64, u64)>, request: &Request, dialect: msccl::Dialect) -> (u64, u64) {
    let collective = request.collective;
    let ranks = if collective.is_rooted() { collective.blocks(request.members.len()) as f64 } else { 1.0 };
    let size = request.size_bytes as f64;
    let (first, last) = match planned {
        Some((from, to)) => (from as f64, (to - 1) as f64),
        None => (size / f64::sqrt(2.0), size * f64::sqrt(2.0)),
    };
    let least = args.min_bytes.unwrap_or((first / ranks).ceil() as u64);
    let most = args.max_bytes.unwrap_or((last / ranks).floor() as u64);
    // microsoft/msccl serves only sizes below `maxBytes`.
    (least, if dialect == msccl::Dialect::Msccl { most.saturating_add(1) } else { most })
}

/// An MSCCL++ plan, with port channels between the machines of a schedule's topology.
fn mscclpp_file(verified: Verified, args: &ExportArgs, screen: &Screen) -> Outcome {
    let machine = |topology: &Topology, rank| topology.machine_of(Rank::from_index(rank)) as u32;
    let machines = match &verified {
        Verified::Schedule(schedule) => {
            let topology = schedule.topology();
            (0..topology.rank_count()).map(|rank| machine(topology, rank)).collect()
        }
        Verified::Programs(_) => Vec::new(),
    };
    let planned = planned_window(&verified);
    let program = program(verified, args)?;
    let request = program.program().demand.request();
    let options = mscclpp::PlanExportOptions {
        name: args.name.clone().unwrap_or_else(|| format!("antiphon_{}_{}", request.collective, request.members.len())),
        min_message_size: args.min_bytes.or(planned.map(|(from, _)| from)).unwrap_or(0),
        max_message_size: args.max_bytes.or(planned.map(|(_, to)| to - 1)).unwrap_or(u64::MAX),
        machines,
    };
    let plan = mscclpp::export(&program, &options).map_err(Failure::no)?;
    write_or_print(args, screen, |out: &mut dyn Write| out.write_all(mscclpp::write(&plan).as_bytes()))
}

/// Writes to a file, or to stdout if none is named. With `--json` stdout gets an object (`antiphon-export/1`) with the
/// name of the file, or with the content.
fn write_or_print(args: &ExportArgs, screen: &Screen, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Outcome {
    let format = args.format.to_possible_value().map(|value| value.get_name().to_owned());
    if let Some(path) = &args.output {
        write_to(path, write)?;
        let written = json!({"format": FORMAT, "written_as": format, "output": path});
        return screen.result(&written, || format!("written to {}", path.display()));
    }
    let mut text = Vec::new();
    write(&mut text).map_err(Failure::no)?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_end();
    let line = match screen.is_json() {
        true => json!({"format": FORMAT, "written_as": format, "content": text}).to_string(),
        false => text.to_owned(),
    };
    screen.line(&line);
    Ok(())
}
