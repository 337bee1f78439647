//! `antiphon export`: a schedule in another format.

use super::simulate::write_or_print;
use crate::cli::{ExportArgs, ExportFormat};
use crate::failure::{Failure, Outcome};
use crate::plan;
use crate::screen::Screen;
use schedule::export;
use schedule::program::{LowerOptions, lower};

/// Runs the command.
pub(crate) fn run(args: &ExportArgs, screen: &Screen) -> Outcome {
    let (schedule, topology) = plan::open_verified(&args.plan.file, args.plan.topology.as_deref())?;
    let path = args.output.as_deref();
    match args.format {
        ExportFormat::Trace => write_or_print(path, screen, |out| export::trace(&schedule, &topology, out)),
        ExportFormat::Dot => write_or_print(path, screen, |out| export::dot(&schedule, &topology, out)),
        ExportFormat::Program => {
            let program = lower(&schedule, &LowerOptions::default()).map_err(Failure::no)?;
            write_or_print(path, screen, |out| writeln!(out, "{program}"))
        }
    }
}
