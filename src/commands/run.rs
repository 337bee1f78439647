//! `antiphon run`: a plan on real buffers by real ranks, checked, in the table that nccl-tests prints.

use crate::cli::{Chunks, RequestArgs, RunArgs};
use crate::failure::{Failure, Outcome, read_text};
use crate::foreign;
use crate::launch::{Launch, Role};
use crate::plan;
use crate::program;
use crate::screen::{Screen, table};
use crate::workbench::{ForeignSource, Installed, Memory, Setup, Workbench, bus_factor, count};
use runtime::{Check, Trial};
use schedule::program::{Instruction, Layout, LowerOptions};
use schedule::{Collective, Demand, ReduceOp, Request, VerifiedSchedule, verify};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use synth::{Options, StrategyKind};
use topology::{Rank, Topology};
use tune::summarize;

/// One line of the table.
#[derive(Serialize)]
struct Row {
    collective: Collective,
    size_bytes: u64,
    count: u64,
    dtype: runtime::DType,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    in_place: bool,
    time_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    wrong: u64,
    plan: String,
    ranks: usize,
}

/// A plan from a file, adapted to the flags.
enum Fixed {
    Schedule(VerifiedSchedule, Topology),
    Foreign { text: String, origin: String, request: Request, topology: Topology },
}

impl Fixed {
    fn request(&self) -> &Request {
        match self {
            Self::Schedule(schedule, _) => schedule.schedule().demand.request(),
            Self::Foreign { request, .. } => request,
        }
    }

    fn install(&self, args: &RunArgs, bench: &Workbench) -> Outcome<(Installed, String)> {
        match self {
            Self::Schedule(schedule, topology) => {
                Ok((bench.install(schedule, topology)?, schedule.schedule().produced_by.strategy.clone()))
            }
            Self::Foreign { text, origin, topology, .. } => {
                let source = ForeignSource { text, origin, op: args.op };
                let name = Path::new(origin).file_name().map_or_else(|| origin.into(), |name| name.to_string_lossy());
                Ok((bench.install_foreign(&source, topology)?, name.into_owned()))
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs, screen: &Screen) -> Outcome {
    let role = Role::take(&args.launch)?;
    if let Role::Agent = role {
        return Ok(());
    }
    let fixed = args.file.as_deref().map(|path| fixed(path, args, screen)).transpose()?;
    let launch = match (role, &fixed) {
        (Role::Coordinator(launch), Some(fixed)) if launch.ranks() != fixed.request().ranks => {
            let (has, given) = (fixed.request().ranks, launch.ranks());
            return Err(Failure::bad_input(anyhow::anyhow!("the plan has {has} ranks, but {given} are to run")));
        }
        (Role::Coordinator(launch), _) => launch,
        (_, Some(fixed)) => Launch::Local(fixed.request().ranks),
        (_, None) => return Err(Failure::bad_input(anyhow::anyhow!("--ranks is needed without a plan"))),
    };
    let ranks = launch.ranks();
    let setup = Setup {
        launch,
        transport: args.transport,
        emulate: args.emulate.clone().map(|spec| (spec, args.slowdown)),
        ready_timeout: args.launch.ready_timeout,
        timeout: args.timeout,
        lowering: args.lowering.clone(),
    };
    let mut bench = Workbench::open(&setup)?;
    let sizes = match (&fixed, &args.size[..]) {
        (Some(fixed), []) => vec![fixed.request().size_bytes],
        (_, sizes) => sizes.to_vec(),
    };
    let mut rows = Vec::new();
    for size in sizes {
        let stock = if fixed.is_none() { self::stock(args, ranks, size)? } else { Vec::new() };
        let plans = fixed.iter().map(|plan| (plan, &BOTH[..])).chain(stock.iter().map(|(plan, calls)| (plan, *calls)));
        for (plan, calls) in plans {
            let (installed, name) = plan.install(args, &bench)?;
            measure(args, &mut bench, (&installed, &name), (size, calls), |row| {
                if screen.is_json() {
                    screen.line(&serde_json::to_string(&row).unwrap_or_default());
                }
                rows.push(row);
            })?;
        }
    }
    screen.say(&report(&rows));
    match rows.iter().map(|row| row.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// Opens a plan file, checks it against the flags, and gives it the reduction asked for.
fn fixed(path: &Path, args: &RunArgs, screen: &Screen) -> Outcome<Fixed> {
    let (text, origin) = (read_text(path)?, path.display().to_string());
    if !foreign::is_foreign(&text) {
        let (schedule, topology) = plan::open_schedule(path, args.topology.as_deref())?;
        agrees(schedule.schedule().demand.request(), args)?;
        return with_op(schedule, topology, args);
    }
    let mut plan = foreign::read(&text, &origin, None)?;
    let programs = plan.verified(&origin)?;
    plan.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
    let request = programs[0].program().demand.request().clone();
    agrees(&request, args)?;
    // Without a machine, every two ranks are linked.
    let everyone = format!("clique:{}", request.ranks);
    let topology = plan::topology(args.topology.as_ref().or(args.emulate.as_ref()).unwrap_or(&everyone))?;
    Ok(Fixed::Foreign { text, origin, request, topology })
}

/// Whether a plan is what the flags ask for.
fn agrees(request: &Request, args: &RunArgs) -> Outcome {
    let differs = |what: &str, given: String, has: String| {
        Err(Failure::bad_input(anyhow::anyhow!("the plan has {what} {has}, but {given} was asked for")))
    };
    if let Some(collective) = args.collective.filter(|&collective| collective != request.collective) {
        return differs("collective", collective.to_string(), request.collective.to_string());
    }
    if let Some(root) = args.root.filter(|&root| Some(Rank(root)) != request.root) {
        let has = request.root.map_or("none".to_owned(), |root| root.to_string());
        return differs("root", root.to_string(), has);
    }
    Ok(())
}

/// The schedule with the reduction asked for.
fn with_op(schedule: VerifiedSchedule, topology: Topology, args: &RunArgs) -> Outcome<Fixed> {
    let has = schedule.schedule().demand.request().op;
    let Some(op) = args.op.filter(|&op| Some(op) != has) else { return Ok(Fixed::Schedule(schedule, topology)) };
    let mut schedule = schedule.into_schedule();
    schedule.demand = Arc::new(Demand::clone(&schedule.demand).with_op(op)?);
    let schedule = verify(schedule, &topology).map_err(Failure::no)?;
    Ok(Fixed::Schedule(schedule, topology))
}

/// The kinds of calls, as the table shows them.
const BOTH: [Memory; 2] = [Memory::OutOfPlace, Memory::InPlace];

/// The best classic algorithm for a size: on the emulated machine, or among equal ranks. Where chunks are listed one
/// by one, or not all ranks take part, whatever is best. For calls in place it may be another one.
fn stock(args: &RunArgs, ranks: usize, size: u64) -> Outcome<Vec<(Fixed, &'static [Memory])>> {
    let asked = RequestArgs {
        topology: args.emulate.clone().unwrap_or_else(|| format!("clique:{ranks}")),
        collective: args.collective.unwrap_or(Collective::AllReduce),
        chunks: Chunks::Auto,
        members: args.members.clone(),
        root: args.root,
        op: args.op,
        matrix: args.matrix.clone(),
        demand: args.demand.clone(),
        sketch: None,
    };
    let topology = plan::topology(&asked.topology)?;
    let request = plan::request(&asked, &topology, size)?;
    let is_classic = asked.members.is_none() && asked.matrix.is_none() && asked.demand.is_none();
    let (shared, content) = (Arc::new(topology.clone()), plan::content(&asked)?);
    let problems = plan::problems(&shared, &request, &content, None, None)?;
    let strategy = if is_classic { StrategyKind::Classic } else { StrategyKind::Matching };
    let options = Options { strategy: Some(strategy), ..Options::default() };
    let best = synth::synthesize(&problems, &options, &|_| {}).map_err(Failure::no)?.schedule;
    // An emulated machine has nothing but its links.
    let other = match is_classic && args.emulate.is_none() {
        true => in_place(&best, &plan::problems(&shared, &request, &content, None, Some(1))?)?,
        false => None,
    };
    Ok(match other {
        Some(other) => {
            vec![(Fixed::Schedule(best, topology.clone()), &BOTH[..1]), (Fixed::Schedule(other, topology), &BOTH[1..])]
        }
        None => vec![(Fixed::Schedule(best, topology), &BOTH)],
    })
}

/// A plan for calls in place that is as good as `best` for all that the model knows, and copies less. What a rank still
/// sends while the sum that replaces it comes in has to be kept: so whole vectors that are exchanged are copied, and
/// halves that are reduced and gathered are not.
fn in_place(best: &VerifiedSchedule, problems: &[synth::Problem]) -> Outcome<Option<VerifiedSchedule>> {
    /// As good: the model's own error is larger.
    const EQUAL: f64 = 0.01;
    let copies = copied(best)?;
    if copies == 0 {
        return Ok(None);
    }
    let options = Options { strategy: Some(StrategyKind::Matching), ..Options::default() };
    let other = synth::synthesize(problems, &options, &|_| {}).map_err(Failure::no)?.schedule;
    let as_good = other.schedule().makespan().0 <= best.schedule().makespan().0 * (1.0 + EQUAL);
    Ok((as_good && copied(&other)? < copies).then_some(other))
}

/// How many bytes the ranks copy locally in calls in place; none where there are no such calls.
fn copied(schedule: &VerifiedSchedule) -> Outcome<u64> {
    let demand = &schedule.schedule().demand;
    if Layout::new(demand.clone(), true).is_err() {
        return Ok(0);
    }
    let program = program::lowered(schedule, &LowerOptions { in_place: true, ..LowerOptions::default() })?;
    let program = program.program();
    let copies = program.ranks.iter().flat_map(|rank| {
        let steps = rank.threadblocks.iter().flat_map(|block| &block.steps);
        let copies = steps.filter(|step| matches!(step.instruction, Instruction::Copy { .. }));
        copies.flat_map(|step| {
            let slice = step.instruction.shape();
            &rank.parts(slice.buffer)[slice.index as usize..(slice.index + slice.count) as usize]
        })
    });
    Ok(copies.map(|&part| program.shape.length(demand.request().size_bytes, part)).sum())
}

/// Measures one plan at one size, in those kinds of calls that it serves.
fn measure(
    args: &RunArgs,
    bench: &mut Workbench,
    (plan, name): (&Installed, &str),
    (size, calls): (u64, &[Memory]),
    mut emit: impl FnMut(Row),
) -> Outcome {
    let request = plan.request();
    let (count, size_bytes) = count(request, size, args.dtype, plan.granularity());
    let trial = Trial {
        count,
        dtype: args.dtype,
        warmups: args.warmups,
        repetitions: args.iterations,
        seed: args.seed,
        check: Check::FirstAndLast,
    };
    for &memory in calls.iter().filter(|&&memory| plan.serves(memory)) {
        let report = bench.run(plan, memory, &trial)?;
        let spans: Vec<f64> = report.spans().iter().map(|span| span.0).collect();
        let time_us = summarize(&spans).map_or(0.0, |summary| summary.median_us);
        let algbw_gbps = if time_us > 0.0 { size_bytes as f64 / time_us * 1e-3 } else { 0.0 };
        emit(Row {
            collective: request.collective,
            size_bytes,
            count,
            dtype: args.dtype,
            op: request.op,
            root: request.root,
            in_place: memory == Memory::InPlace,
            time_us,
            algbw_gbps,
            busbw_gbps: algbw_gbps * bus_factor(request),
            wrong: report.wrong(),
            plan: name.to_owned(),
            ranks: request.ranks,
        });
    }
    Ok(())
}

/// The table of nccl-tests: a line per size, out of place and in place side by side.
fn report(rows: &[Row]) -> String {
    let dash = || "-".to_owned();
    let half = |row: Option<&Row>| match row {
        Some(row) => [
            format!("{:.2}", row.time_us),
            format!("{:.2}", row.algbw_gbps),
            format!("{:.2}", row.busbw_gbps),
            row.wrong.to_string(),
        ],
        None => std::array::from_fn(|_| dash()),
    };
    let lines = rows.chunk_by(|row, next| !row.in_place && next.in_place).map(|pair| {
        let of = |in_place: bool| pair.iter().find(|row| row.in_place == in_place);
        let row = &pair[0];
        let mut line = vec![
            row.size_bytes.to_string(),
            row.count.to_string(),
            row.dtype.to_string(),
            row.op.map_or_else(dash, |op| op.to_string()),
            row.root.map_or_else(dash, |root| root.to_string()),
        ];
        line.extend(half(of(false)));
        line.extend(half(of(true)));
        let mut plans: Vec<&str> = pair.iter().map(|row| row.plan.as_str()).collect();
        plans.dedup();
        line.push(plans.join(", "));
        line
    });
    let header =
        ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw"];
    let header: Vec<_> = header.into_iter().chain(["#wrong", "plan"]).collect();
    let units = "(B)  (elements)  times in µs (median of the global span), GB/s; out of place, then in place";
    let name = rows.first().map_or(String::new(), |row| format!("{} on {} ranks  ", row.collective, row.ranks));
    format!("# {name}{units}\n{}", table(&header, &lines.collect::<Vec<_>>()))
}
