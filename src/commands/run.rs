//! `antiphon run`: a plan on real buffers by real ranks, checked, in the table that nccl-tests prints.

use crate::cli::{Chunks, RequestArgs, RunArgs};
use crate::failure::{Failure, Outcome};
use crate::plan;
use crate::screen::{Screen, table};
use crate::workbench::{Memory, Setup, Workbench, bus_factor, count};
use runtime::{Check, Trial};
use schedule::{Collective, Demand, ReduceOp, VerifiedSchedule, verify};
use serde::Serialize;
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

/// Runs the command.
pub(crate) fn run(args: &RunArgs, screen: &Screen) -> Outcome {
    let fixed = args.file.as_deref().map(|path| plan::open_verified(path, args.topology.as_deref())).transpose()?;
    let fixed = fixed.map(|(schedule, topology)| adapted(schedule, topology, args)).transpose()?;
    let ranks = match (&fixed, args.ranks) {
        (Some((_, topology)), _) => topology.rank_count(),
        (None, Some(ranks)) => ranks as usize,
        (None, None) => return Err(Failure::bad_input(anyhow::anyhow!("--ranks is needed without a schedule"))),
    };
    let emulate = args.emulate.clone().map(|spec| (spec, args.slowdown));
    let setup = Setup { ranks, transport: args.transport, emulate, timeout: args.timeout };
    let mut bench = Workbench::open(&setup)?;
    let sizes = match (&fixed, &args.size[..]) {
        (Some((schedule, _)), []) => vec![schedule.schedule().demand.request().size_bytes],
        (_, sizes) => sizes.to_vec(),
    };
    let mut rows = Vec::new();
    for size in sizes {
        let stock;
        let (schedule, topology) = match &fixed {
            Some((schedule, topology)) => (schedule, topology),
            None => {
                stock = self::stock(args, ranks, size)?;
                (&stock.0, &stock.1)
            }
        };
        measure(args, &mut bench, (schedule, topology), size, |row| {
            if screen.is_json() {
                screen.line(&serde_json::to_string(&row).unwrap_or_default());
            }
            rows.push(row);
        })?;
    }
    screen.say(&report(&rows));
    match rows.iter().map(|row| row.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// A schedule from a file, checked against the flags and with the reduction asked for.
fn adapted(schedule: VerifiedSchedule, topology: Topology, args: &RunArgs) -> Outcome<(VerifiedSchedule, Topology)> {
    let request = schedule.schedule().demand.request();
    let differs = |what: &str, given: String, has: String| {
        Err(Failure::bad_input(anyhow::anyhow!("the schedule has {what} {has}, but {given} was asked for")))
    };
    if let Some(collective) = args.collective.filter(|&collective| collective != request.collective) {
        return differs("collective", collective.to_string(), request.collective.to_string());
    }
    if let Some(ranks) = args.ranks.filter(|&ranks| ranks as usize != topology.rank_count()) {
        return differs("ranks", ranks.to_string(), topology.rank_count().to_string());
    }
    if let Some(root) = args.root.filter(|&root| Some(Rank(root)) != request.root) {
        let has = request.root.map_or("none".to_owned(), |root| root.to_string());
        return differs("root", root.to_string(), has);
    }
    let Some(op) = args.op.filter(|&op| Some(op) != request.op) else { return Ok((schedule, topology)) };
    let mut schedule = schedule.into_schedule();
    schedule.demand = Arc::new(Demand::clone(&schedule.demand).with_op(op)?);
    let schedule = verify(schedule, &topology).map_err(Failure::no)?;
    Ok((schedule, topology))
}

/// The best classic algorithm for a size: on the emulated machine, or among equal ranks. Where chunks are listed one
/// by one, or not all ranks take part, whatever is best.
fn stock(args: &RunArgs, ranks: usize, size: u64) -> Outcome<(VerifiedSchedule, Topology)> {
    let asked = RequestArgs {
        topology: args.emulate.clone().unwrap_or_else(|| format!("clique:{ranks}")),
        collective: args.collective.unwrap_or(Collective::AllReduce),
        size,
        chunks: Chunks::Auto,
        members: args.members.clone(),
        root: args.root,
        op: args.op,
        matrix: args.matrix.clone(),
        demand: args.demand.clone(),
        sketch: None,
    };
    let topology = plan::topology(&asked.topology)?;
    let request = plan::request(&asked, &topology)?;
    let is_classic = asked.members.is_none() && asked.matrix.is_none() && asked.demand.is_none();
    let problems = plan::problems(&Arc::new(topology.clone()), &request, &plan::content(&asked)?, None, None)?;
    let strategy = if is_classic { StrategyKind::Classic } else { StrategyKind::Matching };
    let options = Options { strategy: Some(strategy), ..Options::default() };
    let synthesis = synth::synthesize(&problems, &options, &|_| {}).map_err(Failure::no)?;
    Ok((synthesis.schedule, topology))
}

/// Measures one plan at one size, out of place and in place.
fn measure(
    args: &RunArgs,
    bench: &mut Workbench,
    (schedule, topology): (&VerifiedSchedule, &Topology),
    size: u64,
    mut emit: impl FnMut(Row),
) -> Outcome {
    let plan = bench.install(schedule, topology)?;
    let request = plan.request();
    let (count, size_bytes) = count(request, size, args.dtype);
    let trial = Trial {
        count,
        dtype: args.dtype,
        warmups: args.warmups,
        repetitions: args.iterations,
        seed: args.seed,
        check: Check::FirstAndLast,
    };
    for &memory in plan.memories() {
        let report = bench.run(&plan, memory, &trial)?;
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
            plan: schedule.schedule().produced_by.strategy.clone(),
            ranks: topology.rank_count(),
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
    let lines = rows.chunk_by(|_, next| next.in_place).map(|pair| {
        let (apart, together) = (&pair[0], pair.get(1));
        let mut line = vec![
            apart.size_bytes.to_string(),
            apart.count.to_string(),
            apart.dtype.to_string(),
            apart.op.map_or_else(dash, |op| op.to_string()),
            apart.root.map_or_else(dash, |root| root.to_string()),
        ];
        line.extend(half(Some(apart)));
        line.extend(half(together));
        line.push(apart.plan.clone());
        line
    });
    let header =
        ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw"];
    let header: Vec<_> = header.into_iter().chain(["#wrong", "plan"]).collect();
    let units = "(B)  (elements)  times in µs (median of the global span), GB/s; out of place, then in place";
    let name = rows.first().map_or(String::new(), |row| format!("{} on {} ranks  ", row.collective, row.ranks));
    format!("# {name}{units}\n{}", table(&header, &lines.collect::<Vec<_>>()))
}
