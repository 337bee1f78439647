//! Chunks that a model need not tell apart.
//!
//! The principal type is [`ChunkGroup`]. In an AllToAll all chunks of a rank are one group: whichever of them goes to a rank, the
//! one that is wanted there is sent. So a model has a whole number for a message and a group, not a 0/1 column for a chunk.

use crate::problem::Problem;
use crate::problem::distance::PathTree;
use schedule::{ChunkId, RankSet, TransferKind};
use std::collections::BTreeMap;
use topology::{Bytes, Link, LinkId, Rank};

/// What may happen to the chunks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum GroupKind {
    /// They are alike: all begin at one rank, and each is wanted by one rank.
    Alike,
    /// Its one chunk is copied on the way.
    Copied,
    /// Its one chunk is a sum, which is added up along a tree, and copied along another one from the rank where it is complete.
    Summed,
}

/// Chunks of one rank and of the same size, each wanted by one rank; or one chunk that several ranks have or want.
pub(in super::super) struct ChunkGroup {
    pub(super) chunks: Vec<ChunkId>,
    /// The size of each.
    pub(super) bytes: Bytes,
    pub(in super::super) kind: GroupKind,
    /// The ranks that have them from the beginning; of a sum, those that contribute. At any of those it may be complete.
    pub(super) holders: RankSet,
    /// The chunks that each rank wants and lacks; of a sum, it lacks it even where it contributes.
    pub(super) wanted: BTreeMap<Rank, Vec<ChunkId>>,
    /// The links over which it may not travel.
    refused: Vec<LinkId>,
    /// When one of the chunks can be at a rank at the earliest.
    pub(super) since: Vec<f64>,
}

impl ChunkGroup {
    /// Whether its chunks may travel over a link.
    pub(super) fn may_use(&self, link: LinkId) -> bool {
        self.refused.binary_search(&link).is_err()
    }

    /// Whether a message of a kind may take them from a rank to another one that they can reach by then, if it arrives at `until`.
    pub(super) fn may_take(&self, kind: TransferKind, link: &Link, until: f64) -> bool {
        match (self.kind, kind) {
            (GroupKind::Summed, TransferKind::Copy) => self.wanted.contains_key(&link.to),
            (GroupKind::Summed, TransferKind::Reduce) => self.holders.has(link.from) && self.holders.has(link.to),
            (GroupKind::Alike | GroupKind::Copied, TransferKind::Copy) => {
                let soonest = self.since[link.from.index()] + link.transfer_time(self.bytes).0;
                soonest <= until && !self.holders.has(link.to)
            }
            (GroupKind::Alike | GroupKind::Copied, TransferKind::Reduce) => false,
        }
    }

    /// The most of its chunks in one message.
    pub(super) fn most(&self) -> f64 {
        self.chunks.len() as f64
    }
}

/// The groups of all chunks that somebody lacks, and the group of each chunk.
pub(in super::super) struct ChunkGroups {
    pub(in super::super) all: Vec<ChunkGroup>,
    of: BTreeMap<ChunkId, usize>,
}

impl ChunkGroups {
    pub(in super::super) fn new(problem: &Problem) -> Self {
        let (topology, demand) = (&problem.topology, &problem.demand);
        let mut groups = Self { all: Vec::new(), of: BTreeMap::new() };
        let mut known: BTreeMap<(Vec<Rank>, u64, Vec<LinkId>), usize> = BTreeMap::new();
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let lacking: Vec<Rank> = match chunk.is_sum() {
                true => chunk.wanted_by.to_vec(),
                false => chunk.lacking().collect(),
            };
            if lacking.is_empty() {
                continue;
            }
            let refused: Vec<LinkId> = topology.link_ids().filter(|&link| !problem.allows(id, link)).collect();
            let bytes = demand.bytes_of(id);
            let new = groups.all.len();
            let kind = match () {
                () if chunk.is_sum() => GroupKind::Summed,
                () if lacking.len() > 1 || chunk.holders.len() > 1 => GroupKind::Copied,
                () => GroupKind::Alike,
            };
            let group = match kind {
                GroupKind::Alike => {
                    *known.entry((chunk.holders.to_vec(), bytes.0.to_bits(), refused.clone())).or_insert(new)
                }
                GroupKind::Copied | GroupKind::Summed => new,
            };
            if group == new {
                let length = |link| problem.allows(id, link).then(|| topology.link(link).transfer_time(bytes).0);
                let since = PathTree::new(topology, chunk.holders.iter().copied(), length).distance;
                let (chunks, holders, wanted) = (Vec::new(), chunk.holders.clone(), BTreeMap::new());
                groups.all.push(ChunkGroup { chunks, bytes, kind, holders, wanted, refused, since });
            }
            groups.of.insert(id, group);
            let group = &mut groups.all[group];
            group.chunks.push(id);
            lacking.into_iter().for_each(|rank| group.wanted.entry(rank).or_default().push(id));
        }
        groups
    }

    /// The group of a chunk; `None` if nobody lacks it.
    pub(in super::super) fn of(&self, chunk: ChunkId) -> Option<usize> {
        self.of.get(&chunk).copied()
    }
}
