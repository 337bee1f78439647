//! Fuses a receive and the send directly after it into one step, where no other step has to wait longer.

use crate::{Instruction, RankProgram, Step};

/// Fuses the steps of a rank; `positions` are the places of its steps in one order of all steps, and stay valid. A
/// receive and the send of the data that it stored become one step if they are neighbours and no other threadblock
/// waits for the receive before the send ends.
pub(super) fn fuse(rank: &mut RankProgram, positions: &[Vec<u32>]) {
    let blocks = &mut rank.threadblocks;
    // For each step, the first step of another threadblock that waits for it.
    let mut waited_for: Vec<Vec<u32>> = blocks.iter().map(|block| vec![u32::MAX; block.steps.len()]).collect();
    for (block, steps) in blocks.iter().enumerate() {
        for (index, step) in steps.steps.iter().enumerate() {
            for on in &step.after {
                let first = &mut waited_for[on.threadblock as usize][on.step as usize];
                *first = (*first).min(positions[block][index]);
            }
        }
    }
    let mut moved: Vec<Vec<u32>> = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.iter_mut().enumerate() {
        let old = std::mem::take(&mut block.steps);
        let mut numbers = Vec::with_capacity(old.len());
        for (at, step) in old.into_iter().enumerate() {
            let first = block.steps.last().filter(|_| at > 0 && waited_for[index][at - 1] > positions[index][at]);
            match first.and_then(|first| together(first, &step)) {
                Some(fused) => *block.steps.last_mut().expect("it was just there") = fused,
                None => block.steps.push(step),
            }
            numbers.push(block.steps.len() as u32 - 1);
        }
        moved.push(numbers);
    }
    for step in blocks.iter_mut().flat_map(|block| &mut block.steps) {
        step.after.iter_mut().for_each(|on| on.step = moved[on.threadblock as usize][on.step as usize]);
    }
}

/// The fused step, if `second` sends exactly the data that `first` receives and waits for nothing else.
fn together(first: &Step, second: &Step) -> Option<Step> {
    let Instruction::Send { to, src } = second.instruction else { return None };
    let instruction = match first.instruction {
        Instruction::Receive { from, dst } if dst == src => Instruction::ReceiveSend { from, to, dst },
        Instruction::ReceiveReduce { from, src: operand, dst } if dst == src => {
            Instruction::ReceiveReduceSend { from, to, src: operand, dst }
        }
        _ => return None,
    };
    let alone = second.after.is_empty() && first.transform == second.transform;
    alone.then(|| Step { instruction, forwards: second.transfer, ..first.clone() })
}
