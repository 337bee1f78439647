//! Messages of single chunks from what a model says of groups.
//!
//! The principal function is [`ContentsWindow::messages`]. Where chunks are alike, the model says how many of them a message
//! carries. Here each of them gets a way, in the order of time: a message takes any of those that have come. The rank where a way
//! ends decides which chunk it is.

use super::groups::GroupKind;
use super::{ChunkId, ContentsWindow, KeptMessage};
use crate::solver::Solution;
use schedule::Message;
use std::collections::BTreeMap;
use topology::Rank;

/// The way of one chunk of a group.
struct AnyChunk {
    /// The messages that have carried it.
    way: Vec<usize>,
    at: Rank,
    /// When it has come there.
    since: f64,
}

/// What comes by so much (relative to the makespan) after a message has left has come in time: the tolerance of the solver.
const SLACK: f64 = 1e-6;

impl ContentsWindow<'_> {
    /// The messages of a solution, in the order of their departures; `None` where the solution is none, within its tolerance.
    pub(in super::super) fn messages(&self, solution: &Solution) -> Option<Vec<Message>> {
        let topology = &self.problem.topology;
        let mut order: Vec<usize> = (0..self.messages.len()).collect();
        let start = |own: usize| solution.value(self.starts[own]);
        order.sort_by(|&a, &b| start(a).total_cmp(&start(b)).then(a.cmp(&b)));
        let mut chunks: Vec<Vec<ChunkId>> = self.messages.iter().map(|message| message.fixed.clone()).collect();
        let mut moving: BTreeMap<usize, Vec<AnyChunk>> = BTreeMap::new();
        for &own in &order {
            let link = topology.link(self.messages[own].link);
            for (&index, &amount) in &self.amounts[own] {
                let group = &self.groups.all[index];
                let amount = solution.value(amount).round() as usize;
                if group.kind != GroupKind::Alike {
                    chunks[own].extend(group.chunks.iter().take(amount));
                    continue;
                }
                let all = moving.entry(index).or_insert_with(|| {
                    let at = group.holders[0];
                    group.chunks.iter().map(|_| AnyChunk { way: Vec::new(), at, since: 0.0 }).collect()
                });
                let mut left = amount;
                for chunk in all.iter_mut().filter(|chunk| chunk.at == link.from) {
                    if left > 0 && chunk.since <= start(own) + self.until * SLACK {
                        left -= 1;
                        chunk.way.push(own);
                        chunk.at = link.to;
                        chunk.since = start(own) + self.arrival_time(own).value(solution);
                    }
                }
                if left > 0 {
                    return None;
                }
            }
        }
        for (index, all) in moving {
            let mut wanted = self.groups.all[index].wanted.clone();
            for AnyChunk { way, at, .. } in all {
                let chunk = wanted.get_mut(&at).and_then(Vec::pop)?;
                self.without_loops(way).into_iter().for_each(|message| chunks[message].push(chunk));
            }
        }
        let carrying = order.into_iter().filter(|&own| !chunks[own].is_empty());
        let message = |own: usize| {
            let mut chunks = chunks[own].clone();
            chunks.sort_unstable();
            let KeptMessage { link, kind, .. } = self.messages[own];
            Message { chunks: chunks.into(), link, kind }
        };
        Some(carrying.map(message).collect())
    }

    /// A way without what leads back to a rank that it has been at.
    fn without_loops(&self, way: Vec<usize>) -> Vec<usize> {
        let link = |message: usize| self.problem.topology.link(self.messages[message].link);
        let mut kept: Vec<usize> = Vec::new();
        for message in way {
            let back = kept.iter().position(|&before| link(before).from == link(message).to);
            match back {
                Some(place) => kept.truncate(place),
                None => kept.push(message),
            }
        }
        kept
    }
}
