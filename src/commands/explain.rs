//! `antiphon explain`: the critical path of a plan, and what binds.

use crate::cli::ExplainArgs;
use crate::failure::{Failure, Outcome};
use crate::foreign;
use crate::plan::{self, Verified};
use crate::screen::{Screen, percent, time};
use schedule::explain::{CriticalPath, Wait, critical_path};
use schedule::program::play;
use schedule::{Cargo, LowerBound, Timeline, Usage, busiest, simulate};
use serde_json::{Value, json};
use topology::{LinkId, ResourceId, Topology};

/// A plan, and why it takes as long as it does.
struct Explained {
    title: String,
    topology: Topology,
    timeline: Timeline,
    path: CriticalPath,
    /// Of the plan as early as its order allows.
    links: Vec<Usage>,
    resources: Vec<Usage>,
    /// Who made a schedule, and the bound that it comes with.
    strategy: Option<String>,
    bound: Option<LowerBound>,
    gap: Option<f64>,
}

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs, screen: &Screen) -> Outcome {
    let spec = args.plan.topology.as_deref();
    let explained = match plan::open_verified(&args.plan.file, spec, args.plan.size, screen)? {
        Verified::Schedule(schedule, topology) => {
            let path = critical_path(&schedule, &topology);
            let simulation = simulate(&schedule, &topology);
            let timeline = Timeline::of(&schedule);
            let schedule = schedule.into_schedule();
            Explained {
                title: plan::describe(&schedule),
                topology: *topology,
                timeline,
                path,
                links: simulation.links,
                resources: simulation.resources,
                gap: schedule.gap(),
                strategy: Some(schedule.produced_by.strategy),
                bound: schedule.bound,
            }
        }
        Verified::Programs(programs) => {
            let topology = plan::needed_topology(spec)?;
            let program = foreign::bound(&programs[0], &topology, None)?;
            let played = play(&program, &topology).map_err(Failure::no)?;
            let (links, resources) = played.timeline.usage(&topology);
            let title = plan::describe_request(program.program().demand.request());
            let (timeline, path) = (played.timeline, played.path);
            Explained { title, topology, timeline, path, links, resources, strategy: None, bound: None, gap: None }
        }
    };
    screen.result(&as_json(&explained), || for_people(&explained))
}

impl Explained {
    /// The most utilised link and resource.
    fn busiest(&self) -> (Option<LinkId>, Option<ResourceId>) {
        (busiest(&self.links).map(LinkId::from_index), busiest(&self.resources).map(ResourceId::from_index))
    }
}

fn as_json(explained: &Explained) -> Value {
    let Explained { timeline, path, bound, .. } = explained;
    let steps = path.steps.iter().map(|step| {
        let message = &step.message;
        let waited_for = match step.waited_for {
            Wait::Nothing => "nothing",
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
            Cargo::Slots(slots) => value["slots"] = slots.to_string().into(),
        }
        value
    });
    let (link, resource) = explained.busiest();
    json!({
        "makespan_us": timeline.makespan(), "lower_bound_us": bound.as_ref().map(|bound| bound.value),
        "bound": bound.as_ref().map(|bound| &bound.name), "gap": explained.gap,
        "latency_us": path.latency, "bandwidth_us": path.bandwidth, "idle_us": path.idle,
        "busiest_link": link, "busiest_resource": resource, "critical_path": steps.collect::<Vec<_>>(),
    })
}

fn for_people(explained: &Explained) -> String {
    let Explained { topology, path, .. } = explained;
    let makespan = time(explained.timeline.makespan().0);
    let mut lines = vec![format!("{} on {}", explained.title, topology.name())];
    lines.push(match &explained.strategy {
        Some(strategy) => format!("made by {strategy}, makespan {makespan}"),
        None => format!("makespan {makespan}"),
    });
    if let Some(bound) = &explained.bound {
        let gap = percent(explained.gap);
        lines.push(format!("no schedule can take less than {} ({} bound): gap {gap}", time(bound.value.0), bound.name));
    }
    let (link, resource) = explained.busiest();
    let utilisation = |usage: &Usage| percent(Some(usage.utilisation));
    lines.extend(link.map(|id| {
        let (from, to) = (topology.link(id).from, topology.link(id).to);
        format!("busiest link: {from} → {to}, {} of the time", utilisation(&explained.links[id.index()]))
    }));
    lines.extend(resource.map(|id| {
        let name = &topology.resource(id).name;
        format!("busiest resource: {name}, {} of the time", utilisation(&explained.resources[id.index()]))
    }));
    let (latency, bandwidth, idle) = (time(path.latency.0), time(path.bandwidth.0), time(path.idle.0));
    lines.push(format!("critical path: {latency} of α, {bandwidth} of bytes moving, {idle} idle"));
    lines.extend(path.steps.iter().map(|step| format!("  {step}")));
    lines.join("\n")
}
