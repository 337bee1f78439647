//! When a chunk could be where: the release times in the routing model.
//!
//! The principal type is [`Labels`]. A label is an entry of a chunk into a fast component: the rank that it reaches
//! over a slow link, the time, and what a sketch counts on its way (crossings between machines, the stage). Inside the
//! component it arrives everywhere at its distance. Labels with different times are different. So the model needs no
//! big M to exclude early use of a link whose chunks arrive late.

use super::crossings::FastComponents;
use crate::problem::{Problem, Way};
use schedule::ChunkId;
use std::collections::{BTreeMap, BTreeSet};
use topology::{LinkId, Micros, Rank};

/// The departure of a chunk on a slow link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SlowDeparture {
    pub(super) chunk: ChunkId,
    pub(super) link: LinkId,
    /// The label that it leaves from; `None` in a component that holds it from the start.
    pub(super) from: Option<usize>,
    pub(super) to: usize,
    pub(super) departure: Micros,
}

/// The entry of a chunk into a fast component, and its time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Label {
    pub(super) rank: Rank,
    pub(super) time: Micros,
    pub(super) way: Way,
    /// The time from there to the farthest rank of the component that wants it, on empty links.
    pub(super) tail: Micros,
}

/// How the model divides time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Fineness<'a> {
    /// The last useful arrival.
    pub(super) horizon: Micros,
    /// The lower bound on the makespan.
    pub(super) bound: Micros,
    /// The time of the first turn of each slow link.
    pub(super) first_turns: &'a BTreeMap<LinkId, Micros>,
    /// The time between the turns of a slow link.
    pub(super) turn: Micros,
    /// Whether a chunk may cross more often than necessary, over components beside its shortest way.
    pub(super) detours: bool,
}

/// The labels and uses of one chunk.
#[derive(Default)]
pub(super) struct Labels {
    pub(super) labels: Vec<Label>,
    /// The uses. A use that brings a chunk to a label comes before those that leave from it.
    pub(super) uses: Vec<SlowDeparture>,
}

impl Labels {
    /// All useful labels of `chunk`; `None` if they have more than `most` uses.
    pub(super) fn new(
        components: &FastComponents<'_>,
        chunk: ChunkId,
        fineness: Fineness<'_>,
        most: usize,
    ) -> Option<Self> {
        let mut growth = LabelGrowth::new(components, chunk, fineness);
        growth.leave(None);
        let mut next = 0;
        while next < growth.grown.labels.len() {
            growth.leave(Some(next));
            if growth.grown.uses.len() > most {
                return None;
            }
            next += 1;
        }
        Some(growth.useful())
    }
}

/// Labels under construction.
struct LabelGrowth<'a> {
    problem: &'a Problem,
    components: &'a FastComponents<'a>,
    chunk: ChunkId,
    fineness: Fineness<'a>,
    /// The components that hold the chunk from the start.
    home: BTreeSet<usize>,
    /// For each component, the fewest slow links on the way to it.
    crossings: BTreeMap<usize, usize>,
    /// For each entry, the distances from there to all ranks.
    distances: BTreeMap<Option<Rank>, Vec<f64>>,
    known: BTreeMap<(Rank, u64, Way), usize>,
    grown: Labels,
}

impl<'a> LabelGrowth<'a> {
    fn new(components: &'a FastComponents<'a>, chunk: ChunkId, fineness: Fineness<'a>) -> Self {
        let problem = components.problem;
        let home = problem.demand.chunk(chunk).holders.iter().map(|rank| components.of(*rank)).collect();
        let mut growth = Self {
            problem,
            components,
            chunk,
            fineness,
            home,
            crossings: BTreeMap::new(),
            distances: BTreeMap::new(),
            known: BTreeMap::new(),
            grown: Labels::default(),
        };
        growth.count_crossings();
        growth
    }

    fn count_crossings(&mut self) {
        self.crossings = self.home.iter().map(|&component| (component, 0)).collect();
        for count in 0.. {
            let topology = &self.problem.topology;
            let usable = self.components.slow().iter().filter(|&&id| self.problem.allows(self.chunk, id));
            let ends = usable
                .map(|&id| topology.link(id))
                .map(|link| (self.components.of(link.from), self.components.of(link.to)));
            let here = |&(from, to): &(usize, usize)| {
                self.crossings.get(&from) == Some(&count) && !self.crossings.contains_key(&to)
            };
            let next: BTreeSet<usize> = ends.filter(here).map(|(_, to)| to).collect();
            if next.is_empty() {
                return;
            }
            self.crossings.extend(next.into_iter().map(|to| (to, count + 1)));
        }
    }

    /// A key that is equal for times that differ only by rounding.
    fn instant(&self, time: Micros) -> u64 {
        // The cast saturates.
        (time / self.fineness.horizon * 1e9).round() as u64
    }

    fn distance(&mut self, entry: Option<Rank>) -> Vec<f64> {
        let holders = &self.problem.demand.chunk(self.chunk).holders;
        let from = entry.map_or_else(|| holders.to_vec(), |rank| vec![rank]);
        let (components, chunk) = (self.components, self.chunk);
        let known = self.distances.entry(entry);
        known.or_insert_with(|| components.distance(&from, chunk, Micros(1e-9))).clone()
    }

    /// Adds every slow link over which a chunk can leave that entered at label `from`, or that has not left its
    /// holders.
    fn leave(&mut self, from: Option<usize>) {
        let label = from.map(|from| self.grown.labels[from]);
        let (since, way) = label.map_or((Micros::ZERO, Way::default()), |label| (label.time, label.way));
        let distance = self.distance(label.map(|label| label.rank));
        let bytes = self.problem.demand.bytes_of(self.chunk);
        for &id in self.components.slow() {
            let link = self.problem.topology.link(id);
            let (here, there) = (self.components.of(link.from), self.components.of(link.to));
            let on_the_way = self.fineness.detours
                || self
                    .crossings
                    .get(&there)
                    .is_some_and(|count| self.crossings.get(&here).is_some_and(|at| at < count));
            let ready = since.0 + distance[link.from.index()];
            if !ready.is_finite() || !on_the_way || self.home.contains(&there) || !self.problem.allows(self.chunk, id) {
                continue;
            }
            let Some(way) = self.problem.constraints.after(&self.problem.topology, way, id) else { continue };
            let time = link.transfer_time(bytes);
            for departure in self.turns(id, Micros(ready), time) {
                self.arrive(id, from, departure, link.to, departure + time, way);
            }
        }
    }

    /// When a chunk that is ready at `ready` may leave: at once, or at a later turn.
    fn turns(&self, link: LinkId, ready: Micros, time: Micros) -> Vec<Micros> {
        let turn = self.fineness.turn;
        let zero = self.fineness.first_turns.get(&link).copied().unwrap_or_default();
        // The casts saturate.
        let first = (((ready - zero) / turn) * (1.0 + 1e-9)).floor().max(0.0) as u32 + 1;
        let last = ((self.fineness.horizon - time - zero) / turn).floor().max(0.0) as u32;
        [ready].into_iter().chain((first..=last).map(|index| zero + turn * f64::from(index))).collect()
    }

    fn arrive(&mut self, link: LinkId, from: Option<usize>, departure: Micros, rank: Rank, time: Micros, way: Way) {
        let distance = self.distance(Some(rank));
        let wanting = self.problem.demand.chunk(self.chunk).wanted_by.iter();
        let here = wanting.filter(|other| self.components.of(**other) == self.components.of(rank));
        let tail = Micros(here.map(|other| distance[other.index()]).fold(0.0, f64::max));
        if (time + tail).0 > self.fineness.horizon.0 * (1.0 + 1e-9) {
            return;
        }
        let next = self.grown.labels.len();
        let to = *self.known.entry((rank, self.instant(time), way)).or_insert(next);
        if to == next {
            self.grown.labels.push(Label { rank, time, way, tail });
        }
        self.grown.uses.push(SlowDeparture { chunk: self.chunk, link, from, to, departure });
    }

    /// Removes entries into components where the chunk is neither wanted nor sent on.
    fn useful(mut self) -> Labels {
        let wanting = self.problem.demand.chunk(self.chunk).wanted_by.iter();
        let wanting: BTreeSet<usize> = wanting.map(|rank| self.components.of(*rank)).collect();
        loop {
            let Labels { labels, uses } = &mut self.grown;
            let before = uses.len();
            let onward: BTreeSet<usize> = uses.iter().filter_map(|it| it.from).collect();
            uses.retain(|it| wanting.contains(&self.components.of(labels[it.to].rank)) || onward.contains(&it.to));
            if uses.len() == before {
                return self.grown;
            }
        }
    }
}
