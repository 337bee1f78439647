//! `antiphon tune`: measures what could serve each call, on the ranks that will make it, and writes the table of what is faster
//! than stock.

mod diff;
mod functions;
mod given;
mod judge;
mod launch;
mod load;
mod log;
mod merge;
mod rank;
mod show;
mod sight;
mod winners;

use crate::amounts::step_of;
use crate::cli::{TuneArgs, TuneCommand, TuneMeasureArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::launch::config_of;
use crate::screen::{Screen, bytes};
use comm::{
    CellSamples, CellWork, Communicator, LaunchEnd, MeasuredTable, NextWork, PlanTable, RefusedCandidate,
    TuneCandidate, TuneJob, TuneOptions, final_table, next_work,
};
use functions::FunctionPlace;
use given::{named, planned};
use launch::{LaunchSetting, LostRank};
use load::{Burner, LoadedCell};
use log::RankLog;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tune::TuningTable;

/// The share of the budget for the first launch, which measures everything.
const FIRST: f64 = 0.6;
/// The share of the budget for measuring beside computing, where that is asked for and there is one launch.
const BESIDE: f64 = 0.3;

/// Runs the command.
pub(crate) fn run(args: &TuneArgs, screen: &Screen) -> Outcome {
    match &args.command {
        Some(TuneCommand::Show { table, svg }) => show::show(table, svg.as_deref(), screen),
        Some(TuneCommand::Verify { table }) => judge::verify(table, screen),
        Some(TuneCommand::Diff { first, second }) => diff::diff(first, second, screen),
        Some(TuneCommand::Merge { tables, output }) => merge::merge(tables, output, screen),
        Some(TuneCommand::Export { table, format, output }) => merge::export(table, *format, output.as_ref(), screen),
        None => measure(&args.measure, screen),
    }
}

/// Runs one of the ranks.
pub(crate) fn run_rank() -> Outcome {
    rank::run()
}

fn options(args: &TuneMeasureArgs) -> TuneOptions {
    TuneOptions {
        collectives: args.collective.clone(),
        sizes: args.sizes.0.clone(),
        dtype: args.dtype,
        op: args.op,
        budget: args.budget,
        limit: args.timeout,
        seed: args.seed,
        least_samples: args.least_samples,
    }
}

fn job_of(args: &TuneMeasureArgs, folder: &Path) -> Outcome<TuneJob> {
    Ok(TuneJob {
        options: options(args),
        plans: args.plans.clone(),
        named: named(args)?,
        work: None,
        chosen: None,
        launch: 1,
        quarantine: BTreeSet::new(),
        reports: folder.to_owned(),
        loaded: false,
        launcher: Some(std::process::id()),
        joining: args.launch.ready_limit(args.launch.ranks.unwrap_or(1) as usize),
    })
}

fn measure(args: &TuneMeasureArgs, screen: &Screen) -> Outcome {
    // Local ranks are ended first.
    let cancel = args.launch.ranks.map(|_| interrupt::cancels());
    if cancel.is_none() {
        interrupt::ends(screen);
    }
    let folder = tempfile::tempdir().map_err(Failure::no)?;
    let mut job = job_of(args, folder.path())?;
    for path in job.plans.iter().chain(job.named.values()) {
        PlanTable::read(path).map_err(Failure::bad_input)?;
    }
    let Some(output) = &args.output else {
        return Err(Failure::bad_input(anyhow::anyhow!("--output is needed")));
    };
    screen.may_write([output])?;
    // Before anything is measured for nothing.
    TuningTable::can_write(output).map_err(Failure::bad_input)?;
    if let Some(spec) = &args.topology {
        job.plans.extend(planned(args, spec, (folder.path(), cancel.unwrap_or_default()), screen)?);
    }
    if let Some(log) = &args.log {
        screen.may_replace([&log.join("report.json")])?;
        log::prepare(log, args.launch.ranks.unwrap_or(0) as usize)?;
    }
    let tuning = Tuning { args, screen, begin: Instant::now() };
    let (began, mut lost) = (SystemTime::now(), Vec::new());
    let measured = match args.launch.ranks {
        Some(ranks) => tuning.in_launches(ranks as usize, job, folder.path(), &mut lost).map(Some),
        None => tuning.as_a_rank(&job),
    };
    if let (Some(log), Err(failure)) = (&args.log, &measured) {
        log::merge_failed(log, began, &lost, &failure.to_string())?;
    }
    // Another rank writes the table.
    let Some(MeasuredLaunches { mut launches, chosen, loaded, end, ended_early }) = measured? else { return Ok(()) };
    if let Some(path) = &args.samples {
        log::write_samples(&launches, path)?;
    }
    let (ranks, functions) = (end.key.ranks, functions::places(&launches, &end.functions));
    let step = |collective| step_of(collective, ranks, args.dtype);
    let measured = final_table(&mut launches, &chosen, end, &args.dtype.to_string(), step);
    let measured = measured.map_err(|why| Failure::no(anyhow::anyhow!(why)))?;
    if let Some(log) = &args.log {
        log::merge(log, (&measured.refused, &lost), ended_early.as_deref())?;
    }
    measured.table.write(output).map_err(Failure::no)?;
    let loaded = loaded.map(|loaded| load::compared(&launches[0], &loaded));
    tuning.tell(measured, (loaded, functions), (lost, ended_early), output)
}

/// All that was measured, and what is known at the end.
struct MeasuredLaunches {
    launches: Vec<Vec<CellSamples>>,
    /// For each of them, the table that has served the halves of collectives.
    chosen: Vec<Option<TuningTable>>,
    /// The grid while every rank computed.
    loaded: Option<Vec<CellSamples>>,
    end: LaunchEnd,
    /// Why not everything was measured.
    ended_early: Option<String>,
}

/// A tuning under way.
struct Tuning<'a> {
    args: &'a TuneMeasureArgs,
    screen: &'a Screen,
    begin: Instant,
}

impl Tuning<'_> {
    /// What is left of the budget.
    fn left(&self) -> Duration {
        self.args.budget.saturating_sub(self.begin.elapsed())
    }

    /// Local ranks, which are started several times: where memory lies, and on which core a rank runs, differs between
    /// launches.
    fn in_launches(
        &self,
        ranks: usize,
        mut job: TuneJob,
        folder: &Path,
        lost: &mut Vec<LostRank>,
    ) -> Outcome<MeasuredLaunches> {
        let bar = self.screen.progress("tune");
        let log = self.args.log.as_deref();
        let setting = LaunchSetting { ranks, program: &self.args.program, folder, log };
        let mut launches: Vec<Vec<CellSamples>> = Vec::new();
        let (mut end, mut ended_early, mut chosen) = (None, None, Vec::new());
        let extra = u32::from(self.args.load_aware);
        for number in 1..=self.args.launches {
            job.launch = number;
            if let Some(end) = &end {
                let next = self.next_work(&launches, end)?;
                (job.work, job.chosen) = (Some(next.cells), Some(next.chosen));
            }
            chosen.push(job.chosen.clone());
            let rest = f64::from(self.args.launches - number + 1 + extra);
            let share = if number == 1 && rest > 1.0 { FIRST } else { 1.0 / rest };
            job.options.budget = self.left().mul_f64(share);
            let measured = launch::measure(&setting, &mut job, lost, |cell| {
                bar.message(format!("launch {number}: {} {}", cell.collective, bytes(cell.bytes)));
            })?;
            launches.push(measured.cells);
            end = measured.end.or(end);
            ended_early = measured.ended_early;
            if ended_early.is_some() {
                break;
            }
        }
        let loaded = match self.args.load_aware && ended_early.is_none() {
            true => {
                job.options.budget = self.left();
                job = TuneJob { work: None, chosen: None, launch: self.args.launches + 1, loaded: true, ..job };
                let say = |_: &CellSamples| bar.message("beside computing");
                Some(launch::measure(&setting, &mut job, lost, say)?.cells)
            }
            false => None,
        };
        match end.filter(|_| launches.iter().any(|cells| !cells.is_empty())) {
            Some(end) => Ok(MeasuredLaunches { launches, chosen, loaded, end, ended_early }),
            None => Err(Failure::no(anyhow::anyhow!(ended_early.unwrap_or_else(|| "nothing was measured".to_owned())))),
        }
    }

    /// Cells where something may be better than stock, with those that may; what decides the edges between choices; and what
    /// guidelines ask for.
    fn next_work(&self, launches: &[Vec<CellSamples>], end: &LaunchEnd) -> Outcome<NextWork> {
        let step = |collective| step_of(collective, end.key.ranks, self.args.dtype);
        let next = next_work(launches, end, &self.args.dtype.to_string(), step);
        let NextWork { cells: next, chosen } = next.map_err(|why| Failure::no(anyhow::anyhow!(why)))?;
        let mut cells: Vec<CellWork> = Vec::new();
        for cell in launches.iter().flatten() {
            let candidates = cell.may_beat_stock();
            let known = cells.iter().any(|known| known.is_of(cell.collective, cell.bytes));
            if !candidates.is_empty() && !known {
                cells.push(CellWork { collective: cell.collective, bytes: cell.bytes, candidates: Some(candidates) });
            }
        }
        next.into_iter().for_each(|cell| cell.join(&mut cells));
        Ok(NextWork { cells, chosen })
    }

    /// This process is a rank that somebody else has started: there is one launch. Rank 0 gets what was measured.
    fn as_a_rank(&self, job: &TuneJob) -> Outcome<Option<MeasuredLaunches>> {
        let mut config = match config_of(&self.args.launch)? {
            Some(config) => config,
            None => return Err(Failure::bad_input(anyhow::anyhow!("--ranks is needed without a launcher"))),
        };
        config.timeout = job.options.limit.max(config.timeout);
        let comm = Communicator::connect(&config).map_err(Failure::no)?;
        let bar = self.screen.progress("tune");
        let mut candidates = job.candidates(&comm, Vec::new()).map_err(rank::told)?;
        let mut log = self.args.log.as_deref().map(|folder| RankLog::open(folder, 1, comm.rank())).transpose()?;
        let mut measure = |work: &[CellWork], candidates: &[TuneCandidate], share: f64| {
            let options = TuneOptions { budget: job.options.budget.mul_f64(share), ..job.options.clone() };
            let say = |cell: &CellSamples| {
                bar.message(format!("{} {}", cell.collective, bytes(cell.bytes)));
                log.iter_mut().for_each(|log| log.add(cell));
            };
            comm.measure(work, candidates, &options, say).map_err(Failure::no)
        };
        let beside = if self.args.load_aware { BESIDE } else { 0.0 };
        let grid = measure(&job.options.grid(), &candidates, FIRST * (1.0 - beside))?;
        // Rank 0 says what comes next.
        let key = comm.table_key().map_err(Failure::no)?;
        let end = Communicator::launch_end(&candidates, key).map_err(Failure::no)?;
        let next = (comm.rank() == 0).then(|| self.next_work(std::slice::from_ref(&grid), &end)).transpose()?;
        let next = serde_json::to_string(&next).map_err(Failure::no)?;
        let next: Option<NextWork> = serde_json::from_str(&shared(&comm, next)?).map_err(Failure::no)?;
        let Some(NextWork { cells, chosen }) = next else { return Ok(None) };
        candidates.extend(TuneCandidate::chosen(&chosen).map_err(Failure::no)?);
        let edges = measure(&cells, &candidates, (1.0 - FIRST) * (1.0 - beside))?;
        let loaded = match self.args.load_aware {
            true => {
                let _burner = Burner::start();
                Some(measure(&job.options.grid(), &candidates, BESIDE)?)
            }
            false => None,
        };
        if comm.rank() > 0 {
            return Ok(None);
        }
        let chosen = vec![None, Some(chosen)];
        Ok(Some(MeasuredLaunches { launches: vec![grid, edges], chosen, loaded, end, ended_early: None }))
    }

    fn tell(
        &self,
        measured: MeasuredTable,
        (loaded, functions): (Option<Vec<LoadedCell>>, Vec<FunctionPlace>),
        (lost, ended_early): (Vec<LostRank>, Option<String>),
        output: &Path,
    ) -> Outcome {
        let MeasuredTable { table, refused } = measured;
        let mut seen = BTreeSet::new();
        for RefusedCandidate { collective, bytes: size, name, refusal, .. } in &refused {
            if seen.insert((collective, name)) {
                let (size, why) = (bytes(*size), &refusal.why);
                self.screen.note(&format!("note: {name} does not compete at {collective} {size}: {why}"));
            }
        }
        for LostRank { rank, launch, why, .. } in &lost {
            self.screen
                .note(&format!("note: rank {rank} was lost in launch {launch}: {why}; the ranks were started again"));
        }
        if let Some(why) = &ended_early {
            self.screen.note(&format!("note: the table has what was measured until the launches were given up: {why}"));
        }
        let named: BTreeSet<&str> = functions.iter().map(|of| of.name.as_str()).collect();
        if table.functions().any(|(_, range)| named.contains(range.function.as_str())) {
            self.screen.note("note: the table names functions; programs that have them call use_candidates");
        }
        let summary = TuneSummary {
            format: "antiphon-tune/1",
            table: output.to_owned(),
            ranks: table.key.ranks,
            seconds: self.begin.elapsed().as_secs_f64(),
            refused,
            lost,
            ended_early,
            functions,
            rows: show::rows(&table),
            violations: tune::violations(&table),
            loaded,
        };
        self.screen.result(&summary, || {
            let loaded = summary.loaded.as_ref().map_or_else(String::new, |cells| format!("\n\n{}", load::text(cells)));
            let places = match summary.functions.is_empty() {
                true => String::new(),
                false => format!("\n\n{}", functions::text(&summary.functions)),
            };
            format!("{}\n\n{}{places}{loaded}", show::text(&table), show::guidelines(&summary.violations))
        })?;
        self.screen.note(&format!("use it with ANTIPHON_TABLE={}", output.display()));
        Ok(())
    }
}

/// Rank 0's text, on all ranks.
fn shared(comm: &Communicator, text: String) -> Outcome<String> {
    let mut length = [text.len() as i64];
    comm.broadcast(&mut length, 0).map_err(Failure::no)?;
    let mut data = text.into_bytes();
    data.resize(length[0].max(0) as usize, 0);
    comm.broadcast(&mut data, 0).map_err(Failure::no)?;
    String::from_utf8(data).map_err(Failure::no)
}

/// The answer of `--json`.
#[derive(Serialize)]
struct TuneSummary {
    format: &'static str,
    table: PathBuf,
    ranks: usize,
    seconds: f64,
    refused: Vec<RefusedCandidate>,
    /// Ranks that were lost while no function of the user's was under way. They were started again.
    lost: Vec<LostRank>,
    /// Why not everything was measured, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    /// The places of the user's functions.
    functions: Vec<FunctionPlace>,
    rows: Vec<show::ShownRange>,
    /// Times that are longer than those of calls that do the same.
    violations: Vec<tune::GuidelineViolation>,
    /// With `--load-aware`: who wins while the ranks compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded: Option<Vec<LoadedCell>>,
}
