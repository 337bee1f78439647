//! Threadblocks that receive from one peer and send to one, and the fused steps that they allow.
//!
//! The principal function is [`pair`]. With one threadblock per connection every wait is explicit and no buffers are
//! needed. Here the receiving end of one connection and the sending end of another share a threadblock, so the order
//! of their steps becomes part of the program. It is the order of the schedule's times, each step after all that it
//! waits for: departures at their start, arrivals at their end, with at most [`LowerOptions::window`] messages of a
//! connection under way. Every wait of the result follows that one order, so it ends with that much room.
//!
//! A receive and the send of what it stored become one step where they are neighbours and nobody else waits for the
//! receive before the send ends.

use super::emit::Emitted;
use super::{Connections, LowerOptions};
use crate::Schedule;
use crate::program::{ConnectionId, Instruction, Step, StepRef, Threadblock};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use topology::Rank;

/// A step of a rank: rank, threadblock, step.
type Place = (usize, usize, usize);

/// Merges and fuses; the steps of `ranks` stand one threadblock per connection end, each in an order that respects
/// all waits.
pub(super) fn pair(ranks: &mut [Emitted], connections: &mut Connections, schedule: &Schedule, options: &LowerOptions) {
    let mut order = Order::of(ranks, connections, schedule, options.window.max(1));
    let mut components = Components::of(connections);
    let limit = options.max_threadblocks.map(|limit| limit as usize);
    for (rank, emitted) in ranks.iter_mut().enumerate() {
        let pairs = choose(emitted, &mut components, limit);
        merge(emitted, &pairs, &mut order.positions[rank]);
        if options.fuse {
            fuse(emitted, &mut order.positions[rank]);
        }
        let positions = &order.positions[rank];
        let place = |at: &StepRef| positions[at.threadblock as usize][at.step as usize];
        emitted.order = all_steps(emitted).collect();
        emitted.order.sort_unstable_by_key(place);
    }
    components.number(connections);
}

fn all_steps(emitted: &Emitted) -> impl Iterator<Item = StepRef> + use<> {
    let lengths: Vec<usize> = emitted.program.threadblocks.iter().map(|block| block.steps.len()).collect();
    let blocks = (0u32..).zip(lengths);
    blocks.flat_map(|(threadblock, length)| (0..length as u32).map(move |step| StepRef { threadblock, step }))
}

/// One order of all steps of all ranks: for each rank, threadblock and step its position.
struct Order {
    positions: Vec<Vec<Vec<u32>>>,
}

impl Order {
    /// The earliest first, of those whose predecessors are placed.
    fn of(ranks: &[Emitted], connections: &Connections, schedule: &Schedule, window: u32) -> Self {
        let graph = Graph::of(ranks, connections, window);
        let mut waiting = vec![0u32; graph.places.len()];
        graph.edges.iter().for_each(|&(_, after)| waiting[after as usize] += 1);
        let priority = |node: u32| {
            let (rank, block, step) = graph.places[node as usize];
            let step = &ranks[rank].program.threadblocks[block].steps[step];
            let transfer = step.transfer.map(|transfer| &schedule.transfers[transfer as usize]);
            let sends = step.instruction.sends_to().is_some();
            let time = transfer.map_or(f64::INFINITY, |transfer| if sends { transfer.start.0 } else { transfer.end.0 });
            Reverse((Time(time), sends, step.transfer, node))
        };
        let ready = (0..waiting.len() as u32).filter(|&node| waiting[node as usize] == 0);
        let mut ready: BinaryHeap<_> = ready.map(priority).collect();
        let shape = |emitted: &Emitted| emitted.program.threadblocks.iter().map(|b| vec![0; b.steps.len()]).collect();
        let mut positions: Vec<Vec<Vec<u32>>> = ranks.iter().map(shape).collect();
        let mut next = 0;
        while let Some(Reverse((.., node))) = ready.pop() {
            let (rank, block, step) = graph.places[node as usize];
            positions[rank][block][step] = next;
            next += 1;
            for &(_, after) in graph.from(node) {
                waiting[after as usize] -= 1;
                if waiting[after as usize] == 0 {
                    ready.push(priority(after));
                }
            }
        }
        Self { positions }
    }
}

/// A time with a total order.
#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What must come directly before what.
struct Graph {
    places: Vec<Place>,
    /// Sorted by what comes first.
    edges: Vec<(u32, u32)>,
}

impl Graph {
    fn of(ranks: &[Emitted], connections: &Connections, window: u32) -> Self {
        let mut places = Vec::new();
        let mut firsts: Vec<Vec<u32>> = Vec::with_capacity(ranks.len());
        for (rank, emitted) in ranks.iter().enumerate() {
            let mut first = Vec::new();
            for (block, content) in emitted.program.threadblocks.iter().enumerate() {
                first.push(places.len() as u32);
                places.extend((0..content.steps.len()).map(|step| (rank, block, step)));
            }
            firsts.push(first);
        }
        let mut edges = Vec::new();
        let mut ends: Vec<[Vec<u32>; 2]> = vec![Default::default(); connections.list.len()];
        for (node, &(rank, block, step)) in (0u32..).zip(&places) {
            let content = &ranks[rank].program.threadblocks[block].steps[step];
            edges.extend((step > 0).then(|| (node - 1, node)));
            edges.extend(content.after.iter().map(|on| (firsts[rank][on.threadblock as usize] + on.step, node)));
            let instruction = &content.instruction;
            instruction.sends_to().into_iter().for_each(|id| ends[id.index()][0].push(node));
            instruction.receives_from().into_iter().for_each(|id| ends[id.index()][1].push(node));
        }
        for [sends, receives] in ends {
            edges.extend(sends.iter().zip(&receives).map(|(&send, &receive)| (send, receive)));
            edges.extend(receives.iter().zip(sends.iter().skip(window as usize)).map(|(&taken, &next)| (taken, next)));
        }
        edges.sort_unstable();
        Self { places, edges }
    }

    /// The edges that begin at a node.
    fn from(&self, node: u32) -> &[(u32, u32)] {
        let first = self.edges.partition_point(|&(before, _)| before < node);
        let length = self.edges[first..].partition_point(|&(before, _)| before == node);
        &self.edges[first..first + length]
    }
}

/// Connections that must have the same channel, because a threadblock is on one; none of them joins the same ranks.
struct Components {
    parent: Vec<usize>,
    ends: Vec<BTreeSet<(Rank, Rank)>>,
}

impl Components {
    fn of(connections: &Connections) -> Self {
        let ends = connections.list.iter().map(|lane| BTreeSet::from([(lane.from, lane.to)]));
        Self { parent: (0..connections.list.len()).collect(), ends: ends.collect() }
    }

    fn root(&mut self, mut of: usize) -> usize {
        while self.parent[of] != of {
            self.parent[of] = self.parent[self.parent[of]];
            of = self.parent[of];
        }
        of
    }

    /// Whether the two may share a threadblock; they do from now on.
    fn join(&mut self, a: ConnectionId, b: ConnectionId) -> bool {
        let (a, b) = (self.root(a.index()), self.root(b.index()));
        if a == b {
            return true;
        }
        if !self.ends[a].is_disjoint(&self.ends[b]) {
            return false;
        }
        let moved = std::mem::take(&mut self.ends[b]);
        self.ends[a].extend(moved);
        self.parent[b] = a;
        true
    }

    /// Gives every component the smallest channel that none of its ranks' pairs has yet.
    fn number(&mut self, connections: &mut Connections) {
        let mut taken: BTreeSet<(Rank, Rank, u32)> = BTreeSet::new();
        let mut channels: BTreeMap<usize, u32> = BTreeMap::new();
        for index in 0..connections.list.len() {
            let root = self.root(index);
            let ends = &self.ends[root];
            let channel = *channels.entry(root).or_insert_with(|| {
                let is_free = |&channel: &u32| !ends.iter().any(|&(from, to)| taken.contains(&(from, to, channel)));
                let channel = (0..).find(is_free).expect("there are finitely many connections");
                taken.extend(ends.iter().map(|&(from, to)| (from, to, channel)));
                channel
            });
            connections.list[index].channel = channel;
        }
    }
}

/// Which receiving and sending threadblocks of a rank become one: those that hand on most messages; and others, until
/// the rank has no more than `limit`.
fn choose(emitted: &Emitted, components: &mut Components, limit: Option<usize>) -> Vec<(usize, usize)> {
    let blocks = &emitted.program.threadblocks;
    let receives = |block: &Threadblock| block.steps.first().and_then(|step| step.instruction.receives_from());
    let sends = |block: &Threadblock| block.steps.first().and_then(|step| step.instruction.sends_to());
    let mut handed: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (to, block) in blocks.iter().enumerate() {
        for step in &block.steps {
            let Instruction::Send { src, .. } = step.instruction else { continue };
            for on in &step.after {
                let from = on.threadblock as usize;
                let before = &blocks[from].steps[on.step as usize].instruction;
                if before.receives_from().is_some() && before.destination() == Some(src) {
                    *handed.entry((from, to)).or_default() += 1;
                }
            }
        }
    }
    let mut candidates: Vec<_> = handed.into_iter().map(|(pair, count)| (Reverse(count), pair)).collect();
    candidates.sort_unstable();
    let of = |end: &dyn Fn(&Threadblock) -> Option<ConnectionId>| -> Vec<usize> {
        (0..blocks.len()).filter(|&block| end(&blocks[block]).is_some()).collect()
    };
    let (receivers, senders) = (of(&receives), of(&sends));
    let mut left = blocks.len();
    let mut used = BTreeSet::new();
    let mut pairs = Vec::new();
    let wanted = candidates.len();
    let others = receivers.iter().flat_map(|&from| senders.iter().map(move |&to| (from, to)));
    for (index, (from, to)) in candidates.iter().map(|&(_, pair)| pair).chain(others).enumerate() {
        if index >= wanted && limit.is_none_or(|limit| left <= limit) {
            break;
        }
        let (Some(a), Some(b)) = (receives(&blocks[from]), sends(&blocks[to])) else { continue };
        if !used.contains(&from) && !used.contains(&to) && components.join(a, b) {
            used.extend([from, to]);
            pairs.push((from, to));
            left -= 1;
        }
    }
    pairs
}

/// Puts both threadblocks of each pair into the first, by position; the other positions move along.
fn merge(emitted: &mut Emitted, pairs: &[(usize, usize)], positions: &mut Vec<Vec<u32>>) {
    let blocks = std::mem::take(&mut emitted.program.threadblocks);
    let old = std::mem::take(positions);
    let partner: BTreeMap<usize, usize> = pairs.iter().copied().collect();
    let absorbed: BTreeSet<usize> = pairs.iter().map(|&(_, to)| to).collect();
    let mut moved: Vec<Vec<StepRef>> =
        blocks.iter().map(|block| vec![StepRef { threadblock: 0, step: 0 }; block.steps.len()]).collect();
    let mut origin: Vec<Vec<(usize, usize)>> = Vec::new();
    for block in (0..blocks.len()).filter(|block| !absorbed.contains(block)) {
        let sources = std::iter::once(block).chain(partner.get(&block).copied());
        let mut steps: Vec<(usize, usize)> =
            sources.flat_map(|block| (0..blocks[block].steps.len()).map(move |step| (block, step))).collect();
        steps.sort_by_key(|&(block, step)| old[block][step]);
        for (step, &(block, index)) in steps.iter().enumerate() {
            moved[block][index] = StepRef { threadblock: origin.len() as u32, step: step as u32 };
        }
        origin.push(steps);
    }
    for (threadblock, steps) in origin.iter().enumerate() {
        positions.push(steps.iter().map(|&(block, step)| old[block][step]).collect());
        let steps = steps.iter().map(|&(block, step)| {
            let mut step = blocks[block].steps[step].clone();
            step.after.iter_mut().for_each(|on| *on = moved[on.threadblock as usize][on.step as usize]);
            step.after.retain(|on| on.threadblock as usize != threadblock);
            step
        });
        emitted.program.threadblocks.push(Threadblock { steps: steps.collect() });
    }
}

/// Makes one step of each receive and the send right after it, where that delays nobody.
fn fuse(emitted: &mut Emitted, positions: &mut [Vec<u32>]) {
    let blocks = &mut emitted.program.threadblocks;
    // For each step, the first that waits for it in another threadblock.
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
        let old_positions = std::mem::take(&mut positions[index]);
        let mut numbers = Vec::with_capacity(old.len());
        for (at, step) in old.into_iter().enumerate() {
            let fused = block.steps.last().filter(|_| at > 0 && waited_for[index][at - 1] > old_positions[at]);
            match fused.and_then(|last| together(last, &step)) {
                Some(fused) => *block.steps.last_mut().expect("it was just there") = fused,
                None => {
                    block.steps.push(step);
                    positions[index].push(old_positions[at]);
                }
            }
            numbers.push(block.steps.len() as u32 - 1);
        }
        moved.push(numbers);
    }
    for step in blocks.iter_mut().flat_map(|block| &mut block.steps) {
        step.after.iter_mut().for_each(|on| on.step = moved[on.threadblock as usize][on.step as usize]);
    }
}

/// The fused step, if the second sends just what the first receives and waits for nothing else.
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
