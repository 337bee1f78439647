//! `antiphon verify`: every violation of a schedule, with evidence.

use crate::cli::VerifyArgs;
use crate::failure::{Failure, Outcome};
use crate::plan::{self, Claim};
use crate::screen::{Screen, time};
use schedule::Violation;
use serde_json::{Value, json};

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, screen: &Screen) -> Outcome {
    let Claim { file, topology } = plan::open(&args.file, args.topology.as_deref())?;
    let summary = plan::describe(&file.schedule);
    let (schedule, violations) = match file.verify(&topology) {
        Ok(verified) => (verified.into_schedule(), Vec::new()),
        Err(rejection) => (*rejection.schedule, rejection.violations),
    };
    let mut texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let mut values: Vec<Value> = violations.iter().map(as_json).collect();
    if let Some(path) = &args.sketch {
        let sketch = plan::sketch(path, &topology)?;
        for violation in synth::sketch::obey(&schedule, &topology, &sketch.constraints) {
            let mut value = serde_json::to_value(&violation).map_err(Failure::no)?;
            value["text"] = violation.to_string().into();
            value["sketch"] = path.display().to_string().into();
            value["rank"] = violation.from.0.into();
            values.push(value);
            texts.push(format!("{}: {violation}", path.display()));
        }
        for remark in synth::sketch::remarks(&schedule, &sketch) {
            screen.note(&format!("note: {}: {remark}", path.display()));
        }
    }
    let answer = json!({"ok": values.is_empty(), "violations": values});
    screen.result(&answer, || match texts.len() {
        0 => format!("ok: {summary}, {} transfers, {}", schedule.transfers.len(), time(schedule.makespan().0)),
        _ => texts.join("\n"),
    })?;
    match texts.len() {
        0 => Ok(()),
        1 => Err(Failure::no(anyhow::anyhow!("{}: 1 violation", args.file.display()))),
        count => Err(Failure::no(anyhow::anyhow!("{}: {count} violations", args.file.display()))),
    }
}

/// A violation as design page 2 spells it; what it does not concern is left out.
fn as_json(violation: &Violation) -> Value {
    let mut object = json!({"kind": violation.kind(), "text": violation.to_string()});
    if let Some(chunk) = violation.chunk() {
        object["chunk"] = chunk.0.into();
    }
    if let Some(rank) = violation.rank() {
        object["rank"] = rank.0.into();
    }
    if let Some(link) = violation.link() {
        object["link"] = link.0.into();
    }
    if let Some(time) = violation.time() {
        object["time_us"] = time.0.into();
    }
    object
}
