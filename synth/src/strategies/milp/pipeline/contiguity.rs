//! The third stage: which neighbours on a link travel as one message, and when each message leaves.
//!
//! The principal function is [`tighten`]. A schedule gives the routes and orders. Open is where messages are split and
//! joined, so that α is paid as seldom as waiting allows. There are four differences to TACCL's third stage [1]. Any
//! link may merge. Members of a message leave and arrive together. A message that is joined may let those of other
//! links at a shared port go first. No big M is larger than what the best schedule so far leaves open. Large schedules
//! are processed in windows of time. Messages outside of a window places as they are, and their times follow.
//!
//! | column | meaning |
//! |---|---|
//! | start[i], end[i] ≥ 0 | departure and arrival of unit i: a chunk, or a message that is not split |
//! | join[i] ∈ {0,1} | unit i and the next unit on its link are in one message |
//! | with[i,j] ∈ [0,1] | units i and j are in one message |
//! | T | the last arrival |
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.3.

use super::units::Units;
use crate::problem::tolerance::{EQUAL, beats};
use crate::problem::{Problem, SynthError};
use crate::solver::{Column, Controls, Ending, Model, Solution, solve};
use schedule::{Message, Schedule, replay};
use std::collections::BTreeMap;
use topology::{Bytes, LinkId, Micros, ResourceId};

/// The most units that may be split off or joined in one model.
const MOST_OPEN: usize = 60;
/// The weight of all arrivals together, relative to the last: it prefers early ones among equal makespans.
const WEIGHT_OF_ARRIVALS: f64 = 1e-3;

/// The result of the third stage.
pub(super) struct Tightened {
    /// A faster schedule of the same routes, if there is one.
    pub(super) schedule: Option<Schedule>,
    /// The number of models that a limit left undecided.
    pub(super) undecided: u32,
    pub(super) calls: u32,
}

/// Joins and splits the messages of `schedule` window by window, until no window gains or all `calls` are used.
///
/// # Errors
/// Failures of the solver.
pub(super) fn tighten(
    problem: &Problem,
    schedule: &Schedule,
    controls: &Controls<'_>,
    calls: u32,
    strategy: &str,
) -> Result<Tightened, SynthError> {
    let mut tightened = Tightened { schedule: None, undecided: 0, calls: 0 };
    let mut best = schedule.clone();
    let mut stale = 0;
    let mut from = 0;
    while tightened.calls < calls && !controls.deadline.has_passed() {
        let mut openings = openings(problem, &best);
        if openings.is_empty() {
            break;
        }
        openings.sort_by(Micros::total_cmp);
        let windows = openings.len().div_ceil(MOST_OPEN / 2);
        if stale >= windows {
            break;
        }
        // The last window first, because delays there are hardest to make up for.
        let last = openings.len() - (from % windows) * (MOST_OPEN / 2);
        let window = (openings[last.saturating_sub(MOST_OPEN)], openings[last - 1]);
        let contiguity = Contiguity::new(problem, &best, window);
        tightened.calls += 1;
        let outcome = solve(&contiguity.model, &contiguity.start(&best), controls, &mut |_| {})?;
        let solution = match outcome.ending {
            Ending::Optimal(solution) => Some(solution),
            Ending::Limit { incumbent, .. } => {
                tightened.undecided += 1;
                incumbent
            }
            Ending::Infeasible | Ending::Unbounded => None,
        };
        let messages = solution.and_then(|solution| contiguity.units.in_order(&contiguity.groups(&solution)));
        let found = messages.and_then(|messages| timed(problem, &messages, strategy));
        let better = found.filter(|found| is_better(found, &best));
        stale = if better.is_some() { 0 } else { stale + 1 };
        from += 1;
        best = better.unwrap_or(best);
    }
    let gained = beats(best.makespan(), schedule.makespan());
    tightened.schedule = gained.then_some(best);
    Ok(tightened)
}

/// Messages with their times; `None` if the order cannot be replayed.
fn timed(problem: &Problem, messages: &[Message], strategy: &str) -> Option<Schedule> {
    let transfers = replay(&problem.demand, &problem.topology, messages).ok()?;
    Some(Schedule::new(&problem.topology, problem.demand.clone(), transfers, strategy))
}

/// The departures of all chunks that could join another chunk or be split off.
fn openings(problem: &Problem, schedule: &Schedule) -> Vec<Micros> {
    let costly = |link: LinkId| problem.topology.link(link).alpha > Micros::ZERO;
    let mut on_link: BTreeMap<LinkId, usize> = BTreeMap::new();
    for transfer in schedule.transfers.iter().filter(|it| costly(it.link)) {
        *on_link.entry(transfer.link).or_default() += transfer.chunks.len();
    }
    let open = schedule.transfers.iter().filter(|it| on_link.get(&it.link).is_some_and(|&count| count > 1));
    open.flat_map(|it| std::iter::repeat_n(it.start, it.chunks.len())).collect()
}

/// The model of one window, and the units that its columns stand for.
struct Contiguity<'a> {
    problem: &'a Problem,
    units: Units,
    model: Model,
    starts: Vec<Column>,
    ends: Vec<Column>,
    /// join[i], where it is open.
    joins: BTreeMap<usize, Column>,
    /// with[i,j] for i before j on one link.
    with: BTreeMap<(usize, usize), Column>,
    makespan: Column,
}

impl<'a> Contiguity<'a> {
    fn new(problem: &'a Problem, schedule: &Schedule, window: (Micros, Micros)) -> Self {
        let units = Units::new(problem, schedule, window);
        let mut model = Model::default();
        let starts = units.list.iter().map(|unit| model.continuous(unit.head.0, unit.latest.0.max(unit.head.0)));
        let starts: Vec<Column> = starts.collect();
        let best = schedule.makespan().0;
        let makespan = model.continuous(0.0, best * (1.0 + EQUAL));
        model.set_cost(makespan, 1.0);
        let weight = WEIGHT_OF_ARRIVALS / units.list.len().max(1) as f64;
        let ends: Vec<Column> = units.list.iter().map(|_| model.continuous(0.0, best * (1.0 + EQUAL))).collect();
        ends.iter().for_each(|&end| model.set_cost(end, weight));
        let joins = (0..units.list.len()).filter(|&unit| units.is_open(unit));
        let joins: BTreeMap<usize, Column> = joins.map(|unit| (unit, model.binary())).collect();
        let with = BTreeMap::new();
        let mut contiguity = Self { problem, units, model, starts, ends, joins, with, makespan };
        contiguity.count_members();
        contiguity.arrive();
        contiguity.send_what_has_arrived();
        contiguity.leave_together();
        contiguity.leave_in_turn();
        contiguity.take_turns_at_resources();
        contiguity.end_with_the_last();
        contiguity
    }

    /// with[i,j] ≥ Σ of join over the units from i up to j − (their number − 1), for every j that can share a message
    /// with i. The size of a message is limited: Σ join over [`Units::MOST_TOGETHER`] consecutive units is less than
    /// that number.
    fn count_members(&mut self) {
        for first in 0..self.units.list.len() {
            let mut path: Vec<(Column, f64)> = Vec::new();
            let mut at = first;
            while let (Some(&join), Some(next)) = (self.joins.get(&at), self.units.list[at].next) {
                path.push((join, 1.0));
                if path.len() == Units::MOST_TOGETHER {
                    self.model.at_most(path, (Units::MOST_TOGETHER - 1) as f64);
                    break;
                }
                let with = self.model.continuous(0.0, 1.0);
                self.with.insert((first, next), with);
                let terms = path.iter().copied().chain([(with, -1.0)]);
                self.model.at_most(terms.collect::<Vec<_>>(), path.len() as f64 - 1.0);
                at = next;
            }
        }
    }

    /// The units that may share a message with `unit`, with their columns.
    fn company(&self, unit: usize) -> Vec<(usize, Column)> {
        let later = self.with.range((unit, 0)..=(unit, usize::MAX)).map(|(&(_, other), &with)| (other, with));
        let mut company: Vec<(usize, Column)> = later.collect();
        let mut at = unit;
        while let Some(before) = self.units.list[at].previous {
            let Some(&with) = self.with.get(&(before, unit)) else { break };
            company.push((before, with));
            at = before;
        }
        company
    }

    /// β·Σ over the units j that may share a message with i of bytes[j]·with[i,j]; the largest value of this sum; and
    /// β·bytes[i].
    fn load(&self, unit: usize, beta: f64) -> (Vec<(Column, f64)>, f64, f64) {
        let time = |unit: usize| beta * self.units.list[unit].bytes.0;
        let terms: Vec<(Column, f64)> =
            self.company(unit).into_iter().map(|(other, with)| (with, time(other))).collect();
        let most = terms.iter().map(|it| it.1).sum::<f64>();
        (terms, most, time(unit))
    }

    /// end[i] ≥ start[i] + α + β·(bytes[i] + Σ over j of bytes[j]·with[i,j]).
    fn arrive(&mut self) {
        for unit in 0..self.units.list.len() {
            let link = self.problem.topology.link(self.units.list[unit].link);
            let (company, _, own) = self.load(unit, link.beta.0);
            let company = company.into_iter().map(|(with, time)| (with, -time));
            let terms: Vec<_> = company.chain([(self.ends[unit], 1.0), (self.starts[unit], -1.0)]).collect();
            self.model.row(link.alpha.0 + own, terms, f64::INFINITY);
        }
    }

    /// start[k] ≥ end[i], where i brings a chunk that k sends.
    fn send_what_has_arrived(&mut self) {
        for unit in 0..self.units.list.len() {
            for &from in &self.units.list[unit].brought_by {
                self.model.row(0.0, [(self.starts[unit], 1.0), (self.ends[from], -1.0)], f64::INFINITY);
            }
        }
    }

    /// start[i] ≤ start[j] ≤ start[i] + (latest[j] − head[i])·(1 − join[i]), where j is the next unit after i on its
    /// link.
    fn leave_together(&mut self) {
        for (&unit, &join) in &self.joins {
            let Some(next) = self.units.list[unit].next else { continue };
            let (first, second) = (self.starts[unit], self.starts[next]);
            let apart = (self.units.list[next].latest - self.units.list[unit].head).0.max(0.0);
            self.model.row(0.0, [(second, 1.0), (first, -1.0)], f64::INFINITY);
            self.model.at_most([(second, 1.0), (first, -1.0), (join, apart)], apart);
        }
    }

    /// start[j] ≥ start[i] + the time for which the message of i keeps the link busy − (its largest value)·join[i].
    fn leave_in_turn(&mut self) {
        for unit in 0..self.units.list.len() {
            let Some(next) = self.units.list[unit].next else { continue };
            let link = self.problem.topology.link(self.units.list[unit].link);
            self.follow(
                unit,
                next,
                link.occupancy(Bytes::ZERO),
                link.beta.0,
                Micros::ZERO,
                self.joins.get(&unit).copied(),
            );
        }
    }

    /// The same at every resource, with its own β, between units of different links. A unit that joins a later one lets
    /// the units between them go first: start[k] ≥ start[i] + busy − (latest[i] + most busy − head[k])·join[i].
    fn take_turns_at_resources(&mut self) {
        for index in 0..self.problem.topology.resources().len() {
            let id = ResourceId::from_index(index);
            let resource = self.problem.topology.resource(id);
            let users = self.units.at_resource(self.problem, id);
            for (place, &unit) in users.iter().enumerate() {
                for &before in users[..place].iter().rev() {
                    let link = self.problem.topology.link(self.units.list[before].link);
                    let alpha = resource.occupancy(link, Bytes::ZERO);
                    let same = self.units.list[before].link == self.units.list[unit].link;
                    let overtaken = self.units.list[before].next.is_some_and(|next| next >= unit);
                    let join = self.joins.get(&before).copied().filter(|_| overtaken);
                    let apart = if same { Micros::ZERO } else { self.apart(before, unit) };
                    if !same || resource.beta > link.beta || alpha > link.occupancy(Bytes::ZERO) {
                        self.follow(before, unit, alpha, resource.beta.0, apart, join);
                    }
                    if join.is_none() {
                        break;
                    }
                }
            }
        }
    }

    /// The most by which the start of `first` can be later than that of `second`.
    fn apart(&self, first: usize, second: usize) -> Micros {
        (self.units.list[first].latest - self.units.list[second].head).max(Micros::ZERO)
    }

    /// start[second] ≥ start[first] + α + β·(bytes of its message) − (apart + its largest value)·join.
    fn follow(&mut self, first: usize, second: usize, alpha: Micros, beta: f64, apart: Micros, join: Option<Column>) {
        let (company, most, own) = self.load(first, beta);
        let company = company.into_iter().map(|(with, time)| (with, -time));
        let big = apart.0 + alpha.0 + own + most;
        let ends = [(self.starts[second], 1.0), (self.starts[first], -1.0)];
        let terms: Vec<_> = company.chain(ends).chain(join.map(|join| (join, big))).collect();
        self.model.row(alpha.0 + own, terms, f64::INFINITY);
    }

    /// T ≥ end[i].
    fn end_with_the_last(&mut self) {
        for &end in &self.ends {
            self.model.row(0.0, [(self.makespan, 1.0), (end, -1.0)], f64::INFINITY);
        }
    }

    /// A start for the solver: the schedule that the units come from.
    fn start(&self, schedule: &Schedule) -> Vec<(Column, f64)> {
        let is_joined = |unit: usize| {
            let list = &self.units.list;
            list[unit].next.is_some_and(|next| list[unit].transfer == list[next].transfer)
        };
        let joins = self.joins.iter().map(|(&unit, &join)| (join, f64::from(is_joined(unit))));
        let transfer = |unit: usize| &schedule.transfers[self.units.list[unit].transfer];
        let starts = self.starts.iter().enumerate().map(|(unit, &start)| (start, transfer(unit).start.0));
        let ends = self.ends.iter().enumerate().map(|(unit, &end)| (end, transfer(unit).end.0));
        let with = self.with.iter().map(|(&(one, other), &with)| {
            (with, f64::from(self.units.list[one].transfer == self.units.list[other].transfer))
        });
        let makespan = [(self.makespan, schedule.makespan().0)];
        joins.chain(starts).chain(ends).chain(with).chain(makespan).collect()
    }

    /// The messages of a solution: their starts, and the units that leave together.
    fn groups(&self, solution: &Solution) -> Vec<(Micros, Vec<usize>)> {
        let mut groups = Vec::new();
        for first in 0..self.units.list.len() {
            let joins = |unit: usize| self.joins.get(&unit).is_some_and(|&join| solution.is_set(join));
            if self.units.list[first].previous.is_some_and(joins) {
                continue;
            }
            let mut members = vec![first];
            let mut at = first;
            while let Some(next) = self.units.list[at].next.filter(|_| joins(at)) {
                members.push(next);
                at = next;
            }
            groups.push((Micros(solution.value(self.starts[at])), members));
        }
        groups
    }
}

/// Whether the makespan is smaller, or no larger and chunks arrive clearly earlier.
fn is_better(new: &Schedule, old: &Schedule) -> bool {
    let arrivals = |schedule: &Schedule| {
        let all = schedule.transfers.iter();
        all.map(|transfer| transfer.end.0 * transfer.chunks.len() as f64).sum::<f64>()
    };
    beats(new.makespan(), old.makespan())
        || new.makespan() <= old.makespan() && arrivals(new) < arrivals(old) * (1.0 - 1e-6)
}

#[cfg(test)]
mod tests {
    use super::super::units::Units;
    use super::*;
    use crate::problem::Deadline;
    use crate::problem::by_hand::{broadcast, wired};
    use crate::solver::solved;
    use schedule::{ChunkId, TransferKind, verify};

    use topology::Latency;

    /// From, to, whether it uses the shared port; α is 2 µs, and a chunk of one byte takes 1 µs more.
    type Wire = (u32, u32, bool);

    /// A broadcast from rank 0, and the schedule of these messages (chunks, link), one after the other.
    fn played(ranks: usize, wires: &[Wire], chunks: u32, messages: &[(&[u32], u32)]) -> (Problem, Schedule) {
        let wires: Vec<_> = wires.iter().map(|&(from, to, shared)| (from, to, 2.0, 1.0, shared)).collect();
        let problem = broadcast(wired(ranks, &wires, Latency::Occupies, 1.0), chunks);
        let message = |&(chunks, link): &(&[u32], u32)| Message {
            chunks: chunks.iter().copied().map(ChunkId).collect(),
            link: LinkId(link),
            kind: TransferKind::Copy,
        };
        let messages: Vec<Message> = messages.iter().map(message).collect();
        let schedule = timed(&problem, &messages, "test").unwrap();
        (problem, schedule)
    }

    /// Whether the model admits these units joined to their next ones, with these starts and this end.
    fn admits((problem, schedule): &(Problem, Schedule), joined: &[usize], starts: &[f64], end: f64) -> bool {
        let mut contiguity = Contiguity::new(problem, schedule, (Micros::ZERO, Micros(f64::MAX)));
        assert_eq!(starts.len(), contiguity.starts.len());
        assert!(joined.iter().all(|unit| contiguity.joins.contains_key(unit)), "not open: the test would show nothing");
        let joins = contiguity.joins.clone();
        joins.iter().for_each(|(unit, &join)| contiguity.model.fix(join, f64::from(joined.contains(unit))));
        for (&column, &start) in contiguity.starts.iter().zip(starts) {
            contiguity.model.fix(column, start);
        }
        contiguity.model.fix(contiguity.makespan, end);
        match solved(&contiguity.model, &[]) {
            Ending::Optimal(_) => true,
            Ending::Infeasible => false,
            other => panic!("{other:?}"),
        }
    }

    fn three_on_a_wire() -> (Problem, Schedule) {
        played(2, &[(0, 1, false)], 3, &[(&[0], 0), (&[1], 0), (&[2], 0)])
    }

    #[test]
    fn messages_leave_in_turn() {
        assert!(admits(&three_on_a_wire(), &[], &[0.0, 3.0, 6.0], 9.0));
        assert!(!admits(&three_on_a_wire(), &[], &[0.0, 2.5, 6.0], 9.0), "the second leaves while the first is inside");
        assert!(!admits(&three_on_a_wire(), &[0], &[0.0, 0.0, 3.0], 9.0), "two of them take four");
        assert!(admits(&three_on_a_wire(), &[0], &[0.0, 0.0, 4.0], 7.0));
    }

    #[test]
    fn members_of_a_message_leave_and_arrive_together() {
        assert!(!admits(&three_on_a_wire(), &[0], &[0.0, 1.0, 5.0], 9.0), "one leaves later");
        assert!(admits(&three_on_a_wire(), &[0, 1], &[0.0, 0.0, 0.0], 5.0));
        assert!(!admits(&three_on_a_wire(), &[0, 1], &[0.0, 0.0, 0.0], 4.9), "2 + 3·1 is more than 4.9");
    }

    #[test]
    fn a_message_has_so_many_members_and_no_more() {
        let single: Vec<[u32; 1]> = (0..9).map(|chunk| [chunk]).collect();
        let messages: Vec<(&[u32], u32)> = single.iter().map(|chunk| (&chunk[..], 0)).collect();
        let nine = played(2, &[(0, 1, false)], 9, &messages);
        let most = Units::MOST_TOGETHER;
        assert!(admits(&nine, &(0..most - 1).collect::<Vec<_>>(), &[0., 0., 0., 0., 0., 0., 0., 0., 10.], 13.0));
        assert!(!admits(&nine, &(0..most).collect::<Vec<_>>(), &[0.0; 9], 13.0));
    }

    #[test]
    fn nobody_sends_what_has_not_arrived() {
        let chain = played(3, &[(0, 1, false), (1, 2, false)], 2, &[(&[0], 0), (&[1], 0), (&[0], 1), (&[1], 1)]);
        assert!(admits(&chain, &[], &[0.0, 3.0, 3.0, 6.0], 9.0));
        assert!(!admits(&chain, &[], &[0.0, 3.0, 2.0, 6.0], 9.0), "it leaves before it is there");
        assert!(!admits(&chain, &[0], &[0.0, 0.0, 3.0, 6.0], 9.0), "with the other it comes later");
    }

    #[test]
    fn messages_take_turns_at_a_port_and_may_let_others_go_first() {
        let fork = [(0, 1, true), (0, 2, true), (1, 2, false), (2, 1, false)];
        let fork = played(3, &fork, 3, &[(&[0], 0), (&[1], 1), (&[2], 0), (&[1], 3), (&[2], 2)]);
        assert!(admits(&fork, &[], &[0.0, 3.0, 6.0, 6.0, 9.0], 12.0));
        assert!(!admits(&fork, &[], &[0.0, 2.0, 6.0, 6.0, 9.0], 12.0), "both at the port");
        // Joined with the third unit, the first leaves after the second.
        assert!(admits(&fork, &[0], &[3.0, 0.0, 3.0, 3.0, 7.0], 10.0));
        assert!(!admits(&fork, &[0], &[2.0, 0.0, 2.0, 3.0, 7.0], 10.0), "both at the port");
        assert!(!admits(&fork, &[0], &[0.0, 4.0, 0.0, 7.0, 4.0], 10.0), "who is overtaken goes first");
    }

    #[test]
    fn joining_and_splitting_reach_the_best_of_an_order() {
        let deadline = Deadline::default();
        let best = |(problem, schedule): &(Problem, Schedule)| {
            let found = tighten(problem, schedule, &Controls::unlimited(&deadline), 9, "test").unwrap();
            verify(found.schedule.unwrap(), &problem.topology).unwrap().schedule().makespan()
        };
        assert_eq!(best(&three_on_a_wire()), Micros(5.0));
        // Everything together on both links takes 2·(2 + 8). With two messages of four chunks, the second link starts
        // early.
        let line = [(0, 1, false), (1, 2, false)];
        let all: Vec<u32> = (0..8).collect();
        let merged = played(3, &line, 8, &[(&all, 0), (&all, 1)]);
        assert_eq!(merged.1.makespan(), Micros(20.0));
        assert!(best(&merged) <= Micros(18.0));
    }
}
