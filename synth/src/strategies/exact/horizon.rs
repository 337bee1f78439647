//! Horizons: times before which no schedule can end, decided one period after the other.
//!
//! The principal functions are [`decide`], which asks whether a schedule can end before a given time, and [`horizon`],
//! which derives a bound from the answers. Every schedule is a solution of the model of [`Periods`], so its
//! infeasibility holds for every schedule. Where even the linear relaxation has no solution, the certificate contains
//! multipliers that prove it.

use super::periods::{MessageCapacity, PeriodWindow, Periods, SLACK, cuts};
use crate::bounds::{Bound, Bounds, Certificate, LinkPeriods, ModelRow, Multiplier, Proof, ResourcePeriods, Scope};
use crate::epochs::time_expanded::{CopyConstraint, TimeExpandedFlow};
use crate::epochs::timing::Departure;
use crate::problem::reversed::reversed_spreading;
use crate::problem::{Deadline, Problem, SynthError};
use crate::solver::{Column, Controls, Ending, Model, ray, solve};
use topology::{LinkId, Micros, ResourceId};

/// The answer to one question.
#[derive(Debug)]
pub(super) enum EndVerdict {
    /// The model has a solution. Rounding to periods may have made it possible, so a schedule may still end later.
    Possible(Vec<Departure>),
    /// No schedule ends before the given time.
    Refuted(Proof),
    /// A limit was reached before the answer, or the model was too large.
    Undecided,
}

/// The model of one end time.
struct HorizonModel {
    model: Model,
    departures: Vec<(Departure, Column)>,
    rows: Vec<ModelRow>,
}

/// Whether some schedule may end before `end`. Models of more than `most` departures are not built.
///
/// # Errors
/// Failures of the solver.
pub(super) fn decide(
    periods: &Periods<'_>,
    reversed: bool,
    end: Micros,
    most: usize,
    controls: &Controls<'_>,
) -> Result<EndVerdict, SynthError> {
    let Some(routes) = periods.routes(end) else { return Ok(EndVerdict::Refuted(Proof::Distance)) };
    if routes.departures() > most {
        return Ok(EndVerdict::Undecided);
    }
    let expansion = HorizonModel::new(
        periods,
        reversed,
        TimeExpandedFlow::new(periods.problem, periods.horizon(end), &routes, None),
    );
    if let Some(proof) = expansion.local_proof(periods.problem, controls)? {
        return Ok(EndVerdict::Refuted(proof));
    }
    let outcome = solve(&expansion.model, &[], controls, &mut |_| {})?;
    let verdict = match outcome.ending {
        Ending::Limit { incumbent: None, .. } => EndVerdict::Undecided,
        Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. } => {
            let taken = expansion.departures.iter().filter(|(_, column)| solution.is_set(*column));
            EndVerdict::Possible(taken.map(|(departure, _)| *departure).collect())
        }
        Ending::Infeasible | Ending::Unbounded => {
            let linear = expansion.linear_proof(controls)?;
            EndVerdict::Refuted(linear.unwrap_or(Proof::Search { nodes: outcome.nodes }))
        }
    };
    tracing::debug!(end = end.0, period = periods.period.0, departures = expansion.departures.len(), ?verdict);
    Ok(verdict)
}

impl HorizonModel {
    fn new(periods: &Periods<'_>, reversed: bool, copies: TimeExpandedFlow) -> Self {
        let TimeExpandedFlow { model, departures, on_link, rows, .. } = copies;
        let rows = rows.into_iter().map(row_of).collect();
        let mut expansion = Self { model, departures, rows };
        let topology = &periods.problem.topology;
        let of = |links: &[LinkId]| {
            let together = links.iter().flat_map(|link| &on_link[link.index()]);
            let mut departures: Vec<(u32, Column)> = together.map(|&(period, _, column)| (period, column)).collect();
            departures.sort();
            departures
        };
        for id in topology.link_ids() {
            let named =
                |first, last, at_most| ModelRow::Window { link: Some(id), resource: None, first, last, at_most };
            expansion.respect(&of(&[id]), &periods.link_windows(id), named);
        }
        for id in (0..topology.resources().len()).map(ResourceId::from_index) {
            let (links, windows) = periods.resource_windows(id, reversed);
            let named =
                |first, last, at_most| ModelRow::Window { link: None, resource: Some(id), first, last, at_most };
            expansion.respect(&of(&links), &windows, named);
        }
        expansion
    }

    /// Adds the rows of the windows: Σ of x over the departures in a window ≤ its limit. `departures` are in order of
    /// time.
    fn respect(
        &mut self,
        departures: &[(u32, Column)],
        windows: &[PeriodWindow],
        named: impl Fn(u32, u32, u32) -> ModelRow,
    ) {
        for window in windows {
            let mut covered = None;
            for first in departures.chunk_by(|a, b| a.0 == b.0).map(|group| group[0].0) {
                let end = first + window.periods - 1;
                let from = departures.partition_point(|&(period, _)| period < first);
                let to = departures.partition_point(|&(period, _)| period <= end);
                // A window whose departures are all in the window before adds no information.
                if covered.replace(to) == Some(to) || to - from <= window.departures as usize {
                    continue;
                }
                let terms = departures[from..to].iter().map(|&(_, column)| (column, 1.0));
                self.model.at_most(terms, f64::from(window.departures));
                self.rows.push(named(first, end, window.departures));
            }
        }
    }

    /// A proof from the rows about one rank, if there is one. It is as valid as one from the whole model, and found
    /// much sooner.
    fn local_proof(&self, problem: &Problem, controls: &Controls<'_>) -> Result<Option<Proof>, SynthError> {
        let topology = &problem.topology;
        for rank in topology.ranks() {
            let concerns = |row: &ModelRow| match *row {
                ModelRow::Arrive { rank: at, .. } | ModelRow::Once { rank: at, .. } => at == rank,
                ModelRow::Hold { .. } => false,
                ModelRow::Window { link: Some(link), .. } => topology.link(link).to == rank,
                ModelRow::Window { link: None, .. } => true,
            };
            let rows: Vec<usize> = (0..self.rows.len()).filter(|&row| concerns(&self.rows[row])).collect();
            let part = self.model.part(&rows);
            let Some(ray) = ray(&part, controls)? else { continue };
            if let Some(multipliers) = part.refutation(&ray) {
                let named = multipliers.into_iter();
                let multipliers = named.map(|(row, times)| Multiplier { row: self.rows[rows[row]].clone(), times });
                return Ok(Some(Proof::Linear { multipliers: multipliers.collect() }));
            }
        }
        Ok(None)
    }

    /// A proof that the model has not even a fractional solution, if that is so.
    fn linear_proof(&self, controls: &Controls<'_>) -> Result<Option<Proof>, SynthError> {
        let Some(ray) = ray(&self.model, controls)? else { return Ok(None) };
        let proof = self.model.refutation(&ray).map(|multipliers| {
            let named = multipliers.into_iter().map(|(row, times)| Multiplier { row: self.rows[row].clone(), times });
            Proof::Linear { multipliers: named.collect() }
        });
        Ok(proof)
    }
}

fn row_of(row: CopyConstraint) -> ModelRow {
    match row {
        CopyConstraint::Arrive(chunk, rank, period) => ModelRow::Arrive { chunk, rank, period },
        CopyConstraint::Once(chunk, rank) => ModelRow::Once { chunk, rank },
        CopyConstraint::Hold(chunk, link, period) => ModelRow::Hold { chunk, link, period },
    }
}

/// The bound from a refuted end: the end, lowered by the rounding slack.
pub(super) fn bound(periods: &Periods<'_>, reversed: bool, end: Micros, proof: Proof) -> Bound {
    let topology = &periods.problem.topology;
    let listed = |windows: Vec<PeriodWindow>| windows.iter().map(|it| [it.periods, it.departures]).collect();
    let link = |id: LinkId| LinkPeriods {
        latency: periods.latency(topology.link(id)),
        windows: listed(periods.link_windows(id)),
    };
    let resource = |id: ResourceId| {
        let (links, windows) = periods.resource_windows(id, reversed);
        ResourcePeriods { links, windows: listed(windows) }
    };
    let resources = (0..topology.resources().len()).map(ResourceId::from_index);
    Bound {
        name: "horizon",
        scope: scope(periods),
        value: end * (1.0 - 3.0 * SLACK),
        certificate: Certificate::Horizon {
            period: periods.period,
            end,
            periods: periods.horizon(end) + 1,
            merged: periods.messages == MessageCapacity::Merged,
            links: topology.link_ids().map(link).collect(),
            resources: resources.map(resource).collect(),
            proof,
        },
    }
}

/// The schedules for which a bound holds: without merged messages, only those with one chunk per message.
fn scope(periods: &Periods<'_>) -> Scope {
    match periods.messages {
        MessageCapacity::Merged => Scope::ThisChunking,
        MessageCapacity::Single => Scope::OneChunkPerMessage,
    }
}

/// The most model changes that are considered between a known bound and one period below it.
const MOST_KNOWN: usize = 256;

/// The effort that [`horizon`] may spend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HorizonEffort {
    /// The most departures of one model.
    pub departures: usize,
    /// The most departures of all models for one kind of messages together.
    pub in_all: usize,
    /// The most simplex iterations of one model.
    pub iterations: u64,
    /// The most models of one cut of time, in each direction from the known bound.
    pub models: usize,
}

impl Default for HorizonEffort {
    /// An effort of about a second.
    fn default() -> Self {
        Self { departures: 12_000, in_all: 40_000, iterations: 5_000, models: 6 }
    }
}

/// Horizons for `problem`, one for merged messages and one for messages of one chunk; `known` are its other bounds.
/// Empty where the problem is too large, chunks differ in size, or several ranks want one sum.
///
/// # Errors
/// Failures of the solver.
pub fn horizon(
    problem: &Problem,
    known: &Bounds,
    effort: HorizonEffort,
    deadline: &Deadline,
) -> Result<Vec<Bound>, SynthError> {
    let reversed = reversed_spreading(problem);
    let spreading = reversed.as_ref().unwrap_or(problem);
    let combines = spreading.demand.chunks().iter().any(|chunk| chunk.combine);
    if combines || super::routes(spreading) > effort.departures {
        return Ok(Vec::new());
    }
    let controls = Controls::within(effort.iterations, deadline);
    let mut bounds = Vec::new();
    for messages in [MessageCapacity::Merged, MessageCapacity::Single] {
        let start = match messages {
            MessageCapacity::Merged => known.best().value,
            MessageCapacity::Single => known.list.iter().map(|bound| bound.value).fold(Micros::ZERO, Micros::max),
        };
        let mut best: Option<Bound> = None;
        let mut left = effort.in_all;
        for periods in cuts(spreading, messages, start) {
            let from = best.as_ref().map_or(start, |best| best.value);
            let found = climb(&periods, reversed.is_some(), from, (effort, &mut left), &controls)?;
            best =
                best.into_iter().chain(found).reduce(|best, found| if found.value > best.value { found } else { best });
        }
        bounds.extend(best);
    }
    Ok(bounds)
}

/// The largest end that is refuted without a gap below it, starting from the last end that is not above `from`.
fn climb(
    periods: &Periods<'_>,
    reversed: bool,
    from: Micros,
    (effort, left): (HorizonEffort, &mut usize),
    controls: &Controls<'_>,
) -> Result<Option<Bound>, SynthError> {
    let mut ask = |end: Micros| {
        let size = periods.routes(end).map_or(0, |routes| routes.departures());
        if size > *left || controls.deadline.has_passed() {
            return Ok(EndVerdict::Undecided);
        }
        *left -= size;
        decide(periods, reversed, end, effort.departures, controls)
    };
    // This model may allow an end that other bounds refute. Then go down to an end that it refutes; otherwise go up.
    let below = (from - periods.period).max(Micros::ZERO);
    let mut known = periods.ends(below, from, MOST_KNOWN);
    let first = known.len();
    while let Some(end) = known.pop() {
        match ask(end)? {
            EndVerdict::Refuted(proof) if known.len() + 1 == first => {
                return upward(periods, reversed, from, effort, bound(periods, reversed, end, proof), ask).map(Some);
            }
            EndVerdict::Refuted(proof) => return Ok(Some(bound(periods, reversed, end, proof))),
            EndVerdict::Possible(_) if first - known.len() < effort.models => {}
            EndVerdict::Possible(_) | EndVerdict::Undecided => return Ok(None),
        }
    }
    Ok(None)
}

/// The last of the consecutive ends above `from` that are refuted; `best` if there is none.
fn upward(
    periods: &Periods<'_>,
    reversed: bool,
    from: Micros,
    effort: HorizonEffort,
    mut best: Bound,
    mut ask: impl FnMut(Micros) -> Result<EndVerdict, SynthError>,
) -> Result<Bound, SynthError> {
    for end in periods.ends(from, from * 2.0 + periods.period * 2.0, effort.models) {
        let EndVerdict::Refuted(proof) = ask(end)? else { break };
        best = bound(periods, reversed, end, proof);
    }
    Ok(best)
}
