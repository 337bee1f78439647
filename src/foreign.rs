//! Plans in the formats of other tools: recognised by their content, judged, and opened.
//!
//! The principal type is [`ForeignPlan`]. Every command that takes a schedule also takes such a plan, through
//! [`crate::plan::open_any`].

use crate::failure::{Failure, Outcome};
use crate::lowered;
use crate::screen::bytes;
use interop::{msccl, mscclpp};
use program::{Program, VerifiedProgram};
use schedule::{Findings, ReduceOp};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use synth::sketch::SketchFile;
use topology::Topology;

/// The size of a call for which a plan is judged, if the user gives none.
const USUAL_SIZE: u64 = 1 << 20;

/// A plan from a file of another tool.
pub(crate) struct ForeignPlan {
    /// A title for people.
    pub title: String,
    /// The rules that it breaks.
    pub violations: Findings<ViolationText>,
    /// Notes for people.
    pub notes: Vec<String>,
    /// The program for every kind of call that it serves correctly; never empty without violations.
    pub programs: Vec<VerifiedProgram>,
}

/// A violation and its place.
pub(crate) struct ViolationText {
    kind: String,
    /// The text, with the place in the form that compilers print.
    text: String,
    place: Option<(usize, usize)>,
    rank: Option<u32>,
}

impl fmt::Display for ViolationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ViolationText {
    /// A violation as JSON (see `docs/formats.md`).
    pub(crate) fn as_json(&self) -> Value {
        let mut object = json!({"kind": self.kind, "text": self.text});
        if let Some(rank) = self.rank {
            object["rank"] = rank.into();
        }
        if let Some((line, column)) = self.place {
            object["line"] = line.into();
            object["column"] = column.into();
        }
        object
    }
}

/// Whether a text is a plan of another tool, from its beginning.
pub(crate) fn is_foreign(text: &str) -> bool {
    is_xml(text) || mscclpp::detects(text)
}

fn is_xml(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with('<')
}

/// The error for one of our files that is not a plan, with the command that reads it.
pub(crate) fn no_plan(text: &str, origin: &str) -> Option<Failure> {
    const START: usize = 1000;
    let start: String = text.chars().take(START).collect();
    if !start.trim_start().starts_with('{') && SketchFile::parse(text, origin).is_ok() {
        let what = anyhow::anyhow!("{origin}: this is a sketch, not a plan");
        return Some(Failure::bad_input(what).hint(format!(
            "`antiphon sketch check {origin} --topology SPEC` checks it, `verify PLAN --sketch {origin}` whether a plan obeys it"
        )));
    }
    let (kind, _) = start.split_once("antiphon-")?.1.split_once('/')?;
    let (what, hint) = match kind {
        "topology" | "machine" | "cluster" => (
            "a topology",
            format!(
                "`antiphon topology check {origin}` validates it, `antiphon synth --topology {origin}` plans for it"
            ),
        ),
        "sweep" => ("an index of plans", "the plans are the files that it names".to_owned()),
        "table" => ("a tuning table", format!("`antiphon run --table {origin}` uses it")),
        _ => return None,
    };
    Some(Failure::bad_input(anyhow::anyhow!("{origin}: this is {what} (antiphon-{kind}), not a plan")).hint(hint))
}

/// Reads and judges a plan for calls of `size` bytes (default: a size that it serves).
///
/// # Errors
/// A text that is not of its format. If the plan can be read, its violations are in the result.
pub(crate) fn read(text: &str, origin: &str, size: Option<u64>) -> Outcome<ForeignPlan> {
    if is_xml(text) { read_msccl(text, origin, size) } else { read_mscclpp(text, origin, size) }
}

fn read_msccl(text: &str, origin: &str, size: Option<u64>) -> Outcome<ForeignPlan> {
    let parsed = msccl::parse(text, origin)
        .map_err(|faults| Failure::bad_input(anyhow::anyhow!("{}", Findings::from(faults))))?;
    let msccl::Parsed { algorithm, notes } = parsed;
    let dialect = msccl::Dialect::of(&algorithm);
    let (least, most) = algorithm.window(dialect);
    let size = size.unwrap_or(USUAL_SIZE.min(most.unwrap_or(u64::MAX)).max(least));
    let verdict = msccl::judge(&algorithm, dialect, size);
    let finding = |violation: &msccl::FileViolation| ViolationText {
        kind: violation.kind().to_owned(),
        text: format!("{origin}:{violation}"),
        place: Some((violation.at.line as usize, violation.at.column as usize)),
        rank: violation.rank(),
    };
    let calls: Vec<&str> = algorithm.calls().iter().map(|&p| if p { "in place" } else { "out of place" }).collect();
    let sizes = match most {
        Some(most) => format!("{} to {}", bytes(least), bytes(most)),
        None => format!("{} and more", bytes(least)),
    };
    let operation = algorithm.operation.map_or("?", msccl::ClaimedCollective::as_str);
    Ok(ForeignPlan {
        title: format!(
            "{operation} over {} ranks, MSCCL XML for {dialect}, {}, {sizes}",
            algorithm.ranks,
            calls.join(" and ")
        ),
        violations: verdict.violations.map(finding),
        notes: notes.iter().map(ToString::to_string).collect(),
        programs: verdict.calls.into_iter().map(|call| call.program).collect(),
    })
}

fn read_mscclpp(text: &str, origin: &str, size: Option<u64>) -> Outcome<ForeignPlan> {
    let file = mscclpp::read(text, origin).map_err(Failure::bad_input)?;
    let plan = file.plan();
    let call = if plan.inplace { "in place" } else { "out of place" };
    let title = format!("{} over {} ranks, MSCCL++ JSON, {call}", plan.collective, plan.gpus.len());
    let place = |at| mscclpp::PlanFile::locate(text, at);
    let placed = |at, text: String| match place(at) {
        Some((line, column)) => format!("{origin}:{line}:{column}: {text}"),
        None => format!("{origin}: {text}"),
    };
    let (violations, notes, programs) = match file.import(size.unwrap_or(USUAL_SIZE)) {
        Ok(import) => {
            let notes = import.notes.iter().map(|note| placed(note.at, note.to_string())).collect();
            (Findings::default(), notes, vec![import.program])
        }
        Err(violations) => {
            let finding = |violation: &mscclpp::PlanViolation| {
                let value = serde_json::to_value(violation).unwrap_or_default();
                ViolationText {
                    kind: value["kind"].as_str().unwrap_or("plan").to_owned(),
                    text: placed(violation.at, violation.to_string()),
                    place: place(violation.at),
                    rank: violation.at.rank(),
                }
            };
            (violations.map(finding), Vec::new(), Vec::new())
        }
    };
    Ok(ForeignPlan { title, violations, notes, programs })
}

impl ForeignPlan {
    /// The programs, if the plan is correct in any kind of call. Its other violations concern only other runtimes and
    /// become notes.
    ///
    /// # Errors
    /// The answer "no", with the first violations.
    pub(crate) fn verified(&mut self, origin: &str) -> Outcome<Vec<VerifiedProgram>> {
        const SHOWN: usize = 5;
        let mut texts: Vec<String> = self.violations.iter().take(SHOWN).map(|finding| finding.text.clone()).collect();
        let more = self.violations.total().saturating_sub(SHOWN as u64);
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        if self.programs.is_empty() {
            let failure =
                Failure::no(anyhow::anyhow!("{}", texts.join("\n"))).context(format!("{origin}: is not right"));
            return Err(failure.hint(format!("`antiphon verify {origin}` lists every violation")));
        }
        self.notes.extend(texts);
        Ok(std::mem::take(&mut self.programs))
    }

    /// Checks that every connection of its programs has a link.
    pub(crate) fn check_links(&mut self, topology: &Topology) {
        let first = self.programs.first().map(|program| program.program().clone());
        if let Some(Err(error)) = first.map(|mut program| program.bind(topology)) {
            self.violations.push(ViolationText {
                kind: "no_link".to_owned(),
                text: error.to_string(),
                place: None,
                rank: None,
            });
        }
    }
}

/// The program on the links of a topology, with the given reduction.
pub(crate) fn bound(program: &VerifiedProgram, topology: &Topology, op: Option<ReduceOp>) -> Outcome<VerifiedProgram> {
    let mut program: Program = program.program().clone();
    let ranks = program.ranks.len();
    if ranks != topology.rank_count() {
        let given = topology.rank_count();
        return Err(Failure::bad_input(anyhow::anyhow!(
            "the plan has {ranks} ranks, but {} has {given}",
            topology::shorten(topology.name())
        )));
    }
    program.bind(topology).map_err(Failure::no)?;
    if let Some(op) = op.filter(|&op| Some(op) != program.op) {
        program.demand = Arc::new(schedule::Demand::clone(&program.demand).with_op(op)?);
        program.op = Some(op);
    }
    lowered::checked(program)
}
