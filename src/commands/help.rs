//! `antiphon completions` and `antiphon man`: generated from the one definition of the command line.

use crate::cli::{Cli, ManArgs};
use crate::failure::{Failure, Outcome, io_failure, write_to};
use crate::screen::Screen;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

/// Prints completions for a shell.
pub(crate) fn completions(shell: clap_complete::Shell, screen: &Screen) -> Outcome {
    refuse_json(screen)?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "antiphon", &mut script);
    screen.line(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

fn refuse_json(screen: &Screen) -> Outcome {
    match screen.is_json() {
        true => {
            Err(Failure::bad_input(anyhow::anyhow!("this prints text for people and shells, which has no JSON form")))
        }
        false => Ok(()),
    }
}

/// Prints the man page of a command, or writes those of all.
pub(crate) fn man(args: &ManArgs, screen: &Screen) -> Outcome {
    refuse_json(screen)?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    if let (true, Some(folder)) = (args.all, &args.output) {
        std::fs::create_dir_all(folder).map_err(|error| io_failure(folder, error))?;
        let mut pages = Vec::new();
        every(&root, &mut pages);
        let path = |command: &Command| folder.join(Man::new(command.clone()).get_filename());
        screen.may_write(&pages.iter().map(|command| path(command)).collect::<Vec<_>>())?;
        for command in &pages {
            let text = page(command).map_err(Failure::no)?;
            write_to(&path(command), |out| out.write_all(&text))?;
        }
        screen.note(&format!("{} pages written to {}", pages.len(), folder.display()));
        return Ok(());
    }
    let mut command = &root;
    for word in &args.command {
        let known: Vec<&str> =
            command.get_subcommands().filter(|it| !it.is_hide_set()).map(Command::get_name).collect();
        let unknown = || Failure::bad_input(anyhow::anyhow!("there is no command `{word}`"));
        let hint = format!("commands: {}", known.join(" "));
        command = command.find_subcommand(word).ok_or_else(|| unknown().hint(hint))?;
    }
    let text = page(command).map_err(Failure::no)?;
    screen.line(String::from_utf8_lossy(&text).trim_end());
    Ok(())
}

/// A command and all its subcommands, except those that only this program calls.
fn every<'c>(command: &'c Command, pages: &mut Vec<&'c Command>) {
    pages.push(command);
    command.get_subcommands().filter(|it| !it.is_hide_set()).for_each(|it| every(it, pages));
}

/// Like `Man::render`, but with the examples unchanged.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let source = concat!("antiphon ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    if let Some(examples) = command.get_after_help() {
        let mut roff = Roff::default();
        roff.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples.to_string().lines().skip(1) {
            roff.text([roman(line)]);
        }
        roff.control("fi", []).to_writer(&mut out)?;
    }
    man.render_version_section(&mut out)?;
    Ok(out)
}
