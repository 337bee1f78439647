//! An ordered partition for colour refinement, with undo.
//!
//! The principal type is [`Partition`]. Its members are the ranks, links, resources and machines of a topology, in this
//! order. A link has its sender, receiver and resources as neighbours, a rank its machine. A cell is a range of
//! positions; its members could not be distinguished so far. All choices depend only on positions and counts, never on
//! the numbers of members. So two partitions that are refined in the same way have equal traces exactly if refinement
//! cannot distinguish them.

use super::Colours;
use super::check::{CostKey, cost_key};
use crate::{LinkId, Rank, ResourceId, Topology};
use std::collections::{BTreeMap, VecDeque};

/// A rank, link, resource or machine, as an index over all of them.
pub(super) type CellMember = u32;

/// An ordered partition and the history of its splits.
pub(super) struct Partition<'t> {
    topology: &'t Topology,
    /// Members by position.
    members: Vec<CellMember>,
    position: Vec<u32>,
    /// The cell of each member: the position where it starts.
    cell: Vec<u32>,
    /// The length of each cell, by its start.
    length: Vec<u32>,
    /// Cells that were split off, each with the cell that it left; `undo` takes them from the end.
    splits: Vec<(u32, u32)>,
    queue: VecDeque<u32>,
    queued: Vec<bool>,
    count: Vec<u32>,
    /// The pieces of the last split; a field, so that its memory is used again.
    pieces: Vec<u32>,
    /// The members that a cell has touched, each with its sort key; a field for the same reason.
    touched: Vec<(u64, CellMember)>,
    /// Visits of neighbours so far.
    pub(super) work: u64,
}

/// The number of the kind of each member, and the members sorted by it. Members of one kind form one initial cell. The
/// order puts ranks first, then resources.
fn sorted_by_kind(topology: &Topology, colours: Colours<'_>) -> (Vec<u32>, Vec<CellMember>) {
    let ranks = topology.ranks().map(|rank| {
        let colour = colours.ranks.get(rank.index()).copied().unwrap_or(0);
        (0u8, (0, 0, false, 0, colour))
    });
    let links = topology.link_ids().map(|id| (2, cost_key(topology, colours, id)));
    let resources = topology
        .resources()
        .iter()
        .map(|resource| (1, (resource.beta.0.to_bits(), resource.alpha.0.to_bits(), false, 0, 0)));
    let machines = topology.machines().iter().map(|machine| (3, (0, 0, false, machine.len(), 0)));
    // There are millions of links of a few kinds, and most links are like the one before.
    let mut known: BTreeMap<(u8, CostKey), u32> = BTreeMap::new();
    let mut last: Option<((u8, CostKey), u32)> = None;
    let seen = ranks.chain(links).chain(resources).chain(machines).map(|key| match last {
        Some((before, number)) if before == key => number,
        _ => {
            let next = known.len() as u32;
            let number = *known.entry(key).or_insert(next);
            last = Some((key, number));
            number
        }
    });
    let seen: Vec<u32> = seen.collect();
    let mut in_order = vec![0; known.len()];
    known.values().zip(0..).for_each(|(&number, place)| in_order[number as usize] = place);
    let kinds: Vec<u32> = seen.into_iter().map(|number| in_order[number as usize]).collect();
    let mut next = vec![0; known.len() + 1];
    kinds.iter().for_each(|&kind| next[kind as usize + 1] += 1);
    (0..known.len()).for_each(|kind| next[kind + 1] += next[kind]);
    let mut members = vec![0; kinds.len()];
    for (member, &kind) in kinds.iter().enumerate() {
        let place = &mut next[kind as usize];
        members[*place as usize] = member as CellMember;
        *place += 1;
    }
    (kinds, members)
}

/// The steps of one refinement, for comparison with another.
pub(super) enum Trace<'a> {
    Record(&'a mut Vec<u64>),
    Compare(&'a [u64]),
}

impl<'t> Partition<'t> {
    /// A cell for each kind, cost and colour of members, refined.
    pub(super) fn new(topology: &'t Topology, colours: Colours<'_>) -> Self {
        let (kinds, members) = sorted_by_kind(topology, colours);
        let count = kinds.len();
        let mut partition = Self {
            topology,
            position: vec![0; count],
            cell: vec![0; count],
            length: vec![0; count],
            splits: Vec::new(),
            queue: VecDeque::new(),
            queued: vec![false; count],
            count: vec![0; count],
            pieces: Vec::new(),
            touched: Vec::new(),
            work: 0,
            members,
        };
        let mut start = 0;
        for index in 0..count {
            let member = partition.members[index] as usize;
            if index > 0 && kinds[member] != kinds[partition.members[index - 1] as usize] {
                start = index;
            }
            partition.position[member] = index as u32;
            partition.cell[member] = start as u32;
            partition.length[start] += 1;
            if index == start {
                partition.push(start as u32);
            }
        }
        partition.refine(&mut Trace::Record(&mut Vec::new()));
        partition.splits.clear();
        partition
    }

    fn first_link(&self) -> usize {
        self.topology.rank_count()
    }

    fn first_resource(&self) -> usize {
        self.first_link() + self.topology.links().len()
    }

    fn first_machine(&self) -> usize {
        self.first_resource() + self.topology.resources().len()
    }

    /// A mark to which `undo` can return.
    pub(super) fn mark(&self) -> usize {
        self.splits.len()
    }

    /// Undoes the splits since `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        while self.splits.len() > mark
            && let Some((piece, whole)) = self.splits.pop()
        {
            let length = std::mem::take(&mut self.length[piece as usize]);
            for index in piece..piece + length {
                self.cell[self.members[index as usize] as usize] = whole;
            }
            self.length[whole as usize] += length;
            self.work += u64::from(length);
        }
    }

    pub(super) fn cell_of(&self, member: CellMember) -> u32 {
        self.cell[member as usize]
    }

    pub(super) fn members_of(&self, cell: u32) -> &[CellMember] {
        &self.members[cell as usize..(cell + self.length[cell as usize]) as usize]
    }

    /// The only member of a cell, if it has just one.
    pub(super) fn only(&self, cell: u32) -> Option<CellMember> {
        (self.length[cell as usize] == 1).then(|| self.members[cell as usize])
    }

    /// The first cell of ranks or resources, at `start` or later, that has several members.
    pub(super) fn undecided(&self, start: u32) -> Option<u32> {
        let end = (self.topology.rank_count() + self.topology.resources().len()) as u32;
        let mut cell = start;
        while cell < end {
            if self.length[cell as usize] > 1 {
                return Some(cell);
            }
            cell += 1;
        }
        None
    }

    /// Gives one member its own cell and refines. Returns false if the trace differs from the one it is compared with.
    pub(super) fn individualize(&mut self, member: CellMember, trace: &mut Trace<'_>) -> bool {
        let cell = self.cell_of(member);
        if self.length[cell as usize] > 1 {
            let last = cell + self.length[cell as usize] - 1;
            self.move_to(member, last);
            self.split_off(cell, 1);
            self.push(last);
        }
        trace.step(u64::from(cell)) && self.refine(trace)
    }

    fn move_to(&mut self, member: CellMember, position: u32) {
        let from = self.position[member as usize];
        let other = self.members[position as usize];
        self.members.swap(from as usize, position as usize);
        self.position[member as usize] = position;
        self.position[other as usize] = from;
    }

    /// Makes the last `length` members of a cell a cell of their own, not yet queued.
    fn split_off(&mut self, cell: u32, length: u32) -> u32 {
        self.length[cell as usize] -= length;
        let piece = cell + self.length[cell as usize];
        self.length[piece as usize] = length;
        for index in piece..piece + length {
            self.cell[self.members[index as usize] as usize] = piece;
        }
        self.splits.push((piece, cell));
        piece
    }

    fn push(&mut self, cell: u32) {
        if !std::mem::replace(&mut self.queued[cell as usize], true) {
            self.queue.push_back(cell);
        }
    }

    /// Splits cells by how many neighbours in a given cell each member has, until no cell splits any more.
    fn refine(&mut self, trace: &mut Trace<'_>) -> bool {
        let mut same = true;
        let mut touched: Vec<CellMember> = Vec::new();
        while let Some(cell) = self.queue.pop_front() {
            self.queued[cell as usize] = false;
            // For a cell of ranks, outgoing links, incoming links and machines count separately.
            for relation in 0..3 {
                if same {
                    self.count_neighbours(cell, relation, &mut touched);
                    same = self.split_touched(&mut touched, trace);
                }
            }
        }
        same
    }

    fn count_neighbours(&mut self, cell: u32, relation: usize, touched: &mut Vec<CellMember>) {
        let (link, resource, machine) = (self.first_link(), self.first_resource(), self.first_machine());
        let topology = self.topology;
        let mut visits = 0;
        for index in cell..cell + self.length[cell as usize] {
            let member = self.members[index as usize] as usize;
            let count = &mut self.count;
            let mut visit = |neighbour: usize| {
                visits += 1;
                count[neighbour] += 1;
                if count[neighbour] == 1 {
                    touched.push(neighbour as CellMember);
                }
            };
            if member < link {
                let rank = Rank::from_index(member);
                match relation {
                    0 => topology.outgoing(rank).iter().for_each(|id| visit(link + id.index())),
                    1 => topology.incoming(rank).iter().for_each(|id| visit(link + id.index())),
                    _ => visit(machine + topology.machine_of(rank)),
                }
            } else if member < resource {
                let joined = topology.link(LinkId::from_index(member - link));
                match relation {
                    0 => visit(joined.from.index()),
                    1 => visit(joined.to.index()),
                    _ => joined.resources.iter().for_each(|id| visit(resource + id.index())),
                }
            } else if relation > 0 {
                continue;
            } else if member < machine {
                let users = topology.users(ResourceId::from_index(member - resource));
                users.iter().for_each(|id| visit(link + id.index()));
            } else {
                topology.machines()[member - machine].iter().for_each(|rank| visit(rank.index()));
            }
        }
        self.work += visits + 1;
    }

    /// Splits every touched cell by the counts of its members, and clears the counts.
    fn split_touched(&mut self, touched: &mut Vec<CellMember>, trace: &mut Trace<'_>) -> bool {
        if touched.len() > 1 {
            let mut keyed = std::mem::take(&mut self.touched);
            keyed.extend(touched.iter().map(|&member| {
                let (cell, count) = (self.cell[member as usize], self.count[member as usize]);
                (u64::from(cell) << 32 | u64::from(u32::MAX - count), member)
            }));
            keyed.sort_unstable();
            touched.iter_mut().zip(keyed.drain(..)).for_each(|(touched, (_, member))| *touched = member);
            self.touched = keyed;
        }
        let mut same = true;
        let mut rest = &touched[..];
        while same && let Some(&first) = rest.first() {
            let cell = self.cell_of(first);
            let size = rest.iter().take_while(|&&member| self.cell_of(member) == cell).count();
            same = self.split_cell(&rest[..size], trace);
            rest = &rest[size..];
        }
        touched.drain(..).for_each(|member| self.count[member as usize] = 0);
        same
    }

    /// `group` holds the touched members of one cell, the highest count first.
    fn split_cell(&mut self, group: &[CellMember], trace: &mut Trace<'_>) -> bool {
        let cell = self.cell_of(group[0]);
        if self.length[cell as usize] == 1 {
            // The most frequent case: nothing to split.
            let count = self.count[group[0] as usize];
            return trace.step(u64::from(cell) << 32 | u64::from(count)) && trace.step(1);
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        pieces.push(cell);
        let same = self.split_off_pieces(cell, group, &mut pieces, trace);
        if same {
            // A cell that is still queued is replaced by all its pieces. For a cell that was already used, the largest
            // piece adds no information.
            let waits = self.queued[cell as usize];
            let largest = pieces.iter().copied().max_by_key(|&piece| (self.length[piece as usize], piece));
            for &piece in &pieces {
                if waits || Some(piece) != largest {
                    self.push(piece);
                }
            }
        }
        self.pieces = pieces;
        same
    }

    fn split_off_pieces(
        &mut self,
        cell: u32,
        group: &[CellMember],
        pieces: &mut Vec<u32>,
        trace: &mut Trace<'_>,
    ) -> bool {
        let mut rest = group;
        while let Some(&first) = rest.first() {
            let count = self.count[first as usize];
            let alike = rest.iter().take_while(|&&member| self.count[member as usize] == count).count();
            let (piece, others) = rest.split_at(alike);
            if !trace.step(u64::from(cell) << 32 | u64::from(count)) || !trace.step(alike as u64) {
                return false;
            }
            rest = others;
            let length = self.length[cell as usize];
            if length as usize == alike {
                break;
            }
            for (index, &member) in piece.iter().enumerate() {
                self.move_to(member, cell + length - 1 - index as u32);
            }
            pieces.push(self.split_off(cell, alike as u32));
        }
        true
    }
}

impl Trace<'_> {
    /// Records a step; false if it differs from the trace that it is compared with.
    fn step(&mut self, step: u64) -> bool {
        match self {
            Trace::Record(steps) => {
                steps.push(step);
                true
            }
            Trace::Compare(expected) => match expected.split_first() {
                Some((first, rest)) if *first == step => {
                    *expected = rest;
                    true
                }
                _ => false,
            },
        }
    }

    /// Whether every step has been compared.
    pub(super) fn is_finished(&self) -> bool {
        !matches!(self, Trace::Compare([_, ..]))
    }
}
