//! Wrong programs, each with one mistake that a bug in lowering could make.

use crate::{ConnectionId, Instruction, Program, Slice, Step, StepRef, Threadblock};

/// A changed program and what was changed.
pub struct Mutant {
    pub slip: Slip,
    pub program: Program,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Slip {
    DropDependency,
    WaitForNothing,
    DropStep,
    RepeatStep,
    SwapSteps,
    ShiftSource,
    ShiftDestination,
    ReduceInsteadOfStore,
    StoreInsteadOfReduce,
    OtherConnection,
    AddDependency,
    OtherThreadblock,
    OtherChannel,
    DropForward,
    ForwardFirst,
}

/// All programs with one mistake.
pub fn all(program: &Program) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for a in 0..program.connections.len() {
        for b in a + 1..program.connections.len() {
            let (x, y) = (program.connections[a], program.connections[b]);
            if (x.from, x.to) == (y.from, y.to) {
                // One end of each connection meets the other end of the other.
                let mut program = program.clone();
                let other = |id: ConnectionId| {
                    if id.index() == a {
                        b
                    } else if id.index() == b {
                        a
                    } else {
                        id.index()
                    }
                };
                let steps = program.ranks[x.from.index()].threadblocks.iter_mut().flat_map(|block| &mut block.steps);
                for step in steps {
                    if let Instruction::Send { to, .. } = &mut step.instruction {
                        *to = ConnectionId(other(*to) as u32);
                    }
                }
                mutants.push(Mutant { slip: Slip::OtherChannel, program });
            }
        }
    }
    for (rank, content) in program.ranks.iter().enumerate() {
        for (tb, block) in content.threadblocks.iter().enumerate() {
            for (index, step) in block.steps.iter().enumerate() {
                let place = Place { program, rank, tb, index };
                place.dependencies(step, &mut mutants);
                place.order(block, &mut mutants);
                place.instructions(step.instruction, &mut mutants);
            }
        }
    }
    mutants
}

struct Place<'a> {
    program: &'a Program,
    rank: usize,
    tb: usize,
    index: usize,
}

impl Place<'_> {
    fn change(&self, slip: Slip, mutants: &mut Vec<Mutant>, change: impl FnOnce(&mut [Threadblock])) {
        let mut program = self.program.clone();
        change(&mut program.ranks[self.rank].threadblocks);
        mutants.push(Mutant { slip, program });
    }

    fn step(&self, slip: Slip, mutants: &mut Vec<Mutant>, change: impl FnOnce(&mut Step)) {
        self.change(slip, mutants, |blocks| change(&mut blocks[self.tb].steps[self.index]));
    }

    fn dependencies(&self, step: &Step, mutants: &mut Vec<Mutant>) {
        for index in 0..step.after.len() {
            self.step(Slip::DropDependency, mutants, |step| {
                step.after.remove(index);
            });
        }
        if !step.after.is_empty() {
            self.step(Slip::WaitForNothing, mutants, |step| step.after.clear());
        }
        for (tb, block) in
            self.program.ranks[self.rank].threadblocks.iter().enumerate().filter(|&(tb, _)| tb != self.tb)
        {
            for index in 0..block.steps.len() {
                let after = StepRef { threadblock: tb as u32, step: index as u32 };
                self.step(Slip::AddDependency, mutants, |step| step.after.push(after));
            }
        }
    }

    fn order(&self, block: &Threadblock, mutants: &mut Vec<Mutant>) {
        self.change(Slip::DropStep, mutants, |blocks| {
            blocks[self.tb].steps.remove(self.index);
            self.renumber(
                blocks,
                |step| if step == self.index { None } else { Some(step - usize::from(step > self.index)) },
            );
        });
        self.change(Slip::RepeatStep, mutants, |blocks| {
            let repeated = blocks[self.tb].steps[self.index].clone();
            blocks[self.tb].steps.insert(self.index, repeated);
            self.renumber(blocks, |step| Some(step + usize::from(step >= self.index)));
        });
        if self.index + 1 < block.steps.len() {
            self.change(Slip::SwapSteps, mutants, |blocks| blocks[self.tb].steps.swap(self.index, self.index + 1));
        }
    }

    fn renumber(&self, blocks: &mut [Threadblock], number: impl Fn(usize) -> Option<usize>) {
        for step in blocks.iter_mut().flat_map(|block| &mut block.steps) {
            step.after.retain_mut(|after| {
                let moved = if after.threadblock as usize == self.tb {
                    number(after.step as usize)
                } else {
                    Some(after.step as usize)
                };
                after.step = moved.unwrap_or(0) as u32;
                moved.is_some()
            });
        }
    }

    fn instructions(&self, instruction: Instruction, mutants: &mut Vec<Mutant>) {
        for distance in [-1i64, 1] {
            let mut shift = |slip, pick: fn(&mut Instruction) -> Option<&mut Slice>| {
                let mut changed = instruction;
                if let Some(slice) = pick(&mut changed)
                    && let Ok(index) = u32::try_from(i64::from(slice.index) + distance)
                {
                    slice.index = index;
                    self.step(slip, mutants, |step| step.instruction = changed);
                }
            };
            shift(Slip::ShiftSource, source);
            shift(Slip::ShiftDestination, destination);
        }
        let other = match instruction {
            Instruction::Receive { from, dst } => {
                Some((Slip::ReduceInsteadOfStore, Instruction::ReceiveReduce { from, src: dst, dst }))
            }
            Instruction::ReceiveReduce { from, dst, .. } => {
                Some((Slip::StoreInsteadOfReduce, Instruction::Receive { from, dst }))
            }
            Instruction::ReceiveSend { from, to, dst } => {
                Some((Slip::ReduceInsteadOfStore, Instruction::ReceiveReduceSend { from, to, src: dst, dst }))
            }
            Instruction::ReceiveReduceSend { from, to, dst, .. } => {
                Some((Slip::StoreInsteadOfReduce, Instruction::ReceiveSend { from, to, dst }))
            }
            _ => None,
        };
        if let Some((slip, other)) = other {
            self.step(slip, mutants, |step| step.instruction = other);
        }
        if let (whole, Some(send)) = instruction.halves() {
            self.step(Slip::DropForward, mutants, |step| step.instruction = whole);
            // The send, then the receive.
            self.change(Slip::ForwardFirst, mutants, |blocks| {
                let mut first = blocks[self.tb].steps[self.index].clone();
                blocks[self.tb].steps[self.index].instruction = whole;
                first.instruction = send;
                blocks[self.tb].steps.insert(self.index, first);
                self.renumber(blocks, |step| Some(step + usize::from(step >= self.index)));
            });
        }
        if let Instruction::Send { to, src } = instruction {
            for connection in 0..self.program.connections.len() as u32 {
                let other = ConnectionId(connection);
                let lane = self.program.connections[other.index()];
                if other != to && lane.from.index() == self.rank {
                    let moved = Instruction::Send { to: other, src };
                    self.step(Slip::OtherConnection, mutants, |step| step.instruction = moved);
                    // The same, at the end of the threadblock that owns the other connection.
                    self.change(Slip::OtherThreadblock, mutants, |blocks| {
                        let mut step = blocks[self.tb].steps.remove(self.index);
                        self.renumber(blocks, |step| {
                            if step == self.index { None } else { Some(step - usize::from(step > self.index)) }
                        });
                        step.instruction = moved;
                        let owner = blocks.iter_mut().find(|block| {
                            block
                                .steps
                                .iter()
                                .any(|step| matches!(step.instruction, Instruction::Send { to, .. } if to == other))
                        });
                        owner.into_iter().for_each(|owner| owner.steps.push(step.clone()));
                    });
                }
            }
        }
    }
}

fn source(instruction: &mut Instruction) -> Option<&mut Slice> {
    match instruction {
        Instruction::Send { src, .. }
        | Instruction::ReceiveReduce { src, .. }
        | Instruction::ReceiveReduceSend { src, .. }
        | Instruction::Reduce { src, .. }
        | Instruction::Copy { src, .. } => Some(src),
        Instruction::Receive { .. } | Instruction::ReceiveSend { .. } => None,
    }
}

fn destination(instruction: &mut Instruction) -> Option<&mut Slice> {
    match instruction {
        Instruction::Receive { dst, .. }
        | Instruction::ReceiveReduce { dst, .. }
        | Instruction::ReceiveSend { dst, .. }
        | Instruction::ReceiveReduceSend { dst, .. }
        | Instruction::Reduce { dst, .. }
        | Instruction::Copy { dst, .. } => Some(dst),
        Instruction::Send { .. } => None,
    }
}
