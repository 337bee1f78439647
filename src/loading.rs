//! The orders by which workers load programs, and how they do it.
//!
//! The principal types are [`LoadRequest`], the order of the coordinator, and [`Files`], which finds the files that it
//! names. Both sides verify and lower whole plans with the same code, in one [`Form`].

use crate::cli::LoweringArgs;
use crate::failure::{Failure, Outcome, read_text};
use crate::foreign;
use crate::lowered;
use crate::plan;
use program::{Excerpt, VerifiedProgram};
use runtime::Loaded;
use schedule::{ReduceOp, VerifiedSchedule, file};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use topology::{Rank, Topology};

/// A plan of another tool, in the form that the ranks need.
pub(crate) struct ForeignSource<'a> {
    /// The file's text.
    pub text: &'a str,
    /// Its name in errors.
    pub origin: &'a str,
    /// The reduction to use.
    pub op: Option<ReduceOp>,
}

/// How a worker reads a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlanKind {
    /// A schedule of ours.
    Schedule,
    /// A plan of another tool, with this reduction.
    Foreign(Option<ReduceOp>),
}

/// Whether input and output are the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MemoryMode {
    /// Separate buffers.
    OutOfPlace,
    /// nccl-tests' in-place convention.
    InPlace,
}

/// How plans become programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Form {
    /// The options of the command line.
    pub lowering: LoweringArgs,
    /// Without fused steps, because an emulated machine stores and forwards.
    pub unfused: bool,
}

/// The order to load a program.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum LoadRequest {
    /// From the files of a plan and its topology.
    Plan { kind: PlanKind, memory: MemoryMode, form: Form },
    /// The rank's excerpt of the program with this digest, from the file of all excerpts.
    Excerpt { of: String },
}

fn load(source: &LoadRequest, files: &[PathBuf], number: Option<Rank>) -> Outcome<Loaded> {
    match (source, files) {
        (LoadRequest::Excerpt { of }, [excerpts]) => {
            let excerpt = File::open(excerpts).and_then(|file| Excerpt::read(&mut BufReader::new(file), number, of));
            excerpt
                .map(Loaded::Excerpt)
                .map_err(|error| Failure::no(error).context("the launcher's plan cannot be read"))
        }
        (LoadRequest::Plan { kind, memory, form }, files) => load_plan(kind, *memory, form, files).map(Loaded::Whole),
        _ => Err(Failure::no(anyhow::anyhow!("the excerpts of a program are one file, not {}", files.len()))),
    }
}

fn load_plan(kind: &PlanKind, memory: MemoryMode, form: &Form, files: &[PathBuf]) -> Outcome<VerifiedProgram> {
    let [plan, topology] = files else { return Err(Failure::no(anyhow::anyhow!("a plan and a topology are needed"))) };
    let topology = topology::from_json(&read_text(topology)?, "the launcher's topology")?;
    let (text, origin) = (read_text(plan)?, "the launcher's plan");
    match *kind {
        PlanKind::Schedule => {
            let schedule = file::read(&text, origin).map_err(Failure::bad_input)?;
            form.compile(&schedule.verify(&Arc::new(topology)).map_err(Failure::no)?, memory)
        }
        PlanKind::Foreign(op) => {
            let plan = ForeignSource { text: &text, origin, op };
            let program = form.foreign(&plan, &topology, memory)?;
            program.ok_or_else(|| Failure::no(anyhow::anyhow!("the plan does not serve this kind of call")))
        }
    }
}

impl Form {
    /// The program of a schedule.
    pub(crate) fn compile(&self, schedule: &VerifiedSchedule, memory: MemoryMode) -> Outcome<VerifiedProgram> {
        self.finish(lowered::timed(schedule, &self.lowering.options(memory == MemoryMode::InPlace))?)
    }

    /// The program of another tool's plan for one kind of call; `None` if it does not serve this kind.
    pub(crate) fn foreign(
        &self,
        source: &ForeignSource<'_>,
        topology: &Topology,
        memory: MemoryMode,
    ) -> Outcome<Option<VerifiedProgram>> {
        let programs = foreign::read(source.text, source.origin, None)?.verified(source.origin)?;
        let in_place = memory == MemoryMode::InPlace;
        let Some(program) = programs.iter().find(|program| program.program().in_place == in_place) else {
            return Ok(None);
        };
        let program = lowered::replicated(&foreign::bound(program, topology, source.op)?, self.lowering.instances)?;
        self.finish(program).map(Some)
    }

    fn finish(&self, program: VerifiedProgram) -> Outcome<VerifiedProgram> {
        if self.unfused { lowered::unfused(&program) } else { Ok(program) }
    }
}

/// Finds the files that an order names, on the worker's side.
pub(crate) struct Files;

impl runtime::Loader for Files {
    fn program(&self, source: &str, files: &[PathBuf], number: Option<Rank>) -> Result<Loaded, String> {
        let source: LoadRequest = serde_json::from_str(source).map_err(|error| error.to_string())?;
        load(&source, files, number).map_err(|failure| failure.to_string())
    }

    fn topology(&self, source: &str) -> Result<Topology, String> {
        plan::topology(source).map(Arc::unwrap_or_clone).map_err(|failure| failure.to_string())
    }
}
