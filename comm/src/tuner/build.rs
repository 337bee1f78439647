//! The table of what was measured.
//!
//! The principal functions are [`edges_of`], what remains to be measured between two sizes that have different choices, and
//! [`table_of`].

use super::measure::spans_count;
use super::{CandidateSamples, CellSamples, CellWork};
use schedule::Collective;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tune::{
    ChoiceEdge, Evidence, MeasuredSize, Summary, TableCell, TableKey, TuningTable, ranges, remaining, smooth, winner,
};

/// A table, and which cells it was made of.
#[derive(Clone, Debug)]
pub struct MeasuredTable {
    /// The table.
    pub table: TuningTable,
    /// Candidates that were refused: where, which, and why.
    pub refused: Vec<(Collective, u64, String, String)>,
}

impl CellSamples {
    /// The candidates that may be better than stock.
    pub fn rivals(&self) -> Vec<String> {
        let by_span = spans_count(&self.candidates);
        let times: Vec<Option<Summary>> = self.candidates.iter().map(|of| of.summary(by_span)).collect();
        let Some(stock) = times.first().copied().flatten() else { return Vec::new() };
        let may_win = |times: &Summary| times.low_us < stock.median_us;
        let rivals =
            remaining(&times).into_iter().filter(|&index| index > 0 && times[index].as_ref().is_some_and(may_win));
        rivals.map(|index| self.candidates[index].name.clone()).collect()
    }
}

/// All samples of a cell, of all launches.
struct PooledCell<'a> {
    /// Names of candidates, stock first.
    names: Vec<&'a str>,
    samples: Vec<CandidateSamples>,
}

impl<'a> PooledCell<'a> {
    fn new(cells: &[&'a CellSamples]) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let mut samples: Vec<CandidateSamples> = Vec::new();
        for candidate in cells.iter().flat_map(|cell| &cell.candidates) {
            let index = names.iter().position(|name| *name == candidate.name).unwrap_or_else(|| {
                names.push(&candidate.name);
                samples.push(CandidateSamples { name: candidate.name.clone(), ..CandidateSamples::default() });
                names.len() - 1
            });
            let pooled = &mut samples[index];
            pooled.spans_us.extend(&candidate.spans_us);
            pooled.loops_us.extend(&candidate.loops_us);
            pooled.invalid += candidate.invalid;
            pooled.refusal = pooled.refusal.take().or_else(|| candidate.refusal.clone());
        }
        Self { names, samples }
    }

    fn times(&self) -> Vec<Option<Summary>> {
        let by_span = spans_count(&self.samples);
        self.samples.iter().map(|samples| samples.summary(by_span)).collect()
    }
}

/// What was measured of a collective, by size, with the choices that candidates have in common.
struct MeasuredCollective {
    sizes: Vec<MeasuredSize>,
    /// By index in `times`; the first is stock.
    names: Vec<String>,
}

impl MeasuredCollective {
    fn new(collective: Collective, launches: &[Vec<CellSamples>]) -> Self {
        let of = || launches.iter().flatten().filter(|cell| cell.collective == collective);
        let bytes: BTreeSet<u64> = of().map(|cell| cell.bytes).collect();
        let mut names = vec![tune::STOCK.to_owned()];
        let mut sizes = Vec::with_capacity(bytes.len());
        for bytes in bytes {
            let pooled = PooledCell::new(&of().filter(|cell| cell.bytes == bytes).collect::<Vec<_>>());
            let mut times = vec![None; names.len()];
            for (name, summary) in pooled.names.iter().zip(pooled.times()) {
                let index = names.iter().position(|known| known == name).unwrap_or_else(|| {
                    names.push((*name).to_owned());
                    names.len() - 1
                });
                times.resize(times.len().max(index + 1), None);
                times[index] = summary;
            }
            // Who wins all launches together must win the last one too: it has decided nothing yet.
            let choice = winner(&times).filter(|&choice| Self::holds(&names[choice], bytes, collective, launches));
            sizes.push(MeasuredSize { bytes, times, choice: choice.unwrap_or(0) });
        }
        Self { sizes, names }
    }

    /// Whether a winner is also faster than stock in the last launch that has measured it, by its median.
    fn holds(name: &str, bytes: u64, collective: Collective, launches: &[Vec<CellSamples>]) -> bool {
        let cell = launches.iter().rev().find_map(|launch| {
            let is_it = |cell: &&CellSamples| {
                let has = cell.candidates.iter().any(|candidate| candidate.name == name);
                cell.collective == collective && cell.bytes == bytes && has
            };
            launch.iter().find(is_it)
        });
        cell.is_some_and(|cell| {
            let by_span = spans_count(&cell.candidates);
            let median = |name: &str| {
                let candidate = cell.candidates.iter().find(|candidate| candidate.name == name)?;
                candidate.summary(by_span).map(|summary| summary.median_us)
            };
            median(name).zip(median(tune::STOCK)).is_some_and(|(own, stock)| own < stock)
        })
    }

    /// Only sizes of the grid: those between them decide edges.
    fn on_grid(&self, grid: &BTreeSet<u64>) -> Vec<MeasuredSize> {
        self.sizes.iter().filter(|size| grid.contains(&size.bytes)).cloned().collect()
    }
}

/// The sizes of a grid, as they were run.
fn grid_of(launches: &[Vec<CellSamples>], collective: Collective) -> BTreeSet<u64> {
    let first = launches.first().into_iter().flatten();
    first.filter(|cell| cell.collective == collective).map(|cell| cell.bytes).collect()
}

fn collectives_of(launches: &[Vec<CellSamples>]) -> BTreeSet<Collective> {
    launches.iter().flatten().map(|cell| cell.collective).collect()
}

/// The sizes around an edge that decide where it is: one element of each block less than the upper size, and one more than the
/// lower one. `step` is the smallest difference of two sizes.
fn around(edge: ChoiceEdge, step: u64) -> Option<[u64; 2]> {
    let [low, high] = [edge.below.0 + step, edge.above.0.checked_sub(step)?];
    (low < high).then_some([low, high])
}

/// Where two neighbours of the grid, which the first launch has measured, have different choices: the sizes between them that are
/// to be measured, with the two and stock. `step` is the smallest difference of two sizes, by collective.
pub fn edges_of(launches: &[Vec<CellSamples>], step: impl Fn(Collective) -> u64) -> Vec<CellWork> {
    let mut work = Vec::new();
    for collective in collectives_of(launches) {
        let measured = MeasuredCollective::new(collective, launches);
        let mut sizes = measured.on_grid(&grid_of(launches, collective));
        for edge in smooth(&mut sizes) {
            let rivals = [edge.below.1, edge.above.1].into_iter().filter(|choice| *choice != 0);
            let names: Vec<String> = rivals.map(|choice| measured.names[choice].clone()).collect();
            let sizes = around(edge, step(collective)).into_iter().flatten();
            work.extend(sizes.map(|bytes| CellWork { collective, bytes, candidates: Some(names.clone()) }));
        }
    }
    work
}

/// The table of all launches, of which the first has measured the grid. `texts` are the plans among the candidates, by their
/// names ([`Communicator::plan_texts`](crate::Communicator::plan_texts)). `dtype` names the type of elements, `step` is as in
/// [`edges_of`].
///
/// # Errors
/// If a plan that has won cannot be written.
pub fn table_of(
    launches: &[Vec<CellSamples>],
    texts: &BTreeMap<String, String>,
    key: TableKey,
    dtype: &str,
    step: impl Fn(Collective) -> u64,
) -> Result<MeasuredTable, String> {
    let mut plans: BTreeMap<String, Value> = BTreeMap::new();
    let mut cells = Vec::new();
    for collective in collectives_of(launches) {
        let measured = MeasuredCollective::new(collective, launches);
        // A candidate that is no plan cannot be in a file, so stock stays.
        let is_plan = |choice: usize| texts.contains_key(&measured.names[choice]);
        let mut sizes = measured.on_grid(&grid_of(launches, collective));
        for size in &mut sizes {
            size.choice = if size.choice != 0 && is_plan(size.choice) { size.choice } else { 0 };
        }
        smooth(&mut sizes);
        let at = |bytes: u64| measured.sizes.iter().find(|size| size.bytes == bytes).map(|size| size.choice);
        let edge = |edge: ChoiceEdge| {
            let [low, high] = around(edge, step(collective))?;
            match (at(low), at(high)) {
                (_, Some(choice)) if choice == edge.below.1 => Some(edge.above.0),
                (Some(choice), _) if choice == edge.above.1 => Some(edge.below.0 + 1),
                _ => None,
            }
        };
        let name = |choice: usize| (choice != 0).then(|| measured.names[choice].clone());
        let in_launches = |bytes: u64| {
            let has = |launch: &&Vec<CellSamples>| {
                launch.iter().any(|cell| cell.collective == collective && cell.bytes == bytes)
            };
            launches.iter().filter(has).count() as u32
        };
        let evidence = |size: &MeasuredSize| Evidence {
            bytes: size.bytes,
            choice: size.times[size.choice].unwrap_or_default(),
            stock: size.times[0].unwrap_or_default(),
            launches: in_launches(size.bytes),
            dtype: dtype.to_owned(),
        };
        let ranges = ranges(&sizes, edge, name, evidence);
        for plan in ranges.iter().filter_map(|range| range.plan.as_ref()) {
            if let Some(text) = texts.get(plan) {
                plans.insert(plan.clone(), serde_json::from_str(text).map_err(|error| error.to_string())?);
            }
        }
        cells.push(TableCell { collective, ranges });
    }
    let table = TuningTable { format: TuningTable::FORMAT.to_owned(), key, cells, plans };
    table.check()?;
    Ok(MeasuredTable { table, refused: refused(launches) })
}

fn refused(launches: &[Vec<CellSamples>]) -> Vec<(Collective, u64, String, String)> {
    let mut all = Vec::new();
    for cell in launches.iter().flatten() {
        for CandidateSamples { name, refusal, .. } in &cell.candidates {
            if let Some(why) = refusal {
                all.push((cell.collective, cell.bytes, name.clone(), why.clone()));
            }
        }
    }
    all
}
