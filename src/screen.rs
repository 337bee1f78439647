//! The terminal: results on stdout, everything else on stderr.
//!
//! With `--json` stdout carries exactly the machine-readable result. A closed pipe ends output quietly, as
//! other Unix tools do.

use crate::cli::Voice;
use crate::failure::{Failure, Outcome};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::cell::RefCell;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::Duration;
use synth::Progress;

/// Where and how to print.
pub(crate) struct Screen {
    json: bool,
    quiet: bool,
    verbose: bool,
    /// Why output was lost, if it was.
    lost: RefCell<Option<io::Error>>,
}

impl Screen {
    /// Sets up printing and diagnostics as the user asked.
    pub(crate) fn new(voice: &Voice) -> Self {
        let level = match voice.verbose {
            0 => "warn",
            1 => "info",
            2 => "debug",
            _ => "trace",
        };
        let filter = std::env::var("ANTIPHON_LOG").unwrap_or_else(|_| level.to_owned());
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
        lines.with_writer(std::io::stderr).without_time().init();
        Self { json: voice.json, quiet: voice.quiet, verbose: voice.verbose > 0, lost: RefCell::new(None) }
    }

    /// Whether the result is wanted as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints the result: `text` for people, `value` for machines.
    ///
    /// # Errors
    /// If the value cannot be serialised, which would be a defect of ours.
    pub(crate) fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        if self.json {
            self.line(&serde_json::to_string(value).map_err(Failure::no)?);
        } else {
            self.line(text().trim_end());
        }
        Ok(())
    }

    /// Prints one line (or a ready block of lines) on stdout.
    pub(crate) fn line(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            // A reader that has gone away has read all it wanted.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => *self.lost.borrow_mut() = Some(error),
            _ => {}
        }
    }

    /// Whether results go to a terminal that wants colours.
    pub(crate) fn has_colours(&self) -> bool {
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|wish| wish.is_empty())
    }

    /// How many columns text may have: what `COLUMNS` says, or what fits most windows.
    pub(crate) fn width(&self) -> usize {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        columns.unwrap_or(100)
    }

    /// Whether everything that was printed arrived.
    ///
    /// # Errors
    /// If stdout could not be written.
    pub(crate) fn close(&self) -> Outcome {
        match self.lost.borrow_mut().take() {
            Some(error) => Err(Failure::no(error).context("the output could not be written")),
            None => Ok(()),
        }
    }

    /// Prints text for people only: on stdout, or nowhere with `--json`.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            self.line(text);
        }
    }

    /// Prints a remark on stderr.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            drop(writeln!(std::io::stderr().lock(), "{text}"));
        }
    }

    /// Prints on stderr what only those want to know who asked for more.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Prints why the command failed.
    pub(crate) fn fail(&self, failure: &Failure) {
        drop(writeln!(std::io::stderr().lock(), "{failure}"));
    }

    /// A progress line on stderr; invisible when stderr is no terminal, with `--quiet`, or for short work.
    pub(crate) fn progress(&self, what: &str) -> Bar {
        let target = if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{spinner} {elapsed} {prefix}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Bar(bar)
    }
}

/// A running progress line; disappears when dropped.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Shows the state of a search: incumbent, bound, gap.
    pub(crate) fn show(&self, progress: &Progress) {
        let mut parts = vec![progress.strategy.to_owned()];
        if let Some(incumbent) = progress.incumbent {
            parts.push(format!("incumbent {}", time(incumbent.0)));
        }
        if let Some(bound) = &progress.bound {
            parts.push(format!("bound {} ({})", time(bound.value.0), bound.name));
            if let Some(incumbent) = progress.incumbent.filter(|_| bound.value.0 > 0.0) {
                parts.push(format!("gap {:.2} %", (incumbent / bound.value - 1.0) * 100.0));
            }
        }
        parts.push(progress.activity.clone());
        self.0.set_message(parts.join(" · "));
    }

    /// Shows any text.
    pub(crate) fn message(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A time in microseconds, for people.
pub(crate) fn time(us: f64) -> String {
    topology::quantity::show_duration(topology::Micros(us))
}

/// A size in bytes, for people.
pub(crate) fn bytes(count: u64) -> String {
    topology::quantity::show_bytes(topology::Bytes(count as f64))
}

/// A gap as a percentage, or a dash.
pub(crate) fn percent(gap: Option<f64>) -> String {
    gap.map_or_else(|| "–".to_owned(), |gap| format!("{:.2} %", gap * 100.0))
}

/// Aligns rows into columns: the first column to the left, the others to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(header.to_vec())];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}
