//! How a command fails: what, where, evidence, hints, and the exit code, decided in one place.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | the answer is "no": verification failed, infeasible, a rank died, wrong results |
//! | 2 | bad input: an unknown name, a broken file, a number out of range |

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Whether the input or the answer is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The answer is "no".
    No,
    /// The input is bad.
    BadInput,
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    error: anyhow::Error,
    hints: Vec<String>,
    afterwards: Option<Afterwards>,
}

/// What is left to do when a failure has been shown: somebody else waits to hear of it.
struct Afterwards(Box<dyn FnOnce(&str)>);

impl fmt::Debug for Afterwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Afterwards(…)")
    }
}

impl Failure {
    /// The answer is "no", because of `error`.
    pub(crate) fn no(error: impl Into<anyhow::Error>) -> Self {
        Self { kind: Kind::No, error: error.into(), hints: Vec::new(), afterwards: None }
    }

    /// The input is bad, because of `error`.
    pub(crate) fn bad_input(error: impl Into<anyhow::Error>) -> Self {
        Self { kind: Kind::BadInput, error: error.into(), hints: Vec::new(), afterwards: None }
    }

    /// Says what was being done, before the cause.
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

    /// Adds advice, where there is some.
    #[must_use]
    pub(crate) fn hint_if(self, hint: Option<impl Into<String>>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Once it has been shown, `tell` is called with its text.
    #[must_use]
    pub(crate) fn and_tell(mut self, tell: impl FnOnce(&str) + 'static) -> Self {
        self.afterwards = Some(Afterwards(Box::new(tell)));
        self
    }

    /// What is left to do when it has been shown; the exit code of the process.
    pub(crate) fn finish(mut self) -> ExitCode {
        if let Some(Afterwards(tell)) = self.afterwards.take() {
            tell(&self.to_string());
        }
        match self.kind {
            Kind::No => ExitCode::from(1),
            Kind::BadInput => ExitCode::from(2),
        }
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

/// Errors of user input become exit code 2 wherever `?` meets them.
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
/// Bad input, with the path and what the system said.
pub(crate) fn read_text(path: &std::path::Path) -> Outcome<String> {
    Ok(topology::read_text(&path.to_string_lossy())?)
}

/// Writes a file that the user named, through a buffer.
///
/// # Errors
/// Bad input, with the path and what the system said.
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
