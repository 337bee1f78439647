//! The table of what was measured.
//!
//! The principal functions are [`edges_of`], what remains to be measured between two sizes that have different choices, and
//! [`table_of`].

use super::contest::spans_count;
use super::outcome::MeasuredTable;
use super::predict::HOPELESS;
use super::{CandidateSamples, CellSamples, CellWork};
use crate::stock::measured_kind;
use schedule::{Collective, ReduceOp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tune::{
    CandidateTimes, ChoiceEdge, ChoiceRange, Evidence, FunctionRange, LEAST_GAIN, MeasuredSize, RankedTime, Summary,
    TableCell, TableKey, TuningTable, ranges, remaining, smooth, summarize, winner,
};

impl CellSamples {
    /// The candidates with their times, the fastest first. Who was only screened has that time.
    pub fn ranking(&self) -> Vec<(String, Summary)> {
        ranked(&self.candidates, spans_count(&self.candidates))
    }

    /// Whether a candidate is faster than stock beyond the noise of both, and by enough, in this launch alone.
    pub fn replaces_stock(&self, name: &str) -> bool {
        let by_span = spans_count(&self.candidates);
        let times = |of: &CandidateSamples| of.times(by_span);
        let own = self.candidates.iter().find(|of| of.name == name).and_then(times);
        winner(&[self.candidates.first().and_then(times), own]).is_some()
    }

    /// The candidates that may be better than stock, by so much that it counts.
    pub fn may_beat_stock(&self) -> Vec<String> {
        let times = self.times();
        let Some(stock) = times.first().copied().flatten() else { return Vec::new() };
        let may_win = |times: &CandidateTimes| {
            let is_better = |(stock, own): (Summary, Summary)| own.low_us * LEAST_GAIN < stock.median_us;
            is_better((stock.first, times.first)) || stock.second.zip(times.second).is_some_and(is_better)
        };
        let better =
            remaining(&times).into_iter().filter(|&index| index > 0 && times[index].as_ref().is_some_and(may_win));
        better.map(|index| self.candidates[index].name.clone()).collect()
    }

    /// The candidates for which there was no time, and that may be better than stock as far as their first calls say, or predictions.
    pub(super) fn unmeasured(&self) -> Vec<&str> {
        let Some(stock) = self.times().first().copied().flatten() else { return Vec::new() };
        let predicted = self.candidates.iter().filter_map(|of| of.predicted_us);
        let least_predicted = predicted.fold(f64::INFINITY, f64::min);
        let may_win = |of: &&CandidateSamples| {
            let is_hopeless = of.predicted_us.is_some_and(|time| time > HOPELESS * least_predicted);
            let may_win = of.screening_us.map_or(!is_hopeless, |time| time < stock.first.median_us);
            !of.is_settled() && may_win
        };
        self.candidates.iter().filter(may_win).map(|of| of.name.as_str()).collect()
    }

    fn times(&self) -> Vec<Option<CandidateTimes>> {
        let by_span = spans_count(&self.candidates);
        self.candidates.iter().map(|of| of.times(by_span)).collect()
    }

    /// Whether the time was too short to decide: a candidate was not measured at all, or one that may be the best so seldom that
    /// its times say nothing.
    pub fn is_undecided(&self) -> bool {
        let times = self.times();
        let is_unknown =
            |of: &CandidateSamples| of.refusal.is_none() && of.same_as.is_none() && of.screening_us.is_none();
        let is_vague = |place: usize| times[place].is_some_and(|of| !of.first.has_interval());
        let stay = remaining(&times);
        self.candidates.iter().any(is_unknown) || stay.len() > 1 && stay.into_iter().any(is_vague)
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
        let scales = [true, false].map(|by_span| stock_scales(cells, by_span));
        for (place, cell) in cells.iter().enumerate() {
            let [of_spans, of_loops] = [scales[0][place], scales[1][place]];
            for candidate in cell.candidates.iter().filter(|candidate| competes(candidate)) {
                let index = names.iter().position(|name| *name == candidate.name).unwrap_or_else(|| {
                    names.push(&candidate.name);
                    samples.push(CandidateSamples { name: candidate.name.clone(), ..CandidateSamples::default() });
                    names.len() - 1
                });
                let pooled = &mut samples[index];
                pooled.spans_us.extend(candidate.spans_us.iter().map(|time| time * of_spans));
                pooled.loops_us.extend(candidate.loops_us.iter().map(|time| time * of_loops));
                pooled.invalid += candidate.invalid;
                let screenings = [pooled.screening_us, candidate.screening_us.map(|time| time * of_loops)];
                pooled.screening_us = screenings.into_iter().flatten().reduce(f64::min);
                pooled.refusal = pooled.refusal.take().or_else(|| candidate.refusal.clone());
            }
        }
        Self { names, samples, by_span }
    }

    fn times(&self) -> Vec<Option<CandidateTimes>> {
        self.samples.iter().map(|samples| samples.times(self.by_span)).collect()
    }
}

/// Launches that have the same stock plan as the first one: times are compared with stock's.
pub(super) fn alike<'a>(cells: impl Iterator<Item = &'a CellSamples>) -> Vec<&'a CellSamples> {
    let cells: Vec<&CellSamples> = cells.collect();
    let is_alike = |cell: &&CellSamples| cells.first().is_some_and(|first| first.stock_plan == cell.stock_plan);
    cells.iter().copied().filter(is_alike).collect()
}

/// By what the times of each launch are multiplied such that stock takes as long as in the middle one.
fn stock_scales(cells: &[&CellSamples], by_span: bool) -> Vec<f64> {
    let stock = |cell: &&CellSamples| cell.candidates.first()?.summary(by_span).map(|summary| summary.median_us);
    let mut medians: Vec<f64> = cells.iter().filter_map(stock).collect();
    medians.sort_by(f64::total_cmp);
    let typical = medians.get(medians.len() / 2).copied();
    cells.iter().map(|cell| stock(cell).zip(typical).map_or(1.0, |(own, typical)| typical / own)).collect()
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
            let cells = alike(of().filter(|cell| cell.bytes == bytes));
            let pooled = PooledCell::new(&cells, competes);
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
            let holds = |(place, times): (usize, &Option<CandidateTimes>)| {
                times.filter(|_| place == 0 || Self::holds(&names[place], &cells))
            };
            let choice = winner(&times.iter().enumerate().map(holds).collect::<Vec<_>>()).unwrap_or(0);
            sizes.push(MeasuredSize { bytes, times, choice });
        }
        Self { sizes, names }
    }

    /// Whether a winner is also faster than stock in the last launch that has measured it, by its medians.
    fn holds(name: &str, cells: &[&CellSamples]) -> bool {
        let both = |cell: &&CellSamples| {
            let by_span = spans_count(&cell.candidates);
            let times = |name: &str| cell.candidates.iter().find(|of| of.name == name)?.times(by_span);
            times(name).zip(times(tune::STOCK))
        };
        cells.iter().rev().find_map(both).is_some_and(|(own, stock)| own.is_faster(&stock))
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
        let evidence = |size: &MeasuredSize| {
            let (stock, choice) = proof(size);
            let (bytes, dtype, ranking) = (size.bytes, self.dtype.to_owned(), self.ranking(size.bytes));
            Evidence { bytes, choice, stock, launches: self.cells(size.bytes).len() as u32, dtype, ranking }
        };
        ranges(&sizes, edge, name, evidence)
    }

    /// What the launches have measured at one size, and counts.
    fn cells(&self, bytes: u64) -> Vec<&CellSamples> {
        let is_it = |cell: &&CellSamples| {
            cell.collective == self.collective && cell.bytes == bytes && !cell.candidates.is_empty()
        };
        alike(self.launches.iter().filter_map(|launch| launch.iter().find(is_it)))
    }

    /// All candidates that were timed, also those that no file can hold.
    fn ranking(&self, bytes: u64) -> Vec<RankedTime> {
        let cells = self.cells(bytes);
        let pooled = PooledCell::new(&cells, |_| true);
        let all = ranked(&pooled.samples, pooled.by_span).into_iter();
        let stock = cells.first().and_then(|cell| cell.stock_plan.as_ref());
        let place = |(name, times): (String, Summary)| {
            let plan = stock.filter(|_| name == tune::STOCK).map(|plan| plan.name.clone());
            RankedTime { name, median_us: times.median_us, samples: times.samples, plan }
        };
        all.map(place).collect()
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

/// Stock's times at a size and those of the choice, by the measure that shows that it is faster.
fn proof(size: &MeasuredSize) -> (Summary, Summary) {
    let of = |place: usize| size.times[place];
    let first = |place: usize| of(place).map_or_else(Summary::default, |times| times.first);
    let shown = of(0).zip(of(size.choice)).and_then(|(stock, own)| own.proof(&stock));
    shown.unwrap_or_else(|| (first(0), first(size.choice)))
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
    let (given, launches) = (launches, &trusted(launches)[..]);
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
    let table = TuningTable::new(key, cells, plans);
    table.check()?;
    Ok(MeasuredTable::new(table, given))
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

#[cfg(test)]
mod tests {
    use super::super::{CandidateRefusal, StockPlan, TrialPhase};
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
        let op = Some(ReduceOp::Sum);
        CellSamples { collective: Collective::AllReduce, bytes, op, stock_plan: None, candidates }
    }

    fn table(launches: &[Vec<CellSamples>], plans: &[&str]) -> TuningTable {
        measured(launches, plans).table
    }

    fn measured(launches: &[Vec<CellSamples>], plans: &[&str]) -> MeasuredTable {
        let texts = plans.iter().map(|name| ((*name).to_owned(), "{}".to_owned())).collect();
        let key = TableKey::of(vec![0, 0], env!("CARGO_PKG_VERSION"));
        table_of(launches, &texts, key, "f32", |_| 4).unwrap()
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
        // The next best has won it.
        let launches = [3.0, 12.0].map(|ring| vec![cell(64, 1.0, &[("stock", 10.0), ("ring", ring), ("tree", 9.0)])]);
        assert_eq!(choice(&table(&launches, &["ring", "tree"]), 64), Some("tree"));
        // A launch that had no time for it says nothing.
        let mut launches = [0, 1].map(|_| vec![cell(64, 1.0, &[("stock", 10.0), ("ring", 5.0)])]);
        let screened =
            CandidateSamples { name: "ring".to_owned(), screening_us: Some(12.0), ..CandidateSamples::default() };
        launches[1][0].candidates[1] = screened;
        assert_eq!(choice(&table(&launches, &["ring"]), 64), Some("ring"));
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
    fn a_launch_with_another_stock_plan_does_not_count() {
        let with = |name: &str, time: f64| {
            let stock_plan = Some(StockPlan { name: name.to_owned(), traffic: String::new() });
            CellSamples { stock_plan, ..cell(64, 1.0, &[("stock", 10.0), ("mine", time)]) }
        };
        // In the second launch, stock was an algorithm beside which the candidate is slow.
        let launches = [vec![with("ring", 5.0)], vec![with("tree", 20.0)]];
        let made = measured(&launches, &["mine"]);
        assert_eq!(choice(&made.table, 64), Some("mine"));
        let evidence = &made.table.find(Collective::AllReduce, 64).unwrap().evidence[0];
        assert_eq!((evidence.launches, evidence.ranking[1].plan.as_deref()), (1, Some("ring")));
        let [dropped] = &made.dropped[..] else { panic!("{:?}", made.dropped) };
        assert_eq!((dropped.launch, dropped.stock.as_ref().unwrap().name.as_str()), (2, "tree"));
        // With the same plan, it counts.
        let launches = [vec![with("ring", 5.0)], vec![with("ring", 20.0)]];
        let made = measured(&launches, &["mine"]);
        assert_eq!((choice(&made.table, 64), made.dropped.len()), (None, 0));
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
