//! Assigns channels to connections.

use crate::{Connection, ConnectionId, Program};
use petgraph::unionfind::UnionFind;
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

/// Gives each connection of a program the lowest possible channel. Both connections of a threadblock have the same
/// channel, two connections between the same ranks have different ones, and on one channel no rank has more than
/// `peers` in one direction. Returns `false` and changes nothing where two connections that must have the same channel
/// must also differ.
pub fn assign(program: &mut Program, peers: usize) -> bool {
    let mut channels = Channels { peers, ends: BTreeSet::new(), load: BTreeMap::new() };
    let mut assigned = vec![0; program.connections.len()];
    for group in tied(program) {
        let lanes: Vec<Connection> = group.iter().map(|lane| program.connections[lane.index()]).collect();
        let ends: BTreeSet<(Rank, Rank)> = lanes.iter().map(|lane| (lane.from, lane.to)).collect();
        if ends.len() < lanes.len() {
            return false;
        }
        let channel = channels.lowest(&lanes);
        group.iter().for_each(|lane| assigned[lane.index()] = channel);
    }
    program.connections.iter_mut().zip(assigned).for_each(|(lane, channel)| lane.channel = channel);
    true
}

/// Groups of connections that must have one channel because they share threadblocks, ascending.
fn tied(program: &Program) -> Vec<Vec<ConnectionId>> {
    let mut joined = UnionFind::new(program.connections.len());
    for block in program.ranks.iter().flat_map(|rank| &rank.threadblocks) {
        let mut lanes =
            block.steps.iter().flat_map(|step| [step.instruction.sends_to(), step.instruction.receives_from()]);
        let Some(first) = lanes.by_ref().flatten().next() else { continue };
        for lane in lanes.flatten() {
            joined.union(first.index(), lane.index());
        }
    }
    let mut groups: BTreeMap<usize, Vec<ConnectionId>> = BTreeMap::new();
    for (lane, group) in (0..).zip(joined.into_labeling()) {
        groups.entry(group).or_default().push(ConnectionId(lane));
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_unstable();
    groups
}

/// The current use of each channel.
struct Channels {
    /// The most peers of a rank in one direction.
    peers: usize,
    ends: BTreeSet<(u32, Rank, Rank)>,
    /// The number of peers of a rank on a channel, for sending and for receiving.
    load: BTreeMap<(u32, Rank, bool), usize>,
}

impl Channels {
    fn lowest(&mut self, lanes: &[Connection]) -> u32 {
        let channel = (0..).find(|&channel| self.has_room(channel, lanes)).unwrap_or(0);
        for lane in lanes {
            self.ends.insert((channel, lane.from, lane.to));
            *self.load.entry((channel, lane.from, true)).or_default() += 1;
            *self.load.entry((channel, lane.to, false)).or_default() += 1;
        }
        channel
    }

    fn has_room(&self, channel: u32, lanes: &[Connection]) -> bool {
        let mut more: BTreeMap<(Rank, bool), usize> = BTreeMap::new();
        for lane in lanes {
            *more.entry((lane.from, true)).or_default() += 1;
            *more.entry((lane.to, false)).or_default() += 1;
        }
        let empty = lanes.iter().all(|lane| !self.ends.contains(&(channel, lane.from, lane.to)));
        let fits = |(&(rank, out), more): (&(Rank, bool), &usize)| {
            self.load.get(&(channel, rank, out)).copied().unwrap_or(0) + more <= self.peers
        };
        // A group that is too large even for an empty channel gets one nevertheless; a format with limits refuses it.
        empty && (more.iter().all(fits) || !self.load.keys().any(|key| key.0 == channel))
    }
}
