//! The second formulation: routes over slow links first, then what happens around them, then exact timing.
//!
//! The principal function is [`attempt`]. It keeps the order of TACCL's three stages (routing, ordering, contiguity [1])
//! and changes what they decide, because TACCL's routing model has no usable relaxation: on two machines of eight ranks
//! HiGHS finds nothing in it.
//!
//! 1. *Routing*: which link between islands of fast links carries which chunks in which messages ([`crossings`]); few
//!    choices, each with an earliest end. Relays and shared NICs are decided here.
//! 2. *Ordering*: for a crossing plan and an end, a 0/1 model without a big M says which chunk leaves on which fast
//!    link in which period, or that it cannot be done by then ([`spreading`]); plans are tried in the order of their
//!    ends, the end moves on while there is none.
//! 3. *Timing*: `schedule::replay` gives the messages their times.
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, §4.

mod calendar;
mod crossings;
mod spreading;

use crate::milp::orbits::Orbits;
use crate::milp::solver::{Controls, Ending, solve};
use crate::{Attempt, Context, Problem, Progress, StopReason, SynthError};
use calendar::Calendar;
use crossings::{Islands, Plan, Timed};
use schedule::{ChunkId, Message, Schedule, TransferKind, replay};
use spreading::{Ride, Spreading};
use std::collections::BTreeMap;
use topology::{LinkId, Micros};

/// The name in reports and schedules.
pub(super) const NAME: &str = "milp-routing";

/// The most 0/1 columns of a model.
const MAX_RIDES: usize = 15_000;
/// The most periods of a calendar.
const MAX_PERIODS: usize = 64;
/// How many periods a chunk may wait at a rank for a free link.
const PATIENCE: usize = 12;
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
    let Some(islands) = Islands::new(problem) else {
        let note = Some("no links are much slower than the others".to_owned());
        return Ok(Attempt { name: NAME.to_owned(), schedule: None, stop: StopReason::Exhausted, note });
    };
    let mut search = Search {
        islands: &islands,
        context,
        orbits: Orbits::new(problem),
        found: None,
        best: context.incumbent.map(Schedule::makespan),
        calls_left: context.options.limits.solver_calls,
        undecided: 0,
    };
    search.run()?;
    let stop = match () {
        () if search.is_optimal() => StopReason::Optimal,
        () if context.deadline.has_passed() => StopReason::TimeLimit,
        () => StopReason::Exhausted,
    };
    let note = (search.undecided > 0).then(|| format!("{} models left undecided at their limits", search.undecided));
    Ok(Attempt { name: NAME.to_owned(), schedule: search.found, stop, note })
}

/// A crossing plan, periods, and the end they are counted back from.
struct Candidate<'a> {
    plan: &'a Plan,
    early: Micros,
    late: Micros,
    crossings: Vec<Timed>,
    end: Micros,
    step: usize,
}

struct Search<'a> {
    islands: &'a Islands<'a>,
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

    /// Tries candidates, those with the earliest end first.
    fn run(&mut self) -> Result<(), SynthError> {
        let plans = self.islands.plans();
        let mut open = self.candidates(&plans);
        while !self.is_over() {
            let earliest = open.iter().enumerate().min_by(|(_, a), (_, b)| a.end.total_cmp(&b.end));
            let Some(index) = earliest.map(|(index, _)| index) else { break };
            if self.is_late(open[index].end) {
                break;
            }
            let settled = self.solve(&open[index])?;
            let candidate = &mut open[index];
            match STEPS.get(candidate.step) {
                Some(&step) if !settled => {
                    candidate.end += candidate.late * f64::from(step);
                    candidate.step += 1;
                }
                _ => drop(open.remove(index)),
            }
        }
        Ok(())
    }

    /// Whether a schedule of periods up to `end` cannot be better than the best.
    fn is_late(&self, end: Micros) -> bool {
        let shrinks = self.islands.shares_alpha();
        let factor = if shrinks { SHRINKAGE } else { 1.0 - EQUAL };
        self.best.is_some_and(|best| end.0 >= best.0 * factor)
    }

    fn candidates<'b>(&self, plans: &'b [Plan]) -> Vec<Candidate<'b>> {
        let mut candidates = Vec::new();
        for plan in plans {
            for early in self.islands.single_units() {
                let crossings = self.islands.time(plan, early);
                for late in
                    self.islands.units(crossings.iter().map(|it| it.end).fold(Micros::ZERO, Micros::max), MAX_PERIODS)
                {
                    let end = self.islands.earliest_end(&crossings, late);
                    candidates.push(Candidate { plan, early, late, crossings: crossings.clone(), end, step: 0 });
                }
            }
        }
        candidates
    }

    /// Whether the candidate needs no later end: it has a schedule, or is beyond us.
    fn solve(&mut self, candidate: &Candidate<'_>) -> Result<bool, SynthError> {
        let Candidate { early, late, crossings, end, .. } = candidate;
        let anchor = self.islands.first_fetching(crossings).unwrap_or(Micros::ZERO);
        let Some(calendar) = Calendar::new(anchor, *early, *end, *late, MAX_PERIODS) else { return Ok(true) };
        let orbits = self.orbits.as_ref().filter(|orbits| orbits.agree(&tags(crossings)));
        let spreading = Spreading::new(self.islands, &calendar, crossings, PATIENCE, orbits, MAX_RIDES);
        let Some(spreading) = spreading else { return Ok(false) };
        self.calls_left -= 1;
        let columns = (spreading.model.columns() as u64).max(FULL_COLUMNS);
        let activity =
            format!("{} crossings, {} periods to {end:.3}, {columns} columns", crossings.len(), calendar.len());
        (self.context.progress)(Progress { strategy: NAME, incumbent: self.best, bound: None, activity });
        let options = self.context.options;
        let controls = Controls {
            iterations: options.limits.solver_iterations.saturating_mul(FULL_COLUMNS) / columns,
            nodes: u64::MAX,
            relative_gap: 0.0,
            cutoff: None,
            seed: options.seed,
            deadline: self.context.deadline,
        };
        let started = std::time::Instant::now();
        let outcome = solve(&spreading.model, &[], &controls, &mut |_| {})?;
        eprint!(
            "  {:?} {early} {late} {end} ({} periods): {} columns {} rows, {:.1}s, {} iter: ",
            candidate.plan.iter().map(|c| (c.link.0, c.chunks.len())).take(8).collect::<Vec<_>>(),
            calendar.len(),
            spreading.model.columns(),
            spreading.model.rows(),
            started.elapsed().as_secs_f64(),
            outcome.iterations
        );
        let solution = match outcome.ending {
            Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. } => solution,
            Ending::Infeasible | Ending::Unbounded => {
                eprintln!("infeasible");
                return Ok(false);
            }
            Ending::Limit { incumbent: None, .. } => {
                eprintln!("undecided");
                self.undecided += 1;
                return Ok(false);
            }
        };
        let schedule = self.assemble(&calendar, crossings, &spreading.rides(&solution))?;
        eprintln!("{}", schedule.makespan());
        if self.best.is_none_or(|best| schedule.makespan().0 < best.0 * (1.0 - EQUAL)) {
            self.best = Some(schedule.makespan());
            self.found = Some(schedule);
        }
        Ok(true)
    }

    /// The messages of crossings and rides in the order of their starts, with exact times. Where a message costs α, the
    /// chunks that leave together on a link are one.
    fn assemble(&self, calendar: &Calendar, crossings: &[Timed], rides: &[Ride]) -> Result<Schedule, SynthError> {
        let Problem { topology, demand, .. } = self.islands.problem;
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

/// The times of every crossing chunk, bit by bit.
fn tags(crossings: &[Timed]) -> BTreeMap<(ChunkId, LinkId), (u64, u64)> {
    let of = |timed: &Timed| {
        let (link, times) = (timed.crossing.link, (timed.start.0.to_bits(), timed.end.0.to_bits()));
        timed.crossing.chunks.iter().map(move |&chunk| ((chunk, link), times)).collect::<Vec<_>>()
    };
    crossings.iter().flat_map(of).collect()
}
