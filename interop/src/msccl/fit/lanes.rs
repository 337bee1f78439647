//! Gives each threadblock at most one connection to send over, one to receive from, and the allowed number of steps.

use super::super::limits::MAX_STEPS;
use program::rewrite::{cost, regroup};
use program::{Connection, ConnectionId, Program, RankProgram, Step, Threadblock};
use std::collections::BTreeMap;

/// The purpose of a threadblock with one kind of steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum BlockPurpose {
    Send(ConnectionId),
    Receive(ConnectionId),
}

/// A program whose threadblocks use at most one connection in each direction. If a threadblock uses more, or if
/// `separate` is set, fused steps become two steps and every connection gets its own threadblocks.
pub(in super::super) fn narrow(program: Program, separate: bool) -> Program {
    let wide = |block: &Threadblock| {
        let (mut out, mut into) = (None, None);
        block.steps.iter().any(|step| {
            let (to, from) = (step.instruction.sends_to(), step.instruction.receives_from());
            let clash = |have: Option<ConnectionId>, need: Option<ConnectionId>| {
                have.is_some_and(|h| need.is_some_and(|n| n != h))
            };
            let wide = clash(out, to) || clash(into, from);
            (out, into) = (out.or(to), into.or(from));
            wide
        })
    };
    let any = program.ranks.iter().flat_map(|rank| &rank.threadblocks).any(wide);
    if !any && !separate {
        return program;
    }
    let mut program = program.unfused();
    for rank in &mut program.ranks {
        let dealt = by_lane(rank);
        rank.threadblocks = regroup(rank, |t, s| dealt[t][s], |t, s| (t, s));
    }
    program
}

/// For each step the number of the threadblock of its connection; a local step stays with the step before it.
fn by_lane(rank: &RankProgram) -> Vec<Vec<u32>> {
    let mut numbers: BTreeMap<(usize, Option<BlockPurpose>), u32> = BTreeMap::new();
    let mut dealt = Vec::with_capacity(rank.threadblocks.len());
    for (t, block) in rank.threadblocks.iter().enumerate() {
        let mut lane = None;
        let of_block = block.steps.iter().map(|step| {
            let used = step.instruction.sends_to().map(BlockPurpose::Send);
            lane = used.or(step.instruction.receives_from().map(BlockPurpose::Receive)).or(lane);
            let next = numbers.len() as u32;
            *numbers.entry((t, lane)).or_insert(next)
        });
        dealt.push(of_block.collect());
    }
    dealt
}

/// A program whose threadblocks have at most the allowed number of steps, if each uses one connection per direction. A
/// connection with too many messages becomes several connections, one after the other, and the work of a threadblock
/// continues in the next one.
pub(in super::super) fn cut(program: Program) -> Program {
    let long = |block: &Threadblock| block.steps.iter().map(cost).sum::<usize>() > MAX_STEPS;
    if !program.ranks.iter().flat_map(|rank| &rank.threadblocks).any(long) {
        return program;
    }
    let mut program = narrow(program, true);
    let segments = Segments::of(&program);
    let mut connections: Vec<Connection> = Vec::new();
    let mut channels: BTreeMap<_, u32> = BTreeMap::new();
    let mut first = Vec::with_capacity(program.connections.len());
    for (lane, starts) in program.connections.iter().zip(&segments.starts) {
        first.push(connections.len() as u32);
        for _ in 0..starts.len().max(1) {
            let next = channels.entry((lane.from, lane.to)).or_default();
            connections.push(Connection { channel: *next, ..*lane });
            *next += 1;
        }
    }
    for rank in &mut program.ranks {
        let dealt = segments.deal(rank, &first);
        rank.threadblocks = regroup(rank, |t, s| dealt[t][s], |t, s| (t, s));
    }
    program.connections = connections;
    program
}

/// For each connection the messages at which a new segment starts; the first is 0.
struct Segments {
    starts: Vec<Vec<usize>>,
}

impl Segments {
    /// As few segments as both ends allow. Each end keeps room for the wait that continues the previous segment.
    fn of(program: &Program) -> Self {
        let mut ends: Vec<[Vec<usize>; 2]> = vec![[Vec::new(), Vec::new()]; program.connections.len()];
        for block in program.ranks.iter().flat_map(|rank| &rank.threadblocks) {
            let lane = |step: &Step| {
                let sends = step.instruction.sends_to().map(|lane| (lane, 0));
                sends.or(step.instruction.receives_from().map(|lane| (lane, 1)))
            };
            let Some((lane, end)) = block.steps.iter().find_map(lane) else { continue };
            // Local steps count for the message before them; local steps at the start count for the first message.
            let costs = &mut ends[lane.index()][end];
            let mut lead = 0;
            for step in &block.steps {
                match (lane_of(step).is_some(), costs.last_mut()) {
                    (true, _) => costs.push(cost(step) + std::mem::take(&mut lead)),
                    (false, Some(last)) => *last += cost(step),
                    (false, None) => lead += cost(step),
                }
            }
        }
        Self { starts: ends.iter().map(|[sender, receiver]| starts(sender, receiver)).collect() }
    }

    /// Gives every step its threadblock, and the connection of its segment.
    fn deal(&self, rank: &mut RankProgram, first: &[u32]) -> Vec<Vec<u32>> {
        let mut next = 0;
        let mut dealt = Vec::with_capacity(rank.threadblocks.len());
        for block in &mut rank.threadblocks {
            let (mut message, mut segment, mut length) = (0, 0u32, 0);
            let mut of_block = Vec::with_capacity(block.steps.len());
            for step in &mut block.steps {
                match lane_of(step) {
                    Some(lane) => {
                        let starts = &self.starts[lane.index()];
                        let at = starts.partition_point(|&start| start <= message).saturating_sub(1) as u32;
                        if at > segment {
                            (segment, next, length) = (at, next + 1, 0);
                        }
                        message += 1;
                        let id = ConnectionId(first[lane.index()] + at);
                        step.instruction = step.instruction.mapped(|slice| slice, |_| id, |_| id);
                    }
                    // A threadblock without connections can continue in another one at any step.
                    None if message == 0 && length + cost(step) >= MAX_STEPS => (next, length) = (next + 1, 0),
                    None => {}
                }
                length += cost(step);
                of_block.push(next);
            }
            next += 1;
            dealt.push(of_block);
        }
        dealt
    }
}

fn lane_of(step: &Step) -> Option<ConnectionId> {
    step.instruction.sends_to().or(step.instruction.receives_from())
}

/// Where segments start, for the given costs of each message at its two ends.
fn starts(sender: &[usize], receiver: &[usize]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut spent = [MAX_STEPS, MAX_STEPS];
    for message in 0..sender.len().max(receiver.len()) {
        let costs = [sender, receiver].map(|costs| costs.get(message).copied().unwrap_or(0));
        if spent[0] + costs[0] >= MAX_STEPS || spent[1] + costs[1] >= MAX_STEPS {
            starts.push(message);
            spent = [0, 0];
        }
        spent = [spent[0] + costs[0], spent[1] + costs[1]];
    }
    starts
}
