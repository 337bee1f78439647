//! Replacing steps by several, and moving them between threadblocks; waits follow their steps.

use crate::{RankProgram, Slice, Step, StepRef, Threadblock};

/// A step as formats count it that have room for one wait in each: one for every wait, at least one.
pub fn cost(step: &Step) -> usize {
    step.after.len().max(1)
}

/// Replaces every step by those that `pieces` makes of it, at least one; who waited for it waits for the last.
pub fn expand(rank: &RankProgram, pieces: impl Fn(&Step) -> Vec<Step>) -> Vec<Threadblock> {
    let made: Vec<Vec<Vec<Step>>> =
        rank.threadblocks.iter().map(|block| block.steps.iter().map(&pieces).collect()).collect();
    let ends: Vec<Vec<u32>> = made.iter().map(|block| ends(block)).collect();
    let threadblock = |block: Vec<Vec<Step>>| {
        let mut steps: Vec<Step> = block.into_iter().flatten().collect();
        for after in steps.iter_mut().flat_map(|step| &mut step.after) {
            after.step = ends[after.threadblock as usize][after.step as usize];
        }
        Threadblock { steps }
    };
    made.into_iter().map(threadblock).collect()
}

/// For each step the number of its last piece.
fn ends(block: &[Vec<Step>]) -> Vec<u32> {
    let ends = block.iter().scan(0, |end, pieces| {
        *end += pieces.len() as u32;
        Some(end.saturating_sub(1))
    });
    ends.collect()
}

/// Moves the steps of each threadblock to new ones: `deal` gives each step the number of its new threadblock. In
/// one, steps keep the order in which `order` (old threadblock, old step) sorts them; consecutive steps that part
/// wait for one another.
pub fn regroup<K: Ord>(
    rank: &RankProgram,
    deal: impl Fn(usize, usize) -> u32,
    order: impl Fn(usize, usize) -> K,
) -> Vec<Threadblock> {
    let old = rank.threadblocks.iter().enumerate();
    let mut steps: Vec<(usize, usize)> =
        old.flat_map(|(t, block)| (0..block.steps.len()).map(move |s| (t, s))).collect();
    steps.sort_by_key(|&(t, s)| order(t, s));
    let mut places: Vec<Vec<StepRef>> = Vec::new();
    places.extend(rank.threadblocks.iter().map(|block| vec![StepRef { threadblock: 0, step: 0 }; block.steps.len()]));
    let mut lengths: Vec<u32> = Vec::new();
    for &(t, s) in &steps {
        let threadblock = deal(t, s);
        lengths.resize(lengths.len().max(threadblock as usize + 1), 0);
        let step = &mut lengths[threadblock as usize];
        places[t][s] = StepRef { threadblock, step: *step };
        *step += 1;
    }
    let mut threadblocks = vec![Threadblock::default(); lengths.len()];
    for &(t, s) in &steps {
        let (step, at) = (&rank.threadblocks[t].steps[s], places[t][s]);
        let waits = step.after.iter().map(|on| places[on.threadblock as usize][on.step as usize]);
        let before = s.checked_sub(1).map(|before| places[t][before]);
        let others = waits.chain(before).filter(|on| on.threadblock != at.threadblock);
        threadblocks[at.threadblock as usize].steps.push(Step { after: latest(others), ..step.clone() });
    }
    threadblocks
}

/// Of the steps of one threadblock the last implies the others.
fn latest(steps: impl Iterator<Item = StepRef>) -> Vec<StepRef> {
    let mut steps: Vec<StepRef> = steps.collect();
    steps.sort_unstable_by_key(|step| (step.threadblock, std::cmp::Reverse(step.step)));
    steps.dedup_by_key(|step| step.threadblock);
    steps
}

/// The step on other slices; `f` maps each of them.
pub fn resliced(step: &Step, f: impl Fn(Slice) -> Slice) -> Step {
    let instruction = step.instruction.mapped(f, |to| to, |from| from);
    Step { instruction, ..step.clone() }
}

/// A row of pieces of one step, of which only the first waits.
pub fn row(pieces: impl Iterator<Item = Step>) -> Vec<Step> {
    let mut pieces: Vec<Step> = pieces.collect();
    pieces.iter_mut().skip(1).for_each(|piece| piece.after.clear());
    pieces
}
