//! Splits steps into several, and moves steps between threadblocks; dependencies are adapted.

use crate::{RankProgram, Slice, Step, StepRef, Threadblock};

/// The number of steps that a step takes in formats where a step has room for one wait: one for every wait, at least
/// one.
pub fn cost(step: &Step) -> usize {
    step.after.len().max(1)
}

/// Replaces every step by its `pieces`, at least one. Steps that waited for it wait for its last piece.
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

/// Moves steps to new threadblocks: `deal` gives each step the number of its new threadblock. In a new threadblock,
/// steps are sorted by `order` (old threadblock, old step). Consecutive steps of an old threadblock that are separated
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

/// Of several steps of one threadblock, keeps the last, which implies the others.
fn latest(steps: impl Iterator<Item = StepRef>) -> Vec<StepRef> {
    let mut steps: Vec<StepRef> = steps.collect();
    steps.sort_unstable_by_key(|step| (step.threadblock, std::cmp::Reverse(step.step)));
    steps.dedup_by_key(|step| step.threadblock);
    steps
}

/// The step with `f` applied to each of its slices.
pub fn resliced(step: &Step, f: impl Fn(Slice) -> Slice) -> Step {
    let instruction = step.instruction.mapped(f, |to| to, |from| from);
    Step { instruction, ..step.clone() }
}

/// Pieces of one step, of which only the first waits.
pub fn row(pieces: impl Iterator<Item = Step>) -> Vec<Step> {
    let mut pieces: Vec<Step> = pieces.collect();
    pieces.iter_mut().skip(1).for_each(|piece| piece.after.clear());
    pieces
}
