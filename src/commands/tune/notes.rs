//! Lines about what a tuning did not measure as it was asked.
//!
//! The principal functions are [`of_plans`], [`of_kernels`] and [`of_sizes`], the principal type is [`ShortBudget`].

use super::FIRST;
use crate::amounts::step_of;
use crate::cli::TuneMeasureArgs;
use crate::screen::bytes;
use comm::{CandidateSamples, CellSamples, DroppedLaunch, SameCandidate, StockPlan};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A budget that was too short to decide everywhere.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ShortBudget {
    /// Cells of the first launch that are not decided.
    cells: usize,
    /// All cells of the first launch.
    of: usize,
    /// The budget, in seconds.
    budget_seconds: f64,
    /// About the budget that would have been enough, in whole seconds.
    enough_seconds: u64,
}

impl ShortBudget {
    /// Whether the first launch, which took so long, has left cells undecided. As many candidates as it has screened take about so
    /// long; where all were screened, but some measured too seldom, twice the time is a guess.
    pub(super) fn of(launch: &[CellSamples], took: Duration, budget: Duration) -> Option<Self> {
        let cells = launch.iter().filter(|cell| cell.is_undecided()).count();
        let competing = |of: &&CandidateSamples| of.refusal.is_none() && of.same_as.is_none();
        let all = || launch.iter().flat_map(|cell| &cell.candidates).filter(competing);
        let screened = all().filter(|of| of.screening_us.is_some()).count();
        let share = screened as f64 / all().count().max(1) as f64;
        let more = if share < 1.0 { (1.0 / share.max(0.01)).max(1.5) } else { 2.0 };
        let seconds = took.max(budget.mul_f64(FIRST)).as_secs_f64() * more / FIRST;
        let (budget_seconds, enough_seconds) = (budget.as_secs_f64(), seconds.ceil() as u64);
        (cells > 0).then_some(Self { cells, of: launch.len(), budget_seconds, enough_seconds })
    }

    /// A line about it.
    pub(super) fn text(&self) -> String {
        let Self { cells, of, budget_seconds, enough_seconds } = self;
        format!(
            "note: {cells} of {of} cells are undecided: the budget of {budget_seconds} s was too short; \
             give --budget {enough_seconds}s"
        )
    }
}

/// What was not measured because ranks map no memory of each other.
pub(super) fn of_mapping(unmapped: Option<&str>) -> Option<String> {
    unmapped.map(|why| format!("note: {why}"))
}

/// Sizes of which an element of each rank is more: what is measured instead.
pub(super) fn of_sizes(args: &TuneMeasureArgs, ranks: usize) -> Vec<String> {
    let mut notes = Vec::new();
    for collective in args.collectives() {
        let least = step_of(collective, ranks, args.dtype);
        let small: Vec<String> =
            args.sizes.0.iter().filter(|size| **size < least).map(|size| bytes(*size).to_string()).collect();
        if !small.is_empty() {
            let (small, least, dtype) = (small.join(", "), bytes(least), args.dtype);
            notes.push(format!(
                "note: {collective} of {ranks} ranks has at least one element ({dtype}) for each: {least}, not {small}"
            ));
        }
    }
    notes
}

/// What does not count, and which candidates are the same plan as another one: one line each, with all its sizes. Textbook
/// algorithms are left out, of which one always is stock.
pub(super) fn of_plans(dropped: &[DroppedLaunch], same: &[SameCandidate]) -> Vec<String> {
    let name = |plan: &Option<StockPlan>| plan.as_ref().map_or("not known", |plan| plan.name.as_str()).to_owned();
    let mut notes: Vec<String> = Vec::new();
    for DroppedLaunch { collective, bytes: size, launch, stock, first } in dropped {
        let (size, stock, first) = (bytes(*size), name(stock), name(first));
        notes.push(format!(
            "note: launch {launch} does not count at {collective} {size}: stock was {stock}, and {first} in the first one"
        ));
    }
    let mut places: BTreeMap<(&str, &str, String), Vec<String>> = BTreeMap::new();
    for SameCandidate { collective, bytes: size, name, same_as } in same {
        if !name.starts_with(&format!("{collective} classic/")) {
            places.entry((name, same_as, collective.to_string())).or_default().push(bytes(*size).to_string());
        }
    }
    for ((name, same_as, collective), sizes) in places {
        notes.push(format!("note: {name} is the same as {same_as} at {collective} {}", sizes.join(", ")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::Collective;

    #[test]
    fn a_candidate_that_is_another_one_is_told_once_with_its_sizes() {
        let same = |name: &str, bytes, same_as: &str| SameCandidate {
            collective: Collective::AllReduce,
            bytes,
            name: name.to_owned(),
            same_as: same_as.to_owned(),
        };
        let all = [same("b", 64, "a"), same("b", 1024, "a"), same("allreduce classic/ring", 64, "stock")];
        assert_eq!(of_plans(&[], &all), ["note: b is the same as a at allreduce 64 B, 1.024 KB"]);
    }

    fn measured(name: &str, screening_us: Option<f64>, times: usize) -> CandidateSamples {
        let (name, spans_us) = (name.to_owned(), vec![10.0; times]);
        CandidateSamples { name, loops_us: spans_us.clone(), spans_us, screening_us, ..CandidateSamples::default() }
    }

    #[test]
    fn a_budget_is_too_short_where_candidates_were_not_measured() {
        let cell = |candidates| {
            let (collective, bytes) = (Collective::AllReduce, 64);
            CellSamples { collective, bytes, op: None, stock_plan: None, candidates }
        };
        let stock = || measured("stock", Some(10.0), 20);
        let decided = cell(vec![stock(), measured("ring", Some(10.0), 20)]);
        let late = cell(vec![stock(), measured("ring", None, 0)]);
        let took = [Duration::from_secs(6), Duration::from_secs(10)];
        let short = |launch: &[CellSamples]| ShortBudget::of(launch, took[0], took[1]);
        assert_eq!(short(std::slice::from_ref(&decided)), None);
        // Three of four candidates were measured in six seconds, which is the share of the first launch.
        let found = short(&[decided.clone(), late]).unwrap();
        let expected = "note: 1 of 2 cells are undecided: the budget of 10 s was too short; give --budget 15s";
        assert_eq!(found.text(), expected);
        // Who was measured a few times may still be the best.
        let few = cell(vec![stock(), measured("ring", Some(10.0), 2)]);
        assert_eq!(short(&[few]).unwrap().enough_seconds, 20);
    }

    #[test]
    fn a_launch_that_does_not_count_is_told_with_both_plans() {
        let plan = |name: &str| Some(StockPlan { name: name.to_owned(), traffic: String::new() });
        let (collective, bytes, launch) = (Collective::AllReduce, 64, 2);
        let dropped = DroppedLaunch { collective, bytes, launch, stock: plan("tree"), first: plan("ring") };
        let expected = "note: launch 2 does not count at allreduce 64 B: stock was tree, and ring in the first one";
        assert_eq!(of_plans(&[dropped], &[]), [expected]);
    }
}
