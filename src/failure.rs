//! Failures of commands: text, place, evidence, hints, and the exit code, decided in one file.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | the answer is "no": verification failed, infeasible, a rank died, wrong results |
//! | 2 | bad input: an unknown name, a broken file, a number out of range |
//! | 130 | interrupted (Ctrl-C) before there was a whole answer |
//!
//! With `--json` a failure is an object: `format` (`antiphon-error/1`), `kind` (`no`, `bad_input`, `interrupted`),
//! `text`, `file`, `line`, `column` and `hint`, each `null` where there is none.

use crate::interrupt;
use serde_json::{Value, json};
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Whether the input or the answer is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailureKind {
    /// The answer is "no".
    No,
    /// The input is bad.
    BadInput,
    /// The user interrupted before there was an answer.
    Interrupted,
}

impl FailureKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::BadInput => "bad_input",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: FailureKind,
    error: anyhow::Error,
    hints: Vec<String>,
    afterwards: Option<Afterwards>,
}

/// A function that is called with the text of the failure after it was shown, because somebody else waits for it.
struct Afterwards(Box<dyn FnOnce(&str)>);

impl fmt::Debug for Afterwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Afterwards(…)")
    }
}

impl Failure {
    /// The answer is "no", because of `error`.
    pub(crate) fn no(error: impl Into<anyhow::Error>) -> Self {
        Self { kind: FailureKind::No, error: error.into(), hints: Vec::new(), afterwards: None }
    }

    /// The input is bad, because of `error`.
    pub(crate) fn bad_input(error: impl Into<anyhow::Error>) -> Self {
        Self { kind: FailureKind::BadInput, error: error.into(), hints: Vec::new(), afterwards: None }
    }

    /// Ctrl-C came before there was an answer.
    pub(crate) fn interrupted() -> Self {
        Self::interrupted_with(anyhow::anyhow!("interrupted"))
    }

    /// Ctrl-C came before the answer was whole; `error` says what is missing.
    pub(crate) fn interrupted_with(error: impl Into<anyhow::Error>) -> Self {
        Self { kind: FailureKind::Interrupted, ..Self::no(error) }
    }

    /// Adds what was being done, in front of the cause.
    #[must_use]
    pub(crate) fn context(mut self, what: impl fmt::Display + Send + Sync + 'static) -> Self {
        self.error = self.error.context(what);
        self
    }

    /// Adds advice.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Adds advice, if there is any.
    #[must_use]
    pub(crate) fn hint_if(self, hint: Option<impl Into<String>>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Calls `tell` with the text of the failure after it was shown.
    #[must_use]
    pub(crate) fn and_tell(mut self, tell: impl FnOnce(&str) + 'static) -> Self {
        self.afterwards = Some(Afterwards(Box::new(tell)));
        self
    }

    /// Calls the function of [`Self::and_tell`], if there is one; returns the exit code of the process.
    pub(crate) fn finish(mut self) -> ExitCode {
        if let Some(Afterwards(tell)) = self.afterwards.take() {
            tell(&self.to_string());
        }
        match self.kind {
            FailureKind::No => ExitCode::from(1),
            FailureKind::BadInput => ExitCode::from(2),
            FailureKind::Interrupted => ExitCode::from(interrupt::EXIT_CODE),
        }
    }

    /// The text for people, or a JSON object.
    pub(crate) fn shown(&self, is_json: bool) -> String {
        if !is_json {
            return self.to_string();
        }
        let causes: Vec<String> = self.error.chain().map(ToString::to_string).collect();
        object(self.kind, &causes.join("\n"), &self.hints).to_string()
    }
}

/// The JSON object for a wrong command line.
pub(crate) fn misuse(text: &str) -> Value {
    object(FailureKind::BadInput, text, &[])
}

fn object(kind: FailureKind, text: &str, hints: &[String]) -> Value {
    let place = text.lines().find_map(FilePlace::of);
    json!({
        "format": "antiphon-error/1", "kind": kind.as_str(), "text": text,
        "file": place.as_ref().map(|place| place.file), "line": place.as_ref().map(|place| place.line),
        "column": place.as_ref().and_then(|place| place.column),
        "hint": (!hints.is_empty()).then(|| hints.join("\n")),
    })
}

/// Where a file is wrong, as every error about a file begins: `FILE:LINE:COLUMN: …`, or `FILE:LINE`.
#[derive(PartialEq, Debug)]
struct FilePlace<'t> {
    file: &'t str,
    line: u64,
    column: Option<u64>,
}

impl<'t> FilePlace<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let text = text.trim_start();
        let (file, line) = match text.split_once(": ") {
            Some((place, _)) => {
                let (rest, column) = place.rsplit_once(':')?;
                let (file, line) = rest.rsplit_once(':')?;
                return Some(Self { file, line: line.parse().ok()?, column: Some(column.parse().ok()?) });
            }
            None => text.rsplit_once(':')?,
        };
        Some(Self { file, line: line.parse().ok()?, column: None })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.error)?;
        for cause in self.error.chain().skip(1) {
            write!(f, "\n  {cause}")?;
        }
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// Converts errors of user input to exit code 2 wherever `?` is used.
macro_rules! bad_input {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::bad_input(error)
            }
        })+
    };
}

bad_input!(schedule::DemandError, topology::TopologyError);

/// Reads a whole text file the user named.
///
/// # Errors
/// Bad input, with the path and the error of the system.
pub(crate) fn read_text(path: &std::path::Path) -> Outcome<String> {
    Ok(topology::read_text(&path.to_string_lossy())?)
}

/// Writes a file that the user named, through a buffer.
///
/// # Errors
/// Bad input, with the path and the error of the system.
pub(crate) fn write_to(path: &std::path::Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Outcome {
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|error| io_failure(path, error))
}

/// Bad input about a file the user named.
pub(crate) fn io_failure(path: &std::path::Path, error: impl Error + Send + Sync + 'static) -> Failure {
    Failure::bad_input(error).context(format!("{}: cannot be used", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_from_what_errors_say() {
        let place = |file, line, column| Some(FilePlace { file, line, column });
        assert_eq!(FilePlace::of("a b.yaml:3:14: unknown key `x: 1`"), place("a b.yaml", 3, Some(14)));
        assert_eq!(FilePlace::of("  sketches/a.yaml:7"), place("sketches/a.yaml", 7, None));
        for text in ["the plan is wrong: rank 1:2", "no such file", "a.json: cannot be used", "12:34: 5", ""] {
            assert_eq!(FilePlace::of(text), None, "{text}");
        }
    }
}
