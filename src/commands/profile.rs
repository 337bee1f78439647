//! `antiphon profile`: measures this computer.

use crate::cli::ProfileArgs;
use crate::failure::{Failure, Outcome};
use crate::screen::Screen;

/// Runs the command.
pub fn run(_args: &ProfileArgs, _screen: &Screen) -> Outcome {
    Err(Failure::no(anyhow::anyhow!("not wired yet")))
}
