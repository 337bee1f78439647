//! `antiphon explain`: the critical path of a plan, the bound of all plans, what would make it faster, and the other
//! candidates.

mod analyze;
mod host;

use self::analyze::AnalyzedPlan;
use super::{bound, usage};
use crate::answer::answer;
use crate::cli::ExplainArgs;
use crate::failure::{Failure, Outcome};
use crate::foreign;
use crate::plan::{self, Verified};
use crate::screen::{Screen, percent, table, table_with_remarks, time};
use program::{VerifiedProgram, play};
use schedule::explain::{CriticalPath, Wait, critical_path};
use schedule::{
    CandidateOutcome, Cargo, LowerBound, Request, Timeline, TopologyRef, Usage, VerifiedSchedule, busiest, simulate,
};
use serde_json::{Value, json};
use std::time::Duration;
use synth::{Deadline, Leverage, Problem};
use topology::{LinkId, Micros, ResourceId, shorten};

/// A plan, and the reason for its makespan.
struct Explained {
    title: String,
    request: Request,
    timeline: Timeline,
    path: CriticalPath,
    /// Usage when the plan is played as early as its order allows.
    links: Vec<Usage>,
    resources: Vec<Usage>,
    /// The strategy that made a schedule, and the bound in its file.
    strategy: Option<String>,
    bound: Option<LowerBound>,
    gap: Option<f64>,
    /// The bound of all plans for this demand, and the changes of the machine that would lower it.
    leverage: Option<Leverage>,
    /// All candidates, if the schedule's file lists them.
    candidates: Vec<CandidateOutcome>,
    /// What it takes on real ranks.
    analyzed: Option<AnalyzedPlan>,
}

/// How long to search for such changes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer lists are only in the answer of `--json`.
const SHOWN: usize = 12;

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs, screen: &Screen) -> Outcome {
    let spec = args.plan.topology.as_deref();
    let explained = match plan::open_verified(&args.plan.file, spec, args.plan.size, screen)? {
        Verified::Schedule(schedule) => {
            let path = critical_path(&schedule);
            let simulation = simulate(&schedule);
            let timeline = Timeline::of(&schedule);
            let analyzed = args.analyze.then(|| analyze::analyze(&schedule, args, screen)).transpose()?;
            let leverage = Some(leverage(&schedule, screen));
            let schedule = schedule.into_schedule();
            Explained {
                title: plan::describe(&schedule),
                request: schedule.demand.request().clone(),
                timeline,
                path,
                links: simulation.links,
                resources: simulation.resources,
                gap: schedule.gap(),
                strategy: Some(schedule.produced_by.strategy),
                candidates: schedule.produced_by.candidates,
                bound: schedule.bound,
                leverage,
                analyzed,
            }
        }
        Verified::Programs(_) if args.analyze => {
            return Err(Failure::bad_input(anyhow::anyhow!(
                "--analyze is for schedules, whose messages have predicted times"
            )));
        }
        Verified::Programs(programs) => of_program(&programs[0], spec)?,
    };
    match screen.is_json() {
        true => screen.result(&as_json(&explained)?, String::new)?,
        false => screen.say(for_people(&explained, screen).trim_end()),
    }
    match explained.analyzed.map_or(0, |analyzed| analyzed.wrong) {
        0 => Ok(()),
        wrong => Err(Failure::no(anyhow::anyhow!("{wrong} elements are wrong"))),
    }
}

/// What explains a program of another tool, played on the machine of `spec`.
fn of_program(program: &VerifiedProgram, spec: Option<&str>) -> Outcome<Explained> {
    let topology = plan::needed_topology(spec)?;
    let bound = foreign::bound(program, &topology, None)?;
    let played = play(&bound, &topology).map_err(Failure::no)?;
    let (links, resources) = played.timeline.usage();
    let request = bound.program().demand.request().clone();
    let title = plan::describe_request(&request);
    let (timeline, path) = (played.timeline, played.path);
    Ok(Explained {
        title,
        request,
        timeline,
        path,
        links,
        resources,
        strategy: None,
        bound: None,
        gap: None,
        leverage: None,
        candidates: Vec::new(),
        analyzed: None,
    })
}

fn leverage(schedule: &VerifiedSchedule, screen: &Screen) -> Leverage {
    let bar = screen.progress("pricing");
    bar.message("what each kind of link is worth");
    let problem = Problem::new(schedule.topology().clone(), schedule.schedule().demand.clone());
    synth::levers(&problem, schedule, &Deadline::after(Some(PATIENCE), synth::Cancel::default()))
}

impl Explained {
    /// The most utilised link and resource.
    fn busiest(&self) -> (Option<LinkId>, Option<ResourceId>) {
        (busiest(&self.links).map(LinkId::from_index), busiest(&self.resources).map(ResourceId::from_index))
    }
}

fn as_json(explained: &Explained) -> Outcome<Value> {
    let Explained { timeline, path, bound, .. } = explained;
    let steps = path.steps.iter().map(|step| {
        let message = &step.message;
        let waited_for = match step.waited_for {
            Wait::Nothing => "nothing",
            Wait::Start { .. } => "start",
            Wait::Chunk { .. } => "chunk",
            Wait::Data { .. } => "data",
            Wait::Threadblock { .. } => "threadblock",
            Wait::Link { .. } => "link",
            Wait::Resource { .. } => "resource",
        };
        let mut value = json!({
            "transfer": step.transfer, "from": message.from, "to": message.to,
            "link": message.link, "start_us": message.start, "end_us": message.end, "waited_for": waited_for,
            "idle_us": step.idle,
        });
        match &message.cargo {
            Cargo::Chunks(chunks) => value["chunks"] = json!(chunks),
            Cargo::Place(text, _) => value["slots"] = text.as_ref().into(),
        }
        value
    });
    let (link, resource) = explained.busiest();
    let (links, resources) = usage::as_json(&explained.timeline.topology, &explained.links, &explained.resources);
    let rest = json!({
        "makespan_us": timeline.makespan(), "lower_bound_us": bound.as_ref().map(|bound| bound.value),
        "bound": bound.as_ref().map(|bound| &bound.name), "gap": explained.gap,
        "latency_us": path.latency, "bandwidth_us": path.bandwidth, "idle_us": path.idle,
        "busiest_link": link, "busiest_resource": resource, "critical_path": steps.collect::<Vec<_>>(),
        "links": links, "resources": resources, "leverage": explained.leverage, "candidates": explained.candidates,
        "analyzed": explained.analyzed,
    });
    answer("explain", Some(&TopologyRef::to(&explained.timeline.topology)), Some(&explained.request), &rest)
}

fn for_people(explained: &Explained, screen: &Screen) -> String {
    let Explained { timeline, path, .. } = explained;
    let topology = &timeline.topology;
    let makespan = time(timeline.makespan().0);
    let mut lines = vec![format!("{} on {}", explained.title, shorten(topology.name()))];
    lines.push(match &explained.strategy {
        Some(strategy) => format!("made by {}, makespan {makespan}", shorten(strategy)),
        None => format!("makespan {makespan}"),
    });
    if let Some(bound) = &explained.bound {
        let gap = percent(explained.gap);
        lines.push(format!("the plan claims a bound of {} ({}): gap {gap}", time(bound.value.0), shorten(&bound.name)));
    }
    let (link, resource) = explained.busiest();
    let utilisation = |usage: &Usage| percent(Some(usage.utilisation));
    lines.extend(link.map(|id| {
        let (from, to) = (topology.link(id).from, topology.link(id).to);
        format!("busiest link: {from} → {to}, {} of the time", utilisation(&explained.links[id.index()]))
    }));
    lines.extend(resource.map(|id| {
        let name = shorten(&topology.resource(id).name);
        format!("busiest resource: {name}, {} of the time", utilisation(&explained.resources[id.index()]))
    }));
    let (latency, bandwidth, idle) = (time(path.latency.0), time(path.bandwidth.0), time(path.idle.0));
    lines.push(format!("critical path: {latency} of α, {bandwidth} of bytes moving, {idle} idle"));
    lines.extend(step_lines(path, screen.is_verbose()));
    lines.push(String::new());
    lines.push(usage::table(topology, &explained.links, &explained.resources, SHOWN));
    lines.extend(explained.leverage.as_ref().map(|leverage| worth(leverage, explained.timeline.makespan())));
    lines.extend(explained.analyzed.as_ref().map(analyze::text));
    if !explained.candidates.is_empty() {
        lines.push(format!("\n{}", candidate_lines(&explained.candidates, screen.width())));
    }
    lines.join("\n")
}

/// The steps of the critical path; of a long path only the first and the last ones, unless `all` are wanted.
fn step_lines(path: &CriticalPath, all: bool) -> Vec<String> {
    let mut lines: Vec<String> = path.steps.iter().map(|step| format!("  {step}")).collect();
    if !all && lines.len() > 2 * SHOWN + 1 {
        let middle = SHOWN..lines.len() - SHOWN;
        let more = format!("  … {} more (-v or --json shows all)", middle.len());
        lines.splice(middle, [more]);
    }
    lines
}

/// The bound of all plans, and what would lower it.
fn worth(leverage: &Leverage, makespan: Micros) -> String {
    let evidence = leverage.certificate.as_ref().map_or_else(String::new, |it| format!(": {}", bound::evidence(it)));
    let rows = leverage.levers.iter().map(|lever| {
        vec![
            shorten(&lever.name),
            lever.count.to_string(),
            percent(Some(lever.utilisation)),
            lever.price.map_or_else(|| "–".to_owned(), |price| time(price.0)),
            format!("{} → {}", time(leverage.bound.0), time(lever.bound.0)),
            lever.makespan.map_or_else(|| "–".to_owned(), |it| format!("{} → {}", time(makespan.0), time(it.0))),
        ]
    });
    let header =
        ["what would help", "of them", "busy", "bound per 1 % faster", "bound if doubled", "this plan if doubled"];
    let rest = if leverage.is_complete { "" } else { "\n… the time was up for more" };
    let rows: Vec<_> = rows.collect();
    format!(
        "\nwhat binds every plan: {} ({}){evidence}\n{}{rest}",
        leverage.binding,
        time(leverage.bound.0),
        table(&header, &rows)
    )
}

/// The result of each strategy at its best chunk count.
fn candidate_lines(candidates: &[CandidateOutcome], width: usize) -> String {
    let mut best: Vec<&CandidateOutcome> = Vec::new();
    let time_of = |candidate: &CandidateOutcome| candidate.makespan_us.unwrap_or(f64::INFINITY);
    for candidate in candidates {
        match best.iter_mut().find(|it| it.strategy == candidate.strategy) {
            Some(found) if time_of(candidate) < time_of(found) => *found = candidate,
            Some(_) => {}
            None => best.push(candidate),
        }
    }
    let rows = best.into_iter().map(|candidate| {
        vec![
            shorten(&candidate.strategy),
            candidate.chunks_per_rank.to_string(),
            candidate.makespan_us.map_or_else(|| "–".to_owned(), time),
            candidate
                .note
                .as_ref()
                .map_or_else(|| candidate.stop_reason.clone(), |note| format!("{}: {note}", candidate.stop_reason)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    table_with_remarks(&["who tried", "chunks", "makespan", "why it stopped"], &rows, width)
}
