//! Jobs: messages whose link is planned, and their dependencies.
//!
//! The principal type is [`Jobs`]. A job is a message of one chunk over one link. A follower of a job can leave only
//! after that job has arrived.

use super::packing::{Packing, TreeUnits};
use crate::ordering::lists::Lists;
use crate::problem::Problem;
use schedule::{ChunkId, Message, TransferKind};
use topology::LinkId;

/// A message of one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkJob {
    pub(super) link: LinkId,
    pub(super) chunk: ChunkId,
    pub(super) kind: TransferKind,
}

/// Jobs, each after the jobs that it waits for.
#[derive(Clone, Debug)]
pub(super) struct Jobs {
    pub(super) all: Vec<ChunkJob>,
    /// For each job, the jobs that wait for it, and the jobs that it waits for.
    pub(super) followers: Lists,
    pub(super) causes: Lists,
}

impl Jobs {
    /// The jobs of `all`; each entry of `waits` is (the earlier job, the later job).
    pub(super) fn new(all: Vec<ChunkJob>, waits: &[(u32, u32)]) -> Self {
        let followers = Lists::new(all.len(), waits.iter().copied());
        let causes = followers.turned();
        Self { all, followers, causes }
    }

    /// The jobs that send every chunk along its tree.
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
                    all.push(ChunkJob { link, chunk, kind: TransferKind::Copy });
                }
            }
        }
        Self::new(all, &waits)
    }

    pub(super) fn messages(&self) -> Vec<Message> {
        let message =
            |&ChunkJob { link, chunk, kind }: &ChunkJob| Message { chunks: [chunk].into_iter().collect(), link, kind };
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
