//! `antiphon demo`: the main job.

use crate::cli::DemoArgs;
use crate::failure::{Failure, Outcome};
use crate::screen::Screen;

/// Runs the command.
pub fn run(_args: &DemoArgs, _screen: &Screen) -> Outcome {
    Err(Failure::no(anyhow::anyhow!("not wired yet")))
}
