//! `antiphon bound`: every lower bound with its certificate.

use crate::answer::answer;
use crate::cli::{BoundArgs, ChunkCount};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::plan::{self, PlanningTask};
use crate::screen::{Screen, table, time};
use schedule::TopologyRef;
use std::time::Duration;
use synth::{Bounds, Certificate, Deadline, HorizonEffort, Problem, Proof, Scope};
use topology::quantity::show_bandwidth;
use topology::{counted, shorten};

/// How long the solver may search for a proof, if the user gives no limit.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the command. With `--chunks auto` only bounds that hold for every chunk count are used.
pub(crate) fn run(args: &BoundArgs, screen: &Screen) -> Outcome {
    let mut request = args.request.clone();
    let searched = request.chunks == ChunkCount::Auto;
    if searched {
        request.chunks = ChunkCount::Pinned(1);
    }
    let task = plan::task(&request, args.size, screen)?;
    let problem = task.problems.first().ok_or_else(|| Failure::no(anyhow::anyhow!("nothing to bound")))?;
    synth::check_reachable(problem).map_err(|error| super::synth::explain(error, request.sketch.as_deref(), None))?;
    let deadline = Deadline::after(args.time_limit, interrupt::cancels());
    let mut bounds = bounds_of(&task, problem, &deadline)?;
    if searched {
        bounds.list.retain(|bound| bound.scope == Scope::AnyChunking);
    } else {
        let deadline = if args.time_limit.is_some() { deadline } else { deadline.within(PATIENCE) };
        bounds.list.extend(synth::thorough_bounds(problem, &bounds, &deadline));
        let horizons = synth::horizon(problem, &bounds, HorizonEffort::default(), &deadline);
        bounds.list.extend(horizons.map_err(Failure::no)?);
    }
    if interrupt::was_raised() {
        screen.note("interrupted; these are the bounds that were found until then");
    }
    let (best, any) = (bounds.best(), bounds.best_at_any_chunking());
    let rest = serde_json::json!({
        "lower_bound_us": best.value, "binding": best.name,
        "lower_bound_any_chunking_us": any.value, "binding_any_chunking": any.name, "bounds": bounds.list,
        "interrupted": interrupt::was_raised(),
    });
    let request = problem.demand.request();
    let value = answer("bound", Some(&TopologyRef::to(&problem.topology)), Some(request), &rest)?;
    screen.result(&value, || {
        let rows = bounds.list.iter().map(|bound| {
            vec![
                bound.name.to_owned(),
                time(bound.value.0),
                scope(bound.scope).to_owned(),
                evidence(&bound.certificate),
            ]
        });
        let rows: Vec<_> = rows.collect();
        let pinned = match searched {
            true => String::new(),
            false => {
                let chunks = counted(request.chunks_per_rank as usize, "chunk");
                format!("at {chunks:<9} {} ({})\n", time(best.value.0), best.name)
            }
        };
        format!(
            "{} {} over {} on {}\nlower bound  {} ({}), however it is cut\n{pinned}\n{}",
            request.collective,
            crate::screen::bytes(request.size_bytes),
            counted(request.members.len(), "rank"),
            shorten(problem.topology.name()),
            time(any.value.0),
            any.name,
            table(&["bound", "value", "scope", "certificate"], &rows),
        )
    })
}

fn bounds_of(task: &PlanningTask, problem: &Problem, deadline: &Deadline) -> Outcome<Bounds> {
    match &task.joint {
        Some(joint) => joint.bounds(problem, deadline).map_err(Failure::bad_input),
        None => Ok(synth::bounds(problem, deadline)),
    }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::AnyChunking => "any chunking",
        Scope::ThisChunking => "this chunking",
        Scope::OneChunkPerMessage => "one chunk per message",
    }
}

pub(super) fn evidence(certificate: &Certificate) -> String {
    /// Longer lists are only in the answer of `--json`.
    const SHOWN: usize = 12;
    let list = |names: Vec<String>| match names.len() {
        count if count > SHOWN => format!("{}, … ({count})", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    };
    match certificate {
        Certificate::Cut { ranks, capacity, tail, whole } => {
            let ranks = list(ranks.iter().map(ToString::to_string).collect());
            let tail = tail.as_ref().map_or(String::new(), |tail| format!(", then {} more", time(tail.value.0)));
            let whole = whole.as_ref().map_or(String::new(), |whole| format!(", {} whole chunks", whole.chunks));
            format!("cut around ranks {ranks}: {} leave{whole}{tail}", show_bandwidth(*capacity))
        }
        Certificate::Later { start, of } => format!("what starts at {} or later: {}", time(start.0), evidence(of)),
        Certificate::Volume { bytes, capacity, groups } => {
            let between = if groups.is_empty() { String::new() } else { format!(" between {} groups", groups.len()) };
            format!("{bytes:.0} bytes in all deliveries{between}, {} over all links", show_bandwidth(*capacity))
        }
        Certificate::Prices { links, resources } => {
            let priced = |prices: &[f64]| prices.iter().filter(|&&price| price > 0.0).count();
            format!("prices on {} links and {} resources", priced(links), priced(resources))
        }
        Certificate::Horizon { period, periods, proof, .. } => {
            let proof = match proof {
                Proof::Distance => "distance".to_owned(),
                Proof::Linear { multipliers } => format!("{} multipliers", multipliers.len()),
                Proof::Search { nodes } => format!("the solver's word after {nodes} nodes, in floating point"),
            };
            format!("nothing fits into {periods} periods of {} ({proof})", time(period.0))
        }
        Certificate::Rounds { groups, reached, rounds, before, rounds_behind, gathered, .. } => {
            let what = if groups.is_empty() { "ranks" } else { "groups" };
            let behind = if *rounds_behind > 0 { format!(", {rounds_behind} more inside") } else { String::new() };
            let bytes = if *gathered > 0.0 { format!(", {gathered:.0} bytes through one port") } else { String::new() };
            let first = if before.0 > 0.0 { format!("{} inside, ", time(before.0)) } else { String::new() };
            format!("{first}{rounds} messages one after the other among {reached} {what}{behind}{bytes}")
        }
        Certificate::Crossing { ranks, target, classes, .. } => {
            let count = counted(classes.iter().map(Vec::len).sum(), "chunk");
            let ranks = list(ranks.iter().map(ToString::to_string).collect());
            let target = target.map_or(String::new(), |target| format!(" for rank {target}"));
            format!("{count} in messages to ranks {ranks}{target}")
        }
        Certificate::Path { links } => {
            format!("path over links {}", list(links.iter().map(ToString::to_string).collect()))
        }
    }
}
