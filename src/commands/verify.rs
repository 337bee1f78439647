//! `antiphon verify`: every violation of a schedule, with evidence.

use crate::cli::VerifyArgs;
use crate::failure::{Failure, Outcome};
use crate::plan::{self, Claim};
use crate::screen::{Screen, time};
use schedule::verify;
use serde_json::{Value, json};

/// Runs the command.
pub fn run(args: &VerifyArgs, screen: &Screen) -> Outcome {
    let Claim { opened, topology } = plan::open(&args.file, args.topology.as_deref())?;
    let mut texts: Vec<String> = opened.violations.iter().map(ToString::to_string).collect();
    let mut values: Vec<Value> = opened.violations.iter().map(schedule::Violation::to_json).collect();
    let summary = plan::describe(&opened.schedule);
    let (makespan, transfers) = (opened.schedule.makespan(), opened.schedule.transfers.len());
    let schedule = match verify(opened.schedule, &topology) {
        Ok(verified) => verified.into_schedule(),
        Err(rejection) => {
            texts.extend(rejection.violations.iter().map(ToString::to_string));
            values.extend(rejection.violations.iter().map(schedule::Violation::to_json));
            *rejection.schedule
        }
    };
    if let Some(path) = &args.sketch {
        let sketch = plan::sketch(path, &topology)?;
        for violation in synth::sketch::obey(&schedule, &topology, &sketch.constraints) {
            values.push(json!({"kind": "sketch", "text": violation.to_string()}));
            texts.push(format!("{}: {violation}", path.display()));
        }
    }
    let answer = json!({"ok": values.is_empty(), "violations": values});
    screen.result(&answer, || match texts.len() {
        0 => format!("ok: {summary}, {transfers} transfers, {}", time(makespan.0)),
        _ => texts.join("\n"),
    })?;
    match texts.len() {
        0 => Ok(()),
        count => Err(Failure::no(anyhow::anyhow!("{}: {count} violations", args.file.display()))),
    }
}
