//! Messages whose links are planned, and what they wait for; no times yet.
//!
//! The principal type is [`TreeMessages`]. Each message carries one chunk over one link. A follower of a message can leave only
//! after that message has arrived.

use super::packing::{Packing, TreeUnits};
use crate::ordering::lists::Lists;
use crate::problem::Problem;
use schedule::{ChunkId, Message, TransferKind};
use topology::LinkId;

/// A message of one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkMessage {
    pub(super) link: LinkId,
    pub(super) chunk: ChunkId,
    pub(super) kind: TransferKind,
}

/// Messages, each after those that it waits for.
#[derive(Clone, Debug)]
pub(super) struct TreeMessages {
    pub(super) all: Vec<ChunkMessage>,
    /// For each message, the messages that wait for it, and the messages that it waits for.
    pub(super) followers: Lists,
    pub(super) causes: Lists,
}

impl TreeMessages {
    /// The messages of `all`; each entry of `waits` is (the earlier message, the later message).
    pub(super) fn new(all: Vec<ChunkMessage>, waits: &[(u32, u32)]) -> Self {
        let followers = Lists::new(all.len(), waits.iter().copied());
        let causes = followers.turned();
        Self { all, followers, causes }
    }

    /// The messages that send every chunk along its tree.
    pub(super) fn spreading(problem: &Problem, units: &TreeUnits, packing: &Packing) -> Self {
        let topology = &*problem.topology;
        let (mut all, mut waits) = (Vec::new(), Vec::new());
        let mut arriving: Vec<Option<u32>> = vec![None; topology.rank_count()];
        for (unit, tree) in units.all.iter().zip(&packing.trees) {
            for &chunk in &unit.chunks {
                arriving.fill(None);
                for &link in tree {
                    let job = all.len() as u32;
                    let ends = topology.link(link);
                    if let Some(before) = arriving[ends.from.index()] {
                        waits.push((before, job));
                    }
                    arriving[ends.to.index()] = Some(job);
                    all.push(ChunkMessage { link, chunk, kind: TransferKind::Copy });
                }
            }
        }
        Self::new(all, &waits)
    }

    pub(super) fn messages(&self) -> Vec<Message> {
        let message = |&ChunkMessage { link, chunk, kind }: &ChunkMessage| Message {
            chunks: [chunk].into_iter().collect(),
            link,
            kind,
        };
        self.all.iter().map(message).collect()
    }

    /// The most links from a source to the end of a chunk's way, over all chunks.
    pub(super) fn height(&self) -> usize {
        let mut depth = vec![1usize; self.all.len()];
        for job in 0..self.all.len() {
            depth[job] = 1 + self.causes.of(job).iter().map(|&cause| depth[cause as usize]).max().unwrap_or(0);
        }
        depth.into_iter().max().unwrap_or(0)
    }
}
