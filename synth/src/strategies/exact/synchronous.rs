//! SCCL's k-synchronous model: steps that all ranks take together, each of some rounds.
//!
//! The principal function is [`decide`]. In a step of r rounds, a link that is b times as fast as the slowest carries
//! at most b·r chunks, and a rank sends only what it had when the step began [1]. The number of rounds of each step is
//! part of the question. The question is a 0/1 model, not an SMT problem. [`least_rounds`] is its linear relaxation. At
//! one chunk, its result holds for every number of chunks: a plan for many chunks, averaged over the chunks of a rank,
//! is a fractional plan for one chunk.
//!
//! | column | meaning |
//! |---|---|
//! | x[c,l,s] ∈ {0,1} | chunk c travels over link l in step s |
//! | rounds[s] ∈ ℕ | the number of rounds of step s |
//!
//! [1] Cai et al., "Synthesizing Optimal Collective Algorithms" (SCCL), PPoPP 2021, section 3.

use crate::epochs::routes::{Leeway, Routes};
use crate::epochs::time_expanded::TimeExpandedFlow;
use crate::epochs::timing::Departure;
use crate::problem::{Problem, SynthError};
use crate::solver::{Column, Controls, Ending, Model, solve};
use crate::symmetry::PairOrbits;
use schedule::ChunkId;
use topology::{LinkId, MicrosPerByte, ResourceId};

/// The number of chunks that links and resources carry in a round.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Rates {
    /// The time per byte on the slowest link; a round lasts as long as a chunk takes there.
    pub(super) slowest: MicrosPerByte,
    links: Vec<f64>,
    resources: Vec<f64>,
}

/// A rate this close (relative) to a whole number is rounded to it.
const NEARLY: f64 = 1e-6;

impl Rates {
    /// The rates for the links that the sketch allows; `None` if some link or resource takes no time per byte.
    pub(super) fn new(problem: &Problem) -> Option<Self> {
        let topology = &problem.topology;
        let allowed = || topology.link_ids().filter(|&id| problem.allows_link(id)).map(|id| topology.link(id).beta);
        let slowest = allowed().reduce(|a, b| if b > a { b } else { a })?;
        let rate = |beta: MicrosPerByte| {
            let rate = slowest.0 / beta.0;
            if (rate - rate.round()).abs() <= NEARLY * rate { rate.round() } else { rate }
        };
        let links: Vec<f64> = topology.links().iter().map(|link| rate(link.beta)).collect();
        let resources: Vec<f64> = topology.resources().iter().map(|resource| rate(resource.beta)).collect();
        let finite = allowed().all(|beta| beta.0 > 0.0) && resources.iter().all(|rate| rate.is_finite());
        finite.then_some(Self { slowest, links, resources })
    }
}

/// A plan in steps.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SynchronousPlan {
    /// The epoch of a departure is its step.
    pub(super) departures: Vec<Departure>,
    /// The number of rounds of each step.
    pub(super) rounds: Vec<u32>,
}

/// The answer to one question.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum StepsVerdict {
    /// There is a plan.
    Plan(SynchronousPlan),
    /// There is no plan.
    Refuted,
    /// A limit was reached before the answer.
    Undecided,
}

/// Whether there is a plan of `steps` steps with `rounds` rounds in all. With `orbits`, only symmetric plans are
/// considered, so that `Refuted` says nothing about other plans.
///
/// # Errors
/// Failures of the solver.
pub(super) fn decide(
    problem: &Problem,
    rates: &Rates,
    (steps, rounds): (u32, u32),
    orbits: Option<&PairOrbits>,
    controls: &Controls<'_>,
) -> Result<StepsVerdict, SynthError> {
    let Some(routes) = routes(problem, steps) else { return Ok(StepsVerdict::Refuted) };
    let mut copies = TimeExpandedFlow::new(problem, steps, &routes, orbits);
    let most = f64::from(rounds.saturating_sub(steps - 1));
    let columns: Vec<Column> = (0..steps).map(|_| copies.model.integer(1.0, most)).collect();
    respect_rates(problem, rates, &mut copies, &columns);
    copies.model.equal(columns.iter().map(|&column| (column, 1.0)), f64::from(rounds));
    let outcome = solve(&copies.model, &[], controls, &mut |_| {})?;
    let solution = match outcome.ending {
        Ending::Infeasible | Ending::Unbounded => return Ok(StepsVerdict::Refuted),
        Ending::Limit { incumbent: None, .. } => return Ok(StepsVerdict::Undecided),
        Ending::Optimal(solution) | Ending::Limit { incumbent: Some(solution), .. } => solution,
    };
    let taken = copies.departures.iter().filter(|(_, column)| solution.is_set(*column));
    let departures = taken.map(|(departure, _)| *departure).collect();
    let rounds = columns.iter().map(|&column| solution.value(column).round() as u32).collect();
    Ok(StepsVerdict::Plan(SynchronousPlan { departures, rounds }))
}

/// The fewest rounds that `steps` steps need if chunks may be split arbitrarily; `None` if a limit was reached, or if
/// no number of rounds is enough.
///
/// # Errors
/// Failures of the solver.
pub(super) fn least_rounds(
    problem: &Problem,
    rates: &Rates,
    steps: u32,
    controls: &Controls<'_>,
) -> Result<Option<f64>, SynthError> {
    let Some(routes) = routes(problem, steps) else { return Ok(None) };
    let mut copies = TimeExpandedFlow::new(problem, steps, &routes, None);
    let columns: Vec<Column> = (0..steps).map(|_| copies.model.continuous(0.0, f64::INFINITY)).collect();
    respect_rates(problem, rates, &mut copies, &columns);
    columns.iter().for_each(|&column| copies.model.set_cost(column, 1.0));
    match solve(&copies.model.relaxed(), &[], controls, &mut |_| {})?.ending {
        Ending::Optimal(solution) => Ok(Some(solution.objective)),
        _ => Ok(None),
    }
}

/// Where chunks can be in which step; `None` if some chunk has too far to go.
pub(super) fn routes(problem: &Problem, steps: u32) -> Option<Routes> {
    let free = vec![Leeway::Free; problem.demand.chunks().len()];
    Routes::new(problem, &|_, _| 1, steps, &free)
}

/// Σ over chunks c of x[c,l,s] ≤ rate(l)·rounds[s] for every link, and the same for every resource over its links.
fn respect_rates(problem: &Problem, rates: &Rates, copies: &mut TimeExpandedFlow, rounds: &[Column]) {
    let topology = &problem.topology;
    let shared = (0..topology.resources().len()).map(|index| {
        let id = ResourceId::from_index(index);
        (topology.users(id).to_vec(), rates.resources[index])
    });
    let own = topology.link_ids().map(|id| (vec![id], rates.links[id.index()]));
    let limits: Vec<(Vec<LinkId>, f64)> = own.chain(shared).collect();
    let TimeExpandedFlow { model, on_link, .. } = copies;
    for (links, rate) in limits {
        limit(model, on_link, &links, rate, rounds);
    }
}

fn limit(model: &mut Model, on_link: &[Vec<(u32, ChunkId, Column)>], links: &[LinkId], rate: f64, rounds: &[Column]) {
    for (step, &length) in rounds.iter().enumerate() {
        let departures = links.iter().flat_map(|link| &on_link[link.index()]);
        let inside = departures.filter(|(epoch, ..)| *epoch as usize == step);
        let terms: Vec<(Column, f64)> = inside.map(|&(_, _, column)| (column, 1.0)).collect();
        if !terms.is_empty() {
            model.at_most(terms.into_iter().chain([(length, -rate)]), 0.0);
        }
    }
}
