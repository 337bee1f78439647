//! The command line: parse, do, print, exit. Everything interesting happens in the crates; this one wires them
//! together, owns the terminal, and decides the exit code.

mod cli;
mod commands;
mod failure;
mod foreign;
mod heatmap;
mod launch;
mod plan;
mod program;
mod screen;
mod workbench;

use clap::Parser;
use cli::{Cli, Command};
use failure::Outcome;
use screen::Screen;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let screen = Screen::new(&cli.voice);
    match dispatch(cli.command, &screen).and_then(|()| screen.close()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            screen.fail(&failure);
            failure.exit_code()
        }
    }
}

fn dispatch(command: Command, screen: &Screen) -> Outcome {
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
        Command::Sweep(args) => commands::sweep::run(&args, screen),
        Command::Completions { shell } => commands::help::completions(shell, screen),
        Command::Man => commands::help::man(screen),
        Command::SweepWorker(args) => commands::sweep::run_worker(&args),
        Command::Worker => commands::worker::run(),
    }
}
