//! `antiphon completions` and `antiphon man`: generated from the one definition of the command line.

use crate::cli::Cli;
use crate::failure::{Failure, Outcome};
use crate::screen::Screen;
use clap::CommandFactory;

/// Prints completions for a shell.
pub(crate) fn completions(shell: clap_complete::Shell, screen: &Screen) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "antiphon", &mut script);
    screen.line(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// Prints the man page.
pub(crate) fn man(screen: &Screen) -> Outcome {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(Failure::no)?;
    screen.line(String::from_utf8_lossy(&page).trim_end());
    Ok(())
}
