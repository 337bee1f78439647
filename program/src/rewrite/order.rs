//! A total order of all steps of a program, in which each step comes after all steps that it waits for.
//!
//! The principal function is [`line_up`]. A step waits for the previous step of its threadblock, for its dependencies,
//! for the message that it receives and, if it sends, for room on its connection. (A fused step that waits for room
//! waits as a whole, which only makes the order stricter.) If threadblocks are merged in this order, no step waits for
//! a later one, so merging makes no deadlock where connections have this room.

use crate::{Program, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// For each rank, threadblock and step, its position in the order.
pub(super) type Positions = Vec<Vec<Vec<u32>>>;

/// The positions of all steps, where connections have room for `window` messages (at least one). Of the steps that
/// could come next, the one with the least `key` does. `None` if there is no such order, because the program would
/// deadlock.
pub(super) fn line_up<K: Ord>(program: &Program, window: u32, key: impl Fn(&Step) -> K) -> Option<Positions> {
    let row = StepGraph::of(program, window.max(1) as usize);
    let mut waiting = vec![0u32; row.steps.len()];
    row.edges.iter().for_each(|&(_, after)| waiting[after as usize] += 1);
    let entry = |step: u32| Reverse((key(row.steps[step as usize]), step));
    let ready = (0..waiting.len() as u32).filter(|&step| waiting[step as usize] == 0);
    let mut ready: BinaryHeap<_> = ready.map(entry).collect();
    let mut places = vec![0; row.steps.len()];
    let mut next = 0;
    while let Some(Reverse((_, step))) = ready.pop() {
        places[step as usize] = next;
        next += 1;
        for &(_, after) in row.from(step) {
            waiting[after as usize] -= 1;
            if waiting[after as usize] == 0 {
                ready.push(entry(after));
            }
        }
    }
    if (next as usize) < places.len() {
        return None;
    }
    let mut places = places.into_iter();
    let ranks = program.ranks.iter().map(|rank| {
        let blocks = rank.threadblocks.iter().map(|block| places.by_ref().take(block.steps.len()).collect());
        blocks.collect()
    });
    Some(ranks.collect())
}

/// All steps, rank by rank, and the pairs of steps in which one must come before the other.
struct StepGraph<'a> {
    steps: Vec<&'a Step>,
    /// Sorted by the step that comes first.
    edges: Vec<(u32, u32)>,
}

impl<'a> StepGraph<'a> {
    fn of(program: &'a Program, window: usize) -> Self {
        let mut row = Self { steps: Vec::new(), edges: Vec::new() };
        let mut ends: Vec<[Vec<u32>; 2]> = vec![Default::default(); program.connections.len()];
        for rank in &program.ranks {
            let lengths = rank.threadblocks.iter().map(|block| block.steps.len() as u32);
            let firsts: Vec<u32> = lengths
                .scan(row.steps.len() as u32, |next, length| {
                    *next += length;
                    Some(*next - length)
                })
                .collect();
            for block in &rank.threadblocks {
                for (index, step) in block.steps.iter().enumerate() {
                    let number = row.steps.len() as u32;
                    row.edges.extend((index > 0).then(|| (number - 1, number)));
                    row.edges.extend(step.after.iter().map(|on| (firsts[on.threadblock as usize] + on.step, number)));
                    step.instruction.sends_to().into_iter().for_each(|id| ends[id.index()][0].push(number));
                    step.instruction.receives_from().into_iter().for_each(|id| ends[id.index()][1].push(number));
                    row.steps.push(step);
                }
            }
        }
        for [sends, receives] in ends {
            row.edges.extend(sends.iter().zip(&receives).map(|(&send, &receive)| (send, receive)));
            row.edges.extend(receives.iter().zip(sends.iter().skip(window)).map(|(&taken, &next)| (taken, next)));
        }
        row.edges.sort_unstable();
        row
    }

    /// The edges that begin at a step.
    fn from(&self, step: u32) -> &[(u32, u32)] {
        let first = self.edges.partition_point(|&(before, _)| before < step);
        let length = self.edges[first..].partition_point(|&(before, _)| before == step);
        &self.edges[first..first + length]
    }
}
