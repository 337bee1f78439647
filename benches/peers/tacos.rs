//! A causal TACOS for AllGather, written from the description of its algorithm.
//!
//! Time goes from instant to instant. At each, the pairs of a chunk and a rank that lacks it are taken in random order, and
//! each is sent over the fastest free link from a rank that has the chunk. In a second variant a chunk that is under way may
//! be sent again over another link. When the second copy of a chunk arrives, the link counts as having carried another chunk:
//! one that the sender already had at departure, and that the receiver still lacks. (TACOS itself asks what the sender has on
//! arrival, which no machine can do.)
//!
//! Won et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer for Distributed Machine Learning", MICRO 2024.

use super::{Random, shuffle};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use topology::{Bytes, FreeTimes, Link, LinkId, Micros, Rank, Topology};

/// The bits of times that are not negative order as the times do.
type Instant = u64;

/// What happens at an instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A chunk arrives over a link, which it has entered at this time.
    Arrives(LinkId, usize, Instant),
    Free(LinkId),
}

/// The least makespan in µs of so many runs of each variant. Every rank has `chunks` chunks of `bytes`.
pub(crate) fn best(topology: &Topology, chunks: usize, bytes: Bytes, runs: u64) -> f64 {
    assert!(topology.resources().is_empty(), "TACOS knows no links that share something");
    let seeds = (0..runs).flat_map(|seed| [(seed, false), (seed, true)]);
    seeds.map(|(seed, twice)| Run::new(topology, chunks, bytes, seed, twice).play()).fold(f64::INFINITY, f64::min)
}

struct Run<'a> {
    topology: &'a Topology,
    bytes: Bytes,
    random: Random,
    /// Whether a chunk may be under way twice to a rank.
    twice: bool,
    chunks: usize,
    /// By chunk and rank: since when the rank has it; the greatest value if it has not.
    since: Vec<Instant>,
    /// By chunk and rank: whether it is under way.
    coming: Vec<bool>,
    missing: usize,
    free: FreeTimes,
    events: BinaryHeap<Reverse<(Instant, Event)>>,
    /// Ranks that may get something now.
    awake: BTreeSet<Rank>,
}

impl<'a> Run<'a> {
    fn new(topology: &'a Topology, each: usize, bytes: Bytes, seed: u64, twice: bool) -> Self {
        let (ranks, chunks) = (topology.rank_count(), each * topology.rank_count());
        let mut since = vec![Instant::MAX; chunks * ranks];
        (0..chunks).for_each(|chunk| since[chunk * ranks + chunk / each] = 0);
        Self {
            topology,
            bytes,
            random: Random(seed),
            twice,
            chunks,
            since,
            coming: vec![false; chunks * ranks],
            missing: chunks * (ranks - 1),
            free: FreeTimes::new(topology),
            events: BinaryHeap::new(),
            awake: topology.ranks().collect(),
        }
    }

    fn place(&self, chunk: usize, rank: Rank) -> usize {
        chunk * self.topology.rank_count() + rank.index()
    }

    fn has(&self, chunk: usize, rank: Rank, at: Instant) -> bool {
        self.since[self.place(chunk, rank)] <= at
    }

    fn play(mut self) -> f64 {
        let mut now = 0;
        self.send_all(now);
        while self.missing > 0
            && let Some(&Reverse((instant, _))) = self.events.peek()
        {
            now = instant;
            // Instants that differ only by rounding are one.
            let until = f64::from_bits(instant) * (1.0 + 1e-12);
            while let Some(&Reverse((instant, event))) = self.events.peek()
                && f64::from_bits(instant) <= until
            {
                self.events.pop();
                match event {
                    Event::Arrives(link, chunk, start) => self.arrive(link, chunk, start, now),
                    Event::Free(link) => drop(self.awake.insert(self.topology.link(link).to)),
                }
            }
            self.send_all(now);
        }
        if self.missing == 0 { f64::from_bits(now) } else { f64::INFINITY }
    }

    fn arrive(&mut self, link: LinkId, chunk: usize, start: Instant, now: Instant) {
        let Link { from, to, .. } = *self.topology.link(link);
        let mut brought = Some(chunk);
        if self.has(chunk, to, now) {
            let useful = |&other: &usize| {
                self.has(other, from, start) && !self.has(other, to, now) && !self.coming[self.place(other, to)]
            };
            let others: Vec<usize> = (0..self.chunks).filter(useful).collect();
            brought = (!others.is_empty()).then(|| *self.random.pick(&others));
        }
        if let Some(brought) = brought {
            let place = self.place(brought, to);
            (self.since[place], self.coming[place]) = (now, false);
            self.missing -= 1;
        }
        self.awake.extend(self.topology.outgoing(to).iter().map(|&link| self.topology.link(link).to));
    }

    /// Sends what can be sent now. Ranks do not compete: each has its own links.
    fn send_all(&mut self, now: Instant) {
        let mut ranks: Vec<Rank> = std::mem::take(&mut self.awake).into_iter().collect();
        shuffle(&mut self.random, &mut ranks);
        for rank in ranks {
            self.send_to(rank, now);
        }
    }

    fn send_to(&mut self, rank: Rank, now: Instant) {
        let is_free = |link: &LinkId| self.free.link(*link).0 <= f64::from_bits(now) * (1.0 + 1e-12);
        let mut links: Vec<LinkId> = self.topology.incoming(rank).iter().copied().filter(is_free).collect();
        if links.is_empty() {
            return;
        }
        shuffle(&mut self.random, &mut links);
        // The fastest first; of equally fast ones, a random one.
        links.sort_by(|&a, &b| self.time(a).0.total_cmp(&self.time(b).0));
        let lacks =
            |chunk: &usize| !self.has(*chunk, rank, now) && (self.twice || !self.coming[self.place(*chunk, rank)]);
        let mut wanted: Vec<usize> = (0..self.chunks).filter(lacks).collect();
        shuffle(&mut self.random, &mut wanted);
        for chunk in wanted {
            let source = |link: &LinkId| self.has(chunk, self.topology.link(*link).from, now);
            if let Some(index) = links.iter().position(source) {
                self.send(links.remove(index), chunk, now);
            }
        }
    }

    fn time(&self, link: LinkId) -> Micros {
        self.topology.link(link).transfer_time(self.bytes)
    }

    fn send(&mut self, link: LinkId, chunk: usize, now: Instant) {
        let start = Micros(f64::from_bits(now));
        let place = self.place(chunk, self.topology.link(link).to);
        self.coming[place] = true;
        self.free.occupy(self.topology, link, start, self.bytes);
        let arrival = (start + self.time(link)).0.to_bits();
        self.events.push(Reverse((arrival, Event::Arrives(link, chunk, now))));
        self.events.push(Reverse((self.free.link(link).0.to_bits(), Event::Free(link))));
    }
}
