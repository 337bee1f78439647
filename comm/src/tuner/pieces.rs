//! Parameters that compete: the best plan of a size with its messages cut into pieces.
//!
//! The principal functions are [`asked`], by which rank 0 makes those that are worth measuring after a launch, and [`variants`]. A
//! variant competes only where it is named: in a later launch, beside the plan that it is made of. The cost model says which
//! variants may gain; `docs/decisions/0101` says why pieces are the only parameter.

use super::candidate::{LONGEST_NAME, TuneCandidate};
use super::{CellSamples, CellWork};
use crate::table::{PlanTable, TableFault};
use runtime::Moment;
use schedule::{Request, VerifiedSchedule};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use topology::Micros;

/// Into how many pieces each message is cut, at most.
const MOST: u32 = 8;
/// The least bytes of a piece: for shorter ones the work per message counts more than anything that pieces gain.
const LEAST: u64 = 16 << 10;
/// How long rank 0 may take to make variants.
const PLANNING: Duration = Duration::from_secs(1);

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

/// Variants that are worth measuring.
#[derive(Default)]
pub(super) struct AskedVariants {
    /// Where.
    pub(super) cells: Vec<CellWork>,
    /// The plans, by their names.
    pub(super) texts: BTreeMap<String, String>,
}

/// Of the best plan of each cell of long messages, the variants that take less time by the cost model, and that no launch has measured
/// there. `texts` are the plans among the candidates. The other ranks wait for this, so it ends after [`PLANNING`].
pub(super) fn asked(launches: &[Vec<CellSamples>], ranks: usize, texts: &BTreeMap<String, String>) -> AskedVariants {
    let begin = Moment::now();
    let mut plans = PlanTable::default();
    let mut entries: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    let mut asked = AskedVariants::default();
    let mut cells: Vec<&CellSamples> = launches.iter().flatten().collect();
    // A plan serves all sizes; the largest that asks for it says in which order its messages go.
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.bytes));
    for cell in cells {
        let Some((name, text)) = best_plan(cell).and_then(|name| texts.get_key_value(name)) else { continue };
        let parts = Request::new(cell.collective, ranks, cell.bytes).parts().max(1);
        let most = (cell.bytes / parts / LEAST).min(u64::from(MOST)) as u32;
        if is_variant(name) || most < 2 {
            continue;
        }
        let Some(entry) = *entries.entry(name).or_insert_with(|| plans.add_text(name, text).ok()) else { continue };
        let mut whole = None;
        let counts = [2, 4, 8].into_iter().filter(|count| *count <= most).filter_map(NonZeroU32::new);
        let mut names = Vec::new();
        for pieces in counts.take_while(|_| Moment::now().since(begin) < PLANNING) {
            let name = name_of(name, pieces);
            if name.len() > LONGEST_NAME || is_measured(launches, cell, &name) {
                continue;
            }
            if !texts.contains_key(&name) && !asked.texts.contains_key(&name) {
                let whole = *whole
                    .get_or_insert_with(|| plans.in_pieces(entry, cell.bytes, NonZeroU32::MIN).as_ref().map(time));
                let cut = plans.in_pieces(entry, cell.bytes, pieces);
                let Some(cut) = cut.filter(|cut| whole.is_some_and(|whole| time(cut) < whole)) else { continue };
                let mut own = PlanTable::default();
                own.add_schedule(&name, &cut);
                let Ok(text) = own.text(0) else { continue };
                asked.texts.insert(name.clone(), text);
            }
            names.push(name);
        }
        if !names.is_empty() {
            asked.cells.push(CellWork { collective: cell.collective, bytes: cell.bytes, candidates: Some(names) });
        }
    }
    asked
}

fn time(plan: &VerifiedSchedule) -> Micros {
    plan.schedule().makespan()
}

/// Whether a plan is a variant, also one from a table.
fn is_variant(name: &str) -> bool {
    of_name(name.trim_end_matches('`')).is_some()
}

fn is_measured(launches: &[Vec<CellSamples>], cell: &CellSamples, name: &str) -> bool {
    let mut same = launches.iter().flatten().filter(|of| (of.collective, of.bytes) == (cell.collective, cell.bytes));
    same.any(|of| of.candidates.iter().any(|of| of.name == name))
}

/// The variants among plans, by their names.
pub(super) fn known(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    let is_one = |(name, _): &(&String, &String)| of_name(name).is_some();
    texts.iter().filter(is_one).map(|(name, text)| (name.clone(), text.clone()))
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

/// Candidates of variants, except those that are candidates already.
///
/// # Errors
/// If one is no plan.
pub(super) fn variants(
    candidates: &[TuneCandidate],
    texts: &BTreeMap<String, String>,
) -> Result<Vec<TuneCandidate>, TableFault> {
    let is_new = |(name, _): &(&String, &String)| candidates.iter().all(|of| of.name != **name);
    let variant = |(name, text): (&String, &String)| {
        let mut own = PlanTable::default();
        own.add_text(name, text)?;
        Ok(TuneCandidate::on_request(name, Arc::new(own)))
    };
    texts.iter().filter(is_new).map(variant).collect()
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
        let AskedVariants { cells: work, texts: made } = asked(&[launch.to_vec()], 4, &texts);
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
        let texts: BTreeMap<String, String> = texts.clone().into_iter().chain(made.clone()).collect();
        assert!(asked(&[vec![launch[1].clone()], vec![second]], 4, &texts).cells.is_empty());
        assert_eq!(known(&texts).collect::<BTreeMap<_, _>>(), made);
        // Made once, they are the same in later launches, whatever sizes ask for them.
        let again = asked(&[vec![launch[0].clone()]], 4, &texts);
        assert_eq!((again.cells.len(), again.texts.len()), (1, 0));
        let made = variants(&candidates, &made).unwrap();
        assert_eq!(made.iter().map(TuneCandidate::name).collect::<Vec<_>>(), all);
        for of in &made {
            assert!(of.is_on_request() && of.plan_text().unwrap().unwrap() == texts[of.name()]);
        }
        assert!(made[0].digest() != made[1].digest());
        // Who has them already needs no others.
        let all: Vec<TuneCandidate> = candidates.into_iter().chain(made).collect();
        assert!(variants(&all, &known(&texts).collect()).unwrap().is_empty());
        assert!(
            is_variant("classic/tree of table.json, plan `x in 4 pieces`") && !is_variant("x of plans/4 pieces.json")
        );
    }
}
