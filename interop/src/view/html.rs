//! The timeline as one page without external resources: the data as JSON, inside a template that draws it.

use super::timeline::tracks;
use schedule::Timeline;
use serde_json::json;
use std::io::{self, BufWriter, Write};
use topology::Bytes;
use topology::quantity::{show_bytes, show_duration};

const TEMPLATE: &str = include_str!("timeline.html");
/// The place of the data in the template.
const PLACE: &str = "/*DATA*/null";

/// Writes the page; the same timeline gives the same bytes.
///
/// # Errors
/// Errors of `out`.
pub fn html(timeline: &Timeline, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    let (head, tail) = TEMPLATE.split_once(PLACE).expect("the template has a place for the data");
    out.write_all(head.as_bytes())?;
    let size = show_bytes(Bytes(timeline.size_bytes as f64));
    let title = format!("{} of {size} on {}", timeline.title, timeline.topology.name());
    let bound = timeline.bound.map_or_else(String::new, |bound| format!(", lower bound {}", show_duration(bound)));
    let facts = format!("makespan {}{bound}", show_duration(timeline.makespan()));
    write!(
        out,
        "{{\"title\":{},\"facts\":{},\"makespan\":{},\"bound\":{},\"tracks\":[",
        embedded(&json!(title)),
        embedded(&json!(facts)),
        json!(timeline.makespan()),
        json!(timeline.bound)
    )?;
    for (index, track) in tracks(timeline).into_iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(out, "{comma}\n{{\"name\":{},\"spans\":[", embedded(&json!(track.name)))?;
        for (index, span) in track.spans.into_iter().enumerate() {
            let message = &timeline.messages[span.message];
            let comma = if index > 0 { "," } else { "" };
            // start, busy, arrival, colour, text
            let text = format!("{} {} → {}", message.cargo, message.from, message.to);
            write!(out, "{comma}{}", json!([span.start, span.busy, message.end, message.cargo.colour(), text]))?;
        }
        write!(out, "]}}")?;
    }
    write!(out, "]}}")?;
    out.write_all(tail.as_bytes())?;
    out.flush()
}

/// JSON that cannot end the surrounding script element.
fn embedded(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c")
}
