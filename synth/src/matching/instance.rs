//! What every restart shares: which rank accepts which chunk, which link may carry it, and distances.
//!
//! The principal type is [`Instance`]. A rank accepts a chunk if it wants it, or if a path to somebody who wants
//! it leads through the rank (a relay); such ranks are chosen here, once, so that the matching itself treats
//! relays and destinations alike. Copies that a relay turns out not to need are pruned afterwards.

use super::bits::BitMatrix;
use crate::distance::{LimitedPaths, PathTree};
use crate::reach::check_reachable;
use crate::{Problem, SynthError};
use schedule::{Chunk, ChunkId, Demand};
use topology::{LinkId, Micros, Rank, Topology};

/// The most ranks for which all distances are computed: beyond, looking ahead costs more than it gains.
const LOOKAHEAD_RANKS: usize = 64;
/// The most entries of a rank × chunk table of distances (4 MiB of `f32`).
const LOOKAHEAD_ENTRIES: usize = 1 << 20;

/// The tables of one problem.
pub(super) struct Instance<'a> {
    pub(super) problem: &'a Problem,
    pub(super) topology: &'a Topology,
    pub(super) demand: &'a Demand,
    /// rank × chunk: held from the start.
    pub(super) initial: BitMatrix,
    /// rank × chunk: wanted, or useful to relay.
    pub(super) accepts: BitMatrix,
    /// link × chunk, only where a sketch reserves links for owners: who may use it.
    pub(super) allowed: Option<BitMatrix>,
    /// rank × rank: the time of one chunk over a shortest path; `None` where that is too much to compute.
    pub(super) distance: Option<Vec<f32>>,
    /// The largest finite distance; 1 where there is none, because others divide by it.
    pub(super) diameter: f32,
}

impl<'a> Instance<'a> {
    /// The tables of `problem`.
    ///
    /// # Errors
    /// [`SynthError::Infeasible`] where no allowed path leads from a holder to a rank that wants the chunk.
    pub(super) fn new(problem: &'a Problem) -> Result<Self, SynthError> {
        check_reachable(problem)?;
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let (ranks, chunks) = (topology.rank_count(), demand.chunks().len());
        let mut initial = BitMatrix::new(ranks, chunks);
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            chunk.holders.iter().for_each(|holder| initial.set(holder.index(), id.index()));
        }
        let allowed = (!problem.constraints.owners.is_empty()).then(|| {
            let mut allowed = BitMatrix::new(topology.links().len(), chunks);
            for link in topology.link_ids() {
                let may = demand.chunk_ids().filter(|&chunk| problem.allows(chunk, link));
                may.for_each(|chunk| allowed.set(link.index(), chunk.index()));
            }
            allowed
        });
        let accepts = acceptance(problem);
        let affordable = ranks <= LOOKAHEAD_RANKS && ranks * chunks <= LOOKAHEAD_ENTRIES;
        let distance = affordable.then(|| distances(problem));
        let finite = distance.iter().flatten().copied().filter(|distance| distance.is_finite());
        let diameter = Some(finite.fold(0.0, f32::max)).filter(|&diameter| diameter > 0.0).unwrap_or(1.0);
        Ok(Self { problem, topology, demand, initial, accepts, allowed, distance, diameter })
    }

    /// From the start of a message of one chunk to its arrival.
    pub(super) fn duration(&self, link: LinkId, chunk: ChunkId) -> Micros {
        self.topology.link(link).transfer_time(self.demand.bytes_of(chunk))
    }
}

/// rank × chunk: who should receive what.
fn acceptance(problem: &Problem) -> BitMatrix {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let mut accepts = BitMatrix::new(topology.rank_count(), demand.chunks().len());
    let mut previous: Option<(&Chunk, Vec<Rank>)> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        // The C chunks of one rank follow each other and travel under the same rules.
        let acceptors = match previous.take() {
            Some((like, acceptors)) if like == chunk => acceptors,
            _ if chunk.wanted_by.len() == topology.rank_count() => topology.ranks().collect(),
            _ => acceptors(problem, id),
        };
        acceptors.iter().for_each(|rank| accepts.set(rank.index(), id.index()));
        previous = Some((chunk, acceptors));
    }
    accepts
}

/// Who wants `chunk`, and the relays of a tree that reaches them: the nearest is joined first, and a path
/// through ranks that want the chunk is preferred to one through others.
fn acceptors(problem: &Problem, id: ChunkId) -> Vec<Rank> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let chunk = demand.chunk(id);
    let bytes = demand.bytes_of(id);
    let mut accepts = vec![false; topology.rank_count()];
    chunk.wanted_by.iter().for_each(|rank| accepts[rank.index()] = true);
    let length = |link: LinkId| {
        let time = topology.link(link).transfer_time(bytes).0;
        problem.allows(id, link).then(|| time.max(f64::MIN_POSITIVE))
    };
    let through_wanting = PathTree::new(topology, chunk.holders.iter().copied(), |link| {
        accepts[topology.link(link).to.index()].then(|| length(link)).flatten()
    });
    // Where the sketch limits ways, only a permitted one is sure to be of use.
    let limited = problem.constraints.limits_ways();
    let permitted = limited.then(|| LimitedPaths::new(problem, chunk.holders.iter().copied(), length));
    let anywhere = PathTree::new(topology, chunk.holders.iter().copied(), length);
    for &rank in chunk.wanted_by.iter() {
        // A detour of more than half the direct path costs more than a relay does.
        if !limited && through_wanting.distance[rank.index()] <= 1.5 * anywhere.distance[rank.index()] {
            continue;
        }
        let path = permitted.as_ref().map_or_else(|| anywhere.path_to(topology, rank), |paths| paths.path_to(rank));
        for link in path {
            accepts[topology.link(link).to.index()] = true;
        }
    }
    topology.ranks().filter(|rank| accepts[rank.index()]).collect()
}

/// rank × rank: the time of one chunk over a shortest path of allowed links.
fn distances(problem: &Problem) -> Vec<f32> {
    let (topology, bytes) = (&*problem.topology, problem.demand.chunk_bytes());
    let length = |link: LinkId| problem.allows_link(link).then(|| topology.link(link).transfer_time(bytes).0);
    let mut table = Vec::with_capacity(topology.rank_count() * topology.rank_count());
    for rank in topology.ranks() {
        table.extend(PathTree::new(topology, [rank], length).distance.iter().map(|&distance| distance as f32));
    }
    table
}
