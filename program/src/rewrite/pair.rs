//! Threadblocks that receive from one peer and send to one peer.
//!
//! The principal function is [`pair`]. With one threadblock for each connection end, every wait is explicit and no
//! buffers are needed. Here the receiving end of one connection and the sending end of another share a threadblock, so
//! the order of their steps becomes part of the program. This order is that of [`line_up`]. Every wait of the result
//! agrees with it, so the result needs no more room than was assumed for the order.

use super::fuse::fuse;
use super::order::line_up;
use super::{cost, regroup};
use crate::{ConnectionId, Instruction, Program, RankProgram, Step};
use petgraph::unionfind::UnionFind;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

/// How threadblocks are paired.
#[derive(Clone, Copy, Debug)]
pub struct Pairing {
    /// How many messages of a connection may be under way.
    pub window: u32,
    /// Whether a receiver is paired with the sender to which it hands most messages, whatever `most` says.
    pub handing_on: bool,
    /// Further threadblocks are paired until a rank has at most this many, or no more can be paired.
    pub most: Option<usize>,
    /// The most steps of a threadblock, where each wait after the first of a step counts as a step.
    pub steps: usize,
    /// The most peers of a rank in one direction on one channel.
    pub peers: usize,
    /// Whether a receive and the send of the data that it stored become one step.
    pub fuse: bool,
}

/// Pairs threadblocks that use at most one connection in each direction. Of the steps that could come next, the one
/// with the least `key` does. A program that would deadlock with this window stays as it is. Channels must be assigned
/// afterwards; this is possible if it was possible before.
pub fn pair<K: Ord>(mut program: Program, how: &Pairing, key: impl Fn(&Step) -> K) -> Program {
    let few = |rank: &RankProgram| how.most.is_none_or(|most| rank.threadblocks.len() <= most);
    if !how.handing_on && !how.fuse && program.ranks.iter().all(few) {
        return program;
    }
    let Some(order) = line_up(&program, how.window, key) else { return program };
    let mut components = Components::of(&program, how.peers);
    for (rank, order) in program.ranks.iter_mut().zip(&order) {
        let dealt = ThreadblockGroups::of(rank, &mut components, how).choose(rank);
        rank.threadblocks = regroup(rank, |t, _| dealt[t], |t, s| order[t][s]);
        if how.fuse {
            let mut positions = vec![Vec::new(); rank.threadblocks.len()];
            order.iter().zip(&dealt).for_each(|(block, &group)| positions[group as usize].extend(block));
            positions.iter_mut().for_each(|block: &mut Vec<u32>| block.sort_unstable());
            fuse(rank, &positions);
        }
    }
    program
}

/// The connections that a threadblock uses.
#[derive(Clone, Copy, Default)]
struct ConnectionUse {
    out: Option<ConnectionId>,
    into: Option<ConnectionId>,
    cost: usize,
}

impl ConnectionUse {
    fn of(steps: &[Step]) -> Self {
        let mut all = Self::default();
        for step in steps {
            all.out = all.out.or(step.instruction.sends_to());
            all.into = all.into.or(step.instruction.receives_from());
            all.cost += cost(step);
        }
        all
    }

    /// The connections of both together, if they have no end in common.
    fn with(self, other: Self) -> Option<Self> {
        let clash = (self.out.is_some() && other.out.is_some()) || (self.into.is_some() && other.into.is_some());
        let both = Self { out: self.out.or(other.out), into: self.into.or(other.into), cost: self.cost + other.cost };
        (!clash).then_some(both)
    }

    fn lane(self) -> Option<ConnectionId> {
        self.out.or(self.into)
    }
}

/// The threadblocks of one rank in groups.
struct ThreadblockGroups<'a> {
    how: &'a Pairing,
    components: &'a mut Components,
    /// For each threadblock the threadblock that represents its group, and the connections of the group.
    host: Vec<usize>,
    uses: Vec<ConnectionUse>,
    left: usize,
}

impl<'a> ThreadblockGroups<'a> {
    fn of(rank: &RankProgram, components: &'a mut Components, how: &'a Pairing) -> Self {
        let uses: Vec<ConnectionUse> = rank.threadblocks.iter().map(|block| ConnectionUse::of(&block.steps)).collect();
        Self { how, components, host: (0..uses.len()).collect(), left: uses.len(), uses }
    }

    /// For each threadblock the number of its group. Pairs that hand on most messages are joined first, then any.
    fn choose(mut self, rank: &RankProgram) -> Vec<u32> {
        for (from, to) in handing_on(rank) {
            if self.how.handing_on || self.too_many() {
                self.join(from, to);
            }
        }
        for block in 1..self.host.len() {
            // A group is numbered when its first threadblock is reached.
            if self.host[block] == block && self.too_many() {
                let _ = (0..block).find(|&host| self.host[host] == host && self.join(host, block));
            }
        }
        let mut numbers = BTreeMap::new();
        let number = |&host: &usize| {
            let next = numbers.len() as u32;
            *numbers.entry(host).or_insert(next)
        };
        self.host.iter().map(number).collect()
    }

    fn too_many(&self) -> bool {
        self.how.most.is_some_and(|most| self.left > most)
    }

    /// Joins the groups of two threadblocks, if they fit.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.host[a].min(self.host[b]), self.host[a].max(self.host[b]));
        let Some(both) = self.uses[a].with(self.uses[b]).filter(|both| a != b && both.cost <= self.how.steps) else {
            return false;
        };
        let lanes = self.uses[a].lane().zip(self.uses[b].lane());
        if lanes.is_some_and(|(x, y)| !self.components.join(x, y)) {
            return false;
        }
        self.host.iter_mut().filter(|host| **host == b).for_each(|host| *host = a);
        self.uses[a] = both;
        self.left -= 1;
        true
    }
}

/// Pairs of a receiving and a sending threadblock with messages from the one to the other, those with most messages
/// first.
fn handing_on(rank: &RankProgram) -> Vec<(usize, usize)> {
    let blocks = &rank.threadblocks;
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
    let mut pairs: Vec<_> = handed.into_iter().map(|(pair, count)| (Reverse(count), pair)).collect();
    pairs.sort_unstable();
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// Groups of connections that must have the same channel, because they share threadblocks. No two connections of a
/// group join the same ranks, and no rank has too many peers in one direction.
struct Components {
    joined: UnionFind<usize>,
    /// For each group, at the place of its representative, the ranks that its connections join.
    ends: Vec<BTreeSet<(Rank, Rank)>>,
    /// For each group, the number of peers to which a rank sends (`true`) or from which it receives.
    load: Vec<BTreeMap<(Rank, bool), usize>>,
    peers: usize,
}

impl Components {
    fn of(program: &Program, peers: usize) -> Self {
        let lanes = &program.connections;
        let mut components = Self {
            joined: UnionFind::new(lanes.len()),
            ends: lanes.iter().map(|lane| BTreeSet::from([(lane.from, lane.to)])).collect(),
            load: lanes.iter().map(|lane| BTreeMap::from([((lane.from, true), 1), ((lane.to, false), 1)])).collect(),
            peers,
        };
        for block in program.ranks.iter().flat_map(|rank| &rank.threadblocks) {
            let ConnectionUse { out, into, .. } = ConnectionUse::of(&block.steps);
            if let Some((out, into)) = out.zip(into) {
                components.join(out, into);
            }
        }
        components
    }

    /// Whether the two connections may share a threadblock; if so, they are joined.
    fn join(&mut self, a: ConnectionId, b: ConnectionId) -> bool {
        let (a, b) = (self.joined.find_mut(a.index()), self.joined.find_mut(b.index()));
        if a == b {
            return true;
        }
        let (large, small) = if self.ends[a].len() < self.ends[b].len() { (b, a) } else { (a, b) };
        let clash = self.ends[small].iter().any(|ends| self.ends[large].contains(ends));
        let crowded = self.load[small]
            .iter()
            .any(|(end, more)| self.load[large].get(end).is_some_and(|load| load + more > self.peers));
        if clash || crowded {
            return false;
        }
        let ends = std::mem::take(&mut self.ends[small]);
        self.ends[large].extend(ends);
        for (end, more) in std::mem::take(&mut self.load[small]) {
            *self.load[large].entry(end).or_default() += more;
        }
        self.joined.union(a, b);
        if self.joined.find(a) == small {
            self.ends.swap(large, small);
            self.load.swap(large, small);
        }
        true
    }
}
