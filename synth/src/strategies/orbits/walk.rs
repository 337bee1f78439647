//! One walk through time on orbits: at each instant the free orbits of links choose what to carry.
//!
//! The principal type is [`Walk`]. Each orbit of links has a queue of candidates: a base chunk over one link of the
//! orbit, whose sender has the chunk and whose receiver lacks it. Receivers nearest to the chunk's holders come first.
//! If two orbits want to serve the same rank with the same chunk at one instant, the earlier one takes something else
//! if it can. This is an augmenting path of length two in the bipartite matching of orbits and ranks.

use super::Orbits;
use crate::problem::distance::PathTree;
use crate::problem::options::DeadlinePoll;
use crate::problem::{Deadline, Problem};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use schedule::{ChunkId, RankSet};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use topology::{Bytes, LinkId, Micros, Rank};

/// The most deliveries of base chunks in one search.
const MOST_DELIVERIES: usize = 1 << 24;
/// How often the deadline is checked, in messages.
const POLLED: u64 = 1 << 18;
/// A message takes at most the waiting chunks divided by this number, so that the last chunks go alone, on several
/// links.
const WAITING: usize = 4;

/// The parameters of one walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkStyle {
    pub(super) merge: usize,
    pub(super) seed: u64,
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
    /// For each rank, its distance from the holders: the bits of an `f32`, which order as its values do.
    distance: Rc<[u32]>,
}

/// A candidate of an orbit of links: nearest receivers first, then in random order.
type WalkCandidate = Reverse<(u32, u32, u32, LinkId)>;

/// A set of (chunk, rank) pairs, one bit each.
struct ChunkRankSet {
    ranks: usize,
    words: Vec<u64>,
}

impl ChunkRankSet {
    fn new(chunks: usize, ranks: usize) -> Self {
        Self { ranks, words: vec![0; (chunks * ranks).div_ceil(64)] }
    }

    fn has(&self, chunk: u32, rank: Rank) -> bool {
        let place = chunk as usize * self.ranks + rank.index();
        self.words[place / 64] >> (place % 64) & 1 == 1
    }

    fn set(&mut self, chunk: u32, rank: Rank) {
        let place = chunk as usize * self.ranks + rank.index();
        self.words[place / 64] |= 1 << (place % 64);
    }
}

impl<'a> Walk<'a> {
    /// The tables of `problem`; `None` if some chunk is not wanted by all ranks, which may need relays, or if there are
    /// too many deliveries.
    pub(super) fn new(orbits: &'a Orbits, problem: &'a Problem) -> Option<Self> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let base = || (0..orbits.chunks.orbits() as u32).map(|orbit| ChunkId(orbits.chunks.first(orbit)));
        if base().any(|id| demand.chunk(id).wanted_by.len() < topology.rank_count()) {
            return None;
        }
        let deliveries = base().map(|id| topology.rank_count() - demand.chunk(id).holders.len()).sum();
        if deliveries > MOST_DELIVERIES {
            return None;
        }
        let mut chunks = Vec::with_capacity(orbits.chunks.orbits());
        let mut known: Option<(&RankSet, Rc<[u32]>)> = None;
        for id in base() {
            let chunk = demand.chunk(id);
            let distance = match &known {
                Some((holders, distance)) if *holders == &chunk.holders => distance.clone(),
                _ => {
                    let length = |link| {
                        let time = topology.link(link).transfer_time(demand.bytes_of(id)).0;
                        problem.allows(id, link).then(|| time.max(f64::MIN_POSITIVE))
                    };
                    let paths = PathTree::new(topology, chunk.holders.iter().copied(), length);
                    paths.distance.iter().map(|&distance| (distance as f32).to_bits()).collect()
                }
            };
            known = Some((&chunk.holders, distance.clone()));
            chunks.push(BaseChunk { id, bytes: demand.bytes_of(id), distance });
        }
        Some(Self { orbits, problem, chunks, deliveries })
    }

    pub(super) fn deliveries(&self) -> usize {
        self.deliveries
    }

    /// The makespan of a plan that ends before `cutoff`, and its messages in the order in which they leave.
    pub(super) fn run(&self, style: WalkStyle, cutoff: Micros, deadline: &Deadline) -> Option<(Micros, Vec<Sent>)> {
        let mut state = WalkState::new(self, style);
        let mut poll = DeadlinePoll::new(deadline, POLLED);
        let mut now = Micros::ZERO;
        while state.missing > 0 {
            let before = state.sent.len();
            state.choose(now);
            if poll.is_over_after(state.sent.len() - before + 1) || state.makespan >= cutoff {
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

struct WalkState<'a> {
    walk: &'a Walk<'a>,
    style: WalkStyle,
    random: Pcg64Mcg,
    /// Held or on its way.
    promised: ChunkRankSet,
    missing: usize,
    /// The candidates of each orbit of links.
    waiting: Vec<BinaryHeap<WalkCandidate>>,
    free: Vec<Micros>,
    awake: Vec<u32>,
    is_awake: Vec<bool>,
    events: BinaryHeap<Reverse<(u64, WalkEvent)>>,
    sent: Vec<Sent>,
    makespan: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WalkEvent {
    Arrived(u32),
    Free(u32),
}

impl<'a> WalkState<'a> {
    fn new(walk: &'a Walk<'a>, style: WalkStyle) -> Self {
        let orbits = walk.orbits.links.orbits();
        let mut state = Self {
            walk,
            style,
            random: Pcg64Mcg::seed_from_u64(style.seed),
            promised: ChunkRankSet::new(walk.chunks.len(), walk.problem.topology.rank_count()),
            missing: walk.deliveries,
            waiting: vec![BinaryHeap::new(); orbits],
            free: vec![Micros::ZERO; orbits],
            awake: Vec::new(),
            is_awake: vec![false; orbits],
            events: BinaryHeap::new(),
            sent: Vec::new(),
            makespan: Micros::ZERO,
        };
        for (chunk, base) in (0..).zip(&walk.chunks) {
            let holders = &walk.problem.demand.chunk(base.id).holders;
            holders.iter().for_each(|&rank| state.promised.set(chunk, rank));
            holders.iter().for_each(|&rank| state.offer(chunk, rank));
        }
        state
    }

    fn wake(&mut self, orbit: u32) {
        if !std::mem::replace(&mut self.is_awake[orbit as usize], true) {
            self.awake.push(orbit);
        }
    }

    /// Adds candidates: `rank` has `chunk`, and its links can carry it on.
    fn offer(&mut self, chunk: u32, rank: Rank) {
        let walk = self.walk;
        let base = &walk.chunks[chunk as usize];
        for &link in walk.problem.topology.outgoing(rank) {
            let to = walk.problem.topology.link(link).to;
            if !self.promised.has(chunk, to) && walk.problem.allows(base.id, link) {
                let orbit = walk.orbits.links.orbit(link.0);
                let lot = self.random.next_u32();
                self.waiting[orbit as usize].push(Reverse((base.distance[to.index()], lot, chunk, link)));
                self.wake(orbit);
            }
        }
    }

    /// Advances to the next instant at which something happens, and processes its events.
    fn advance(&mut self) -> Option<Micros> {
        let Reverse((instant, _)) = *self.events.peek()?;
        while let Some(&Reverse((time, event))) = self.events.peek()
            && time == instant
        {
            self.events.pop();
            match event {
                WalkEvent::Free(orbit) => self.wake(orbit),
                WalkEvent::Arrived(message) => {
                    for item in self.sent[message as usize].items.clone() {
                        self.offer(item.chunk, self.walk.problem.topology.link(item.link).to);
                    }
                }
            }
        }
        Some(Micros(f64::from_bits(instant)))
    }

    /// Lets the free orbits choose, those with the fewest candidates first.
    fn choose(&mut self, now: Micros) {
        let mut ready: Vec<(usize, u32)> = Vec::with_capacity(self.awake.len());
        for orbit in std::mem::take(&mut self.awake) {
            self.is_awake[orbit as usize] = false;
            if self.free[orbit as usize] <= now && !self.waiting[orbit as usize].is_empty() {
                ready.push((self.waiting[orbit as usize].len(), orbit));
            }
        }
        ready.sort_unstable();
        let mut chosen: Vec<(u32, SmallVec<[ChunkOnLink; 1]>)> = Vec::with_capacity(ready.len());
        let mut by_place: BTreeMap<(u32, Rank), usize> = BTreeMap::new();
        for (_, orbit) in ready {
            let items = self.take(orbit, &mut chosen, &mut by_place);
            if !items.is_empty() {
                let index = chosen.len();
                for item in &items {
                    by_place.insert((item.chunk, self.walk.problem.topology.link(item.link).to), index);
                }
                chosen.push((orbit, items));
            }
        }
        for (orbit, items) in chosen {
            self.send(now, orbit, items);
        }
    }

    /// The items that an orbit takes; they count as promised from now on.
    fn take(
        &mut self,
        orbit: u32,
        chosen: &mut [(u32, SmallVec<[ChunkOnLink; 1]>)],
        by_place: &mut BTreeMap<(u32, Rank), usize>,
    ) -> SmallVec<[ChunkOnLink; 1]> {
        let most = self.style.merge.min(self.waiting[orbit as usize].len() / WAITING).max(1);
        let mut items = SmallVec::new();
        let mut contested: SmallVec<[ChunkOnLink; 4]> = SmallVec::new();
        while items.len() < most
            && let Some(Reverse((_, _, chunk, link))) = self.waiting[orbit as usize].pop()
        {
            let item = ChunkOnLink { chunk, link };
            let to = self.walk.problem.topology.link(link).to;
            if !self.promised.has(chunk, to) {
                self.promise(item);
                items.push(item);
            } else if items.is_empty() && contested.len() < 4 && by_place.contains_key(&(chunk, to)) {
                contested.push(item);
            }
        }
        if items.is_empty() {
            items.extend(contested.into_iter().find(|item| self.gives_way(*item, chosen, by_place)));
        }
        items
    }

    /// Whether the orbit that serves an item's rank at this instant finds something else to carry.
    fn gives_way(
        &mut self,
        item: ChunkOnLink,
        chosen: &mut [(u32, SmallVec<[ChunkOnLink; 1]>)],
        by_place: &mut BTreeMap<(u32, Rank), usize>,
    ) -> bool {
        let topology = &self.walk.problem.topology;
        let place = (item.chunk, topology.link(item.link).to);
        let Some(&index) = by_place.get(&place) else { return false };
        let (other, items) = &mut chosen[index];
        if items.len() > 1 {
            return false;
        }
        while let Some(Reverse((_, _, chunk, link))) = self.waiting[*other as usize].pop() {
            let to = topology.link(link).to;
            if !self.promised.has(chunk, to) {
                let instead = ChunkOnLink { chunk, link };
                items[0] = instead;
                by_place.insert((chunk, to), index);
                self.promise(instead);
                return true;
            }
        }
        false
    }

    fn promise(&mut self, item: ChunkOnLink) {
        self.promised.set(item.chunk, self.walk.problem.topology.link(item.link).to);
        self.missing -= 1;
    }

    fn send(&mut self, start: Micros, orbit: u32, mut items: SmallVec<[ChunkOnLink; 1]>) {
        let link = self.walk.problem.topology.link(items[0].link);
        let bytes: Bytes = items.iter().map(|item| self.walk.chunks[item.chunk as usize].bytes).sum();
        let (end, free) = (start + link.transfer_time(bytes), start + link.occupancy(bytes));
        self.free[orbit as usize] = free;
        self.makespan = self.makespan.max(end);
        let message = self.sent.len() as u32;
        self.events.push(Reverse((end.0.to_bits(), WalkEvent::Arrived(message))));
        if free > start {
            self.events.push(Reverse((free.0.to_bits(), WalkEvent::Free(orbit))));
        } else {
            self.wake(orbit);
        }
        items.sort_unstable();
        self.sent.push(Sent { items, start, end });
    }
}
