//! The cost of a draft: plays it, and computes the times of its messages.
//!
//! The principal type is [`DraftClock`]. It plays the messages in the order of their keys, each as early as its chunks,
//! its link and its resources permit. A message whose chunks have not arrived waits for them. Drafts are played
//! millions of times, so this is one pass over dense tables that stops early. The result only guides the search;
//! `schedule::replay` computes the final times.

use super::draft::{Draft, SendingId};
use crate::problem::{Problem, Way};
use topology::{FreeTimes, LinkId, Micros, Topology};

/// The weight of the mean finish time over the ranks, relative to the makespan. Many plans share a makespan; of these,
/// one in which fewer ranks are late is closer to a better plan.
const RANKS_WEIGHT: f64 = 0.05;
/// The weight of the mean arrival time over all deliveries.
const DELIVERIES_WEIGHT: f64 = 0.005;

const NEVER: Micros = Micros(f64::INFINITY);

/// The times of the draft that was played last.
pub(super) struct DraftClock<'a> {
    problem: &'a Problem,
    topology: &'a Topology,
    /// By chunk and rank: the release of the chunk if the rank is one of its holders, else infinite.
    initial: Vec<Micros>,
    /// By chunk and rank: the time from which the rank holds the chunk.
    held: Vec<Micros>,
    free: FreeTimes,
    rank_done: Vec<Micros>,
    /// By chunk and rank: the way of the copy there; used only where the sketch limits ways.
    ways: Vec<Way>,
    /// The links that have sent a relayed chunk; used only where own chunks go first.
    relaying: Vec<bool>,
    start: Vec<Micros>,
    end: Vec<Micros>,
    order: Vec<SendingId>,
    waiting: Vec<SendingId>,
    /// The messages, in the order in which they were played.
    pub(super) played: Vec<SendingId>,
    /// When the last message arrives.
    pub(super) makespan: Micros,
}

impl<'a> DraftClock<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let ranks = topology.rank_count();
        let mut initial = vec![NEVER; ranks * demand.chunks().len()];
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            chunk.holders.iter().for_each(|holder| initial[id.index() * ranks + holder.index()] = chunk.release);
        }
        let constraints = &problem.constraints;
        Self {
            problem,
            topology,
            held: initial.clone(),
            ways: vec![Way::default(); if constraints.limits_ways() { initial.len() } else { 0 }],
            relaying: vec![false; if constraints.own_chunks_first.is_some() { topology.links().len() } else { 0 }],
            initial,
            free: FreeTimes::new(topology),
            rank_done: vec![Micros::ZERO; ranks],
            start: Vec::new(),
            end: Vec::new(),
            order: Vec::new(),
            waiting: Vec::new(),
            played: Vec::new(),
            makespan: Micros::ZERO,
        }
    }

    /// When each message departed.
    pub(super) fn start(&self) -> &[Micros] {
        &self.start
    }

    /// By chunk and rank: the time from which the rank holds the chunk.
    pub(super) fn held(&self) -> &[Micros] {
        &self.held
    }

    /// The cost of a draft, in µs: its makespan, plus a little for late ranks and deliveries. `None` if that is more
    /// than `limit`, if messages wait for each other, or if the constraints forbid the draft.
    pub(super) fn play(&mut self, draft: &Draft, limit: f64) -> Option<f64> {
        self.reset(draft);
        let sendings = draft.sendings();
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..sendings.len()).map(SendingId::from_index).filter(|id| !draft.sending(*id).chunks.is_empty()));
        // The order is nearly sorted already, which makes a stable sort fast; ties stay in the order of numbers.
        order.sort_by(|a, b| draft.sending(*a).key.total_cmp(&draft.sending(*b).key));
        let mut possible = true;
        for &id in &order {
            if !self.is_ready(draft, id) {
                self.waiting.push(id);
                continue;
            }
            possible = self.send(draft, id, limit);
            while possible && !self.waiting.is_empty() {
                let Some(position) = self.waiting.iter().position(|&id| self.is_ready(draft, id)) else { break };
                let id = self.waiting.remove(position);
                possible = self.send(draft, id, limit);
            }
            if !possible {
                break;
            }
        }
        self.order = order;
        if !possible || !self.waiting.is_empty() {
            return None;
        }
        let cost = self.cost(draft);
        (cost <= limit).then_some(cost)
    }

    fn reset(&mut self, draft: &Draft) {
        self.held.clone_from(&self.initial);
        self.free.clear();
        self.rank_done.fill(Micros::ZERO);
        self.relaying.fill(false);
        self.start.resize(draft.sendings().len(), Micros::ZERO);
        self.end.resize(draft.sendings().len(), Micros::ZERO);
        self.waiting.clear();
        self.played.clear();
        self.makespan = Micros::ZERO;
    }

    fn is_ready(&self, draft: &Draft, id: SendingId) -> bool {
        let sending = draft.sending(id);
        let from = self.topology.link(sending.link).from.index();
        let ranks = self.topology.rank_count();
        sending.chunks.iter().all(|chunk| self.held[chunk.index() * ranks + from] < NEVER)
    }

    /// Plays one message; whether it is permitted and ends within `limit`.
    fn send(&mut self, draft: &Draft, id: SendingId, limit: f64) -> bool {
        let (sending, ranks) = (draft.sending(id), self.topology.rank_count());
        let link = self.topology.link(sending.link);
        let mut start = self.free.earliest(self.topology, sending.link);
        for chunk in &sending.chunks {
            start = start.max(self.held[chunk.index() * ranks + link.from.index()]);
        }
        let bytes = self.problem.demand.message_bytes(&sending.chunks);
        let end = start + link.transfer_time(bytes);
        if end.0 > limit {
            return false;
        }
        self.free.occupy(self.topology, sending.link, start, bytes);
        for chunk in &sending.chunks {
            self.held[chunk.index() * ranks + link.to.index()] = end;
        }
        (self.start[id.index()], self.end[id.index()]) = (start, end);
        self.rank_done[link.to.index()] = self.rank_done[link.to.index()].max(end);
        self.makespan = self.makespan.max(end);
        self.played.push(id);
        self.obeys(draft, id, sending.link)
    }

    /// Whether a message obeys the rules that depend on earlier messages.
    fn obeys(&mut self, draft: &Draft, id: SendingId, link_id: LinkId) -> bool {
        if self.ways.is_empty() && self.relaying.is_empty() {
            return true;
        }
        let (link, ranks) = (self.topology.link(link_id), self.topology.rank_count());
        let crosses = self.topology.crosses_machines(link);
        let relayed_before = crosses && self.relaying.get(link_id.index()) == Some(&true);
        for chunk in &draft.sending(id).chunks {
            let (from, to) = (chunk.index() * ranks + link.from.index(), chunk.index() * ranks + link.to.index());
            let own = self.initial[from] < NEVER;
            if !self.ways.is_empty() {
                let way = if own { Way::default() } else { self.ways[from] };
                let Some(way) = self.problem.constraints.after(self.topology, way, link_id) else { return false };
                self.ways[to] = way;
            }
            if !self.relaying.is_empty() && crosses {
                if own && relayed_before {
                    return false;
                }
                self.relaying[link_id.index()] |= !own;
            }
        }
        true
    }

    fn cost(&self, draft: &Draft) -> f64 {
        let (mut total, mut deliveries) = (0.0, 0usize);
        for &id in &self.played {
            let chunks = draft.sending(id).chunks.len();
            total += self.end[id.index()].0 * chunks as f64;
            deliveries += chunks;
        }
        let ranks: f64 = self.rank_done.iter().map(|done| done.0).sum::<f64>() / self.rank_done.len() as f64;
        self.makespan.0 + RANKS_WEIGHT * ranks + DELIVERIES_WEIGHT * total / deliveries.max(1) as f64
    }
}
