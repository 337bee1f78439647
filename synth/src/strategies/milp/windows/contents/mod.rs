//! A window that keeps the messages of a schedule, and decides anew what they carry.
//!
//! The principal type is [`ContentsWindow`]. Some groups of chunks are free ([`groups`]). Messages keep their links and their turns
//! on them ([`kept`]). They become shorter or longer, disappear, or get contents where they had none, and of a message that
//! arrives at a rank about when another one leaves it, the model decides whether the other one waits. So all ways of a
//! group change at once, which no window of a few deliveries can do. The schedule is a solution. [`routes`] makes messages of
//! single chunks again.
//!
//! | column | meaning |
//! |---|---|
//! | start\[m\] | departure of message m |
//! | used\[m\] ∈ {0,1} | whether it carries anything; only of those that carry nothing else |
//! | amount\[g,m\] | how many chunks of group g it carries, a whole number |
//! | waits\[a,b\] ∈ {0,1} | whether b leaves after a has arrived, so that it can carry on what a brings |
//! | root\[g,r\] ∈ {0,1} | whether the sum g is complete at rank r |
//! | passed\[g,a,b\] | how many chunks of g come with a and leave with b |
//! | stays\[g,m\] | how many chunks of g stay where m brings them |
//! | late\[m\] | by how much it arrives after a time that is given |
//! | T | the last arrival |

mod groups;
mod kept;
mod passing;
mod routes;

pub(super) use groups::{ChunkGroups, GroupKind};

use super::kinds::unit;
use super::model::Sum;
use super::places::{BusyPlace, places};
use crate::ordering::SumTrees;
use crate::problem::Problem;
use crate::solver::{Column, Model};
use kept::{KeptMessage, kept_messages};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use schedule::{ChunkId, Schedule, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bytes, Latency, LinkId, Rank};

/// The weight of all lateness together, relative to T, and that of all departures.
const LATENESS: f64 = 0.05;
const WEIGHT: f64 = 1e-4;
/// The most columns.
const MOST_COLUMNS: usize = 12_000;

/// What a window of contents frees.
pub(super) struct FreeContents {
    /// The groups of chunks whose ways are free.
    pub(super) groups: BTreeSet<usize>,
    /// A message that leaves a rank within this time of an arrival there may wait for it or not, in microseconds.
    pub(super) margin: f64,
    /// The number of messages without contents.
    pub(super) added: usize,
    /// The seed of its choices and costs.
    pub(super) seed: u64,
}

/// Whether a message waits for another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Always,
    Open(Column),
}

impl Waiting {
    fn column(self) -> Option<Column> {
        match self {
            Self::Always => None,
            Self::Open(waits) => Some(waits),
        }
    }
}

/// The model of one window.
pub(super) struct ContentsWindow<'a> {
    problem: &'a Problem,
    groups: &'a ChunkGroups,
    pub(super) model: Model,
    messages: Vec<KeptMessage>,
    starts: Vec<Column>,
    /// Of messages that carry nothing which is not free.
    used: Vec<Option<Column>>,
    /// By message and group.
    amounts: Vec<BTreeMap<usize, Column>>,
    waiting: BTreeMap<(usize, usize), Waiting>,
    /// By group and rank, of sums; and where they are complete now.
    roots: BTreeMap<(usize, Rank), Column>,
    sums: &'a SumTrees,
    makespan: Column,
    until: f64,
}

impl<'a> ContentsWindow<'a> {
    /// The model; `None` if it would be too large. What arrives after `begin` is late.
    pub(super) fn new(
        problem: &'a Problem,
        schedule: &Schedule,
        (groups, sums): (&'a ChunkGroups, &'a SumTrees),
        free: &FreeContents,
        begin: f64,
    ) -> Option<Self> {
        let mut random = Pcg64Mcg::seed_from_u64(free.seed);
        let until = schedule.makespan().0;
        let messages = kept_messages(problem, schedule, groups, &free.groups, free.added, &mut random);
        if messages.len().saturating_mul(free.groups.len()) > MOST_COLUMNS {
            return None;
        }
        let mut model = Model::default();
        let makespan = model.continuous(0.0, until * (1.0 + 1e-9));
        model.set_cost(makespan, 1.0);
        let (starts, used, amounts) = (Vec::new(), Vec::new(), Vec::new());
        let (waiting, roots) = (BTreeMap::new(), BTreeMap::new());
        #[rustfmt::skip]
        let mut window = Self { problem, groups, sums, model, messages, starts, used, amounts, waiting, roots, makespan, until };
        window.list(&free.groups);
        window.keep_turns();
        window.arrive(begin, &mut random);
        (window.wait(free.margin) && window.pass_on(&free.groups)).then_some(window)
    }

    /// The columns of each message. It is used if it carries anything.
    fn list(&mut self, free: &BTreeSet<usize>) {
        let topology = &self.problem.topology;
        for message in &self.messages {
            let link = topology.link(message.link);
            self.starts.push(self.model.continuous(0.0, self.until));
            let used = message.fixed.is_empty().then(|| self.model.binary());
            let mut amounts = BTreeMap::new();
            for &index in free {
                let group = &self.groups.all[index];
                if !group.may_use(message.link) || !group.may_take(message.kind, link, self.until) {
                    continue;
                }
                let amount = self.model.integer(0.0, group.most());
                amounts.insert(index, amount);
                if let Some(used) = used {
                    self.model.at_most([(amount, 1.0), (used, -group.most())], 0.0);
                }
            }
            self.used.push(used);
            self.amounts.push(amounts);
        }
    }

    /// `of` a message of so many bytes, which is linear but for messages without contents, for which it is zero.
    fn time(&self, message: usize, of: impl Fn(Bytes) -> f64) -> Sum {
        let (least, fixed) = (of(Bytes(0.0)), self.problem.demand.message_bytes(&self.messages[message].fixed));
        let amounts = self.amounts[message].iter();
        let carried = amounts.map(|(&group, &amount)| (amount, of(self.groups.all[group].bytes) - least));
        let used = self.used[message].map(|used| (used, least));
        Sum::default().plus(if used.is_some() { 0.0 } else { of(fixed) }, carried.chain(used))
    }

    /// left ≥ start\[message\] + `time`, where a column that is given is set.
    fn no_sooner(&mut self, left: Column, message: usize, time: Sum, if_set: Option<Column>) {
        let sum = time.plus(0.0, [(self.starts[message], 1.0)]);
        sum.precedes(left, self.until, if_set.as_slice(), &mut self.model);
    }

    fn arrival_time(&self, message: usize) -> Sum {
        let link = self.problem.topology.link(self.messages[message].link);
        self.time(message, |bytes| link.transfer_time(bytes).0)
    }

    /// Messages that follow each other at a link or a resource.
    fn keep_turns(&mut self) {
        let mut last: BTreeMap<BusyPlace, usize> = BTreeMap::new();
        for own in 0..self.messages.len() {
            for place in places(self.problem, self.messages[own].link).collect::<Vec<_>>() {
                if let Some(before) = last.insert(place, own) {
                    let link = self.messages[before].link;
                    let busy = self.time(before, |bytes| place.busy(self.problem, link, bytes));
                    self.no_sooner(self.starts[own], before, busy, None);
                }
            }
        }
    }

    /// T ≥ arrival, late ≥ arrival − begin, and what lateness and departures cost. A message counts as often as it carries chunks now.
    fn arrive(&mut self, begin: f64, random: &mut Pcg64Mcg) {
        let count = self.messages.len() as f64;
        let chunks = self.messages.iter().map(KeptMessage::carried_now).sum::<usize>() as f64;
        for own in 0..self.messages.len() {
            self.model.set_cost(self.starts[own], (0.5 + unit(random)) * WEIGHT / count);
            let time = self.arrival_time(own);
            self.no_sooner(self.makespan, own, time, None);
            let carried = self.messages[own].carried_now();
            if carried > 0 {
                let late = self.model.continuous(0.0, f64::INFINITY);
                self.model.set_cost(late, carried as f64 * LATENESS / chunks);
                let time = self.arrival_time(own).plus(-begin, []);
                self.no_sooner(late, own, time, None);
            }
        }
    }

    /// Who waits for whom: those that always did, and those that may because they arrive and leave within `margin` of each other.
    /// Returns whether few enough columns are needed.
    fn wait(&mut self, margin: f64) -> bool {
        let topology = &self.problem.topology;
        let mut into: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (number, message) in self.messages.iter().enumerate() {
            into.entry(topology.link(message.link).to).or_default().push(number);
        }
        let mut found: Vec<(usize, usize, bool)> = Vec::new();
        for after in 0..self.messages.len() {
            let from = topology.link(self.messages[after].link).from;
            if found.len() > MOST_COLUMNS {
                return false;
            }
            for &before in into.get(&from).into_iter().flatten() {
                let (first, second) = (&self.messages[before], &self.messages[after]);
                if self.may_cross(before, after) {
                    continue;
                }
                let gap = second.start - first.end;
                let slack = self.until * 1e-9;
                let must = gap >= -slack && second.fixed.iter().any(|chunk| first.fixed.binary_search(chunk).is_ok());
                if must || gap >= -margin.max(slack) && self.may_pass_on(before, after) {
                    found.push((before, after, must || gap > margin));
                }
            }
        }
        // Messages that occupy a link arrive in turn: who waits for the last of them waits for all.
        let mut last: BTreeMap<(usize, LinkId), usize> = BTreeMap::new();
        for &(before, after, _) in found.iter().filter(|&&(before, _, always)| always && self.is_in_turn(before)) {
            last.insert((after, self.messages[before].link), before);
        }
        for (before, after, always) in found {
            let waiting = if always { Waiting::Always } else { Waiting::Open(self.model.binary()) };
            self.waiting.insert((before, after), waiting);
            let is_implied = |last: &usize| always && self.is_in_turn(before) && *last != before;
            if last.get(&(after, self.messages[before].link)).is_none_or(|last| !is_implied(last)) {
                let time = self.arrival_time(before);
                self.no_sooner(self.starts[after], before, time, waiting.column());
            }
        }
        true
    }

    /// Whether a message that adds goes to the sender of one that copies, and the other way round. What they carry in common they may exchange.
    pub(super) fn may_cross(&self, before: usize, after: usize) -> bool {
        let [first, second] = [before, after].map(|message| &self.messages[message]);
        let [one, other] = [first, second].map(|message| self.problem.topology.link(message.link));
        (first.kind, second.kind) == (TransferKind::Reduce, TransferKind::Copy) && one.from == other.to
    }

    /// Whether a message may carry on something that another one brings to its sender.
    fn may_pass_on(&self, before: usize, after: usize) -> bool {
        let [first, second] = [before, after].map(|message| &self.messages[message]);
        let [from, to] = [first, second].map(|message| self.problem.topology.link(message.link));
        let passes = match (first.kind, second.kind) {
            (TransferKind::Reduce, TransferKind::Copy) => true,
            (TransferKind::Copy, TransferKind::Reduce) => false,
            // What comes back brings nothing new.
            _ => from.from != to.to,
        };
        passes && self.amounts[before].keys().any(|group| self.amounts[after].contains_key(group))
    }

    /// Whether messages over the link of a message arrive one after the other.
    fn is_in_turn(&self, message: usize) -> bool {
        self.problem.topology.link(self.messages[message].link).latency == Latency::Occupies
    }

    /// The whole numbers of the schedule that the window was taken from, as a start for the solver.
    pub(super) fn start(&self) -> Vec<(Column, f64)> {
        let mut values = Vec::new();
        for (message, (used, amounts)) in self.messages.iter().zip(self.used.iter().zip(&self.amounts)) {
            values.extend(used.map(|used| (used, f64::from(!message.now.is_empty()))));
            let now = |group: &usize| f64::from(message.now.get(group).copied().unwrap_or(0));
            values.extend(amounts.iter().map(|(group, &amount)| (amount, now(group))));
        }
        for (&(before, after), &waiting) in &self.waiting {
            if let Some(waits) = waiting.column() {
                let has_come = self.messages[after].start >= self.messages[before].end - self.until * 1e-9;
                values.push((waits, f64::from(has_come)));
            }
        }
        for (&(group, rank), &root) in &self.roots {
            let collector = self.groups.all[group].chunks.first().and_then(|&chunk| self.sums.collector(chunk));
            values.push((root, f64::from(collector == Some(rank))));
        }
        values
    }
}
