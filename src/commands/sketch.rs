//! `antiphon sketch`: what a sketch allows and forbids on a topology, and translations of TACCL's.

use crate::answer::answer;
use crate::cli::SketchCommand;
use crate::failure::{Outcome, read_text, write_to};
use crate::plan;
use crate::screen::Screen;
use schedule::TopologyRef;
use serde_json::json;
use std::path::{Path, PathBuf};
use synth::sketch::{SketchFile, describe, import_taccl};

/// Runs the command.
pub(crate) fn run(command: &SketchCommand, screen: &Screen) -> Outcome {
    match command {
        SketchCommand::Check { file, topology } => check(file, topology, screen),
        SketchCommand::Import { file, output, topology } => import(file, output.as_ref(), topology.as_deref(), screen),
    }
}

fn check(file: &Path, spec: &str, screen: &Screen) -> Outcome {
    let topology = plan::topology(spec)?;
    let sketch = plan::sketch(file, &topology)?;
    let summary = describe(&sketch, &topology);
    let value = answer("sketch", Some(&TopologyRef::to(&topology)), None, &summary)?;
    screen.result(&value, || summary.to_string())
}

fn import(file: &Path, output: Option<&PathBuf>, spec: Option<&str>, screen: &Screen) -> Outcome {
    screen.may_write(output)?;
    let topology = spec.map(plan::topology).transpose()?;
    let named =
        output.map_or(file, PathBuf::as_path).file_stem().map_or("imported".into(), |stem| stem.to_string_lossy());
    let origin = file.display().to_string();
    let imported =
        import_taccl(&read_text(file)?, &origin, &named, topology.as_deref()).map_err(plan::sketch_failure)?;
    if let Some(topology) = &topology {
        let sketch = SketchFile::parse(&imported.yaml, "the translation").and_then(|file| file.resolve(topology));
        sketch.map_err(|error| plan::sketch_failure(error).context(format!("{origin}: does not fit this topology")))?;
    }
    imported.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let imported_as = json!({"sketch": imported.yaml, "notes": imported.notes, "output": output});
    let value = answer("sketch-import", topology.as_deref().map(TopologyRef::to).as_ref(), None, &imported_as)?;
    match output {
        Some(path) => {
            write_to(path, |out| out.write_all(imported.yaml.as_bytes()))?;
            screen.result(&value, || format!("written to {}", path.display()))
        }
        // This is a document, so it is printed even with `--quiet`.
        None if !screen.is_json() => {
            screen.line(imported.yaml.trim_end());
            Ok(())
        }
        None => screen.result(&value, String::new),
    }
}
