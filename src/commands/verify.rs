//! `antiphon verify`: every violation of a plan, with evidence.

use crate::answer::answer;
use crate::cli::VerifyArgs;
use crate::content;
use crate::failure::{Failure, Outcome};
use crate::foreign::ForeignPlan;
use crate::lowered::{self, CheckedLowering, ProgramSummary};
use crate::plan::{self, Opened, UnverifiedFile};
use crate::screen::{Screen, percent, time};
use program::{ProgramViolation, adds_differently, orbits_add_differently};
use schedule::file::CompressedFile;
use schedule::{ChunkId, Collective, Findings, LowerBound, Request, Schedule, TopologyRef, Violation};
use serde_json::{Value, json};
use std::fmt;
use topology::{Topology, counted, shorten};

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs, screen: &Screen) -> Outcome {
    screen.may_write(&args.expand)?;
    let claim = match plan::open_any(&args.file, args.topology.as_deref(), None)? {
        Opened::Schedule(claim) => *claim,
        Opened::Compressed(claim) => return compressed(args, *claim, screen),
        Opened::Foreign(plan) => return foreign(args, plan, screen),
    };
    let UnverifiedFile { file, topology } = claim;
    if args.expand.is_some() {
        screen.note("note: the schedule is plain already; nothing was written");
    }
    let summary = plan::describe(&file.schedule);
    let (mut uneven, mut program) = (None, None);
    let (schedule, violations) = match file.verify(&topology) {
        Ok(verified) => {
            uneven = adds_differently(&verified);
            program = args.program.then(|| lowered::summary(&verified)).transpose()?;
            (verified.into_schedule(), Findings::default())
        }
        Err(rejection) => (*rejection.schedule, rejection.violations),
    };
    if let Some(chunk) = uneven {
        screen.note(&format!("note: {}", adding_differently(chunk)));
    }
    let mut findings = violations.map(shown);
    let program = ProgramAnswer::of(program, &mut findings);
    let differences = content::differences(&schedule.demand, args.matrix.as_deref(), args.demand.as_deref())?;
    let claims = UncheckedClaims::of(&schedule, differences.is_some());
    findings.append(differences.unwrap_or_default().map(shown));
    if let Some(path) = &args.sketch {
        let sketch = plan::sketch(path, &topology)?;
        for violation in synth::sketch::obey(&schedule, &topology, &sketch.constraints) {
            let mut value = serde_json::to_value(&violation).map_err(Failure::no)?;
            value["text"] = violation.to_string().into();
            value["sketch"] = path.display().to_string().into();
            value["rank"] = violation.from.0.into();
            findings.push(ShownViolation { text: format!("{}: {violation}", path.display()), value });
        }
        for remark in synth::sketch::remarks(&schedule, &sketch) {
            screen.note(&format!("note: {}: {remark}", path.display()));
        }
    }
    let mut value = judged(&findings, &claims, &topology, schedule.demand.request())?;
    value["adds_differently"] = json!(uneven);
    value["program"] = json!(program.0);
    screen.result(&value, || match findings.is_empty() {
        true => {
            let transfers = counted(schedule.transfers.len(), "transfer");
            format!("ok: {summary}, {transfers}, {}{claims}{program}", time(schedule.makespan().0))
        }
        false => findings.to_string(),
    })?;
    verdict(args, findings.total())
}

/// A compressed schedule: verified on its orbits, and expanded if the user asks for it.
fn compressed(args: &VerifyArgs, claim: UnverifiedFile<CompressedFile>, screen: &Screen) -> Outcome {
    let UnverifiedFile { file, topology } = claim;
    if args.sketch.is_some() {
        let origin = args.file.display();
        return Err(Failure::bad_input(anyhow::anyhow!("{origin}: compressed schedules obey no sketch"))
            .hint("`--expand OUT` writes it plain, if it is not too large"));
    }
    let summary = plan::describe(&file.base.schedule);
    let base = &file.base.schedule;
    let request = base.demand.request().clone();
    let differences = content::differences(&base.demand, args.matrix.as_deref(), args.demand.as_deref())?;
    let claims = UncheckedClaims::of(base, differences.is_some());
    let (verified, violations) = match file.verify(&topology) {
        Ok(verified) => (Some(verified), Findings::default()),
        Err(rejection) => (None, rejection.violations),
    };
    if let (Some(path), Some(verified)) = (&args.expand, &verified) {
        plan::save(&plan::expanded(verified, &args.file.display().to_string())?, path)?;
    }
    let mut findings = violations.map(shown);
    let program = verified.as_ref().filter(|_| args.program).map(lowered::orbit_summary).transpose()?;
    let program = ProgramAnswer::of(program, &mut findings);
    let uneven = verified.as_ref().and_then(orbits_add_differently);
    if let Some(chunk) = uneven {
        screen.note(&format!("note: {}", adding_differently(chunk)));
    }
    findings.append(differences.unwrap_or_default().map(shown));
    let mut value = judged(&findings, &claims, &topology, &request)?;
    value["adds_differently"] = json!(uneven);
    value["program"] = json!(program.0);
    screen.result(&value, || match &verified {
        Some(verified) if findings.is_empty() => format!(
            "ok: {summary}, {} transfers ({} base transfers, each with {} images), {}{claims}{program}",
            verified.transfers(),
            verified.base().transfers.len(),
            verified.order(),
            time(verified.makespan().0)
        ),
        _ => findings.to_string(),
    })?;
    verdict(args, findings.total())
}

/// What a plan is told whose ranks [add differently](program::adds_differently).
pub(crate) fn adding_differently(chunk: ChunkId) -> String {
    format!("ranks add up chunk {chunk} in different ways: floats may differ in their last bits from rank to rank")
}

/// Statements of a file that were not checked.
struct UncheckedClaims {
    /// The bound of a file is not proved again, because only the planner can do this.
    bound: Option<LowerBound>,
    gap: Option<f64>,
    /// The name of the list of chunks, if the file lists them itself and the user gave nothing to compare them with.
    chunks: Option<&'static str>,
}

impl UncheckedClaims {
    fn of(schedule: &Schedule, compared: bool) -> Self {
        let chunks = match schedule.demand.request().collective {
            Collective::AllToAllV => Some("--matrix F.csv"),
            Collective::Custom => Some("--demand F.yaml"),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce | Collective::AllToAll => None,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => None,
            Collective::SendRecv => None,
        };
        let chunks = chunks.filter(|_| !compared);
        Self { bound: schedule.bound.clone(), gap: schedule.gap(), chunks }
    }
}

impl fmt::Display for UncheckedClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(LowerBound { value, name }) = &self.bound {
            let (value, gap) = (time(value.0), percent(self.gap));
            write!(f, "\nclaimed, not checked: lower bound {value} ({}), gap {gap}", shorten(name))?;
        }
        match self.chunks {
            Some(flag) => write!(f, "\nclaimed, not checked: the chunks are those asked for ({flag} checks it)"),
            None => Ok(()),
        }
    }
}

/// The JSON answer.
fn judged(
    findings: &Findings<ShownViolation>,
    claims: &UncheckedClaims,
    topology: &Topology,
    request: &Request,
) -> Outcome<Value> {
    let found = json!({
        "ok": findings.is_empty(), "violations": values(findings), "more": findings.more(),
        "lower_bound_us": claims.bound.as_ref().map(|bound| bound.value), "gap": claims.gap, "bound_checked": false,
        "demand_checked": claims.chunks.is_none(),
    });
    answer("verify", Some(&TopologyRef::to(topology)), Some(request), &found)
}

/// A violation of the schedule or of a sketch, as it is shown.
struct ShownViolation {
    text: String,
    value: Value,
}

/// The answer of `--program`, if the program is right.
struct ProgramAnswer(Option<ProgramSummary>);

impl ProgramAnswer {
    /// Moves what is wrong with a program to the other findings.
    fn of(checked: Option<CheckedLowering>, findings: &mut Findings<ShownViolation>) -> Self {
        match checked {
            None => Self(None),
            Some(Ok(summary)) => Self(Some(summary)),
            Some(Err(violations)) => {
                findings.append(violations.map(shown_step));
                Self(None)
            }
        }
    }
}

impl fmt::Display for ProgramAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |summary| write!(f, "\n{summary}"))
    }
}

fn shown_step(violation: &ProgramViolation) -> ShownViolation {
    let text = violation.to_string();
    let mut value = json!({"kind": violation.kind(), "text": text});
    if let Some(rank) = violation.rank() {
        value["rank"] = rank.0.into();
    }
    ShownViolation { text, value }
}

fn shown(violation: &Violation) -> ShownViolation {
    ShownViolation { text: violation.to_string(), value: as_json(violation) }
}

fn values(findings: &Findings<ShownViolation>) -> Vec<&Value> {
    findings.iter().map(|shown| &shown.value).collect()
}

impl fmt::Display for ShownViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The exit code of the command.
fn verdict(args: &VerifyArgs, violations: u64) -> Outcome {
    match violations {
        0 => Ok(()),
        1 => Err(Failure::no(anyhow::anyhow!("{}: 1 violation", args.file.display()))),
        count => Err(Failure::no(anyhow::anyhow!("{}: {count} violations", args.file.display()))),
    }
}

/// A plan of another tool.
fn foreign(args: &VerifyArgs, mut plan: ForeignPlan, screen: &Screen) -> Outcome {
    if args.matrix.is_some() || args.demand.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!("--matrix and --demand are for schedules")));
    }
    if args.sketch.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!("a sketch constrains schedules, not plans of other tools")));
    }
    let topology = args.topology.as_deref().map(plan::topology).transpose()?;
    if let Some(topology) = &topology {
        plan.check_links(topology);
    }
    plan.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let values: Vec<Value> = plan.violations.iter().map(|finding| finding.as_json()).collect();
    let request = plan.programs.first().map(|program| program.program().demand.request());
    let more = plan.violations.more();
    let found = json!({"ok": values.is_empty(), "violations": values, "more": more, "notes": plan.notes});
    let value = answer("verify", topology.as_deref().map(TopologyRef::to).as_ref(), request, &found)?;
    screen.result(&value, || {
        if plan.violations.is_empty() { format!("ok: {}", plan.title) } else { plan.violations.to_string() }
    })?;
    verdict(args, plan.violations.total())
}

/// A violation as JSON (see `docs/formats.md`), without keys that do not apply.
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
