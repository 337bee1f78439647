//! Where a chunk is inside a fast component, and which departures can be useful to it.

use super::calendar::PeriodCalendar;
use super::crossings::{FastComponents, TimedCrossing};
use super::spreading::{FastDeparture, Freedom};
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::{LinkId, Micros, Rank};

/// The ranks where a chunk starts, and the ranks where it must be.
pub(super) struct ChunkPlaces {
    pub(super) chunk: ChunkId,
    /// For each rank that gets the chunk without a fast link, the period from which on it has the chunk.
    pub(super) sources: BTreeMap<Rank, usize>,
    /// For each rank that must send the chunk on a crossing, the period before which it must have the chunk.
    pub(super) fetched: BTreeMap<Rank, usize>,
}

impl ChunkPlaces {
    pub(super) fn new(
        components: &FastComponents<'_>,
        calendar: &PeriodCalendar,
        crossings: &[TimedCrossing],
        chunk: ChunkId,
    ) -> Self {
        let described = components.problem.demand.chunk(chunk);
        let mut sources: BTreeMap<Rank, usize> = described.holders.iter().map(|&rank| (rank, 0)).collect();
        let mut fetched: BTreeMap<Rank, usize> = BTreeMap::new();
        for timed in crossings.iter().filter(|timed| timed.crossing.chunks.contains(&chunk)) {
            let link = components.problem.topology.link(timed.crossing.link);
            let from = calendar.first_from(timed.end);
            sources.entry(link.to).and_modify(|known| *known = from.min(*known)).or_insert(from);
            if !described.holders.has(link.from) {
                let by = calendar.over_by(timed.start);
                fetched.entry(link.from).and_modify(|known| *known = by.min(*known)).or_insert(by);
            }
        }
        Self { chunk, sources, fetched }
    }

    /// All departures that are possible in time and useful; `None` if the chunk cannot be where it must be in time.
    pub(super) fn departures(
        &self,
        components: &FastComponents<'_>,
        calendar: &PeriodCalendar,
        freedom: Freedom,
    ) -> Option<Vec<FastDeparture>> {
        let patience = freedom.patience;
        let problem = components.problem;
        let described = problem.demand.chunk(self.chunk);
        let bytes = problem.demand.bytes_of(self.chunk);
        let usable = problem.topology.link_ids().filter(|id| {
            let to = problem.topology.link(*id).to;
            components.fast[id.index()] && problem.allows(self.chunk, *id) && !self.sources.contains_key(&to)
        });
        let hops: Vec<(LinkId, usize, usize, Micros)> = usable
            .map(|id| (id, problem.topology.link(id)))
            .map(|(id, link)| (id, link.from.index(), link.to.index(), link.transfer_time(bytes)))
            .collect();
        let mut held: Vec<Option<usize>> = vec![None; problem.topology.rank_count()];
        self.sources.iter().for_each(|(rank, &from)| held[rank.index()] = Some(from));
        settle(&hops, |&(_, from, to, time)| {
            let Some(arrived) = held[from].and_then(|at| calendar.last_of(at, time)).map(|last| last + 1) else {
                return false;
            };
            let better = held[to].is_none_or(|known| arrived < known);
            held[to] = if better { Some(arrived) } else { held[to] };
            better
        });
        let mut useful: Vec<Option<usize>> = vec![None; held.len()];
        for &rank in described.wanted_by.iter().filter(|rank| !self.sources.contains_key(rank)) {
            useful[rank.index()] = Some(calendar.len().min(held[rank.index()]?.saturating_add(patience)));
        }
        for (rank, &by) in &self.fetched {
            let from = held[rank.index()].filter(|&from| from <= by)?;
            useful[rank.index()] = useful[rank.index()].max(Some(by.min(from.saturating_add(patience))));
        }
        settle(&hops, |&(_, from, to, time)| {
            let latest = useful[to].and_then(|before| calendar.latest_start(before, time));
            let better = latest > useful[from];
            useful[from] = useful[from].max(latest);
            better
        });
        let departures = hops.iter().flat_map(|&(link, from, to, time)| {
            let first = held[from].unwrap_or(usize::MAX);
            let latest = useful[to].and_then(|before| calendar.latest_start(before, time));
            let starts = latest.filter(|_| first < calendar.len()).map(|last| first..=last);
            starts.into_iter().flatten().filter_map(move |first| {
                Some(FastDeparture { chunk: self.chunk, link, first, last: calendar.last_of(first, time)? })
            })
        });
        Some(departures.collect())
    }
}

/// Repeats `improve` over all hops until none improves.
fn settle<T>(hops: &[T], mut improve: impl FnMut(&T) -> bool) {
    let mut improved = true;
    while improved {
        improved = false;
        for hop in hops {
            improved |= improve(hop);
        }
    }
}
