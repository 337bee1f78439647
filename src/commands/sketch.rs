//! `antiphon sketch check`: what a sketch allows and forbids on a topology.

use crate::cli::SketchCommand;
use crate::failure::Outcome;
use crate::plan;
use crate::screen::Screen;
use synth::sketch::describe;

/// Runs the command.
pub(crate) fn run(command: &SketchCommand, screen: &Screen) -> Outcome {
    let SketchCommand::Check { file, topology } = command;
    let topology = plan::topology(topology)?;
    let sketch = plan::sketch(file, &topology)?;
    let summary = describe(&sketch, &topology);
    screen.result(&summary, || summary.to_string())
}
