//! The 0/1 model of everything around the crossings: chunks spread over fast links, in the periods of a calendar.
//!
//! The principal type is [`SpreadModel`]. The crossings are given. Their chunks must be at the sender when they leave,
//! and are at the receiver when they arrive. Whether the rest fits into the calendar is a feasibility problem without
//! any big M. Release times, which TACCL's routing ignores [1], are the periods themselves. On every link and every
//! port, chunks that leave together pay α once.
//!
//! | column | meaning |
//! |---|---|
//! | x[c,l,p] ∈ {0,1} | chunk c leaves on fast link l when period p starts; it takes as many periods as it needs |
//! | have[c,r,p] ∈ [0,1] | rank r holds chunk c when period p starts |
//! | message[l,p] ∈ {0,1} | some chunk leaves on l in p, where a message costs an α |
//! | connected[l] ∈ {0,1} | some chunk leaves on l at all, where few or many connections are wished |
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.

use super::calendar::PeriodCalendar;
use super::crossings::{FastComponents, TimedCrossing};
use super::occupant::{Occupant, messages_cost};
use super::places::ChunkPlaces;
use crate::problem::ConnectionPolicy;
use crate::problem::Problem;
use crate::solver::{Column, Model, Solution};
use crate::symmetry::PairOrbits;
use schedule::ChunkId;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Latency, LinkId, Micros, Rank, ResourceId};

/// Times this close (relative) are equal.
const TOLERANCE: f64 = 1e-6;

/// A chunk that leaves on a fast link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FastDeparture {
    pub(super) chunk: ChunkId,
    pub(super) link: LinkId,
    /// The period with whose start it leaves.
    pub(super) first: usize,
    /// The period by whose end it has arrived.
    pub(super) last: usize,
}

/// The model, and the departures that its columns stand for.
pub(super) struct SpreadModel {
    pub(super) model: Model,
    departures: Vec<(FastDeparture, Column)>,
}

/// The freedom of chunks, and the limit on the size of the model.
#[derive(Clone, Copy)]
pub(super) struct Freedom {
    /// By how many periods a chunk may arrive later than possible where it must be.
    pub(super) patience: usize,
    pub(super) columns: usize,
}

/// Why there is no model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Some chunk cannot be where it must be in time, even on empty links.
    TooLate,
    /// There would be more 0/1 columns than allowed.
    TooLarge,
}

impl SpreadModel {
    /// Builds the model.
    ///
    /// # Errors
    /// [`Refusal`] if the model would be infeasible or too large.
    pub(super) fn new(
        components: &FastComponents<'_>,
        calendar: &PeriodCalendar,
        crossings: &[TimedCrossing],
        freedom: Freedom,
        orbits: Option<&PairOrbits>,
    ) -> Result<Self, Refusal> {
        let mut builder = SpreadModelBuilder {
            problem: components.problem,
            calendar,
            orbits,
            model: Model::default(),
            shared: BTreeMap::new(),
            departures: Vec::new(),
            on_link: vec![Vec::new(); components.fast.len()],
            messages: BTreeMap::new(),
            known: BTreeSet::new(),
        };
        for chunk in components.problem.demand.chunk_ids() {
            let places = ChunkPlaces::new(components, calendar, crossings, chunk);
            let departures = places.departures(components, calendar, freedom).ok_or(Refusal::TooLate)?;
            builder.spread_chunk(chunk, &places, &departures);
            let columns = if orbits.is_some() { builder.shared.len() } else { builder.departures.len() };
            if columns > freedom.columns {
                return Err(Refusal::TooLarge);
            }
        }
        builder.leave_in_messages();
        builder.respect_links();
        builder.respect_resources();
        Ok(Self { model: builder.model, departures: builder.departures })
    }

    /// Adds the wishes for connections; `false` if there are none. connected[l] ≥ Σ_p x[c,l,p] for every chunk where
    /// few are wanted, connected[l] ≤ Σ_{c,p} x[c,l,p] where many are; the objective counts them (TACCL's `uc-min` and
    /// `uc-max`).
    pub(super) fn wish_connections(&mut self, problem: &Problem, orbits: Option<&PairOrbits>) -> bool {
        let mut on_link: BTreeMap<LinkId, Vec<(FastDeparture, Column)>> = BTreeMap::new();
        self.departures
            .iter()
            .for_each(|&(departure, column)| on_link.entry(departure.link).or_default().push((departure, column)));
        let mut connected: BTreeSet<usize> = BTreeSet::new();
        for wish in &problem.constraints.connections {
            for link in &wish.links {
                let Some(departures) = on_link.get(link) else { continue };
                if !connected.insert(orbits.map_or(link.index(), |orbits| orbits.of_link(*link))) {
                    continue;
                }
                let column = self.model.binary();
                match wish.wish {
                    ConnectionPolicy::Few => {
                        self.model.set_cost(column, 1.0);
                        for of_chunk in departures.chunk_by(|a, b| a.0.chunk == b.0.chunk) {
                            let terms = of_chunk.iter().map(|(_, departure)| (*departure, 1.0)).chain([(column, -1.0)]);
                            self.model.at_most(terms.collect::<Vec<_>>(), 0.0);
                        }
                    }
                    ConnectionPolicy::Many => {
                        self.model.set_cost(column, -1.0);
                        let terms = departures.iter().map(|(_, departure)| (*departure, -1.0)).chain([(column, 1.0)]);
                        self.model.at_most(terms.collect::<Vec<_>>(), 0.0);
                    }
                }
            }
        }
        !connected.is_empty()
    }

    /// A start for the solver: the departures of a solution, and no others.
    pub(super) fn start(&self, departures: &[FastDeparture]) -> Vec<(Column, f64)> {
        let taken: BTreeSet<(ChunkId, LinkId, usize)> =
            departures.iter().map(|departure| (departure.chunk, departure.link, departure.first)).collect();
        let is_taken = |departure: &FastDeparture| taken.contains(&(departure.chunk, departure.link, departure.first));
        self.departures.iter().map(|(departure, column)| (*column, f64::from(is_taken(departure)))).collect()
    }

    /// The departures of a solution, by period.
    pub(super) fn departures(&self, solution: &Solution) -> Vec<FastDeparture> {
        let taken = self.departures.iter().filter(|(_, column)| solution.is_set(*column));
        let mut departures: Vec<FastDeparture> = taken.map(|(departure, _)| *departure).collect();
        departures.sort_by_key(|departure| (departure.first, departure.link, departure.chunk));
        departures
    }
}

struct SpreadModelBuilder<'a> {
    problem: &'a Problem,
    calendar: &'a PeriodCalendar,
    orbits: Option<&'a PairOrbits>,
    model: Model,
    /// The column of an orbit of departures.
    shared: BTreeMap<(usize, usize), Column>,
    departures: Vec<(FastDeparture, Column)>,
    on_link: Vec<Vec<(FastDeparture, Column)>>,
    /// message[l,p], created on demand.
    messages: BTreeMap<(usize, usize), Column>,
    /// Capacity rows that exist already: links and ports of one orbit have the same.
    known: BTreeSet<CapacityRow>,
}

/// The columns with the bits of their weights, and the bits of the room.
type CapacityRow = (Vec<(Column, u64)>, u64);

impl SpreadModelBuilder<'_> {
    /// The rows of one chunk: it spreads from its sources to all ranks that want it, and to the senders of its
    /// crossings.
    fn spread_chunk(&mut self, chunk: ChunkId, places: &ChunkPlaces, departures: &[FastDeparture]) {
        let mut incoming: BTreeMap<Rank, Vec<(FastDeparture, Column)>> = BTreeMap::new();
        let mut outgoing: BTreeMap<Rank, Vec<(FastDeparture, Column)>> = BTreeMap::new();
        for &departure in departures {
            let column = match self.orbits.map(|orbits| (orbits.of(departure.chunk, departure.link), departure.first)) {
                Some(orbit) => *self.shared.entry(orbit).or_insert_with(|| self.model.binary()),
                None => self.model.binary(),
            };
            let link = self.problem.topology.link(departure.link);
            self.departures.push((departure, column));
            self.on_link[departure.link.index()].push((departure, column));
            incoming.entry(link.to).or_default().push((departure, column));
            outgoing.entry(link.from).or_default().push((departure, column));
        }
        // Chunks that a symmetry maps to this one have the same rows.
        if self.orbits.is_some_and(|orbits| !orbits.represents(chunk)) {
            return;
        }
        let wanted_by = &self.problem.demand.chunk(chunk).wanted_by;
        for (&rank, arrivals) in &incoming {
            let wanted = wanted_by.has(rank);
            let fetched = places.fetched.get(&rank).copied();
            match outgoing.get(&rank) {
                None if fetched.is_none() => self.receive_once(arrivals, wanted),
                departures => {
                    let have = self.holding_follows_arrivals(arrivals, wanted, fetched);
                    self.hold_before_send(departures.map_or(&[], |it| &it[..]), &have);
                }
            }
        }
    }

    /// have[c,r,p] = have[c,r,p−1] + Σ over departures to r that have arrived when p starts, and have ≤ 1: at most one
    /// copy of a chunk comes to a rank. The chunk is there at the end where it is wanted, and in time where a crossing
    /// sends it.
    fn holding_follows_arrivals(
        &mut self,
        arrivals: &[(FastDeparture, Column)],
        wanted: bool,
        fetched: Option<usize>,
    ) -> BTreeMap<usize, Column> {
        let times: BTreeSet<usize> = arrivals.iter().map(|(departure, _)| departure.last + 1).collect();
        let mut have: BTreeMap<usize, Column> = BTreeMap::new();
        let mut before: Option<Column> = None;
        for time in times {
            let now = self.model.continuous(0.0, 1.0);
            let arriving =
                arrivals.iter().filter(|(departure, _)| departure.last + 1 == time).map(|(_, column)| (*column, -1.0));
            let terms: Vec<_> = arriving.chain(before.map(|before| (before, -1.0))).chain([(now, 1.0)]).collect();
            self.model.equal(terms, 0.0);
            have.insert(time, now);
            before = Some(now);
        }
        if let Some(last) = before.filter(|_| wanted) {
            self.model.fix(last, 1.0);
        }
        if let Some((_, &by)) = fetched.and_then(|by| have.range(..=by).next_back()) {
            self.model.fix(by, 1.0);
        }
        have
    }

    /// The same for a rank that the chunk never leaves, without columns: Σ over departures to r of x[c,l,p] is 1 where
    /// c is wanted at r, else ≤ 1.
    fn receive_once(&mut self, arrivals: &[(FastDeparture, Column)], wanted: bool) {
        let terms: Vec<_> = arrivals.iter().map(|(_, column)| (*column, 1.0)).collect();
        self.model.row(if wanted { 1.0 } else { 0.0 }, terms, 1.0);
    }

    /// x[c,l,p] ≤ have[c,from(l),p].
    fn hold_before_send(&mut self, departures: &[(FastDeparture, Column)], have: &BTreeMap<usize, Column>) {
        for (departure, column) in departures {
            let held = have.range(..=departure.first).next_back().map(|(_, &held)| (held, -1.0));
            self.model.at_most([(*column, 1.0)].into_iter().chain(held), 0.0);
        }
    }

    /// Σ over messages on l within periods p…q of (α + β·bytes) ≤ the time from p to q, for every fast link. Where α
    /// pipelines it is not counted here, but it delays chunks that leave together.
    fn respect_links(&mut self) {
        for id in self.problem.topology.link_ids() {
            let link = self.problem.topology.link(id);
            self.fit(&[Occupant::of_itself(&self.problem.topology, id)]);
            if link.latency == Latency::Pipelines && link.alpha > Micros::ZERO {
                self.arrive_in_time(id);
            }
        }
    }

    /// β·Σ_c b(c)·x[c,l,p] ≤ the length of the periods that a single chunk takes, minus α.
    fn arrive_in_time(&mut self, id: LinkId) {
        let link = self.problem.topology.link(id);
        let mut departures = self.on_link[id.index()].clone();
        departures.sort_by_key(|(departure, _)| departure.first);
        for together in departures.chunk_by(|a, b| a.0.first == b.0.first) {
            let time = |departure: &FastDeparture| link.byte_time(self.problem.demand.bytes_of(departure.chunk));
            let room = self.calendar.between(together[0].0.first, together[0].0.last) - link.alpha;
            let terms = together.iter().map(|(departure, column)| (*column, time(departure).0)).collect();
            self.share(terms, room);
        }
    }

    /// The same for every resource, over all its fast links, with the resource's own β.
    fn respect_resources(&mut self) {
        for index in 0..self.problem.topology.resources().len() {
            let id = ResourceId::from_index(index);
            let topology = &*self.problem.topology;
            let users: Vec<_> =
                topology.users(id).iter().map(|&link| Occupant::of_resource(topology, id, link)).collect();
            self.fit(&users);
        }
    }

    /// For every interval from the start of some departure to its end, or slightly longer: everything within it must
    /// fit.
    fn fit(&mut self, users: &[Occupant]) {
        let mut departures: Vec<(FastDeparture, Column, Occupant)> = Vec::new();
        for user in users {
            departures
                .extend(self.on_link[user.link.index()].iter().map(|&(departure, column)| (departure, column, *user)));
        }
        departures.sort_by_key(|(departure, column, _)| (departure.first, departure.last, *column));
        let spans: BTreeSet<(usize, usize)> =
            departures.iter().map(|(departure, ..)| (departure.first, departure.last)).collect();
        let mut intervals: BTreeSet<(usize, usize)> = BTreeSet::new();
        for &(first, last) in &spans {
            // Up to the end of a departure that begins with the last period of the interval.
            intervals.extend(
                (last..=last + (last - first)).filter(|&end| end < self.calendar.len()).map(|end| (first, end)),
            );
        }
        for (first, last) in intervals {
            let from = departures.partition_point(|(departure, ..)| departure.first < first);
            let to = departures.partition_point(|(departure, ..)| departure.first <= last);
            let within: Vec<(FastDeparture, Column, Occupant)> =
                departures[from..to].iter().filter(|(departure, ..)| departure.last <= last).copied().collect();
            let time = |departure: &FastDeparture, user: &Occupant| {
                user.byte_time(self.problem.demand.bytes_of(departure.chunk))
            };
            let mut terms: Vec<(Column, f64)> =
                within.iter().map(|(departure, column, user)| (*column, time(departure, user))).collect();
            let room = self.calendar.between(first, last);
            let messages = self.alphas(users, first, last);
            self.count_messages(&messages, terms.iter().map(|it| it.1).fold(f64::INFINITY, f64::min), room);
            terms.extend(messages);
            self.share(terms, room);
        }
    }

    /// Σ message[l,p] ≤ the number of messages of the least load that fit. This is implied for whole columns, and
    /// tightens fractional ones.
    fn count_messages(&mut self, messages: &[(Column, f64)], least: f64, room: Micros) {
        let Some(alpha) = messages.iter().map(|it| it.1).min_by(f64::total_cmp) else { return };
        let terms = messages.iter().map(|&(column, _)| (column, alpha + least)).collect();
        self.share(terms, room);
    }

    /// The terms α·message[l,p] of all messages of `users` within an interval.
    fn alphas(&self, users: &[Occupant], first: usize, last: usize) -> Vec<(Column, f64)> {
        let mut terms = Vec::new();
        for user in users.iter().filter(|user| user.alpha > Micros::ZERO) {
            let departures = self.on_link[user.link.index()].iter();
            let starts = departures
                .filter(|(departure, _)| departure.first >= first && departure.last <= last)
                .map(|(departure, _)| departure.first);
            let orbit = self.orbits.map_or(user.link.index(), |orbits| orbits.of_link(user.link));
            let columns = starts.collect::<BTreeSet<_>>().into_iter().map(|start| self.messages[&(orbit, start)]);
            terms.extend(columns.map(|column| (column, user.alpha.0)));
        }
        terms
    }

    /// x[c,l,p] ≤ message[l,p], where a message costs an α.
    fn leave_in_messages(&mut self) {
        let mut seen: BTreeSet<Column> = BTreeSet::new();
        for &(departure, column) in &self.departures {
            if !messages_cost(&self.problem.topology, departure.link) || !seen.insert(column) {
                continue;
            }
            let orbit = self.orbits.map_or(departure.link.index(), |orbits| orbits.of_link(departure.link));
            let message = *self.messages.entry((orbit, departure.first)).or_insert_with(|| self.model.binary());
            self.model.at_most([(column, 1.0), (message, -1.0)], 0.0);
        }
    }

    /// Σ weight·column ≤ room. Equal weights are counted in whole chunks, which is tighter.
    fn share(&mut self, terms: Vec<(Column, f64)>, room: Micros) {
        let Some(&(_, weight)) = terms.first() else { return };
        let mut key: Vec<(Column, u64)> = terms.iter().map(|&(column, weight)| (column, weight.to_bits())).collect();
        key.sort_unstable();
        if self.orbits.is_some() && !self.known.insert((key, room.0.to_bits())) {
            return;
        }
        let allowed = room.0 * (1.0 + TOLERANCE);
        if terms.iter().all(|&(_, other)| (other - weight).abs() <= 1e-9 * weight) {
            let chunks = (allowed / weight).floor();
            if chunks < terms.len() as f64 {
                self.model.at_most(terms.into_iter().map(|(column, _)| (column, 1.0)), chunks);
            }
        } else if terms.iter().map(|&(_, weight)| weight).sum::<f64>() > allowed {
            self.model.at_most(terms.into_iter().map(|(column, weight)| (column, weight / room.0)), 1.0 + TOLERANCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::crossings::Crossing;
    use super::*;
    use crate::problem::by_hand::{self, Wire, wired};
    use crate::solver::{Ending, solved};

    use std::sync::Arc;

    fn free(columns: usize) -> Freedom {
        Freedom { patience: 99, columns }
    }

    /// A broadcast of `chunks` chunks of one byte from rank 0; the shared port takes 1 µs per byte.
    fn broadcast(ranks: usize, wires: &[Wire], latency: Latency, chunks: u32) -> Problem {
        by_hand::broadcast(wired(ranks, wires, latency, 1.0), chunks)
    }

    /// Whether the model of `periods` periods of `length` admits exactly these departures (chunk, link, period). Every
    /// link is fast except that of `crossing` (link, chunks, start, end).
    fn admits(
        problem: &Problem,
        (periods, length): (usize, f64),
        crossing: Option<(u32, &[u32], f64, f64)>,
        departures: &[(u32, u32, usize)],
    ) -> bool {
        let slow = crossing.map(|(link, ..)| LinkId(link));
        let components = FastComponents::of_fast(problem, |id| Some(id) != slow);
        let end = Micros(length * periods as f64);
        let calendar = PeriodCalendar::new(Micros::ZERO, Micros(length), end, Micros(length), 99).unwrap();
        let timed = crossing.map(|(link, chunks, start, end)| TimedCrossing {
            crossing: Crossing { link: LinkId(link), chunks: chunks.iter().copied().map(ChunkId).collect() },
            start: Micros(start),
            end: Micros(end),
        });
        let timed: Vec<TimedCrossing> = timed.into_iter().collect();
        let Ok(mut spreading) = SpreadModel::new(&components, &calendar, &timed, free(999), None) else { return false };
        let mut missing = departures.to_vec();
        for (departure, column) in &spreading.departures {
            let key = (departure.chunk.0, departure.link.0, departure.first);
            let wanted = missing.iter().position(|other| *other == key).map(|at| missing.remove(at));
            spreading.model.fix(*column, if wanted.is_some() { 1.0 } else { 0.0 });
        }
        assert!(missing.is_empty(), "no column for {missing:?}: the test would show nothing");
        match solved(&spreading.model, &[]) {
            Ending::Optimal(_) => true,
            Ending::Infeasible => false,
            other => panic!("{other:?}"),
        }
    }

    const OCCUPIES: Latency = Latency::Occupies;

    #[test]
    fn nobody_sends_what_has_not_arrived() {
        let chain =
            broadcast(3, &[(0, 1, 0.0, 1.0, false), (1, 2, 0.0, 1.0, false), (0, 2, 0.0, 1.0, false)], OCCUPIES, 1);
        assert!(admits(&chain, (3, 1.0), None, &[(0, 0, 0), (0, 1, 1)]));
        // Rank 1 gets the chunk in the third period, but would send it in the second.
        assert!(!admits(&chain, (3, 1.0), None, &[(0, 0, 2), (0, 1, 1)]));
    }

    #[test]
    fn a_chunk_comes_once_and_to_all_who_want_it() {
        let fork =
            broadcast(3, &[(0, 1, 0.0, 1.0, false), (1, 2, 0.0, 1.0, false), (0, 2, 0.0, 1.0, false)], OCCUPIES, 1);
        assert!(admits(&fork, (3, 1.0), None, &[(0, 0, 0), (0, 2, 0)]));
        assert!(!admits(&fork, (3, 1.0), None, &[(0, 0, 0), (0, 1, 1), (0, 2, 0)]), "twice");
        assert!(!admits(&fork, (3, 1.0), None, &[(0, 0, 0)]), "never");
        assert!(!admits(&fork, (3, 1.0), None, &[(0, 0, 0), (0, 0, 1), (0, 2, 0)]), "twice to one that passes it on");
    }

    #[test]
    fn a_link_carries_what_its_time_allows() {
        let wire = broadcast(2, &[(0, 1, 0.0, 2.0, false)], OCCUPIES, 2);
        // A chunk takes two periods.
        assert!(admits(&wire, (4, 1.0), None, &[(0, 0, 0), (1, 0, 2)]));
        assert!(!admits(&wire, (4, 1.0), None, &[(0, 0, 0), (1, 0, 1)]), "the second leaves while the first is inside");
        assert!(!admits(&wire, (4, 1.0), None, &[(0, 0, 0), (1, 0, 0)]), "both at once");
        assert!(admits(&wire, (2, 4.0), None, &[(0, 0, 0), (1, 0, 0)]), "a long period holds both");
    }

    #[test]
    fn chunks_that_leave_together_pay_one_alpha() {
        let wire = broadcast(2, &[(0, 1, 2.0, 1.0, false)], OCCUPIES, 3);
        assert!(admits(&wire, (2, 5.0), None, &[(0, 0, 0), (1, 0, 0), (2, 0, 0)]), "2 + 3·1 fits into 5");
        assert!(!admits(&wire, (2, 4.5), None, &[(0, 0, 0), (1, 0, 0), (2, 0, 0)]), "and not into 4.5");
        assert!(admits(&wire, (2, 4.5), None, &[(0, 0, 0), (1, 0, 0), (2, 0, 1)]));
    }

    #[test]
    fn where_alpha_pipelines_it_delays_what_leaves_together() {
        let wire = broadcast(2, &[(0, 1, 2.0, 1.0, false)], Latency::Pipelines, 3);
        // One chunk takes three periods of 1 µs; the link is free after one.
        assert!(admits(&wire, (5, 1.0), None, &[(0, 0, 0), (1, 0, 1), (2, 0, 2)]));
        assert!(!admits(&wire, (5, 1.0), None, &[(0, 0, 0), (1, 0, 0), (2, 0, 2)]), "two at once take four");
    }

    #[test]
    fn a_port_serves_one_message_at_a_time() {
        let star = [(0, 1, 1.0, 1.0, true), (0, 2, 1.0, 1.0, true), (1, 2, 1.0, 1.0, false)];
        let star = broadcast(3, &star, OCCUPIES, 1);
        assert!(admits(&star, (2, 2.0), None, &[(0, 0, 0), (0, 1, 1)]));
        assert!(!admits(&star, (2, 2.0), None, &[(0, 0, 0), (0, 1, 0)]), "1 + 1 twice is more than 2");
        assert!(admits(&star, (2, 4.0), None, &[(0, 0, 0), (0, 1, 0)]));
    }

    #[test]
    fn crossings_fetch_in_time_and_bring_what_goes_on() {
        // The links 0 → 1 ⇒ 2 → 3, where ⇒ is slow.
        let bridge = [(0, 1, 0.0, 1.0, false), (1, 2, 0.0, 9.0, false), (2, 3, 0.0, 1.0, false)];
        let bridge = broadcast(4, &bridge, OCCUPIES, 1);
        let crossing = |start: f64| Some((1, &[0][..], start, start + 9.0));
        assert!(admits(&bridge, (12, 1.0), crossing(1.0), &[(0, 0, 0), (0, 2, 10)]));
        assert!(!admits(&bridge, (12, 1.0), crossing(0.5), &[(0, 0, 0), (0, 2, 10)]), "it leaves before it is there");
        assert!(!admits(&bridge, (10, 1.0), crossing(1.0), &[(0, 0, 0)]), "there is no time to pass it on");
        assert!(!admits(&bridge, (12, 1.0), crossing(1.0), &[(0, 0, 0)]), "rank 3 waits for ever");
    }

    #[test]
    fn too_many_columns_are_refused() {
        let wire = broadcast(2, &[(0, 1, 0.0, 1.0, false)], OCCUPIES, 3);
        let components = FastComponents::of_fast(&wire, |_| true);
        let calendar = PeriodCalendar::new(Micros::ZERO, Micros(1.0), Micros(4.0), Micros(1.0), 99).unwrap();
        let build = |most| SpreadModel::new(&components, &calendar, &[], free(most), None).err();
        assert_eq!((build(11), build(12)), (Some(Refusal::TooLarge), None));
    }

    #[test]
    fn few_and_many_connections() {
        // Over rank 1 or directly: the wish decides.
        let fork = [(0, 1, 0.0, 1.0, false), (0, 2, 0.0, 1.0, false), (1, 2, 0.0, 1.0, false), (2, 1, 0.0, 1.0, false)];
        let used = |wish| {
            let mut problem = broadcast(3, &fork, OCCUPIES, 2);
            let links: Vec<LinkId> = problem.topology.link_ids().collect();
            let connections = vec![crate::problem::ConnectionWish { links, wish, line: 1 }];
            problem.constraints =
                Arc::new(crate::problem::Constraints { connections, ..crate::problem::Constraints::none() });
            let components = FastComponents::of_fast(&problem, |_| true);
            let calendar = PeriodCalendar::new(Micros::ZERO, Micros(1.0), Micros(4.0), Micros(1.0), 99).unwrap();
            let mut spreading = SpreadModel::new(&components, &calendar, &[], free(999), None).ok().unwrap();
            assert!(spreading.wish_connections(&problem, None));
            let Ending::Optimal(solution) = solved(&spreading.model, &[]) else {
                panic!("the wish made it infeasible")
            };
            spreading.departures(&solution).iter().map(|departure| departure.link).collect::<BTreeSet<_>>().len()
        };
        assert_eq!((used(crate::sketch::ConnectionPolicy::Few), used(crate::sketch::ConnectionPolicy::Many)), (2, 4));
    }
}
