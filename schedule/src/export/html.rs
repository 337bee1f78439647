//! The timeline as one page without external resources: the data as JSON inside a template that draws it.

use super::timeline::{cargo, tracks};
use crate::VerifiedSchedule;
use serde_json::json;
use std::io::{self, BufWriter, Write};
use topology::Topology;

const TEMPLATE: &str = include_str!("timeline.html");
/// Where the data goes.
const PLACE: &str = "/*DATA*/null";

/// Writes the page; the same schedule gives the same bytes.
///
/// # Errors
/// Those of `out`.
pub fn html(schedule: &VerifiedSchedule, topology: &Topology, out: impl Write) -> io::Result<()> {
    let schedule = schedule.schedule();
    let request = schedule.demand.request();
    let mut out = BufWriter::new(out);
    let (head, tail) = TEMPLATE.split_once(PLACE).expect("the template has a place for the data");
    out.write_all(head.as_bytes())?;
    let title = format!("{} of {} bytes on {}", request.collective, request.size_bytes, topology.name());
    let bound = schedule.bound.as_ref().map(|bound| bound.value);
    write!(
        out,
        "{{\"title\":{},\"makespan\":{},\"bound\":{},\"tracks\":[",
        embedded(&json!(title)),
        json!(schedule.makespan()),
        json!(bound)
    )?;
    for (index, track) in tracks(schedule, topology).into_iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(out, "{comma}\n{{\"name\":{},\"spans\":[", embedded(&json!(track.name)))?;
        for (index, span) in track.spans.into_iter().enumerate() {
            let transfer = &schedule.transfers[span.transfer];
            let comma = if index > 0 { "," } else { "" };
            // start, busy, arrival, first chunk (its colour), text
            let first = transfer.chunks.first().map_or(0, |chunk| chunk.0);
            let text = format!("{} {} → {}", cargo(transfer), transfer.from, transfer.to);
            write!(out, "{comma}{}", json!([span.start, span.busy, transfer.end, first, text]))?;
        }
        write!(out, "]}}")?;
    }
    write!(out, "]}}")?;
    out.write_all(tail.as_bytes())?;
    out.flush()
}

/// JSON that cannot end the script it stands in.
fn embedded(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c")
}
