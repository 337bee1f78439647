//! The three stages in turn: routes, candidates in the order of their ends, contiguity of the schedules found.
//!
//! The principal type is [`PipelineSearch`]. It counts solver calls, and records for the report which models a limit
//! left undecided.

use super::NAME;
use super::calendar::PeriodCalendar;
use super::candidate::{CrossingCandidate, PATIENCE};
use super::contiguity::tighten;
use super::crossings::{CrossingPlan, FastComponents, TimedCrossing};
use super::labels::Fineness;
use super::routed::RoutingResult;
use super::routing::RoutingModel;
use super::spreading::{FastDeparture, Freedom, Refusal, SpreadModel};
use crate::problem::tolerance::{EQUAL, beats, reaches};
use crate::problem::{Problem, Progress, SynthError};
use crate::sketch::obey;
use crate::solver::{Controls, Ending, solve};
use crate::strategies::Context;
use crate::symmetry::PairOrbits;
use schedule::{ChunkId, Message, Schedule, TransferKind, replay};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use topology::{LinkId, Micros};

/// The most 0/1 columns of a model of the second stage.
const MAX_RIDES: usize = 15_000;
/// The same where the solver is one of several strategies: on 5,000 columns and more it takes seconds and finds nothing.
const MAX_AMONG_OTHERS: usize = 3_000;
/// The most 0/1 columns for uses of slow links in a model of the first stage.
const MAX_USES: usize = 5_000;
/// The most chunks × links of a machine without slow links; a larger one is not ordered in one model.
const MAX_WHOLE: usize = 20_000;
/// A call gets one part in this many of the iterations in the limits: a model that has a schedule finds it soon.
const CALL_SHARE: u64 = 8;
/// A model of at most this many columns gets all iterations of a call, a larger one proportionally fewer.
const FULL_COLUMNS: u64 = 500;
/// By how many periods the end of a plan is moved on, one entry after the other, as long as there is no schedule.
const STEPS: [u32; 6] = [1, 1, 2, 2, 4, 4];
/// Where α is shared, exact times are shorter than periods. So ends up to this factor above the best may still beat it.
const SHRINKAGE: f64 = 1.08;
/// Schedules up to this factor above the best go through the third stage.
const PROMISING: f64 = 1.1;
/// The most solver calls of the third stage for one such schedule.
const CALLS_TO_TIGHTEN: u32 = 4;

/// The result of a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CandidateVerdict {
    Feasible,
    Infeasible,
    Undecided,
    /// Its model would be too large for any end.
    TooLarge,
}

pub(super) struct PipelineSearch<'a> {
    components: &'a FastComponents<'a>,
    context: &'a Context<'a>,
    orbits: Option<PairOrbits>,
    pub(super) found: Option<Schedule>,
    best: Option<Micros>,
    calls_left: u32,
    undecided: u32,
    findings: Vec<String>,
}

impl<'a> PipelineSearch<'a> {
    pub(super) fn new(components: &'a FastComponents<'a>, context: &'a Context<'a>) -> Self {
        Self {
            components,
            context,
            orbits: PairOrbits::new(components.problem, context.symmetries, context.deadline),
            found: None,
            best: context.incumbent.map(Schedule::makespan),
            calls_left: context.options.limits.solver_calls,
            undecided: 0,
            findings: Vec::new(),
        }
    }

    pub(super) fn is_good_enough(&self) -> bool {
        self.best.is_some_and(|best| self.context.is_enough(best))
    }

    fn is_over(&self) -> bool {
        self.is_good_enough() || self.calls_left == 0 || self.context.deadline.has_passed()
    }

    /// A note for the user: what was refuted or left open, and by which limit.
    pub(super) fn note(&self) -> Option<String> {
        let open = (self.undecided > 0).then(|| format!("{} models left undecided at their limits", self.undecided));
        let calls = (self.calls_left == 0 && !self.is_good_enough()).then(|| "no solver calls left".to_owned());
        let all: Vec<String> = self.findings.iter().cloned().chain(open).chain(calls).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Tries candidates in the order of [`PipelineSearch::sooner`], and moves their ends on as long as they have no
    /// schedule.
    pub(super) fn run(&mut self) -> Result<(), SynthError> {
        if self.is_over() {
            return Ok(());
        }
        let mut plans = self.route()?;
        for plan in self.components.plans() {
            if !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        let mut open: Vec<CrossingCandidate> = plans.iter().flat_map(|plan| self.candidates(plan)).collect();
        while !self.is_over() {
            open.retain(|candidate| !self.is_late(candidate.end) && candidate.moves <= STEPS.len());
            let next = (0..open.len()).min_by(|&a, &b| self.sooner(&open[a], &open[b]).then(a.cmp(&b)));
            let Some(next) = next else { break };
            match self.solve(&open[next])? {
                CandidateVerdict::Feasible | CandidateVerdict::TooLarge => drop(open.remove(next)),
                CandidateVerdict::Infeasible | CandidateVerdict::Undecided if self.components.shares_alpha() => {
                    move_on_like(&mut open, next)
                }
                CandidateVerdict::Infeasible | CandidateVerdict::Undecided => {
                    let steps = STEPS.get(open[next].moves).copied().unwrap_or(1);
                    open[next].move_on(steps);
                }
            }
        }
        let best = self.found.as_ref().or(self.context.incumbent).cloned();
        match best {
            Some(best) if !self.is_over() => self.tighten(&best, self.calls_left),
            _ => Ok(()),
        }
    }

    fn candidates(&self, plan: &CrossingPlan) -> Vec<CrossingCandidate> {
        if self.context.deadline.has_passed() {
            return Vec::new();
        }
        CrossingCandidate::all(self.components, plan, self.context.bound)
    }

    /// The plan for a machine without slow links: one model in the second stage decides everything, if it is small
    /// enough.
    fn whole(&mut self) -> Vec<CrossingPlan> {
        let Problem { topology, demand, .. } = self.components.problem;
        if demand.chunks().len().saturating_mul(topology.links().len()) <= MAX_WHOLE {
            return vec![CrossingPlan::new()];
        }
        self.findings.push("no links are much slower than the others, and there are too many for one model".to_owned());
        Vec::new()
    }

    /// The first stage: the crossings of the routing model, and other divisions of them into messages. Symmetries are
    /// merged first; the whole model is solved only if that gives no routes.
    fn route(&mut self) -> Result<Vec<CrossingPlan>, SynthError> {
        if self.components.slow().is_empty() {
            return Ok(self.whole());
        }
        let horizon = self.best.unwrap_or(self.context.bound * 2.0);
        let first_turns = self.components.first_turns();
        let mut plans = Vec::new();
        if horizon <= Micros::ZERO {
            return Ok(plans);
        }
        for turn in self.components.turns(horizon) {
            for orbits in [self.orbits.as_ref().map(Some), Some(None)].into_iter().flatten() {
                if self.is_over() {
                    return Ok(plans);
                }
                let bound = self.context.bound;
                let first_turns = &first_turns;
                let fineness = |detours: bool| Fineness { horizon, bound, first_turns, turn, detours };
                let model = |detours: bool| RoutingModel::new(self.components, fineness(detours), orbits, MAX_USES);
                let Some(routing) = model(true).or_else(|| model(false)) else {
                    self.findings.push("routing needs too large a model".to_owned());
                    continue;
                };
                let activity = format!("routing, {} columns", routing.model.columns());
                (self.context.progress)(Progress { strategy: NAME, incumbent: self.best, bound: None, activity });
                let controls = self.controls(routing.model.columns(), CALL_SHARE / 4);
                let found = routing.solve(self.context.incumbent, &controls)?;
                self.calls_left -= 1;
                self.undecided += u32::from(found.stopped);
                let RoutingResult { routes, finding, .. } = found;
                self.findings.push(finding);
                if let Some(routes) = routes {
                    plans.extend(self.components.plans_of(&routes));
                    break;
                }
            }
        }
        Ok(plans)
    }

    /// Which candidate to try first. Where α is shared, the end says little about exact times: few rounds of long
    /// periods, which hold many chunks, are most likely to have a schedule. Otherwise the earlier end is better.
    fn sooner(&self, a: &CrossingCandidate, b: &CrossingCandidate) -> Ordering {
        if !self.components.shares_alpha() {
            return a.end.total_cmp(&b.end);
        }
        let rounds = a.rounds.total_cmp(&b.rounds);
        a.arrival.total_cmp(&b.arrival).then(rounds).then(b.late.total_cmp(&a.late))
    }

    /// Whether a schedule of periods up to `end` cannot beat the best.
    fn is_late(&self, end: Micros) -> bool {
        let factor = if self.components.shares_alpha() { SHRINKAGE } else { 1.0 - EQUAL };
        self.best.is_some_and(|best| end.0 >= best.0 * factor)
    }

    /// The symmetries, if the crossings have them too.
    fn orbits_for(&self, candidate: &CrossingCandidate) -> Option<&PairOrbits> {
        self.orbits.as_ref().filter(|orbits| orbits.agree(&tags(&candidate.crossings)))
    }

    /// The model of a candidate, with the largest patience that makes it small enough.
    fn model(&self, candidate: &CrossingCandidate) -> Option<(PeriodCalendar, Result<SpreadModel, Refusal>)> {
        let calendar = candidate.calendar()?;
        let orbits = self.orbits_for(candidate);
        let build = |patience: usize| {
            let freedom = Freedom { patience, columns: self.context.most(MAX_RIDES, MAX_AMONG_OTHERS) };
            SpreadModel::new(self.components, &calendar, &candidate.crossings, freedom, orbits)
        };
        let mut built = PATIENCE.iter().map(|&patience| build(patience));
        let small = built.find(|built| !matches!(built, Err(Refusal::TooLarge)));
        let spreading = small.unwrap_or(Err(Refusal::TooLarge));
        Some((calendar, spreading))
    }

    /// Builds and solves the model of a candidate, and keeps its schedule if it is the best so far.
    fn solve(&mut self, candidate: &CrossingCandidate) -> Result<CandidateVerdict, SynthError> {
        let (calendar, spreading) = match self.model(candidate) {
            Some((calendar, Ok(spreading))) => (calendar, spreading),
            Some((_, Err(Refusal::TooLate))) => return Ok(CandidateVerdict::Infeasible),
            Some((_, Err(Refusal::TooLarge))) | None => return Ok(CandidateVerdict::TooLarge),
        };
        let CrossingCandidate { crossings, end, late, .. } = candidate;
        let columns = spreading.model.columns();
        let (count, periods) = (crossings.len(), calendar.len());
        let activity = format!("{count} crossings, {periods} periods to {end:.3}, {columns} columns");
        (self.context.progress)(Progress { strategy: NAME, incumbent: self.best, bound: None, activity });
        self.calls_left -= 1;
        let outcome = solve(&spreading.model, &[], &self.controls(columns, CALL_SHARE), &mut |_| {})?;
        let verdict = match outcome.ending {
            Ending::Infeasible | Ending::Unbounded => CandidateVerdict::Infeasible,
            Ending::Limit { incumbent: None, .. } => CandidateVerdict::Undecided,
            Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. } => {
                let departures = spreading.departures(&solution);
                let schedule = self.assemble(&calendar, crossings, &departures)?;
                let schedule = match self.is_better(&schedule) {
                    true => self.with_wished_connections(spreading, &calendar, candidate, &departures, schedule)?,
                    false => schedule,
                };
                self.consider(schedule)?;
                CandidateVerdict::Feasible
            }
        };
        self.undecided += u32::from(verdict == CandidateVerdict::Undecided);
        tracing::debug!(end = end.0, late = late.0, columns, spent = outcome.iterations, ?verdict, best = ?self.best);
        Ok(verdict)
    }

    /// Keeps a schedule if it is the best so far; a schedule near the best goes through the third stage.
    fn consider(&mut self, schedule: Schedule) -> Result<(), SynthError> {
        let makespan = schedule.makespan();
        tracing::debug!(considered = makespan.0, best = ?self.best);
        if self.is_better(&schedule) {
            self.best = Some(makespan);
            self.found = Some(schedule.clone());
        }
        let promising = self.best.is_none_or(|best| makespan.0 <= best.0 * PROMISING);
        match promising && !self.is_over() {
            true => self.tighten(&schedule, CALLS_TO_TIGHTEN.min(self.calls_left)),
            false => Ok(()),
        }
    }

    fn tighten(&mut self, schedule: &Schedule, calls: u32) -> Result<(), SynthError> {
        let controls = self.controls(FULL_COLUMNS as usize, CALL_SHARE);
        let tightened = tighten(self.components.problem, schedule, &controls, calls, NAME)?;
        self.calls_left -= tightened.calls;
        self.undecided += tightened.undecided;
        let gained = tightened.schedule.as_ref().map(Schedule::makespan);
        tracing::debug!(
            from = schedule.makespan().0,
            calls = tightened.calls,
            undecided = tightened.undecided,
            ?gained
        );
        if let Some(schedule) = tightened.schedule.filter(|schedule| self.is_better(schedule)) {
            self.best = Some(schedule.makespan());
            self.found = Some(schedule);
        }
        Ok(())
    }

    fn controls(&self, columns: usize, share: u64) -> Controls<'_> {
        let options = self.context.options;
        let share = options.limits.solver_iterations / share;
        Controls {
            seed: options.seed,
            ..Controls::within(share * FULL_COLUMNS / (columns as u64).max(FULL_COLUMNS), self.context.deadline)
        }
    }

    /// A schedule as fast as `schedule`, which is made of `departures`, with fewer or more connections if the sketch wishes
    /// so.
    fn with_wished_connections(
        &self,
        mut spreading: SpreadModel,
        calendar: &PeriodCalendar,
        candidate: &CrossingCandidate,
        departures: &[FastDeparture],
        schedule: Schedule,
    ) -> Result<Schedule, SynthError> {
        if !spreading.wish_connections(self.components.problem, self.orbits_for(candidate)) {
            return Ok(schedule);
        }
        let controls = self.controls(spreading.model.columns(), CALL_SHARE);
        let outcome = solve(&spreading.model, &spreading.start(departures), &controls, &mut |_| {})?;
        let (Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. }) = outcome.ending else {
            return Ok(schedule);
        };
        let wished = self.assemble(calendar, &candidate.crossings, &spreading.departures(&solution))?;
        let as_fast = reaches(wished.makespan(), schedule.makespan());
        Ok(if as_fast { wished } else { schedule })
    }

    /// Whether a schedule is faster than the best, and obeys the sketch.
    fn is_better(&self, schedule: &Schedule) -> bool {
        let Problem { topology, constraints, .. } = self.components.problem;
        self.best.is_none_or(|best| beats(schedule.makespan(), best))
            && obey(schedule, topology, constraints).is_empty()
    }

    /// The messages of crossings and fast departures in the order of their starts, with exact times. Where a message
    /// costs α, chunks that leave together on a link are one message.
    fn assemble(
        &self,
        calendar: &PeriodCalendar,
        crossings: &[TimedCrossing],
        departures: &[FastDeparture],
    ) -> Result<Schedule, SynthError> {
        let Problem { topology, demand, .. } = self.components.problem;
        let message = |link: LinkId, chunks: Vec<ChunkId>| Message {
            chunks: chunks.into_iter().collect(),
            link,
            kind: TransferKind::Copy,
        };
        let crossing =
            |timed: &TimedCrossing| (timed.start, message(timed.crossing.link, timed.crossing.chunks.clone()));
        let mut messages: Vec<(Micros, Message)> = crossings.iter().map(crossing).collect();
        for together in departures.chunk_by(|a, b| (a.first, a.link) == (b.first, b.link)) {
            let (start, link) = (calendar.start(together[0].first), together[0].link);
            let chunks: Vec<ChunkId> = together.iter().map(|departure| departure.chunk).collect();
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

/// Moves an infeasible candidate on. Candidates with the same last arrival that hold even less are moved on too: at
/// most as many rounds, of no longer periods.
fn move_on_like(open: &mut [CrossingCandidate], infeasible: usize) {
    let failed = open[infeasible].clone();
    for candidate in open.iter_mut().filter(|other| other.holds_no_more_than(&failed)) {
        candidate.move_on((failed.rounds - candidate.rounds) as u32 + 1);
    }
}

/// The times of every crossing chunk, as bits.
fn tags(crossings: &[TimedCrossing]) -> BTreeMap<(ChunkId, LinkId), (u64, u64)> {
    let of = |timed: &TimedCrossing| {
        let (link, times) = (timed.crossing.link, (timed.start.0.to_bits(), timed.end.0.to_bits()));
        timed.crossing.chunks.iter().map(move |&chunk| ((chunk, link), times)).collect::<Vec<_>>()
    };
    crossings.iter().flat_map(of).collect()
}
