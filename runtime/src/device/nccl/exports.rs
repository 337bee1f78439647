//! The names that a library offers, from its file.

use memmap2::Mmap;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

/// The names of the functions and data that other programs can use.
pub(super) fn exports(path: &Path) -> Result<BTreeSet<String>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    // SAFETY: the library is loaded and mapped already; whoever overwrites its file now breaks the process anyway.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| error.to_string())?;
    let library = object::File::parse(&*bytes).map_err(|error| error.to_string())?;
    let names = library.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    Ok(names.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect())
}
