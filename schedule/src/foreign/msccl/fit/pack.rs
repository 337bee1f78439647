//! Fewer threadblocks: a sender and a receiver of a rank become one.
//!
//! All steps of the program are put into one order in which everything that a step waits for comes before it: the
//! threadblock's order, the dependencies, the message that a receive takes, and the room that a send needs. Two
//! threadblocks whose steps are merged in that order wait for nothing that comes later, so no deadlock is made.

use super::super::limits::MAX_STEPS;
use super::lanes::cost;
use super::rewrite::regroup;
use crate::program::{ConnectionId, Program, RankProgram, Threadblock};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Merges threadblocks of ranks that have more than `most`, as far as it goes. `window` is the room of the
/// program's connections, in messages.
pub(in super::super) fn pack(mut program: Program, most: usize, window: u32) -> Program {
    if program.ranks.iter().all(|rank| rank.threadblocks.len() <= most) {
        return program;
    }
    let Some(order) = order(&program, window.max(1) as usize) else { return program };
    let channels: Vec<u32> = program.connections.iter().map(|lane| lane.channel).collect();
    for (rank, order) in program.ranks.iter_mut().zip(&order) {
        let dealt = pairs(rank, most, &channels);
        rank.threadblocks = regroup(rank, |t, _| dealt[t], |t, s| order[t][s]);
    }
    program
}

/// What a threadblock uses.
#[derive(Clone, Copy, Default)]
struct Use {
    out: Option<ConnectionId>,
    into: Option<ConnectionId>,
    cost: usize,
}

impl Use {
    fn of(rank: &RankProgram, threadblock: usize) -> Self {
        let mut all = Self::default();
        for step in &rank.threadblocks[threadblock].steps {
            all.out = all.out.or(step.instruction.sends_to());
            all.into = all.into.or(step.instruction.receives_from());
            all.cost += cost(step);
        }
        all
    }

    /// Both in one, if that is possible.
    fn with(self, other: Self, channels: &[u32]) -> Option<Self> {
        let clash = (self.out.is_some() && other.out.is_some()) || (self.into.is_some() && other.into.is_some());
        let channel = |used: &Self| used.out.or(used.into).map(|lane| channels[lane.index()]);
        let apart = channel(&self).zip(channel(&other)).is_some_and(|(a, b)| a != b);
        let both = Self { out: self.out.or(other.out), into: self.into.or(other.into), cost: self.cost + other.cost };
        (!clash && !apart && both.cost <= MAX_STEPS).then_some(both)
    }
}

/// For each threadblock the number of the one it becomes part of: each joins the first that takes it, until few
/// enough are left.
fn pairs(rank: &RankProgram, most: usize, channels: &[u32]) -> Vec<u32> {
    let mut left = rank.threadblocks.len();
    let mut made: Vec<Use> = Vec::new();
    let deal = |threadblock: usize| {
        let used = Use::of(rank, threadblock);
        let host = made.iter().enumerate().find_map(|(host, with)| Some((host, with.with(used, channels)?)));
        match host.filter(|_| left > most) {
            Some((host, both)) => {
                left -= 1;
                made[host] = both;
                host as u32
            }
            None => {
                made.push(used);
                made.len() as u32 - 1
            }
        }
    };
    (0..rank.threadblocks.len()).map(deal).collect()
}

/// For each rank, threadblock and step its place in one order of all steps; earlier transfers first. `None` if
/// there is none, because the program would deadlock.
fn order(program: &Program, window: usize) -> Option<Vec<Vec<Vec<u32>>>> {
    let mut row = Row::of(program);
    row.wait_for_messages(program, window);
    let mut open: BinaryHeap<_> =
        (0..row.keys.len()).filter(|&step| row.waits[step] == 0).map(|step| Reverse((row.keys[step], step))).collect();
    let mut places = vec![None; row.keys.len()];
    let mut place = 0u32;
    while let Some(Reverse((_, step))) = open.pop() {
        places[step] = Some(place);
        place += 1;
        for &next in &row.releases[step] {
            row.waits[next] -= 1;
            if row.waits[next] == 0 {
                open.push(Reverse((row.keys[next], next)));
            }
        }
    }
    let places: Vec<u32> = places.into_iter().collect::<Option<_>>()?;
    let mut places = places.into_iter();
    let block = |steps: usize, places: &mut std::vec::IntoIter<u32>| places.by_ref().take(steps).collect();
    let ranks = program.ranks.iter();
    Some(ranks.map(|rank| rank.threadblocks.iter().map(|b| block(b.steps.len(), &mut places)).collect()).collect())
}

/// All steps in one row, rank by rank.
struct Row {
    /// What decides among steps that could come next: the transfer.
    keys: Vec<u32>,
    waits: Vec<u32>,
    releases: Vec<Vec<usize>>,
}

impl Row {
    fn of(program: &Program) -> Self {
        let mut row = Self { keys: Vec::new(), waits: Vec::new(), releases: Vec::new() };
        for rank in &program.ranks {
            let base = row.keys.len();
            let first: Vec<usize> = rank.threadblocks.iter().map(|block| row.extend(block)).collect();
            row.waits.resize(row.keys.len(), 0);
            row.releases.resize(row.keys.len(), Vec::new());
            let steps = rank.threadblocks.iter().flat_map(|block| block.steps.iter().enumerate());
            for (step, (index, content)) in (base..).zip(steps) {
                if index > 0 {
                    row.wait(step, step - 1);
                }
                for on in &content.after {
                    row.wait(step, first[on.threadblock as usize] + on.step as usize);
                }
            }
        }
        row
    }

    fn extend(&mut self, block: &Threadblock) -> usize {
        let first = self.keys.len();
        self.keys.extend(block.steps.iter().map(|step| step.transfer.unwrap_or(0)));
        first
    }

    fn wait(&mut self, step: usize, on: usize) {
        self.releases[on].push(step);
        self.waits[step] += 1;
    }

    /// A receive waits for its send, a send for the receive that makes room. (A fused step that waits for room
    /// waits as a whole; the order is only stricter for it.)
    fn wait_for_messages(&mut self, program: &Program, window: usize) {
        let mut ends: Vec<[Vec<usize>; 2]> = vec![[Vec::new(), Vec::new()]; program.connections.len()];
        let steps = program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps);
        for (id, step) in steps.enumerate() {
            step.instruction.sends_to().into_iter().for_each(|lane| ends[lane.index()][0].push(id));
            step.instruction.receives_from().into_iter().for_each(|lane| ends[lane.index()][1].push(id));
        }
        for [sends, receives] in ends {
            sends.iter().zip(&receives).for_each(|(&send, &receive)| self.wait(receive, send));
            sends.iter().skip(window).zip(&receives).for_each(|(&send, &receive)| self.wait(send, receive));
        }
    }
}
