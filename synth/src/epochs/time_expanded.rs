//! How copies of chunks spread over ranks, with time cut into epochs: the part that all time-expanded models share.
//!
//! The principal type is [`TimeExpandedFlow`]. Its users define the epoch, and add what a link or a resource can carry.
//!
//! | column | meaning |
//! |---|---|
//! | x[c,l,t] ∈ {0,1} | chunk c departs on link l in epoch t |
//! | have[c,r,t] ∈ [0,1] | rank r holds chunk c at the start of epoch t; whole because all x are whole |

use super::routes::{Route, Routes};
use super::timing::Departure;
use crate::problem::Problem;
use crate::solver::{Column, Model};
use crate::symmetry::PairOrbits;
use schedule::ChunkId;
use std::collections::BTreeMap;
use topology::{LinkId, Rank};

/// The constraint that a row of [`TimeExpandedFlow`] states.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CopyConstraint {
    /// have[c,r,t] = have[c,r,t−1] + arrivals in t.
    Arrive(ChunkId, Rank, u32),
    /// Exactly one arrival where the chunk is wanted, at most one elsewhere; for ranks that the chunk never leaves.
    Once(ChunkId, Rank),
    /// x[c,l,t] ≤ have[c,from(l),t].
    Hold(ChunkId, LinkId, u32),
}

/// A model of how chunks spread, without limits on links.
pub(crate) struct TimeExpandedFlow {
    pub(crate) model: Model,
    /// Chunk by chunk, links ascending, epochs ascending.
    pub(crate) departures: Vec<(Departure, Column)>,
    /// The same departures by link: (epoch, chunk, column).
    pub(crate) on_link: Vec<Vec<(u32, ChunkId, Column)>>,
    /// The constraint of each row of the model.
    pub(crate) rows: Vec<CopyConstraint>,
    horizon: u32,
    /// For each route, its first index in `departures`.
    starts: BTreeMap<(ChunkId, LinkId), usize>,
}

/// Whether a rank may send a chunk, and from when on.
enum Availability {
    Always,
    Never,
    /// One column per epoch from `first` to the horizon.
    From {
        first: u32,
        columns: Vec<Column>,
    },
}

impl TimeExpandedFlow {
    /// The model of `routes`. With `orbits`, departures that a symmetry maps to each other share one column.
    pub(crate) fn new(problem: &Problem, horizon: u32, routes: &Routes, orbits: Option<&PairOrbits>) -> Self {
        let mut copies = Self {
            model: Model::default(),
            departures: Vec::with_capacity(routes.departures()),
            on_link: vec![Vec::new(); problem.topology.links().len()],
            rows: Vec::new(),
            horizon,
            starts: BTreeMap::new(),
        };
        copies.add_departures(routes, orbits);
        for routes in routes.by_chunk() {
            copies.spread_chunk(problem, routes);
        }
        copies
    }

    fn add_departures(&mut self, routes: &Routes, orbits: Option<&PairOrbits>) {
        let mut shared: BTreeMap<(usize, u32), Column> = BTreeMap::new();
        for route in &routes.all {
            self.starts.insert((route.chunk, route.link), self.departures.len());
            for epoch in route.departures.clone() {
                let column = match orbits.map(|orbits| orbits.of(route.chunk, route.link)) {
                    Some(orbit) => *shared.entry((orbit, epoch)).or_insert_with(|| self.model.binary()),
                    None => self.model.binary(),
                };
                self.departures.push((Departure { chunk: route.chunk, link: route.link, epoch }, column));
                self.on_link[route.link.index()].push((epoch, route.chunk, column));
            }
        }
        self.on_link.iter_mut().for_each(|departures| departures.sort());
    }

    /// The column x[c,l,t] of a route.
    fn departure(&self, route: &Route, epoch: u32) -> Option<Column> {
        let start = self.starts[&(route.chunk, route.link)];
        let offset = epoch.checked_sub(*route.departures.start())?;
        route.departures.contains(&epoch).then(|| self.departures[start + offset as usize].1)
    }

    /// The rows of one chunk: it spreads from its holders to all ranks that want it.
    fn spread_chunk(&mut self, problem: &Problem, routes: &[Route]) {
        let chunk = problem.demand.chunk(routes[0].chunk);
        let mut incoming: BTreeMap<Rank, Vec<&Route>> = BTreeMap::new();
        let mut goes_on = vec![false; problem.topology.rank_count()];
        for route in routes {
            incoming.entry(route.to).or_default().push(route);
            goes_on[route.from.index()] = true;
        }
        let mut holdings: Vec<Availability> = goes_on.iter().map(|_| Availability::Never).collect();
        chunk.holders.iter().for_each(|rank| holdings[rank.index()] = Availability::Always);
        for (&rank, arrivals) in &incoming {
            let wanted = chunk.wanted_by.has(rank);
            if goes_on[rank.index()] {
                holdings[rank.index()] = self.holding_follows_arrivals(arrivals, wanted);
            } else {
                self.receive_once(arrivals, wanted);
            }
        }
        for route in routes {
            self.hold_before_send(route, &holdings[route.from.index()]);
        }
    }

    /// have[c,r,t] = have[c,r,t−1] + Σ over links l into r of x[c,l,t−δ(l)], and have ≤ 1: at most one copy of a chunk
    /// comes to a rank. Where the chunk is wanted, have[c,r,horizon] = 1.
    fn holding_follows_arrivals(&mut self, arrivals: &[&Route], wanted: bool) -> Availability {
        let first = arrivals.iter().map(|route| route.departures.start() + route.latency).min();
        let first = first.expect("a rank is listed because a route leads there");
        let columns: Vec<Column> = (first..=self.horizon).map(|_| self.model.continuous(0.0, 1.0)).collect();
        for (index, epoch) in (first..=self.horizon).enumerate() {
            let arriving = arrivals.iter().filter_map(|route| {
                self.departure(route, epoch.checked_sub(route.latency)?).map(|column| (column, -1.0))
            });
            let before = index.checked_sub(1).map(|before| (columns[before], -1.0));
            let terms: Vec<_> = arriving.chain(before).chain([(columns[index], 1.0)]).collect();
            self.model.equal(terms, 0.0);
            self.rows.push(CopyConstraint::Arrive(arrivals[0].chunk, arrivals[0].to, epoch));
        }
        if wanted {
            self.model.fix(columns[columns.len() - 1], 1.0);
        }
        Availability::From { first, columns }
    }

    /// The same for a rank that the chunk never leaves, without columns: Σ over links l into r and epochs t of x[c,l,t]
    /// is 1 where c is wanted at r, else ≤ 1.
    fn receive_once(&mut self, arrivals: &[&Route], wanted: bool) {
        let departures = arrivals.iter().flat_map(|route| route.departures.clone().map(move |epoch| (*route, epoch)));
        let columns = departures.filter_map(|(route, epoch)| self.departure(route, epoch));
        let terms: Vec<_> = columns.map(|column| (column, 1.0)).collect();
        self.model.row(if wanted { 1.0 } else { 0.0 }, terms, 1.0);
        self.rows.push(CopyConstraint::Once(arrivals[0].chunk, arrivals[0].to));
    }

    /// x[c,l,t] ≤ have[c,from(l),t].
    fn hold_before_send(&mut self, route: &Route, holding: &Availability) {
        for epoch in route.departures.clone() {
            let Some(column) = self.departure(route, epoch) else { continue };
            let held = match holding {
                Availability::Always => continue,
                Availability::From { first, columns } if *first <= epoch => Some(columns[(epoch - first) as usize]),
                Availability::From { .. } | Availability::Never => None,
            };
            self.model.at_most([(column, 1.0)].into_iter().chain(held.map(|held| (held, -1.0))), 0.0);
            self.rows.push(CopyConstraint::Hold(route.chunk, route.link, epoch));
        }
    }
}
