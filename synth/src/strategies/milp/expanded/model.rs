//! The time-expanded 0/1 model: which chunk departs on which link in which epoch.
//!
//! The principal type is [`Expansion`]. For a fixed horizon it is a pure feasibility problem, which HiGHS solves far
//! faster than one with a weighted objective [1]; the caller searches the horizon. [`TimeExpandedFlow`] models how chunks spread.
//! This file adds the limits of links and of a sketch: one function for each family of constraints, with its
//! inequality.
//!
//! | column | meaning |
//! |---|---|
//! | x[c,l,t] ∈ {0,1} | chunk c departs on link l in epoch t |
//! | active[l,t] ∈ {0,1} | some chunk departs on l in t, where a message costs a shared resource its α |
//!
//! [1] Liu et al., "Rethinking Machine Learning Collective Communication as a Multi-Commodity Flow Problem"
//! (TE-CCL), SIGCOMM 2024, there with an objective.

use super::grid::{Grid, OccupancyWindow, TOLERANCE};
use crate::epochs::routes::Routes;
use crate::epochs::time_expanded::TimeExpandedFlow;
use crate::epochs::timing::Departure;
use crate::problem::Problem;
use crate::solver::{Column, Model, Solution};
use crate::symmetry::PairOrbits;
use schedule::{ChunkId, Schedule};
use std::collections::BTreeMap;
use topology::{Bytes, LinkId, Micros, Rank};

/// The model of one horizon, and the departures that its columns stand for.
pub(super) struct Expansion {
    pub(super) model: Model,
    departures: Vec<(Departure, Column)>,
}

impl Expansion {
    /// Builds the model of `routes`. With `orbits`, departures that a symmetry maps to each other share one column.
    pub(super) fn new(
        problem: &Problem,
        grid: &Grid,
        horizon: u32,
        routes: &Routes,
        orbits: Option<&PairOrbits>,
    ) -> Self {
        let mut builder = ExpansionBuilder::new(problem, grid, TimeExpandedFlow::new(problem, horizon, routes, orbits));
        builder.respect_links();
        builder.respect_resources();
        builder.limit_machine_hops();
        builder.keep_to_stages();
        builder.own_chunks_leave_first();
        Self { departures: builder.departures, model: builder.model }
    }

    /// minimise Σ x[c,l,t] over the arrivals in the last epoch: if none remain, a smaller horizon is possible.
    pub(super) fn empty_the_last_epoch(&mut self, routes: &Routes, horizon: u32) {
        let latency = |departure: &Departure| {
            let at = routes.all.binary_search_by_key(&(departure.chunk, departure.link), |it| (it.chunk, it.link));
            at.map_or(0, |at| routes.all[at].latency)
        };
        for (departure, column) in &self.departures {
            if departure.epoch + latency(departure) == horizon {
                self.model.set_cost(*column, 1.0);
            }
        }
    }

    /// A start for the solver: the departures of `schedule`, each in the nearest epoch, and no others. On a coarse grid
    /// it may break a constraint; then the solver ignores it.
    pub(super) fn start(&self, schedule: &Schedule, grid: &Grid) -> Vec<(Column, f64)> {
        let mut epochs: BTreeMap<(ChunkId, LinkId), u32> = BTreeMap::new();
        for transfer in &schedule.transfers {
            // The cast saturates. A start is at most the makespan, whose epochs fit.
            let epoch = (transfer.start / grid.epoch).round() as u32;
            epochs.extend(transfer.chunks.iter().map(|&chunk| ((chunk, transfer.link), epoch)));
        }
        let leaves = |departure: &Departure| epochs.get(&(departure.chunk, departure.link)) == Some(&departure.epoch);
        self.departures.iter().map(|(departure, column)| (*column, f64::from(leaves(departure)))).collect()
    }

    /// The departures of a solution, in no particular order.
    pub(super) fn departures(&self, solution: &Solution) -> Vec<Departure> {
        self.departures.iter().filter(|(_, column)| solution.is_set(*column)).map(|(departure, _)| *departure).collect()
    }
}

struct ExpansionBuilder<'a> {
    problem: &'a Problem,
    grid: &'a Grid,
    model: Model,
    departures: Vec<(Departure, Column)>,
    on_link: Vec<Vec<(u32, ChunkId, Column)>>,
    /// active[l,t], created on demand.
    active: BTreeMap<(LinkId, u32), Column>,
}

impl<'a> ExpansionBuilder<'a> {
    fn new(problem: &'a Problem, grid: &'a Grid, copies: TimeExpandedFlow) -> Self {
        let TimeExpandedFlow { model, departures, on_link, .. } = copies;
        Self { problem, grid, model, departures, on_link, active: BTreeMap::new() }
    }

    /// Σ over chunks c and epochs t in a window of occupancy(c,l)·x[c,l,t] ≤ the window's length, for every link. Where
    /// the chunks of an epoch share one α, the window is one epoch, and α is subtracted from it.
    fn respect_links(&mut self) {
        for id in self.problem.topology.link_ids() {
            let link = self.problem.topology.link(id);
            let window = self.grid.link_window(link);
            let room = window.room - window.shared_alpha.unwrap_or(Micros::ZERO);
            let weigh = |bytes: Bytes| match window.shared_alpha {
                Some(_) => link.byte_time(bytes),
                None => link.occupancy(bytes),
            };
            let departures = std::mem::take(&mut self.on_link[id.index()]);
            let weights: Vec<(u32, Column, f64)> = departures
                .iter()
                .map(|&(epoch, chunk, column)| (epoch, column, weigh(self.problem.demand.bytes_of(chunk)).0))
                .collect();
            self.on_link[id.index()] = departures;
            self.fill_windows(&weights, &window, room);
        }
    }

    /// Σ over links l of the resource, chunks c and epochs t in a window of (occupancy(c,l)·x[c,l,t] +
    /// α(l)·active[l,t]) ≤ the window's length, with the resource's own β; active only where messages share α.
    fn respect_resources(&mut self) {
        let topology = &self.problem.topology;
        for index in 0..topology.resources().len() {
            let id = topology::ResourceId::from_index(index);
            let resource = topology.resource(id);
            let window = self.grid.resource_window(topology, id);
            let mut weights: Vec<(u32, Column, f64)> = Vec::new();
            for &user in topology.users(id) {
                let link = topology.link(user);
                let alpha = resource.occupancy(link, Bytes::ZERO);
                let merges = window.shared_alpha.is_some() && alpha > Micros::ZERO;
                let departures = std::mem::take(&mut self.on_link[user.index()]);
                for &(epoch, chunk, column) in &departures {
                    let bytes = self.problem.demand.bytes_of(chunk);
                    let weight = resource.occupancy(link, bytes) - if merges { alpha } else { Micros::ZERO };
                    weights.push((epoch, column, weight.0));
                }
                if merges {
                    weights.extend(self.activity(user, &departures).map(|(epoch, column)| (epoch, column, alpha.0)));
                }
                self.on_link[user.index()] = departures;
            }
            weights.sort_by_key(|&(epoch, column, _)| (epoch, column));
            self.fill_windows(&weights, &window, window.room);
        }
    }

    /// x[c,l,t] ≤ active[l,t] for every chunk c.
    fn activity<'b>(
        &'b mut self,
        link: LinkId,
        departures: &'b [(u32, ChunkId, Column)],
    ) -> impl Iterator<Item = (u32, Column)> + 'b {
        departures.chunk_by(|a, b| a.0 == b.0).map(move |together| {
            let epoch = together[0].0;
            let (model, known) = (&mut self.model, &mut self.active);
            let active = *known.entry((link, epoch)).or_insert_with(|| {
                let active = model.binary();
                for &(_, _, column) in together {
                    model.at_most([(column, 1.0), (active, -1.0)], 0.0);
                }
                active
            });
            (epoch, active)
        })
    }

    /// One row per position of a sliding window over `weights`, which are sorted by epoch.
    fn fill_windows(&mut self, weights: &[(u32, Column, f64)], window: &OccupancyWindow, room: Micros) {
        let by_epoch: Vec<&[(u32, Column, f64)]> = weights.chunk_by(|a, b| a.0 == b.0).collect();
        for (last, group) in by_epoch.iter().enumerate() {
            let end = group[0].0;
            let inside = by_epoch[..=last].iter().rev().take_while(|group| group[0].0 + window.epochs > end);
            let terms: Vec<(Column, f64)> =
                inside.flat_map(|group| group.iter().map(|&(_, column, weight)| (column, weight))).collect();
            // A window whose departures are all in the next window adds nothing.
            let covered = by_epoch.get(last + 1).is_some_and(|next| {
                let first = end.saturating_sub(window.epochs - 1);
                let oldest = by_epoch.iter().find(|group| group[0].0 >= first).map_or(end, |group| group[0].0);
                oldest + window.epochs > next[0].0
            });
            if !covered {
                self.share(terms, room);
            }
        }
    }

    /// Σ weight·column ≤ room. Equal weights are counted in whole chunks, which is tighter.
    fn share(&mut self, terms: Vec<(Column, f64)>, room: Micros) {
        let Some(&(_, weight)) = terms.first() else { return };
        let allowed = room.0 * (1.0 + TOLERANCE);
        let alike = terms.iter().all(|&(_, other)| (other - weight).abs() <= 1e-9 * weight);
        if alike {
            let chunks = (allowed / weight).floor().max(1.0);
            if chunks < terms.len() as f64 {
                self.model.at_most(terms.into_iter().map(|(column, _)| (column, 1.0)), chunks);
            }
        } else if terms.iter().map(|&(_, weight)| weight).sum::<f64>() > allowed {
            self.model.at_most(terms.into_iter().map(|(column, weight)| (column, weight / room.0)), 1.0 + TOLERANCE);
        }
    }

    /// hops[c,to] ≥ hops[c,from] + crosses(l) − (limit + 1)·(1 − Σ_t x[c,l,t]) with 0 ≤ hops ≤ limit: no copy crosses
    /// between machines more often than the sketch permits.
    fn limit_machine_hops(&mut self) {
        let Some((limit, _)) = self.problem.constraints.max_machine_hops else { return };
        let limit = f64::from(limit);
        let topology = &self.problem.topology;
        let mut hops: BTreeMap<(ChunkId, Rank), Column> = BTreeMap::new();
        let departures = std::mem::take(&mut self.departures);
        for route in departures.chunk_by(|(a, _), (b, _)| (a.chunk, a.link) == (b.chunk, b.link)) {
            let Departure { chunk, link, .. } = route[0].0;
            let link = topology.link(link);
            let crosses = f64::from(u8::from(topology.crosses_machines(link)));
            let big = limit + 1.0;
            let arrived = *hops.entry((chunk, link.to)).or_insert_with(|| self.model.continuous(0.0, limit));
            let mut terms = vec![(arrived, 1.0)];
            terms.extend(route.iter().map(|&(_, column)| (column, -big)));
            if !self.problem.demand.chunk(chunk).holders.has(link.from) {
                let before = *hops.entry((chunk, link.from)).or_insert_with(|| self.model.continuous(0.0, limit));
                terms.push((before, -1.0));
            }
            self.model.row(crosses - big, terms, f64::INFINITY);
        }
        self.departures = departures;
    }

    /// Every way of a chunk goes through the stages in their order. Σ_m in[c,l,m] = Σ_t x[c,l,t] with in ∈ {0,1} over
    /// the stages m of a link (or Σ_t x itself if it has one stage). Where in[c,l,m] = 1, stage[c,from] ≤ m ≤
    /// stage[c,to].
    fn keep_to_stages(&mut self) {
        let Some(stages) = self.problem.constraints.stages.as_ref().filter(|stages| stages.count > 1) else { return };
        let topology = &self.problem.topology;
        let last = f64::from(stages.count - 1);
        let mut stage_of: BTreeMap<(ChunkId, Rank), Column> = BTreeMap::new();
        let departures = std::mem::take(&mut self.departures);
        for route in departures.chunk_by(|(a, _), (b, _)| (a.chunk, a.link) == (b.chunk, b.link)) {
            let Departure { chunk, link, .. } = route[0].0;
            let link = topology.link(link);
            let possible = (0..stages.count).filter(|stage| stages.of_link[route[0].0.link.index()] >> stage & 1 == 1);
            let mut taken: Vec<(u8, Vec<Column>)> = possible.map(|stage| (stage, Vec::new())).collect();
            match &mut taken[..] {
                [(_, columns)] => columns.extend(route.iter().map(|&(_, column)| column)),
                many => {
                    many.iter_mut().for_each(|(_, columns)| columns.push(self.model.binary()));
                    let chosen = many.iter().map(|(_, columns)| (columns[0], 1.0));
                    self.model.equal(chosen.chain(route.iter().map(|&(_, column)| (column, -1.0))), 0.0);
                }
            }
            let is_holder = self.problem.demand.chunk(chunk).holders.has(link.from);
            let arrived = *stage_of.entry((chunk, link.to)).or_insert_with(|| self.model.continuous(0.0, last));
            let left = (!is_holder)
                .then(|| *stage_of.entry((chunk, link.from)).or_insert_with(|| self.model.continuous(0.0, last)));
            for (stage, columns) in taken {
                let (stage, weighted) = (f64::from(stage), |weight: f64| columns.iter().map(move |&it| (it, weight)));
                self.model.row(stage - last, weighted(-last).chain([(arrived, 1.0)]), f64::INFINITY);
                if let Some(left) = left {
                    self.model.at_most(weighted(last).chain([(left, 1.0)]), stage + last);
                }
            }
        }
        self.departures = departures;
    }

    /// On a link between machines, the sender's own chunks leave before relayed ones: x[own,l,t] ≤ 1 − relaying[l,t],
    /// x[other,l,t] ≤ relaying[l,t], relaying[l,t] ≤ relaying[l,t+1].
    fn own_chunks_leave_first(&mut self) {
        if self.problem.constraints.own_chunks_first.is_none() {
            return;
        }
        let topology = &self.problem.topology;
        for id in topology.link_ids().filter(|&id| topology.crosses_machines(topology.link(id))) {
            let from = topology.link(id).from;
            let departures = std::mem::take(&mut self.on_link[id.index()]);
            let mut before: Option<Column> = None;
            for together in departures.chunk_by(|a, b| a.0 == b.0) {
                let relaying = self.model.binary();
                for &(_, chunk, column) in together {
                    if self.problem.demand.chunk(chunk).holders.has(from) {
                        self.model.at_most([(column, 1.0), (relaying, 1.0)], 1.0);
                    } else {
                        self.model.at_most([(column, 1.0), (relaying, -1.0)], 0.0);
                    }
                }
                if let Some(before) = before.replace(relaying) {
                    self.model.at_most([(before, 1.0), (relaying, -1.0)], 0.0);
                }
            }
            self.on_link[id.index()] = departures;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epochs::routes::Leeway;
    use crate::problem::{Constraints, Deadline};
    use crate::solver::{Controls, Ending, solve};
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::{Latency, Link, MicrosPerByte, Resource, ResourceId, Topology, TopologyParts};

    /// From, to, µs per byte, resource.
    type Wire = (u32, u32, f64, Option<u32>);

    /// A broadcast of `chunks` chunks of one byte from rank 0, on machines of `per_machine` ranks.
    fn broadcast(ranks: usize, per_machine: usize, wires: &[Wire], chunks: u32) -> Problem {
        let link = |&(from, to, beta, resource): &Wire| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros::ZERO,
            beta: MicrosPerByte(beta),
            latency: Latency::Occupies,
            resources: resource.map(ResourceId).into_iter().collect(),
        };
        let all: Vec<Rank> = (0..ranks).map(Rank::from_index).collect();
        let parts = TopologyParts {
            name: "wires".into(),
            ranks,
            machines: all.chunks(per_machine).map(<[Rank]>::to_vec).collect(),
            links: wires.iter().map(link).collect(),
            resources: vec![Resource::new("shared", MicrosPerByte(1.0))],
        };
        let request = Request::new(Collective::Broadcast, ranks, u64::from(chunks)).with_chunks(chunks);
        Problem::new(Arc::new(Topology::new(parts).unwrap()), Arc::new(Demand::new(request).unwrap()))
    }

    /// Whether the model of `horizon` epochs of 1 µs admits exactly these departures (chunk, link, epoch).
    fn admits(problem: &Problem, horizon: u32, schedule: &[(u32, u32, u32)]) -> bool {
        let grid = Grid::new(problem, Micros(1.0));
        let free = vec![Leeway::Free; problem.demand.chunks().len()];
        let routes = Routes::new(problem, &|link, bytes| grid.latency(link, bytes), horizon, &free).unwrap();
        let mut expansion = Expansion::new(problem, &grid, horizon, &routes, None);
        let mut missing: Vec<_> = schedule.to_vec();
        for (departure, column) in &expansion.departures {
            let key = (departure.chunk.0, departure.link.0, departure.epoch);
            let wanted = missing.iter().position(|other| *other == key).map(|at| missing.remove(at));
            expansion.model.fix(*column, if wanted.is_some() { 1.0 } else { 0.0 });
        }
        assert!(missing.is_empty(), "no column for {missing:?}: the test would show nothing");
        let deadline = Deadline::default();
        let controls = Controls { nodes: 100, ..Controls::within(10_000, &deadline) };
        match solve(&expansion.model, &[], &controls, &mut |_| {}).unwrap().ending {
            Ending::Optimal(_) => true,
            Ending::Infeasible => false,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_chunk_leaves_only_after_it_came() {
        let problem = broadcast(3, 3, &[(0, 1, 1.0, None), (1, 2, 1.0, None)], 1);
        assert!(admits(&problem, 3, &[(0, 0, 0), (0, 1, 1)]));
        assert!(!admits(&problem, 3, &[(0, 0, 1), (0, 1, 1)]));
    }

    #[test]
    fn a_rank_receives_a_chunk_once() {
        let problem = broadcast(3, 3, &[(0, 1, 1.0, None), (1, 2, 1.0, None), (0, 2, 1.0, None)], 1);
        assert!(admits(&problem, 3, &[(0, 0, 0), (0, 1, 1)]));
        assert!(!admits(&problem, 3, &[(0, 0, 0), (0, 1, 1), (0, 2, 0)]));
    }

    #[test]
    fn everybody_who_wants_a_chunk_gets_it() {
        let problem = broadcast(3, 3, &[(0, 1, 1.0, None), (0, 2, 1.0, None), (1, 2, 1.0, None)], 1);
        assert!(!admits(&problem, 3, &[(0, 0, 0)]));
        assert!(!admits(&problem, 3, &[(0, 1, 0)]));
    }

    #[test]
    fn a_link_carries_one_chunk_at_a_time() {
        let problem = broadcast(2, 2, &[(0, 1, 1.0, None)], 2);
        assert!(admits(&problem, 2, &[(0, 0, 0), (1, 0, 1)]));
        assert!(!admits(&problem, 2, &[(0, 0, 0), (1, 0, 0)]));
    }

    #[test]
    fn a_slow_link_is_busy_for_several_epochs() {
        let problem = broadcast(2, 2, &[(0, 1, 2.0, None)], 2);
        assert!(admits(&problem, 5, &[(0, 0, 0), (1, 0, 2)]));
        assert!(!admits(&problem, 5, &[(0, 0, 0), (1, 0, 1)]));
    }

    #[test]
    fn a_fast_link_carries_several_chunks_an_epoch() {
        let problem = broadcast(2, 2, &[(0, 1, 0.5, None)], 3);
        assert!(admits(&problem, 2, &[(0, 0, 0), (1, 0, 0), (2, 0, 1)]));
        assert!(!admits(&problem, 2, &[(0, 0, 0), (1, 0, 0), (2, 0, 0)]));
    }

    #[test]
    fn links_that_share_a_resource_take_turns() {
        let shared = broadcast(3, 3, &[(0, 1, 1.0, Some(0)), (0, 2, 1.0, Some(0))], 1);
        let apart = broadcast(3, 3, &[(0, 1, 1.0, None), (0, 2, 1.0, None)], 1);
        let (together, in_turn) = ([(0, 0, 0), (0, 1, 0)], [(0, 0, 0), (0, 1, 1)]);
        assert!(admits(&apart, 2, &together));
        assert!(!admits(&shared, 2, &together));
        assert!(admits(&shared, 2, &in_turn));
    }

    #[test]
    fn a_copy_crosses_between_machines_only_so_often() {
        // Machines 0 1 | 2 3 | 4. Rank 4 can be reached over the machine of ranks 2 and 3, or directly from rank 1.
        let wires = [(0, 1), (0, 2), (2, 3), (3, 4), (1, 4)].map(|(from, to)| (from, to, 1.0, None));
        let mut problem = broadcast(5, 2, &wires, 1);
        let over_the_middle = [(0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 2)];
        let straight = [(0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 4, 1)];
        assert!(admits(&problem, 4, &over_the_middle));
        let limit = |limit| Arc::new(Constraints { max_machine_hops: Some((limit, 1)), ..Constraints::none() });
        problem.constraints = limit(2);
        assert!(admits(&problem, 4, &over_the_middle));
        problem.constraints = limit(1);
        assert!(admits(&problem, 4, &straight));
        let grid = Grid::new(&problem, Micros(1.0));
        let routes = Routes::new(&problem, &|link, bytes| grid.latency(link, bytes), 4, &[Leeway::Free]).unwrap();
        assert!(routes.all.iter().all(|route| route.link != LinkId(3)), "the second crossing has no columns at all");
    }

    #[test]
    fn a_detour_does_not_hide_a_crossing() {
        // Both paths lead through rank 2. Only the path over rank 1 leaves enough crossings.
        let wires = [(0, 1), (1, 0), (0, 2), (2, 3), (3, 1), (1, 4)].map(|(from, to)| (from, to, 1.0, None));
        let mut problem = broadcast(5, 2, &wires, 1);
        let back_and_forth = [(0, 2, 0), (0, 3, 1), (0, 4, 2), (0, 5, 3)];
        assert!(admits(&problem, 4, &back_and_forth));
        problem.constraints = Arc::new(Constraints { max_machine_hops: Some((2, 1)), ..Constraints::none() });
        assert!(!admits(&problem, 4, &back_and_forth));
        assert!(admits(&problem, 4, &[(0, 0, 0), (0, 2, 0), (0, 3, 1), (0, 5, 1)]));
    }

    #[test]
    fn a_copy_goes_through_the_stages_in_their_order() {
        // Machines 0 1 | 2 3. Rank 3 can be reached over rank 2, or by a direct link from rank 1.
        let wires = [(0, 1), (0, 2), (2, 3), (1, 3), (1, 2)].map(|(from, to)| (from, to, 1.0, None));
        let mut problem = broadcast(4, 2, &wires, 1);
        let spread_there = [(0, 0, 0), (0, 1, 0), (0, 2, 1)];
        let relayed_here = [(0, 0, 0), (0, 1, 0), (0, 3, 1)];
        assert!(admits(&problem, 3, &spread_there) && admits(&problem, 3, &relayed_here));
        let staged = |inside: u16, between: u16, count| {
            let of_link = wires.map(|(from, to, ..)| if from / 2 == to / 2 { inside } else { between }).to_vec();
            let stages = Some(crate::problem::Stages { of_link, count, line: 1 });
            Arc::new(Constraints { stages, ..Constraints::none() })
        };
        problem.constraints = staged(0b10, 0b01, 2);
        assert!(admits(&problem, 3, &spread_there) && !admits(&problem, 3, &relayed_here));
        problem.constraints = staged(0b01, 0b10, 2);
        assert!(!admits(&problem, 3, &spread_there) && admits(&problem, 3, &relayed_here));
        problem.constraints = staged(0b101, 0b010, 3);
        assert!(admits(&problem, 3, &spread_there) && admits(&problem, 3, &relayed_here));
        // Inside, between machines, inside.
        assert!(admits(&problem, 3, &[(0, 0, 0), (0, 4, 1), (0, 2, 2)]));
    }

    #[test]
    fn own_chunks_leave_a_machine_before_relayed_ones() {
        // Chunk 0 belongs to rank 0 and passes through rank 1; chunk 1 belongs to rank 1. Both then cross to rank 2.
        let wires = [(0, 1, 1.0, None), (1, 0, 1.0, None), (1, 2, 1.0, None), (2, 1, 1.0, None)];
        let mut problem = broadcast(3, 2, &wires, 1);
        problem.demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 3, 3)).unwrap());
        let elsewhere = [(0, 0, 0), (1, 1, 0), (2, 3, 0), (2, 1, 1)];
        let relayed_first: Vec<_> = elsewhere.into_iter().chain([(0, 2, 1), (1, 2, 2)]).collect();
        let own_first: Vec<_> = elsewhere.into_iter().chain([(1, 2, 1), (0, 2, 2)]).collect();
        assert!(admits(&problem, 3, &relayed_first));
        problem.constraints = Arc::new(Constraints { own_chunks_first: Some(1), ..Constraints::none() });
        assert!(!admits(&problem, 3, &relayed_first));
        assert!(admits(&problem, 3, &own_first));
    }

    #[test]
    fn messages_on_a_shared_resource_pay_their_own_alpha() {
        // α is 0.4 epochs, and each chunk takes 0.1: one link carries six chunks in an epoch. Two links on one resource
        // carry only two messages with two chunks in all.
        let problem = |links: u32| {
            let wires: Vec<Wire> = (0..links).map(|_| (0, 1, 1.0, Some(0))).collect();
            let problem = broadcast(2, 2, &wires, 6);
            let links = problem.topology.links().iter().cloned();
            let links = links.map(|link| Link { alpha: Micros(0.4), beta: MicrosPerByte(0.1), ..link }).collect();
            let resources = vec![Resource::new("shared", MicrosPerByte(0.1))];
            let parts = TopologyParts { ranks: 2, links, resources, ..TopologyParts::default() };
            Problem { topology: Arc::new(Topology::new(parts).unwrap()), ..problem }
        };
        let one_message: Vec<_> = (0..6).map(|chunk| (chunk, 0, 0)).collect();
        assert!(admits(&problem(1), 1, &one_message));
        let two_messages: Vec<_> = (0..6).map(|chunk| (chunk, chunk % 2, 0)).collect();
        assert!(!admits(&problem(2), 1, &two_messages));
        assert!(admits(&problem(2), 1, &one_message));
    }
}
