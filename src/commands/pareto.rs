//! `antiphon synth --pareto`: the Pareto points of chunks, steps and rounds.

use crate::answer::answer;
use crate::cli::{ChunkCount, PointChoice, SynthArgs};
use crate::failure::{Failure, Outcome};
use crate::plan;
use crate::screen::{Screen, bytes, table, time};
use schedule::TopologyRef;
use std::time::Instant;
use synth::{Front, ParetoPoint, Reach, Reason, StrategyKind};

/// Runs the command.
pub(crate) fn run(args: &SynthArgs, screen: &Screen) -> Outcome {
    if args.search.strategy.0.is_some_and(|named| named != StrategyKind::Exact) {
        return Err(Failure::bad_input(anyhow::anyhow!("--pareto is for --strategy exact")));
    }
    let mut request = args.request.clone();
    let chunks = match std::mem::replace(&mut request.chunks, ChunkCount::Pinned(1)) {
        ChunkCount::Pinned(count) => count,
        ChunkCount::Auto => Reach::default().chunks,
    };
    let task = plan::task(&request, args.size, screen)?;
    let problem = task.problems.first().ok_or_else(|| Failure::no(anyhow::anyhow!("nothing to plan")))?;
    let mut options = plan::options(&args.search, task.sketch.as_ref());
    options.strategy = Some(StrategyKind::Exact);
    let started = Instant::now();
    let bar = screen.progress("looking for points");
    let reach = Reach { chunks, ..Reach::default() };
    let found = synth::pareto(problem, reach, &options, &|progress| bar.show(&progress));
    drop(bar);
    let seconds = started.elapsed().as_secs_f64();
    let front = found.map_err(|error| super::synth::explain(error, request.sketch.as_deref(), options.strategy))?;
    let chosen = chosen(&front, args.point)?;
    if let (Some(path), Some(point)) = (&args.output, chosen) {
        plan::save(&point.schedule, path)?;
    }
    let asked = problem.demand.request();
    let size = asked.size_bytes;
    let machine = topology::shorten(problem.topology.name());
    let rest = serde_json::json!({
        "seconds": seconds,
        "slowest_us_per_byte": front.slowest, "points": front.points, "relaxations": front.relaxations,
        "written": chosen.filter(|_| args.output.is_some()).map(|it| [it.chunks, it.steps, it.rounds]),
    });
    let value = answer("pareto", Some(&TopologyRef::to(&problem.topology)), Some(asked), &rest)?;
    screen.result(&value, || {
        let saved = match (&args.output, chosen) {
            (Some(path), Some(point)) => format!("\n{} written to {}", name(point), path.display()),
            _ => String::new(),
        };
        format!(
            "{} {} over {} ranks on {machine}: {} points in {seconds:.2} s\na round is a chunk over the slowest link, {:.3} GB/s; L is what one chunk per rank would hold{saved}\n\n{}",
            asked.collective,
            bytes(size),
            asked.members.len(),
            front.points.len(),
            front.slowest.gbps(),
            listed(&front),
        )
    })
}

/// The point to write: the one asked for, or the fastest.
fn chosen(front: &Front, asked: Option<PointChoice>) -> Outcome<Option<&ParetoPoint>> {
    let Some(PointChoice(asked)) = asked else {
        return Ok(front.points.iter().min_by(|a, b| a.makespan.total_cmp(&b.makespan)));
    };
    let found = front.points.iter().find(|it| [it.chunks, it.steps, it.rounds] == asked);
    let known: Vec<String> = front.points.iter().map(name).collect();
    let none = || Failure::bad_input(anyhow::anyhow!("{asked:?} is not a point; there are {}", known.join(" ")));
    found.map(Some).ok_or_else(none)
}

fn name(point: &ParetoPoint) -> String {
    format!("({},{},{})", point.chunks, point.steps, point.rounds)
}

fn listed(front: &Front) -> String {
    let rows = front.points.iter().map(|point| {
        let ratio = f64::from(point.rounds) / f64::from(point.chunks);
        let rounds: Vec<String> = point.rounds_per_step.iter().map(ToString::to_string).collect();
        let refuted = point
            .refuted
            .iter()
            .map(|it| format!("({},{},{}) by {}", it.chunks, it.steps, it.rounds, because(it.reason)));
        let refuted: Vec<String> = refuted.collect();
        vec![
            point.chunks.to_string(),
            point.steps.to_string(),
            format!("{} = {}", point.rounds, rounds.join("+")),
            format!("{}α + {ratio:.4}·βL", point.steps),
            time(point.synchronous.0),
            time(point.makespan.0),
            if point.certified { "yes" } else { "no" }.to_owned(),
            refuted.join(", "),
        ]
    });
    let rows: Vec<_> = rows.collect();
    table(&["chunks", "steps", "rounds", "in steps", "at this size", "as schedule", "certified", "impossible"], &rows)
}

fn because(reason: Reason) -> String {
    match reason {
        Reason::Distance => "distance".to_owned(),
        Reason::RoundPerStep => "a round per step".to_owned(),
        Reason::Relaxation { least_rounds_per_chunk } => format!("≥ {least_rounds_per_chunk:.4} rounds a chunk"),
        Reason::Search => "search".to_owned(),
    }
}
