//! The command line: parse, run, print, exit. The work is in the crates; this one connects them, owns the terminal, and
//! decides the exit code.

mod amounts;
mod answer;
mod cli;
mod commands;
mod content;
mod failure;
mod foreign;
mod heatmap;
mod interrupt;
mod known;
mod launch;
mod loading;
mod lowered;
mod occupancy;
mod plan;
mod screen;
mod workbench;

use clap::Parser;
use cli::{Cli, Command, LaunchArgs};
use failure::Outcome;
use launch::JoiningRank;
use screen::Screen;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    let screen = Screen::new(&cli.output);
    match dispatch(cli.command, &screen).and_then(|()| screen.close()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            screen.fail(&failure);
            failure.finish()
        }
    }
}

/// Reports a wrong command line. If this process is one of several ranks, the others learn that it does not come.
fn refused(error: &clap::Error) -> ExitCode {
    // Searches the words themselves, because they could not be parsed.
    let is_json = std::env::args_os().any(|word| word == "--json");
    if is_json && error.use_stderr() {
        let text = error.to_string();
        let text = text.trim().strip_prefix("error: ").unwrap_or(&text);
        drop(writeln!(std::io::stderr().lock(), "{}", failure::misuse(text)));
    } else {
        drop(error.print());
    }
    if error.use_stderr()
        && let Some(role) = LaunchArgs::guess().and_then(|args| JoiningRank::of(&args))
    {
        let text = error.to_string();
        role.call_off(text.lines().next().unwrap_or_default());
    }
    ExitCode::from(error.exit_code() as u8)
}

fn dispatch(command: Command, screen: &Screen) -> Outcome {
    if matches!(
        command,
        Command::Topology(_)
            | Command::Sketch(_)
            | Command::Verify(_)
            | Command::Simulate(_)
            | Command::Explain(_)
            | Command::Export(_)
    ) {
        // The other commands say themselves what Ctrl-C means for them.
        interrupt::ends(screen);
    }
    if matches!(command, Command::LoopRank(_) | Command::TuneRank | Command::DemoRank | Command::ProfileRank) {
        launch::library::end_with_launcher();
    }
    match command {
        Command::Demo(args) => commands::demo::run(&args, screen),
        Command::Topology(command) => commands::topology::run(&command, screen),
        Command::Profile(args) => commands::profile::run(&args, screen),
        Command::Sketch(command) => commands::sketch::run(&command, screen),
        Command::Bound(args) => commands::bound::run(&args, screen),
        Command::Synth(args) => commands::synth::run(&args, screen),
        Command::Verify(args) => commands::verify::run(&args, screen),
        Command::Simulate(args) => commands::simulate::run(&args, screen),
        Command::Explain(args) => commands::explain::run(&args, screen),
        Command::Export(args) => commands::export::run(&args, screen),
        Command::Run(args) => commands::run::run(&args, screen),
        Command::Tune(args) => commands::tune::run(&args, screen),
        Command::LoopRank(args) => commands::run::run_loop_rank(&args.job),
        Command::DemoRank => commands::demo::run_rank(),
        Command::TuneRank => commands::tune::run_rank(),
        Command::ProfileRank => commands::profile::run_rank(),
        Command::Sweep(args) => commands::sweep::run(&args, screen),
        Command::Completions { shell } => commands::help::completions(shell, screen),
        Command::Man(args) => commands::help::man(&args, screen),
        Command::SweepWorker(args) => commands::sweep::run_worker(&args),
        Command::Worker => commands::worker::run(),
    }
}
