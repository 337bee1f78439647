//! What the environment asks of the library, and how it says something.

use std::env::VarError;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What the environment asks for, read at the first call.
#[derive(Debug)]
pub(crate) struct Settings {
    /// All calls go to NCCL and are not looked at (`ANTIPHON_DISABLE`).
    pub(crate) is_disabled: bool,
    /// A line for each new decision (`ANTIPHON_DEBUG=info`).
    pub(crate) says_decisions: bool,
    /// A tuning table, or a folder of them (`ANTIPHON_TABLE`).
    pub(crate) table: Option<PathBuf>,
    /// Tables serve whatever the GPUs and the version of NCCL are (`ANTIPHON_TABLE_ANY_HARDWARE`).
    pub(crate) takes_any_hardware: bool,
    /// Where the counters go at the end of the process (`ANTIPHON_STATS`); `%p` is the number of the process.
    pub(crate) statistics: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn of_process() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Self {
            is_disabled: is_disabled(),
            takes_any_hardware: is_set("ANTIPHON_TABLE_ANY_HARDWARE"),
            says_decisions: std::env::var("ANTIPHON_DEBUG")
                .is_ok_and(|level| ["info", "INFO", "debug", "trace", "1"].contains(&level.as_str())),
            table: named("ANTIPHON_TABLE").map(PathBuf::from),
            statistics: named("ANTIPHON_STATS").map(PathBuf::from),
        })
    }
}

/// Whether `ANTIPHON_DISABLE` is set.
pub(crate) fn is_disabled() -> bool {
    is_set("ANTIPHON_DISABLE")
}

/// Whether a variable says yes.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !["", "0"].contains(&value.as_str()))
}

/// The value of a variable, unless it is empty.
pub(crate) fn named(variable: &str) -> Option<OsString> {
    match std::env::var(variable) {
        Ok(value) => Some(value.into()),
        Err(VarError::NotUnicode(value)) => Some(value),
        Err(VarError::NotPresent) => None,
    }
    .filter(|value| !value.is_empty())
}

/// A library has no other place to say something.
pub(crate) fn say(text: &str) {
    // In one piece, so that lines of several processes are not mixed. A program whose standard error is closed goes on.
    let _ = std::io::stderr().write_all(format!("antiphon: {text}\n").as_bytes());
}
