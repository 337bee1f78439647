//! `antiphon sweep`: many problems, planned by many workers, into one folder.
//!
//! The principal type is [`Foreman`]. It hands cells ([`cells`]) to a crew ([`crew`]: processes of this computer, or
//! under `mpirun` those of all hosts) and stores the results ([`store`]), so that a sweep that was stopped can be
//! continued. A cell whose worker dies is handed out again, [`ATTEMPTS`] times in all. The results do not depend on the
//! number of workers, because the warm starts of a cell do not.

mod cells;
mod crew;
#[cfg(feature = "mpi")]
mod mpi;
mod store;
mod worker;

pub(crate) use worker::run as run_worker;

use crate::cli::SweepArgs;
use crate::failure::{Failure, Outcome, io_failure, read_text};
use crate::screen::{Screen, bytes, percent, table, time};
use cells::{SweepCell, SweepGrid};
use crew::{Crew, CrewEvent, Hiring, Local, News, PlanningOrder};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use store::{MergedRecord, Record, Store};
use synth::{Cancel, SearchOptions};
use topology::counted;

/// How often a cell whose worker dies is tried.
const ATTEMPTS: u32 = 3;
/// How often Ctrl-C is checked.
const GLANCE: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn run(args: &SweepArgs, screen: &Screen) -> Outcome {
    let hiring = Hiring::new(&args.search);
    #[cfg(feature = "mpi")]
    if let Some(world) = mpi::World::join()? {
        return world.run(hiring, |crew| lead(args, crew, screen));
    }
    if launched_by_mpi() {
        let reason =
            anyhow::anyhow!("this is one of several processes of mpirun, but the program was built without MPI");
        return Err(Failure::bad_input(reason).hint("build it with `cargo build --release --features mpi`"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = usize::from(args.search.threads.unwrap_or(1));
    let jobs = args.jobs.map_or((cores / threads).max(1), usize::from);
    lead(args, &mut Local::new(hiring, jobs), screen)
}

/// Whether an MPI launcher started several of these processes.
fn launched_by_mpi() -> bool {
    let several =
        |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok()).is_some_and(|size| size > 1);
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"].into_iter().any(several)
}

/// Opens the folder, plans the cells, and writes the results.
fn lead(args: &SweepArgs, crew: &mut dyn Crew, screen: &Screen) -> Outcome {
    let grid = SweepGrid::new(args);
    let store = Store::open(&args.output, &manifest(args, &grid)?)?;
    let cancel = crate::interrupt::cancels();
    let records = grid.cells.iter().enumerate().map(|(number, _)| store.record(number)).collect();
    let foreman = Foreman { grid: &grid, store: &store, screen, cancel: &cancel, records, attempts: BTreeMap::new() };
    let records = foreman.work(crew)?;
    let options = SearchOptions { cancel: cancel.clone(), ..SearchOptions::default() };
    let series = windows(&grid, &store, &records, &options)?;
    let open = records.iter().filter(|record| record.is_none()).count();
    let failed = records.iter().filter(|record| matches!(record, Some(Record::Failed { .. }))).count();
    let merged = grid.cells.iter().zip(&records).enumerate();
    let merged = merged.map(|(number, (cell, record))| MergedRecord::new(number, cell, record.as_ref()));
    let results = Results { format: FORMAT, cells: merged.collect::<Outcome<_>>()?, series };
    let text = serde_json::to_string_pretty(&results).map_err(Failure::no)?;
    store.write("results.json", &format!("{text}\n"))?;
    screen.result(&results, || report(&grid, &records, &results, &args.output))?;
    let folder = args.output.display();
    match (open, failed) {
        (0, 0) => Ok(()),
        (0, failed) => Err(Failure::no(anyhow::anyhow!("{failed} of {} cells failed", records.len()))
            .hint("the same command tries them again")),
        (open, _) => {
            Err(Failure::interrupted_with(anyhow::anyhow!("interrupted: {open} of {} cells are open", records.len()))
                .hint(format!("what is done is in {folder}; the same command continues it")))
        }
    }
}

/// Everything that the answer depends on, as text.
fn manifest(args: &SweepArgs, grid: &SweepGrid) -> Outcome<String> {
    let mut topologies = BTreeMap::new();
    for spec in args.topology.iter().flat_map(|list| &list.0) {
        topologies.insert(spec, crate::plan::topology(spec)?.digest());
    }
    let mut sketches = BTreeMap::new();
    for path in grid.cells.iter().filter_map(|cell| cell.sketch.as_deref()) {
        if !sketches.contains_key(path) {
            sketches.insert(path, read_text(path)?);
        }
    }
    if let Some(cell) = grid.cells.iter().find(|cell| cell.collective.is_listed()) {
        let reason = anyhow::anyhow!("a sweep is for collectives whose chunks follow from the size");
        return Err(
            Failure::bad_input(reason).hint(format!("the chunks of {} have sizes of their own", cell.collective))
        );
    }
    // Threads and workers are not included: the answer does not depend on them.
    let search = crate::cli::SearchArgs { threads: None, ..args.search.clone() }.to_words();
    let manifest = serde_json::json!({
        "format": "antiphon-sweep-manifest/1", "version": env!("CARGO_PKG_VERSION"), "search": search,
        "topologies": topologies, "sketches": sketches, "cells": grid.cells,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&manifest).map_err(Failure::no)?))
}

/// Hands out the cells.
struct Foreman<'a> {
    grid: &'a SweepGrid,
    store: &'a Store,
    screen: &'a Screen,
    cancel: &'a Cancel,
    /// The record of every finished cell.
    records: Vec<Option<Record>>,
    /// How many workers died while they planned each cell.
    attempts: BTreeMap<usize, u32>,
}

impl Foreman<'_> {
    /// Has all cells planned; if the user interrupts, returns those that are done.
    fn work(mut self, crew: &mut dyn Crew) -> Outcome<Vec<Option<Record>>> {
        let bar = self.screen.progress("sweeping");
        let mut at_work: Vec<Option<usize>> = vec![None; crew.size()];
        while !self.cancel.is_cancelled() {
            for worker in 0..at_work.len() {
                if at_work[worker].is_some() {
                    continue;
                }
                let Some(number) = self.next(&at_work) else { break };
                let who = crew.give(worker, &self.order(number))?;
                at_work[worker] = Some(number);
                self.screen.detail(&format!("cell {number}: worker {worker} ({who}) begins"));
            }
            if at_work.iter().all(Option::is_none) {
                break;
            }
            bar.message(self.state(&at_work));
            let Some(CrewEvent { worker, news }) = crew.next(GLANCE)? else { continue };
            let Some(number) = at_work[worker].take() else { continue };
            match news {
                News::Done(reply) if reply.number == number => self.keep(number, reply.record)?,
                News::Done(reply) => self.bury(number, worker, &format!("it answered for cell {}", reply.number))?,
                News::Died(reason) => self.bury(number, worker, &reason)?,
            }
        }
        Ok(self.records)
    }

    /// The first cell that no worker has and whose warm starts are there, or will never be there.
    fn next(&self, at_work: &[Option<usize>]) -> Option<usize> {
        let open = |number: &usize| self.records[*number].is_none() && !at_work.contains(&Some(*number));
        let ready = |number: &usize| self.grid.warm[*number].iter().all(|&other| self.records[other].is_some());
        (0..self.records.len()).find(|number| open(number) && ready(number))
    }

    fn order(&self, number: usize) -> PlanningOrder {
        let found = |other: &&usize| matches!(self.records[**other], Some(Record::Found { .. }));
        let path = |number: usize| self.store.path(&Store::plan_name(number));
        PlanningOrder {
            number,
            cell: self.grid.cells[number].clone(),
            warm: self.grid.warm[number].iter().filter(found).map(|&other| path(other)).collect(),
            plan: path(number),
        }
    }

    fn keep(&mut self, number: usize, record: Record) -> Outcome {
        self.store.keep(number, &record)?;
        self.screen.detail(&format!("cell {number}: finished"));
        self.records[number] = Some(record);
        Ok(())
    }

    /// Records that a worker died while it planned a cell.
    fn bury(&mut self, number: usize, worker: usize, reason: &str) -> Outcome {
        let attempts = self.attempts.entry(number).or_default();
        *attempts += 1;
        let again = if *attempts < ATTEMPTS { "it is redone" } else { "it is given up" };
        let failed = *attempts >= ATTEMPTS;
        self.screen.note(&format!("cell {number}: worker {worker} is lost ({reason}); {again}"));
        if failed {
            self.keep(number, Record::Failed { reason: format!("{ATTEMPTS} workers were lost; the last: {reason}") })?;
        }
        Ok(())
    }

    fn state(&self, at_work: &[Option<usize>]) -> String {
        let done = self.records.iter().flatten().count();
        let busy = at_work.iter().flatten().map(|&number| describe(&self.grid.cells[number]));
        format!("{done} of {} cells · {}", self.records.len(), busy.collect::<Vec<_>>().join(" · "))
    }
}

fn describe(cell: &SweepCell) -> String {
    format!("{} {} on {}", cell.collective, bytes(cell.size_bytes), cell.topology)
}

/// The `format` of the results.
const FORMAT: &str = "antiphon-sweep-results/1";

/// The file `results.json`.
#[derive(Serialize)]
struct Results<'a> {
    format: &'static str,
    /// By number.
    cells: Vec<MergedRecord<'a>>,
    series: Vec<Series<'a>>,
}

/// Cells that differ only in size, and the plan for each size.
#[derive(Serialize)]
struct Series<'a> {
    topology: &'a str,
    collective: schedule::Collective,
    sketch: Option<&'a Path>,
    chunks: Option<u32>,
    /// An index like that of `synth --sizes`, relative to the folder; absent if some size has no plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    windows: Option<usize>,
}

/// Chooses the plans of every series that has one for every size, and saves them with their index.
fn windows<'a>(
    grid: &'a SweepGrid,
    store: &Store,
    records: &[Option<Record>],
    options: &SearchOptions,
) -> Outcome<Vec<Series<'a>>> {
    let mut all = Vec::new();
    for (number, numbers) in grid.series().enumerate() {
        let cells = &grid.cells[numbers.clone()];
        let Some(SweepCell { topology, collective, sketch, chunks, .. }) = cells.first() else { continue };
        let mut series = Series {
            topology,
            collective: *collective,
            sketch: sketch.as_deref(),
            chunks: *chunks,
            index: None,
            windows: None,
        };
        if records[numbers.clone()].iter().all(|record| matches!(record, Some(Record::Found { .. }))) {
            let desk = worker::PreparedCell::new(&cells[0])?;
            let plans = numbers.map(|number| desk.open(&store.path(&Store::plan_name(number))));
            let plans = plans.collect::<Outcome<Vec<_>>>()?;
            let sizes: Vec<u64> = cells.iter().map(|cell| cell.size_bytes).collect();
            let found = synth::select_sizes(&desk.task, &sizes, &plans, options).map_err(Failure::no)?;
            let index = super::sizes::index(&desk.task, &found);
            let name = format!("windows/{number}");
            let folder = store.path(&name);
            std::fs::create_dir_all(&folder).map_err(|error| io_failure(&folder, error))?;
            super::sizes::save(&folder, &index, &found)?;
            (series.index, series.windows) = (Some(format!("{name}/index.json")), Some(index.windows.len()));
        }
        all.push(series);
    }
    Ok(all)
}

fn report(grid: &SweepGrid, records: &[Option<Record>], results: &Results<'_>, folder: &Path) -> String {
    let rows = grid.cells.iter().zip(records).map(|(cell, record)| {
        let sketch =
            cell.sketch.as_ref().and_then(|path| path.file_stem()).map_or("–".into(), |it| it.to_string_lossy());
        let mut row = vec![describe(cell), sketch.into_owned()];
        row.extend(match record {
            Some(Record::Found { makespan_us, gap, strategy, chunks_per_rank, seconds, .. }) => {
                let took = format!("{seconds:.2} s");
                vec![time(*makespan_us), percent(*gap), strategy.clone(), chunks_per_rank.to_string(), took]
            }
            Some(Record::None { reason } | Record::Failed { reason }) => {
                vec![reason.lines().next().unwrap_or_default().chars().take(60).collect()]
            }
            None => vec!["open".to_owned()],
        });
        row
    });
    let rows: Vec<_> = rows.collect();
    let done = records.iter().flatten().count();
    let windows: usize = results.series.iter().filter_map(|series| series.windows).sum();
    format!(
        "{done} of {}, {} for {} series; written to {}\n\n{}",
        counted(rows.len(), "cell"),
        counted(windows, "plan"),
        results.series.len(),
        folder.display(),
        table(&["cell", "sketch", "makespan", "gap", "plan", "chunks", "took"], &rows),
    )
}
