//! Execution plans of MSCCL++: read, judge, convert to programs, and write.
//!
//! The principal type is [`PlanFile`]: a plan that was read. [`PlanFile::import`] proves it correct and gives its
//! [`VerifiedProgram`].
//!
//! MSCCL++ plans are one-sided: ranks write and read each other's buffers, and signals, semaphores and packets order
//! these accesses. A program of this crate is two-sided. The steps of the conversion:
//!
//! | file | step |
//! |---|---|
//! | `document` | the JSON, typed; unknown keys are refused where they stand |
//! | `limits` | what the executor has room for |
//! | `resolve` | every reference followed; every data operation becomes *the reduction of its sources goes to its targets* |
//! | `geometry` | which collective this is, and the cells its chunks are cut into |
//! | `order`, `memory` | no deadlock; no two conflicting accesses unordered, across ranks and calls; no signal left over |
//! | `convert` | messages instead of signals; then [`program::check`] proves the result |
//!
//! Pipelines repeat operations for parts of a chunk; the number of repetitions depends on the size of the call. The
//! order is judged for one, two and three iterations per chunk and, where iterations share scratch, for enough
//! iterations to use it twice. Results are checked for one iteration, because an iteration accesses only its own part.

mod builder;
mod convert;
mod document;
mod export;
mod geometry;
mod limits;
mod memory;
mod order;
mod resolve;
mod touched;
mod violation;

pub use document::{
    Channel, ChannelRefs, ChannelType, ChunkRef, ExecutionPlan, Gpu, IterContext, OpName, Operation, PlanBuffer,
    PlanThreadblock, RankGroup, Reduction, RemoteBuffer, RemoteBufferRefs, ScratchUse, Semaphore, Share,
};
pub use export::{PlanExportError, PlanExportOptions, export, write};
pub use limits::{
    MAX_BARRIERS, MAX_CHANNELS, MAX_CHANNELS_PER_OPERATION, MAX_OPERATIONS, MAX_SEMAPHORES, RESIDENT_THREADBLOCKS,
};
pub use violation::{ChunkAt, Note, OpAt, PlanFault, PlanLocation, PlanViolation};

use convert::{Converted, Judged};
use geometry::{Cells, PlanGeometry};
use order::{RelaxedOrdering, ReplayVerdict, judge};
use program::{ProgramViolation, StepAt, VerifiedProgram, check};
use resolve::Script;
use schedule::{Findings, ReduceOp};
use std::collections::BTreeSet;
use topology::document::{Document, TextError};

/// A plan that was read, not yet judged.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanFile {
    plan: ExecutionPlan,
}

/// A plan that was proven correct.
#[derive(Clone, PartialEq, Debug)]
pub struct Import {
    /// Its program.
    pub program: VerifiedProgram,
    /// Notes for people.
    pub notes: Vec<Note>,
}

/// Reads a plan. `origin` names the source in errors, such as the file's path.
///
/// # Errors
/// Text that is not JSON, keys that are missing, unknown or repeated, and values of the wrong type; each with its
/// line and column.
pub fn read(text: &str, origin: &str) -> Result<PlanFile, TextError> {
    let document = Document::json(origin, text);
    document.parse().map(|plan| PlanFile { plan }).map_err(|mut error| {
        const OLD: [&str; 9] =
            ["inputChunks", "outputChunks", "scratchChunks", "inPlace", "srcs", "dsts", "ctype", "cids", "o_buff"];
        if OLD.iter().any(|key| error.reason.contains(&format!("unknown field `{key}`"))) {
            error.reason.push_str("; this is the schema of MSCCL++ before 0.7, which its executor no longer reads");
        }
        error
    })
}

/// Whether a text looks like a plan of MSCCL++.
pub fn detects(text: &str) -> bool {
    let start = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    start.starts_with('{') && start.contains("\"gpus\"") && !start.contains("\"antiphon-")
}

impl From<ExecutionPlan> for PlanFile {
    fn from(plan: ExecutionPlan) -> Self {
        Self { plan }
    }
}

impl PlanFile {
    /// The plan as it is written.
    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    /// Line and column of a violation, in the text that was read.
    pub fn locate(text: &str, at: PlanLocation) -> Option<(usize, usize)> {
        Document::json("", text).locate(&at.path())
    }

    /// The reduction that all operations name; `None` if they name none.
    pub fn reduction(&self) -> Option<ReduceOp> {
        self.reductions().into_iter().next().map(|reduction| match reduction {
            Reduction::Sum => ReduceOp::Sum,
            Reduction::Min => ReduceOp::Min,
            Reduction::Max => ReduceOp::Max,
        })
    }

    fn reductions(&self) -> BTreeSet<Reduction> {
        let blocks = self.plan.gpus.iter().flat_map(|gpu| &gpu.threadblocks);
        let outer = blocks.flat_map(|block| &block.ops);
        outer.flat_map(|op| std::iter::once(op).chain(op.ops.iter().flatten())).filter_map(|op| op.reduce_op).collect()
    }

    /// Proves the plan and turns it into a program, planned for a call of `size_bytes` in nccl-tests' sense.
    ///
    /// # Errors
    /// The violations of the first rule that is broken: references and limits, then order, then results.
    pub fn import(&self, size_bytes: u64) -> Result<Import, Findings<PlanViolation>> {
        let plan = &self.plan;
        let mut violations = shape(plan);
        violations.extend(limits::check(plan));
        if self.reductions().len() > 1 {
            let reason = "operations with different reductions".to_owned();
            violations.push(PlanViolation { at: PlanLocation::Plan, fault: PlanFault::Unsupported { reason } });
        }
        if !violations.is_empty() {
            return Err(violations.into());
        }
        let script = resolve::resolve(plan)?;
        let geometry = PlanGeometry::of(plan, &script)?;
        let mut notes = self.notes(&geometry);
        let (cells, verdict) = judged(plan, &script, &geometry, 1)?;
        for &iterations in more_iterations(&geometry) {
            judged(plan, &script, &geometry, iterations)?;
        }
        notes.extend(self.ring(&script, &geometry, size_bytes)?);
        notes.extend(unflushed(&verdict));
        notes.extend(memoryless(plan, &script, &cells));
        let order = &verdict.order;
        let parts = Judged { plan, script: &script, geometry: &geometry, cells: &cells, order };
        let Converted { program, origins, overwritten } = convert::convert(&parts, size_bytes, self.reduction())?;
        notes.extend(overwritten.first().map(|&at| {
            let text = "overwrites its input, in place, outside its output".into();
            Note { at: PlanLocation::Op(at), text }
        }));
        let program = check(program).map_err(|violations| violations.map(|violation| result(violation, &origins)))?;
        Ok(Import { program, notes })
    }

    /// Judges whether scratch that pipelines use again is free at that time, if calls are large enough for this.
    fn ring(
        &self,
        script: &Script,
        geometry: &PlanGeometry,
        size_bytes: u64,
    ) -> Result<Option<Note>, Vec<PlanViolation>> {
        let (Some(ring), Some(unit)) = (geometry.ring, geometry.unit) else { return Ok(None) };
        let most = u64::from(ring) * u64::from(unit) * u64::from(geometry.chunks_in_size());
        if self.plan.max_message_size <= most {
            return Ok(None);
        }
        match judged(&self.plan, script, geometry, ring.saturating_add(2)) {
            Ok(_) => Ok(None),
            Err(violations) if size_bytes > most => Err(violations),
            Err(violations) => {
                let first = violations.first().map_or(String::new(), ToString::to_string);
                let is_judged =
                    violations.iter().all(|violation| !matches!(violation.fault, PlanFault::Unsupported { .. }));
                let text = match is_judged {
                    true => format!(
                        "right for calls up to {most} bytes only; above, scratch is used again too early: {first}"
                    ),
                    false => format!("right for calls up to {most} bytes; larger calls were not judged: {first}"),
                };
                Ok(Some(Note { at: PlanLocation::Plan, text }))
            }
        }
    }

    fn notes(&self, geometry: &PlanGeometry) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut note = |at, text: &str| notes.push(Note { at, text: text.to_owned() });
        for (rank, gpu) in (0..).zip(&self.plan.gpus) {
            if gpu.threadblocks.len() > RESIDENT_THREADBLOCKS {
                let text = "has more threadblocks than an A100 has multiprocessors; the kernel is not launched \
                            cooperatively, so they may wait for one that never starts";
                note(PlanLocation::Gpu(rank), text);
            }
        }
        if self.reductions().iter().any(|reduction| *reduction != Reduction::Sum) {
            note(PlanLocation::Plan, "the executor (0.9.0) computes sums whatever `reduce_op` says");
        }
        if geometry.input == 0 || geometry.output == 0 {
            note(
                PlanLocation::Plan,
                "the executor (0.9.0) divides by the number of input and of output chunks, one of which is 0",
            );
        }
        notes
    }
}

/// Checks `gpus` and `threadblocks`, on which all other checks depend.
fn shape(plan: &ExecutionPlan) -> Vec<PlanViolation> {
    let mut violations = Vec::new();
    let mut refuse = |at, reason: String| violations.push(PlanViolation { at, fault: PlanFault::Invalid { reason } });
    if plan.min_message_size > plan.max_message_size {
        let (least, most) = (plan.min_message_size, plan.max_message_size);
        refuse(PlanLocation::Plan, format!("serves messages from {least} to {most} bytes, so none"));
    }
    if plan.buffer_alignment == 0 || plan.num_threads_per_block == 0 {
        refuse(PlanLocation::Plan, "`buffer_alignment` and `num_threads_per_block` must be positive".into());
    }
    for (rank, gpu) in (0..).zip(&plan.gpus) {
        if gpu.id != rank {
            refuse(
                PlanLocation::Gpu(rank),
                format!("has id {}, but the executor takes entry {rank} for rank {rank}", gpu.id),
            );
        }
        for (number, block) in (0..).zip(&gpu.threadblocks) {
            if block.id != number {
                let at = PlanLocation::Threadblock(rank, number);
                refuse(
                    at,
                    format!("has id {}, but the executor takes entry {number} for threadblock {number}", block.id),
                );
            }
        }
    }
    violations
}

/// Judges the order for a number of iterations per chunk.
fn judged(
    plan: &ExecutionPlan,
    script: &Script,
    geometry: &PlanGeometry,
    iterations: u32,
) -> Result<(Cells, ReplayVerdict), Vec<PlanViolation>> {
    let refuse = |fault| vec![PlanViolation { at: PlanLocation::Plan, fault }];
    let cells = Cells::new(plan, geometry, iterations).map_err(refuse)?;
    let verdict = judge(plan, script, &cells, RelaxedOrdering::Orders);
    if verdict.violations.is_empty() { Ok((cells, verdict)) } else { Err(verdict.violations) }
}

/// The numbers of iterations per chunk to judge in addition to one.
fn more_iterations(geometry: &PlanGeometry) -> &'static [u32] {
    if geometry.unit.is_some() { &[2, 3] } else { &[] }
}

/// Converts a violation of the program to one of the operation that its step comes from.
fn result(violation: &ProgramViolation, origins: &[Vec<Vec<OpAt>>]) -> PlanViolation {
    use ProgramViolation as V;
    let step = match violation {
        V::WritesInput { at, .. }
        | V::OutOfBounds { at, .. }
        | V::Shapes { at, .. }
        | V::Overlap { at, .. }
        | V::NoOperator { at, .. }
        | V::Uninitialised { at, .. }
        | V::MixedReduce { at, .. }
        | V::DoubleReduce { at, .. } => Some(at),
        _ => None,
    };
    let origin = |at: &StepAt| {
        let steps = origins.get(at.rank.index())?.get(at.threadblock as usize)?;
        steps.get(at.step as usize).copied()
    };
    let at = match violation {
        V::WrongResult { rank, .. } => PlanLocation::Gpu(rank.0),
        _ => step.and_then(origin).map_or(PlanLocation::Plan, PlanLocation::Op),
    };
    PlanViolation { at, fault: PlanFault::Result { text: violation.to_string() } }
}

/// Notes on ports that may still read when the call ends.
fn unflushed(verdict: &ReplayVerdict) -> Vec<Note> {
    let text = "nothing waits until the port has read its source, so the caller may overwrite it too early";
    let mut places = verdict.unflushed.clone();
    places.sort_unstable();
    places.into_iter().map(|at| Note { at: PlanLocation::Op(at), text: text.into() }).collect()
}

/// Notes on accesses that only relaxed signals or packets order.
fn memoryless(plan: &ExecutionPlan, script: &Script, cells: &Cells) -> Vec<Note> {
    let verdict = judge(plan, script, cells, RelaxedOrdering::Memoryless);
    let notes = verdict.violations.into_iter().filter_map(|violation| match violation.fault {
        PlanFault::Race { access, chunk, other, other_access: "writes", .. } => {
            let text = format!(
                "{access} {chunk}, which {other} writes, ordered only by a relaxed signal or a packet, \
                 which promise nothing about other memory"
            );
            Some(Note { at: violation.at, text })
        }
        _ => None,
    });
    notes.collect()
}

#[cfg(test)]
mod tests;
