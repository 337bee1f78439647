//! Where the rules come from.

use crate::settings::{is_disabled, named};
use std::path::{Path, PathBuf};
use tune::{NcclRule, TuningTable};

/// The rules of the files that the environment names, and what NCCL's log should say about them.
pub(crate) struct FoundRules {
    pub(crate) rules: Vec<NcclRule>,
    pub(crate) says: Option<String>,
    /// Whether something is wrong.
    pub(crate) is_warning: bool,
}

impl FoundRules {
    fn nothing(says: Option<String>, is_warning: bool) -> Self {
        Self { rules: Vec::new(), says, is_warning }
    }
}

/// The rules that the environment names.
pub(crate) fn from_environment() -> FoundRules {
    if is_disabled() {
        return FoundRules::nothing(None, false);
    }
    let Some(path) = ["ANTIPHON_TABLE", "NCCL_TUNER_CONFIG_FILE"].into_iter().find_map(named) else {
        return FoundRules::nothing(None, false);
    };
    match read(Path::new(&path)) {
        Ok(rules) => {
            let says = format!("{} rules of {}", rules.len(), Path::new(&path).display());
            FoundRules { rules, says: Some(says), is_warning: false }
        }
        Err(why) => FoundRules::nothing(Some(format!("{why}; NCCL decides by itself")), true),
    }
}

/// The rules of a file, or of all files of a folder that are tables.
fn read(path: &Path) -> Result<Vec<NcclRule>, String> {
    if !path.is_dir() {
        return read_file(path);
    }
    let mut rules = Vec::new();
    for file in table_files(path)? {
        rules.extend(read_file(&file)?);
    }
    Ok(rules)
}

/// The tuning tables of a file or a folder. Other files, such as plans and rules, have none.
pub(crate) fn tables(path: &Path) -> Result<Vec<TuningTable>, String> {
    let files = if path.is_dir() { table_files(path)? } else { vec![path.to_owned()] };
    let mut tables = Vec::new();
    for file in files {
        let text = read_text(&file)?;
        if text.contains(TuningTable::FORMAT) {
            let table = TuningTable::parse(&text, &file.display().to_string());
            tables.push(table.map_err(|error| error.to_string())?);
        }
    }
    Ok(tables)
}

/// The files of a folder that are tables. It may hold plans too, which are not for NCCL.
fn table_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let listed = listed.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = listed.iter().map(std::fs::DirEntry::path).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == "json"));
    files.sort();
    let mut tables = Vec::new();
    for file in files {
        if read_text(&file)?.contains(TuningTable::FORMAT) {
            tables.push(file);
        }
    }
    Ok(tables)
}

fn read_text(path: &Path) -> Result<String, String> {
    topology::read_text(&path.to_string_lossy()).map_err(|error| error.to_string())
}

fn read_file(path: &Path) -> Result<Vec<NcclRule>, String> {
    let (text, origin) = (read_text(path)?, path.display().to_string());
    let is_json = text.trim_start().starts_with('{');
    let rules = match is_json {
        false => NcclRule::read_csv(&text, &origin),
        // Plans and other tables serve calls of Antiphon, and say nothing about NCCL.
        true if !text.contains(TuningTable::FORMAT) => return Ok(Vec::new()),
        true => TuningTable::parse(&text, &origin).and_then(|table| NcclRule::of_table(&table, &origin)),
    };
    rules.map_err(|error| error.to_string())
}
