//! Messages of an old plan, played on the machine as it is now.
//!
//! The principal type is [`Detours`].

use crate::problem::distance::{Key, Reached, spread_from};
use crate::problem::{Problem, SynthError};
use schedule::{ChunkId, Transfer, TransferKind};
use std::collections::BTreeMap;
use topology::{Bytes, FreeTimes, LinkId, Micros, Rank};

/// A message of the old plan, with the ranks and chunks of now.
#[derive(Clone, Debug)]
pub(super) struct OldMessage {
    pub(super) chunks: Vec<ChunkId>,
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) kind: TransferKind,
}

/// A plan that grows message by message, each as early as possible after those before it.
pub(super) struct Detours<'a> {
    problem: &'a Problem,
    free: FreeTimes,
    /// For each chunk, the ranks that have it or will have it, and from when on.
    held: Vec<BTreeMap<Rank, Micros>>,
    pub(super) transfers: Vec<Transfer>,
    /// How many chunks took another way to a rank.
    pub(super) rerouted: usize,
}

impl<'a> Detours<'a> {
    /// Nothing has been sent yet.
    pub(super) fn new(problem: &'a Problem) -> Self {
        let start = |chunk: &schedule::Chunk| chunk.holders.iter().map(|&rank| (rank, chunk.release)).collect();
        Self {
            problem,
            free: FreeTimes::new(&problem.topology),
            held: problem.demand.chunks().iter().map(start).collect(),
            transfers: Vec::new(),
            rerouted: 0,
        }
    }

    /// Plays `messages` as far as possible, then brings every chunk to the ranks that still lack it.
    ///
    /// # Errors
    /// [`SynthError::Infeasible`] if there is no way.
    pub(super) fn play(&mut self, messages: &[OldMessage]) -> Result<(), SynthError> {
        for OldMessage { chunks, from, to, .. } in messages {
            let news = |id: &&ChunkId| {
                let held = &self.held[id.index()];
                held.contains_key(from) && !held.contains_key(to)
            };
            let chunks: Vec<ChunkId> = chunks.iter().filter(news).copied().collect();
            match self.link(&chunks, *from, *to) {
                Some(link) if !chunks.is_empty() => self.send(&chunks, link),
                Some(_) => {}
                None => {
                    let wants = |id: &ChunkId| self.problem.demand.chunk(*id).wanted_by.has(*to);
                    let wanted: Vec<ChunkId> = chunks.into_iter().filter(wants).collect();
                    self.reroute(&wanted, *from, *to)?;
                }
            }
        }
        for id in self.problem.demand.chunk_ids() {
            for to in self.problem.demand.chunk(id).lacking() {
                if !self.held[id.index()].contains_key(&to) {
                    self.reroute_one(id, to)?;
                }
            }
        }
        Ok(())
    }

    fn allows(&self, chunks: &[ChunkId], link: LinkId) -> bool {
        chunks.iter().all(|&chunk| self.problem.allows(chunk, link))
    }

    /// The link from one rank to another over which chunks would arrive first.
    fn link(&self, chunks: &[ChunkId], from: Rank, to: Rank) -> Option<LinkId> {
        let topology = &self.problem.topology;
        let bytes = self.problem.demand.message_bytes(chunks);
        let end = |&id: &LinkId| {
            let end = self.free.earliest(topology, id) + topology.link(id).transfer_time(bytes);
            Key::new(end.0)
        };
        topology.between(from, to).filter(|&id| self.allows(chunks, id)).min_by_key(end)
    }

    /// From when on a rank has all of `chunks`.
    fn since(&self, chunks: &[ChunkId], rank: Rank) -> Option<Micros> {
        let mut each = chunks.iter().map(|chunk| self.held[chunk.index()].get(&rank).copied());
        each.try_fold(Micros::ZERO, |since, held| Some(since.max(held?)))
    }

    fn send(&mut self, chunks: &[ChunkId], id: LinkId) {
        let topology = &self.problem.topology;
        let link = topology.link(id);
        let bytes = self.problem.demand.message_bytes(chunks);
        let held = self.since(chunks, link.from).unwrap_or(Micros::ZERO);
        let start = held.max(self.free.earliest(topology, id));
        self.free.occupy(topology, id, start, bytes);
        let end = start + link.transfer_time(bytes);
        for chunk in chunks {
            let there = self.held[chunk.index()].entry(link.to).or_insert(end);
            *there = there.min(end);
        }
        let (chunks, kind) = (chunks.iter().copied().collect(), TransferKind::Copy);
        self.transfers.push(Transfer { chunks, from: link.from, to: link.to, link: id, kind, start, end });
    }

    /// Brings chunks that were sent together to a rank: together from where they were, if there is a way, else one by
    /// one.
    fn reroute(&mut self, chunks: &[ChunkId], from: Rank, to: Rank) -> Result<(), SynthError> {
        if chunks.len() > 1
            && let Some(path) = self.path(chunks, &[from], to)
        {
            self.rerouted += chunks.len();
            path.into_iter().for_each(|link| self.send(chunks, link));
            return Ok(());
        }
        chunks.iter().try_for_each(|&chunk| self.reroute_one(chunk, to))
    }

    fn reroute_one(&mut self, chunk: ChunkId, to: Rank) -> Result<(), SynthError> {
        let holders: Vec<Rank> = self.held[chunk.index()].keys().copied().collect();
        let Some(path) = self.path(&[chunk], &holders, to) else {
            let holders = self.problem.demand.chunk(chunk).holders.to_vec();
            return Err(SynthError::Infeasible { chunk, rank: to, holders, relax: None });
        };
        self.rerouted += 1;
        path.into_iter().for_each(|link| self.send(&[chunk], link));
        Ok(())
    }

    /// The links of the way from some of `holders`, which have all of `chunks`, to a rank that arrives first.
    fn path(&self, chunks: &[ChunkId], holders: &[Rank], to: Rank) -> Option<Vec<LinkId>> {
        let topology = &self.problem.topology;
        let bytes: Bytes = self.problem.demand.message_bytes(chunks);
        // No other rank counts as having the chunks: a way that enters it would then seem to leave it earlier.
        let mut holds = vec![false; topology.rank_count()];
        holders.iter().for_each(|rank| holds[rank.index()] = true);
        let reached: Vec<Reached<Key, LinkId>> =
            spread_from(holders.iter().copied(), Key::new(0.0), topology.rank_count(), |rank, here, offer| {
                let held = if holds[rank.index()] { self.since(chunks, rank) } else { None };
                let since = held.unwrap_or(Micros(here.value()));
                for &id in topology.outgoing(rank) {
                    if self.allows(chunks, id) {
                        let start = since.max(self.free.earliest(topology, id));
                        let end = start + topology.link(id).transfer_time(bytes);
                        offer(topology.link(id).to, Key::new(end.0), id);
                    }
                }
            });
        let mut path = Vec::new();
        let mut rank = to;
        while let Some(link) = reached[rank.index()]?.1 {
            path.push(link);
            rank = topology.link(link).from;
        }
        path.reverse();
        Some(path)
    }
}
