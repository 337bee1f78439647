//! `antiphon explain`: the critical path of a schedule, and what binds.

use crate::cli::ExplainArgs;
use crate::failure::Outcome;
use crate::plan;
use crate::screen::{Screen, percent, time};
use schedule::explain::{CriticalPath, Wait, critical_path};
use schedule::{Schedule, Simulation, simulate};
use serde_json::{Value, json};
use topology::Topology;

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs, screen: &Screen) -> Outcome {
    let (schedule, topology) = plan::open_verified(&args.plan.file, args.plan.topology.as_deref())?;
    let path = critical_path(&schedule, &topology);
    let simulation = simulate(&schedule, &topology);
    let schedule = schedule.schedule();
    screen.result(&as_json(schedule, &path, &simulation), || for_people(schedule, &path, &simulation, &topology))
}

fn as_json(schedule: &Schedule, path: &CriticalPath, simulation: &Simulation) -> Value {
    let steps = path.steps.iter().map(|step| {
        let message = &step.message;
        let waited_for = match step.waited_for {
            Wait::Nothing => "nothing",
            Wait::Chunk { .. } => "chunk",
            Wait::Link { .. } => "link",
            Wait::Resource { .. } => "resource",
        };
        json!({
            "transfer": step.transfer, "chunks": message.chunks, "from": message.from, "to": message.to,
            "link": message.link, "start_us": message.start, "end_us": message.end, "waited_for": waited_for,
            "idle_us": step.idle,
        })
    });
    let (link, resource) = simulation.busiest();
    json!({
        "makespan_us": schedule.makespan(), "lower_bound_us": schedule.bound.as_ref().map(|bound| bound.value),
        "bound": schedule.bound.as_ref().map(|bound| &bound.name), "gap": schedule.gap(),
        "latency_us": path.latency, "bandwidth_us": path.bandwidth, "idle_us": path.idle,
        "busiest_link": link, "busiest_resource": resource, "critical_path": steps.collect::<Vec<_>>(),
    })
}

fn for_people(schedule: &Schedule, path: &CriticalPath, simulation: &Simulation, topology: &Topology) -> String {
    let mut lines = vec![format!("{} on {}", plan::describe(schedule), topology.name())];
    lines.push(format!("made by {}, makespan {}", schedule.produced_by.strategy, time(schedule.makespan().0)));
    if let Some(bound) = &schedule.bound {
        let gap = percent(schedule.gap());
        lines.push(format!("no schedule can take less than {} ({} bound): gap {gap}", time(bound.value.0), bound.name));
    }
    let (link, resource) = simulation.busiest();
    let utilisation = |usage: &schedule::Usage| percent(Some(usage.utilisation));
    lines.extend(link.map(|id| {
        let (from, to) = (topology.link(id).from, topology.link(id).to);
        format!("busiest link: {from} → {to}, {} of the time", utilisation(&simulation.links[id.index()]))
    }));
    lines.extend(resource.map(|id| {
        let name = &topology.resource(id).name;
        format!("busiest resource: {name}, {} of the time", utilisation(&simulation.resources[id.index()]))
    }));
    let (latency, bandwidth, idle) = (time(path.latency.0), time(path.bandwidth.0), time(path.idle.0));
    lines.push(format!("critical path: {latency} of α, {bandwidth} of bytes moving, {idle} idle"));
    lines.extend(path.steps.iter().map(|step| format!("  {step}")));
    lines.join("\n")
}
