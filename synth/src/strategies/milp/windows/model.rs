//! The model of one window: new messages for a few deliveries of a schedule, in exact time.
//!
//! The principal type is [`FreedWindow`]. The deliveries and what each may do are in [`deliveries`](super::deliveries). Those
//! that are not free keep their messages and their turns among themselves, but move in time. The schedule that the window was
//! taken from is a solution, so that the solver starts from it and can only improve it.
//!
//! | column | meaning |
//! |---|---|
//! | start\[i\] | departure of delivery i in a message of its own, between its head and its latest start |
//! | arrival\[f\] | when the free delivery f has arrived |
//! | over\[f,l\] ∈ {0,1} | the free delivery f has a message of its own over link l |
//! | merge\[f,i\] ∈ {0,1} | it is part of the message of delivery i, which takes longer for it |
//! | out\[f\] ∈ {0,1} | it is not made |
//! | before\[f,i\] ∈ {0,1} | the message of f leaves before that of i, where both may use a link or a resource |
//! | late\[i\] | by how much it arrives after a time that is given |
//! | T | the last arrival |
//!
//! Who leaves first is in [`turns`](super::turns). Heads and latest starts follow from the deliveries that are not free, so that
//! big Ms are small.

use super::deliveries::{OpenDelivery, deliveries};
use super::kinds::unit;
use crate::ordering::SumTrees;
use crate::problem::Problem;
use crate::solver::{Column, Model, Solution};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use schedule::{ChunkId, Message, Schedule, Transfer, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, LinkId};

/// The weight of all lateness together, relative to T: fewer late deliveries leave fewer for later windows.
const LATENESS: f64 = 0.5;
/// The weight of all arrivals together, on average: each has another one in each window, so that ties are broken differently.
const WEIGHT: f64 = 1e-4;

/// A sum of columns and a constant.
#[derive(Clone, Default)]
pub(super) struct Sum {
    terms: Vec<(Column, f64)>,
    constant: f64,
}

impl Sum {
    pub(super) fn of(column: Column) -> Self {
        Self { terms: vec![(column, 1.0)], constant: 0.0 }
    }

    pub(super) fn plus(mut self, constant: f64, terms: impl IntoIterator<Item = (Column, f64)>) -> Self {
        self.constant += constant;
        self.terms.extend(terms);
        self
    }

    /// left ≥ this sum − M·(number of `if_set` that are 0).
    pub(super) fn precedes(self, left: Column, big: f64, if_set: &[Column], model: &mut Model) {
        let terms = self.terms.into_iter().map(|(column, factor)| (column, -factor));
        let relaxed = if_set.iter().map(|&column| (column, -big));
        let all: Vec<(Column, f64)> = std::iter::once((left, 1.0)).chain(terms).chain(relaxed).collect();
        model.row(self.constant - big * if_set.len() as f64, all, f64::INFINITY);
    }

    /// Its value in a solution.
    pub(super) fn value(&self, solution: &Solution) -> f64 {
        self.constant + self.terms.iter().map(|&(column, factor)| factor * solution.value(column)).sum::<f64>()
    }
}

/// A delivery that may be part of a message, and makes it longer.
pub(super) struct MergedDelivery {
    pub(super) merge: Column,
    pub(super) bytes: Bytes,
    pub(super) link: LinkId,
}

/// The columns of a delivery.
pub(super) struct DeliveryColumns {
    pub(super) start: Column,
    /// Only of free ones.
    arrival: Option<Column>,
    /// In the order of `ways`, `merges`; none where there is no choice.
    pub(super) over: Vec<Column>,
    merges: Vec<Column>,
    out: Option<Column>,
    pub(super) merged: Vec<MergedDelivery>,
}

/// The model of one window.
pub(super) struct FreedWindow<'a> {
    pub(super) problem: &'a Problem,
    transfers: &'a [Transfer],
    pub(super) model: Model,
    pub(super) all: Vec<OpenDelivery>,
    pub(super) columns: Vec<DeliveryColumns>,
    pub(super) before: BTreeMap<(usize, usize), Column>,
    makespan: Column,
    /// How late deliveries are that may arrive after `begin`.
    late: Vec<(Column, usize)>,
    begin: f64,
    until: f64,
}

impl<'a> FreedWindow<'a> {
    /// The model that frees the messages `free` of a schedule, which copy; `None` if too many orders
    /// are open. What arrives after `begin` is late. `seed` decides which of equally good solutions costs least.
    pub(super) fn new(
        problem: &'a Problem,
        schedule: &'a Schedule,
        sums: &SumTrees,
        free: &BTreeSet<usize>,
        begin: f64,
        seed: u64,
    ) -> Option<Self> {
        let (transfers, until) = (&schedule.transfers[..], schedule.makespan().0);
        let all = deliveries(problem, schedule, sums, free);
        let mut model = Model::default();
        let makespan = model.continuous(0.0, until * (1.0 + 1e-9));
        model.set_cost(makespan, 1.0);
        let columns = all.iter().map(|own| columns_of(own, &mut model, until)).collect::<Vec<DeliveryColumns>>();
        let mut window = Self {
            problem,
            transfers,
            model,
            all,
            columns,
            before: BTreeMap::new(),
            makespan,
            late: Vec::new(),
            begin,
            until,
        };
        window.count_merged();
        window.choose_one();
        window.arrive();
        window.prefer_early(seed);
        window.send_what_has_arrived();
        window.keep_turns();
        window.take_turns().then_some(window)
    }

    fn count_merged(&mut self) {
        for own in 0..self.all.len() {
            for (merge, &column) in self.all[own].merges.iter().zip(&self.columns[own].merges.clone()) {
                let (bytes, link) = (self.all[own].bytes, merge.link);
                self.columns[merge.into].merged.push(MergedDelivery { merge: column, bytes, link });
            }
        }
    }

    /// Σ over + Σ merge + out = 1. What others are part of is a message of its own, over their link.
    fn choose_one(&mut self) {
        for own in 0..self.all.len() {
            let DeliveryColumns { over, merges, out, .. } = &self.columns[own];
            if over.is_empty() && merges.is_empty() {
                continue;
            }
            let all = over.iter().chain(merges).chain(out);
            self.model.equal(all.map(|&column| (column, 1.0)), 1.0);
            let merged: Vec<(Column, LinkId)> =
                self.columns[own].merged.iter().map(|other| (other.merge, other.link)).collect();
            for (merge, link) in merged {
                let way = self.all[own].ways.iter().position(|way| way.link == link);
                if let Some(&over) = way.and_then(|way| self.columns[own].over.get(way)) {
                    self.model.at_most([(merge, 1.0), (over, -1.0)], 0.0);
                }
            }
        }
    }

    /// How much longer the message of `own` takes for what is merged into it.
    fn merged_time(&self, own: usize) -> Vec<(Column, f64)> {
        let more = |other: &MergedDelivery| self.problem.topology.link(other.link).beta.0 * other.bytes.0;
        self.columns[own].merged.iter().map(|other| (other.merge, more(other))).collect()
    }

    /// When the message of `own` arrives.
    fn arrival(&self, own: usize) -> Sum {
        match self.columns[own].arrival {
            Some(arrival) => Sum::of(arrival),
            None => self.own_arrival(own),
        }
    }

    /// When a message of `own` itself arrives.
    fn own_arrival(&self, own: usize) -> Sum {
        let (all, columns) = (&self.all[own], &self.columns[own]);
        let time = |way: usize| all.time(self.problem, all.ways[way].link);
        let fixed = if columns.over.is_empty() && !all.ways.is_empty() { time(0) } else { 0.0 };
        let open = columns.over.iter().enumerate().map(|(way, &over)| (over, time(way)));
        Sum::of(columns.start).plus(fixed, open.chain(self.merged_time(own)))
    }

    /// left ≥ right − M·(number of `if_set` that are 0).
    pub(super) fn no_sooner(&mut self, left: Column, right: Sum, big: f64, if_set: &[Column]) {
        right.precedes(left, big, if_set, &mut self.model);
    }

    /// arrival ≥ that of the message of its own, and of the message that it is part of. T ≥ arrival.
    fn arrive(&mut self) {
        for own in 0..self.all.len() {
            if let Some(arrival) = self.columns[own].arrival {
                let sum = self.own_arrival(own);
                self.no_sooner(arrival, sum, 0.0, &[]);
                let big = (self.until - self.all[own].head).max(0.0);
                for number in 0..self.all[own].merges.len() {
                    let sum = self.arrival(self.all[own].merges[number].into);
                    let taken = self.columns[own].merges[number];
                    self.no_sooner(arrival, sum, big, &[taken]);
                }
            }
            let sum = self.arrival(own);
            self.no_sooner(self.makespan, sum, 0.0, &[]);
        }
    }

    /// late ≥ arrival − begin, and what lateness and arrivals cost.
    fn prefer_early(&mut self, seed: u64) {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let count = self.all.iter().map(|own| own.chunks.len()).sum::<usize>() as f64;
        for own in 0..self.all.len() {
            let share = unit(&mut random);
            let DeliveryColumns { start, arrival, .. } = self.columns[own];
            let chunks = self.all[own].chunks.len() as f64;
            self.model.set_cost(arrival.unwrap_or(start), (0.5 + share) * chunks * WEIGHT / count);
            if self.all[own].latest + self.all[own].shortest(self.problem) > self.begin {
                let late = self.model.continuous(0.0, f64::INFINITY);
                self.model.set_cost(late, chunks * LATENESS / count);
                self.late.push((late, own));
                let sum = self.arrival(own).plus(-self.begin, []);
                self.no_sooner(late, sum, 0.0, &[]);
            }
        }
    }

    /// A message leaves when what it carries has come; and nobody relies on a delivery that is left out.
    fn send_what_has_arrived(&mut self) {
        for own in 0..self.all.len() {
            let ways = self.all[own]
                .ways
                .iter()
                .zip(0..)
                .map(|(way, number)| (own, self.columns[own].over.get(number).copied(), way.brought_by.clone()));
            let merges = self.all[own].merges.iter().zip(0..).map(|(merge, number)| {
                (merge.into, self.columns[own].merges.get(number).copied(), merge.brought_by.clone())
            });
            for (sender, taken, brought_by) in ways.chain(merges).collect::<Vec<_>>() {
                let if_set: Vec<Column> = taken.into_iter().collect();
                for by in brought_by {
                    let big = (self.until - self.all[sender].head).max(0.0);
                    let sum = self.arrival(by);
                    self.no_sooner(self.columns[sender].start, sum, big, &if_set);
                    if let (Some(out), Some(taken)) = (self.columns[by].out, taken) {
                        self.model.at_most([(taken, 1.0), (out, 1.0)], 1.0);
                    }
                }
            }
        }
    }

    /// When a delivery leaves in the schedule that the window was taken from.
    fn departure(&self, own: &OpenDelivery) -> f64 {
        own.now.map_or(own.head, |(index, _)| self.transfers[index].start.0)
    }

    /// The schedule that the window was taken from, as a start for the solver.
    pub(super) fn start(&self) -> Vec<(Column, f64)> {
        let mut values = vec![(self.makespan, self.until)];
        for (own, columns) in self.all.iter().zip(&self.columns) {
            let arrival = own.now.map_or(own.head, |(index, _)| self.transfers[index].end.0);
            values.push((columns.start, self.departure(own)));
            values.extend(columns.arrival.map(|column| (column, arrival)));
            // The first way, or the first message to be part of, is what it does now, if it does anything.
            let merges_now = own.now.is_some_and(|(_, is_first)| !is_first);
            let chosen = |number: usize, is_kind: bool| f64::from(own.now.is_some() && is_kind && number == 0);
            values.extend(columns.over.iter().enumerate().map(|(way, &column)| (column, chosen(way, !merges_now))));
            values
                .extend(columns.merges.iter().enumerate().map(|(merge, &column)| (column, chosen(merge, merges_now))));
            values.extend(columns.out.map(|column| (column, f64::from(own.now.is_none()))));
        }
        let order = self.before.iter().map(|(&(one, other), &before)| {
            let key = |own: usize| (self.departure(&self.all[own]), own);
            (before, f64::from(key(one) < key(other)))
        });
        values.extend(order);
        let end = |own: usize| self.all[own].now.map_or(0.0, |(index, _)| self.transfers[index].end.0);
        values.extend(self.late.iter().map(|&(late, own)| (late, (end(own) - self.begin).max(0.0))));
        values
    }

    /// The columns that decide what is made, and in which order.
    #[cfg(test)]
    pub(super) fn whole_columns(&self) -> BTreeSet<Column> {
        let own = self.columns.iter().flat_map(|own| own.over.iter().chain(&own.merges).chain(&own.out));
        own.copied().chain(self.before.values().copied()).collect()
    }

    /// The messages of a solution, in the order of their starts.
    pub(super) fn messages(&self, solution: &Solution) -> Vec<Message> {
        let mut chunks: Vec<Vec<ChunkId>> = vec![Vec::new(); self.all.len()];
        for (own, columns) in self.all.iter().zip(&self.columns) {
            if let Some(merge) = columns.merges.iter().position(|&column| solution.is_set(column)) {
                chunks[own.merges[merge].into].extend(&own.chunks);
            }
        }
        let mut order: Vec<(f64, f64, LinkId, TransferKind, Vec<ChunkId>)> = Vec::new();
        for (index, (own, columns)) in self.all.iter().zip(&self.columns).enumerate() {
            let way = match columns.over.is_empty() {
                true => (!own.ways.is_empty()).then_some(0),
                false => columns.over.iter().position(|&column| solution.is_set(column)),
            };
            if let Some(way) = way {
                let now = self.departure(own);
                let all = own.chunks.iter().chain(&chunks[index]).copied().collect();
                order.push((solution.value(columns.start), now, own.ways[way].link, own.kind, all));
            }
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let message = |(.., link, kind, mut chunks): (f64, f64, LinkId, TransferKind, Vec<ChunkId>)| {
            chunks.sort_unstable();
            chunks.dedup();
            Message { chunks: chunks.into(), link, kind }
        };
        order.into_iter().map(message).collect()
    }
}

fn columns_of(own: &OpenDelivery, model: &mut Model, until: f64) -> DeliveryColumns {
    let start = model.continuous(own.head, own.latest.max(own.head));
    let arrival = own.is_free.then(|| model.continuous(own.head, until * (1.0 + 1e-9)));
    let has_choice = own.options() > 1 || !own.merges.is_empty();
    let mut some = |count: usize| if has_choice { (0..count).map(|_| model.binary()).collect() } else { Vec::new() };
    let (over, merges) = (some(own.ways.len()), some(own.merges.len()));
    let out = some(usize::from(own.is_optional)).pop();
    DeliveryColumns { start, arrival, over, merges, out, merged: Vec::new() }
}
