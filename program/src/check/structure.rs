//! Checks that everything that a program names exists and fits together.

use super::images::Images;
use super::{ProgramViolation, StepAt};
use crate::{Buffer, ConnectionId, Instruction, Layout, Program, RankProgram, Slice, Step, Transform};
use schedule::Findings;
use std::collections::BTreeMap;
use topology::Rank;

/// The most slots, and the most steps, that a program may have over all ranks.
const LIMIT: u64 = 1 << 26;

pub(super) fn check(program: &Program, layout: &Layout, images: &Images<'_>) -> Result<(), Findings<ProgramViolation>> {
    let mut structure = Structure { program, layout, images, violations: Findings::default() };
    structure.header();
    // Later checks use ranks and parts as indices into sizes and shapes.
    structure.verdict()?;
    structure.connections();
    for (rank, content) in program.ranks.iter().enumerate() {
        structure.rank(Rank::from_index(rank), content);
    }
    structure.verdict()
}

struct Structure<'a> {
    program: &'a Program,
    layout: &'a Layout,
    images: &'a Images<'a>,
    violations: Findings<ProgramViolation>,
}

impl Structure<'_> {
    fn verdict(&mut self) -> Result<(), Findings<ProgramViolation>> {
        if self.violations.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.violations)) }
    }

    fn header(&mut self) {
        let program = self.program;
        let request = self.program.demand.request();
        for (what, given, expected) in [
            ("the number of parts", u64::from(program.shape.parts()), u64::from(self.layout.shape().parts())),
            ("the number of ranks", program.ranks.len() as u64, request.ranks as u64),
        ] {
            if given != expected {
                self.violations.push(ProgramViolation::Header { what, given, expected });
            }
        }
        if self.violations.is_empty() && program.shape != *self.layout.shape() {
            self.violations.push(ProgramViolation::Shape);
        }
        if program.op != request.op {
            self.violations.push(ProgramViolation::Operation);
        }
        let slots =
            |rank: &RankProgram| (rank.input_parts.len() + rank.output_parts.len() + rank.scratch_parts.len()) as u64;
        let steps = |rank: &RankProgram| rank.threadblocks.iter().map(|block| block.steps.len() as u64).sum::<u64>();
        for (what, count) in
            [("slots", program.ranks.iter().map(slots).sum()), ("steps", program.ranks.iter().map(steps).sum())]
        {
            if count > LIMIT {
                self.violations.push(ProgramViolation::TooMany { what, count, limit: LIMIT });
            }
        }
    }

    fn connections(&mut self) {
        let mut lanes = BTreeMap::new();
        for (index, ends) in self.program.connections.iter().enumerate() {
            let connection = ConnectionId(index as u32);
            let (from, to) = (ends.from, ends.to);
            if from == to || from.max(to).index() >= self.program.ranks.len() {
                self.violations.push(ProgramViolation::Endpoints { connection, from, to });
            }
            if from.index() < self.program.ranks.len() && !self.images.is_first(from) {
                let reason = "a connection is written down as that of another sender of its orbit";
                self.violations.push(ProgramViolation::OrbitForm { rank: from, reason });
            }
            if let Some(other) = lanes.insert((from, to, ends.channel), connection) {
                self.violations.push(ProgramViolation::SameLane { connection, other });
            }
        }
    }

    fn rank(&mut self, rank: Rank, content: &RankProgram) {
        if !self.images.is_first(rank) {
            if *content != RankProgram::default() {
                let reason = "it repeats another rank, but has steps or slots of its own";
                self.violations.push(ProgramViolation::OrbitForm { rank, reason });
            }
            return;
        }
        for buffer in [Buffer::Input, Buffer::Output] {
            let given = content.parts(buffer).len();
            let expected = self.layout.slots(rank, buffer);
            if given != expected as usize {
                self.violations.push(ProgramViolation::BufferSlots { rank, buffer, given, expected });
                continue;
            }
            let parts = content.parts(buffer).iter().zip(self.layout.slot_parts(rank, buffer)).enumerate();
            for (slot, (&part, expected)) in parts.filter(|&(_, (&part, expected))| part != expected) {
                self.violations.push(ProgramViolation::SlotPart { rank, buffer, slot, part, expected });
            }
        }
        let parts = self.program.shape.parts();
        for (slot, &part) in content.scratch_parts.iter().enumerate().filter(|&(_, &part)| part >= parts) {
            self.violations.push(ProgramViolation::ScratchPart { rank, slot, part, parts });
        }
        for (threadblock, block) in content.threadblocks.iter().enumerate() {
            for (step, content) in block.steps.iter().enumerate() {
                self.step(StepAt { rank, threadblock: threadblock as u32, step: step as u32 }, content);
            }
        }
    }

    fn step(&mut self, at: StepAt, step: &Step) {
        let (src, dst) = (step.instruction.source(), step.instruction.destination());
        let connection = |id: ConnectionId| self.program.connections.get(id.index());
        let receiver = |id| connection(id).map(|ends| self.images.first(ends.to));
        let received = step.instruction.receives_from().filter(|&id| receiver(id) != Some(at.rank));
        let sent = step.instruction.sends_to().filter(|&id| connection(id).map(|ends| ends.from) != Some(at.rank));
        let foreign = received.into_iter().chain(sent);
        self.violations.extend(foreign.map(|connection| ProgramViolation::ForeignConnection { at, connection }));
        let in_bounds = [src, dst].into_iter().flatten().all(|slice| self.in_bounds(at, slice));
        if let (Some(src), Some(dst), true) = (src, dst, in_bounds) {
            self.together(at, &step.instruction, src, dst);
        }
        if let (Some(dst), true) = (dst, in_bounds) {
            self.writable(at, dst);
        }
        if step.instruction.reduces() && self.program.op.is_none() {
            self.violations.push(ProgramViolation::NoOperator { at });
        }
        // No executor changes a payload yet. If a transform is added, this match does not compile: refuse the new one
        // until all executors support it.
        let Transform::Identity = step.transform;
        let threadblocks = &self.program.ranks[at.rank.index()].threadblocks;
        for &after in &step.after {
            let exists =
                threadblocks.get(after.threadblock as usize).is_some_and(|b| b.steps.len() > after.step as usize);
            if !exists || after.threadblock == at.threadblock {
                self.violations.push(ProgramViolation::BadDependency { at, after });
            }
        }
    }

    fn in_bounds(&mut self, at: StepAt, slice: Slice) -> bool {
        let slots = slots(self.program, at.rank, slice.buffer);
        let fits = slice.count > 0 && u64::from(slice.index) + u64::from(slice.count) <= u64::from(slots);
        if slice.count > 1 && self.images.unfolding().is_some() {
            let reason = "it has a slice of several slots, whose images need not be neighbours";
            self.violations.push(ProgramViolation::OrbitForm { rank: at.rank, reason });
        }
        if !fits {
            self.violations.push(ProgramViolation::OutOfBounds { at, slice, slots });
        }
        fits
    }

    fn together(&mut self, at: StepAt, instruction: &Instruction, src: Slice, dst: Slice) {
        if !shape(self.program, at.rank, src).eq(shape(self.program, at.rank, dst)) {
            self.violations.push(ProgramViolation::Shapes { at });
        }
        let meet = src.buffer == dst.buffer && src.index < dst.index + dst.count && dst.index < src.index + src.count;
        // Received data may be added to its operand in place.
        let local = instruction.receives_from().is_none();
        if meet && (src != dst || local) {
            self.violations.push(ProgramViolation::Overlap { at });
        }
    }

    fn writable(&mut self, at: StepAt, slice: Slice) {
        let output = self.layout.output(at.rank);
        let inside = slice.buffer == output.buffer
            && slice.index >= output.index
            && slice.index + slice.count <= output.index + output.count;
        if slice.buffer != Buffer::Scratch && !inside {
            self.violations.push(ProgramViolation::WritesInput { at, slice });
        }
    }
}

/// How many slots a buffer has.
pub(super) fn slots(program: &Program, rank: Rank, buffer: Buffer) -> u32 {
    program.ranks[rank.index()].parts(buffer).len() as u32
}

/// The part of each slot of a slice; where all parts are equal, the same for all slots.
pub(super) fn shape(program: &Program, rank: Rank, slice: Slice) -> impl Iterator<Item = u32> {
    let parts = &program.ranks[rank.index()].parts(slice.buffer)[slice.index as usize..][..slice.count as usize];
    parts.iter().map(|&part| if program.uniform { 0 } else { part })
}
