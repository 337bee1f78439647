//! What a library offers.

use std::path::Path;
use std::process::Command;

/// The names of functions and data that a library offers.
pub(crate) fn names_of(library: &Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().last().map(str::to_owned)).collect();
    names.sort_unstable();
    names
}
