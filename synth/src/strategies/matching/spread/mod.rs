//! One causal matching of links and chunks in time, for chunks that several ranks may need.
//!
//! The principal function is [`spread`]. It steps through the instants at which a link becomes free or a chunk arrives.
//! At each instant the free links choose among the chunks that their sender *already holds*, and that their receiver
//! neither has nor will get. TACOS [1] has the same structure, but on arrival it may replace a chunk by one that the
//! sender got meanwhile. Here a message is fixed at departure.
//!
//! Restarts differ in their [`Style`] and their random numbers.
//!
//! [1] Won et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer for Distributed Machine Learning".

mod pick;

use super::instance::Instance;
use super::ports::{ReadyLink, ports_first};
use super::style::{Style, TurnOrder, WaitRule};
use crate::ordering::bits::BitMatrix;
use crate::ordering::calendar::{Calendar, Event};
use crate::problem::ConnectionPolicy;
use crate::problem::merging::merging_pays;
use crate::problem::options::DeadlinePoll;
use crate::problem::{Constraints, Way};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, ChunkList, Transfer};
use topology::{LinkId, Micros, Rank};

/// A chunk is at hand if it is nearer to the receiver than this fraction of the duration of a link with large α.
const AT_HAND: f64 = 0.5;

/// How often the deadline is checked, in links examined at 64 chunks: searches of ordinary size never check it.
const POLLED: u64 = 1 << 24;

/// Candidates are not counted beyond this number, because such a link does not lack candidates.
const MANY: u32 = 4096;

/// Spreads every chunk to all ranks that accept it, after the given messages `prefix`.
///
/// No message ends after `cutoff`. `None` if some rank does not get a chunk.
pub(super) fn spread(
    instance: &Instance<'_>,
    prefix: &[Transfer],
    style: Style,
    cutoff: Micros,
    random: &mut Pcg64Mcg,
) -> Option<Vec<Transfer>> {
    let mut state = SpreadState::new(instance, style, cutoff, random);
    for transfer in prefix {
        state.send(transfer.start, transfer.link, transfer.chunks.clone());
    }
    state.run();
    (state.missing == 0).then(|| state.calendar.into_transfers())
}

/// Rows of bits that together give the chunks that a link could carry now.
struct Candidates<'a> {
    held: &'a [u64],
    accepts: &'a [u64],
    promised: &'a [u64],
    allowed: Option<&'a [u64]>,
    forbidden: Option<&'a [u64]>,
}

impl Candidates<'_> {
    /// One word of the set.
    #[inline]
    fn word(&self, word: usize) -> u64 {
        let mut set = self.held[word] & self.accepts[word] & !self.promised[word];
        if let Some(allowed) = self.allowed {
            set &= allowed[word];
        }
        if let Some(forbidden) = self.forbidden {
            set &= !forbidden[word];
        }
        set
    }
}

struct SpreadState<'a> {
    instance: &'a Instance<'a>,
    style: Style,
    cutoff: Micros,
    random: &'a mut Pcg64Mcg,
    /// By rank and chunk: arrived.
    held: BitMatrix,
    /// By rank and chunk: held or on its way.
    promised: BitMatrix,
    /// The number of (rank, chunk) pairs that are accepted but not yet promised.
    missing: usize,
    /// How many ranks have or will have each chunk.
    copies: Vec<u32>,
    /// By chunk and rank: when the chunk arrives; used only by [`WaitRule::Waits`].
    arrival: Vec<f32>,
    /// By chunk and rank: the distance from the nearest rank that has or will have the chunk; used only with urgency.
    nearest: Vec<f32>,
    /// By chunk and rank: the way of the copy there; used only where the sketch limits ways.
    ways: Vec<Way>,
    /// The links that have sent a relayed chunk; used only where own chunks go first.
    relaying: Vec<bool>,
    /// For each link, the sketch's wish and whether the link is in use; used only where the sketch has wishes.
    connections: Vec<(Option<ConnectionPolicy>, bool)>,
    calendar: Calendar<'a>,
    /// The links with large α; used only where they wait for several chunks.
    dear: Vec<bool>,
    /// The links that choose next.
    awake: Vec<LinkId>,
    is_awake: Vec<bool>,
    /// How many times a link has examined 64 chunks since the deadline was last polled.
    looks: usize,
}

impl<'a> SpreadState<'a> {
    fn new(instance: &'a Instance<'a>, style: Style, cutoff: Micros, random: &'a mut Pcg64Mcg) -> Self {
        let (topology, demand) = (instance.topology, instance.demand);
        let (ranks, chunks, links) = (topology.rank_count(), demand.chunks().len(), topology.links().len());
        let constraints = &instance.problem.constraints;
        let held = instance.initial.clone();
        let missing = topology.ranks().map(|rank| {
            let (accepts, held) = (instance.accepts.row(rank.index()), held.row(rank.index()));
            accepts.iter().zip(held).map(|(accepts, held)| (accepts & !held).count_ones() as usize).sum::<usize>()
        });
        let table = |wanted: bool| if wanted { ranks * chunks } else { 0 };
        let mut state = Self {
            missing: missing.sum(),
            copies: demand.chunks().iter().map(|chunk| chunk.holders.len() as u32).collect(),
            arrival: vec![f32::INFINITY; table(style.patience == WaitRule::Waits)],
            nearest: vec![f32::INFINITY; table(style.urgency > 0.0 && instance.distance.is_some())],
            ways: vec![Way::default(); table(constraints.limits_ways())],
            relaying: vec![false; if constraints.own_chunks_first.is_some() { links } else { 0 }],
            connections: wished_connections(constraints, links),
            dear: dear_links(instance, style.batch),
            calendar: Calendar::new(topology, demand),
            awake: Vec::new(),
            is_awake: vec![false; links],
            looks: 0,
            promised: held.clone(),
            held,
            instance,
            style,
            cutoff,
            random,
        };
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            chunk.holders.iter().for_each(|&rank| state.promise(id, rank, Micros::ZERO));
        }
        state
    }

    /// Updates the optional tables: `rank` has or will have `chunk` at `time`.
    fn promise(&mut self, chunk: ChunkId, rank: Rank, time: Micros) {
        let ranks = self.instance.topology.rank_count();
        if !self.arrival.is_empty() {
            self.arrival[chunk.index() * ranks + rank.index()] = time.0 as f32;
        }
        if let (false, Some(distance)) = (self.nearest.is_empty(), &self.instance.distance) {
            let from_here = &distance[rank.index() * ranks..(rank.index() + 1) * ranks];
            let nearest = &mut self.nearest[chunk.index() * ranks..(chunk.index() + 1) * ranks];
            nearest.iter_mut().zip(from_here).for_each(|(nearest, &here)| *nearest = nearest.min(here));
        }
    }

    /// Puts a message on a link, and its images on theirs.
    fn send(&mut self, start: Micros, id: LinkId, chunks: ChunkList) {
        let images = self.instance.mirror.images(id, &chunks);
        let end = self.calendar.send(start, id, chunks, &images.links[1..]);
        if let Some((_, is_open)) = self.connections.get_mut(id.index()) {
            *is_open = true;
        }
        for chunks in &images.chunks {
            for (&link, &chunk) in images.links.iter().zip(chunks) {
                self.carry(chunk, link, end);
            }
        }
    }

    /// Records that `chunk` will arrive over `id` at `end`.
    fn carry(&mut self, chunk: ChunkId, id: LinkId, end: Micros) {
        let topology = self.instance.topology;
        let (ranks, link) = (topology.rank_count(), topology.link(id));
        self.promised.set(link.to.index(), chunk.index());
        self.missing -= 1;
        self.copies[chunk.index()] += 1;
        self.promise(chunk, link.to, end);
        if !self.ways.is_empty() {
            let at = |rank: Rank| chunk.index() * ranks + rank.index();
            let way = self.ways[at(link.from)];
            // The given prefix may break the sketch; its ways are then kept as they are.
            self.ways[at(link.to)] = self.instance.problem.constraints.after(topology, way, id).unwrap_or(way);
        }
        if !self.relaying.is_empty() {
            self.relaying[id.index()] |= !self.instance.initial.has(link.from.index(), chunk.index());
        }
    }

    fn run(&mut self) {
        let mut happened = Vec::new();
        let mut now = Micros::ZERO;
        let mut poll = DeadlinePoll::new(&self.instance.deadline, POLLED);
        self.instance.topology.link_ids().for_each(|link| self.wake(link));
        while self.choose(now, &mut poll) && self.missing > 0 {
            match self.calendar.next(&mut happened) {
                Some(next) => now = next,
                // All links wait for more chunks than will come, so waiting ends for all.
                None if !self.dear.is_empty() => {
                    self.dear.clear();
                    self.instance.topology.link_ids().for_each(|link| self.wake(link));
                }
                None => return,
            }
            happened.iter().for_each(|&event| self.happen(event));
        }
    }

    fn happen(&mut self, event: Event) {
        let topology = self.instance.topology;
        match event {
            Event::LinkFree(link) => self.wake(link),
            Event::ResourceFree(resource) => topology.users(resource).iter().for_each(|&link| self.wake(link)),
            Event::Arrived(message) => {
                let message = self.calendar.message(message);
                let to = topology.link(message.link).to;
                let images = self.instance.mirror.images(message.link, &message.chunks);
                for chunks in &images.chunks {
                    for (&link, chunk) in images.links.iter().zip(chunks) {
                        self.held.set(topology.link(link).to.index(), chunk.index());
                    }
                }
                topology.outgoing(to).iter().for_each(|&link| self.wake(link));
            }
        }
    }

    /// Lets a link, or the representative of its orbit, choose next.
    fn wake(&mut self, link: LinkId) {
        let link = self.instance.mirror.representative(link);
        if !self.is_awake[link.index()] && self.instance.problem.allows_link(link) {
            self.is_awake[link.index()] = true;
            self.awake.push(link);
        }
    }

    /// Lets the free links among the awake ones choose, in the order of the style. Returns false if there is no more time.
    fn choose(&mut self, now: Micros, poll: &mut DeadlinePoll<'_>) -> bool {
        let mut ready: Vec<ReadyLink> = Vec::with_capacity(self.awake.len());
        for link in std::mem::take(&mut self.awake) {
            self.is_awake[link.index()] = false;
            if !self.calendar.is_free(link, now) {
                continue;
            }
            let candidates = self.count(link);
            if candidates > 0 && (candidates >= self.style.batch || self.dear.get(link.index()) != Some(&true)) {
                let (turn, lot) = (self.turn(link, candidates), self.lot(link));
                ready.push(ReadyLink { turn, lot, link });
            }
        }
        ready.sort_unstable();
        if self.style.turn == TurnOrder::Scarce && !self.instance.topology.resources().is_empty() {
            ports_first(self.instance.topology, &mut ready);
        }
        for ReadyLink { link, .. } in ready {
            // The candidates may have changed since they were counted.
            if self.calendar.is_free(link, now) && !self.is_too_little(link) {
                let chunks = self.pick(link, now);
                if !chunks.is_empty() {
                    self.send(now, link, chunks);
                }
                if poll.is_over_after(std::mem::take(&mut self.looks)) {
                    return false;
                }
            }
        }
        !poll.is_over_after(std::mem::take(&mut self.looks))
    }

    /// Whether a link with large α should wait for more chunks.
    fn is_too_little(&mut self, link: LinkId) -> bool {
        self.style.skips_nearby && self.dear.get(link.index()) == Some(&true) && self.count(link) < self.style.batch
    }

    /// How many chunks could go over a link now; if there are very many, a lower bound.
    fn count(&mut self, link: LinkId) -> u32 {
        let mut count = 0;
        let skips_nearby = self.style.skips_nearby && self.dear.get(link.index()) == Some(&true);
        let candidates = self.candidates(link);
        let mut looks = 0;
        for word in 0..self.words() {
            looks += 1;
            let mut set = candidates.word(word);
            while skips_nearby && set != 0 {
                let chunk = ChunkId((word * 64) as u32 + set.trailing_zeros());
                set &= set - 1;
                count += u32::from(!self.is_at_hand(link, chunk));
            }
            count += set.count_ones();
            if count > MANY {
                break;
            }
        }
        self.looks += looks;
        count
    }

    /// Whether the receiver of a link with large α can get `chunk` from a nearer rank, so that paying α is not
    /// worthwhile.
    fn is_at_hand(&self, id: LinkId, chunk: ChunkId) -> bool {
        let to = self.instance.topology.link(id).to.index();
        let nearest = self.nearest.get(chunk.index() * self.instance.topology.rank_count() + to);
        let duration = self.instance.duration(id, chunk).0;
        nearest.is_some_and(|&nearest| f64::from(nearest) < AT_HAND * duration)
    }

    /// The sort key of a link: the links with the smallest key choose first.
    fn turn(&self, link: LinkId, candidates: u32) -> (u32, u32) {
        match self.style.turn {
            TurnOrder::Scarce => (candidates, 0),
            TurnOrder::Bulk => (u32::MAX - candidates, 0),
            TurnOrder::MostLacking => {
                let to = self.instance.topology.link(link).to.index();
                let (accepts, promised) = (self.instance.accepts.row(to), self.promised.row(to));
                let lacks = accepts.iter().zip(promised).map(|(accepts, promised)| (accepts & !promised).count_ones());
                (u32::MAX - lacks.sum::<u32>(), candidates)
            }
        }
    }

    /// A random number that decides between links with equal keys. Links in use come first where few connections are
    /// wanted, and last where many are.
    fn lot(&mut self, link: LinkId) -> u32 {
        let lot = self.random.next_u32();
        match self.connections.get(link.index()) {
            Some((Some(wish), is_open)) => lot >> 1 | u32::from(*is_open != (*wish == ConnectionPolicy::Few)) << 31,
            _ => lot,
        }
    }

    fn words(&self) -> usize {
        self.instance.demand.chunks().len().div_ceil(64)
    }

    /// The set of chunks that could go over a link now.
    fn candidates(&self, id: LinkId) -> Candidates<'_> {
        let link = self.instance.topology.link(id);
        let (from, to) = (link.from.index(), link.to.index());
        let not_own = self.relaying.get(id.index()) == Some(&true);
        Candidates {
            held: self.held.row(from),
            accepts: self.instance.accepts.row(to),
            promised: self.promised.row(to),
            allowed: self.instance.allowed.as_ref().map(|allowed| allowed.row(id.index())),
            forbidden: not_own.then(|| self.instance.initial.row(from)),
        }
    }
}

/// The wish for every link, with no link in use; empty without wishes.
fn wished_connections(constraints: &Constraints, links: usize) -> Vec<(Option<ConnectionPolicy>, bool)> {
    let mut wishes = vec![(None, false); if constraints.connections.is_empty() { 0 } else { links }];
    for wish in &constraints.connections {
        wish.links.iter().for_each(|link| wishes[link.index()].0 = Some(wish.wish));
    }
    wishes
}

/// The links with an α so large that waiting for `batch` chunks pays; empty if no link waits.
fn dear_links(instance: &Instance<'_>, batch: u32) -> Vec<bool> {
    let links = instance.topology.links();
    let cheapest = links.iter().map(|link| link.alpha.0).fold(f64::INFINITY, f64::min);
    let is_dear = |link: &topology::Link| merging_pays(instance.topology, link) && link.alpha.0 > 2.0 * cheapest;
    if batch > 1 { links.iter().map(is_dear).collect() } else { Vec::new() }
}
