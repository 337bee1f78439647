//! `antiphon tune merge` and `antiphon tune export`: tables from tables, and for other libraries.

use super::judge::verified;
use super::show::{read, text};
use crate::cli::TableFormat;
use crate::failure::{Failure, Outcome, write_to};
use crate::screen::{Screen, bytes};
use std::path::{Path, PathBuf};
use tune::{ExportTarget, MergeConflict, STOCK};

pub(super) fn merge(paths: &[PathBuf], output: &PathBuf, screen: &Screen) -> Outcome {
    screen.may_write([output])?;
    let tables = paths.iter().map(|path| read(path)).collect::<Outcome<Vec<_>>>()?;
    let (table, conflicts) = tune::merge(&tables).map_err(|why| Failure::bad_input(anyhow::anyhow!(why)))?;
    table.write(output).map_err(Failure::no)?;
    let answer = serde_json::json!({
        "format": "antiphon-tune-merge/1", "key": table.key, "table": output, "conflicts": conflicts,
        "rows": super::show::rows(&table),
    });
    screen.result(&answer, || {
        let told: Vec<String> = conflicts.iter().map(|conflict| told(conflict, paths)).collect();
        format!("{}\n{}", text(&table), told.join("\n"))
    })
}

/// What was decided where tables disagreed.
fn told(conflict: &MergeConflict, paths: &[PathBuf]) -> String {
    let MergeConflict { collective, from_bytes, to_bytes, taken, dropped, from_table, why } = conflict;
    let name = |plan: &Option<String>| plan.clone().unwrap_or_else(|| STOCK.to_owned());
    let dropped: Vec<String> = dropped.iter().map(name).collect();
    let path = paths.get(*from_table).map_or_else(String::new, |path| format!(" of {}", path.display()));
    let sizes = match to_bytes {
        Some(end) if *end == from_bytes + 1 => bytes(*from_bytes),
        Some(end) => format!("{} to {}", bytes(*from_bytes), bytes(end - 1)),
        None => format!("from {} on", bytes(*from_bytes)),
    };
    format!("{collective}, {sizes}: {}{path}, and not {}: {why}", name(taken), dropped.join(" or "))
}

pub(super) fn export(path: &Path, format: TableFormat, output: Option<&PathBuf>, screen: &Screen) -> Outcome {
    screen.may_write(output)?;
    let target = match format {
        TableFormat::NcclCsv => ExportTarget::NcclCsv,
        TableFormat::OmpiRules => ExportTarget::OmpiRules,
        TableFormat::Ucc => ExportTarget::Ucc,
    };
    let table = read(path)?;
    // Nobody else would notice a plan that is not what it says.
    verified(path, &table)?;
    let exported = tune::export(&table, target, &path.display().to_string()).map_err(Failure::bad_input)?;
    if let Some(output) = output {
        write_to(output, |out| out.write_all(exported.text.as_bytes()))?;
    }
    if !screen.is_json() {
        exported.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    }
    match (screen.is_json(), output) {
        (true, _) => {
            let answer = serde_json::json!({ "format": "antiphon-tune-export/1", "text": exported.text, "notes": exported.notes });
            screen.line(&answer.to_string());
        }
        (false, None) => screen.line(exported.text.trim_end()),
        (false, Some(_)) => {}
    }
    Ok(())
}
