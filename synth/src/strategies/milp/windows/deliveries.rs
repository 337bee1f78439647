//! What one window decides: the deliveries of a schedule, and what each may do instead.
//!
//! The principal type is [`OpenDelivery`]. A message that is not free is one delivery, which keeps its link, its chunks and its
//! turn. A free message is up to four deliveries. Such a delivery has a message of its own over one of a few links, or it is
//! part of a message that goes there anyway, or, where nobody wants its chunks there, it is not made. A rank that lacks a free
//! chunk may become a relay of it.

use super::places::{BusyPlace, places};
use crate::ordering::SumTrees;
use crate::problem::Problem;
use schedule::{ChunkId, Schedule, Transfer, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, LinkId, Rank};

/// The most links that a free delivery may come over, and the most messages that it may be part of.
const MOST_WAYS: usize = 4;
const MOST_MERGES: usize = 3;
/// The most parts of a free message, each of which is a delivery.
pub(super) const MOST_PARTS: usize = 4;
/// By how much of the makespan deliveries that are not free move at most. So many of their turns are clear.
const MOVES: f64 = 0.4;
/// The most ranks that may become relays on the way of one free delivery.
const MOST_RELAYS: usize = 2;

/// A link for a message of its own.
#[derive(Clone, Debug)]
pub(super) struct OpenWay {
    pub(super) link: LinkId,
    /// The deliveries that bring the chunks to the sender.
    pub(super) brought_by: Vec<usize>,
}

/// A message that the delivery may be part of.
#[derive(Clone, Debug)]
pub(super) struct MergeOption {
    /// The delivery whose message it is, over `link`.
    pub(super) into: usize,
    pub(super) link: LinkId,
    pub(super) brought_by: Vec<usize>,
}

/// Chunks that come to a rank.
#[derive(Clone, Debug)]
pub(super) struct OpenDelivery {
    pub(super) chunks: Vec<ChunkId>,
    /// What is added is not free.
    pub(super) kind: TransferKind,
    pub(super) bytes: Bytes,
    pub(super) ways: Vec<OpenWay>,
    pub(super) merges: Vec<MergeOption>,
    /// Whether it may be left out, because nobody wants the chunk there.
    pub(super) is_optional: bool,
    pub(super) is_free: bool,
    /// The message in the schedule, and whether the delivery is its first; `None` if it has none yet.
    pub(super) now: Option<(usize, bool)>,
    /// The earliest and the latest departure: none is possible before or after in a schedule that is no slower, and what is not
    /// free moves little.
    pub(super) head: f64,
    pub(super) latest: f64,
}

impl OpenDelivery {
    /// How many ways there are to make it.
    pub(super) fn options(&self) -> usize {
        self.ways.len() + self.merges.len() + usize::from(self.is_optional)
    }

    /// The time of its own message over a link.
    pub(super) fn time(&self, problem: &Problem, link: LinkId) -> f64 {
        problem.topology.link(link).transfer_time(self.bytes).0
    }

    /// No message of it is quicker.
    pub(super) fn shortest(&self, problem: &Problem) -> f64 {
        let links = self.ways.iter().map(|way| way.link).chain(self.merges.iter().map(|merge| merge.link));
        links.map(|link| self.time(problem, link)).fold(f64::INFINITY, f64::min)
    }
}

/// All deliveries of a schedule where the messages `free` are free, which copy. All of its sums go along trees.
pub(super) fn deliveries(
    problem: &Problem,
    schedule: &Schedule,
    sums: &SumTrees,
    free: &BTreeSet<usize>,
) -> Vec<OpenDelivery> {
    let (first, added) = (BTreeMap::new(), BTreeMap::new());
    let mut opening = Opening { problem, transfers: &schedule.transfers, sums, all: Vec::new(), first, added };
    opening.list(free);
    opening.open_ways();
    opening.open_relays();
    opening.open_merges();
    opening.leave_out();
    let mut all = opening.all;
    find_room(problem, &mut all, &schedule.transfers, schedule.makespan().0);
    all
}

struct Opening<'a> {
    problem: &'a Problem,
    transfers: &'a [Transfer],
    sums: &'a SumTrees,
    all: Vec<OpenDelivery>,
    /// What brings a chunk to a rank.
    first: BTreeMap<(ChunkId, Rank), usize>,
    /// What brings parts of a sum to a rank, to be added.
    added: BTreeMap<(ChunkId, Rank), Vec<usize>>,
}

impl Opening<'_> {
    fn list(&mut self, free: &BTreeSet<usize>) {
        for (index, transfer) in self.transfers.iter().enumerate() {
            let is_free = free.contains(&index);
            let parts = if is_free { MOST_PARTS } else { 1 };
            let part = transfer.chunks.len().div_ceil(parts).max(1);
            let lists: Vec<Vec<ChunkId>> = transfer.chunks.chunks(part).map(<[ChunkId]>::to_vec).collect();
            for (number, chunks) in lists.into_iter().enumerate() {
                for &chunk in &chunks {
                    let new = self.all.len();
                    if transfer.kind == TransferKind::Reduce {
                        self.added.entry((chunk, transfer.to)).or_default().push(new);
                        continue;
                    }
                    let known = *self.first.entry((chunk, transfer.to)).or_insert(new);
                    if known < new && self.arrives(&[known]) > transfer.end.0 {
                        self.first.insert((chunk, transfer.to), new);
                    }
                }
                self.add(chunks, transfer.kind, is_free, Some((index, number == 0)));
            }
        }
        for own in 0..self.all.len() {
            let Some((index, is_first)) = self.all[own].now else { continue };
            let transfer = &self.transfers[index];
            let brought_by = match transfer.kind {
                TransferKind::Copy => {
                    self.brought(&self.all[own].chunks, (transfer.from, transfer.to), own).unwrap_or_default()
                }
                TransferKind::Reduce => self.parts_of(&self.all[own].chunks, (transfer.from, transfer.to)),
            };
            if is_first {
                self.all[own].ways.push(OpenWay { link: transfer.link, brought_by });
            } else {
                let into = (0..own).rev().find(|&into| self.all[into].now == Some((index, true)));
                let merges = into.map(|into| MergeOption { into, link: transfer.link, brought_by });
                self.all[own].merges.extend(merges);
            }
        }
    }

    fn add(&mut self, chunks: Vec<ChunkId>, kind: TransferKind, is_free: bool, now: Option<(usize, bool)>) {
        let bytes = self.problem.demand.message_bytes(&chunks);
        let (ways, merges) = (Vec::new(), Vec::new());
        self.all.push(OpenDelivery {
            chunks,
            kind,
            bytes,
            ways,
            merges,
            is_optional: false,
            is_free,
            now,
            head: 0.0,
            latest: 0.0,
        });
    }

    /// The deliveries that bring chunks to a rank, which sends them to another one; `None` if it never gets one of them, but from `own`.
    fn brought(&self, chunks: &[ChunkId], (rank, to): (Rank, Rank), own: usize) -> Option<Vec<usize>> {
        let mut all = BTreeSet::new();
        for &chunk in chunks {
            let demanded = self.problem.demand.chunk(chunk);
            match self.sums.collector(chunk) {
                Some(collector) if collector == rank => all.extend(self.parts_of(&[chunk], (rank, to))),
                None if demanded.holders.has(rank) && !demanded.is_sum() => {}
                _ => _ = all.insert(self.first.get(&(chunk, rank)).copied().filter(|&by| by != own)?),
            }
        }
        Some(Vec::from_iter(all))
    }

    /// The deliveries that bring what a rank adds to chunks before it sends them to another one. With that one it may exchange parts, so
    /// none waits for what it brings.
    fn parts_of(&self, chunks: &[ChunkId], (rank, to): (Rank, Rank)) -> Vec<usize> {
        let all = chunks.iter().filter_map(|&chunk| self.added.get(&(chunk, rank)));
        let comes_from = |by: usize| self.all[by].now.map(|(index, _)| self.transfers[index].from);
        let others = all.flatten().copied().filter(|&by| comes_from(by) != Some(to));
        Vec::from_iter(others.collect::<BTreeSet<usize>>())
    }

    /// When a delivery arrives, as the schedule is now; a relay that does not exist yet never does.
    fn arrives(&self, deliveries: &[usize]) -> f64 {
        let end = |&by: &usize| self.all[by].now.map_or(f64::INFINITY, |(index, _)| self.transfers[index].end.0);
        deliveries.iter().map(end).fold(0.0, f64::max)
    }

    fn receiver(&self, own: usize) -> Option<Rank> {
        self.all[own].now.map(|(index, _)| self.transfers[index].to)
    }

    /// Other links on which a free chunk can come from a rank that has it.
    fn open_ways(&mut self) {
        for own in 0..self.all.len() {
            let (true, Some(to)) = (self.all[own].is_free, self.receiver(own)) else { continue };
            let known: Vec<LinkId> = self.all[own].ways.iter().map(|way| way.link).collect();
            let mut found = self.ways_into(own, &self.all[own].chunks, to);
            found.retain(|way| !known.contains(&way.link));
            found.truncate(MOST_WAYS - known.len());
            self.all[own].ways.extend(found);
        }
    }

    /// The links over which chunks can come to a rank, the soonest first, as the schedule is now.
    fn ways_into(&self, own: usize, chunks: &[ChunkId], to: Rank) -> Vec<OpenWay> {
        let topology = &self.problem.topology;
        let allowed = topology.incoming(to).iter().copied();
        let allowed = allowed.filter(|&link| chunks.iter().all(|&chunk| self.problem.allows(chunk, link)));
        let mut found: Vec<OpenWay> = allowed
            .filter_map(|link| {
                Some(OpenWay { link, brought_by: self.brought(chunks, (topology.link(link).from, to), own)? })
            })
            .collect();
        found.sort_by(|a, b| {
            self.arrives(&a.brought_by).total_cmp(&self.arrives(&b.brought_by)).then(a.link.cmp(&b.link))
        });
        found
    }

    /// Ranks that lack a free chunk and could pass it on.
    fn open_relays(&mut self) {
        let topology = &self.problem.topology;
        for own in 0..self.all.len() {
            let (true, Some(to)) = (self.all[own].is_free, self.receiver(own)) else { continue };
            let [chunk] = self.all[own].chunks[..] else { continue };
            let bytes = self.all[own].bytes;
            let mut found: Vec<(f64, LinkId, Vec<OpenWay>)> = Vec::new();
            for &link in topology.incoming(to) {
                let relay = topology.link(link).from;
                let demanded = self.problem.demand.chunk(chunk);
                // A sum reaches no rank that does not want it.
                let lacks = !demanded.is_sum()
                    && !demanded.holders.has(relay)
                    && self.first.get(&(chunk, relay)).is_none_or(|&by| self.all[by].now.is_none());
                if !lacks || !self.problem.allows(chunk, link) {
                    continue;
                }
                let mut ways = self.ways_into(own, &[chunk], relay);
                ways.retain(|way| topology.link(way.link).from != to && self.arrives(&way.brought_by).is_finite());
                ways.truncate(2);
                if let Some(way) = ways.first() {
                    let time = |link| topology.link(link).transfer_time(bytes).0;
                    found.push((self.arrives(&way.brought_by) + time(way.link) + time(link), link, ways));
                }
            }
            found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            for (_, link, ways) in found.into_iter().take(MOST_RELAYS) {
                let relay = topology.link(link).from;
                let by = *self.first.entry((chunk, relay)).or_insert(self.all.len());
                if by == self.all.len() {
                    self.add(vec![chunk], TransferKind::Copy, true, None);
                    self.all[by].ways = ways;
                }
                self.all[own].ways.push(OpenWay { link, brought_by: vec![by] });
            }
        }
    }

    /// Messages that go to the receiver of a free delivery anyway, those first that leave about when the chunk is there.
    fn open_merges(&mut self) {
        let topology = &self.problem.topology;
        for own in 0..self.all.len() {
            let (true, Some(to)) = (self.all[own].is_free, self.receiver(own)) else { continue };
            let chunks = &self.all[own].chunks;
            let mut found: Vec<(f64, MergeOption)> = Vec::new();
            for (into, other) in self.all.iter().enumerate() {
                let Some((index, true)) = other.now else { continue };
                let transfer = &self.transfers[index];
                let known = self.all[own].merges.iter().any(|merge| merge.into == into);
                // Of two free ones, the later is part of the earlier.
                if transfer.kind != TransferKind::Copy
                    || transfer.to != to
                    || into == own
                    || other.is_free && into > own
                    || known
                {
                    continue;
                }
                let allowed = chunks.iter().all(|&chunk| self.problem.allows(chunk, transfer.link));
                let Some(brought_by) = self.brought(chunks, (topology.link(transfer.link).from, to), own) else {
                    continue;
                };
                let there = self.arrives(&brought_by);
                if !allowed || !there.is_finite() {
                    continue;
                }
                let late = there - transfer.start.0;
                let apart = if late > 0.0 { 2.0 * late } else { -late };
                found.push((apart, MergeOption { into, link: transfer.link, brought_by }));
            }
            found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.into.cmp(&b.1.into)));
            let room = MOST_MERGES.saturating_sub(self.all[own].merges.len());
            self.all[own].merges.extend(found.into_iter().take(room).map(|(_, merge)| merge));
        }
    }

    /// Free deliveries that nobody needs where they go, unless others that have no choice pass the chunk on.
    fn leave_out(&mut self) {
        let mut needed = vec![false; self.all.len()];
        for own in &self.all {
            if own.options() == 1 {
                let ways = own.ways.iter().map(|way| &way.brought_by);
                let brought = ways.chain(own.merges.iter().map(|merge| &merge.brought_by));
                brought.flatten().for_each(|&by| needed[by] = true);
            }
        }
        let relays: BTreeMap<usize, Rank> = self.first.iter().map(|(&(_, rank), &by)| (by, rank)).collect();
        for (own, needed) in needed.into_iter().enumerate() {
            let Some(&rank) = relays.get(&own) else { continue };
            let wanted = |&chunk: &ChunkId| self.problem.demand.chunk(chunk).wanted_by.has(rank);
            self.all[own].is_optional = self.all[own].is_free && !self.all[own].chunks.iter().any(wanted) && !needed;
        }
    }
}

/// Heads and latest departures, from what is the same in every solution: what brings the chunks of a delivery, and the turns of
/// those that are not free, in a schedule that ends at `until` at the latest.
fn find_room(problem: &Problem, all: &mut [OpenDelivery], transfers: &[Transfer], until: f64) {
    let shortest: Vec<f64> = all.iter().map(|own| own.shortest(problem)).collect();
    let mut last: BTreeMap<BusyPlace, usize> = BTreeMap::new();
    // (earlier, later, the least time between their starts).
    let mut turns: Vec<(usize, usize, f64)> = Vec::new();
    for own in 0..all.len() {
        let since = |brought_by: &[usize]| brought_by.iter().map(|&by| all[by].head + shortest[by]).fold(0.0, f64::max);
        let ways = all[own].ways.iter().map(|way| since(&way.brought_by));
        let merges = all[own].merges.iter().map(|merge| since(&merge.brought_by));
        let mut head = ways.chain(merges).fold(f64::INFINITY, f64::min);
        if let (false, Some((index, _))) = (all[own].is_free, all[own].now) {
            for place in places(problem, transfers[index].link) {
                if let Some(before) = last.insert(place, own) {
                    let link = all[before].ways[0].link;
                    let busy = place.busy(problem, link, all[before].bytes);
                    turns.push((before, own, busy));
                    head = head.max(all[before].head + busy);
                }
            }
        }
        all[own].head = head;
    }
    all.iter_mut().zip(&shortest).for_each(|(own, shortest)| own.latest = until * (1.0 + 1e-9) - shortest);
    turns.sort_by_key(|&(before, own, _)| std::cmp::Reverse((before, own)));
    let mut next = turns.into_iter().peekable();
    for own in (0..all.len()).rev() {
        while let Some((_, after, busy)) = next.next_if(|&(before, ..)| before == own) {
            all[own].latest = all[own].latest.min(all[after].latest - busy);
        }
        if all[own].options() == 1 {
            let brought = all[own].ways.iter().map(|way| &way.brought_by);
            let brought = brought.chain(all[own].merges.iter().map(|merge| &merge.brought_by));
            for by in brought.flatten().copied().collect::<Vec<_>>() {
                all[by].latest = all[by].latest.min(all[own].latest - shortest[by]);
            }
        }
    }
    for own in all.iter_mut() {
        own.latest = own.latest.max(own.head);
        if let (false, Some((index, _))) = (own.is_free, own.now) {
            let start = transfers[index].start.0;
            own.head = own.head.max(start - MOVES * until);
            own.latest = own.latest.min(start + MOVES * until).max(own.head);
        }
    }
}
