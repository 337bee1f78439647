//! Rings and chains: a cycle through all members is searched on the links that exist.
//!
//! The principal function is [`rings`]. Finding a Hamiltonian cycle is hard in general, so the search is depth-first
//! with a bounded number of steps. It first visits the neighbour that is hardest to reach later (Warnsdorff's rule),
//! and in ties the members in ascending order. Further rings use no link of the earlier ones, so that all can run at
//! full speed.

use super::{Inapplicable, RoundHop, chunks_of, few_enough, from_root};
use crate::problem::Problem;
use schedule::{ChunkId, Collective};
use std::collections::BTreeSet;
use topology::{LinkId, Rank};

/// The most steps of one search for a cycle.
const STEPS: u32 = 20_000;
/// The most rings that are used side by side.
const RINGS: usize = 8;

/// AllGather: every ring takes an equal part of each member's chunks once around.
pub(super) fn all_gather(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let rings = rings(problem)?;
    let mut hops = Vec::new();
    let members = &problem.demand.request().members;
    for (owner, &rank) in members.iter().enumerate() {
        for (turn, chunk) in chunks_of(problem, owner).enumerate() {
            let ring = &rings[turn % rings.len()];
            hops.extend(along(ring, rank, chunk, ring.len() - 1));
        }
    }
    Ok(hops)
}

/// AllGather: every chunk goes half-way around in both directions.
pub(super) fn all_gather_two_way(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let rings = rings(problem)?;
    let forward = &rings[0];
    let backward: Vec<Rank> = forward.iter().rev().copied().collect();
    let mut hops = Vec::new();
    let members = &problem.demand.request().members;
    for (owner, &rank) in members.iter().enumerate() {
        for (turn, chunk) in chunks_of(problem, owner).enumerate() {
            // The direction of the longer half alternates, so that both directions carry equally much.
            let steps = [(members.len() - 1) / 2, members.len() / 2];
            hops.extend(along(forward, rank, chunk, steps[turn % 2]));
            hops.extend(along(&backward, rank, chunk, steps[1 - turn % 2]));
        }
    }
    Ok(hops)
}

/// AllToAll: every chunk goes from its source along the first ring to its destination, the shorter way around.
pub(super) fn all_to_all(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let rings = rings(problem)?;
    let forward = &rings[0];
    let backward: Vec<Rank> = forward.iter().rev().copied().collect();
    let position = |ring: &[Rank], rank: Rank| ring.iter().position(|&other| other == rank);
    let mut hops = Vec::new();
    for (id, chunk) in problem.demand.chunk_ids().zip(problem.demand.chunks()) {
        let (from, to) = (chunk.holders[0], chunk.wanted_by[0]);
        let (Some(start), Some(end)) = (position(forward, from), position(forward, to)) else { continue };
        let ahead = (end + forward.len() - start) % forward.len();
        match 2 * ahead <= forward.len() {
            true => hops.extend(along(forward, from, id, ahead)),
            false => hops.extend(along(&backward, from, id, forward.len() - ahead)),
        }
        few_enough(hops.len())?;
    }
    Ok(hops)
}

/// Broadcast: a chain from the root through all members, in which chunks follow each other.
pub(super) fn chain(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    debug_assert_eq!(problem.demand.request().collective, Collective::Broadcast);
    let chain = path(problem, &from_root(problem))?;
    let last = chain.len() - 1;
    let pipelined = |chunk: ChunkId| {
        along(&chain, chain[0], chunk, last).map(move |hop| RoundHop { round: hop.round + chunk.0, ..hop })
    };
    Ok(problem.demand.chunk_ids().flat_map(pipelined).collect())
}

/// A path through all members from the first one.
pub(super) fn path(problem: &Problem, members: &[Rank]) -> Result<Vec<Rank>, Inapplicable> {
    cycle(problem, members, &BTreeSet::new(), Closing::Open).ok_or_else(no_cycle)
}

/// The first `steps` hops of a chunk that starts at `from`.
fn along(ring: &[Rank], from: Rank, chunk: ChunkId, steps: usize) -> impl Iterator<Item = RoundHop> {
    let start = ring.iter().position(|&rank| rank == from).unwrap_or(0);
    (0..steps).map(move |step| {
        let at = |offset: usize| ring[(start + offset) % ring.len()];
        RoundHop { round: step as u32, chunk, from: at(step), to: at(step + 1) }
    })
}

fn no_cycle() -> Inapplicable {
    "needs a cycle through all members, and the search found none".to_owned()
}

/// Cycles through all members that share no link. Each cycle is followed by its reverse if the links for it exist.
fn rings(problem: &Problem) -> Result<Vec<Vec<Rank>>, Inapplicable> {
    let members = problem.demand.request().members.to_vec();
    let mut used = BTreeSet::new();
    let mut rings: Vec<Vec<Rank>> = Vec::new();
    let wanted = RINGS.min(problem.demand.request().chunks_per_rank as usize);
    while rings.len() < wanted.max(1) {
        let reversed = rings.last().map(|ring| ring.iter().rev().copied().collect::<Vec<_>>());
        let reversed = reversed.filter(|ring| links(problem, ring, &used).is_some());
        let Some(ring) = reversed.or_else(|| cycle(problem, &members, &used, Closing::Closed)) else { break };
        used.extend(links(problem, &ring, &used).into_iter().flatten());
        rings.push(ring);
    }
    if rings.is_empty() { Err(no_cycle()) } else { Ok(rings) }
}

/// The links along a closed ring that are not in `used`; `None` if one is missing.
fn links(problem: &Problem, ring: &[Rank], used: &BTreeSet<LinkId>) -> Option<Vec<LinkId>> {
    (0..ring.len()).map(|at| free_link(problem, ring[at], ring[(at + 1) % ring.len()], used)).collect()
}

fn free_link(problem: &Problem, from: Rank, to: Rank, used: &BTreeSet<LinkId>) -> Option<LinkId> {
    problem.topology.between(from, to).find(|link| problem.allows_link(*link) && !used.contains(link))
}

/// Whether the last member must have a link back to the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closing {
    Closed,
    Open,
}

/// A path through all `members` from the first one, by bounded depth-first search.
fn cycle(problem: &Problem, members: &[Rank], used: &BTreeSet<LinkId>, closing: Closing) -> Option<Vec<Rank>> {
    let mut is_member = vec![false; problem.topology.rank_count()];
    members.iter().for_each(|rank| is_member[rank.index()] = true);
    let bytes = problem.demand.bytes_of(ChunkId(0));
    let successors = |rank: Rank| {
        let free = problem.topology.outgoing(rank).iter().filter(|&&id| problem.allows_link(id) && !used.contains(&id));
        let mut to: Vec<Neighbour> = free
            .map(|&id| problem.topology.link(id))
            .filter(|link| is_member[link.to.index()])
            .map(|link| match closing {
                // Every member of a ring has to be passed, at whatever cost.
                Closing::Closed => Neighbour { rank: link.to, time: 0 },
                // Times are not negative, so their bit patterns have the same order.
                Closing::Open => Neighbour { rank: link.to, time: link.transfer_time(bytes).0.to_bits() },
            })
            .collect();
        to.sort_unstable();
        to.dedup_by_key(|to| to.rank);
        to
    };
    let mut neighbours: Vec<Vec<Neighbour>> = vec![Vec::new(); problem.topology.rank_count()];
    members.iter().for_each(|&rank| neighbours[rank.index()] = successors(rank));
    CycleSearch::new(neighbours, members.len()).run(members, closing)
}

/// Where a link leads, and what counts as its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Neighbour {
    rank: Rank,
    time: u64,
}

struct CycleSearch {
    /// For each rank, the ranks that its links lead to, ascending.
    neighbours: Vec<Vec<Neighbour>>,
    /// For each rank, the ranks whose links lead to it.
    behind: Vec<Vec<Rank>>,
    visited: Vec<bool>,
    /// For each rank, how many of its neighbours are not visited.
    open: Vec<usize>,
    steps: u32,
}

impl CycleSearch {
    fn new(neighbours: Vec<Vec<Neighbour>>, members: usize) -> Self {
        let mut behind = vec![Vec::new(); neighbours.len()];
        for (rank, ahead) in neighbours.iter().enumerate() {
            ahead.iter().for_each(|next| behind[next.rank.index()].push(Rank::from_index(rank)));
        }
        let visited = vec![false; neighbours.len()];
        let open = neighbours.iter().map(Vec::len).collect();
        Self { neighbours, behind, visited, open, steps: STEPS.max(4 * members as u32) }
    }

    fn visit(&mut self, rank: Rank) {
        self.visited[rank.index()] = true;
        self.behind[rank.index()].iter().for_each(|behind| self.open[behind.index()] -= 1);
    }

    fn leave(&mut self, rank: Rank) {
        self.visited[rank.index()] = false;
        self.behind[rank.index()].iter().for_each(|behind| self.open[behind.index()] += 1);
    }

    fn run(&mut self, members: &[Rank], closing: Closing) -> Option<Vec<Rank>> {
        let first = *members.first()?;
        self.visit(first);
        let mut path = vec![first];
        let mut choices = vec![self.choices(first)];
        loop {
            let last = *path.last()?;
            if path.len() == members.len() {
                let closes = members.len() == 1 || self.neighbours[last.index()].iter().any(|next| next.rank == first);
                if closes || closing == Closing::Open {
                    return Some(path);
                }
            }
            match choices.last_mut()?.pop() {
                Some(next) => {
                    self.steps = self.steps.checked_sub(1)?;
                    self.visit(next);
                    path.push(next);
                    choices.push(self.choices(next));
                }
                None => {
                    choices.pop();
                    path.pop();
                    self.leave(last);
                }
            }
        }
    }

    /// The unvisited neighbours. The one to try first is last: the one with the fewest open neighbours, then the one that is
    /// reached soonest, then the next higher number.
    fn choices(&self, at: Rank) -> Vec<Rank> {
        let ranks = self.neighbours.len() as u32;
        let key = |to: &Neighbour| (self.open[to.rank.index()].min(MANY), to.time, (to.rank.0 + ranks - at.0) % ranks);
        let ahead = self.neighbours[at.index()].iter().copied();
        let mut choices: Vec<Neighbour> = ahead.filter(|to| !self.visited[to.rank.index()]).collect();
        choices.sort_by_cached_key(|to| std::cmp::Reverse(key(to)));
        choices.into_iter().map(|to| to.rank).collect()
    }
}

/// A rank with at least this many open neighbours is not hard to reach.
const MANY: usize = 8;
