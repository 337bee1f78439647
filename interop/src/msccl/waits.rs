//! Dependencies of steps (`depid`, `deps` and `hasdep`), and cycles of waits within a rank.
//!
//! The entry is `LimitCheck::waits`, one part of `limits::check`. The runtimes wait before every step, whatever its
//! type. So this check includes steps that do nothing and have no place in the program that [`super::import`] makes:
//! `nop`s, and copies of a slice to itself. A cycle through such steps would not be visible in that program. A cycle
//! through other ranks contains messages, and [`program::check`] finds it.

use super::document::{GpuElement, StepElement, StepType, TextPosition, ThreadblockElement};
use super::limits::{LimitCheck, MAX_AWAITED_BLOCK};
use super::violation::{FileViolation, Rule};
use std::collections::BTreeMap;

impl LimitCheck<'_> {
    /// Checks the dependencies of a rank's steps.
    pub(super) fn waits(&mut self, gpu: &GpuElement) {
        let mut blocks: BTreeMap<u32, &ThreadblockElement> = BTreeMap::new();
        for block in &gpu.blocks {
            blocks.entry(block.id).or_insert(block);
        }
        for block in &gpu.blocks {
            for (place, step) in block.steps.iter().enumerate() {
                self.dependency(&blocks, block, place, step);
            }
            self.chains(block);
        }
        let mut cycle = cycle(&blocks);
        if !cycle.is_empty() {
            let (at, steps) = (cycle.remove(0), cycle.len() + 1);
            self.found(FileViolation { at, with: cycle, rule: Rule::WaitCycle { rank: gpu.id, steps } });
        }
    }

    fn dependency(
        &mut self,
        blocks: &BTreeMap<u32, &ThreadblockElement>,
        block: &ThreadblockElement,
        place: usize,
        step: &StepElement,
    ) {
        let Some((awaited, number)) = step.after else { return };
        let target = blocks.get(&awaited).and_then(|target| target.steps.get(number as usize));
        let reason = match target {
            None => "which does not exist",
            Some(_) if awaited == block.id && number as usize >= place => "which does not come before it",
            Some(target) if target.kind == StepType::Nop => "a nop, of which nobody is told when it ends",
            Some(target) => {
                if !target.announces {
                    let mut violation = FileViolation::new(step.at, Rule::Silent { block: awaited, step: number });
                    violation.with.push(target.at);
                    self.found(violation);
                }
                let what = "the number of a threadblock that is waited for";
                return self.limit(step.at, what, awaited.into(), MAX_AWAITED_BLOCK.into());
            }
        };
        self.broken(step.at, Rule::Dependency { block: awaited, step: number, reason });
    }

    /// Several dependencies of one step are written as several nops and the step, each with one dependency.
    fn chains(&mut self, block: &ThreadblockElement) {
        for step in block.steps.iter().filter(|step| step.kind == StepType::Nop && step.after.is_none()) {
            self.broken(step.at, Rule::IdleNop);
        }
        for pair in block.steps.windows(2) {
            if pair[0].kind == StepType::Nop && pair[1].kind != StepType::Nop && pair[1].after.is_none() {
                self.broken(pair[1].at, Rule::BrokenChain);
            }
        }
    }
}

/// Steps that wait for each other in a cycle; empty if there is no cycle.
fn cycle(blocks: &BTreeMap<u32, &ThreadblockElement>) -> Vec<TextPosition> {
    let steps: Vec<(&ThreadblockElement, usize)> =
        blocks.values().flat_map(|block| (0..block.steps.len()).map(move |step| (*block, step))).collect();
    let mut firsts = BTreeMap::new();
    for (number, &(block, step)) in steps.iter().enumerate().rev() {
        firsts.insert(block.id, number - step);
    }
    // A step waits for the step before it, and for the step that it names.
    let waits_for = |number: usize| {
        let (block, step) = steps[number];
        let named = block.steps[step].after.and_then(|(awaited, named)| {
            let exists = blocks.get(&awaited).is_some_and(|block| block.steps.len() > named as usize);
            exists.then(|| firsts[&awaited] + named as usize)
        });
        step.checked_sub(1).map(|_| number - 1).into_iter().chain(named)
    };
    let mut waiting: Vec<u32> = (0..steps.len()).map(|number| waits_for(number).count() as u32).collect();
    let mut waited_by = vec![Vec::new(); steps.len()];
    (0..steps.len()).for_each(|number| waits_for(number).for_each(|before| waited_by[before].push(number)));
    let mut done: Vec<usize> = (0..steps.len()).filter(|&number| waiting[number] == 0).collect();
    while let Some(number) = done.pop() {
        for &next in &waited_by[number] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                done.push(next);
            }
        }
    }
    // A stuck step waits for another stuck step, so a walk from one to the next must repeat.
    let mut trail: Vec<usize> = Vec::new();
    let mut position = vec![None; steps.len()];
    let mut here = (0..steps.len()).find(|&number| waiting[number] > 0);
    while let Some(number) = here {
        if let Some(start) = position[number].replace(trail.len()) {
            trail.drain(..start);
            break;
        }
        trail.push(number);
        here = waits_for(number).find(|&before| waiting[before] > 0);
    }
    trail.into_iter().map(|number| steps[number].0.steps[steps[number].1].at).collect()
}
