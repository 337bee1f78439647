//! What is measured next: what no launch had time for, what decides the edges between choices, variants of the best plans, and what
//! guidelines ask for.
//!
//! The principal functions are [`next_work`] and [`final_table`]. Where two collectives may do the work of a third one in less time
//! than its choice takes, the next launch measures them together, as what the table chooses serves them; they win as any other
//! candidate does. A half that nobody has asked for is measured too, as stock does it.

use super::build::alike;
use super::{CandidateSamples, CellSamples, CellWork, LaunchEnd, MeasuredTable, edges_of, pieces, table_of};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tune::{Composition, Substitution, TuningTable, substitutions};

/// What is measured next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NextWork {
    /// The cells, those for guidelines last.
    pub cells: Vec<CellWork>,
    /// The table so far, which serves the halves of collectives
    /// ([`TuneCandidate::chosen`](super::TuneCandidate::chosen)).
    pub chosen: TuningTable,
    /// Variants of plans that cells may name, by their names.
    pub variants: BTreeMap<String, String>,
}

/// What the launches so far, of which the first has measured the grid, leave to measure. `step` is as in [`edges_of`].
///
/// # Errors
/// If a plan that has won cannot be written.
pub fn next_work(
    launches: &[Vec<CellSamples>],
    end: &LaunchEnd,
    dtype: &str,
    step: impl Fn(Collective) -> u64,
) -> Result<NextWork, String> {
    let chosen = table_of(launches, &end.texts, end.key.clone(), dtype, &step)?.table;
    let chosen = TuningTable { links: end.links.clone(), ..chosen };
    let mut cells = unmeasured(launches);
    edges_of(launches, &step).into_iter().for_each(|cell| cell.join(&mut cells));
    let asked = pieces::asked(launches, end.key.ranks, &end.texts);
    asked.cells.into_iter().for_each(|cell| cell.join(&mut cells));
    let variants = asked.texts.into_iter().chain(pieces::known(&end.texts)).collect();
    for asked in substitutions(&chosen) {
        asked_cells(&chosen, &asked).into_iter().for_each(|cell| cell.join(&mut cells));
    }
    Ok(NextWork { cells, chosen, variants })
}

/// The sizes with candidates for which no launch had time.
fn unmeasured(launches: &[Vec<CellSamples>]) -> Vec<CellWork> {
    let mut cells = Vec::new();
    let all = || launches.iter().flatten();
    for cell in all() {
        // Only times beside the same stock count.
        let is_same = |other: &&CellSamples| {
            (other.collective, other.bytes) == (cell.collective, cell.bytes) && !other.candidates.is_empty()
        };
        let same = alike(all().filter(is_same));
        let is_settled =
            |name: &str| same.iter().flat_map(|other| &other.candidates).any(|of| of.name == name && of.is_settled());
        let names = cell.unmeasured().into_iter().filter(|name| !is_settled(name));
        let names: Vec<String> = names.map(str::to_owned).collect();
        if !names.is_empty() {
            CellWork { collective: cell.collective, bytes: cell.bytes, candidates: Some(names) }.join(&mut cells);
        }
    }
    cells
}

impl CandidateSamples {
    /// Whether there is nothing left to measure: it was compared, or will not be.
    pub(super) fn is_settled(&self) -> bool {
        let is_measured = !self.spans_us.is_empty() || !self.loops_us.is_empty();
        is_measured || self.refusal.is_some() || self.same_as.is_some()
    }
}

impl CellWork {
    /// Whether it is this size of a collective.
    pub fn is_of(&self, collective: Collective, bytes: u64) -> bool {
        (self.collective, self.bytes) == (collective, bytes)
    }

    /// Adds it to others, or its candidates to those of its size.
    pub fn join(self, cells: &mut Vec<Self>) {
        let Some(known) = cells.iter_mut().find(|known| known.is_of(self.collective, self.bytes)) else {
            cells.push(self);
            return;
        };
        let all = known.candidates.take().zip(self.candidates);
        known.candidates = all.map(|(own, more)| {
            let all: BTreeSet<String> = own.into_iter().chain(more).collect();
            all.into_iter().collect()
        });
    }
}

/// The composed candidate, and the halves that were not measured; nothing if the library cannot compose these parts.
fn asked_cells(chosen: &TuningTable, asked: &Substitution) -> Vec<CellWork> {
    let Substitution { collective, bytes, parts, missing } = asked;
    let has_plan = |part: &Collective| chosen.find(*part, *bytes).is_some_and(|range| range.plan.is_some());
    let is_chosen = parts.iter().any(has_plan);
    let is_it = |of: &Composition| of.whole == *collective && of.halves[..] == **parts && of.is_chosen == is_chosen;
    let Some(composition) = Composition::all().find(is_it) else { return Vec::new() };
    let cell = |collective, names| CellWork { collective, bytes: *bytes, candidates: Some(names) };
    let halves = missing.iter().map(|half| cell(*half, Vec::new()));
    std::iter::once(cell(*collective, vec![composition.name()])).chain(halves).collect()
}

/// The table of all launches. `chosen` are the tables that have served the halves of collectives in each; a collective of two halves
/// counts only where the final table chooses the same ones.
///
/// # Errors
/// If a plan that has won cannot be written.
pub fn final_table(
    launches: &mut [Vec<CellSamples>],
    chosen: &[Option<TuningTable>],
    end: LaunchEnd,
    dtype: &str,
    step: impl Fn(Collective) -> u64,
) -> Result<MeasuredTable, String> {
    let plans = table_of(launches, &end.texts, end.key.clone(), dtype, &step)?.table;
    for (launch, chosen) in launches.iter_mut().zip(chosen) {
        for cell in launch {
            let plan = |table: &TuningTable, half| table.find(half, cell.bytes).and_then(|range| range.plan.clone());
            let is_same = |half: &Collective| chosen.as_ref().is_some_and(|of| plan(of, *half) == plan(&plans, *half));
            let counts = |of: Composition| !of.is_chosen || of.halves.iter().all(is_same);
            cell.candidates.retain(|candidate| Composition::of_name(&candidate.name).is_none_or(counts));
        }
    }
    let mut made = table_of(launches, &end.texts, end.key, dtype, step)?;
    (made.table.links, made.without_kernels) = (end.links, end.without_kernels);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{TableKey, violations};

    fn cell(collective: Collective, times: &[(&str, f64)]) -> CellSamples {
        let around = |centre: f64| (0..20).map(|step| centre * (1.0 + f64::from(step - 10) * 0.002)).collect();
        let sample = |(name, centre): &(&str, f64)| CandidateSamples {
            name: (*name).to_owned(),
            is_function: Composition::of_name(name).is_some(),
            spans_us: around(*centre),
            loops_us: around(*centre),
            ..CandidateSamples::default()
        };
        CellSamples {
            collective,
            bytes: 1024,
            op: None,
            stock_plan: None,
            candidates: times.iter().map(sample).collect(),
        }
    }

    fn end() -> LaunchEnd {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let key = TableKey::of(vec![0; 4], version);
        let texts = [("ring".to_owned(), "{}".to_owned())].into();
        LaunchEnd { key, texts, functions: BTreeSet::new(), links: None, without_kernels: None }
    }

    const NAME: &str = "chosen scatter + allgather";

    /// A Broadcast that takes longer than an AllGather, for which the table has a plan.
    fn first() -> Vec<CellSamples> {
        vec![
            cell(Collective::Broadcast, &[("stock", 100.0)]),
            cell(Collective::AllGather, &[("stock", 30.0), ("ring", 20.0)]),
        ]
    }

    #[test]
    fn a_violated_guideline_adds_the_composed_candidate_and_it_wins() {
        let NextWork { cells, chosen, .. } = next_work(&[first()], &end(), "f32", |_| 4).unwrap();
        let work: Vec<(Collective, Vec<String>)> =
            cells.into_iter().map(|cell| (cell.collective, cell.candidates.unwrap())).collect();
        // Nobody has asked for Scatter, whose time the guideline needs.
        assert_eq!(work, [(Collective::Broadcast, vec![NAME.to_owned()]), (Collective::Scatter, vec![])]);
        let second = vec![
            cell(Collective::Broadcast, &[("stock", 100.0), (NAME, 41.0)]),
            cell(Collective::Scatter, &[("stock", 20.0)]),
        ];
        let without = vec![cell(Collective::Broadcast, &[("stock", 100.0)]), second[1].clone()];
        let made = |second, chosen| final_table(&mut [first(), second], &[None, Some(chosen)], end(), "f32", |_| 4);
        let table = made(second.clone(), chosen.clone()).unwrap().table;
        let names: Vec<&str> = table.functions().map(|(_, range)| range.function.as_str()).collect();
        assert_eq!((names, violations(&table)), (vec![NAME], vec![]));
        // As long as it is not measured, the guideline is violated.
        let table = made(without, chosen.clone()).unwrap().table;
        assert_eq!(violations(&table).len(), 1);
        // What was measured with other halves says nothing about these.
        let mut other = chosen;
        other.cells.iter_mut().flat_map(|cell| &mut cell.ranges).for_each(|range| range.plan = None);
        let table = made(second, other).unwrap().table;
        assert_eq!((table.functions().count(), violations(&table).len()), (0, 1));
    }

    #[test]
    fn what_no_launch_had_time_for_comes_in_the_next_one() {
        let late = |name: &str, screening_us| CandidateSamples {
            name: name.to_owned(),
            screening_us,
            ..CandidateSamples::default()
        };
        let mut launch = cell(Collective::AllReduce, &[("stock", 100.0), ("measured", 120.0)]);
        launch.candidates.extend([late("unknown", None), late("promising", Some(90.0)), late("slow", Some(110.0))]);
        let asked = |launches: &[Vec<CellSamples>]| {
            let work = next_work(launches, &end(), "f32", |_| 4).unwrap().cells;
            work.into_iter().find(|cell| cell.collective == Collective::AllReduce).map(|cell| cell.candidates.unwrap())
        };
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let first = vec![launch];
        assert_eq!(asked(std::slice::from_ref(&first)), names(&["unknown", "promising"]));
        let second = vec![cell(Collective::AllReduce, &[("stock", 100.0), ("unknown", 130.0)])];
        assert_eq!(asked(&[first.clone(), second]), names(&["promising"]));
        // Of what was refused, or does the same as another one, nothing is asked.
        let mut other = first;
        other[0].candidates[2].same_as = Some("measured".to_owned());
        other[0].candidates.remove(3);
        assert_eq!(asked(&[other]), None);
    }

    #[test]
    fn halves_that_the_table_leaves_to_stock_are_those_of_stock() {
        let mut launch = first();
        launch[1].candidates.pop();
        let cells = next_work(&[launch], &end(), "f32", |_| 4).unwrap().cells;
        assert_eq!(cells[0].candidates, Some(vec!["stock scatter + allgather".to_owned()]));
        // A cell for which there was no time is as if it had not been asked for.
        let late = CellSamples { candidates: Vec::new(), ..cell(Collective::Scatter, &[]) };
        let table = final_table(&mut [first(), vec![late]], &[None, None], end(), "f32", |_| 4).unwrap().table;
        assert!(table.cells.iter().all(|cell| cell.collective != Collective::Scatter));
    }
}
