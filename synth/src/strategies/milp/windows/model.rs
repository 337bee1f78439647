//! The model of one window: new routes and a new order for a few messages of a schedule, in exact time.
//!
//! The principal type is [`FreedWindow`]. Every message has a start; the free ones may come over other links and at other
//! times. The others keep their links and their order among themselves, but move in time. The schedule that the window
//! was taken from is a solution, so that the solver starts from it and can only improve it.
//!
//! | column | meaning |
//! |---|---|
//! | start\[i\] | departure of message i, between its head and its latest start |
//! | over\[f,l\] ∈ {0,1} | the free message f comes over link l to its receiver |
//! | before\[f,g\] ∈ {0,1} | the free message f leaves before g, where both may use a link or a resource |
//! | T | the last arrival |
//!
//! Heads and latest starts follow from the messages that are not free, so that no big M is larger than what these
//! leave open.

use crate::problem::Problem;
use crate::solver::{Column, Model, Solution};
use schedule::{ChunkId, Message, Schedule, Transfer};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, LinkId, Rank, ResourceId};

/// The most links that a free message may come over.
const MOST_WAYS: usize = 4;
/// The most pairs whose order is open.
pub(super) const MOST_PAIRS: usize = 400;
/// The weight of all departures together, relative to T: it prefers early ones among equal makespans.
const WEIGHT: f64 = 1e-4;

/// A link that a message may take, and the messages that bring its chunks to the sender.
struct OpenWay {
    link: LinkId,
    brought_by: Vec<usize>,
    over: Option<Column>,
}

/// One message.
struct MovingMessage {
    bytes: Bytes,
    ways: Vec<OpenWay>,
    is_free: bool,
    head: f64,
    latest: f64,
}

/// The model of one window.
pub(super) struct FreedWindow<'a> {
    problem: &'a Problem,
    transfers: &'a [Transfer],
    pub(super) model: Model,
    parts: Vec<MovingMessage>,
    starts: Vec<Column>,
    before: BTreeMap<(usize, usize), Column>,
    makespan: Column,
    best: f64,
}

impl<'a> FreedWindow<'a> {
    /// The model that frees the messages `free` of a schedule that only copies; `None` if too many orders are open.
    pub(super) fn new(problem: &'a Problem, schedule: &'a Schedule, free: &BTreeSet<usize>) -> Option<Self> {
        let (transfers, best) = (&schedule.transfers[..], schedule.makespan().0);
        let mut parts = parts(problem, transfers, free);
        find_room(problem, transfers, &mut parts, best);
        let mut model = Model::default();
        let starts = parts.iter().map(|part| model.continuous(part.head, part.latest.max(part.head))).collect();
        let makespan = model.continuous(0.0, best * (1.0 + 1e-9));
        model.set_cost(makespan, 1.0);
        for part in parts.iter_mut().filter(|part| part.ways.len() > 1) {
            part.ways.iter_mut().for_each(|way| way.over = Some(model.binary()));
        }
        let before = BTreeMap::new();
        let mut window = Self { problem, transfers, model, parts, starts, before, makespan, best };
        let weight = WEIGHT / window.parts.len() as f64;
        window.starts.iter().for_each(|&start| window.model.set_cost(start, weight));
        window.take_one_way();
        window.send_what_has_arrived();
        window.keep_turns();
        window.take_turns().then_some(window)
    }

    /// The time of a message over one of its links.
    fn time(&self, part: usize, way: &OpenWay) -> f64 {
        self.problem.topology.link(way.link).transfer_time(self.parts[part].bytes).0
    }

    /// How long a message over a link keeps that link or a resource of it busy; `None` if it does not use it.
    fn busy(&self, part: usize, link: LinkId, place: BusyPlace) -> Option<f64> {
        busy(self.problem, self.parts[part].bytes, link, place)
    }

    /// Σ over l of over\[f,l\] = 1, and T ≥ start\[i\] + the time of i over its link.
    fn take_one_way(&mut self) {
        for index in 0..self.parts.len() {
            let mut times = vec![(self.makespan, 1.0), (self.starts[index], -1.0)];
            let ways = &self.parts[index].ways;
            let over: Vec<(Column, f64)> = ways.iter().filter_map(|way| Some((way.over?, 1.0))).collect();
            let least = if over.is_empty() { self.time(index, &ways[0]) } else { 0.0 };
            times.extend(ways.iter().filter_map(|way| Some((way.over?, -self.time(index, way)))));
            if !over.is_empty() {
                self.model.equal(over, 1.0);
            }
            self.model.row(least, times, f64::INFINITY);
        }
    }

    /// start\[i\] ≥ start\[j\] + the time of j, where j brings what i sends: − M·(1 − over\[i,l\]) if i is free.
    fn send_what_has_arrived(&mut self) {
        for index in 0..self.parts.len() {
            let mut rows = Vec::new();
            for way in &self.parts[index].ways {
                for &from in &way.brought_by {
                    let other = &self.parts[from];
                    let mut terms = vec![(self.starts[index], 1.0), (self.starts[from], -1.0)];
                    let longest = other.ways.iter().map(|way| self.time(from, way)).fold(0.0, f64::max);
                    let mut lower = if other.ways.len() == 1 { longest } else { 0.0 };
                    terms.extend(other.ways.iter().filter_map(|way| Some((way.over?, -self.time(from, way)))));
                    if let Some(over) = way.over {
                        let big = (other.latest + longest - self.parts[index].head).max(0.0);
                        terms.push((over, -big));
                        lower -= big;
                    }
                    rows.push((lower, terms));
                }
            }
            rows.into_iter().for_each(|(lower, terms)| self.model.row(lower, terms, f64::INFINITY));
        }
    }

    /// start\[next\] ≥ start\[i\] + busy, for messages that are not free and follow each other at a link or a resource.
    fn keep_turns(&mut self) {
        let mut last: BTreeMap<BusyPlace, usize> = BTreeMap::new();
        for index in (0..self.parts.len()).filter(|&index| !self.parts[index].is_free) {
            for place in places(self.problem, self.transfers[index].link) {
                if let Some(before) = last.insert(place, index) {
                    let busy = self.busy(before, self.transfers[before].link, place).unwrap_or(0.0);
                    self.model.row(busy, [(self.starts[index], 1.0), (self.starts[before], -1.0)], f64::INFINITY);
                }
            }
        }
    }

    /// start\[g\] ≥ start\[f\] + busy − M·(1 − before\[f,g\]) − M·(1 − over\[f,l\]) − M·(1 − over\[g,k\]), and the same
    /// the other way round, for each link or resource that f over l and g over k share. Returns whether few enough
    /// orders are open.
    fn take_turns(&mut self) -> bool {
        let free: Vec<usize> = (0..self.parts.len()).filter(|&index| self.parts[index].is_free).collect();
        for &one in &free {
            for other in 0..self.parts.len() {
                if other == one || self.parts[other].is_free && other < one {
                    continue;
                }
                for row in self.conflicts(one, other) {
                    let SharedPlaces { first_busy, second_busy, over } = row;
                    if self.before.len() > MOST_PAIRS {
                        return false;
                    }
                    let model = &mut self.model;
                    let before = *self.before.entry((one, other)).or_insert_with(|| model.binary());
                    self.in_turn(one, other, first_busy, &over, (before, 1.0));
                    self.in_turn(other, one, second_busy, &over, (before, 0.0));
                }
            }
        }
        true
    }

    /// The places that two messages may share, over each of their links.
    fn conflicts(&self, one: usize, other: usize) -> Vec<SharedPlaces> {
        let mut found = Vec::new();
        for first in &self.parts[one].ways {
            for second in &self.parts[other].ways {
                let shared = places(self.problem, first.link)
                    .filter(|place| places(self.problem, second.link).any(|it| it == *place));
                let busy = |part: usize, way: &OpenWay, place| self.busy(part, way.link, place).unwrap_or(0.0);
                let pairs: Vec<(f64, f64)> =
                    shared.map(|place| (busy(one, first, place), busy(other, second, place))).collect();
                if !pairs.is_empty() {
                    found.push(SharedPlaces {
                        first_busy: pairs.iter().map(|it| it.0).fold(0.0, f64::max),
                        second_busy: pairs.iter().map(|it| it.1).fold(0.0, f64::max),
                        over: first.over.into_iter().chain(second.over).collect(),
                    });
                }
            }
        }
        found
    }

    fn in_turn(&mut self, first: usize, second: usize, busy: f64, over: &[Column], (order, when): (Column, f64)) {
        let big = (self.parts[first].latest + busy - self.parts[second].head).max(0.0);
        let mut terms = vec![(self.starts[second], 1.0), (self.starts[first], -1.0)];
        // order = when relaxes nothing; the other value relaxes all.
        terms.push((order, if when > 0.5 { -big } else { big }));
        terms.extend(over.iter().map(|&over| (over, -big)));
        let lower = busy - big * over.len() as f64 - if when > 0.5 { big } else { 0.0 };
        self.model.row(lower, terms, f64::INFINITY);
    }

    /// The schedule that the window was taken from, as a start for the solver.
    pub(super) fn start(&self) -> Vec<(Column, f64)> {
        let starts = self.starts.iter().zip(self.transfers).map(|(&start, transfer)| (start, transfer.start.0));
        let over = self.parts.iter().zip(self.transfers).flat_map(|(part, transfer)| {
            let ways = part.ways.iter();
            ways.filter_map(|way| Some((way.over?, f64::from(way.link == transfer.link))))
        });
        let order = self.before.iter().map(|(&(one, other), &before)| {
            (before, f64::from((self.transfers[one].start, one) < (self.transfers[other].start, other)))
        });
        starts.chain(over).chain(order).chain([(self.makespan, self.best)]).collect()
    }

    /// The columns that decide routes and orders.
    #[cfg(test)]
    pub(super) fn whole_columns(&self) -> BTreeSet<Column> {
        let over = self.parts.iter().flat_map(|part| part.ways.iter().filter_map(|way| way.over));
        over.chain(self.before.values().copied()).collect()
    }

    /// The messages of a solution, in the order of their starts.
    pub(super) fn messages(&self, solution: &Solution) -> Vec<Message> {
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        let key = |index: usize| solution.value(self.starts[index]);
        order.sort_by(|&a, &b| {
            key(a).total_cmp(&key(b)).then(self.transfers[a].start.total_cmp(&self.transfers[b].start))
        });
        let message = |index: usize| {
            let taken = self.parts[index].ways.iter().find(|way| way.over.is_some_and(|over| solution.is_set(over)));
            let link = taken.map_or(self.transfers[index].link, |way| way.link);
            Message { link, ..Message::from(&self.transfers[index]) }
        };
        order.into_iter().map(message).collect()
    }
}

/// Two messages that share places if each takes a certain link.
struct SharedPlaces {
    first_busy: f64,
    second_busy: f64,
    /// What must be chosen for that; nothing if neither has a choice.
    over: Vec<Column>,
}

/// A link, or a resource of links.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BusyPlace {
    Link(LinkId),
    Resource(ResourceId),
}

fn places(problem: &Problem, link: LinkId) -> impl Iterator<Item = BusyPlace> {
    let resources = problem.topology.link(link).resources.iter().copied().map(BusyPlace::Resource);
    std::iter::once(BusyPlace::Link(link)).chain(resources)
}

fn busy(problem: &Problem, bytes: Bytes, id: LinkId, place: BusyPlace) -> Option<f64> {
    let link = problem.topology.link(id);
    match place {
        BusyPlace::Link(other) => (other == id).then(|| link.occupancy(bytes).0),
        BusyPlace::Resource(other) => {
            link.resources.contains(&other).then(|| problem.topology.resource(other).occupancy(link, bytes).0)
        }
    }
}

/// The messages with the links that they may take.
fn parts(problem: &Problem, transfers: &[Transfer], free: &BTreeSet<usize>) -> Vec<MovingMessage> {
    let mut first: BTreeMap<(ChunkId, Rank), usize> = BTreeMap::new();
    for (index, transfer) in transfers.iter().enumerate() {
        transfer.chunks.iter().for_each(|&chunk| {
            first.entry((chunk, transfer.to)).or_insert(index);
        });
    }
    // The messages that bring the chunks to a rank; `None` if it never gets one of them.
    let brought = |transfer: &Transfer, rank: Rank, own: usize| {
        let lacking = transfer.chunks.iter().filter(|&&chunk| !problem.demand.chunk(chunk).holders.has(rank));
        let bringing = lacking.map(|&chunk| first.get(&(chunk, rank)).copied().filter(|&by| by != own));
        bringing.collect::<Option<BTreeSet<usize>>>().map(Vec::from_iter)
    };
    let part = |(index, transfer): (usize, &Transfer)| {
        let bytes = problem.demand.message_bytes(&transfer.chunks);
        let own = OpenWay {
            link: transfer.link,
            brought_by: brought(transfer, transfer.from, index).unwrap_or_default(),
            over: None,
        };
        let is_free = free.contains(&index);
        let mut ways = vec![own];
        if is_free {
            let others = problem.topology.incoming(transfer.to).iter().copied().filter(|&link| link != transfer.link);
            let allowed = others.filter(|&link| transfer.chunks.iter().all(|&chunk| problem.allows(chunk, link)));
            let mut found: Vec<OpenWay> = allowed
                .filter_map(|link| {
                    let brought_by = brought(transfer, problem.topology.link(link).from, index)?;
                    Some(OpenWay { link, brought_by, over: None })
                })
                .collect();
            // Those that can leave soonest, as the schedule is now.
            let arrives = |way: &OpenWay| way.brought_by.iter().map(|&by| transfers[by].end.0).fold(0.0, f64::max);
            found.sort_by(|a, b| arrives(a).total_cmp(&arrives(b)).then(a.link.cmp(&b.link)));
            ways.extend(found.into_iter().take(MOST_WAYS - 1));
        }
        MovingMessage { bytes, ways, is_free, head: 0.0, latest: 0.0 }
    };
    transfers.iter().enumerate().map(part).collect()
}

/// Heads and latest starts, from what is the same in every solution: the causes of messages with one way, and the order
/// of those that are not free.
fn find_room(problem: &Problem, transfers: &[Transfer], parts: &mut [MovingMessage], best: f64) {
    let shortest = |part: &MovingMessage| {
        let times = part.ways.iter().map(|way| problem.topology.link(way.link).transfer_time(part.bytes).0);
        times.fold(f64::INFINITY, f64::min)
    };
    let mut last: BTreeMap<BusyPlace, usize> = BTreeMap::new();
    // (earlier, later, the least time between their starts).
    let mut arcs: Vec<(usize, usize, f64)> = Vec::new();
    for index in 0..parts.len() {
        if let [only] = &parts[index].ways[..] {
            arcs.extend(only.brought_by.iter().map(|&from| (from, index, shortest(&parts[from]))));
        }
        if !parts[index].is_free {
            for place in places(problem, transfers[index].link) {
                if let Some(before) = last.insert(place, index) {
                    let link = transfers[before].link;
                    arcs.push((before, index, busy(problem, parts[before].bytes, link, place).unwrap_or(0.0)));
                }
            }
        }
    }
    // Transfers are listed in an order in which they can be played, so each arc leads to a later one.
    arcs.retain(|&(from, to, _)| from < to);
    arcs.sort_by_key(|&(from, to, _)| (to, from));
    for &(from, to, time) in &arcs {
        parts[to].head = parts[to].head.max(parts[from].head + time);
    }
    parts.iter_mut().for_each(|part| part.latest = best * (1.0 + 1e-9));
    for part in parts.iter_mut() {
        part.latest -= shortest(part);
    }
    arcs.sort_by_key(|&(from, to, _)| std::cmp::Reverse((from, to)));
    for &(from, to, time) in &arcs {
        parts[from].latest = parts[from].latest.min(parts[to].latest - time);
    }
}
