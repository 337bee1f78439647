//! The use of every link and resource, as `simulate` and `explain` print it.

use crate::screen::{self, bytes, percent, time};
use schedule::Usage;
use serde_json::{Value, json};
use topology::{Topology, shorten};

/// Links and resources, each in the order of their ids.
pub(super) fn as_json(topology: &Topology, links: &[Usage], resources: &[Usage]) -> (Vec<Value>, Vec<Value>) {
    let usage = |usage: &Usage| json!({"busy_us": usage.busy, "utilisation": usage.utilisation, "bytes": usage.bytes, "messages": usage.messages});
    let links = topology.links().iter().zip(links).enumerate().map(|(id, (link, used))| {
        let mut value = usage(used);
        value["link"] = id.into();
        value["from"] = link.from.0.into();
        value["to"] = link.to.0.into();
        value
    });
    let resources = topology.resources().iter().zip(resources).enumerate().map(|(id, (resource, used))| {
        let mut value = usage(used);
        value["resource"] = id.into();
        value["name"] = resource.name.as_str().into();
        value
    });
    (links.collect(), resources.collect())
}

/// At most `most` of them, busiest first.
pub(super) fn table(topology: &Topology, links: &[Usage], resources: &[Usage], most: usize) -> String {
    let row = |name: String, usage: &Usage| {
        let carried = bytes(usage.bytes.0 as u64);
        let cells =
            vec![name, percent(Some(usage.utilisation)), time(usage.busy.0), carried, usage.messages.to_string()];
        (usage.busy.0, cells)
    };
    let links = topology.links().iter().zip(links);
    let mut rows: Vec<(f64, Vec<String>)> =
        links.map(|(link, usage)| row(format!("link {} → {}", link.from, link.to), usage)).collect();
    let resources = topology.resources().iter().zip(resources);
    rows.extend(resources.map(|(resource, usage)| row(shorten(&resource.name), usage)));
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let left = rows.len().saturating_sub(most);
    rows.truncate(most);
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    let table = screen::table(&["busiest first", "utilisation", "busy", "bytes", "messages"], &rows);
    if left > 0 { format!("{}\n… and {left} more (--json)", table.trim_end()) } else { table }
}
