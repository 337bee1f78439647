//! Whether everybody sends only what he holds, and everybody ends with what he wants.
//!
//! Chunks do not interact, so they are checked one at a time (in parallel, reported in order). The transfers
//! of a chunk are played in order of (departure, arrival, position). A transfer can rely only on those that
//! stand earlier in that order, so no ring of instantaneous transfers justifies itself.
//!
//! A chunk that is not combined is simply held from its first arrival on. For a combining chunk a rank's value
//! is the exact set of the holders whose contributions it counts: taken at departure, applied at arrival.

use super::{Violation, clearly_before, structure};
use crate::{Chunk, ChunkId, Demand, Findings, Schedule, Transfer, TransferKind};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use topology::{Micros, Rank, Topology};

/// Unmet wishes of one chunk that are listed one by one; the last of them counts the rest. An empty schedule
/// for N ranks would otherwise cost N² violations.
const LISTED: usize = 16;

pub(super) fn check(schedule: &Schedule, topology: &Topology, violations: &mut Findings<Violation>) {
    let ranks = topology.rank_count().max(schedule.demand.request().ranks);
    let routes = Routes::of(schedule, ranks);
    let found = schedule
        .demand
        .chunk_ids()
        .collect::<Vec<_>>()
        .into_par_iter()
        .map_init(|| Scratch::new(ranks), |scratch, id| check_chunk(schedule, &routes, id, scratch))
        .fold(Findings::default, |mut all: Findings<Violation>, found| {
            all.extend(found);
            all
        });
    violations.append(found.reduce(Findings::default, |mut all, found| {
        all.append(found);
        all
    }));
}

fn check_chunk(schedule: &Schedule, routes: &Routes, id: ChunkId, scratch: &mut Scratch) -> Vec<Violation> {
    let chunk = schedule.demand.chunk(id);
    let route = routes.of_chunk(id);
    let play = Play { id, chunk, transfers: &schedule.transfers, route, names: None };
    play.check(scratch)
}

/// Checks one chunk whose `transfers` have been picked out already; `names` are their positions in the schedule.
pub(super) fn check_history(
    demand: &Demand,
    id: ChunkId,
    transfers: &[Transfer],
    names: &[u32],
    topology: &Topology,
    violations: &mut Findings<Violation>,
) {
    let mut route: Vec<u32> = (0..transfers.len() as u32).collect();
    sort_by_departure(&mut route, transfers);
    let play = Play { id, chunk: demand.chunk(id), transfers, route: &route, names: Some(names) };
    violations.extend(play.check(&mut Scratch::new(topology.rank_count())));
}

fn sort_by_departure(order: &mut [u32], transfers: &[Transfer]) {
    order.par_sort_unstable_by(|&a, &b| {
        let (x, y) = (&transfers[a as usize], &transfers[b as usize]);
        x.start.total_cmp(&y.start).then(x.end.total_cmp(&y.end)).then(a.cmp(&b))
    });
}

/// For each chunk the transfers that carry it, in order of departure; one allocation for all.
struct Routes {
    starts: Vec<u32>,
    transfers: Vec<u32>,
}

impl Routes {
    fn of(schedule: &Schedule, ranks: usize) -> Self {
        let transfers = &schedule.transfers;
        let usable = |t: &Transfer| structure::is_timed(t) && t.from.index() < ranks && t.to.index() < ranks;
        let mut order: Vec<u32> = (0..transfers.len() as u32).filter(|&t| usable(&transfers[t as usize])).collect();
        sort_by_departure(&mut order, transfers);
        let mut starts = vec![0u32; schedule.demand.chunks().len() + 1];
        for &transfer in &order {
            for chunk in structure::known_chunks(schedule, &transfers[transfer as usize]).iter() {
                starts[chunk.index() + 1] += 1;
            }
        }
        for chunk in 1..starts.len() {
            starts[chunk] += starts[chunk - 1];
        }
        let mut next = starts.clone();
        let mut by_chunk = vec![0; starts[starts.len() - 1] as usize];
        for &transfer in &order {
            for chunk in structure::known_chunks(schedule, &transfers[transfer as usize]).iter() {
                let place = &mut next[chunk.index()];
                by_chunk[*place as usize] = transfer;
                *place += 1;
            }
        }
        Self { starts, transfers: by_chunk }
    }

    fn of_chunk(&self, chunk: ChunkId) -> &[u32] {
        &self.transfers[self.starts[chunk.index()] as usize..self.starts[chunk.index() + 1] as usize]
    }
}

/// Per-rank tables, reused from chunk to chunk: every check leaves them as it found them, empty.
struct Scratch {
    /// Since when a rank holds the chunk.
    held: Vec<Option<Micros>>,
    /// Where a rank's value is kept, for combining chunks.
    slots: Vec<Option<u32>>,
}

impl Scratch {
    fn new(ranks: usize) -> Self {
        Self { held: vec![None; ranks], slots: vec![None; ranks] }
    }
}

/// One chunk and its way through the schedule.
struct Play<'a> {
    id: ChunkId,
    chunk: &'a Chunk,
    transfers: &'a [Transfer],
    route: &'a [u32],
    /// What transfers are called in violations, where that is not their position.
    names: Option<&'a [u32]>,
}

impl Play<'_> {
    fn check(&self, scratch: &mut Scratch) -> Vec<Violation> {
        if self.route.is_empty() {
            return self.unmoved();
        }
        if self.chunk.combine { self.combining(&mut scratch.slots) } else { self.plain(&mut scratch.held) }
    }

    fn name(&self, transfer: usize) -> usize {
        self.names.map_or(transfer, |names| names[transfer] as usize)
    }

    fn steps(&self) -> impl Iterator<Item = (usize, &Transfer)> {
        self.route.iter().map(|&index| (index as usize, &self.transfers[index as usize]))
    }

    /// What is wrong with a chunk that no transfer carries. It is counted from the sets, not rank by rank: a file of a few
    /// words can name a collective of many ranks.
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

    fn plain(&self, held: &mut [Option<Micros>]) -> Vec<Violation> {
        for rank in self.chunk.holders.iter() {
            held[rank.index()] = Some(Micros::ZERO);
        }
        let mut violations = Vec::new();
        for (index, transfer) in self.steps() {
            match held[transfer.from.index()] {
                Some(since) if !clearly_before(transfer.start, since) => {
                    let arrival = held[transfer.to.index()].map_or(transfer.end, |since| since.min(transfer.end));
                    held[transfer.to.index()] = Some(arrival);
                }
                _ => violations.push(self.sent_before_held(index, transfer)),
            }
        }
        complete_evidence(&mut violations, |rank| held[rank.index()]);
        let lacking = self.chunk.wanted_by.iter().filter(|rank| held[rank.index()].is_none());
        list(&mut violations, lacking, |&rank, more| Violation::NotDelivered { chunk: self.id, rank, more });
        for rank in self.chunk.holders.iter().chain(self.steps().map(|(_, transfer)| &transfer.to)) {
            held[rank.index()] = None;
        }
        violations
    }

    fn sent_before_held(&self, index: usize, transfer: &Transfer) -> Violation {
        let Transfer { link, from: rank, start, .. } = *transfer;
        Violation::SentBeforeHeld { transfer: self.name(index), link, chunk: self.id, rank, start, held_from: None }
    }

    fn combining(&self, slots: &mut [Option<u32>]) -> Vec<Violation> {
        let mut values = Values::new(self.chunk, slots);
        let mut violations = Vec::new();
        let mut in_flight = BinaryHeap::new();
        for (index, transfer) in self.steps() {
            // Arrivals at time t come before departures at time t.
            while in_flight.peek().is_some_and(|next: &Flight| !clearly_before(transfer.start, next.end)) {
                in_flight.pop().into_iter().for_each(|flight| self.land(flight, &mut values, &mut violations));
            }
            match values.at(transfer.from).sum.clone() {
                Some(sum) => in_flight.push(Flight { end: transfer.end, transfer: index, sum }),
                None => violations.push(self.sent_before_held(index, transfer)),
            }
        }
        while let Some(flight) = in_flight.pop() {
            self.land(flight, &mut values, &mut violations);
        }
        complete_evidence(&mut violations, |rank| values.get(rank).and_then(|value| value.held_from));
        self.check_sums(&values, &mut violations);
        values.clear();
        violations
    }

    fn land(&self, flight: Flight, values: &mut Values, violations: &mut Vec<Violation>) {
        let Transfer { link, to: rank, kind, end: time, .. } = self.transfers[flight.transfer];
        let (transfer, chunk) = (self.name(flight.transfer), self.id);
        let value = values.at(rank);
        // Whatever lands beside a copy, and a copy that lands beside anything.
        let beside = if kind == TransferKind::Copy { value.last_arrival } else { value.last_copy };
        if let Some((_, other)) = beside.filter(|&(earlier, _)| !clearly_before(earlier, time)) {
            violations.push(Violation::CollidingCopy { transfer, link, chunk, rank, time, other });
        }
        value.last_arrival = Some((time, transfer));
        value.held_from.get_or_insert(time);
        match (&mut value.sum, kind) {
            (Some(sum), TransferKind::Reduce) => {
                if let Some((twice, also)) = self.first_and_rest(sum.common(&flight.sum)) {
                    violations.push(Violation::DoubleReduce { transfer, link, chunk, rank, time, twice, also });
                }
                sum.add(&flight.sum);
            }
            (sum, _) => *sum = Some(flight.sum),
        }
        if kind == TransferKind::Copy {
            value.last_copy = Some((time, transfer));
        }
    }

    fn check_sums(&self, values: &Values, violations: &mut Vec<Violation>) {
        let (chunk, holders) = (self.id, &self.chunk.holders);
        let mut lacking = Vec::new();
        let mut incomplete = Vec::new();
        for &rank in self.chunk.wanted_by.iter() {
            match values.get(rank).map(|value| &value.sum) {
                Some(Some(sum)) => {
                    let missing = self.first_and_rest(sum.missing(holders.len()));
                    incomplete.extend(missing.map(|(first, rest)| (rank, first, rest)));
                }
                // A rank that no transfer touches still has its own contribution, if it has one.
                None if holders.has(rank) => {
                    let other = holders.iter().find(|&&holder| holder != rank);
                    incomplete.extend(other.map(|&first| (rank, first, holders.len() - 2)));
                }
                None | Some(None) => lacking.push(rank),
            }
        }
        list(violations, lacking.iter(), |&rank, more| Violation::NotDelivered { chunk, rank, more });
        list(violations, incomplete.iter(), |&(rank, missing, also_missing), more| Violation::MissingContribution {
            chunk,
            rank,
            missing,
            also_missing,
            more,
        });
    }

    /// The first of some holders (given by position), and how many follow.
    fn first_and_rest(&self, mut holders: impl Iterator<Item = usize>) -> Option<(Rank, usize)> {
        let first = holders.next()?;
        Some((self.chunk.holders[first], holders.count()))
    }
}

/// Adds a violation for each item; where there are many, the last one listed says how many more there are.
fn list<T>(
    violations: &mut Vec<Violation>,
    items: impl Iterator<Item = T> + Clone,
    make: impl Fn(T, usize) -> Violation,
) {
    list_some(violations, items.clone(), items.count(), make);
}

/// The same for items whose number is known.
fn list_some<T>(
    violations: &mut Vec<Violation>,
    items: impl Iterator<Item = T>,
    count: usize,
    make: impl Fn(T, usize) -> Violation,
) {
    for (listed, item) in (1..).zip(items.take(LISTED.min(count))) {
        violations.push(make(item, if listed == LISTED { count - LISTED } else { 0 }));
    }
}

/// Fills in when a sender that sent too early came to hold the chunk; known only once all is played.
fn complete_evidence(violations: &mut [Violation], held: impl Fn(Rank) -> Option<Micros>) {
    for violation in violations {
        if let Violation::SentBeforeHeld { rank, held_from, .. } = violation {
            *held_from = held(*rank);
        }
    }
}

/// A set of holders (by position), one bit each.
#[derive(Clone)]
struct Sum(Box<[u64]>);

impl Sum {
    fn of(own: usize, holders: usize) -> Self {
        let mut words = vec![0; holders.div_ceil(64)].into_boxed_slice();
        words[own / 64] = 1 << (own % 64);
        Self(words)
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        bits(self.0.iter().zip(&other.0).map(|(a, b)| a & b))
    }

    fn missing(&self, holders: usize) -> impl Iterator<Item = usize> + '_ {
        bits(self.0.iter().map(|word| !word)).take_while(move |&bit| bit < holders)
    }
}

/// The positions of the one bits, ascending.
fn bits(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(position, word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| position * 64 + rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(bit)
        })
    })
}

/// What one rank has of a combining chunk.
struct Value {
    rank: Rank,
    /// The contributions counted; `None` while it has nothing.
    sum: Option<Sum>,
    held_from: Option<Micros>,
    last_arrival: Option<(Micros, usize)>,
    last_copy: Option<(Micros, usize)>,
}

/// The values of the ranks that take part; a rank gets a place when a transfer first touches it.
struct Values<'a> {
    chunk: &'a Chunk,
    slots: &'a mut [Option<u32>],
    values: Vec<Value>,
}

impl<'a> Values<'a> {
    fn new(chunk: &'a Chunk, slots: &'a mut [Option<u32>]) -> Self {
        Self { chunk, slots, values: Vec::new() }
    }

    fn get(&self, rank: Rank) -> Option<&Value> {
        self.slots[rank.index()].map(|slot| &self.values[slot as usize])
    }

    fn at(&mut self, rank: Rank) -> &mut Value {
        let Self { chunk, slots, values } = self;
        let slot = *slots[rank.index()].get_or_insert_with(|| {
            let own = chunk.holders.binary_search(&rank).ok();
            let sum = own.map(|own| Sum::of(own, chunk.holders.len()));
            let held_from = own.map(|_| Micros::ZERO);
            values.push(Value { rank, sum, held_from, last_arrival: None, last_copy: None });
            values.len() as u32 - 1
        });
        &mut values[slot as usize]
    }

    /// Leaves the slots as they were found.
    fn clear(self) {
        self.values.iter().for_each(|value| self.slots[value.rank.index()] = None);
    }
}

/// A message under way; the heap gives the earliest arrival first.
struct Flight {
    end: Micros,
    transfer: usize,
    sum: Sum,
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> Ordering {
        other.end.total_cmp(&self.end).then(other.transfer.cmp(&self.transfer))
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flight {}
