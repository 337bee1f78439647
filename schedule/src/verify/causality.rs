//! Checks that every rank sends only chunks that it holds and ends with all chunks that it wants; finds the value that
//! each delivery reads.
//!
//! Chunks do not interact, so they are played one at a time (in parallel, reported in order). Departures and landings
//! are in the order that [`Moments`] gives them.
//!
//! A chunk that is not combined is held from its first landing on. For a combining chunk ([`super::sums`]) a rank's
//! value is the exact set of holders whose contributions it counts: it is read at departure and changed at landing.

use super::Violation;
use super::moments::Moments;
use super::sums;
use super::traffic::{Hop, Tracks, Traffic, demand};
use crate::clearly_before;
use crate::order::{DeliveryId, Effect, Origin};
use crate::threads::are_many;
use crate::{Chunk, ChunkId, Delivery, Findings, Transfer};
use rayon::prelude::*;
use std::ops::Range;
use topology::{Micros, Rank};

/// For one chunk, at most this many missing deliveries are listed one by one; the last entry counts the rest. Otherwise
/// an empty schedule for N ranks would have N² violations.
const LISTED: usize = 16;

/// How many tasks the chunks are divided into.
const TASKS: usize = 256;

/// Plays all tracks, and fills in the source and the effect of their deliveries.
pub(super) fn play(
    traffic: &impl Traffic,
    ranks: usize,
    moments: &Moments,
    tracks: &mut Tracks,
) -> Findings<Violation> {
    let Tracks { starts, hops, deliveries, .. } = tracks;
    let count = starts.len() - 1;
    let is_large = are_many(deliveries.len());
    let each = if is_large { count.div_ceil(TASKS).max(1) } else { count.max(1) };
    let mut tasks = Vec::new();
    let mut rest = deliveries.as_mut_slice();
    for first in (0..count).step_by(each) {
        let last = count.min(first + each);
        let (own, others) = rest.split_at_mut((starts[last] - starts[first]) as usize);
        rest = others;
        tasks.push((first..last, own));
    }
    let check = |scratch: &mut Scratch, (tracks, mut own): (Range<usize>, &mut [Delivery])| {
        let mut found = Findings::default();
        for track in tracks {
            let (first, end) = (starts[track] as usize, starts[track + 1] as usize);
            let (deliveries, others) = own.split_at_mut(end - first);
            own = others;
            let id = traffic.chunk(track);
            let chunk = demand(traffic).chunk(id);
            let transfers = &traffic.schedule().transfers;
            let play = ChunkHops { id, chunk, moments, transfers, hops: &hops[first..end] };
            found.extend(play.check(deliveries, scratch));
        }
        found
    };
    let scratch = || Scratch::new(ranks);
    let found: Vec<Findings<Violation>> = match is_large {
        true => tasks.into_par_iter().map_init(scratch, check).collect(),
        false => tasks.into_iter().map(|task| check(&mut scratch(), task)).collect(),
    };
    let mut all = Findings::default();
    found.into_iter().for_each(|found| all.append(found));
    all
}

/// Tables by rank, used again for each chunk: every check leaves them empty.
pub(super) struct Scratch {
    /// For each rank that holds the chunk: from when on, and which delivery brought it.
    held: Vec<Option<Held>>,
    /// Where a rank's value is kept, for combining chunks.
    pub(super) slots: Vec<Option<u32>>,
}

#[derive(Clone, Copy)]
struct Held {
    /// The first departure that can carry it.
    from: Micros,
    end: Micros,
    origin: Origin,
}

impl Scratch {
    fn new(ranks: usize) -> Self {
        Self { held: vec![None; ranks], slots: vec![None; ranks] }
    }
}

/// One chunk and all its hops in the schedule.
pub(super) struct ChunkHops<'a> {
    pub(super) id: ChunkId,
    pub(super) chunk: &'a Chunk,
    pub(super) moments: &'a Moments,
    pub(super) transfers: &'a [Transfer],
    /// The hops in order of departure, like the deliveries.
    pub(super) hops: &'a [Hop],
}

impl ChunkHops<'_> {
    fn check(&self, deliveries: &mut [Delivery], scratch: &mut Scratch) -> Vec<Violation> {
        if self.hops.is_empty() {
            return self.unmoved();
        }
        if self.chunk.combine {
            sums::check(self, deliveries, &mut scratch.slots)
        } else {
            self.plain(deliveries, &mut scratch.held)
        }
    }

    /// Violations of a chunk that no transfer carries. They are counted from the sets, not rank by rank: a very short
    /// file can name a collective of many ranks.
    fn unmoved(&self) -> Vec<Violation> {
        let (chunk, holders, wanted_by) = (self.id, &self.chunk.holders, &self.chunk.wanted_by);
        let kept = holders.common(wanted_by);
        let mut violations = Vec::new();
        if kept < wanted_by.len() {
            let lacking = self.chunk.lacking();
            list_some(&mut violations, lacking, wanted_by.len() - kept, |rank, more| Violation::NotDelivered {
                chunk,
                rank,
                more,
            });
        }
        if self.chunk.is_sum() {
            let alone = wanted_by.iter().copied().filter(|&rank| holders.has(rank));
            list_some(&mut violations, alone, kept, |rank, more| {
                let missing = if holders[0] == rank { holders[1] } else { holders[0] };
                Violation::MissingContribution { chunk, rank, missing, also_missing: holders.len() - 2, more }
            });
        }
        violations
    }

    fn plain(&self, deliveries: &mut [Delivery], held: &mut [Option<Held>]) -> Vec<Violation> {
        let holders = &self.chunk.holders;
        let own = Held { from: Micros(f64::NEG_INFINITY), end: self.chunk.release, origin: Origin::Start };
        let mut violations = Vec::new();
        let mut first = 0;
        // Several hops of one message (of chunks of one orbit) read the values from before any of them landed.
        let mut landing = Vec::new();
        while first < deliveries.len() {
            let message = deliveries[first].transfer;
            let count = deliveries[first..].iter().take_while(|it| it.transfer == message).count();
            let start = self.moments.start(message);
            let is_early = self.is_early(start);
            for (place, delivery) in deliveries.iter_mut().enumerate().skip(first).take(count) {
                let from = self.hops[place].from;
                match held[from.index()].or_else(|| holders.has(from).then_some(own)) {
                    Some(since) if since.from <= start && !is_early => {
                        delivery.read(since.origin);
                        landing.push(place);
                    }
                    _ => violations.push(self.sent_before_held(message, from)),
                }
            }
            for place in landing.drain(..) {
                let (from, end) = (self.moments.landing(message), self.moments.end(message));
                let to = self.hops[place].to;
                let there = &mut held[to.index()];
                if there.map_or_else(|| !holders.has(to), |since| from < since.from) {
                    *there = Some(Held { from, end, origin: Origin::Delivery(DeliveryId(place as u32)) });
                }
            }
            first += count;
        }
        self.settle(deliveries, held, &mut violations);
        violations
    }

    /// Fills in which deliveries store, reports the ranks that lack the chunk, and clears the table. Ranks that lack it are
    /// counted, and only the first ones are looked at.
    fn settle(&self, deliveries: &mut [Delivery], held: &mut [Option<Held>], violations: &mut Vec<Violation>) {
        let Chunk { holders, wanted_by, .. } = self.chunk;
        complete_evidence(violations, |rank| {
            held[rank.index()].map(|held| held.end).or_else(|| holders.has(rank).then_some(self.chunk.release))
        });
        let is_lacking = |rank: &Rank| held[rank.index()].is_none() && !holders.has(*rank);
        let first: Vec<Rank> = wanted_by.iter().copied().filter(is_lacking).take(LISTED).collect();
        let mut brought = 0;
        for hop in self.hops {
            if let Some(Held { origin: Origin::Delivery(delivery), .. }) = held[hop.to.index()].take() {
                deliveries[delivery.index()].take_effect(Effect::Stores);
                brought += usize::from(!first.is_empty() && wanted_by.has(hop.to));
            }
        }
        if !first.is_empty() {
            let lacking = wanted_by.len() - holders.common(wanted_by) - brought;
            let chunk = self.id;
            list_some(violations, first.into_iter(), lacking, |rank, more| Violation::NotDelivered {
                chunk,
                rank,
                more,
            });
        }
    }

    /// Whether a message with this chunk leaves before the chunk is released.
    pub(super) fn is_early(&self, start: Micros) -> bool {
        self.chunk.release > Micros::ZERO && clearly_before(start, self.chunk.release)
    }

    pub(super) fn sent_before_held(&self, message: u32, rank: Rank) -> Violation {
        let (start, transfer) = (self.moments.start(message), message as usize);
        let link = self.transfers[transfer].link;
        Violation::SentBeforeHeld { transfer, link, chunk: self.id, rank, start, held_from: None }
    }
}

/// Adds a violation for each of `count` items, up to a limit; the last one listed says how many more there are.
pub(super) fn list_some<T>(
    violations: &mut Vec<Violation>,
    items: impl Iterator<Item = T>,
    count: usize,
    make: impl Fn(T, usize) -> Violation,
) {
    for (listed, item) in (1..).zip(items.take(LISTED.min(count))) {
        violations.push(make(item, if listed == LISTED { count - LISTED } else { 0 }));
    }
}

/// Fills in when a sender that sent too early came to hold the chunk, which is known only after all hops were played.
pub(super) fn complete_evidence(violations: &mut [Violation], held: impl Fn(Rank) -> Option<Micros>) {
    for violation in violations {
        if let Violation::SentBeforeHeld { rank, held_from, .. } = violation {
            *held_from = held(*rank);
        }
    }
}
