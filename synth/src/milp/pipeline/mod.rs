//! The second formulation: routes over slow links first, then what happens around them, then exact timing.
//!
//! The principal function is [`attempt`]. It keeps the order of TACCL's three stages (routing, ordering, contiguity [1])
//! and changes what they decide, because TACCL's routing model has no usable relaxation: on two machines of eight ranks
//! HiGHS finds nothing in it.
//!
//! 1. *Routing*: which link between enclaves of fast links carries which chunks in which messages ([`crossings`]); few
//!    choices, each with an earliest end. Relays and shared NICs are decided here.
//! 2. *Ordering*: for a crossing plan and an end, a 0/1 model without a big M says which chunk leaves on which fast
//!    link in which period, or that it cannot be done by then ([`spreading`]); plans are tried in the order of their
//!    ends, the end moves on while there is none.
//! 3. *Timing*: `schedule::replay` gives the messages their times.
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.

mod calendar;
mod contiguity;
mod crossings;
mod spreading;
mod stay;
mod units;

use crate::milp::orbits::Orbits;
use crate::milp::solver::{Controls, Ending, solve};
use crate::{Attempt, Context, Problem, Progress, StopReason, SynthError};
use calendar::Calendar;
use contiguity::tighten;
use crossings::{Enclaves, Timed, distinct, stretched};
use schedule::{ChunkId, Message, Schedule, TransferKind, replay};
use spreading::{Refusal, Ride, Spreading};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use topology::{LinkId, Micros};

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-routing";

/// The most 0/1 columns of a model.
const MAX_RIDES: usize = 15_000;
/// The most periods of a calendar.
const MAX_PERIODS: usize = 240;
/// How many periods later than it could a chunk may come to where it must be: the first that makes the model small
/// enough.
const PATIENCE: [usize; 3] = [12, 6, 3];
/// A call gets one in so many of the iterations that the limits give it: a model that has a schedule shows it soon.
const CALL_SHARE: u64 = 8;
/// A model of this many columns gets all the iterations of a call, a larger one proportionally fewer.
const FULL_COLUMNS: u64 = 500;
/// The end of a plan moves on by this many periods in turn, while there is no schedule.
const STEPS: [u32; 6] = [1, 1, 2, 2, 4, 4];
/// Exact times are shorter than periods where α is shared; ends up to this much above the best may still beat it.
const SHRINKAGE: f64 = 1.08;
/// Two makespans this close (relative) are equal.
const EQUAL: f64 = 1e-7;

/// What the formulation finds within the limits.
///
/// # Errors
/// Failures of the solver, or of the model.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let Some(enclaves) = Enclaves::new(problem) else {
        let note = Some("no links are much slower than the others, or too many".to_owned());
        return Ok(Attempt { name: NAME.to_owned(), schedule: None, stop: StopReason::Exhausted, note });
    };
    let mut search = Search {
        enclaves: &enclaves,
        context,
        orbits: Orbits::new(problem),
        found: None,
        best: context.incumbent.map(Schedule::makespan),
        calls_left: context.options.limits.solver_calls,
        undecided: 0,
    };
    search.run()?;
    search.tighten()?;
    let stop = match () {
        () if search.is_optimal() => StopReason::Optimal,
        () if context.deadline.has_passed() => StopReason::TimeLimit,
        () => StopReason::Exhausted,
    };
    let note = (search.undecided > 0).then(|| format!("{} models left undecided at their limits", search.undecided));
    Ok(Attempt { name: NAME.to_owned(), schedule: search.found, stop, note })
}

/// A crossing plan, periods, and the end they are counted back from.
struct Candidate {
    crossings: Vec<Timed>,
    /// When the first crossing leaves that waits for something.
    anchor: Micros,
    /// When the last crossing arrives.
    arrival: Micros,
    /// Periods before the anchor, and after it.
    early: Micros,
    late: Micros,
    /// Periods from the last arrival to the end.
    rounds: f64,
    end: Micros,
    /// How often the end has moved on.
    moves: usize,
}

impl Candidate {
    fn move_on(&mut self, steps: u32) {
        self.rounds += f64::from(steps);
        self.end += self.late * f64::from(steps);
        self.moves += 1;
    }
}

/// What became of a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Feasible,
    Infeasible,
    Undecided,
    /// Its model would be too large, whatever the end.
    TooLarge,
}

struct Search<'a> {
    enclaves: &'a Enclaves<'a>,
    context: &'a Context<'a>,
    orbits: Option<Orbits>,
    found: Option<Schedule>,
    best: Option<Micros>,
    calls_left: u32,
    undecided: u32,
}

impl Search<'_> {
    fn is_optimal(&self) -> bool {
        self.best.is_some_and(|best| best.0 <= self.context.bound.0 * (1.0 + EQUAL))
    }

    fn is_over(&self) -> bool {
        self.is_optimal() || self.calls_left == 0 || self.context.deadline.has_passed()
    }

    /// Tries candidates in the order of [`Search::sooner`], and moves their ends on while they have no schedule.
    fn run(&mut self) -> Result<(), SynthError> {
        let mut open = self.candidates();
        while !self.is_over() {
            open.retain(|candidate| !self.is_late(candidate.end) && candidate.moves <= STEPS.len());
            let next = (0..open.len()).min_by(|&a, &b| self.sooner(&open[a], &open[b]).then(a.cmp(&b)));
            let Some(next) = next else { break };
            match self.solve(&open[next])? {
                Verdict::Feasible | Verdict::TooLarge => drop(open.remove(next)),
                Verdict::Infeasible | Verdict::Undecided if self.enclaves.shares_alpha() => {
                    move_on_like(&mut open, next)
                }
                Verdict::Infeasible | Verdict::Undecided => {
                    let steps = STEPS.get(open[next].moves).copied().unwrap_or(1);
                    open[next].move_on(steps);
                }
            }
        }
        Ok(())
    }

    /// Which candidate to try first. Where α is shared, exact times say more than the end does: few rounds of long
    /// periods, which hold many chunks, are most likely to have a schedule. Otherwise the earlier end is better.
    fn sooner(&self, a: &Candidate, b: &Candidate) -> Ordering {
        if !self.enclaves.shares_alpha() {
            return a.end.total_cmp(&b.end);
        }
        let rounds = a.rounds.total_cmp(&b.rounds);
        a.arrival.total_cmp(&b.arrival).then(rounds).then(b.late.total_cmp(&a.late))
    }

    /// Whether a schedule of periods up to `end` cannot be better than the best.
    fn is_late(&self, end: Micros) -> bool {
        let factor = if self.enclaves.shares_alpha() { SHRINKAGE } else { 1.0 - EQUAL };
        self.best.is_some_and(|best| end.0 >= best.0 * factor)
    }

    fn candidates(&self) -> Vec<Candidate> {
        let enclaves = self.enclaves;
        let mut candidates = Vec::new();
        for plan in enclaves.plans() {
            for fetching in enclaves.single_units() {
                if self.context.deadline.has_passed() {
                    return candidates;
                }
                let crossings = enclaves.time(&plan, fetching);
                let anchor = enclaves.first_fetching(&crossings).unwrap_or(Micros::ZERO);
                let arrival = crossings.iter().map(|timed| timed.end).fold(Micros::ZERO, Micros::max);
                let early = stretched(fetching, anchor, PATIENCE[0]);
                let lates = enclaves.shared_units().into_iter();
                for late in distinct(lates.map(|late| stretched(late, arrival - anchor, MAX_PERIODS / 2)).collect()) {
                    let end = enclaves.earliest_end(&crossings, late).max(self.context.bound);
                    let rounds = ((end - arrival) / late).round();
                    let crossings = crossings.clone();
                    candidates.push(Candidate { crossings, anchor, arrival, early, late, rounds, end, moves: 0 });
                }
            }
        }
        candidates
    }

    /// The symmetries that the crossings have, too.
    fn orbits_for(&self, crossings: &[Timed]) -> Option<&Orbits> {
        self.orbits.as_ref().filter(|orbits| orbits.agree(&tags(crossings)))
    }

    /// The model of a candidate, with as much patience as makes it small enough.
    fn model(&self, candidate: &Candidate) -> Option<(Calendar, Result<Spreading, Refusal>)> {
        let Candidate { crossings, anchor, early, late, end, .. } = candidate;
        let calendar = Calendar::new(*anchor, *early, *end, *late, MAX_PERIODS)?;
        let orbits = self.orbits_for(crossings);
        let build = |patience: usize| Spreading::new(self.enclaves, &calendar, crossings, patience, orbits, MAX_RIDES);
        let mut built = PATIENCE.iter().map(|&patience| build(patience));
        let small = built.find(|built| !matches!(built, Err(Refusal::TooLarge)));
        let spreading = small.unwrap_or(Err(Refusal::TooLarge));
        Some((calendar, spreading))
    }

    /// Builds and solves the model of a candidate, and keeps its schedule if it is the best so far.
    fn solve(&mut self, candidate: &Candidate) -> Result<Verdict, SynthError> {
        let (calendar, spreading) = match self.model(candidate) {
            Some((calendar, Ok(spreading))) => (calendar, spreading),
            Some((_, Err(Refusal::TooLate))) => return Ok(Verdict::Infeasible),
            Some((_, Err(Refusal::TooLarge))) | None => return Ok(Verdict::TooLarge),
        };
        let Candidate { crossings, end, late, .. } = candidate;
        let columns = spreading.model.columns();
        let (count, periods) = (crossings.len(), calendar.len());
        let activity = format!("{count} crossings, {periods} periods to {end:.3}, {columns} columns");
        (self.context.progress)(Progress { strategy: NAME, incumbent: self.best, bound: None, activity });
        self.calls_left -= 1;
        let outcome = solve(&spreading.model, &[], &self.controls(columns), &mut |_| {})?;
        let verdict = match outcome.ending {
            Ending::Infeasible | Ending::Unbounded => Verdict::Infeasible,
            Ending::Limit { incumbent: None, .. } => Verdict::Undecided,
            Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. } => {
                let rides = spreading.rides(&solution);
                let schedule = self.assemble(&calendar, crossings, &rides)?;
                if self.is_better(&schedule) {
                    self.best = Some(schedule.makespan());
                    self.found = Some(self.with_wished_connections(spreading, &calendar, crossings, &rides, schedule)?);
                }
                Verdict::Feasible
            }
        };
        self.undecided += u32::from(verdict == Verdict::Undecided);
        tracing::debug!(end = end.0, late = late.0, columns, ?verdict, best = ?self.best);
        Ok(verdict)
    }

    fn controls(&self, columns: usize) -> Controls<'_> {
        let options = self.context.options;
        let share = options.limits.solver_iterations / CALL_SHARE;
        Controls {
            iterations: share * FULL_COLUMNS / (columns as u64).max(FULL_COLUMNS),
            nodes: u64::MAX,
            relative_gap: 0.0,
            cutoff: None,
            seed: options.seed,
            deadline: self.context.deadline,
        }
    }

    /// The third stage on the best schedule so far.
    fn tighten(&mut self) -> Result<(), SynthError> {
        let Some(best) = self.found.as_ref().or(self.context.incumbent) else { return Ok(()) };
        if self.is_over() {
            return Ok(());
        }
        let tightened =
            tighten(self.enclaves.problem, best, &self.controls(FULL_COLUMNS as usize), self.calls_left, NAME)?;
        self.calls_left -= tightened.calls;
        self.undecided += tightened.undecided;
        tracing::debug!(
            calls = tightened.calls,
            undecided = tightened.undecided,
            gained = tightened.schedule.is_some()
        );
        if let Some(schedule) = tightened.schedule {
            self.best = Some(schedule.makespan());
            self.found = Some(schedule);
        }
        Ok(())
    }

    /// A schedule as fast as `schedule`, which `rides` make, with fewer or more connections where the sketch wishes so.
    fn with_wished_connections(
        &self,
        mut spreading: Spreading,
        calendar: &Calendar,
        crossings: &[Timed],
        rides: &[Ride],
        schedule: Schedule,
    ) -> Result<Schedule, SynthError> {
        if !spreading.wish_connections(self.enclaves.problem, self.orbits_for(crossings)) {
            return Ok(schedule);
        }
        let controls = self.controls(spreading.model.columns());
        let outcome = solve(&spreading.model, &spreading.start(rides), &controls, &mut |_| {})?;
        let (Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. }) = outcome.ending else {
            return Ok(schedule);
        };
        let wished = self.assemble(calendar, crossings, &spreading.rides(&solution))?;
        let as_fast = wished.makespan().0 <= schedule.makespan().0 * (1.0 + EQUAL);
        Ok(if as_fast { wished } else { schedule })
    }

    fn is_better(&self, schedule: &Schedule) -> bool {
        self.best.is_none_or(|best| schedule.makespan().0 < best.0 * (1.0 - EQUAL))
    }

    /// The messages of crossings and rides in the order of their starts, with exact times. Where a message costs α, the
    /// chunks that leave together on a link are one.
    fn assemble(&self, calendar: &Calendar, crossings: &[Timed], rides: &[Ride]) -> Result<Schedule, SynthError> {
        let Problem { topology, demand, .. } = self.enclaves.problem;
        let message = |link: LinkId, chunks: Vec<ChunkId>| Message {
            chunks: chunks.into_iter().collect(),
            link,
            kind: TransferKind::Copy,
        };
        let crossing = |timed: &Timed| (timed.start, message(timed.crossing.link, timed.crossing.chunks.clone()));
        let mut messages: Vec<(Micros, Message)> = crossings.iter().map(crossing).collect();
        for together in rides.chunk_by(|a, b| (a.first, a.link) == (b.first, b.link)) {
            let (start, link) = (calendar.start(together[0].first), together[0].link);
            let chunks: Vec<ChunkId> = together.iter().map(|ride| ride.chunk).collect();
            if topology.link(link).alpha > Micros::ZERO {
                messages.push((start, message(link, chunks)));
            } else {
                messages.extend(chunks.into_iter().map(|chunk| (start, message(link, vec![chunk]))));
            }
        }
        messages.sort_by(|a, b| a.0.total_cmp(&b.0));
        let messages: Vec<Message> = messages.into_iter().map(|(_, message)| message).collect();
        let transfers =
            replay(demand, topology, &messages).map_err(|error| SynthError::Order { strategy: NAME, error })?;
        Ok(Schedule::new(topology, demand.clone(), transfers, NAME))
    }
}

/// Moves an infeasible candidate on, and those of the same crossings that hold even less: as many rounds of shorter
/// periods.
fn move_on_like(open: &mut [Candidate], infeasible: usize) {
    let Candidate { arrival, late, rounds, .. } = open[infeasible];
    for candidate in open.iter_mut().filter(|other| other.arrival == arrival && other.late <= late) {
        if candidate.rounds <= rounds {
            candidate.move_on((rounds - candidate.rounds) as u32 + 1);
        }
    }
}

/// The times of every crossing chunk, bit by bit.
fn tags(crossings: &[Timed]) -> BTreeMap<(ChunkId, LinkId), (u64, u64)> {
    let of = |timed: &Timed| {
        let (link, times) = (timed.crossing.link, (timed.start.0.to_bits(), timed.end.0.to_bits()));
        timed.crossing.chunks.iter().map(move |&chunk| ((chunk, link), times)).collect::<Vec<_>>()
    };
    crossings.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constraints, Deadline, Options};
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::resolve;

    fn problem(spec: &str, collective: Collective, size: u64) -> Problem {
        let topology = Arc::new(resolve(spec).unwrap());
        let request = Request::new(collective, topology.rank_count(), size).with_chunks(1);
        Problem::new(topology, Arc::new(Demand::new(request).unwrap()))
    }

    /// The same, where of the links between machines of `ranks` each only 0 → 1 may be used.
    fn relayed(spec: &str, ranks: u32, collective: Collective, size: u64) -> Problem {
        let mut problem = problem(spec, collective, size);
        let (topology, line) = (&problem.topology, 1);
        let forbidden = |link: &topology::Link| {
            let relay = (link.from.0 % ranks, link.to.0 % ranks) == (0, 1);
            (topology.crosses_machines(link) && !relay).then_some(line)
        };
        let forbidden = topology.links().iter().map(forbidden).collect();
        problem.constraints = Arc::new(Constraints { forbidden, ..Constraints::none() });
        problem
    }

    fn try_alone(problem: &Problem, bound: f64) -> Attempt {
        let (options, deadline) = (Options::default(), Deadline::default());
        let context = Context {
            options: &options,
            deadline: &deadline,
            incumbent: None,
            bound: Micros(bound),
            progress: &|_| {},
        };
        attempt(problem, &context).unwrap()
    }

    /// Plans until `bound` is reached; the verifier judges.
    fn makespan(problem: &Problem, bound: f64) -> f64 {
        let schedule = try_alone(problem, bound).schedule.expect("a schedule");
        verify(schedule, &problem.topology).unwrap().schedule().makespan().0
    }

    #[test]
    fn the_relay_between_two_boxes_waits_for_nothing_and_ends_with_little() {
        // Three messages: eight chunks of 105 µs, three α of 2.6 µs, three hops of 23 µs after the last.
        let boxes = relayed("ndv2x2,costs=taccl-1mb", 8, Collective::AllGather, 16_000_000);
        assert!(makespan(&boxes, 916.8) <= 916.8 + 1e-6);
    }

    #[test]
    fn small_messages_cross_as_one() {
        let boxes = problem("ndv2x2,costs=taccl-1kb", Collective::AllGather, 16_000);
        assert!(makespan(&boxes, 5.02) <= 5.02 + 1e-6);
    }

    #[test]
    fn machines_of_one_kind_of_link_are_left_to_the_other_formulation() {
        let alone = try_alone(&problem("ring:5", Collective::AllGather, 1000), 0.0);
        assert!(alone.schedule.is_none() && alone.note.is_some_and(|note| note.contains("slower")));
    }
}
