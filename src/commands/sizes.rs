//! `antiphon synth --sizes`: a few plans, each for a window of sizes, and the index that lists them.
//!
//! The principal type is [`Index`], the file `index.json` (`antiphon-sweep/1`):
//!
//! | field | meaning |
//! |---|---|
//! | `topology` {name, digest}, `collective`, `op`, `root`, `ranks`, `members` | the request, as in a schedule |
//! | `tolerance` | how much slower (relative) than the best plan found a window's plan may be at a size |
//! | `windows[]` {from_bytes, to_bytes, file, …} | disjoint and without holes; `to_bytes` is exclusive; `file` is relative to the index and timed for `size_bytes`, the largest size asked of the window |
//! | `sizes[]` {size_bytes, makespan_us, best_us, lower_bound_us, bound, gap, window, searched} | every size asked: the window's plan there, the best plan found, the bound, and whether the size was searched or served by plans of others |
//!
//! The plans have their window among the options of `produced_by`, so that `export` knows it.

use crate::cli::{ChunkCount, RequestArgs, SizeList, SynthArgs};
use crate::failure::{Failure, Outcome, io_failure, write_to};
use crate::interrupt;
use crate::plan;
use crate::screen::{Screen, bytes, percent, table, time};
use schedule::{Collective, Request, TopologyRef};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use synth::sketch::Sketch;
use synth::{Constraints, SizeSweep, SizeTask};
use topology::{Rank, counted, shorten};

/// What the `format` key of an index says.
pub(crate) const FORMAT: &str = "antiphon-sweep/1";

/// The file `index.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Index {
    format: &'static str,
    topology: TopologyRef,
    collective: Collective,
    op: Option<schedule::ReduceOp>,
    root: Option<Rank>,
    ranks: usize,
    members: Vec<Rank>,
    tolerance: f64,
    /// By size.
    pub windows: Vec<IndexWindow>,
    /// By size.
    pub sizes: Vec<Size>,
}

/// A plan and the sizes it is for.
#[derive(Debug, Serialize)]
pub(crate) struct IndexWindow {
    /// From this size on (inclusive).
    pub from_bytes: u64,
    /// Up to this size (exclusive).
    pub to_bytes: u64,
    /// Relative to the index.
    pub file: String,
    size_bytes: u64,
    strategy: String,
    chunks_per_rank: u32,
    transfers: usize,
}

/// One of the sizes asked.
#[derive(Debug, Serialize)]
pub(crate) struct Size {
    size_bytes: u64,
    makespan_us: f64,
    best_us: f64,
    lower_bound_us: f64,
    bound: String,
    gap: Option<f64>,
    window: usize,
    searched: bool,
}

/// Runs the command.
pub(crate) fn run(args: &SynthArgs, sizes: &SizeList, screen: &Screen) -> Outcome {
    let started = Instant::now();
    screen.may_replace(&args.output.as_ref().map(|folder| folder.join("index.json")))?;
    let topology = plan::topology(&args.request.topology)?;
    let sketch = args.request.sketch.as_deref().map(|path| plan::sketch(path, &topology)).transpose()?;
    let task = task(&args.request, topology, sketch.as_ref())?;
    let options = plan::options(&args.search, sketch.as_ref());
    let bar = screen.progress("planning");
    let outcome = synth::synthesize_sizes(&task, &sizes.0, &options, &|progress| bar.show(&progress));
    drop(bar);
    let found =
        outcome.map_err(|error| super::synth::explain(error, args.request.sketch.as_deref(), options.strategy))?;
    let index = index(&task, &found);
    if let Some(folder) = &args.output {
        save(folder, &index, &found)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    screen.result(&SizesReport { index: &index, seconds }, || report(&index, seconds, args.output.as_deref()))?;
    match interrupt::was_raised() {
        false => Ok(()),
        true => Err(Failure::interrupted_with(anyhow::anyhow!("interrupted: some sizes were not searched to the end"))
            .hint("what was found is right; the same command without Ctrl-C may find better plans")),
    }
}

/// The answer of `--json`: the index, and the time of the search.
#[derive(Serialize)]
struct SizesReport<'a> {
    #[serde(flatten)]
    index: &'a Index,
    seconds: f64,
}

fn task(args: &RequestArgs, topology: Arc<::topology::Topology>, sketch: Option<&Sketch>) -> Outcome<SizeTask> {
    if args.collective.is_listed() {
        let reason = anyhow::anyhow!("--sizes is for collectives whose chunks follow from the size");
        return Err(
            Failure::bad_input(reason).hint(format!("the chunks of {} have sizes of their own", args.collective))
        );
    }
    if args.groups.is_some() {
        return Err(Failure::bad_input(anyhow::anyhow!("--groups is for one --size")));
    }
    let request = plan::request(args, &topology, 0)?;
    let pinned = match args.chunks {
        ChunkCount::Pinned(count) => Some(count),
        ChunkCount::Auto => sketch.and_then(|sketch| sketch.pins.chunks_per_rank),
    };
    let constraints = Arc::new(sketch.map_or_else(Constraints::none, |sketch| sketch.constraints.clone()));
    Ok(SizeTask { topology, constraints, request, chunks: pinned })
}

/// The index of a sweep whose plans are saved beside it.
pub(crate) fn index(task: &SizeTask, found: &SizeSweep) -> Index {
    let Request { collective, op, root, ranks, members, .. } = task.request.clone();
    let window = |(number, window): (usize, &synth::Windowed)| {
        let schedule = window.schedule.schedule();
        let request = schedule.demand.request();
        IndexWindow {
            from_bytes: window.from_bytes,
            to_bytes: window.to_bytes,
            file: format!("plan-{number}.json"),
            size_bytes: request.size_bytes,
            strategy: schedule.produced_by.strategy.clone(),
            chunks_per_rank: request.chunks_per_rank,
            transfers: schedule.transfers.len(),
        }
    };
    let size = |at: &synth::AtSize| Size {
        size_bytes: at.size_bytes,
        makespan_us: at.makespan.0,
        best_us: at.best.0,
        lower_bound_us: at.bound.value.0,
        bound: at.bound.name.clone(),
        gap: (at.bound.value.0 > 0.0).then(|| at.makespan / at.bound.value - 1.0),
        window: at.window,
        searched: at.searched,
    };
    Index {
        format: FORMAT,
        topology: TopologyRef::to(&task.topology),
        collective,
        op,
        root,
        ranks,
        members: members.to_vec(),
        tolerance: synth::TOLERANCE,
        windows: found.windows.iter().enumerate().map(window).collect(),
        sizes: found.sizes.iter().map(size).collect(),
    }
}

/// Writes the plans, then the index that names them.
pub(crate) fn save(folder: &Path, index: &Index, found: &SizeSweep) -> Outcome {
    std::fs::create_dir_all(folder).map_err(|error| io_failure(folder, error))?;
    for (window, plan) in index.windows.iter().zip(&found.windows) {
        plan::save(&plan.schedule, &folder.join(&window.file))?;
    }
    let text = serde_json::to_string_pretty(index).map_err(Failure::no)?;
    write_to(&folder.join("index.json"), |out| writeln!(out, "{text}"))
}

fn report(index: &Index, seconds: f64, output: Option<&Path>) -> String {
    let rows = index.sizes.iter().map(|size| {
        let window = &index.windows[size.window];
        vec![
            bytes(size.size_bytes),
            time(size.makespan_us),
            time(size.lower_bound_us),
            percent(size.gap),
            size.window.to_string(),
            window.strategy.clone(),
            window.chunks_per_rank.to_string(),
            if size.searched { "searched" } else { "shared" }.to_owned(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let windows = index.windows.iter().enumerate().map(|(number, window)| {
        let last = window.to_bytes.saturating_sub(1);
        vec![format!("{number}"), bytes(window.from_bytes), bytes(last), window.file.clone()]
    });
    let windows: Vec<_> = windows.collect();
    let saved = output.map_or(String::new(), |folder| format!("\nwritten to {}", folder.display()));
    format!(
        "{} on {}: {} for {} ({seconds:.2} s){saved}\n\n{}\n\n{}",
        index.collective,
        shorten(&index.topology.name),
        counted(windows.len(), "plan"),
        counted(rows.len(), "size"),
        table(&["size", "makespan", "bound", "gap", "window", "plan", "chunks", "work"], &rows),
        table(&["window", "from", "to", "file"], &windows),
    )
}
