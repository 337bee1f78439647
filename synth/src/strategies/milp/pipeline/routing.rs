//! The first stage: by which slow links each chunk comes to which fast component, which ranks relay it, and which
//! chunks share a message.
//!
//! The principal type is [`RoutingModel`], a 0/1 model over the labels of [`labels`](super::labels). It is TACCL's
//! routing [1] with four changes. Release times are part of the columns, so no big M is needed to exclude early use of
//! a link or port whose chunks arrive late. α is paid per message, not per chunk. A NIC that several links share is a
//! resource like any other, not split into a share for each. And the time that a rank needs to receive its chunks after
//! the last crossings is counted. Inside a fast component, a chunk simply arrives at its distance here. The second
//! stage decides its links there together with their order.
//!
//! | column | meaning |
//! |---|---|
//! | x[u] ∈ {0,1} | a chunk leaves by a slow link at a label's time (a use u) |
//! | message[l,t] ∈ {0,1} | some chunk leaves on l at t, where a message costs an α |
//! | open[l] ∈ {0,1} | some chunk leaves on l at all, where few or many connections are wished (switch-hyperedges) |
//! | rest[u,t] ≥ 0 | the time of everything that leaves on a link or resource u, or enters for a rank, at t or later |
//! | backlog[u,t] ≥ 0 | the time of what is still to be sent on u when a turn begins, where messages cost no α |
//! | T | the end |
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.1.

use super::crossings::FastComponents;
use super::labels::{Fineness, Label, Labels, SlowDeparture};
use super::occupant::{Occupant, messages_cost};
use crate::problem::ConnectionPolicy;
use crate::problem::{Problem, Way};
use crate::solver::{Column, Model};
use crate::symmetry::PairOrbits;
use schedule::ChunkId;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, LinkId, Micros, ResourceId};

/// The weight of all wished connections together, relative to the end, in parts of the horizon.
const WEIGHT_OF_WISHES: f64 = 1e-2;
/// The weight of the mean arrival, relative to the end.
const WEIGHT_OF_ARRIVALS: f64 = 1e-2;

/// The column of an orbit of uses, by (orbit of chunk and link, instant of arrival, instant of departure, way).
type SharedColumns = BTreeMap<(usize, u64, u64, Way), Column>;
/// For each instant, its time, and the time that each 0/1 column occupies.
type LoadByInstant = BTreeMap<u64, (Micros, LinearTerms)>;
type LinearTerms = Vec<(Column, f64)>;
/// A load as a key for comparison: instants, columns, and the bits of their times.
type LoadKey = Vec<(u64, Column, u64)>;

/// The model, and the uses that its columns stand for.
pub(super) struct RoutingModel<'a> {
    components: &'a FastComponents<'a>,
    problem: &'a Problem,
    pub(super) model: Model,
    orbits: Option<&'a PairOrbits>,
    pub(super) fineness: Fineness<'a>,
    pub(super) uses: Vec<(SlowDeparture, Column)>,
    /// For each link: when a chunk leaves, its least time after the crossing, its bytes, and its column.
    on_link: Vec<Vec<(Micros, Micros, Bytes, Column)>>,
    /// For each rank: the chunks that it wants and that enter its component at another rank, with time, bytes and
    /// column.
    for_rank: Vec<Vec<(Micros, Bytes, Column)>>,
    messages: BTreeMap<(usize, u64), Column>,
    pub(super) end: Column,
    /// Loads that have their rows already: links and ports of one orbit have the same.
    known: BTreeSet<(u8, LoadKey)>,
}

impl<'a> RoutingModel<'a> {
    /// Builds the model of schedules up to `horizon`; `None` if it needs more than `most` 0/1 columns for uses.
    pub(super) fn new(
        components: &'a FastComponents<'a>,
        fineness: Fineness<'a>,
        orbits: Option<&'a PairOrbits>,
        most: usize,
    ) -> Option<Self> {
        let problem = components.problem;
        let mut model = Model::default();
        // A routing gives a lower bound. The tolerance keeps a schedule as long as the horizon feasible despite
        // rounding.
        let end = model.continuous(0.0, fineness.horizon.0 * (1.0 + 1e-6));
        model.set_cost(end, 1.0);
        let mut routing = Self {
            components,
            problem,
            model,
            orbits,
            fineness,
            uses: Vec::new(),
            on_link: vec![Vec::new(); problem.topology.links().len()],
            for_rank: vec![Vec::new(); problem.topology.rank_count()],
            messages: BTreeMap::new(),
            end,
            known: BTreeSet::new(),
        };
        let mut shared: SharedColumns = BTreeMap::new();
        for chunk in problem.demand.chunk_ids() {
            let labels = Labels::new(components, chunk, fineness, most)?;
            routing.cross_with_chunk(chunk, &labels, &mut shared);
            let columns = if orbits.is_some() { shared.len() } else { routing.uses.len() };
            if columns > most {
                return None;
            }
        }
        routing.leave_in_messages();
        routing.respect_links();
        routing.respect_resources();
        routing.receive_in_time();
        routing.open_connections();
        Some(routing)
    }

    /// Whether the model only covers symmetric routings, so that a refutation holds for these only.
    pub(super) fn is_symmetric(&self) -> bool {
        self.orbits.is_some()
    }

    fn instant(&self, time: Micros) -> u64 {
        // The cast saturates.
        (time / self.fineness.horizon * 1e9).round() as u64
    }

    /// The columns and rows of one chunk.
    fn cross_with_chunk(&mut self, chunk: ChunkId, labels: &Labels, shared: &mut SharedColumns) {
        let bytes = self.problem.demand.bytes_of(chunk);
        let mut incoming: BTreeMap<usize, Vec<Column>> = BTreeMap::new();
        let mut arrivals: BTreeMap<usize, Vec<(Label, Column)>> = BTreeMap::new();
        let mut departures: BTreeMap<(usize, LinkId), Vec<Column>> = BTreeMap::new();
        for &it in &labels.uses {
            let (left, label) = (self.instant(it.departure), labels.labels[it.to]);
            let ready = it.from.map_or(0, |from| 1 + self.instant(labels.labels[from].time));
            let column = match self.orbits.map(|orbits| orbits.of(chunk, it.link)) {
                Some(orbit) => *shared.entry((orbit, ready, left, label.way)).or_insert_with(|| self.model.binary()),
                None => self.model.binary(),
            };
            self.uses.push((it, column));
            self.on_link[it.link.index()].push((it.departure, label.tail, bytes, column));
            self.enter_for_ranks(chunk, label, column);
            incoming.entry(it.to).or_default().push(column);
            arrivals.entry(self.components.of(label.rank)).or_default().push((label, column));
            if let Some(from) = it.from {
                departures.entry((from, it.link)).or_default().push(column);
            }
        }
        // Chunks that a symmetry maps to this one have the same rows.
        if self.orbits.is_some_and(|orbits| !orbits.represents(chunk)) {
            return;
        }
        self.enter_once(chunk, &arrivals);
        self.leave_where_it_came(&departures, &incoming);
    }

    fn enter_for_ranks(&mut self, chunk: ChunkId, label: Label, column: Column) {
        let component = self.components.of(label.rank);
        let described = self.problem.demand.chunk(chunk);
        for rank in
            described.wanted_by.iter().filter(|&&rank| rank != label.rank && self.components.of(rank) == component)
        {
            self.for_rank[rank.index()].push((label.time, self.problem.demand.bytes_of(chunk), column));
        }
    }

    /// Σ of x over all uses into a component is 1 if it wants the chunk and does not hold it, else ≤ 1. If it wants the
    /// chunk, T ≥ Σ of (time + tail)·x.
    fn enter_once(&mut self, chunk: ChunkId, arrivals: &BTreeMap<usize, Vec<(Label, Column)>>) {
        let described = self.problem.demand.chunk(chunk);
        let held: BTreeSet<usize> = described.holders.iter().map(|rank| self.components.of(*rank)).collect();
        let wanted: BTreeSet<usize> = described.wanted_by.iter().map(|rank| self.components.of(*rank)).collect();
        let weight = WEIGHT_OF_ARRIVALS / (wanted.len().max(1) * self.problem.demand.chunks().len()) as f64;
        for &component in
            wanted.difference(&held).chain(arrivals.keys().filter(|component| !wanted.contains(component)))
        {
            let is_wanted = wanted.contains(&component);
            let into = arrivals.get(&component).map_or(&[][..], Vec::as_slice);
            let once: Vec<_> = into.iter().map(|(_, column)| (*column, 1.0)).collect();
            self.model.row(if is_wanted { 1.0 } else { 0.0 }, once, 1.0);
            if is_wanted {
                into.iter().for_each(|(label, column)| self.model.add_cost(*column, label.time.0 * weight));
                let terms = into.iter().map(|(label, column)| (*column, (label.time + label.tail).0));
                self.model.at_most(terms.chain([(self.end, -1.0)]).collect::<Vec<_>>(), 0.0);
            }
        }
    }

    /// Σ of x over the departures from a label by one link ≤ Σ of x over the uses that arrive at that label.
    fn leave_where_it_came(
        &mut self,
        departures: &BTreeMap<(usize, LinkId), Vec<Column>>,
        incoming: &BTreeMap<usize, Vec<Column>>,
    ) {
        for ((from, _), leaving) in departures {
            let came = incoming.get(from).into_iter().flatten().map(|&column| (column, -1.0));
            self.model.at_most(leaving.iter().map(|&column| (column, 1.0)).chain(came).collect::<Vec<_>>(), 0.0);
        }
    }

    /// x[u] ≤ message[link of u, time of u], where a message costs an α.
    fn leave_in_messages(&mut self) {
        let mut seen: BTreeSet<(Column, usize)> = BTreeSet::new();
        for index in 0..self.uses.len() {
            let (it, column) = self.uses[index];
            let link = self.link_orbit(it.link);
            if !messages_cost(&self.problem.topology, it.link) || !seen.insert((column, link)) {
                continue;
            }
            let key = (link, self.instant(it.departure));
            let message = *self.messages.entry(key).or_insert_with(|| self.model.binary());
            self.model.at_most([(column, 1.0), (message, -1.0)], 0.0);
        }
    }

    fn link_orbit(&self, link: LinkId) -> usize {
        self.orbits.map_or(link.index(), |orbits| orbits.of_link(link))
    }

    /// For every slow link: its chunks leave in time, and in turns where leaving together saves nothing.
    fn respect_links(&mut self) {
        for &id in self.components.slow() {
            self.fit(&[Occupant::of_itself(&self.problem.topology, id)]);
        }
    }

    /// The same for every resource, over all its slow links, with the resource's own β.
    fn respect_resources(&mut self) {
        for index in 0..self.problem.topology.resources().len() {
            let id = ResourceId::from_index(index);
            let topology = &*self.problem.topology;
            let slow = topology.users(id).iter().filter(|id| !self.on_link[id.index()].is_empty());
            let users: Vec<_> = slow.map(|&link| Occupant::of_resource(topology, id, link)).collect();
            self.fit(&users);
        }
    }

    fn fit(&mut self, users: &[Occupant]) {
        let load = self.load(users);
        let tails = users.iter().flat_map(|user| &self.on_link[user.link.index()]).map(|it| it.1);
        let Some(tail) = tails.min_by(Micros::total_cmp) else { return };
        // The last message arrives α after it has left the link, if α does not keep the link busy.
        let flight = users.iter().map(|user| self.problem.topology.link(user.link).alpha - user.alpha);
        let flight = flight.min_by(Micros::total_cmp).unwrap_or_default();
        if self.is_new(&load, 0) {
            self.end_after(&load, tail + flight);
            // Where α can be saved, all waiting chunks may leave in one turn, so turns are used only without α.
            if users.iter().all(|user| user.alpha == Micros::ZERO) {
                self.take_turns(users, &load);
            }
        }
    }

    fn is_new(&mut self, load: &LoadByInstant, kind: u8) -> bool {
        let flat = load.iter().flat_map(|(&instant, (_, load))| {
            load.iter().map(move |&(column, time)| (instant, column, time.to_bits()))
        });
        let key = (kind, flat.collect());
        self.orbits.is_none() || self.known.insert(key)
    }

    /// For each instant, β·bytes·x and α·message of everything that leaves.
    fn load(&self, users: &[Occupant]) -> LoadByInstant {
        let mut load: LoadByInstant = BTreeMap::new();
        let mut messages: BTreeSet<(u64, LinkId)> = BTreeSet::new();
        for user in users {
            for &(time, _, bytes, column) in &self.on_link[user.link.index()] {
                let instant = self.instant(time);
                let at = &mut load.entry(instant).or_insert((time, Vec::new())).1;
                at.push((column, user.byte_time(bytes)));
                let message = self.messages.get(&(self.link_orbit(user.link), instant));
                if let Some(&message) = message.filter(|_| messages.insert((instant, user.link))) {
                    at.push((message, user.alpha.0));
                }
            }
        }
        sorted(load)
    }

    /// rest[u,t] = rest[u, next t] + Σ over departures at t of (β·bytes·x + α·message), and T ≥ t + rest[u,t] + the
    /// least time after u: late departures have only the time that is left.
    fn end_after(&mut self, load: &LoadByInstant, tail: Micros) {
        let mut later: Option<Column> = None;
        for (time, at) in load.values().rev() {
            let rest = self.model.continuous(0.0, f64::INFINITY);
            let terms = at.iter().map(|&(column, time)| (column, -time)).chain(later.map(|later| (later, -1.0)));
            self.model.equal(terms.chain([(rest, 1.0)]).collect::<Vec<_>>(), 0.0);
            // If nothing departs at this instant or later, the end may be earlier; so at most the bound is added.
            let sure = (*time + tail).min(self.fineness.bound);
            self.model.at_most([(rest, 1.0), (self.end, -1.0)], -sure.0);
            later = Some(rest);
        }
    }

    /// backlog[u,t] + Σ over departures at t ≤ a turn, or a chunk; backlog[u, next t] ≥ that sum − (next t − t). So a
    /// turn begins when all but the last message of the turns before have been sent.
    fn take_turns(&mut self, users: &[Occupant], load: &LoadByInstant) {
        let bytes = self.problem.demand.chunk_bytes();
        let chunk = users.iter().map(|user| user.byte_time(bytes));
        let room = chunk.fold(self.fineness.turn.0, f64::max) * (1.0 + 1e-6);
        let mut before: Option<(Column, Micros, LinearTerms)> = None;
        for (time, at) in load.values() {
            let backlog = self.model.continuous(0.0, room);
            if let Some((earlier, since, left)) = before.take() {
                let left = left.into_iter().map(|(column, time)| (column, -time));
                let terms = left.chain([(backlog, 1.0), (earlier, -1.0)]).collect::<Vec<_>>();
                self.model.row(-(*time - since).0, terms, f64::INFINITY);
            }
            self.model.at_most(at.iter().copied().chain([(backlog, 1.0)]).collect::<Vec<_>>(), room);
            before = Some((backlog, *time, at.clone()));
        }
    }

    /// Like [`Self::end_after`] for every rank: chunks that enter its component at another rank at t or later must
    /// reach it over its fast links, which takes Σ bytes·x over their joint throughput.
    fn receive_in_time(&mut self) {
        for rank in self.problem.topology.ranks() {
            let Some(per_byte) = self.components.ingress(rank) else { continue };
            let mut load: LoadByInstant = BTreeMap::new();
            for &(time, bytes, column) in &self.for_rank[rank.index()] {
                let at = &mut load.entry(self.instant(time)).or_insert((time, Vec::new())).1;
                at.push((column, (per_byte * bytes).0));
            }
            let load = sorted(load);
            if !load.is_empty() && self.is_new(&load, 1) {
                self.end_after(&load, Micros::ZERO);
            }
        }
    }

    /// open[l] ≥ x of every chunk on l where few connections are wished, open[l] ≤ Σ of x on l where many are; the
    /// objective counts open[l] with a small weight (TACCL's `uc-min` and `uc-max`).
    fn open_connections(&mut self) {
        let wishes = &self.problem.constraints.connections;
        let count = wishes.iter().map(|wish| wish.links.len()).sum::<usize>().max(1);
        let weight = WEIGHT_OF_WISHES * self.fineness.horizon.0 / count as f64;
        let mut opened: BTreeMap<usize, Column> = BTreeMap::new();
        for wish in wishes {
            let cost = if wish.wish == ConnectionPolicy::Few { weight } else { -weight };
            for &link in wish.links.iter().filter(|link| !self.on_link[link.index()].is_empty()) {
                let orbit = self.link_orbit(link);
                if let Some(&open) = opened.get(&orbit) {
                    self.model.add_cost(open, cost);
                    continue;
                }
                let columns: BTreeSet<Column> = self.on_link[link.index()].iter().map(|it| it.3).collect();
                let open = self.model.binary();
                self.model.add_cost(open, cost);
                opened.insert(orbit, open);
                match wish.wish {
                    ConnectionPolicy::Few => {
                        columns.into_iter().for_each(|it| self.model.at_most([(it, 1.0), (open, -1.0)], 0.0));
                    }
                    ConnectionPolicy::Many => {
                        let used = columns.into_iter().map(|column| (column, -1.0));
                        self.model.at_most(used.chain([(open, 1.0)]).collect::<Vec<_>>(), 0.0);
                    }
                }
            }
        }
    }
}

fn sorted(mut load: LoadByInstant) -> LoadByInstant {
    load.values_mut().for_each(|(_, at)| at.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))));
    load
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Constraints;
    use crate::problem::by_hand::{self, Wire, wired};
    use crate::solver::{Ending, solved};
    use schedule::{Message, Schedule, TransferKind, replay};
    use std::sync::Arc;
    use topology::{Latency, Rank, TopologyParts};

    /// A broadcast of `chunks` chunks of one byte from rank 0, on machines of two ranks; the shared port takes 9 µs per
    /// byte.
    fn broadcast(ranks: usize, wires: &[Wire], chunks: u32) -> Problem {
        let all: Vec<Rank> = (0..ranks).map(Rank::from_index).collect();
        let machines = all.chunks(2).map(<[Rank]>::to_vec).collect();
        by_hand::broadcast(TopologyParts { machines, ..wired(ranks, wires, Latency::Occupies, 9.0) }, chunks)
    }

    /// The components in which links below 5 µs are fast.
    fn components(problem: &Problem) -> FastComponents<'_> {
        let time = |id: LinkId| problem.topology.link(id).transfer_time(Bytes(1.0));
        FastComponents::of_fast(problem, |id| time(id) < Micros(5.0))
    }

    fn routing<'a>(components: &'a FastComponents<'a>, first_turns: &'a BTreeMap<LinkId, Micros>) -> RoutingModel<'a> {
        let (horizon, bound, turn) = (Micros(60.0), Micros(15.0), Micros(9.0));
        RoutingModel::new(components, Fineness { horizon, bound, first_turns, turn, detours: true }, None, 999).unwrap()
    }

    /// Whether the model admits exactly these uses (chunk, link, departure) and this end.
    fn admits(problem: &Problem, uses: &[(u32, u32, f64)], end: f64) -> bool {
        let components = components(problem);
        let turns = components.first_turns();
        let mut routing = routing(&components, &turns);
        let mut missing = uses.to_vec();
        for (it, column) in &routing.uses {
            let same = |other: &(u32, u32, f64)| {
                (other.0, other.1) == (it.chunk.0, it.link.0) && (other.2 - it.departure.0).abs() < 1e-6
            };
            let wanted = missing.iter().position(same).map(|at| missing.remove(at));
            routing.model.fix(*column, if wanted.is_some() { 1.0 } else { 0.0 });
        }
        assert!(missing.is_empty(), "no column for {missing:?}: the test would show nothing");
        routing.model.fix(routing.end, end);
        match solved(&routing.model, &[]) {
            Ending::Optimal(_) => true,
            Ending::Infeasible => false,
            other => panic!("{other:?}"),
        }
    }

    const FAST: f64 = 1.0;

    /// The links 0 → 1 ⇒ 2 → 3, where ⇒ is slow.
    fn bridge(alpha: f64, chunks: u32) -> Problem {
        broadcast(4, &[(0, 1, 0.0, FAST, false), (1, 2, alpha, 9.0, false), (2, 3, 0.0, FAST, false)], chunks)
    }

    #[test]
    fn a_chunk_enters_once_where_it_is_wanted_and_leaves_where_it_came() {
        // Machines 0 1, 2 3, 4 5; the third is reached over the second or directly.
        let inside = [(0, 1), (2, 3), (4, 5)].map(|(from, to)| (from, to, 0.0, FAST, false));
        let across = [(0, 2), (2, 4), (0, 4)].map(|(from, to)| (from, to, 0.0, 9.0, false));
        let problem = broadcast(6, &[inside, across].concat(), 1);
        assert!(admits(&problem, &[(0, 3, 0.0), (0, 4, 9.0)], 19.0));
        assert!(!admits(&problem, &[(0, 3, 0.0)], 60.0), "never");
        assert!(!admits(&problem, &[(0, 3, 0.0), (0, 4, 9.0), (0, 5, 0.0)], 60.0), "twice");
        assert!(!admits(&problem, &[(0, 3, 9.0), (0, 4, 9.0)], 60.0), "it leaves before it is there");
        assert!(!admits(&problem, &[(0, 3, 0.0), (0, 4, 9.0)], 18.9), "it has to go on to rank 5");
    }

    #[test]
    fn a_link_that_is_fed_late_is_no_free_capacity_early() {
        // Both chunks come to rank 1 after 1 µs, and need one hop after the crossing.
        let both = [(0, 1, 1.0), (1, 1, 10.0)];
        assert!(admits(&bridge(0.0, 2), &both, 20.0));
        assert!(!admits(&bridge(0.0, 2), &both, 19.9));
    }

    #[test]
    fn what_leaves_together_pays_one_alpha() {
        let wire = |uses: &[(u32, u32, f64)], end| admits(&bridge(20.0, 2), uses, end);
        let (together, apart) = ([(0, 1, 1.0), (1, 1, 1.0)], [(0, 1, 1.0), (1, 1, 28.0)]);
        assert!(wire(&together, 40.0), "1 + 20 + 2·9 + 1");
        assert!(!wire(&together, 39.9));
        assert!(!wire(&apart, 58.9), "1 + 2·(20 + 9) + 1 are more");
    }

    #[test]
    fn slow_links_take_turns_and_share_their_port() {
        assert!(!admits(&bridge(0.0, 3), &[(0, 1, 1.0), (1, 1, 10.0), (2, 1, 10.0)], 60.0), "two in a turn");
        assert!(admits(&bridge(0.0, 3), &[(0, 1, 1.0), (1, 1, 10.0), (2, 1, 19.0)], 60.0));
        // From 0 to 2 and from 1 to 4.
        let inside = [(0, 1), (2, 3), (4, 5)].map(|(from, to)| (from, to, 0.0, FAST, false));
        let fork = |shared| {
            let across = [(0, 2, 0.0, 9.0, shared), (1, 4, 0.0, 9.0, shared)];
            broadcast(6, &[&inside[..], &across[..]].concat(), 1)
        };
        let both = [(0, 3, 0.0), (0, 4, 1.0)];
        assert!(admits(&fork(false), &both, 15.0));
        assert!(!admits(&fork(true), &both, 17.9), "two messages by one port");
    }

    #[test]
    fn a_rank_receives_what_enters_late_in_the_time_that_is_left() {
        // Two bridges bring one chunk each at the same time; rank 2 gets both over its one link from rank 3.
        let wires =
            [(0, 1, 0.0, FAST, false), (0, 3, 0.0, 9.0, false), (1, 3, 0.0, 9.0, false), (3, 2, 0.0, 4.0, false)];
        let problem = broadcast(4, &wires, 2);
        let both = [(0, 1, 0.0), (1, 2, 1.0)];
        assert!(admits(&problem, &both, 9.0 + 2.0 * 4.0));
        assert!(!admits(&problem, &both, 9.0 + 2.0 * 4.0 - 0.1));
    }

    #[test]
    fn nobody_crosses_between_machines_too_often() {
        let inside = [(0, 1), (2, 3), (4, 5)].map(|(from, to)| (from, to, 0.0, FAST, false));
        let across = [(0, 2), (2, 4), (0, 4)].map(|(from, to)| (from, to, 0.0, 9.0, false));
        let mut problem = broadcast(6, &[inside, across].concat(), 1);
        let links = |problem: &Problem| {
            let components = components(problem);
            routing(&components, &components.first_turns())
                .uses
                .iter()
                .map(|(it, _)| it.link.0)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(links(&problem), BTreeSet::from([3, 4, 5]));
        problem.constraints = Arc::new(Constraints { max_machine_hops: Some((1, 1)), ..Constraints::none() });
        assert_eq!(links(&problem), BTreeSet::from([3, 5]));
    }

    #[test]
    fn few_and_many_connections() {
        let inside = [(0, 1), (2, 3)].map(|(from, to)| (from, to, 0.0, FAST, false));
        let across = [(0, 2, 0.0, 9.0, false), (0, 2, 0.0, 9.0, false)];
        let used = |wish| {
            let mut problem = broadcast(4, &[inside, across].concat(), 2);
            let links = vec![LinkId(2), LinkId(3)];
            let connections = vec![crate::problem::ConnectionWish { links, wish, line: 1 }];
            problem.constraints = Arc::new(Constraints { connections, ..Constraints::none() });
            let components = components(&problem);
            let turns = components.first_turns();
            let mut routing = routing(&components, &turns);
            // Long enough for one link or two, so that only the wish decides.
            routing.model.fix(routing.end, 40.0);
            let Ending::Optimal(solution) = solved(&routing.model, &[]) else { panic!("the wish made it infeasible") };
            routing.routes(&solution).iter().map(|it| it.link).collect::<BTreeSet<_>>().len()
        };
        assert_eq!((used(ConnectionPolicy::Few), used(ConnectionPolicy::Many)), (1, 2));
    }

    #[test]
    fn a_schedule_is_a_start() {
        let bridge = bridge(0.0, 1);
        let components = components(&bridge);
        let turns = components.first_turns();
        let routing = routing(&components, &turns);
        let chunks = || [ChunkId(0)].into_iter().collect();
        let message = |link| Message { chunks: chunks(), link: LinkId(link), kind: TransferKind::Copy };
        let transfers = replay(&bridge.demand, &bridge.topology, &[message(0), message(1), message(2)]).unwrap();
        let schedule = Schedule::new(&bridge.topology, bridge.demand.clone(), transfers, "test");
        let start = routing.start(&schedule);
        let set = start.iter().filter(|(_, value)| *value == 1.0).count();
        assert_eq!((set, start.len()), (1, routing.uses.len()));
        assert!(matches!(solved(&routing.model, &start), Ending::Optimal(_)));
    }
}
