//! `antiphon topology`: known machines, and the topology of a SPEC.

use crate::cli::{ImportArgs, TopologyCommand};
use crate::failure::{Outcome, read_text, write_to};
use crate::heatmap::{self, HeatMap};
use crate::plan;
use crate::screen::{Screen, table};
use schedule::{RankSet, TopologyRef};
use serde_json::json;
use topology::import::{ImportOptions, import, import_sys};
use topology::quantity::{show_duration, show_rates};
use topology::{Rank, ResourceId, Topology, counted, shorten};

/// Runs the command.
pub(crate) fn run(command: &TopologyCommand, screen: &Screen) -> Outcome {
    match command {
        TopologyCommand::List => list(screen),
        TopologyCommand::Show { spec, heat_map, svg } => {
            screen.may_write(svg)?;
            let topology = plan::topology(spec)?;
            if let Some(path) = svg {
                write_to(path, |out| out.write_all(heatmap::svg(&HeatMap::new(&topology)).as_bytes()))?;
            }
            if *heat_map && !screen.is_json() { draw(&topology, screen) } else { show(&topology, screen) }
        }
        TopologyCommand::Check { spec } => {
            let topology = plan::topology(spec)?;
            check(&topology, topology::ranks_without_ports(spec)?, screen)
        }
        TopologyCommand::Import(args) => translate(args, screen),
    }
}

fn list(screen: &Screen) -> Outcome {
    let known = topology::list()?;
    screen.result(&json!({"format": "antiphon-topologies/1", "topologies": known}), || {
        let entries = known.iter().map(|entry| {
            let source = entry.source.as_ref().map_or(String::new(), |source| format!("\n    source: {source}"));
            let details = entry.details.as_ref().map_or(String::new(), |details| format!("\n    {details}"));
            format!("{}\n    {}\n    keys: {}{details}{source}", entry.form, entry.about, entry.keys.join(", "))
        });
        entries.collect::<Vec<_>>().join("\n")
    })
}

fn draw(topology: &Topology, screen: &Screen) -> Outcome {
    screen.say(&summary(topology));
    screen.say(&heatmap::terminal(&HeatMap::new(topology), screen.has_colours(), screen.width()));
    Ok(())
}

fn show(topology: &Topology, screen: &Screen) -> Outcome {
    if screen.is_json() {
        screen.line(&topology::to_json(topology));
        return Ok(());
    }
    let row = |id| {
        let link = topology.link(id);
        let resources: Vec<_> = link.resources.iter().map(|&id| shorten(&topology.resource(id).name)).collect();
        vec![
            id.to_string(),
            format!("{} → {}", link.from, link.to),
            show_duration(link.alpha),
            show_rates(link.beta),
            format!("{:?}", link.latency).to_lowercase(),
            resources.join(" "),
        ]
    };
    screen.say(&summary(topology));
    let header = ["link", "ranks", "α", "bandwidth", "latency", "resources"];
    screen.say_table(&header, || topology.link_ids().map(row));
    if !topology.resources().is_empty() {
        screen.say(&format!("\n{}", shared(topology)));
    }
    remarks(topology).iter().for_each(|remark| screen.note(&format!("note: {remark}")));
    Ok(())
}

/// The shared resources and their rates.
fn shared(topology: &Topology) -> String {
    let rows = topology.resources().iter().enumerate().map(|(index, resource)| {
        let users = topology.users(ResourceId::from_index(index)).len();
        vec![shorten(&resource.name), show_rates(resource.beta), users.to_string()]
    });
    table(&["resource", "bandwidth", "links"], &rows.collect::<Vec<_>>())
}

/// Facts that are valid but may not be intended: islands, and ranks without a link to other machines in a machine where
/// other ranks have one.
fn remarks(topology: &Topology) -> Vec<String> {
    let mut remarks = Vec::new();
    let islands = topology.islands().len();
    if islands > 1 {
        remarks.push(format!("not every rank reaches every other: {islands} islands"));
    }
    let mut leaves = vec![false; topology.rank_count()];
    for link in topology.links().iter().filter(|link| topology.crosses_machines(link)) {
        leaves[link.from.index()] = true;
        leaves[link.to.index()] = true;
    }
    for (machine, ranks) in topology.machines().iter().enumerate() {
        let (out, inside): (Vec<Rank>, Vec<Rank>) = ranks.iter().partition(|rank| leaves[rank.index()]);
        if !out.is_empty() && !inside.is_empty() {
            let inside: RankSet = inside.into_iter().collect();
            remarks.push(format!("machine {machine}: no link from or to other machines at rank {inside}"));
        }
    }
    remarks
}

fn check(topology: &Topology, portless: Vec<String>, screen: &Screen) -> Outcome {
    let remarks: Vec<String> = portless.into_iter().chain(remarks(topology)).collect();
    let value = json!({
        "format": "antiphon-topology-check/1", "topology": TopologyRef::to(topology), "remarks": remarks,
        "ok": true, "name": topology.name(), "digest": topology.digest(), "ranks": topology.rank_count(),
        "machines": topology.machines().len(), "links": topology.links().len(),
        "resources": topology.resources().len(), "islands": topology.islands(),
    });
    screen.result(&value, || {
        let remarks = remarks.iter().map(|remark| format!("\nnote: {remark}"));
        format!("ok: {}{}", summary(topology), remarks.collect::<String>())
    })
}

/// Reads a foreign description and writes ours.
fn translate(args: &ImportArgs, screen: &Screen) -> Outcome {
    screen.may_write(&args.output)?;
    let options = ImportOptions {
        machines: args.machines,
        chunk_bytes: args.chunk_bytes,
        scale: args.scale,
        kind: args.kind.clone(),
        assumed: args.assume.unwrap_or_default(),
    };
    let imported = match args.file.is_dir() {
        true => import_sys(&args.file, &options)?,
        false => import(&read_text(&args.file)?, &args.file.to_string_lossy(), &options)?,
    };
    let json = topology::to_json(&imported.topology);
    if let Some(path) = &args.output {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let text = if is_json { json.clone() } else { imported.to_yaml() };
        write_to(path, |out| out.write_all(text.as_bytes()))?;
        imported.notes.iter().for_each(|note| screen.note(&format!("note: {note}")));
        screen.note(&format!("{} → {}", summary(&imported.topology), path.display()));
    }
    match (screen.is_json(), &args.output) {
        (true, _) => screen.line(json.trim_end()),
        (false, None) => screen.line(imported.to_yaml().trim_end()),
        (false, Some(_)) => {}
    }
    Ok(())
}

fn summary(topology: &Topology) -> String {
    format!(
        "{}: {} in {}, {}, {}, digest {}",
        shorten(topology.name()),
        counted(topology.rank_count(), "rank"),
        counted(topology.machines().len(), "machine"),
        counted(topology.links().len(), "link"),
        counted(topology.resources().len(), "shared resource"),
        &topology.digest()[..12],
    )
}
