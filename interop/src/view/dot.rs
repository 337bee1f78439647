//! Graphviz: ranks in a box for each machine, and for every used link the bytes that it carries.

use schedule::Timeline;
use std::io::{self, BufWriter, Write};
use topology::Link;
use topology::quantity::{show_bytes, show_duration};

/// Writes a directed graph; the same timeline gives the same bytes.
///
/// # Errors
/// Errors of `out`.
pub fn dot(timeline: &Timeline, out: impl Write) -> io::Result<()> {
    let (topology, (links, _)) = (&timeline.topology, timeline.usage());
    let mut out = BufWriter::new(out);
    let title = format!("{} on {}: {}", timeline.title, topology.name(), show_duration(timeline.makespan()));
    writeln!(out, "digraph schedule {{\n  label=\"{}\";\n  node [shape=circle];", quoted(&title))?;
    for (machine, ranks) in topology.machines().iter().enumerate() {
        write!(out, "  subgraph cluster_{machine} {{ label=\"machine {machine}\";")?;
        for rank in ranks {
            write!(out, " {rank};")?;
        }
        writeln!(out, " }}")?;
    }
    for (link, usage) in topology.links().iter().zip(&links).filter(|(_, usage)| usage.messages > 0) {
        let Link { from, to, .. } = link;
        let (bytes, messages, percent) = (show_bytes(usage.bytes), usage.messages, usage.utilisation * 100.0);
        writeln!(out, "  {from} -> {to} [label=\"{bytes} in {messages}, busy {percent:.0}%\"];")?;
    }
    writeln!(out, "}}")?;
    out.flush()
}

/// Inside double quotes, Graphviz wants quotes and backslashes escaped.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
