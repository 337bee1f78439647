//! `antiphon verify`: every violation of a plan, with evidence.

use crate::cli::VerifyArgs;
use crate::failure::{Failure, Outcome};
use crate::foreign::ForeignPlan;
use crate::plan::{self, Claim, Opened};
use crate::screen::{Screen, time};
use schedule::file::CompressedFile;
use schedule::{Findings, Violation};
use serde_json::{Value, json};

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, screen: &Screen) -> Outcome {
    let claim = match plan::open_any(&args.file, args.topology.as_deref(), None)? {
        Opened::Schedule(claim) => *claim,
        Opened::Compressed(claim) => return compressed(args, *claim, screen),
        Opened::Foreign(plan) => return foreign(args, plan, screen),
    };
    let Claim { file, topology } = claim;
    if args.expand.is_some() {
        screen.note("note: the schedule is plain already; nothing was written");
    }
    let summary = plan::describe(&file.schedule);
    let (schedule, violations) = match file.verify(&topology) {
        Ok(verified) => (verified.into_schedule(), Findings::default()),
        Err(rejection) => (*rejection.schedule, rejection.violations),
    };
    let mut findings = violations.map(found);
    if let Some(path) = &args.sketch {
        let sketch = plan::sketch(path, &topology)?;
        for violation in synth::sketch::obey(&schedule, &topology, &sketch.constraints) {
            let mut value = serde_json::to_value(&violation).map_err(Failure::no)?;
            value["text"] = violation.to_string().into();
            value["sketch"] = path.display().to_string().into();
            value["rank"] = violation.from.0.into();
            findings.push(Found { text: format!("{}: {violation}", path.display()), value });
        }
        for remark in synth::sketch::remarks(&schedule, &sketch) {
            screen.note(&format!("note: {}: {remark}", path.display()));
        }
    }
    let answer = json!({"ok": findings.is_empty(), "violations": values(&findings), "more": findings.more()});
    screen.result(&answer, || match findings.is_empty() {
        true => format!("ok: {summary}, {} transfers, {}", schedule.transfers.len(), time(schedule.makespan().0)),
        false => list(&findings),
    })?;
    verdict(args, findings.total())
}

/// A compressed schedule: judged on orbits, and written out where that is asked for.
fn compressed(args: &VerifyArgs, claim: Claim<CompressedFile>, screen: &Screen) -> Outcome {
    let Claim { file, topology } = claim;
    if args.sketch.is_some() {
        let origin = args.file.display();
        return Err(Failure::bad_input(anyhow::anyhow!("{origin}: compressed schedules obey no sketch"))
            .hint("`--expand OUT` writes it plain, if it is not too large"));
    }
    let summary = plan::describe(&file.base.schedule);
    let (verified, violations) = match file.verify(&topology) {
        Ok(verified) => (Some(verified), Findings::default()),
        Err(rejection) => (None, rejection.violations),
    };
    if let (Some(path), Some(verified)) = (&args.expand, &verified) {
        plan::save(&plan::expanded(verified, &args.file.display().to_string())?, path)?;
    }
    let findings = violations.map(found);
    let answer = json!({"ok": findings.is_empty(), "violations": values(&findings), "more": findings.more()});
    screen.result(&answer, || match &verified {
        Some(verified) => format!(
            "ok: {summary}, {} transfers ({} base transfers, each with {} images), {}",
            verified.transfers(),
            verified.base().transfers.len(),
            verified.order(),
            time(verified.makespan().0)
        ),
        None => list(&findings),
    })?;
    verdict(args, findings.total())
}

/// A violation of the schedule or of a sketch, as it is shown.
struct Found {
    text: String,
    value: Value,
}

fn found(violation: &Violation) -> Found {
    Found { text: violation.to_string(), value: as_json(violation) }
}

fn values(findings: &Findings<Found>) -> Vec<&Value> {
    findings.iter().map(|found| &found.value).collect()
}

/// One violation a line, and how many more there are.
fn list(findings: &Findings<Found>) -> String {
    let mut lines: Vec<&str> = findings.iter().map(|found| found.text.as_str()).collect();
    let rest = format!("and {} more", findings.more());
    lines.extend((findings.more() > 0).then_some(rest.as_str()));
    lines.join("\n")
}

/// The exit of the command.
fn verdict(args: &VerifyArgs, violations: u64) -> Outcome {
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
        let topology = plan::topology(spec)?;
        plan.check_links(&topology);
    }
    plan.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let values: Vec<Value> = plan.violations.iter().map(|finding| finding.as_json()).collect();
    screen.result(&json!({"ok": values.is_empty(), "violations": values, "notes": plan.notes}), || {
        let texts: Vec<&str> = plan.violations.iter().map(|finding| finding.text()).collect();
        if texts.is_empty() { format!("ok: {}", plan.title) } else { texts.join("\n") }
    })?;
    verdict(args, values.len() as u64)
}

/// A violation as `docs/formats.md` spells it; what it does not concern is left out.
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
