//! The 0/1 model of what happens around the crossings: chunks spread over fast links, in periods of a calendar.
//!
//! The principal type is [`Spreading`]. The crossings are data: what they carry has to be at their sender when they
//! leave and is at their receiver when they arrive. Whether the rest fits into the calendar is a feasibility question
//! without a single big M; the release times that TACCL's routing ignores [1] are the periods themselves. α is
//! paid once by all chunks that leave together, on every link and every port.
//!
//! | column | meaning |
//! |---|---|
//! | x[c,l,p] ∈ {0,1} | chunk c leaves on fast link l when period p starts; it takes as many periods as it needs |
//! | have[c,r,p] ∈ [0,1] | rank r holds chunk c when period p starts |
//! | message[l,p] ∈ {0,1} | something leaves on l in p, where a message costs an α |
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.

use super::calendar::Calendar;
use super::crossings::{Islands, Timed};
use crate::Problem;
use crate::milp::orbits::Orbits;
use crate::milp::solver::{Column, Model, Solution};
use schedule::ChunkId;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, Latency, LinkId, Micros, MicrosPerByte, Rank, ResourceId};

/// Times this close (relative) are equal.
const TOLERANCE: f64 = 1e-6;

/// A chunk that leaves on a fast link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ride {
    pub(super) chunk: ChunkId,
    pub(super) link: LinkId,
    /// The period with which it starts.
    pub(super) first: usize,
    /// The period before whose end it arrives.
    last: usize,
}

/// The model, and what its columns mean.
pub(super) struct Spreading {
    pub(super) model: Model,
    rides: Vec<(Ride, Column)>,
}

/// Why there is no model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Some chunk cannot be where it must be by then, however empty the links are.
    TooLate,
    /// More 0/1 columns than are allowed.
    TooLarge,
}

impl Spreading {
    /// Builds the model; a chunk may come to where it must be at most `patience` periods later than it could.
    ///
    /// # Errors
    /// [`Refusal`] instead of a model that would be pointless or too large.
    pub(super) fn new(
        islands: &Islands<'_>,
        calendar: &Calendar,
        crossings: &[Timed],
        patience: usize,
        orbits: Option<&Orbits>,
        most: usize,
    ) -> Result<Self, Refusal> {
        let mut builder = Builder {
            problem: islands.problem,
            calendar,
            orbits,
            model: Model::default(),
            shared: BTreeMap::new(),
            rides: Vec::new(),
            on_link: vec![Vec::new(); islands.fast.len()],
            messages: BTreeMap::new(),
            known: BTreeSet::new(),
        };
        for chunk in islands.problem.demand.chunk_ids() {
            let stay = Stay::new(islands, calendar, crossings, chunk);
            let rides = stay.rides(islands, calendar, patience).ok_or(Refusal::TooLate)?;
            builder.spread_chunk(chunk, &stay, &rides);
            let columns = if orbits.is_some() { builder.shared.len() } else { builder.rides.len() };
            if columns > most {
                return Err(Refusal::TooLarge);
            }
        }
        builder.leave_in_messages();
        builder.respect_links();
        builder.respect_resources();
        Ok(Self { model: builder.model, rides: builder.rides })
    }

    /// The rides of a solution, by period.
    pub(super) fn rides(&self, solution: &Solution) -> Vec<Ride> {
        let taken = self.rides.iter().filter(|(_, column)| solution.is_set(*column));
        let mut rides: Vec<Ride> = taken.map(|(ride, _)| *ride).collect();
        rides.sort_by_key(|ride| (ride.first, ride.link, ride.chunk));
        rides
    }
}

/// Where a chunk comes from and where it must be.
struct Stay {
    chunk: ChunkId,
    /// For each rank that gets the chunk without a fast link: from which period on.
    sources: BTreeMap<Rank, usize>,
    /// For each rank at which a crossing fetches it: before which period.
    fetched: BTreeMap<Rank, usize>,
}

impl Stay {
    fn new(islands: &Islands<'_>, calendar: &Calendar, crossings: &[Timed], chunk: ChunkId) -> Self {
        let described = islands.problem.demand.chunk(chunk);
        let mut sources: BTreeMap<Rank, usize> = described.holders.iter().map(|&rank| (rank, 0)).collect();
        let mut fetched: BTreeMap<Rank, usize> = BTreeMap::new();
        for timed in crossings.iter().filter(|timed| timed.crossing.chunks.contains(&chunk)) {
            let link = islands.problem.topology.link(timed.crossing.link);
            let from = calendar.first_from(timed.end);
            sources.entry(link.to).and_modify(|known| *known = from.min(*known)).or_insert(from);
            if !described.holders.has(link.from) {
                let by = calendar.over_by(timed.start);
                fetched.entry(link.from).and_modify(|known| *known = by.min(*known)).or_insert(by);
            }
        }
        Self { chunk, sources, fetched }
    }

    /// Every ride that is in time and of use; `None` if the chunk cannot be somewhere in time.
    fn rides(&self, islands: &Islands<'_>, calendar: &Calendar, patience: usize) -> Option<Vec<Ride>> {
        let problem = islands.problem;
        let described = problem.demand.chunk(self.chunk);
        let bytes = problem.demand.bytes_of(self.chunk);
        let usable = problem.topology.link_ids().filter(|id| {
            let to = problem.topology.link(*id).to;
            islands.fast[id.index()] && problem.allows(self.chunk, *id) && !self.sources.contains_key(&to)
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
        let rides = hops.iter().flat_map(|&(link, from, to, time)| {
            let first = held[from].unwrap_or(usize::MAX);
            let latest = useful[to].and_then(|before| calendar.latest_start(before, time));
            let starts = latest.filter(|_| first < calendar.len()).map(|last| first..=last);
            starts.into_iter().flatten().filter_map(move |first| {
                Some(Ride { chunk: self.chunk, link, first, last: calendar.last_of(first, time)? })
            })
        });
        Some(rides.collect())
    }
}

/// Repeats `improve` over all hops until none improves.
fn settle<T>(hops: &[T], mut improve: impl FnMut(&T) -> bool) {
    while hops.iter().fold(false, |any, hop| improve(hop) || any) {}
}

struct Builder<'a> {
    problem: &'a Problem,
    calendar: &'a Calendar,
    orbits: Option<&'a Orbits>,
    model: Model,
    /// The column of an orbit of rides.
    shared: BTreeMap<(usize, usize), Column>,
    rides: Vec<(Ride, Column)>,
    on_link: Vec<Vec<(Ride, Column)>>,
    /// message[l,p], made on demand.
    messages: BTreeMap<(usize, usize), Column>,
    /// Capacity rows that there are: links and ports of an orbit have the same.
    known: BTreeSet<CapacityRow>,
}

/// Columns with the bits of their weights, and those of the room.
type CapacityRow = (Vec<(Column, u64)>, u64);

/// The part of the time of a link or a resource that a link's messages take.
#[derive(Clone, Copy, Debug)]
struct User {
    link: LinkId,
    /// Per message.
    alpha: Micros,
    /// Per byte.
    beta: MicrosPerByte,
}

impl Builder<'_> {
    /// The rows of one chunk: it spreads from its sources to all that want it, and to where crossings fetch it.
    fn spread_chunk(&mut self, chunk: ChunkId, stay: &Stay, rides: &[Ride]) {
        let mut incoming: BTreeMap<Rank, Vec<(Ride, Column)>> = BTreeMap::new();
        let mut outgoing: BTreeMap<Rank, Vec<(Ride, Column)>> = BTreeMap::new();
        for &ride in rides {
            let column = match self.orbits.map(|orbits| (orbits.of(ride.chunk, ride.link), ride.first)) {
                Some(orbit) => *self.shared.entry(orbit).or_insert_with(|| self.model.binary()),
                None => self.model.binary(),
            };
            let link = self.problem.topology.link(ride.link);
            self.rides.push((ride, column));
            self.on_link[ride.link.index()].push((ride, column));
            incoming.entry(link.to).or_default().push((ride, column));
            outgoing.entry(link.from).or_default().push((ride, column));
        }
        // What a symmetry maps to this chunk has the same rows.
        if self.orbits.is_some_and(|orbits| !orbits.represents(chunk)) {
            return;
        }
        let wanted_by = &self.problem.demand.chunk(chunk).wanted_by;
        for (&rank, arrivals) in &incoming {
            let wanted = wanted_by.has(rank);
            let fetched = stay.fetched.get(&rank).copied();
            match outgoing.get(&rank) {
                None if fetched.is_none() => self.receive_once(arrivals, wanted),
                departures => {
                    let have = self.holding_follows_arrivals(arrivals, wanted, fetched);
                    self.hold_before_send(departures.map_or(&[], |it| &it[..]), &have);
                }
            }
        }
    }

    /// have[c,r,p] = have[c,r,p−1] + Σ over rides into r that are over when p starts, and have ≤ 1: at most one copy of
    /// a chunk comes to a rank. Where it is wanted, it is there at the end, and where a crossing fetches it, by then.
    fn holding_follows_arrivals(
        &mut self,
        arrivals: &[(Ride, Column)],
        wanted: bool,
        fetched: Option<usize>,
    ) -> BTreeMap<usize, Column> {
        let times: BTreeSet<usize> = arrivals.iter().map(|(ride, _)| ride.last + 1).collect();
        let mut have: BTreeMap<usize, Column> = BTreeMap::new();
        let mut before: Option<Column> = None;
        for time in times {
            let now = self.model.continuous(0.0, 1.0);
            let arriving = arrivals.iter().filter(|(ride, _)| ride.last + 1 == time).map(|(_, column)| (*column, -1.0));
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

    /// Σ over rides into r of x[c,l,p] = 1 where c is wanted at r, else ≤ 1: the same for a rank that the chunk never
    /// leaves, without columns.
    fn receive_once(&mut self, arrivals: &[(Ride, Column)], wanted: bool) {
        let terms: Vec<_> = arrivals.iter().map(|(_, column)| (*column, 1.0)).collect();
        self.model.row(if wanted { 1.0 } else { 0.0 }, terms, 1.0);
    }

    /// x[c,l,p] ≤ have[c,from(l),p].
    fn hold_before_send(&mut self, departures: &[(Ride, Column)], have: &BTreeMap<usize, Column>) {
        for (ride, column) in departures {
            let held = have.range(..=ride.first).next_back().map(|(_, &held)| (held, -1.0));
            self.model.at_most([(*column, 1.0)].into_iter().chain(held), 0.0);
        }
    }

    /// Σ over messages on l within periods p…q of (α + β·bytes) ≤ the time from p to q, for every fast link. Where α
    /// pipelines it does not count, but what leaves together is late by it.
    fn respect_links(&mut self) {
        for id in self.problem.topology.link_ids() {
            let link = self.problem.topology.link(id);
            let alpha = link.occupancy(Bytes::ZERO);
            self.fit(&[User { link: id, alpha, beta: link.beta }]);
            if link.latency == Latency::Pipelines && link.alpha > Micros::ZERO {
                self.arrive_in_time(id);
            }
        }
    }

    /// β·Σ_c b(c)·x[c,l,p] ≤ the time of the periods that a single chunk takes, less α.
    fn arrive_in_time(&mut self, id: LinkId) {
        let link = self.problem.topology.link(id);
        let mut rides = self.on_link[id.index()].clone();
        rides.sort_by_key(|(ride, _)| ride.first);
        for together in rides.chunk_by(|a, b| a.0.first == b.0.first) {
            let time = |ride: &Ride| link.beta * self.problem.demand.bytes_of(ride.chunk);
            let room = self.calendar.between(together[0].0.first, together[0].0.last) - link.alpha;
            let terms = together.iter().map(|(ride, column)| (*column, time(ride).0)).collect();
            self.share(terms, room);
        }
    }

    /// The same for every resource, over all its fast links, with the resource's own β.
    fn respect_resources(&mut self) {
        for index in 0..self.problem.topology.resources().len() {
            let id = ResourceId::from_index(index);
            let resource = self.problem.topology.resource(id);
            let user = |&link: &LinkId| {
                let alpha = resource.occupancy(self.problem.topology.link(link), Bytes::ZERO);
                User { link, alpha, beta: resource.beta }
            };
            let users: Vec<User> = self.problem.topology.users(id).iter().map(user).collect();
            self.fit(&users);
        }
    }

    /// For every interval that begins with a ride and ends with it, or a little later: what is within it fits into it.
    fn fit(&mut self, users: &[User]) {
        let mut rides: Vec<(Ride, Column, User)> = Vec::new();
        for user in users {
            rides.extend(self.on_link[user.link.index()].iter().map(|&(ride, column)| (ride, column, *user)));
        }
        rides.sort_by_key(|(ride, column, _)| (ride.first, ride.last, *column));
        let spans: BTreeSet<(usize, usize)> = rides.iter().map(|(ride, ..)| (ride.first, ride.last)).collect();
        let mut intervals: BTreeSet<(usize, usize)> = BTreeSet::new();
        for &(first, last) in &spans {
            // Up to where one that begins last within it would end.
            intervals.extend(
                (last..=last + (last - first)).filter(|&end| end < self.calendar.len()).map(|end| (first, end)),
            );
        }
        for (first, last) in intervals {
            let from = rides.partition_point(|(ride, ..)| ride.first < first);
            let to = rides.partition_point(|(ride, ..)| ride.first <= last);
            let within: Vec<(Ride, Column, User)> =
                rides[from..to].iter().filter(|(ride, ..)| ride.last <= last).copied().collect();
            let time = |ride: &Ride, user: &User| (user.beta * self.problem.demand.bytes_of(ride.chunk)).0;
            let mut terms: Vec<(Column, f64)> =
                within.iter().map(|(ride, column, user)| (*column, time(ride, user))).collect();
            terms.extend(self.alphas(users, first, last));
            self.share(terms, self.calendar.between(first, last));
        }
    }

    /// α·message[l,p] of every message of `users` within an interval.
    fn alphas(&self, users: &[User], first: usize, last: usize) -> Vec<(Column, f64)> {
        let mut terms = Vec::new();
        for user in users.iter().filter(|user| user.alpha > Micros::ZERO) {
            let rides = self.on_link[user.link.index()].iter();
            let starts = rides.filter(|(ride, _)| ride.first >= first && ride.last <= last).map(|(ride, _)| ride.first);
            let orbit = self.orbits.map_or(user.link.index(), |orbits| orbits.of_link(user.link));
            let columns = starts.collect::<BTreeSet<_>>().into_iter().map(|start| self.messages[&(orbit, start)]);
            terms.extend(columns.map(|column| (column, user.alpha.0)));
        }
        terms
    }

    /// x[c,l,p] ≤ message[l,p], where a message costs an α.
    fn leave_in_messages(&mut self) {
        let mut seen: BTreeSet<Column> = BTreeSet::new();
        for &(ride, column) in &self.rides {
            if self.problem.topology.link(ride.link).occupancy(Bytes::ZERO) == Micros::ZERO || !seen.insert(column) {
                continue;
            }
            let orbit = self.orbits.map_or(ride.link.index(), |orbits| orbits.of_link(ride.link));
            let message = *self.messages.entry((orbit, ride.first)).or_insert_with(|| self.model.binary());
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
