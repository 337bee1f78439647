//! `antiphon tune`: measures what could serve each call, on the ranks that will make it, and writes the table of what is faster
//! than stock.

mod launch;
mod rank;
mod show;

use crate::amounts::step_of;
use crate::cli::{TuneArgs, TuneCommand, TuneMeasureArgs, TuneRankArgs};
use crate::content::Content;
use crate::failure::{Failure, Outcome};
use crate::launch::config_of;
use crate::plan;
use crate::screen::{Screen, bytes};
use comm::{CellSamples, CellWork, Communicator, MeasuredTable, TuneOptions, edges_of, table_of};
use rank::{LaunchEnd, TuneJob};
use schedule::{Collective, Request};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synth::Options;

/// The share of the budget for the first launch, which measures everything.
const FIRST: f64 = 0.6;
/// How long planning of one cell may take.
const PLANNING: Duration = Duration::from_secs(2);
/// Plans are made for sizes that differ at least by this factor: the tuner finds out where each is the best.
const PLANNED_FACTOR: u64 = 16;

/// Runs the command.
pub(crate) fn run(args: &TuneArgs, screen: &Screen) -> Outcome {
    match &args.command {
        Some(TuneCommand::Show { table }) => show::show(table, screen),
        Some(TuneCommand::Verify { table }) => show::verify(table, screen),
        Some(TuneCommand::Diff { first, second }) => show::diff(first, second, screen),
        Some(TuneCommand::Nccl { table, output }) => show::nccl(table, output.as_deref(), screen),
        None => measure(&args.measure, screen),
    }
}

/// Runs one of the ranks.
pub(crate) fn run_rank(args: &TuneRankArgs) -> Outcome {
    rank::run(args)
}

fn measure(args: &TuneMeasureArgs, screen: &Screen) -> Outcome {
    let folder = tempfile::tempdir().map_err(Failure::no)?;
    let options = TuneOptions {
        collectives: args.collective.clone(),
        sizes: args.sizes.0.clone(),
        dtype: args.dtype,
        op: args.op,
        budget: args.budget,
        limit: args.timeout,
        seed: args.seed,
    };
    let mut job = TuneJob { options, plans: args.plans.clone(), work: None };
    let Some(output) = &args.output else {
        return Err(Failure::bad_input(anyhow::anyhow!("--output is needed")));
    };
    screen.may_write([output])?;
    if let Some(spec) = &args.topology {
        job.plans.extend(planned(args, spec, folder.path(), screen)?);
    }
    let tuning = Tuning { args, screen, begin: Instant::now() };
    let (launches, end) = match args.launch.ranks {
        Some(ranks) => tuning.in_launches(ranks as usize, job, folder.path())?,
        None => match tuning.as_a_rank(&job)? {
            Some(measured) => measured,
            // Another rank writes the table.
            None => return Ok(()),
        },
    };
    let ranks = end.key.ranks;
    let step = |collective| step_of(collective, ranks, args.dtype);
    let measured = table_of(&launches, &end.texts, end.key, &args.dtype.to_string(), step);
    let measured = measured.map_err(|why| Failure::no(anyhow::anyhow!(why)))?;
    if let Some(path) = &args.samples {
        write_samples(&launches, path)?;
    }
    measured.table.write(output).map_err(Failure::no)?;
    tuning.tell(&measured, output)
}

/// Plans for a topology, as files.
fn planned(args: &TuneMeasureArgs, spec: &str, folder: &Path, screen: &Screen) -> Outcome<Vec<PathBuf>> {
    let topology = plan::topology(spec)?;
    let bar = screen.progress("plan");
    let mut files = Vec::new();
    let mut last = 0;
    let sizes = args.sizes.0.iter().copied().filter(|&size| {
        let is_far = last == 0 || size >= last * PLANNED_FACTOR;
        last = if is_far { size } else { last };
        is_far
    });
    for (index, size) in sizes.enumerate() {
        for &collective in &args.collective {
            bar.message(format!("{collective} {}", bytes(size)));
            let mut request = Request::new(collective, topology.rank_count(), size);
            request.op = collective.combines().then_some(args.op);
            request.root = collective.is_rooted().then_some(topology::Rank(0));
            let problems = plan::problems(&topology, &request, &Content::Standard, None, None)?;
            let options = Options { time_limit: Some(PLANNING), seed: args.seed, ..Options::default() };
            let found = synth::synthesize(&problems, &options, &|_| {}).map_err(Failure::no)?;
            let file = folder.join(format!("{collective}-{index}-{size}.json"));
            plan::save(&found.schedule, &file)?;
            files.push(file);
        }
    }
    Ok(files)
}

/// All that was measured, by launch, and what is known at the end.
type MeasuredLaunches = (Vec<Vec<CellSamples>>, LaunchEnd);

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

    /// Local ranks, which are started several times: where memory lies, and on which core a rank runs, differs between launches.
    fn in_launches(&self, ranks: usize, mut job: TuneJob, folder: &Path) -> Outcome<MeasuredLaunches> {
        let bar = self.screen.progress("tune");
        let mut launches: Vec<Vec<CellSamples>> = Vec::new();
        let mut end = None;
        for number in 1..=self.args.launches {
            if number > 1 {
                job.work = Some(self.next_work(&launches, ranks));
            }
            let rest = f64::from(self.args.launches - number + 1);
            let share = if number == 1 && rest > 1.0 { FIRST } else { 1.0 / rest };
            job.options.budget = self.left().mul_f64(share);
            let (samples, told) = launch::measure(ranks, &job, folder, |cell| {
                bar.message(format!("launch {number}: {} {}", cell.collective, bytes(cell.bytes)));
            })?;
            launches.push(samples);
            end = Some(told);
        }
        let none = || Failure::no(anyhow::anyhow!("nothing was measured"));
        Ok((launches, end.ok_or_else(none)?))
    }

    /// Cells where something may be better than stock, with those that may; and what decides the edges between choices.
    fn next_work(&self, launches: &[Vec<CellSamples>], ranks: usize) -> Vec<CellWork> {
        let mut work: Vec<CellWork> = Vec::new();
        for cell in launches.iter().flatten() {
            let rivals = cell.rivals();
            let known = work.iter().any(|known| (known.collective, known.bytes) == (cell.collective, cell.bytes));
            if !rivals.is_empty() && !known {
                work.push(CellWork { collective: cell.collective, bytes: cell.bytes, candidates: Some(rivals) });
            }
        }
        let edges = edges_of(launches, |collective| step_of(collective, ranks, self.args.dtype));
        let is_new =
            |edge: &CellWork| work.iter().all(|known| (known.collective, known.bytes) != (edge.collective, edge.bytes));
        let edges: Vec<CellWork> = edges.into_iter().filter(is_new).collect();
        work.extend(edges);
        work
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
        let say = |cell: &CellSamples| bar.message(format!("{} {}", cell.collective, bytes(cell.bytes)));
        let candidates = job.candidates(&comm)?;
        let measure = |work: &[CellWork], share: f64| {
            let options = TuneOptions { budget: job.options.budget.mul_f64(share), ..job.options.clone() };
            comm.measure(work, &candidates, &options, say).map_err(Failure::no)
        };
        let grid = measure(&job.options.grid(), FIRST)?;
        // Rank 0 says what decides the edges.
        let step = |collective| step_of(collective, comm.size(), job.options.dtype);
        let edges = serde_json::to_string(&edges_of(std::slice::from_ref(&grid), step)).map_err(Failure::no)?;
        let edges: Vec<CellWork> = serde_json::from_str(&shared(&comm, edges)?).map_err(Failure::no)?;
        let edges = measure(&edges, 1.0 - FIRST)?;
        if comm.rank() > 0 {
            return Ok(None);
        }
        Ok(Some((vec![grid, edges], LaunchEnd::new(&comm, &candidates)?)))
    }

    fn tell(&self, measured: &MeasuredTable, output: &Path) -> Outcome {
        let MeasuredTable { table, refused } = measured;
        let mut seen = BTreeSet::new();
        for (collective, size, name, why) in refused {
            if seen.insert((collective, name)) {
                self.screen.note(&format!("note: {name} does not compete at {collective} {}: {why}", bytes(*size)));
            }
        }
        let summary = TuneSummary {
            table: output.to_owned(),
            ranks: table.key.ranks,
            seconds: self.begin.elapsed().as_secs_f64(),
            refused: refused.len(),
            rows: show::rows(table),
        };
        self.screen.result(&summary, || show::text(table))?;
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
    table: PathBuf,
    ranks: usize,
    seconds: f64,
    refused: usize,
    rows: Vec<show::ShownRange>,
}

/// One line for each candidate of each cell of each launch.
fn write_samples(launches: &[Vec<CellSamples>], path: &Path) -> Outcome {
    #[derive(Serialize)]
    struct SampleLine<'a> {
        launch: usize,
        collective: Collective,
        bytes: u64,
        #[serde(flatten)]
        candidate: &'a comm::CandidateSamples,
    }
    crate::failure::write_to(path, |out: &mut dyn Write| {
        for (launch, cell) in launches.iter().enumerate().flat_map(|(at, cells)| cells.iter().map(move |it| (at, it))) {
            for candidate in &cell.candidates {
                let line = SampleLine { launch: launch + 1, collective: cell.collective, bytes: cell.bytes, candidate };
                serde_json::to_writer(&mut *out, &line)?;
                out.write_all(b"\n")?;
            }
        }
        Ok(())
    })
}
