//! Drops dependencies that follow from others on the same rank.
//!
//! Each step gets a clock: per threadblock, how many of its steps have surely ended when this one has. A
//! dependency is dropped if the clock of the step before, or of another dependency, covers it. One dependency
//! can only cover another that was written earlier, so they are tried from the latest to the earliest.

use crate::program::{RankProgram, StepRef};

/// Clocks take this many words at most for one rank; above, dependencies stay as they are, which is only slower.
const MOST_WORDS: usize = 1 << 24;

/// Removes implied dependencies of `program`, whose steps were written in `order` (dependencies first).
pub(super) fn drop_implied(program: &mut RankProgram, order: &[StepRef]) {
    let width = program.threadblocks.len();
    if width.saturating_mul(order.len()) > MOST_WORDS {
        return;
    }
    let mut steps = Table::of(program);
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

fn clock(clocks: &[u32], width: usize, written: usize) -> &[u32] {
    &clocks[written * width..][..width]
}

/// When each step was written.
struct Table(Vec<Vec<usize>>);

impl Table {
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
