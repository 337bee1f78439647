//! Project rules that a program can check. Each file checks one kind: `crates` the imports between crates, `rooms` the
//! imports inside a crate, `files` rules for every source file, `collectives` that matches on collectives are exhaustive,
//! `names` types and words, `data` machines and sketches, `documents` the documents. `code` reads source text.

mod code;
mod collectives;
mod crates;
mod data;
mod documents;
mod files;
mod names;
mod rooms;

use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const CRATES: &[&str] = &[
    "topology",
    "schedule",
    "program",
    "interop",
    "synth",
    "runtime",
    "tune",
    "comm",
    "plugin",
    "plugin-nccl",
    "python",
    "ptx",
    "fake-cuda",
    "fake-nccl",
    "antiphon",
];

/// The folder of a crate: most have a folder with their name.
fn folder(name: &str) -> &str {
    match name {
        "plugin-nccl" => "plugin/nccl",
        "ptx" => "tests/ptx",
        "fake-cuda" => "tests/cuda",
        "fake-nccl" => "tests/nccl",
        _ => name,
    }
}

/// A source file: its path inside the repository, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The text without unit tests, comments, and what strings contain.
    fn code(&self) -> String {
        let plain = code::plain(&self.text);
        code::without_tests(&plain, &plain)
    }

    /// How many lines there are without unit tests.
    fn lines(&self) -> usize {
        code::without_tests(&self.text, &code::plain(&self.text)).lines().count()
    }

    /// Whether the file is a test, a benchmark or something that only tests use.
    fn is_test(&self) -> bool {
        let is_test = |part: &str| ["tests", "benches", "testing", "tests.rs"].contains(&part);
        self.path.split('/').any(is_test)
    }
}

/// All Rust files below a folder of the repository.
fn sources(folder: &str) -> Vec<Source> {
    let read = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).unwrap(),
        path: path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned(),
    };
    files_under(folder, "rs").into_iter().map(read).collect()
}

/// All files with this extension below a folder of the repository, sorted, without build output.
fn files_under(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}
