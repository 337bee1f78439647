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
mod notes;
mod rank;
mod show;
mod sight;
mod tell;
mod winners;

use crate::amounts::step_of;
use crate::cli::{DeviceChoice, TuneArgs, TuneCommand, TuneMeasureArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::occupancy::Occupancy;
use crate::screen::{Screen, bytes};
use comm::{
    CellSamples, CellWork, LaunchEnd, NextWork, PlanTable, TuneDevice, TuneJob, TuneOptions, final_table, next_work,
};
use given::{named, planned};
use launch::{LaunchSetting, LostRank};
use notes::ShortBudget;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tune::TuningTable;

/// The share of the budget for the first launch, which measures everything.
const FIRST: f64 = 0.6;

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
        collectives: args.collectives(),
        sizes: args.sizes.0.clone(),
        dtype: args.dtype,
        op: args.op,
        budget: args.budget,
        limit: args.timeout,
        seed: args.seed,
        least_samples: args.least_samples,
        device: match args.device {
            DeviceChoice::Host => TuneDevice::Host,
            DeviceChoice::Gpu => TuneDevice::Gpu,
        },
    }
}

fn job_of(args: &TuneMeasureArgs, folder: &Path) -> Outcome<TuneJob> {
    Ok(TuneJob {
        plans: args.plans.clone(),
        named: named(args)?,
        reports: folder.to_owned(),
        joining: args.launch.ready_limit(args.launch.ranks.unwrap_or(1) as usize),
        ..TuneJob::new(options(args))
    })
}

fn measure(args: &TuneMeasureArgs, screen: &Screen) -> Outcome {
    // What was measured is kept.
    let cancel = if args.launch.ranks.is_some() { interrupt::cancels() } else { interrupt::keeps() };
    let folder = tempfile::tempdir().map_err(Failure::no)?;
    let mut job = job_of(args, folder.path())?;
    for path in job.plans.iter().chain(job.named.values()) {
        PlanTable::read(path).map_err(Failure::bad_input)?;
    }
    if args.device == DeviceChoice::Gpu && !args.program.is_empty() {
        return Err(Failure::bad_input(anyhow::anyhow!(
            "functions of a program work on no GPU: --device host measures them"
        )));
    }
    let Some(output) = &args.output else {
        return Err(Failure::bad_input(anyhow::anyhow!("--output is needed")));
    };
    screen.may_write([output])?;
    // Before anything is measured for nothing.
    TuningTable::can_write(output).map_err(Failure::bad_input)?;
    if let Some(spec) = &args.topology {
        job.plans.extend(planned(args, spec, (folder.path(), cancel), screen)?);
    }
    if let Some(log) = &args.log {
        screen.may_replace([&log.join("report.json")])?;
        log::prepare(log, args.launch.ranks.unwrap_or(0) as usize)?;
    }
    let terms = TuneTerms::new(args);
    let tuning = Tuning { args, screen, terms };
    let (began, mut lost) = (SystemTime::now(), Vec::new());
    let measured = match args.launch.ranks {
        Some(ranks) => tuning.in_launches(ranks as usize, job, folder.path(), &mut lost).map(Some),
        None => tuning.as_a_rank(job),
    };
    if let (Some(log), Err(failure)) = (&args.log, &measured) {
        log::merge_failed(log, began, &lost, &failure.to_string())?;
    }
    match measured? {
        Some(measured) => tuning.conclude(measured, lost, output),
        // Another rank writes the table.
        None => Ok(()),
    }
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
    /// How long the first launch took.
    first: Duration,
    /// Whether the user has interrupted it.
    is_interrupted: bool,
}

/// How the time is shared, and what is measured next.
#[derive(Clone)]
struct TuneTerms {
    begin: Instant,
    budget: Duration,
    launches: u32,
    load_aware: bool,
    dtype: runtime::DType,
}

impl TuneTerms {
    fn new(args: &TuneMeasureArgs) -> Self {
        let TuneMeasureArgs { budget, launches, load_aware, dtype, .. } = *args;
        Self { begin: Instant::now(), budget, launches, load_aware, dtype }
    }

    /// What is left of the budget.
    fn left(&self) -> Duration {
        self.budget.saturating_sub(self.begin.elapsed())
    }

    /// The budget of a launch, from 1: most of it is for the first one.
    fn budget(&self, launch: u32) -> Duration {
        let rest = f64::from(self.launches - launch + 1 + u32::from(self.load_aware));
        self.left().mul_f64(if launch == 1 && rest > 1.0 { FIRST } else { 1.0 / rest })
    }

    /// Cells where something may be better than stock, with those that may; what decides the edges between choices; and what
    /// guidelines ask for.
    fn next_work(&self, launches: &[Vec<CellSamples>], end: &LaunchEnd) -> Result<NextWork, String> {
        let step = |collective| step_of(collective, end.key.ranks, self.dtype);
        let NextWork { cells: next, chosen, variants } = next_work(launches, end, &self.dtype.to_string(), step)?;
        let mut cells: Vec<CellWork> = Vec::new();
        for cell in launches.iter().flatten() {
            let candidates = Some(cell.may_beat_stock()).filter(|names| !names.is_empty());
            if candidates.is_some() {
                CellWork { collective: cell.collective, bytes: cell.bytes, candidates }.join(&mut cells);
            }
        }
        next.into_iter().for_each(|cell| cell.join(&mut cells));
        Ok(NextWork { cells, chosen, variants })
    }
}

/// A tuning under way.
struct Tuning<'a> {
    args: &'a TuneMeasureArgs,
    screen: &'a Screen,
    terms: TuneTerms,
}

impl Tuning<'_> {
    /// Local ranks, which are started several times: where memory lies, and on which core a rank runs, differs between
    /// launches.
    fn in_launches(
        &self,
        ranks: usize,
        mut job: TuneJob,
        folder: &Path,
        lost: &mut Vec<LostRank>,
    ) -> Outcome<MeasuredLaunches> {
        if let Some(disturbed) = Occupancy::look().and_then(|seen| seen.disturbs(ranks)) {
            self.screen.note(&format!("warning: {disturbed}"));
        }
        let bar = self.screen.progress("tune");
        let log = self.args.log.as_deref();
        let setting = LaunchSetting { ranks, program: &self.args.program, folder, log };
        let mut launches: Vec<Vec<CellSamples>> = Vec::new();
        let (mut end, mut ended_early, mut chosen) = (None, None, Vec::new());
        let (mut first, mut is_interrupted) = (Duration::ZERO, false);
        for number in 1..=self.args.launches {
            job.launch = number;
            if let Some(end) = &end {
                let next = self.terms.next_work(&launches, end).map_err(|why| Failure::no(anyhow::anyhow!(why)))?;
                (job.work, job.chosen, job.variants) = (Some(next.cells), Some(next.chosen), next.variants);
            }
            chosen.push(job.chosen.clone());
            job.options.budget = self.terms.budget(number);
            let begin = Instant::now();
            let measured = launch::measure(&setting, &mut job, lost, |cell| {
                bar.message(format!("launch {number}: {} {}", cell.collective, bytes(cell.bytes)));
            })?;
            first = if number == 1 { begin.elapsed() } else { first };
            launches.push(measured.cells);
            end = measured.end.or(end);
            (ended_early, is_interrupted) = (measured.ended_early, measured.is_interrupted);
            if ended_early.is_some() || is_interrupted {
                break;
            }
        }
        let loaded = match self.args.load_aware && ended_early.is_none() && !is_interrupted {
            true => {
                job.options.budget = self.terms.left();
                job = TuneJob { work: None, chosen: None, launch: self.args.launches + 1, loaded: true, ..job };
                let say = |_: &CellSamples| bar.message("beside computing");
                let measured = launch::measure(&setting, &mut job, lost, say)?;
                is_interrupted = measured.is_interrupted;
                (!is_interrupted).then_some(measured.cells)
            }
            false => None,
        };
        match end.filter(|_| launches.iter().any(|cells| !cells.is_empty())) {
            Some(end) => Ok(MeasuredLaunches { launches, chosen, loaded, end, ended_early, first, is_interrupted }),
            None if is_interrupted => Err(Failure::interrupted()),
            None => Err(Failure::no(anyhow::anyhow!(ended_early.unwrap_or_else(|| "nothing was measured".to_owned())))),
        }
    }

    /// Writes the table of what was measured, and tells about it.
    fn conclude(&self, measured: MeasuredLaunches, lost: Vec<LostRank>, output: &Path) -> Outcome {
        let MeasuredLaunches { mut launches, chosen, loaded, end, ended_early, first, is_interrupted } = measured;
        let Self { args, screen, .. } = *self;
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
        notes::of_sizes(args, ranks).iter().for_each(|note| screen.note(note));
        let undecided = if is_interrupted { None } else { ShortBudget::of(&launches[0], first, args.budget) };
        self.tell(measured, (loaded, functions, undecided), (lost, ended_early), output)?;
        if is_interrupted {
            let (complete, grid) = (launches[0].len(), options(args).grid(ranks).len());
            return Err(Failure::interrupted_with(anyhow::anyhow!(
                "interrupted: {} has the {complete} of {grid} cells that were complete",
                output.display()
            )));
        }
        Ok(())
    }
}
