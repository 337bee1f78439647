//! Combining chunks: the contributions that each value counts.
//!
//! The principal function is [`check`]. Values are read at departure and changed at landing. A contribution that is
//! counted twice is a violation only where a rank ends with it: a sum that a complete copy overwrites later is useless,
//! but not wrong.

use super::Violation;
use super::causality::{ChunkHops, complete_evidence, list_some};
use super::contributions::Contributions;
use crate::clearly_before;
use crate::order::{DeliveryId, Effect, Origin};
use crate::{Chunk, Delivery, TransferKind};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use topology::{Micros, Rank};

/// Plays a chunk, and fills in the source and the effect of its deliveries.
pub(super) fn check(play: &ChunkHops<'_>, deliveries: &mut [Delivery], slots: &mut [Option<u32>]) -> Vec<Violation> {
    let values = Values { chunk: play.chunk, slots, values: Vec::new() };
    let mut sums = Sums { play, deliveries, values, twice: Vec::new(), violations: Vec::new() };
    sums.run();
    let Sums { values, twice, mut violations, .. } = sums;
    complete_evidence(&mut violations, |rank| values.get(rank).and_then(|value| value.held_from));
    play.check_sums(&values, twice, &mut violations);
    values.clear();
    violations
}

/// A combining chunk while it is played.
struct Sums<'p, 'a> {
    play: &'p ChunkHops<'a>,
    deliveries: &'p mut [Delivery],
    values: Values<'p>,
    /// Contributions that were added a second time.
    twice: Vec<Violation>,
    violations: Vec<Violation>,
}

/// A message under way: its key and the value that it carries. Keys are in the order of landing, equal ones in order of
/// departure; the last part of a key is the delivery. Values are never compared.
struct Flight {
    key: Reverse<(OrderedTime, bool, u32)>,
    cargo: CombiningValue,
}

/// A time that can be a sort key.
#[derive(Clone, Copy, PartialEq)]
struct OrderedTime(Micros);

impl Eq for OrderedTime {}

impl Ord for OrderedTime {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for OrderedTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flight {}

impl Sums<'_, '_> {
    fn run(&mut self) {
        let (play, mut in_flight) = (self.play, BinaryHeap::<Flight>::new());
        let mut message = u32::MAX;
        for place in 0..self.deliveries.len() {
            // Several hops of one message (of chunks of one orbit) read the values from before any of them landed.
            let is_new = std::mem::replace(&mut message, self.deliveries[place].transfer) != message;
            let start = play.moments.start(message);
            while is_new && in_flight.peek().is_some_and(|next| next.key.0.0.0 <= start) {
                in_flight.pop().into_iter().for_each(|flight| self.land(flight));
            }
            let from = play.hops[place].from;
            let (landing, is_instant, _) = play.moments.landing_key(message);
            if is_instant && self.is_exchange(message, place) {
                self.violations.push(play.sent_before_held(message, from));
            }
            match self.values.at(from).held.clone() {
                Some(cargo) if !play.is_early(start) => {
                    self.deliveries[place].read(cargo.origin);
                    in_flight.push(Flight { key: Reverse((OrderedTime(landing), is_instant, place as u32)), cargo });
                }
                _ => self.violations.push(play.sent_before_held(message, from)),
            }
        }
        while let Some(flight) = in_flight.pop() {
            self.land(flight);
        }
    }

    /// Whether one image of a message that takes no time brings the value that an earlier image of it sends, or the other
    /// way round. Then each image waits for another, in a cycle.
    fn is_exchange(&mut self, message: u32, place: usize) -> bool {
        let hop = &self.play.hops[place];
        let brings = self.values.at(hop.to).last_sent == Some(message);
        let is_brought = self.values.at(hop.from).last_sent_to == Some(message);
        self.values.at(hop.from).last_sent = Some(message);
        self.values.at(hop.to).last_sent_to = Some(message);
        brings || is_brought
    }

    fn land(&mut self, Flight { key: Reverse((_, _, place)), cargo }: Flight) {
        let (play, delivery) = (self.play, &mut self.deliveries[place as usize]);
        let (chunk, kind, rank) = (play.id, play.hops[place as usize].kind, play.hops[place as usize].to);
        let (message, time) = (delivery.transfer, play.moments.end(delivery.transfer));
        let (transfer, link) = (message as usize, play.transfers[message as usize].link);
        let value = self.values.at(rank);
        // Everything that lands at the same time as a copy, and a copy that lands at the same time as anything; but not
        // a message that left only after the other had landed.
        let beside = if kind == TransferKind::Copy { value.last_arrival } else { value.last_copy };
        let follows = |earlier: u32| {
            play.moments.end(earlier) < time && play.moments.landing(earlier) <= play.moments.start(message)
        };
        if let Some(other) = beside.filter(|&other| !clearly_before(play.moments.end(other), time) && !follows(other)) {
            self.violations.push(Violation::CollidingCopy { transfer, link, chunk, rank, time, other: other as usize });
        }
        value.last_arrival = Some(message);
        value.held_from.get_or_insert(time);
        let origin = Origin::Delivery(DeliveryId(place));
        match (&mut value.held, kind) {
            (Some(held), TransferKind::Reduce) => {
                delivery.take_effect(Effect::AddsTo(held.origin));
                if held.twice.is_none()
                    && let Some((twice, also)) = held.sum.common(&cargo.sum)
                {
                    let twice = play.chunk.holders[twice];
                    self.twice.push(Violation::DoubleReduce { transfer, link, chunk, rank, time, twice, also });
                    held.twice = Some(self.twice.len() - 1);
                }
                held.sum.add(&cargo.sum);
                (held.origin, held.twice) = (origin, held.twice.or(cargo.twice));
            }
            (held, _) => {
                delivery.take_effect(Effect::Stores);
                *held = Some(CombiningValue { origin, ..cargo });
            }
        }
        if kind == TransferKind::Copy {
            value.last_copy = Some(message);
        }
    }
}

impl ChunkHops<'_> {
    /// Checks the values with which the ranks that want the chunk end. Ranks that no transfer touches are counted, and
    /// only the first ones are looked at: a short file can name a collective of many ranks.
    fn check_sums(&self, values: &Values<'_>, twice: Vec<Violation>, violations: &mut Vec<Violation>) {
        let Chunk { holders, wanted_by, .. } = self.chunk;
        let chunk = self.id;
        // What a rank that wants the chunk ends with: `None` if nothing, else the first missing contribution, and how
        // many more are missing.
        let end = |rank: Rank| match values.get(rank).map(|value| &value.held) {
            Some(held) => held.as_ref().map(|held| self.missing(&held.sum)),
            // It still has its own contribution, if it is a holder.
            None if holders.has(rank) => {
                let other = holders.iter().find(|&&holder| holder != rank);
                Some(other.map(|&first| (first, holders.len() - 2)))
            }
            None => None,
        };
        let kept = holders.common(wanted_by);
        let (mut untouched_holders, mut untouched_others) = (kept, wanted_by.len() - kept);
        let (mut lacking, mut incomplete) = (0, 0);
        let mut harmful = BTreeSet::new();
        for value in values.values.iter().filter(|value| wanted_by.has(value.rank)) {
            *(if holders.has(value.rank) { &mut untouched_holders } else { &mut untouched_others }) -= 1;
            match &value.held {
                Some(held) => {
                    harmful.extend(held.twice);
                    incomplete += usize::from(self.missing(&held.sum).is_some());
                }
                None => lacking += 1,
            }
        }
        lacking += untouched_others;
        incomplete += if holders.len() > 1 { untouched_holders } else { 0 };
        violations.extend(harmful.into_iter().map(|at: usize| twice[at].clone()));
        let without = wanted_by.iter().copied().filter(|&rank| end(rank).is_none());
        list_some(violations, without, lacking, |rank, more| Violation::NotDelivered { chunk, rank, more });
        let partial = wanted_by.iter().filter_map(|&rank| Some((rank, end(rank)??)));
        list_some(violations, partial, incomplete, |(rank, (missing, also_missing)), more| {
            Violation::MissingContribution { chunk, rank, missing, also_missing, more }
        });
    }

    /// The first holder whose contribution a sum lacks, and the number of the others.
    fn missing(&self, sum: &Contributions) -> Option<(Rank, usize)> {
        let (first, rest) = sum.missing(self.chunk.holders.len())?;
        Some((self.chunk.holders[first], rest))
    }
}

/// The value of a combining chunk at a rank, at some time.
#[derive(Clone)]
struct CombiningValue {
    /// The contributions that it counts.
    sum: Contributions,
    origin: Origin,
    /// The position in `twice` of the first contribution that it counted twice.
    twice: Option<usize>,
}

/// A rank that takes part.
struct Holder {
    rank: Rank,
    /// `None` while it has no value.
    held: Option<CombiningValue>,
    held_from: Option<Micros>,
    last_arrival: Option<u32>,
    last_copy: Option<u32>,
    /// The last message of no duration that has left it, and the last one that has left another rank for it.
    last_sent: Option<u32>,
    last_sent_to: Option<u32>,
}

/// The values of the ranks that take part; a rank gets a place when a transfer first touches it.
struct Values<'a> {
    chunk: &'a Chunk,
    slots: &'a mut [Option<u32>],
    values: Vec<Holder>,
}

impl Values<'_> {
    fn get(&self, rank: Rank) -> Option<&Holder> {
        self.slots[rank.index()].map(|slot| &self.values[slot as usize])
    }

    fn at(&mut self, rank: Rank) -> &mut Holder {
        let Self { chunk, slots, values } = self;
        let slot = *slots[rank.index()].get_or_insert_with(|| {
            let own = chunk.holders.binary_search(&rank).ok();
            let held = own.map(|own| CombiningValue {
                sum: Contributions::new(Some(own), chunk.holders.len()),
                origin: Origin::Start,
                twice: None,
            });
            let held_from = own.map(|_| chunk.release);
            values.push(Holder {
                rank,
                held,
                held_from,
                last_arrival: None,
                last_copy: None,
                last_sent: None,
                last_sent_to: None,
            });
            values.len() as u32 - 1
        });
        &mut values[slot as usize]
    }

    /// Leaves the slots as they were before.
    fn clear(self) {
        self.values.iter().for_each(|value| self.slots[value.rank.index()] = None);
    }
}
