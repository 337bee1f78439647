//! `antiphon sketch`: what a sketch allows and forbids on a topology, and translations of TACCL's.

use crate::cli::SketchCommand;
use crate::failure::{Outcome, read_text, write_to};
use crate::plan;
use crate::screen::Screen;
use serde_json::json;
use std::path::Path;
use synth::sketch::{SketchFile, describe, import_taccl};

/// Runs the command.
pub(crate) fn run(command: &SketchCommand, screen: &Screen) -> Outcome {
    match command {
        SketchCommand::Check { file, topology } => check(file, topology, screen),
        SketchCommand::Import { file, output, topology } => {
            import(file, output.as_deref(), topology.as_deref(), screen)
        }
    }
}

fn check(file: &Path, spec: &str, screen: &Screen) -> Outcome {
    let topology = plan::topology(spec)?;
    let sketch = plan::sketch(file, &topology)?;
    let summary = describe(&sketch, &topology);
    screen.result(&summary, || summary.to_string())
}

fn import(file: &Path, output: Option<&Path>, spec: Option<&str>, screen: &Screen) -> Outcome {
    let topology = spec.map(plan::topology).transpose()?;
    let named = output.unwrap_or(file).file_stem().map_or("imported".into(), |stem| stem.to_string_lossy());
    let origin = file.display().to_string();
    let imported =
        import_taccl(&read_text(file)?, &origin, &named, topology.as_deref()).map_err(plan::sketch_failure)?;
    if let Some(topology) = &topology {
        let sketch = SketchFile::parse(&imported.yaml, "the translation").and_then(|file| file.resolve(topology));
        sketch.map_err(|error| plan::sketch_failure(error).context(format!("{origin}: does not fit this topology")))?;
    }
    imported.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let answer = json!({"sketch": imported.yaml, "notes": imported.notes, "output": output});
    match output {
        Some(path) => {
            write_to(path, |out| out.write_all(imported.yaml.as_bytes()))?;
            screen.result(&answer, || format!("written to {}", path.display()))
        }
        None => screen.result(&answer, || imported.yaml.trim_end().to_owned()),
    }
}
