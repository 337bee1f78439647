//! The choice of a link: the best of the chunks that its sender holds and its receiver lacks.

use super::SpreadState;
use crate::problem::merging::merging_pays;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, ChunkList};
use topology::{LinkId, Micros};

/// The most candidates that a link scores; more would cost more than they gain.
const SAMPLE: usize = 48;

impl SpreadState<'_> {
    /// The best chunks for a link to take now: as many as the style merges and the cutoff permits.
    pub(super) fn pick(&mut self, id: LinkId, now: Micros) -> ChunkList {
        let words = self.words();
        let first = self.random.next_u32() as usize % words;
        let own_only = !self.relaying.is_empty() && {
            let own = self.instance.initial.row(self.instance.topology.link(id).from.index());
            let candidates = self.candidates(id);
            (0..words).any(|word| candidates.word(word) & own[word] != 0)
        };
        let mut scored: Vec<(f64, ChunkId)> = Vec::with_capacity(SAMPLE);
        let merge =
            if merging_pays(self.instance.topology, self.instance.topology.link(id)) { self.style.merge } else { 1 };
        let enough = SAMPLE.max(merge);
        for word in (first..words).chain(0..first) {
            self.looks += 1;
            let mut set = self.candidates(id).word(word);
            if own_only {
                set &= self.instance.initial.row(self.instance.topology.link(id).from.index())[word];
            }
            while set != 0 && scored.len() < enough {
                let chunk = ChunkId((word * 64) as u32 + set.trailing_zeros());
                set &= set - 1;
                if let Some(score) = self.score(id, chunk, now) {
                    scored.push((score, chunk));
                }
            }
            if scored.len() == enough {
                break;
            }
        }
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let link = self.instance.topology.link(id);
        let mut chosen = ChunkList::new();
        let mut bytes = topology::Bytes::ZERO;
        for (_, chunk) in scored.into_iter().take(merge) {
            bytes += self.instance.demand.bytes_of(chunk);
            if now + link.transfer_time(bytes) > self.cutoff {
                break;
            }
            chosen.push(chunk);
        }
        chosen.sort_unstable();
        chosen
    }

    /// The score of a chunk for a link; `None` if the link should not take it.
    fn score(&mut self, id: LinkId, chunk: ChunkId, now: Micros) -> Option<f64> {
        let (instance, style) = (self.instance, self.style);
        let link = instance.topology.link(id);
        let ranks = instance.topology.rank_count();
        if !self.ways.is_empty() {
            let way = self.ways[chunk.index() * ranks + link.from.index()];
            instance.problem.constraints.after(instance.topology, way, id)?;
        }
        if style.skips_nearby && self.dear.get(id.index()) == Some(&true) && self.is_at_hand(id, chunk) {
            return None;
        }
        if !self.arrival.is_empty() && self.comes_sooner(id, chunk, now) {
            return None;
        }
        let mut score = style.chance * f64::from(self.random.next_u32()) / f64::from(u32::MAX);
        score -= style.rarity * f64::from(self.copies[chunk.index()]) / ranks as f64;
        if let (false, Some(distance)) = (self.nearest.is_empty(), &instance.distance) {
            let from_there = &distance[link.to.index() * ranks..(link.to.index() + 1) * ranks];
            let nearest = &self.nearest[chunk.index() * ranks..(chunk.index() + 1) * ranks];
            let farther = nearest.iter().zip(from_there).filter(|(nearest, there)| there < nearest);
            let farthest = farther.fold(0.0f32, |farthest, (&nearest, _)| farthest.max(nearest));
            score += style.urgency * f64::from(farthest) / f64::from(self.instance.diameter);
        }
        Some(score)
    }

    /// Whether another link could bring `chunk` to the same receiver before this one.
    fn comes_sooner(&mut self, id: LinkId, chunk: ChunkId, now: Micros) -> bool {
        let topology = self.instance.topology;
        let ranks = topology.rank_count();
        let entering = topology.incoming(topology.link(id).to);
        let here = now + self.instance.duration(id, chunk);
        self.looks += entering.len();
        entering.iter().any(|&other| {
            let at_sender = self.arrival[chunk.index() * ranks + topology.link(other).from.index()];
            let start = Micros(f64::from(at_sender)).max(self.calendar.link_free(other)).max(now);
            let there = start + self.instance.duration(other, chunk);
            other != id && there.0 < here.0 * (1.0 - 1e-6) && self.instance.problem.allows(chunk, other)
        })
    }
}
