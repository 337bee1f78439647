//! A schedule divided into the units that the third stage may join, in an order that can be replayed.
//!
//! The principal type is [`Units`]. A unit is one chunk on one link if its message is within the window and α can be
//! saved; otherwise it is a whole message. Some facts about a unit need no solver: the units that bring its chunks, and
//! its earliest and latest start. They keep every big M of the model small.

use crate::problem::Problem;
use crate::problem::distance::Key;
use schedule::{ChunkId, ChunkList, Message, Schedule, Transfer, TransferKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use topology::{Bytes, LinkId, Micros, Rank, ResourceId};

/// A part of a message that travels undivided.
pub(super) struct Unit {
    pub(super) chunks: ChunkList,
    pub(super) link: LinkId,
    pub(super) bytes: Bytes,
    pub(super) transfer: usize,
    /// The units that bring its chunks to its sender.
    pub(super) brought_by: Vec<usize>,
    pub(super) previous: Option<usize>,
    pub(super) next: Option<usize>,
    /// The earliest start: along the fastest way to its sender, on empty links.
    pub(super) head: Micros,
    /// The latest start that does not make the schedule longer.
    pub(super) latest: Micros,
    is_open: bool,
}

/// All units of a schedule, in the order of their starts.
pub(super) struct Units {
    pub(super) list: Vec<Unit>,
}

impl Units {
    /// The most units of a message that is open; longer messages places whole.
    pub(super) const MOST_TOGETHER: usize = 8;
    /// The most units of a resource between a unit and the next on its link, if the unit may join the next.
    const MOST_OVERTAKEN: usize = 8;

    /// Divides `schedule` into units; only messages that start within `window` are open.
    pub(super) fn new(problem: &Problem, schedule: &Schedule, window: (Micros, Micros)) -> Self {
        let tails = tails(problem, schedule);
        let mut list: Vec<Unit> = Vec::new();
        let mut last_on_link: BTreeMap<LinkId, usize> = BTreeMap::new();
        for (index, transfer) in schedule.transfers.iter().enumerate() {
            let costly = problem.topology.link(transfer.link).alpha > Micros::ZERO;
            let is_open = costly && window.0 <= transfer.start && transfer.start <= window.1;
            for chunks in parts(transfer, is_open && transfer.chunks.len() <= Self::MOST_TOGETHER, &tails) {
                let previous = last_on_link.insert(transfer.link, list.len());
                if let Some(previous) = previous {
                    list[previous].next = Some(list.len());
                }
                list.push(Unit {
                    bytes: problem.demand.message_bytes(&chunks),
                    chunks,
                    link: transfer.link,
                    transfer: index,
                    brought_by: Vec::new(),
                    previous,
                    next: None,
                    head: Micros::ZERO,
                    latest: Micros::ZERO,
                    is_open,
                });
            }
        }
        let mut units = Self { list };
        units.link_causes(problem);
        units.find_room(problem, schedule.makespan());
        units.close_what_overtakes_many(problem);
        units
    }

    /// Whether a unit may join the next one on its link.
    pub(super) fn is_open(&self, unit: usize) -> bool {
        let next = self.list[unit].next;
        self.list[unit].is_open && next.is_some_and(|next| self.list[next].is_open || self.is_together(unit, next))
    }

    fn is_together(&self, one: usize, other: usize) -> bool {
        self.list[one].transfer == self.list[other].transfer
    }

    /// The units that use a resource, in order.
    pub(super) fn at_resource(&self, problem: &Problem, id: ResourceId) -> Vec<usize> {
        let uses = |unit: &Unit| problem.topology.link(unit.link).resources.contains(&id);
        (0..self.list.len()).filter(|&unit| uses(&self.list[unit])).collect()
    }

    fn link_causes(&mut self, problem: &Problem) {
        let mut first: BTreeMap<(ChunkId, Rank), usize> = BTreeMap::new();
        for index in 0..self.list.len() {
            let link = problem.topology.link(self.list[index].link);
            let chunks = self.list[index].chunks.clone();
            let causes: BTreeSet<usize> = chunks
                .iter()
                .filter(|&&chunk| !problem.demand.chunk(chunk).holders.has(link.from))
                .filter_map(|&chunk| first.get(&(chunk, link.from)).copied())
                .collect();
            self.list[index].brought_by = causes.into_iter().collect();
            chunks.iter().for_each(|&chunk| {
                first.entry((chunk, link.to)).or_insert(index);
            });
        }
    }

    /// Computes heads and latest starts from dependencies alone.
    fn find_room(&mut self, problem: &Problem, makespan: Micros) {
        let time = |unit: &Unit| problem.topology.link(unit.link).transfer_time(unit.bytes);
        for index in 0..self.list.len() {
            let arrivals =
                self.list[index].brought_by.iter().map(|&from| self.list[from].head + time(&self.list[from]));
            self.list[index].head = arrivals.fold(Micros::ZERO, Micros::max);
        }
        let mut due = vec![makespan * (1.0 + 1e-9); self.list.len()];
        for index in (0..self.list.len()).rev() {
            let latest = due[index] - time(&self.list[index]);
            self.list[index].latest = latest;
            self.list[index].brought_by.iter().for_each(|&from| due[from] = due[from].min(latest));
        }
    }

    /// Closes units that would let too many others go first if they joined the next unit on their link.
    fn close_what_overtakes_many(&mut self, problem: &Problem) {
        for index in 0..problem.topology.resources().len() {
            let users = self.at_resource(problem, ResourceId::from_index(index));
            let place: BTreeMap<usize, usize> = users.iter().enumerate().map(|(place, &unit)| (unit, place)).collect();
            for &unit in &users {
                let Some(next) = self.list[unit].next else { continue };
                let between = place.get(&next).map_or(0, |next| next - place[&unit]);
                if between > Self::MOST_OVERTAKEN && !self.is_together(unit, next) {
                    self.list[unit].is_open = false;
                }
            }
        }
    }

    /// The messages of `groups` (start, units) in an order that can be replayed: by start, dependencies first. `None`
    /// if groups wait for each other.
    pub(super) fn in_order(&self, groups: &[(Micros, Vec<usize>)]) -> Option<Vec<Message>> {
        let mut group_of = vec![0; self.list.len()];
        for (index, (_, members)) in groups.iter().enumerate() {
            members.iter().for_each(|&unit| group_of[unit] = index);
        }
        let causes = |members: &[usize]| -> BTreeSet<usize> {
            members.iter().flat_map(|&unit| &self.list[unit].brought_by).map(|&from| group_of[from]).collect()
        };
        let causes: Vec<BTreeSet<usize>> = groups.iter().map(|(_, members)| causes(members)).collect();
        let mut effects: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
        let mut missing: Vec<usize> = causes.iter().map(BTreeSet::len).collect();
        for (index, causes) in causes.iter().enumerate() {
            causes.iter().for_each(|&cause| effects[cause].push(index));
        }
        let key = |index: usize| Reverse((Key::new(groups[index].0.0), groups[index].1.last().copied(), index));
        let mut ready: BinaryHeap<_> = (0..groups.len()).filter(|&index| missing[index] == 0).map(key).collect();
        let mut messages = Vec::with_capacity(groups.len());
        while let Some(Reverse((.., index))) = ready.pop() {
            let members = &groups[index].1;
            let chunks = members.iter().flat_map(|&unit| self.list[unit].chunks.iter().copied()).collect();
            messages.push(Message { chunks, link: self.list[members[0]].link, kind: TransferKind::Copy });
            for &effect in &effects[index] {
                missing[effect] -= 1;
                if missing[effect] == 0 {
                    ready.push(key(effect));
                }
            }
        }
        (messages.len() == groups.len()).then_some(messages)
    }
}

/// The units of one transfer: if it is divided, its chunks one by one, those with the longest way to go first.
fn parts(transfer: &Transfer, divided: bool, tails: &BTreeMap<(ChunkId, Rank), Micros>) -> Vec<ChunkList> {
    if !divided {
        return vec![transfer.chunks.clone()];
    }
    let tail = |chunk: ChunkId| tails.get(&(chunk, transfer.to)).copied().unwrap_or_default();
    let mut chunks: Vec<ChunkId> = transfer.chunks.to_vec();
    chunks.sort_by(|&a, &b| tail(b).total_cmp(&tail(a)).then(a.cmp(&b)));
    chunks.into_iter().map(|chunk| ChunkList::from_slice(&[chunk])).collect()
}

/// For each chunk and rank, the time of the chunk's further way from there on empty links.
fn tails(problem: &Problem, schedule: &Schedule) -> BTreeMap<(ChunkId, Rank), Micros> {
    let mut tails: BTreeMap<(ChunkId, Rank), Micros> = BTreeMap::new();
    for transfer in schedule.transfers.iter().rev() {
        for &chunk in &transfer.chunks {
            let time = problem.topology.link(transfer.link).transfer_time(problem.demand.bytes_of(chunk));
            let through = time + tails.get(&(chunk, transfer.to)).copied().unwrap_or_default();
            let tail = tails.entry((chunk, transfer.from)).or_default();
            *tail = tail.max(through);
        }
    }
    tails
}
