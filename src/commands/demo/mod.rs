//! `antiphon demo`: the main job, end to end, on this computer.
//!
//! There are two machines: this computer, profiled at the start, and an unequal cluster that is emulated on it with
//! paced links. On each, for three collectives and three sizes, the best classic algorithm (stock) is compared with our
//! plan. Both obey the same sketch, are verified, run by real processes on real buffers, checked, and measured in turn.
//! At the end the plans for this computer are tuned, and a small program uses the table through the library.
//!
//! | file | what is in it |
//! |---|---|
//! | `program` | the small program |
//! | `tuned` | tuning, and the program without the table and with it |

mod program;
mod tuned;

use crate::amounts::count;
use crate::cli::{DemoArgs, LoweringArgs, TransportChoice};
use crate::commands::profile;
use crate::content::Content;
use crate::failure::{Failure, Outcome, io_failure, read_text, write_to};
use crate::interrupt;
use crate::known::machines_of;
use crate::launch::Launch;
use crate::loading::MemoryMode;
use crate::plan;
use crate::screen::{Screen, bytes, percent, table, time};
use crate::workbench::{Setup, Workbench};
use interop::view;
use runtime::{Check, DType, Trial};
use schedule::{Collective, Request, VerifiedSchedule};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use synth::sketch::{Sketch, SketchFile};
use synth::{SearchOptions, StrategyKind, Synthesis};
use topology::Topology;
use topology::profile::ProfileOptions;
use tune::{
    Choice, Evidence, MeasuredSize, Summary, TableCell, TableKey, TuningTable, decide, interleaved, ranges, summarize,
};

const RANKS: u32 = 8;
const COLLECTIVES: [Collective; 3] = [Collective::AllGather, Collective::AllReduce, Collective::AllToAll];
const SIZES: [u64; 3] = [256 << 10, 1 << 20, 4 << 20];
/// Emulated links are slower than the real ones by this factor, so that this computer is not the bottleneck.
const SLOWDOWN: f64 = 1000.0;
/// The most time for one plan; most need far less.
const PLANNING: Duration = Duration::from_millis(900);
/// Repetitions of each candidate, in this many blocks; candidates alternate block by block.
const REPETITIONS: u32 = 9;
const BLOCKS: u32 = 3;
/// The sketch if the user gives none.
const SKETCH: &str = include_str!("../../../sketches/demo.yaml");

/// A machine on which collectives are compared.
struct DemoMachine {
    name: &'static str,
    topology: Arc<Topology>,
    sketch: Option<Sketch>,
    emulate: Option<(String, f64)>,
}

/// One algorithm in one cell.
#[derive(Serialize)]
struct MeasuredAlgorithm {
    plan: String,
    file: String,
    predicted_us: f64,
    measured: Summary,
}

/// One collective at one size.
#[derive(Serialize)]
struct PlanComparison {
    arena: &'static str,
    topology: String,
    collective: Collective,
    size_bytes: u64,
    ranks: usize,
    stock: MeasuredAlgorithm,
    planned: MeasuredAlgorithm,
    gap: Option<f64>,
    choice: Choice,
    speedup_predicted: f64,
    speedup_measured: f64,
    wrong: u64,
}

/// Runs the command.
pub(crate) fn run(args: &DemoArgs, screen: &Screen) -> Outcome {
    interrupt::ends(screen);
    let started = Instant::now();
    check(args)?;
    let plans = args.output.join("plans");
    std::fs::create_dir_all(&plans).map_err(|error| io_failure(&plans, error))?;
    let arenas = [local(args, screen)?, emulated(args, screen)?];
    let mut cells = Vec::new();
    let (mut text, mut markdown) = (String::new(), String::new());
    for arena in &arenas {
        let fresh = compare(args, arena, screen)?;
        let block = format!("\n{}\n{}\n", heading(arena), report(&fresh));
        screen.say(&block);
        text.push_str(&block);
        markdown.push_str(&format!("{}\n\n{}\n\n", heading(arena), in_markdown(&fresh)));
        cells.extend(fresh);
    }
    tuning(&args.output, &arenas[1], &cells)?;
    let ours = cells.iter().filter(|cell| cell.arena == arenas[0].name);
    let plans: Vec<PathBuf> = ours.map(|cell| args.output.join(&cell.planned.file)).collect();
    let calls = tuned::tuned(&args.output, &plans, screen)?;
    let block = format!("\n{}\n", tuned::report(&calls));
    screen.say(&block);
    text.push_str(&block);
    write_text(&args.output.join("table.txt"), &text)?;
    write_text(&args.output.join("table.md"), &markdown)?;
    let answer = serde_json::json!({"format": "antiphon-demo/1", "cells": cells, "program": calls});
    write_text(&args.output.join("results.json"), &serde_json::to_string_pretty(&answer).map_err(Failure::no)?)?;
    draw(args, &arenas[1])?;
    if screen.is_json() {
        screen.line(&answer.to_string());
    }
    screen.say(&format!(
        "everything is in {}, made in {:.0} s",
        args.output.display(),
        started.elapsed().as_secs_f64()
    ));
    let of_program = calls.iter().map(|call| call.wrong).sum::<u64>();
    match of_program + cells.iter().map(|cell| cell.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// Checks the user's files and names before anything takes time.
fn check(args: &DemoArgs) -> Outcome {
    let topology = plan::topology(&args.emulate)?;
    match &args.sketch {
        Some(path) => plan::sketch(path, &topology).map(drop),
        None => Ok(()),
    }
}

/// This computer, profiled now.
fn local(args: &DemoArgs, screen: &Screen) -> Outcome<DemoMachine> {
    let path = args.output.join("measured.yaml");
    // The demo should be quick, so the profile is; `antiphon profile` takes more time.
    let subject = profile::Subject::local(RANKS as usize);
    let measured = profile::measure(&subject, ProfileOptions::quick(), 0, screen)?.measured;
    write_text(&path, &measured.to_yaml(&subject.about()))?;
    screen.say(&format!("profile  {} → {}", profile::summary(&measured), path.display()));
    let topology = plan::topology(&path.display().to_string().replace('\\', "/"))?;
    arena("this computer", topology, None, args, screen)
}

/// An unequal cluster, emulated by paced links.
fn emulated(args: &DemoArgs, screen: &Screen) -> Outcome<DemoMachine> {
    let topology = plan::topology(&args.emulate)?;
    arena("emulated", topology, Some((args.emulate.clone(), SLOWDOWN)), args, screen)
}

fn arena(
    name: &'static str,
    topology: Arc<Topology>,
    emulate: Option<(String, f64)>,
    args: &DemoArgs,
    screen: &Screen,
) -> Outcome<DemoMachine> {
    let sketch = match &args.sketch {
        Some(path) => Some(plan::sketch(path, &topology)?),
        None => {
            let path = args.output.join("sketch.yaml");
            write_text(&path, SKETCH)?;
            let file = SketchFile::parse(SKETCH, &path.display().to_string()).map_err(Failure::no)?;
            let fitting = file.resolve(&topology);
            fitting.inspect_err(|misfit| screen.note(&format!("planning without a sketch: {misfit}"))).ok()
        }
    };
    Ok(DemoMachine { name, topology, sketch, emulate })
}

/// Plans, runs and measures every cell of a machine.
fn compare(args: &DemoArgs, arena: &DemoMachine, screen: &Screen) -> Outcome<Vec<PlanComparison>> {
    let setup = Setup {
        launch: Launch::Local(arena.topology.rank_count()),
        transport: TransportChoice::Shm,
        emulate: arena.emulate.clone(),
        ready_timeout: Duration::from_secs(30),
        timeout: Some(Duration::from_secs(30)),
        lowering: LoweringArgs::default(),
    };
    let mut bench = Workbench::open(&setup)?;
    let bar = screen.progress(arena.name);
    let ours = SearchOptions { time_limit: Some(PLANNING), seed: args.seed, ..SearchOptions::default() };
    let classic = SearchOptions { strategy: Some(StrategyKind::Classic), ..ours.clone() };
    let mut cells = Vec::new();
    for collective in COLLECTIVES {
        for size in SIZES {
            bar.message(format!("{collective} {}", bytes(size)));
            let request = Request::new(collective, arena.topology.rank_count(), size);
            let stock = synthesize(arena, &request, &classic)?;
            let planned = synthesize(arena, &request, &ours)?;
            cells.push(measure(args, arena, &mut bench, [stock, planned])?);
        }
    }
    Ok(cells)
}

/// Plans with one strategy, or with all; always under the sketch, so that the comparison is fair.
fn synthesize(arena: &DemoMachine, request: &Request, options: &SearchOptions) -> Outcome<Synthesis> {
    let problems = plan::problems(&arena.topology, request, &Content::Standard, arena.sketch.as_ref(), None)?;
    synth::synthesize(&problems, options, &|_| {}).map_err(Failure::no)
}

/// Runs stock and plan in turn, and decides which one is better.
fn measure(
    args: &DemoArgs,
    arena: &DemoMachine,
    bench: &mut Workbench,
    [stock, planned]: [Synthesis; 2],
) -> Outcome<PlanComparison> {
    let request = planned.schedule.schedule().demand.request().clone();
    let (count, size_bytes) = count(&request, request.size_bytes, DType::F32, 1);
    let installed = [bench.install(&stock.schedule)?, bench.install(&planned.schedule)?];
    let mut spans = [Vec::new(), Vec::new()];
    let mut wrong = 0;
    for turn in interleaved(installed.len(), BLOCKS, REPETITIONS) {
        let (warmups, repetitions) = (turn.warmups, turn.repetitions);
        let trial = Trial {
            count,
            dtype: DType::F32,
            warmups,
            repetitions,
            seed: args.seed,
            check: Check::FirstAndLast,
            steps: false,
        };
        let report = bench.run(&installed[turn.candidate], MemoryMode::OutOfPlace, &trial)?;
        spans[turn.candidate].extend(report.spans().iter().map(|span| span.0));
        wrong += report.wrong();
    }
    let slowdown = arena.emulate.as_ref().map_or(1.0, |(_, slowdown)| *slowdown);
    let side = |label: &str, synthesis: &Synthesis, spans: &[f64]| -> Outcome<MeasuredAlgorithm> {
        let file = save(args, arena, label, &synthesis.schedule)?;
        let measured = summarize(spans).ok_or_else(|| Failure::no(anyhow::anyhow!("nothing was measured")))?;
        let predicted_us = synthesis.report.makespan_us * slowdown;
        Ok(MeasuredAlgorithm { plan: synthesis.report.strategy.clone(), file, predicted_us, measured })
    };
    let gap = planned.report.gap;
    let (stock, planned) = (side("stock", &stock, &spans[0])?, side("planned", &planned, &spans[1])?);
    let decision = decide(&stock.measured, &planned.measured);
    Ok(PlanComparison {
        arena: arena.name,
        topology: arena.topology.name().to_owned(),
        collective: request.collective,
        size_bytes,
        ranks: request.ranks,
        speedup_predicted: stock.predicted_us / planned.predicted_us,
        speedup_measured: decision.speedup,
        choice: decision.choice,
        stock,
        planned,
        gap,
        wrong,
    })
}

fn save(args: &DemoArgs, arena: &DemoMachine, label: &str, schedule: &VerifiedSchedule) -> Outcome<String> {
    let request = schedule.schedule().demand.request();
    let place = if arena.emulate.is_some() { "emulated" } else { "local" };
    let name = format!("plans/{place}-{}-{}-{label}.json", request.collective, request.size_bytes);
    plan::save(schedule, &args.output.join(&name))?;
    Ok(name)
}

fn heading(arena: &DemoMachine) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = arena.topology.rank_count();
    let what = match &arena.emulate {
        None if ranks > cores => format!(
            "{ranks} processes on {cores} cores over shared memory, as profiled above; the cores are part of the model, the caches \
             are not"
        ),
        None => format!("{ranks} local processes over shared memory, as profiled above"),
        Some((spec, slowdown)) => format!(
            "{spec} on this computer: links paced to their α and β, {slowdown} times slower; nothing else is simulated"
        ),
    };
    let sketch = arena.sketch.as_ref().map_or(String::new(), |sketch| format!("; all under sketch `{}`", sketch.name));
    format!("{}: {what}{sketch}", arena.name)
}

/// The columns: stock (the best classic algorithm) and planned, each predicted and measured.
const HEADER: [&str; 9] = ["", "stock", "planned", "gap", "predicted", "", "measured", "", "wins"];

fn row(cell: &PlanComparison) -> Vec<String> {
    let times = |us: f64| time(us).replace(' ', "\u{a0}");
    let pair = |stock: f64, planned: f64| format!("{} → {}", times(stock), times(planned));
    let verdict = match cell.choice {
        Choice::Candidate => "planned",
        Choice::Stock => "stock",
        Choice::Tie => "tie",
    };
    let (stock, planned) = (&cell.stock, &cell.planned);
    vec![
        format!("{} {}", cell.collective, bytes(cell.size_bytes)),
        stock.plan.clone(),
        planned.plan.clone(),
        percent(cell.gap),
        pair(stock.predicted_us, planned.predicted_us),
        format!("{:.2}×", cell.speedup_predicted),
        pair(stock.measured.median_us, planned.measured.median_us),
        format!("{:.2}×", cell.speedup_measured),
        verdict.to_owned(),
    ]
}

fn report(cells: &[PlanComparison]) -> String {
    let rows: Vec<_> = cells.iter().map(row).collect();
    format!("{}\n{}", table(&HEADER, &rows), correctness(cells))
}

/// The same table for documents.
fn in_markdown(cells: &[PlanComparison]) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let mut lines = vec![line(&HEADER.map(str::to_owned)), line(&HEADER.map(|_| "---".to_owned()))];
    lines.extend(cells.iter().map(|cell| line(&row(cell))));
    format!("{}\n\n{}", lines.join("\n"), correctness(cells))
}

fn correctness(cells: &[PlanComparison]) -> String {
    let wrong: u64 = cells.iter().map(|cell| cell.wrong).sum();
    format!("every result compared with the naive reference: {wrong} wrong elements")
}

/// The tuning table of the emulated machine: for which sizes its plans are faster than stock. `antiphon run --emulate` uses it.
fn tuning(output: &Path, arena: &DemoMachine, cells: &[PlanComparison]) -> Outcome {
    let mut plans = BTreeMap::new();
    let mut of_table = Vec::new();
    for collective in COLLECTIVES {
        let own: Vec<&PlanComparison> =
            cells.iter().filter(|cell| cell.arena == arena.name && cell.collective == collective).collect();
        // Each size has a plan of its own, and was measured with that one only.
        let size = |(index, cell): (usize, &&PlanComparison)| {
            let mut times = vec![None; own.len() + 1];
            times[0] = Some(cell.stock.measured.into());
            times[index + 1] = Some(cell.planned.measured.into());
            let choice = if cell.choice == Choice::Candidate { index + 1 } else { 0 };
            MeasuredSize { bytes: cell.size_bytes, times, choice }
        };
        let sizes: Vec<MeasuredSize> = own.iter().enumerate().map(size).collect();
        let name = |choice: usize| Some(own.get(choice.checked_sub(1)?)?.planned.file.clone());
        for file in sizes.iter().filter_map(|size| name(size.choice)) {
            let plan = serde_json::from_str(&read_text(&output.join(&file))?).map_err(Failure::no)?;
            plans.insert(file, plan);
        }
        let evidence = |size: &MeasuredSize| Evidence {
            bytes: size.bytes,
            choice: size.times[size.choice].map_or_else(Summary::default, |times| times.first),
            stock: size.times[0].map_or_else(Summary::default, |times| times.first),
            launches: 1,
            dtype: DType::F32.to_string(),
            ranking: Vec::new(),
        };
        let ranges = ranges(&sizes, |_| None, name, evidence);
        of_table.push(TableCell::of_any(collective, ranges));
    }
    let topology = &arena.topology;
    let real = TableKey::of(machines_of(topology), env!("CARGO_PKG_VERSION"));
    let key = TableKey { topology: Some(topology.digest()), ..real };
    let table = TuningTable::new(key, of_table, plans);
    table.write(&output.join("tuning-emulated.json")).map_err(Failure::bad_input)
}

/// Runs a rank of the program at the end.
pub(crate) fn run_rank() -> Outcome {
    program::run()
}

/// A timeline of one plan, as a picture.
fn draw(args: &DemoArgs, arena: &DemoMachine) -> Outcome {
    let name = format!("plans/emulated-allgather-{}-planned.json", SIZES[1]);
    let schedule = plan::open_schedule(&args.output.join(name), Some(arena.topology.name()))?;
    let timeline = schedule::Timeline::of(&schedule);
    let file = |name: &str| -> PathBuf { args.output.join(name) };
    write_to(&file("timeline.html"), |out| view::html(&timeline, out))?;
    write_to(&file("trace.json"), |out| view::trace(&timeline, out))
}

fn write_text(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text).map_err(|error| io_failure(path, error))
}
