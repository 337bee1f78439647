//! The state of one walk: what every base chunk has reached, and when links and ports are free.
//!
//! The principal type is [`WalkState`].

use super::{BaseWay, ChunkOnLink, Preference, Sent, Walk, WalkStyle, ordered};
use crate::ordering::bits::BitMatrix;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use topology::{Bytes, LinkId, Micros, Rank};

/// A message takes at most the waiting chunks divided by this number, so that the last chunks go alone, on several
/// links.
const WAITING: usize = 4;

/// A candidate of an orbit of links: the receivers that are preferred, then the nearest, then in random order.
type WalkCandidate = Reverse<(u32, u32, u32, u32, LinkId)>;

pub(super) struct WalkState<'a> {
    walk: &'a Walk<'a>,
    style: WalkStyle,
    random: Pcg64Mcg,
    /// By base chunk and rank: held or on its way.
    promised: BitMatrix,
    pub(super) missing: usize,
    /// The candidates of each orbit of links.
    waiting: Vec<BinaryHeap<WalkCandidate>>,
    free: Vec<Micros>,
    /// Of servers that are shared: whether a message takes them at this instant.
    taken: Vec<bool>,
    /// For each base chunk and rank, the fastest link to it from a rank that has the chunk or will have it; empty
    /// unless it decides what goes first.
    reach: Vec<u32>,
    awake: Vec<u32>,
    is_awake: Vec<bool>,
    /// Candidates that were looked at since this was last asked.
    pub(super) looked_at: usize,
    events: BinaryHeap<Reverse<(u64, WalkEvent)>>,
    pub(super) sent: Vec<Sent>,
    pub(super) makespan: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WalkEvent {
    Arrived(u32),
    /// A server is free.
    Free(u32),
}

impl<'a> WalkState<'a> {
    pub(super) fn new(walk: &'a Walk<'a>, style: WalkStyle) -> Self {
        let orbits = walk.orbits.links.orbits();
        let mut state = Self {
            walk,
            style,
            random: Pcg64Mcg::seed_from_u64(style.seed),
            promised: BitMatrix::new(walk.chunks.len(), walk.problem.topology.rank_count()),
            missing: walk.deliveries,
            waiting: vec![BinaryHeap::new(); orbits],
            free: vec![Micros::ZERO; walk.orbits.servers.count()],
            taken: vec![false; walk.orbits.servers.count()],
            reach: Vec::new(),
            looked_at: 0,
            awake: Vec::new(),
            is_awake: vec![false; orbits],
            events: BinaryHeap::new(),
            sent: Vec::new(),
            makespan: Micros::ZERO,
        };
        if style.prefer == Preference::HardToReach {
            state.reach = vec![u32::MAX; walk.chunks.len() * walk.problem.topology.rank_count()];
        }
        for (chunk, base) in (0..).zip(&walk.chunks) {
            let holders = &walk.problem.demand.chunk(base.id).holders;
            holders.iter().for_each(|&rank| state.promised.set(chunk as usize, rank.index()));
            holders.iter().for_each(|&rank| state.extend_reach(chunk, rank));
            holders.iter().for_each(|&rank| state.offer(chunk, rank));
        }
        state
    }

    fn is_promised(&self, chunk: u32, rank: Rank) -> bool {
        self.promised.has(chunk as usize, rank.index())
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
        let topology = &walk.problem.topology;
        match &base.way {
            BaseWay::Everywhere(distance) => {
                for &link in topology.outgoing(rank) {
                    let to = topology.link(link).to;
                    if !self.is_promised(chunk, to) && walk.problem.allows(base.id, link) {
                        self.add(distance[to.index()], chunk, link);
                    }
                }
            }
            BaseWay::Along(route) => {
                if let Some(&(link, urgency)) = route.iter().find(|(link, _)| topology.link(*link).from == rank) {
                    self.add(urgency, chunk, link);
                }
            }
        }
    }

    fn add(&mut self, urgency: u32, chunk: u32, link: LinkId) {
        let orbit = self.walk.orbits.links.orbit(link.0);
        let preferred = self.preferred(chunk, link);
        let lot = self.random.next_u32();
        self.waiting[orbit as usize].push(Reverse((preferred, urgency, lot, chunk, link)));
        self.looked_at += 1;
        self.wake(orbit);
    }

    /// The first part of a candidate's key: less comes first. It grows while others come to have the chunk.
    fn preferred(&self, chunk: u32, link: LinkId) -> u32 {
        let walk = self.walk;
        let place = chunk as usize * walk.problem.topology.rank_count() + walk.problem.topology.link(link).to.index();
        self.reach.get(place).map_or(0, |&reach| u32::MAX - reach)
    }

    /// `rank` has the chunk, or will have it: its links reach other ranks.
    fn extend_reach(&mut self, chunk: u32, rank: Rank) {
        if self.reach.is_empty() {
            return;
        }
        let topology = &self.walk.problem.topology;
        let bytes = self.walk.chunks[chunk as usize].bytes;
        for &link in topology.outgoing(rank) {
            let link = topology.link(link);
            let reach = &mut self.reach[chunk as usize * topology.rank_count() + link.to.index()];
            *reach = (*reach).min(ordered(link.transfer_time(bytes).0));
        }
        self.looked_at += topology.outgoing(rank).len();
    }

    /// Takes the first candidate of an orbit; candidates whose key has grown go back into the queue.
    fn pop(&mut self, orbit: u32) -> Option<ChunkOnLink> {
        while let Some(Reverse((preferred, urgency, lot, chunk, link))) = self.waiting[orbit as usize].pop() {
            let now = self.preferred(chunk, link);
            if now == preferred {
                return Some(ChunkOnLink { chunk, link });
            }
            self.waiting[orbit as usize].push(Reverse((now, urgency, lot, chunk, link)));
        }
        None
    }

    /// The key of the first candidate of an orbit that its receiver still lacks; others are removed.
    fn first_key(&mut self, orbit: u32) -> Option<(u32, u32)> {
        while let Some(&Reverse((preferred, urgency, lot, chunk, link))) = self.waiting[orbit as usize].peek() {
            let now = self.preferred(chunk, link);
            let is_needed = !self.is_promised(chunk, self.walk.problem.topology.link(link).to);
            if is_needed && now == preferred {
                return Some((preferred, urgency));
            }
            self.looked_at += 1;
            self.waiting[orbit as usize].pop();
            if is_needed {
                self.waiting[orbit as usize].push(Reverse((now, urgency, lot, chunk, link)));
            }
        }
        None
    }

    /// Advances to the next instant at which something happens, and processes its events.
    pub(super) fn advance(&mut self) -> Option<Micros> {
        let Reverse((instant, _)) = *self.events.peek()?;
        while let Some(&Reverse((time, event))) = self.events.peek()
            && time == instant
        {
            self.events.pop();
            match event {
                WalkEvent::Free(server) => self.freed(server),
                WalkEvent::Arrived(message) => {
                    for item in self.sent[message as usize].items.clone() {
                        self.offer(item.chunk, self.walk.problem.topology.link(item.link).to);
                    }
                }
            }
        }
        Some(Micros(f64::from_bits(instant)))
    }

    /// Wakes the orbits that use a server.
    fn freed(&mut self, server: u32) {
        let servers = &self.walk.orbits.servers;
        if servers.is_links(server) {
            self.wake(server);
        } else {
            servers.users(server).iter().for_each(|&orbit| self.wake(orbit));
        }
    }

    /// The orbits that can send now, in the order in which they choose: those with the fewest candidates first, or
    /// where ports are shared, those with the most urgent candidate.
    fn ready(&mut self, now: Micros) -> Vec<u32> {
        let servers = &self.walk.orbits.servers;
        let mut ready: Vec<((u32, u32), usize, u32)> = Vec::with_capacity(self.awake.len());
        for orbit in std::mem::take(&mut self.awake) {
            self.is_awake[orbit as usize] = false;
            let is_free = self.free[orbit as usize] <= now
                && servers.shared(orbit).all(|server| self.free[server as usize] <= now);
            self.looked_at += 1;
            let key = match is_free {
                false => None,
                true if servers.is_shared() => self.first_key(orbit),
                true => (!self.waiting[orbit as usize].is_empty()).then_some((0, 0)),
            };
            ready.extend(key.map(|key| (key, self.waiting[orbit as usize].len(), orbit)));
        }
        ready.sort_unstable();
        ready.into_iter().map(|(_, _, orbit)| orbit).collect()
    }

    /// Lets the orbits that can send choose.
    pub(super) fn choose(&mut self, now: Micros) {
        let servers = &self.walk.orbits.servers;
        let ready = self.ready(now);
        let mut chosen: Vec<(u32, SmallVec<[ChunkOnLink; 1]>)> = Vec::with_capacity(ready.len());
        let mut by_place: BTreeMap<(u32, Rank), usize> = BTreeMap::new();
        for orbit in ready {
            if servers.shared(orbit).any(|server| self.taken[server as usize]) {
                continue;
            }
            let items = self.take(orbit, &mut chosen, &mut by_place);
            if !items.is_empty() {
                let index = chosen.len();
                for item in &items {
                    by_place.insert((item.chunk, self.walk.problem.topology.link(item.link).to), index);
                }
                servers.shared(orbit).for_each(|server| self.taken[server as usize] = true);
                chosen.push((orbit, items));
            }
        }
        for (orbit, items) in chosen {
            servers.shared(orbit).for_each(|server| self.taken[server as usize] = false);
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
            && let Some(item) = self.pop(orbit)
        {
            let to = self.walk.problem.topology.link(item.link).to;
            if !self.is_promised(item.chunk, to) {
                self.promise(item);
                items.push(item);
            } else if items.is_empty() && contested.len() < 4 && by_place.contains_key(&(item.chunk, to)) {
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
        while let Some(instead) = self.pop(*other) {
            let to = topology.link(instead.link).to;
            if !self.is_promised(instead.chunk, to) {
                items[0] = instead;
                by_place.insert((instead.chunk, to), index);
                self.promise(instead);
                return true;
            }
        }
        false
    }

    fn promise(&mut self, item: ChunkOnLink) {
        let to = self.walk.problem.topology.link(item.link).to;
        self.promised.set(item.chunk as usize, to.index());
        self.extend_reach(item.chunk, to);
        self.missing -= 1;
    }

    fn send(&mut self, start: Micros, orbit: u32, mut items: SmallVec<[ChunkOnLink; 1]>) {
        let walk = self.walk;
        let topology = &walk.problem.topology;
        let bytes: Bytes = items.iter().map(|item| walk.chunks[item.chunk as usize].bytes).sum();
        let end = start + topology.link(items[0].link).transfer_time(bytes);
        self.makespan = self.makespan.max(end);
        let message = self.sent.len() as u32;
        self.events.push(Reverse((end.0.to_bits(), WalkEvent::Arrived(message))));
        for (server, busy) in walk.orbits.servers.busy(topology, orbit, items[0].link, bytes) {
            let free = start + busy;
            self.free[server as usize] = free;
            if free > start {
                self.events.push(Reverse((free.0.to_bits(), WalkEvent::Free(server))));
            } else {
                self.freed(server);
            }
        }
        items.sort_unstable();
        self.sent.push(Sent { items, start, end });
    }
}
