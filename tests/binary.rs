//! Runs the binary as a user would, and reads what it prints.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The output of a run, and how it ended.
pub(crate) struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The JSON on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }

    /// This run, which must have succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

/// Runs `antiphon` with a command line split at spaces.
pub(crate) fn antiphon(arguments: &str) -> Ran {
    antiphon_in(Path::new("."), arguments)
}

/// The same in a folder.
pub(crate) fn antiphon_in(folder: &Path, arguments: &str) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_antiphon")).args(arguments.split_whitespace()).current_dir(folder))
}

fn ran(command: &mut Command) -> Ran {
    let output: Output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The same with so many MB of addresses, which is more than the memory that it may take.
pub(crate) fn antiphon_within(megabytes: u64, arguments: &str) -> Ran {
    ran(Command::new("sh")
        .args(["-c", "ulimit -v \"$1\" && shift && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_antiphon")])
        // Otherwise the allocator reserves addresses for every core.
        .env("MALLOC_ARENA_MAX", "2")
        .arg((megabytes * 1000).to_string())
        .args(arguments.split_whitespace()))
}

/// The normalized topology of a SPEC.
pub(crate) fn topology(spec: &str) -> Value {
    antiphon(&format!("topology show {spec} --json")).ok().json()
}

/// Reads a JSON file.
pub(crate) fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A folder of this repository.
pub(crate) fn repository(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Says why a test cannot run here, and adds it to the list of `.ci/run` (the file that `ANTIPHON_SKIPPED` names).
#[expect(clippy::print_stdout, reason = "a test says what it does not do")]
pub(crate) fn skip(reason: &str) {
    println!("skipped: {reason}");
    if let Some(list) = std::env::var_os("ANTIPHON_SKIPPED") {
        let mut list = std::fs::File::options().append(true).create(true).open(list).unwrap();
        writeln!(list, "{reason}").unwrap();
    }
}
