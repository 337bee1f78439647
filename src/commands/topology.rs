//! `antiphon topology`: what machines are known, and what a SPEC means.

use crate::cli::TopologyCommand;
use crate::failure::Outcome;
use crate::plan;
use crate::screen::{Screen, table};
use topology::Topology;

/// Runs the command.
pub(crate) fn run(command: &TopologyCommand, screen: &Screen) -> Outcome {
    match command {
        TopologyCommand::List => list(screen),
        TopologyCommand::Show { spec } => show(&plan::topology(spec)?, screen),
        TopologyCommand::Check { spec } => check(&plan::topology(spec)?, screen),
    }
}

fn list(screen: &Screen) -> Outcome {
    let known = topology::list()?;
    screen.result(&known, || {
        let entries = known.iter().map(|entry| {
            let source = entry.source.as_ref().map_or(String::new(), |source| format!("\n    source: {source}"));
            format!("{}\n    {}\n    keys: {}{source}", entry.form, entry.about, entry.keys.join(", "))
        });
        entries.collect::<Vec<_>>().join("\n")
    })
}

fn show(topology: &Topology, screen: &Screen) -> Outcome {
    if screen.is_json() {
        screen.line(&topology::to_json(topology));
        return Ok(());
    }
    let rows = topology.link_ids().map(|id| {
        let link = topology.link(id);
        let resources: Vec<_> = link.resources.iter().map(|&id| topology.resource(id).name.clone()).collect();
        vec![
            id.to_string(),
            format!("{} → {}", link.from, link.to),
            format!("{} µs", link.alpha.0),
            format!("{:.4} GB/s", link.beta.gbps()),
            format!("{:?}", link.latency).to_lowercase(),
            resources.join(" "),
        ]
    });
    let rows: Vec<_> = rows.collect();
    screen.say(&summary(topology));
    screen.say(&table(&["link", "ranks", "α", "bandwidth", "latency", "resources"], &rows));
    Ok(())
}

fn check(topology: &Topology, screen: &Screen) -> Outcome {
    let value = serde_json::json!({
        "ok": true, "name": topology.name(), "digest": topology.digest(), "ranks": topology.rank_count(),
        "machines": topology.machines().len(), "links": topology.links().len(),
        "resources": topology.resources().len(), "islands": topology.islands(),
    });
    screen.result(&value, || match topology.islands().len() {
        1 => format!("ok: {}", summary(topology)),
        count => format!("ok: {}\nnote: not every rank reaches every other: {count} islands", summary(topology)),
    })
}

fn summary(topology: &Topology) -> String {
    format!(
        "{}: {} ranks in {} machines, {} links, {} shared resources, digest {}",
        topology.name(),
        topology.rank_count(),
        topology.machines().len(),
        topology.links().len(),
        topology.resources().len(),
        &topology.digest()[..12],
    )
}
