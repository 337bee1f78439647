//! The terminal: results on stdout, everything else on stderr.
//!
//! With `--json` stdout gets exactly the JSON answer. A closed pipe ends output quietly, as in other Unix tools.

use crate::cli::{ColorChoice, OutputArgs};
use crate::failure::{Failure, Outcome};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use synth::Progress;
use topology::{is_printable, shorten_to};

/// Where and how to print.
pub(crate) struct Screen {
    json: bool,
    quiet: bool,
    verbose: bool,
    color: ColorChoice,
    force: bool,
    /// Why output was lost, if it was.
    lost: RefCell<Option<io::Error>>,
}

impl Screen {
    /// Sets up printing and diagnostics as the user asked.
    pub(crate) fn new(args: &OutputArgs) -> Self {
        let level = match args.verbose {
            _ if args.quiet => "error",
            0 => "warn",
            1 => "info",
            2 => "debug",
            _ => "trace",
        };
        // The solver warns of every model that it refuses. Whoever asks it handles that, so only -vv shows it.
        let filter = if args.verbose < 2 { format!("{level},highs=error") } else { level.to_owned() };
        let filter = std::env::var("ANTIPHON_LOG").unwrap_or(filter);
        let colors = wants_colors(args.color, std::io::stderr().is_terminal());
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colors);
        lines.with_writer(std::io::stderr).without_time().init();
        let OutputArgs { json, quiet, verbose, color, force } = *args;
        Self { json, quiet, verbose: verbose > 0, color, force, lost: RefCell::new(None) }
    }

    /// Whether the result is printed as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether the user asked for `--quiet`.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether the user asked for `--verbose`.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Refuses files that cannot be written: their folder does not exist, or they exist, are not empty, and the user does not
    /// allow to replace them. Called before any work is done for the files.
    ///
    /// # Errors
    /// Bad input that names the folder; or the file, and how to replace it.
    pub(crate) fn may_write<'p>(&self, paths: impl IntoIterator<Item = &'p PathBuf>) -> Outcome {
        let paths: Vec<&PathBuf> = paths.into_iter().collect();
        for path in &paths {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
            if let Some(folder) = folder {
                let (path, folder) = (path.display(), folder.display());
                return Err(Failure::bad_input(anyhow::anyhow!("{path}: the folder {folder} does not exist")));
            }
        }
        self.may_replace(paths)
    }

    /// The same for files whose folder will be made.
    ///
    /// # Errors
    /// Bad input that names the file, and how to replace it.
    pub(crate) fn may_replace<'p>(&self, paths: impl IntoIterator<Item = &'p PathBuf>) -> Outcome {
        let holds = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0);
        match paths.into_iter().find(holds).filter(|_| !self.force) {
            Some(path) => {
                Err(Failure::bad_input(anyhow::anyhow!("{} exists already", path.display()))
                    .hint("--force replaces it"))
            }
            None => Ok(()),
        }
    }

    /// Prints the result: `text` for people (not with `--quiet`), `value` as JSON.
    ///
    /// # Errors
    /// If the value cannot be serialised, which would be a defect of this program.
    pub(crate) fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        if self.json {
            self.line(&serde_json::to_string(value).map_err(Failure::no)?);
        } else if !self.quiet {
            self.line(text().trim_end());
        }
        Ok(())
    }

    /// Prints one line (or a ready block of lines) on stdout.
    pub(crate) fn line(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        self.keep(writeln!(out, "{text}").and_then(|()| out.flush()));
    }

    /// Remembers why output was lost.
    fn keep(&self, written: io::Result<()>) {
        match written {
            // A reader that has closed the pipe needs no more lines.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => *self.lost.borrow_mut() = Some(error),
            _ => {}
        }
    }

    /// Whether results are coloured.
    pub(crate) fn has_colours(&self) -> bool {
        wants_colors(self.color, std::io::stdout().is_terminal())
    }

    /// The number of columns for text: that of the terminal, of `COLUMNS`, or one that fits most windows.
    pub(crate) fn width(&self) -> usize {
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        columns.or_else(|| terminal_size::terminal_size().map(|(width, _)| width.0.into())).unwrap_or(100)
    }

    /// Checks that all output was written.
    ///
    /// # Errors
    /// If stdout could not be written.
    pub(crate) fn close(&self) -> Outcome {
        match self.lost.borrow_mut().take() {
            Some(error) => Err(Failure::no(error).context("the output could not be written")),
            None => Ok(()),
        }
    }

    /// Prints text for people only: on stdout, or nowhere with `--json` or `--quiet`.
    pub(crate) fn say(&self, text: &str) {
        if !self.json && !self.quiet {
            self.line(text);
        }
    }

    /// Prints a table of any length for people, line by line.
    pub(crate) fn say_table<R: Iterator<Item = Vec<String>>>(&self, header: &[&str], rows: impl Fn() -> R) {
        if self.json || self.quiet {
            return;
        }
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        let mut written = Ok(());
        long_table(header, rows, |text| {
            if written.is_ok() {
                written = writeln!(out, "{text}");
            }
        });
        self.keep(written.and_then(|()| out.flush()));
    }

    /// Prints a remark on stderr.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            drop(writeln!(std::io::stderr().lock(), "{text}"));
        }
    }

    /// Prints details on stderr, with `--verbose` only.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Prints why the command failed.
    pub(crate) fn fail(&self, failure: &Failure) {
        drop(writeln!(std::io::stderr().lock(), "{}", failure.shown(self.json)));
    }

    /// A progress line on stderr; invisible if stderr is not a terminal, with `--quiet`, or for short work.
    pub(crate) fn progress(&self, what: &str) -> Bar {
        let target = if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{spinner} {elapsed} {prefix}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Bar { bar, started: Instant::now(), told: self.verbose.then(Mutex::default) }
    }
}

/// Whether output to a terminal, or elsewhere, is coloured.
fn wants_colors(choice: ColorChoice, is_terminal: bool) -> bool {
    match choice {
        ColorChoice::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|wish| wish.is_empty()),
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    }
}

/// A running progress line; disappears when dropped.
pub(crate) struct Bar {
    bar: ProgressBar,
    started: Instant,
    /// The last state that was printed, with `-v`, where every step is a line.
    told: Option<Mutex<(String, Option<f64>)>>,
}

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
        if let Some(told) = &self.told {
            let news = (progress.strategy.to_owned(), progress.incumbent.map(|incumbent| incumbent.0));
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if *told != news {
                *told = news;
                let line = format!("{:8.2} s  {}", self.started.elapsed().as_secs_f64(), parts.join(" · "));
                self.bar.suspend(|| drop(writeln!(std::io::stderr().lock(), "{line}")));
            }
        }
        parts.push(progress.activity.clone());
        self.bar.set_message(parts.join(" · "));
    }

    /// Prints something else, with the progress line removed meanwhile.
    pub(crate) fn pause(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Shows any text.
    pub(crate) fn message(&self, text: impl Into<String>) {
        self.bar.set_message(text.into());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
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

/// The lines of a table of any length: the rows are made twice and never kept, so that they take no memory.
pub(crate) fn long_table<R: Iterator<Item = Vec<String>>>(
    header: &[&str],
    rows: impl Fn() -> R,
    mut print: impl FnMut(&str),
) {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows() {
        widths.iter_mut().zip(&row).for_each(|(width, cell)| *width = width_of(cell).max(*width));
    }
    print(&line(&widths, header.iter().copied(), header.len()));
    rows().for_each(|row| print(&line(&widths, row.iter().map(String::as_str), header.len())));
}

/// Aligns rows into columns: the first column to the left, the others to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    aligned(header, rows, header.len())
}

/// The same, with words in the last column, aligned to the left; lines end at `width` columns.
pub(crate) fn table_with_remarks(header: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let cut = |line: &str| match line.char_indices().nth(width) {
        Some(_) => line.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        None => line.to_owned(),
    };
    aligned(header, rows, header.len() - 1).lines().map(cut).collect::<Vec<String>>().join("\n")
}

/// Aligns the first column and those from `words` on to the left, the others to the right.
fn aligned(header: &[&str], rows: &[Vec<String>], words: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell));
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut lines = vec![line(&widths, header.iter().copied(), words)];
    lines.extend(rows.iter().map(|row| line(&widths, row.iter().map(String::as_str), words)));
    lines.join("\n")
}

/// The most characters of a cell: widths of `format!` are at most 65,535.
const WIDEST: usize = 1000;

/// A cell as it is printed. Names and notes come from files: they may be of any length, and hold control characters, which
/// could do something to a terminal.
fn printed(cell: &str) -> Cow<'_, str> {
    if cell.len() <= WIDEST && cell.chars().all(is_printable) {
        return Cow::Borrowed(cell);
    }
    Cow::Owned(shorten_to(cell, WIDEST))
}

/// The width of a cell.
fn width_of(cell: &str) -> usize {
    printed(cell).chars().count()
}

/// One line of a table.
fn line<'c>(widths: &[usize], cells: impl Iterator<Item = &'c str>, words: usize) -> String {
    let padded = cells.map(printed).zip(widths).enumerate().map(|(column, (cell, width))| match column {
        0 => format!("{cell:<width$}"),
        _ if column >= words => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_any_length_are_printed() {
        let rows = [vec!["x".repeat(70_000), "a\u{1b}[31m".to_owned()]];
        let table = table(&["name", "note"], &rows);
        let lines: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(
            lines.iter().all(|&count| count < 1100) && table.contains("…") && table.contains("a\\u{1b}[31m"),
            "{lines:?}"
        );
    }

    #[test]
    fn remarks_end_where_the_terminal_does() {
        let rows = [vec!["a".to_owned(), "1".to_owned(), "ä long remark".to_owned()]];
        assert_eq!(table_with_remarks(&["who", "n", "why"], &rows, 12), "who  n  why\na    1  ä l…");
        assert_eq!(table_with_remarks(&["who", "n", "why"], &rows, 80), "who  n  why\na    1  ä long remark");
    }
}
