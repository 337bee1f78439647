//! From the routes of the first stage to the plans of the second: which messages cross, and in which order.

use super::crossings::{Crossing, CrossingPlan, FastComponents, distinct};
use super::routed::Routed;
use crate::bounds::capacity;
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::{LinkId, Micros, MicrosPerByte, Rank};

/// The most turns of a slow link within the horizon.
const MOST_TURNS: f64 = 24.0;

impl FastComponents<'_> {
    /// Possible times between the turns of slow links: the time of a chunk with its α, or without it where α is shared;
    /// with very many turns, that of several chunks.
    pub(super) fn turns(&self, horizon: Micros) -> Vec<Micros> {
        let bytes = self.problem.demand.chunk_bytes();
        let links = self.slow().iter().map(|&id| self.problem.topology.link(id));
        let alone = links.clone().map(|link| link.transfer_time(bytes));
        let shared = links.filter(|link| link.alpha <= link.byte_time(bytes)).map(|link| link.byte_time(bytes));
        let (alone, shared) = (distinct(alone.collect()), distinct(shared.collect()));
        let turns = alone.first().into_iter().chain(shared.first());
        distinct(turns.map(|&turn| turn * (horizon / turn / MOST_TURNS).ceil().max(1.0)).collect())
    }

    /// When the first chunk can leave on each slow link; turns are counted from then on.
    pub(super) fn first_turns(&self) -> BTreeMap<LinkId, Micros> {
        let mut first: BTreeMap<LinkId, Micros> = BTreeMap::new();
        for (id, chunk) in self.problem.demand.chunk_ids().zip(self.problem.demand.chunks()) {
            let distance = self.distance(&chunk.holders, id, Micros(1e-9));
            for &link in self.slow().iter().filter(|&&link| self.problem.allows(id, link)) {
                let ready = Micros(distance[self.problem.topology.link(link).from.index()]);
                first.entry(link).and_modify(|known| *known = known.min(ready)).or_insert(ready);
            }
        }
        first.retain(|_, ready| ready.0.is_finite());
        first
    }

    /// The time per byte of all fast links into a rank together; `None` if there is no limit.
    pub(super) fn ingress(&self, rank: Rank) -> Option<MicrosPerByte> {
        let incoming = self.problem.topology.incoming(rank).iter().copied();
        let fast: Vec<LinkId> = incoming.filter(|id| self.fast[id.index()]).collect();
        let rate = capacity(&self.problem.topology, &fast);
        (rate > 0.0 && rate.is_finite()).then(|| MicrosPerByte(1.0 / rate))
    }

    /// The crossings as routed, with those of one turn in one message, and other divisions of them into messages.
    pub(super) fn plans_of(&self, routes: &[Routed]) -> Vec<CrossingPlan> {
        let mut loads: BTreeMap<LinkId, Vec<Routed>> = BTreeMap::new();
        routes.iter().for_each(|it| loads.entry(it.link).or_default().push(*it));
        let mut plans = vec![self.plan_of(&loads)];
        let chunks = |load: &[Routed]| load.iter().map(|it| it.chunk).collect::<Vec<ChunkId>>();
        let loads = loads.iter().map(|(&link, load)| (link, chunks(load))).collect();
        for plan in self.divisions(&loads) {
            if !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        plans
    }

    /// Messages by link and turn, in the order of their turns; own chunks before relayed ones if the sketch asks for
    /// it.
    fn plan_of(&self, loads: &BTreeMap<LinkId, Vec<Routed>>) -> CrossingPlan {
        let mut plan: Vec<(Micros, Crossing)> = Vec::new();
        for (&link, load) in loads {
            let from = self.problem.topology.link(link).from;
            let own_first = self.problem.constraints.own_chunks_first.is_some();
            let relayed = |it: &Routed| own_first && !self.problem.demand.chunk(it.chunk).holders.has(from);
            let mut load = load.clone();
            load.sort_by(|a, b| {
                let turns = a.departure.total_cmp(&b.departure);
                relayed(a).cmp(&relayed(b)).then(turns).then(a.chunk.cmp(&b.chunk))
            });
            let mut turn = Micros::ZERO;
            for together in load.chunk_by(|a, b| a.departure == b.departure && relayed(a) == relayed(b)) {
                turn = turn.max(together[0].departure);
                plan.push((turn, Crossing { link, chunks: together.iter().map(|it| it.chunk).collect() }));
            }
        }
        plan.sort_by(|a, b| a.0.total_cmp(&b.0));
        plan.into_iter().map(|(_, crossing)| crossing).collect()
    }
}
