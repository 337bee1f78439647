//! Drops dependencies that follow from others on the same rank.
//!
//! Each step gets a clock: per threadblock, how many of its steps have surely finished when this one has. A
//! dependency that the previous step's clock or another dependency's clock covers is dropped.

use crate::program::{RankProgram, StepRef};

/// Clocks take this many words at most for one rank; above, dependencies stay as they are, which is only slower.
const MOST_WORDS: usize = 1 << 24;

/// Removes implied dependencies of `program`, whose steps are visited in `order` (dependencies first).
pub(super) fn drop_implied(program: &mut RankProgram, order: &[StepRef]) {
    let width = program.threadblocks.len();
    if width.saturating_mul(order.len()) > MOST_WORDS {
        return;
    }
    let mut clocks: Vec<Vec<u32>> =
        program.threadblocks.iter().map(|threadblock| vec![0; threadblock.steps.len() * width]).collect();
    let clock = |clocks: &[Vec<u32>], at: StepRef| {
        clocks[at.threadblock as usize][at.step as usize * width..][..width].to_vec()
    };
    for &at in order {
        let before = at.step.checked_sub(1).map(|step| clock(&clocks, StepRef { step, ..at }));
        let before = before.unwrap_or_else(|| vec![0; width]);
        let after = std::mem::take(&mut program.threadblocks[at.threadblock as usize].steps[at.step as usize].after);
        let dependencies: Vec<Vec<u32>> = after.iter().map(|&dependency| clock(&clocks, dependency)).collect();
        let covers = |clock: &[u32], step: StepRef| clock[step.threadblock as usize] > step.step;
        let needed = after.iter().enumerate().filter(|&(index, &step)| {
            let others = dependencies.iter().enumerate().filter(|&(other, _)| other != index);
            !covers(&before, step) && !others.into_iter().any(|(_, clock)| covers(clock, step))
        });
        let needed: Vec<StepRef> = needed.map(|(_, &step)| step).collect();
        let mut now = before;
        for dependency in &dependencies {
            now.iter_mut().zip(dependency).for_each(|(now, &then)| *now = (*now).max(then));
        }
        now[at.threadblock as usize] = at.step + 1;
        clocks[at.threadblock as usize][at.step as usize * width..][..width].copy_from_slice(&now);
        program.threadblocks[at.threadblock as usize].steps[at.step as usize].after = needed;
    }
}
