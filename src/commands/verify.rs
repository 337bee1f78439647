//! `antiphon verify`: every violation of a plan, with evidence.

use crate::cli::VerifyArgs;
use crate::failure::{Failure, Outcome};
use crate::foreign::ForeignPlan;
use crate::plan::{self, Claim, Opened};
use crate::screen::{Screen, time};
use schedule::Violation;
use serde_json::{Value, json};

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, screen: &Screen) -> Outcome {
    let claim = match plan::open_any(&args.file, args.topology.as_deref(), None)? {
        Opened::Schedule(claim) => *claim,
        Opened::Foreign(plan) => return foreign(args, plan, screen),
    };
    let Claim { file, topology } = claim;
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
    verdict(args, texts.len())
}

/// The exit of the command.
fn verdict(args: &VerifyArgs, violations: usize) -> Outcome {
    match violations {
        0 => Ok(()),
        1 => Err(Failure::no(anyhow::anyhow!("{}: 1 violation", args.file.display()))),
        count => Err(Failure::no(anyhow::anyhow!("{}: {count} violations", args.file.display()))),
    }
}

/// A plan of another tool.
fn foreign(args: &VerifyArgs, mut plan: ForeignPlan, screen: &Screen) -> Outcome {
    if args.sketch.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!("a sketch constrains schedules, not plans of other tools")));
    }
    if let Some(spec) = &args.topology {
        plan.check_links(&plan::topology(spec)?);
    }
    plan.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let values: Vec<Value> = plan.violations.iter().map(|finding| finding.as_json()).collect();
    screen.result(&json!({"ok": values.is_empty(), "violations": values, "notes": plan.notes}), || {
        let texts: Vec<&str> = plan.violations.iter().map(|finding| finding.text()).collect();
        if texts.is_empty() { format!("ok: {}", plan.title) } else { texts.join("\n") }
    })?;
    verdict(args, values.len())
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
