//! The table of what was measured.
//!
//! The principal functions are [`edges_of`], what remains to be measured between two sizes that have different choices, and
//! [`table_of`].

use super::measure::spans_count;
use super::{CandidateRefusal, CandidateSamples, CellSamples, CellWork};
use crate::stock::measured_kind;
use schedule::{Collective, ReduceOp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tune::{
    ChoiceEdge, ChoiceRange, Evidence, FunctionRange, MeasuredSize, RankedTime, Summary, TableCell, TableKey,
    TuningTable, ranges, remaining, smooth, summarize, winner,
};

/// A table, and what was refused when it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasuredTable {
    /// The table.
    pub table: TuningTable,
    /// Candidates that were refused.
    pub refused: Vec<RefusedCandidate>,
}

/// A candidate that was refused: where, and why. It does not compete there in later launches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedCandidate {
    /// The operation.
    pub collective: Collective,
    /// The size in bytes, as the collective counts them.
    pub bytes: u64,
    /// Which.
    pub name: String,
    /// The launch, from 1.
    pub launch: usize,
    /// Why.
    #[serde(flatten)]
    pub refusal: CandidateRefusal,
}

impl MeasuredTable {
    /// As JSON: `table` and `refused`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl CellSamples {
    /// The candidates with their times, the fastest first. Who was only screened has that time.
    pub fn ranking(&self) -> Vec<(String, Summary)> {
        ranked(&self.candidates, spans_count(&self.candidates))
    }

    /// Whether a candidate is faster than stock beyond the noise of both, and by enough, in this launch alone.
    pub fn replaces_stock(&self, name: &str) -> bool {
        let by_span = spans_count(&self.candidates);
        let times = |of: &CandidateSamples| of.summary(by_span);
        let own = self.candidates.iter().find(|of| of.name == name).and_then(times);
        winner(&[self.candidates.first().and_then(times), own]).is_some()
    }

    /// The candidates that may be better than stock.
    pub fn may_beat_stock(&self) -> Vec<String> {
        let by_span = spans_count(&self.candidates);
        let times: Vec<Option<Summary>> = self.candidates.iter().map(|of| of.summary(by_span)).collect();
        let Some(stock) = times.first().copied().flatten() else { return Vec::new() };
        let may_win = |times: &Summary| times.low_us < stock.median_us;
        let better =
            remaining(&times).into_iter().filter(|&index| index > 0 && times[index].as_ref().is_some_and(may_win));
        better.map(|index| self.candidates[index].name.clone()).collect()
    }
}

/// Candidates with their times, the fastest first.
fn ranked(candidates: &[CandidateSamples], by_span: bool) -> Vec<(String, Summary)> {
    let screening =
        |of: &CandidateSamples| of.screening_us.filter(|_| of.refusal.is_none()).and_then(|time| summarize(&[time]));
    let screened = |of: &CandidateSamples| screening(of).map(|time| Summary { samples: 0, ..time });
    let timed =
        candidates.iter().filter_map(|of| Some((of.name.clone(), of.summary(by_span).or_else(|| screened(of))?)));
    let mut ranking: Vec<(String, Summary)> = timed.collect();
    ranking.sort_by(|one, other| one.1.median_us.total_cmp(&other.1.median_us));
    ranking
}

/// All samples of a cell, of all launches.
struct PooledCell<'a> {
    /// Names of candidates, stock first.
    names: Vec<&'a str>,
    samples: Vec<CandidateSamples>,
    /// Whether spans count.
    by_span: bool,
}

impl<'a> PooledCell<'a> {
    /// Ranks may be placed well in one launch and badly in another, so times are compared within a launch: those of each are
    /// scaled such that stock takes as long as in the middle one of all launches.
    fn new(cells: &[&'a CellSamples], competes: impl Fn(&CandidateSamples) -> bool) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let mut samples: Vec<CandidateSamples> = Vec::new();
        let by_span = cells.iter().all(|cell| spans_count(&cell.candidates));
        let stock = |cell: &CellSamples| cell.candidates.first()?.summary(by_span).map(|summary| summary.median_us);
        let mut medians: Vec<f64> = cells.iter().filter_map(|cell| stock(cell)).collect();
        medians.sort_by(f64::total_cmp);
        let typical = medians.get(medians.len() / 2).copied();
        for cell in cells {
            let scale = stock(cell).zip(typical).map_or(1.0, |(own, typical)| typical / own);
            for candidate in cell.candidates.iter().filter(|candidate| competes(candidate)) {
                let index = names.iter().position(|name| *name == candidate.name).unwrap_or_else(|| {
                    names.push(&candidate.name);
                    samples.push(CandidateSamples { name: candidate.name.clone(), ..CandidateSamples::default() });
                    names.len() - 1
                });
                let pooled = &mut samples[index];
                pooled.spans_us.extend(candidate.spans_us.iter().map(|time| time * scale));
                pooled.loops_us.extend(candidate.loops_us.iter().map(|time| time * scale));
                pooled.invalid += candidate.invalid;
                let screenings = [pooled.screening_us, candidate.screening_us.map(|time| time * scale)];
                pooled.screening_us = screenings.into_iter().flatten().reduce(f64::min);
                pooled.refusal = pooled.refusal.take().or_else(|| candidate.refusal.clone());
            }
        }
        Self { names, samples, by_span }
    }

    fn times(&self) -> Vec<Option<Summary>> {
        self.samples.iter().map(|samples| samples.summary(self.by_span)).collect()
    }
}

/// What was measured of a collective, by size, with the choices that candidates have in common.
struct MeasuredCollective {
    sizes: Vec<MeasuredSize>,
    /// By index in `times`; the first is stock.
    names: Vec<String>,
}

impl MeasuredCollective {
    /// Of the candidates that compete. Stock has to be among them.
    fn new(
        collective: Collective,
        launches: &[Vec<CellSamples>],
        competes: impl Copy + Fn(&CandidateSamples) -> bool,
    ) -> Self {
        let of =
            || launches.iter().flatten().filter(|cell| cell.collective == collective && !cell.candidates.is_empty());
        let bytes: BTreeSet<u64> = of().map(|cell| cell.bytes).collect();
        let mut names = vec![tune::STOCK.to_owned()];
        let mut sizes = Vec::with_capacity(bytes.len());
        for bytes in bytes {
            let pooled = PooledCell::new(&of().filter(|cell| cell.bytes == bytes).collect::<Vec<_>>(), competes);
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

/// The sizes of a grid, as they were run: those of the first launch that has measured the collective.
fn grid_of(launches: &[Vec<CellSamples>], collective: Collective) -> BTreeSet<u64> {
    let sizes = |launch: &Vec<CellSamples>| {
        let measured = launch.iter().filter(|cell| cell.collective == collective && !cell.candidates.is_empty());
        measured.map(|cell| cell.bytes).collect::<BTreeSet<u64>>()
    };
    launches.iter().map(sizes).find(|sizes| !sizes.is_empty()).unwrap_or_default()
}

/// All collectives that were measured.
fn collectives_of(launches: &[Vec<CellSamples>]) -> BTreeSet<Collective> {
    launches.iter().flatten().filter(|cell| !cell.candidates.is_empty()).map(|cell| cell.collective).collect()
}

/// The sizes around an edge that decide where it is: one element of each block less than the upper size, and one more than the
/// lower one. `step` is the smallest difference of two sizes.
fn around(edge: ChoiceEdge, step: u64) -> Option<[u64; 2]> {
    let [low, high] = [edge.below.0 + step, edge.above.0.checked_sub(step)?];
    (low < high).then_some([low, high])
}

/// All candidates, and those that a file can hold: where a function is the fastest, a table also says what is the best of the rest.
const VIEWS: [fn(&CandidateSamples) -> bool; 2] = [|_| true, |candidate| !candidate.is_function];

/// Where two neighbours of the grid, which the first launch has measured, have different choices: the sizes between them that
/// are to be measured, with the two and stock. `step` is the smallest difference of two sizes, by collective.
pub fn edges_of(launches: &[Vec<CellSamples>], step: impl Fn(Collective) -> u64) -> Vec<CellWork> {
    let mut work: BTreeMap<(Collective, u64), BTreeSet<String>> = BTreeMap::new();
    for collective in collectives_of(launches) {
        for view in VIEWS {
            let measured = MeasuredCollective::new(collective, launches, view);
            let mut sizes = measured.on_grid(&grid_of(launches, collective));
            for edge in smooth(&mut sizes) {
                let choices = [edge.below.1, edge.above.1].into_iter().filter(|choice| *choice != 0);
                let names: Vec<&String> = choices.map(|choice| &measured.names[choice]).collect();
                for bytes in around(edge, step(collective)).into_iter().flatten() {
                    work.entry((collective, bytes)).or_default().extend(names.iter().copied().cloned());
                }
            }
        }
    }
    let cell = |((collective, bytes), names): ((Collective, u64), BTreeSet<String>)| CellWork {
        collective,
        bytes,
        candidates: Some(names.into_iter().collect()),
    };
    work.into_iter().map(cell).collect()
}

/// What the ranges of one collective are made of.
struct RangeMaker<'a> {
    launches: &'a [Vec<CellSamples>],
    collective: Collective,
    dtype: &'a str,
    /// The smallest difference of two sizes.
    step: u64,
}

impl RangeMaker<'_> {
    /// The ranges of what `may_serve` allows among the candidates that compete. What is not allowed counts as stock.
    fn ranges(
        &self,
        competes: impl Copy + Fn(&CandidateSamples) -> bool,
        may_serve: impl Fn(&str) -> bool,
    ) -> Vec<ChoiceRange> {
        let Self { launches, collective, step, .. } = *self;
        let measured = MeasuredCollective::new(collective, launches, competes);
        let mut sizes = measured.on_grid(&grid_of(launches, collective));
        for size in &mut sizes {
            size.choice = if may_serve(&measured.names[size.choice]) { size.choice } else { 0 };
        }
        smooth(&mut sizes);
        let at = |bytes: u64| measured.sizes.iter().find(|size| size.bytes == bytes).map(|size| size.choice);
        let edge = |edge: ChoiceEdge| {
            let [low, high] = around(edge, step)?;
            match (at(low), at(high)) {
                (_, Some(choice)) if choice == edge.below.1 => Some(edge.above.0),
                (Some(choice), _) if choice == edge.above.1 => Some(edge.below.0 + 1),
                _ => None,
            }
        };
        let name = |choice: usize| (choice != 0).then(|| measured.names[choice].clone());
        let evidence = |size: &MeasuredSize| Evidence {
            bytes: size.bytes,
            choice: size.times[size.choice].unwrap_or_default(),
            stock: size.times[0].unwrap_or_default(),
            launches: self.cells(size.bytes).len() as u32,
            dtype: self.dtype.to_owned(),
            ranking: self.ranking(size.bytes),
        };
        ranges(&sizes, edge, name, evidence)
    }

    /// What the launches have measured at one size.
    fn cells(&self, bytes: u64) -> Vec<&CellSamples> {
        let is_it = |cell: &&CellSamples| {
            cell.collective == self.collective && cell.bytes == bytes && !cell.candidates.is_empty()
        };
        self.launches.iter().filter_map(|launch| launch.iter().find(is_it)).collect()
    }

    /// All candidates that were timed, also those that no file can hold.
    fn ranking(&self, bytes: u64) -> Vec<RankedTime> {
        let pooled = PooledCell::new(&self.cells(bytes), |_| true);
        let all = ranked(&pooled.samples, pooled.by_span).into_iter();
        all.map(|(name, times)| RankedTime { name, median_us: times.median_us, samples: times.samples }).collect()
    }

    /// The reduction that was measured, if something is reduced.
    fn op(&self) -> Option<ReduceOp> {
        let mut cells = self.launches.iter().flatten();
        cells.find(|cell| cell.collective == self.collective).and_then(|cell| cell.op)
    }

    /// The ranges of functions, out of those of everything.
    fn functions(&self, all: Vec<ChoiceRange>, functions: &BTreeSet<&str>) -> Vec<FunctionRange> {
        let op = self.op();
        let range = |range: ChoiceRange| {
            let function = range.plan.filter(|name| functions.contains(name.as_str()))?;
            let (from_bytes, to_bytes, evidence) = (range.from_bytes, range.to_bytes?, range.evidence);
            Some(FunctionRange { from_bytes, to_bytes, function, dtype: self.dtype.to_owned(), op, evidence })
        };
        all.into_iter().filter_map(range).collect()
    }
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
    let refused = refused(launches);
    let launches = &trusted(launches)[..];
    let mut plans: BTreeMap<String, Value> = BTreeMap::new();
    let mut cells = Vec::new();
    let all = || launches.iter().flatten().flat_map(|cell| &cell.candidates);
    let functions: BTreeSet<&str> = all().filter(|of| of.is_function).map(|of| of.name.as_str()).collect();
    for collective in collectives_of(launches) {
        let maker = RangeMaker { launches, collective, dtype, step: step(collective) };
        let [everything, files] = VIEWS;
        let with_functions = maker.ranges(everything, |name| texts.contains_key(name) || functions.contains(name));
        let functions = maker.functions(with_functions, &functions);
        let ranges = maker.ranges(files, |name| texts.contains_key(name));
        for plan in ranges.iter().filter_map(|range| range.plan.as_ref()) {
            if let Some(text) = texts.get(plan) {
                plans.insert(plan.clone(), serde_json::from_str(text).map_err(|error| error.to_string())?);
            }
        }
        let op = maker.op();
        // How the call was measured says also whether it was in place.
        let in_place = Some(measured_kind(collective, op.unwrap_or(ReduceOp::Sum)).in_place);
        cells.push(TableCell { collective, op, dtype: Some(dtype.to_owned()), in_place, ranges, functions });
    }
    let table = TuningTable { format: TuningTable::FORMAT.to_owned(), key, cells, plans };
    table.check()?;
    Ok(MeasuredTable { table, refused })
}

/// The same without what was measured of candidates that were wrong at any size of a collective: they do not serve it.
fn trusted(launches: &[Vec<CellSamples>]) -> Vec<Vec<CellSamples>> {
    let is_wrong = |of: &&CandidateSamples| of.refusal.as_ref().is_some_and(|refusal| refusal.is_wrong);
    let mut wrong: BTreeSet<(Collective, &str)> = BTreeSet::new();
    for cell in launches.iter().flatten() {
        wrong.extend(cell.candidates.iter().filter(is_wrong).map(|of| (cell.collective, of.name.as_str())));
    }
    let mut trusted = launches.to_vec();
    for cell in trusted.iter_mut().flatten() {
        let is_trusted = |name: &str| name == tune::STOCK || !wrong.contains(&(cell.collective, name));
        cell.candidates.retain(|of| is_trusted(&of.name));
    }
    trusted
}

fn refused(launches: &[Vec<CellSamples>]) -> Vec<RefusedCandidate> {
    let mut all = Vec::new();
    for (index, cell) in launches.iter().enumerate().flat_map(|(index, cells)| cells.iter().map(move |it| (index, it)))
    {
        for CandidateSamples { name, refusal, .. } in &cell.candidates {
            if let Some(refusal) = refusal.clone() {
                let (collective, bytes, name) = (cell.collective, cell.bytes, name.clone());
                all.push(RefusedCandidate { collective, bytes, name, launch: index + 1, refusal });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::TrialPhase;
    use super::*;

    fn cell(bytes: u64, scale: f64, times: &[(&str, f64)]) -> CellSamples {
        let around = |centre: f64| (0..20).map(|step| scale * centre * (1.0 + f64::from(step - 10) * 0.002)).collect();
        let sample = |(name, centre): &(&str, f64)| CandidateSamples {
            name: (*name).to_owned(),
            is_function: name.ends_with("()"),
            spans_us: around(*centre),
            loops_us: around(*centre),
            ..CandidateSamples::default()
        };
        let candidates = times.iter().map(sample).collect();
        CellSamples { collective: Collective::AllReduce, bytes, op: Some(ReduceOp::Sum), candidates }
    }

    fn table(launches: &[Vec<CellSamples>], plans: &[&str]) -> TuningTable {
        let texts = plans.iter().map(|name| ((*name).to_owned(), "{}".to_owned())).collect();
        let key = TableKey::of(vec![0, 0], env!("CARGO_PKG_VERSION"));
        table_of(launches, &texts, key, "f32", |_| 4).unwrap().table
    }

    fn choice(table: &TuningTable, bytes: u64) -> Option<&str> {
        table.find(Collective::AllReduce, bytes).unwrap().plan.as_deref()
    }

    #[test]
    fn launches_are_compared_each_with_its_own_stock() {
        // In the second launch everything takes ten times as long, and the candidate was measured in the first only.
        let launches =
            [vec![cell(64, 1.0, &[("stock", 10.0), ("ring", 10.0)])], vec![cell(64, 10.0, &[("stock", 10.0)])]];
        assert_eq!(choice(&table(&launches, &["ring"]), 64), None);
        let launches = [1.0, 10.0].map(|scale| vec![cell(64, scale, &[("stock", 10.0), ("ring", 8.0)])]);
        assert_eq!(choice(&table(&launches, &["ring"]), 64), Some("ring"));
    }

    #[test]
    fn who_loses_the_last_launch_or_is_no_plan_is_not_chosen() {
        let launches = [9.0, 11.0].map(|ring| vec![cell(64, 1.0, &[("stock", 10.0), ("ring", ring)])]);
        assert_eq!(choice(&table(&launches, &["ring"]), 64), None);
        let launch = [vec![cell(64, 1.0, &[("stock", 10.0), ("mine", 5.0)])]];
        assert_eq!(choice(&table(&launch, &[]), 64), None);
    }

    #[test]
    fn a_function_serves_where_it_wins_and_the_best_plan_elsewhere() {
        let launch = vec![
            cell(64, 1.0, &[("stock", 10.0), ("ring", 9.0), ("mine()", 5.0), ("slow()", 80.0)]),
            cell(128, 1.0, &[("stock", 10.0), ("ring", 5.0), ("mine()", 9.0), ("slow()", 80.0)]),
        ];
        let work = edges_of(std::slice::from_ref(&launch), |_| 4);
        assert_eq!(work.iter().map(|cell| cell.bytes).collect::<Vec<_>>(), [68, 124]);
        assert_eq!(work[0].candidates, Some(vec!["mine()".to_owned(), "ring".to_owned()]));
        // Nothing says where between the two sizes the function begins to lose.
        let made = table(&[launch], &["ring"]);
        let [function] = &made.cells[0].functions[..] else { panic!("{:?}", made.cells[0].functions) };
        assert_eq!((function.from_bytes, function.to_bytes, function.function.as_str()), (64, 65, "mine()"));
        assert_eq!((function.dtype.as_str(), function.op), ("f32", Some(ReduceOp::Sum)));
        assert_eq!(
            [63, 64, 96, 128].map(|bytes| choice(&made, bytes)),
            [None, Some("ring"), Some("ring"), Some("ring")]
        );
        let names = |of: &Evidence| of.ranking.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&function.evidence[0]), ["mine()", "ring", "stock", "slow()"]);
        let of_plans = made.find(Collective::AllReduce, 128).unwrap();
        assert_eq!(names(of_plans.evidence.last().unwrap()), ["ring", "mine()", "stock", "slow()"]);
    }

    #[test]
    fn who_was_only_screened_has_a_place_too() {
        let mut launch = cell(64, 1.0, &[("stock", 10.0), ("ring", 5.0)]);
        for (name, screening_us) in [("slow()", Some(900.0)), ("late", None)] {
            let (name, is_function) = (name.to_owned(), true);
            launch.candidates.push(CandidateSamples { name, is_function, screening_us, ..CandidateSamples::default() });
        }
        let names: Vec<String> = launch.ranking().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["ring", "stock", "slow()"]);
        let table = table(&[vec![launch]], &["ring"]);
        let ranking = &table.find(Collective::AllReduce, 64).unwrap().evidence[0].ranking;
        assert_eq!((ranking[2].name.as_str(), ranking[2].median_us, ranking[2].samples), ("slow()", 900.0, 0));
        assert!(table.cells[0].functions.is_empty());
    }

    #[test]
    fn edges_are_measured_and_lie_where_the_measurement_says() {
        let grid = vec![
            cell(1024, 1.0, &[("stock", 10.0), ("ring", 5.0), ("tree", 7.0)]),
            cell(4096, 1.0, &[("stock", 10.0), ("ring", 9.0), ("tree", 5.0)]),
        ];
        let work = edges_of(std::slice::from_ref(&grid), |_| 4);
        let sizes: Vec<u64> = work.iter().map(|work| work.bytes).collect();
        assert_eq!(sizes, [1028, 4092]);
        assert!(work.iter().all(|work| work.candidates.as_ref().unwrap() == &["ring", "tree"]));
        let at = |bytes, ring, tree| cell(bytes, 1.0, &[("stock", 10.0), ("ring", ring), ("tree", tree)]);
        for (edges, expected) in [
            // The lower choice wins up to the upper size, the upper choice from the lower size on, neither.
            ([at(1028, 5.0, 7.0), at(4092, 5.0, 7.0)], Some("ring")),
            ([at(1028, 7.0, 5.0), at(4092, 7.0, 5.0)], Some("tree")),
            ([at(1028, 5.0, 7.0), at(4092, 7.0, 5.0)], None),
        ] {
            let table = table(&[grid.clone(), edges.to_vec()], &["ring", "tree"]);
            assert_eq!(choice(&table, 2048), expected);
            assert_eq!(
                [512, 1024, 4096, 4097].map(|bytes| choice(&table, bytes)),
                [None, Some("ring"), Some("tree"), None]
            );
        }
    }

    #[test]
    fn refusals_are_listed() {
        let mut refused = cell(64, 1.0, &[("stock", 10.0), ("mine", 1.0)]);
        let why = "3 elements of rank 1 are wrong".to_owned();
        refused.candidates[1].refusal =
            Some(CandidateRefusal { rank: 1, phase: TrialPhase::Check, why, is_wrong: true });
        let key = TableKey::of(vec![0, 0], env!("CARGO_PKG_VERSION"));
        let made = table_of(&[vec![refused]], &BTreeMap::new(), key, "f32", |_| 4).unwrap();
        assert_eq!((made.refused.len(), made.refused[0].launch, made.refused[0].refusal.rank), (1, 1, 1));
        assert_eq!(choice(&made.table, 64), None);
    }

    #[test]
    fn who_was_wrong_anywhere_serves_nowhere() {
        for is_wrong in [false, true] {
            let mut launch: Vec<CellSamples> =
                [64, 256].map(|bytes| cell(bytes, 1.0, &[("stock", 10.0), ("mine()", 5.0)])).into();
            let why = "as a test".to_owned();
            let refusal = CandidateRefusal { rank: 1, phase: TrialPhase::Time, why, is_wrong };
            launch[1].candidates[1].refusal = Some(refusal);
            let table = table(&[launch], &[]);
            assert_eq!(table.functions().count(), usize::from(!is_wrong), "{is_wrong}");
        }
    }
}
