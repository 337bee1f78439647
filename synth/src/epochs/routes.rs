//! Where and when each chunk could travel at all: the columns of a time-expanded model, before the model is built.
//!
//! The principal type is [`Routes`]. A departure is kept only if the chunk can be at the sender by then, and can still
//! be useful afterwards: it arrives where it is wanted, or goes on from there, within the horizon. On a machine of
//! eight ranks this removes a third of the columns, and in an AllToAll nearly all of them. The formulation defines the
//! epoch: a given length of time, or a period whose length is still to be found.

use crate::problem::Problem;
use crate::problem::distance::spread_from;
use crate::problem::reach::machine_hops;
use crate::symmetry::PairOrbits;
use schedule::ChunkId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use topology::{Bytes, Link, LinkId, Rank};

/// Epochs from the departure to the arrival of the given bytes over a link; at least one.
pub(crate) type EpochLatency<'a> = dyn Fn(&Link, Bytes) -> u32 + 'a;

/// The routes and epochs that a chunk may use.
#[derive(Clone, Debug)]
pub(crate) enum Leeway {
    /// Over any link that the sketch allows, at any time.
    Free,
    /// Only these links, and on each only departures in these epochs.
    Near(BTreeMap<LinkId, RangeInclusive<u32>>),
}

impl Leeway {
    fn departures(&self, link: LinkId, horizon: u32) -> Option<RangeInclusive<u32>> {
        match self {
            Self::Free => Some(0..=horizon),
            Self::Near(links) => links.get(&link).cloned(),
        }
    }
}

/// One chunk over one link, departing in one of a range of epochs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) chunk: ChunkId,
    pub(crate) link: LinkId,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// The epochs of departures that can matter; never empty.
    pub(crate) departures: RangeInclusive<u32>,
    pub(crate) latency: u32,
}

/// All routes, chunk by chunk, links ascending.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    pub(crate) all: Vec<Route>,
}

impl Routes {
    /// Expands `problem` up to `horizon` epochs; `leeway` has one entry per chunk.
    ///
    /// `None` if some chunk cannot arrive everywhere by then, even on empty links.
    pub(crate) fn new(problem: &Problem, latency: &EpochLatency<'_>, horizon: u32, leeway: &[Leeway]) -> Option<Self> {
        let mut all = Vec::new();
        for (chunk, leeway) in problem.demand.chunk_ids().zip(leeway) {
            let hops = chunk_hops(problem, latency, horizon, chunk, leeway);
            extend(&mut all, problem, horizon, chunk, hops)?;
        }
        Some(Self { all })
    }

    /// The number of departures, before orbits are merged.
    pub(crate) fn departures(&self) -> usize {
        self.all.iter().map(|route| route.departures.clone().count()).sum()
    }

    /// The number of 0/1 columns for departures in a model of these routes.
    pub(crate) fn columns(&self, orbits: Option<&PairOrbits>) -> usize {
        let Some(orbits) = orbits else { return self.departures() };
        let orbit = |route: &Route| orbits.of(route.chunk, route.link);
        let pairs = self.all.iter().flat_map(|route| route.departures.clone().map(move |epoch| (orbit(route), epoch)));
        pairs.collect::<BTreeSet<_>>().len()
    }

    /// The routes of each chunk that has any, chunks ascending.
    pub(crate) fn by_chunk(&self) -> impl Iterator<Item = &[Route]> {
        self.all.chunk_by(|a, b| a.chunk == b.chunk)
    }
}

/// The links that `chunk` may use, with all departures that `leeway` permits.
fn chunk_hops(
    problem: &Problem,
    latency: &EpochLatency<'_>,
    horizon: u32,
    chunk: ChunkId,
    leeway: &Leeway,
) -> Vec<Route> {
    let topology = &problem.topology;
    let bytes = problem.demand.bytes_of(chunk);
    let fewest = problem.constraints.max_machine_hops.map(|(limit, _)| (limit, machine_hops(problem, chunk)));
    let within_hops = |id: LinkId| {
        let link = topology.link(id);
        let crossing = u32::from(topology.crosses_machines(link));
        fewest.as_ref().is_none_or(|(limit, hops)| hops[link.from.index()].is_some_and(|h| h + crossing <= *limit))
    };
    let holders = &problem.demand.chunk(chunk).holders;
    let hop = |id: LinkId| {
        let link = topology.link(id);
        let departures = leeway.departures(id, horizon)?;
        let useful = !holders.has(link.to) && problem.allows(chunk, id) && within_hops(id);
        let latency = latency(link, bytes);
        useful.then_some(Route { chunk, link: id, from: link.from, to: link.to, departures, latency })
    };
    match leeway {
        Leeway::Free => topology.link_ids().filter_map(hop).collect(),
        Leeway::Near(links) => links.keys().copied().filter_map(hop).collect(),
    }
}

/// Adds the hops of one chunk, limited to departures that are possible and useful.
fn extend(all: &mut Vec<Route>, problem: &Problem, horizon: u32, chunk: ChunkId, hops: Vec<Route>) -> Option<()> {
    let ranks = problem.topology.rank_count();
    let chunk = problem.demand.chunk(chunk);
    let held = fastest(
        ranks,
        &chunk.holders,
        &hops,
        |hop| (hop.from, hop.to),
        |hop, at| {
            let departure = at.max(*hop.departures.start());
            (departure <= *hop.departures.end()).then_some(departure + hop.latency)
        },
    );
    if chunk.lacking().any(|rank| held[rank.index()].is_none_or(|at| at > horizon)) {
        return None;
    }
    let wanting: Vec<Rank> = chunk.lacking().collect();
    let remaining = fastest(ranks, &wanting, &hops, |hop| (hop.to, hop.from), |hop, left| Some(left + hop.latency));
    for hop in hops {
        let (Some(held), Some(left)) = (held[hop.from.index()], remaining[hop.to.index()]) else { continue };
        let Some(last) = horizon.checked_sub(left + hop.latency) else { continue };
        let departures = held.max(*hop.departures.start())..=last.min(*hop.departures.end());
        if !departures.is_empty() {
            all.push(Route { departures, ..hop });
        }
    }
    Some(())
}

/// The shortest times in epochs from `sources` to all ranks. `ends` gives the two ends of a hop in the direction of the
/// search. `after` gives the epoch at which a hop entered at some epoch is left; `None` if the hop cannot be taken.
fn fastest(
    ranks: usize,
    sources: &[Rank],
    hops: &[Route],
    ends: impl Fn(&Route) -> (Rank, Rank),
    after: impl Fn(&Route, u32) -> Option<u32>,
) -> Vec<Option<u32>> {
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for (index, hop) in hops.iter().enumerate() {
        outgoing[ends(hop).0.index()].push(index);
    }
    let reached = spread_from(sources.iter().copied(), 0, ranks, |rank, at, offer| {
        for &hop in &outgoing[rank.index()] {
            if let Some(next) = after(&hops[hop], at) {
                offer(ends(&hops[hop]).1, next, hop);
            }
        }
    });
    reached.into_iter().map(|reached| reached.map(|(at, _)| at)).collect()
}
