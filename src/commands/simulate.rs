//! `antiphon simulate`: makespan, and how much every link and resource was used.

use crate::cli::SimulateArgs;
use crate::failure::{Failure, Outcome, write_to};
use crate::plan;
use crate::screen::{Screen, bytes, percent, table, time};
use schedule::{Simulation, Usage, VerifiedSchedule, export, simulate};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use topology::Topology;

/// Runs the command.
pub(crate) fn run(args: &SimulateArgs, screen: &Screen) -> Outcome {
    let (schedule, topology) = plan::open_verified(&args.plan.file, args.plan.topology.as_deref())?;
    let simulation = simulate(&schedule, &topology);
    if let Some(path) = &args.trace {
        write_to(path, |out| export::trace(&simulation.timeline, &topology, out))?;
    }
    if let Some(path) = &args.html {
        write_to(path, |out| export::html(&simulation.timeline, &topology, out))?;
    }
    screen.result(&as_json(&simulation, &topology), || for_people(&schedule, &simulation, &topology))
}

fn as_json(simulation: &Simulation, topology: &Topology) -> Value {
    let usage = |usage: &Usage| json!({"busy_us": usage.busy, "utilisation": usage.utilisation, "bytes": usage.bytes, "messages": usage.messages});
    let links = topology.links().iter().zip(&simulation.links).enumerate().map(|(id, (link, used))| {
        let mut value = usage(used);
        value["link"] = id.into();
        value["from"] = link.from.0.into();
        value["to"] = link.to.0.into();
        value
    });
    let resources = topology.resources().iter().zip(&simulation.resources).enumerate().map(|(id, (resource, used))| {
        let mut value = usage(used);
        value["resource"] = id.into();
        value["name"] = resource.name.as_str().into();
        value
    });
    json!({
        "makespan_us": simulation.makespan, "stated_makespan_us": simulation.stated_makespan,
        "links": links.collect::<Vec<_>>(), "resources": resources.collect::<Vec<_>>(),
    })
}

fn for_people(schedule: &VerifiedSchedule, simulation: &Simulation, topology: &Topology) -> String {
    let row = |name: String, usage: &Usage| {
        vec![
            name,
            percent(Some(usage.utilisation)),
            time(usage.busy.0),
            bytes(usage.bytes.0 as u64),
            usage.messages.to_string(),
        ]
    };
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for (link, usage) in topology.links().iter().zip(&simulation.links) {
        rows.push((usage.busy.0, row(format!("link {} → {}", link.from, link.to), usage)));
    }
    for (resource, usage) in topology.resources().iter().zip(&simulation.resources) {
        rows.push((usage.busy.0, row(resource.name.clone(), usage)));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    format!(
        "{} on {}\nmakespan {} (stated {})\n\n{}",
        plan::describe(schedule.schedule()),
        topology.name(),
        time(simulation.makespan.0),
        time(simulation.stated_makespan.0),
        table(&["busiest first", "utilisation", "busy", "bytes", "messages"], &rows),
    )
}

/// Writes to a file, or to stdout where none is named.
pub(crate) fn write_or_print(
    path: Option<&Path>,
    screen: &Screen,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Outcome {
    if let Some(path) = path {
        return write_to(path, write);
    }
    let mut text = Vec::new();
    write(&mut text).map_err(Failure::no)?;
    screen.line(String::from_utf8_lossy(&text).trim_end());
    Ok(())
}
