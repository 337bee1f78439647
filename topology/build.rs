//! Lists the files in `machines/`, so that a new machine is a new file and nothing else.

#![allow(clippy::print_stdout, reason = "it is how a build script talks to cargo")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new("../machines").canonicalize()?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut list = String::from("&[\n");
    for path in &files {
        let origin = format!("machines/{}", path.file_name().unwrap_or_default().to_string_lossy());
        let _ = writeln!(list, "    ({origin:?}, include_str!({path:?})),");
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("machines.rs"), list)
}
