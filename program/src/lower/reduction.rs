//! Drops dependencies that follow from others on the same rank.
//!
//! Each step gets a clock: for each threadblock, how many of its steps have surely ended when this step has ended. A
//! dependency is dropped if it is covered by the clock of the previous step or of another dependency. In a topological
//! order of all steps, a dependency can cover only earlier ones, so dependencies are tried from the latest to the
//! earliest.

use crate::{RankProgram, StepRef};

/// The most words that the clocks of one rank may take. Above this, all dependencies stay, which is only slower.
const MOST_WORDS: usize = 1 << 24;

/// Removes implied dependencies of a rank's steps.
pub(super) fn drop_implied(program: &mut RankProgram) {
    let width = program.threadblocks.len();
    let count: usize = program.threadblocks.iter().map(|block| block.steps.len()).sum();
    if width.saturating_mul(count) > MOST_WORDS {
        return;
    }
    let order = dependencies_first(program);
    let mut steps = StepPositions::of(program);
    let mut clocks = vec![0; order.len() * width];
    let mut now = vec![0; width];
    for (written, &at) in order.iter().enumerate() {
        match at.step.checked_sub(1) {
            Some(step) => now.copy_from_slice(clock(&clocks, width, steps.written(StepRef { step, ..at }))),
            None => now.fill(0),
        }
        let after = &mut program.threadblocks[at.threadblock as usize].steps[at.step as usize].after;
        after.sort_unstable_by_key(|&step| std::cmp::Reverse(steps.written(step)));
        after.retain(|&step| {
            let needed = now[step.threadblock as usize] <= step.step;
            if needed {
                let ended = clock(&clocks, width, steps.written(step));
                now.iter_mut().zip(ended).for_each(|(now, &ended)| *now = (*now).max(ended));
            }
            needed
        });
        after.sort_unstable();
        now[at.threadblock as usize] = at.step + 1;
        clocks[written * width..][..width].copy_from_slice(&now);
        steps.set(at, written);
    }
}

/// The steps in a topological order: each after all steps that it waits for.
fn dependencies_first(program: &RankProgram) -> Vec<StepRef> {
    let blocks = &program.threadblocks;
    let mut waiting: Vec<Vec<usize>> = Vec::with_capacity(blocks.len());
    let mut followers: Vec<Vec<Vec<StepRef>>> =
        blocks.iter().map(|block| vec![Vec::new(); block.steps.len()]).collect();
    let mut order = Vec::new();
    for (threadblock, block) in (0u32..).zip(blocks) {
        for (step, content) in (0u32..).zip(&block.steps) {
            let at = StepRef { threadblock, step };
            content.after.iter().for_each(|on| followers[on.threadblock as usize][on.step as usize].push(at));
            if step == 0 && content.after.is_empty() {
                order.push(at);
            }
        }
        let waits = block.steps.iter().enumerate().map(|(step, content)| content.after.len() + usize::from(step > 0));
        waiting.push(waits.collect());
    }
    let mut next = 0;
    while let Some(&StepRef { threadblock, step }) = order.get(next) {
        next += 1;
        let follows = (step as usize + 1 < blocks[threadblock as usize].steps.len())
            .then_some(StepRef { threadblock, step: step + 1 });
        for &at in followers[threadblock as usize][step as usize].iter().chain(&follows) {
            let waits = &mut waiting[at.threadblock as usize][at.step as usize];
            *waits -= 1;
            if *waits == 0 {
                order.push(at);
            }
        }
    }
    order
}

fn clock(clocks: &[u32], width: usize, written: usize) -> &[u32] {
    &clocks[written * width..][..width]
}

/// The position of each step in the order.
struct StepPositions(Vec<Vec<usize>>);

impl StepPositions {
    fn of(program: &RankProgram) -> Self {
        Self(program.threadblocks.iter().map(|block| vec![0; block.steps.len()]).collect())
    }

    fn written(&self, at: StepRef) -> usize {
        self.0[at.threadblock as usize][at.step as usize]
    }

    fn set(&mut self, at: StepRef, written: usize) {
        self.0[at.threadblock as usize][at.step as usize] = written;
    }
}
