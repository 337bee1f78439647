//! One walk through time on orbits: at each instant the free orbits of links choose what to carry.
//!
//! The principal type is [`Walk`]. Each orbit of links has a queue of candidates: a base chunk over one link of the
//! orbit, whose sender has the chunk and whose receiver lacks it. Receivers nearest to the chunk's holders come first.
//! If two orbits want to serve the same rank with the same chunk at one instant, the earlier one takes something else
//! if it can. This is an augmenting path of length two in the bipartite matching of orbits and ranks.
//!
//! Chunks that one rank wants follow routes that are chosen before ([`routes`](super::routes)); those with the longest
//! way to go come first. Orbits that share a port take turns: at each instant, the one with the most urgent candidate.

mod state;

use super::Orbits;
use super::routes::balanced_routes;
use crate::problem::distance::PathTree;
use crate::problem::options::DeadlinePoll;
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, RankSet};
use smallvec::SmallVec;
use state::WalkState;
use std::rc::Rc;
use topology::{Bytes, LinkId, Micros, Topology};

/// The most deliveries of base chunks in one search.
const MOST_DELIVERIES: usize = 1 << 24;
/// The most pairs of a base chunk with a route and a rank: a bit each, 32 MiB together.
const MOST_PLACES: usize = 1 << 28;
/// How often the deadline is checked, in messages, and where ports are shared, in candidates looked at.
const POLLED: [u64; 2] = [1 << 18, 1 << 22];

/// The parameters of one walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkStyle {
    pub(super) merge: usize,
    pub(super) prefer: Preference,
    pub(super) seed: u64,
}

/// Which receivers a link serves first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preference {
    /// Those nearest to the chunk's holders.
    Nearest,
    /// Those that no rank which has the chunk reaches over a faster link: a slow link carries what must pass it, and
    /// leaves the rest to the fast ones.
    HardToReach,
}

/// A base chunk over a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ChunkOnLink {
    pub(super) chunk: u32,
    pub(super) link: LinkId,
}

/// A message of base chunks over links of one orbit. Each of these links carries an image of the message.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) items: SmallVec<[ChunkOnLink; 1]>,
    pub(super) start: Micros,
    pub(super) end: Micros,
}

/// Tables that all walks share.
pub(super) struct Walk<'a> {
    orbits: &'a Orbits,
    problem: &'a Problem,
    chunks: Vec<BaseChunk>,
    deliveries: usize,
}

struct BaseChunk {
    id: ChunkId,
    bytes: Bytes,
    way: BaseWay,
}

/// Where a base chunk goes.
enum BaseWay {
    /// To all ranks; for each its distance from the holders: the bits of an `f32`, which order as its values do.
    Everywhere(Rc<[u32]>),
    /// Along these links, each with its urgency: less is more urgent.
    Along(Vec<(LinkId, u32)>),
}

impl<'a> Walk<'a> {
    /// The tables of `problem`; `None` if some chunk is wanted by several ranks but not by all, which may need relays,
    /// if a route is missing, or if there are too many deliveries.
    pub(super) fn new(orbits: &'a Orbits, problem: &'a Problem, deadline: &Deadline) -> Option<Self> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let base: Vec<ChunkId> =
            (0..orbits.chunks.orbits() as u32).map(|orbit| ChunkId(orbits.chunks.first(orbit))).collect();
        let places = base.len() * topology.rank_count();
        let chunks = if base.iter().all(|&id| demand.chunk(id).wanted_by.len() == topology.rank_count()) {
            everywhere(problem, &base)
        } else if places <= MOST_PLACES {
            let routes = balanced_routes(orbits, problem, &base, deadline)?;
            let along = |(&id, route)| {
                let bytes = demand.bytes_of(id);
                BaseChunk { id, bytes, way: BaseWay::Along(urgencies(topology, bytes, route)) }
            };
            base.iter().zip(routes).map(along).collect()
        } else {
            return None;
        };
        let deliveries = chunks.iter().map(|chunk| match &chunk.way {
            BaseWay::Everywhere(_) => topology.rank_count() - demand.chunk(chunk.id).holders.len(),
            BaseWay::Along(route) => route.len(),
        });
        let deliveries = deliveries.sum();
        (deliveries <= MOST_DELIVERIES).then_some(Self { orbits, problem, chunks, deliveries })
    }

    /// Whether links compete for ports, and choose what they carry.
    pub(super) fn has_choice(&self) -> bool {
        let is_open = |chunk: &BaseChunk| matches!(chunk.way, BaseWay::Everywhere(_));
        self.orbits.servers.is_shared() && self.chunks.first().is_some_and(is_open)
    }

    pub(super) fn deliveries(&self) -> usize {
        self.deliveries
    }

    /// About how many candidates the links look at in one run.
    pub(super) fn candidates(&self) -> usize {
        let topology = &self.problem.topology;
        let is_shared = self.orbits.servers.is_shared();
        self.deliveries * if is_shared { topology.links().len() / topology.rank_count() } else { 1 }
    }

    /// The makespan of a plan that ends before `cutoff`, and its messages in the order in which they leave. Where ports
    /// are shared, adds to `looked_at` the candidates that links looked at.
    pub(super) fn run(
        &self,
        style: WalkStyle,
        cutoff: Micros,
        deadline: &Deadline,
        looked_at: &mut usize,
    ) -> Option<(Micros, Vec<Sent>)> {
        let mut state = WalkState::new(self, style);
        let is_shared = self.orbits.servers.is_shared();
        let mut poll = DeadlinePoll::new(deadline, POLLED[usize::from(is_shared)]);
        let mut now = Micros::ZERO;
        while state.missing > 0 {
            let before = state.sent.len();
            state.choose(now);
            let candidates = if is_shared { std::mem::take(&mut state.looked_at) } else { 0 };
            *looked_at += candidates;
            if poll.is_over_after(state.sent.len() - before + 1 + candidates) || state.makespan >= cutoff {
                return None;
            }
            match state.advance() {
                Some(next) => now = next,
                None if state.missing > 0 => return None,
                None => break,
            }
        }
        Some((state.makespan, state.sent))
    }
}

/// Base chunks that all ranks want.
fn everywhere(problem: &Problem, base: &[ChunkId]) -> Vec<BaseChunk> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let mut chunks = Vec::with_capacity(base.len());
    let mut known: Option<(&RankSet, Rc<[u32]>)> = None;
    for &id in base {
        let chunk = demand.chunk(id);
        let distance = match &known {
            Some((holders, distance)) if *holders == &chunk.holders => distance.clone(),
            _ => {
                let length = |link| {
                    let time = topology.link(link).transfer_time(demand.bytes_of(id)).0;
                    problem.allows(id, link).then(|| time.max(f64::MIN_POSITIVE))
                };
                let paths = PathTree::new(topology, chunk.holders.iter().copied(), length);
                paths.distance.iter().map(|&distance| ordered(distance)).collect()
            }
        };
        known = Some((&chunk.holders, distance.clone()));
        chunks.push(BaseChunk { id, bytes: demand.bytes_of(id), way: BaseWay::Everywhere(distance) });
    }
    chunks
}

/// The bits of a time that is not negative, as an `f32`: they order as the times do.
fn ordered(time: f64) -> u32 {
    (time as f32).to_bits()
}

/// The links of a route, each with its urgency: the more of the way is left, the more urgent.
fn urgencies(topology: &Topology, bytes: Bytes, route: Vec<LinkId>) -> Vec<(LinkId, u32)> {
    let mut left = 0.0;
    let mut links: Vec<(LinkId, u32)> = route
        .into_iter()
        .rev()
        .map(|id| {
            left += topology.link(id).transfer_time(bytes).0;
            (id, u32::MAX - ordered(left))
        })
        .collect();
    links.reverse();
    links
}
