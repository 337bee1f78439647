//! Parameters that compete: the best plan of a size with its messages cut into pieces.
//!
//! The principal functions are [`asked`], which variants are worth measuring after a launch, and [`variants`], which makes them. A
//! variant competes only where it is named: in a later launch, beside the plan that it is made of. The cost model says which
//! variants may gain; `docs/decisions/0101` says why pieces are the only parameter.

use super::candidate::TuneCandidate;
use super::{CellSamples, CellWork};
use crate::table::PlanTable;
use schedule::Request;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Into how many pieces each message is cut, at most.
const MOST: u32 = 8;
/// The least bytes of a piece: for shorter ones the work per message counts more than anything that pieces gain.
const LEAST: u64 = 16 << 10;

/// The name of a plan in pieces.
fn name_of(plan: &str, pieces: NonZeroU32) -> String {
    format!("{plan} in {pieces} pieces")
}

/// The plan and the number of pieces that a name stands for.
pub(super) fn of_name(name: &str) -> Option<(&str, NonZeroU32)> {
    let (plan, pieces) = name.strip_suffix(" pieces")?.rsplit_once(" in ")?;
    let pieces = pieces.parse().ok().filter(|pieces: &NonZeroU32| name_of(plan, *pieces) == name)?;
    Some((plan, pieces))
}

/// For the last launch's cells of long messages: the variants of the best plan that, by the cost model, take less time, and that no
/// launch has measured there. `texts` are the plans among the candidates.
pub(super) fn asked(launches: &[Vec<CellSamples>], ranks: usize, texts: &BTreeMap<String, String>) -> Vec<CellWork> {
    let mut plans = PlanTable::default();
    let mut entries: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    let mut work = Vec::new();
    for cell in launches.iter().flatten() {
        let Some((name, text)) = best_plan(cell).and_then(|name| texts.get_key_value(name)) else { continue };
        let parts = Request::new(cell.collective, ranks, cell.bytes).parts().max(1);
        let most = (cell.bytes / parts / LEAST).min(u64::from(MOST)) as u32;
        if of_name(name).is_some() || most < 2 {
            continue;
        }
        let Some(entry) = *entries.entry(name).or_insert_with(|| plans.add_text(name, text).ok()) else { continue };
        let counts = std::iter::successors(NonZeroU32::new(2), |count| count.checked_mul(NonZeroU32::new(2)?));
        let gains = |pieces: &NonZeroU32| plans.gains_in_pieces(entry, cell.bytes, *pieces);
        let is_measured = |name: &String| {
            let cells =
                launches.iter().flatten().filter(|of| (of.collective, of.bytes) == (cell.collective, cell.bytes));
            cells.flat_map(|of| &of.candidates).any(|of| of.name == *name)
        };
        let counts = counts.take_while(|count| count.get() <= most).filter(gains);
        let names: Vec<String> = counts.map(|pieces| name_of(name, pieces)).filter(|name| !is_measured(name)).collect();
        if !names.is_empty() {
            work.push(CellWork { collective: cell.collective, bytes: cell.bytes, candidates: Some(names) });
        }
    }
    work
}

/// The fastest candidate of a cell that is a plan; for stock, the textbook algorithm that is the same.
fn best_plan(cell: &CellSamples) -> Option<&str> {
    let is_plan = |name: &str| cell.candidates.iter().any(|of| of.name == name && !of.is_function);
    let (best, _) = cell.ranking().into_iter().find(|(name, _)| is_plan(name))?;
    let names = |of: &&super::CandidateSamples| match best.as_str() {
        tune::STOCK => of.same_as.as_deref() == Some(tune::STOCK),
        best => of.name == best,
    };
    cell.candidates.iter().find(names).map(|of| of.name.as_str())
}

/// The variants that cells name, of plans among `candidates`. All ranks make the same.
pub(super) fn variants(candidates: &[TuneCandidate], work: &[CellWork]) -> Vec<TuneCandidate> {
    // A plan serves all sizes; the largest that asks for it says in which order its messages go.
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    for cell in work {
        for name in cell.candidates.iter().flatten() {
            let size = sizes.entry(name).or_default();
            *size = (*size).max(cell.bytes);
        }
    }
    let known = |name: &str| candidates.iter().find(|of| of.name == name);
    let variant = |(name, bytes): (&str, u64)| {
        let (plan, pieces) = of_name(name).filter(|_| known(name).is_none())?;
        let (table, entry) = known(plan)?.as_plan()?;
        let mut own = PlanTable::default();
        own.add_schedule(name, &table.in_pieces(entry, bytes, pieces)?);
        Some(TuneCandidate::on_request(name, Arc::new(own)))
    };
    sizes.into_iter().filter_map(variant).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{CandidateSamples, TuneOptions};
    use super::*;
    use crate::Communicator;
    use schedule::Collective;

    fn pieces(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn names_stand_for_plans_and_numbers() {
        assert_eq!(of_name(&name_of("a tree in a wood", pieces(4))), Some(("a tree in a wood", pieces(4))));
        for other in ["a tree", "a tree in 0 pieces", "a tree in 04 pieces", "a tree in four pieces", "in 4 pieces"] {
            assert_eq!(of_name(other), None, "{other}");
        }
        assert!(TuneCandidate::fault_of_name(&name_of("mine", pieces(2))).is_some());
    }

    /// A cell of a broadcast in which stock is the fastest, and the chain is the same as stock.
    fn cell(bytes: u64, chain: &str, also: &[String]) -> CellSamples {
        let timed = |name: &str, time: f64| CandidateSamples {
            name: name.to_owned(),
            spans_us: vec![time; 20],
            loops_us: vec![time; 20],
            ..CandidateSamples::default()
        };
        let same = CandidateSamples {
            name: chain.to_owned(),
            same_as: Some(tune::STOCK.to_owned()),
            ..CandidateSamples::default()
        };
        let mut candidates = vec![timed(tune::STOCK, 10.0), same, timed("slow", 30.0)];
        candidates.extend(also.iter().map(|name| timed(name, 20.0)));
        CellSamples { collective: Collective::Broadcast, bytes, op: None, stock_plan: None, candidates }
    }

    #[test]
    fn variants_of_the_best_plan_are_asked_for_once_and_can_be_made() {
        let comm = &Communicator::local(4).unwrap()[0];
        let options = TuneOptions { collectives: vec![Collective::Broadcast], ..TuneOptions::default() };
        let candidates = comm.candidates(&options, Vec::new()).unwrap();
        let texts = Communicator::plan_texts(&candidates).unwrap();
        let chain = texts.keys().find(|name| name.contains("chain")).unwrap();
        let launch = [64 << 10, 1 << 20, 16 << 20].map(|bytes| cell(bytes, chain, &[]));
        let work = asked(&[launch.to_vec()], 4, &texts);
        let all = [2, 4, 8].map(|count| name_of(chain, pieces(count)));
        let names = |bytes: u64| {
            let of = work.iter().find(|cell| cell.bytes == bytes);
            of.and_then(|cell| cell.candidates.clone()).unwrap_or_default()
        };
        // Four pieces of 64 KiB are as short as a piece may be.
        assert_eq!(names(64 << 10), all[..2]);
        assert_eq!([names(1 << 20), names(16 << 20)], [all.to_vec(), all.to_vec()]);
        // Once measured, they are no news, also if they are the best.
        let mut second = cell(1 << 20, chain, &all);
        second.candidates[3].spans_us = vec![1.0; 20];
        assert!(asked(&[vec![launch[1].clone()], vec![second]], 4, &texts).is_empty());
        let made = variants(&candidates, &work);
        assert_eq!(made.iter().map(TuneCandidate::name).collect::<Vec<_>>(), all);
        assert!(made.iter().all(|of| of.is_on_request() && of.plan_text().unwrap().is_ok()));
        // Who has them already needs no others.
        let all: Vec<TuneCandidate> = candidates.into_iter().chain(made).collect();
        assert!(variants(&all, &work).is_empty());
    }
}
