//! The Trace Event format that `chrome://tracing` and Perfetto open: links are one process, resources another.

use super::timeline::{TrackKind, cargo, tracks};
use crate::VerifiedSchedule;
use serde_json::{json, to_writer};
use std::io::{self, BufWriter, Write};
use topology::Topology;

/// Writes a trace; the same schedule gives the same bytes.
///
/// # Errors
/// Those of `out`.
pub fn trace(schedule: &VerifiedSchedule, topology: &Topology, out: impl Write) -> io::Result<()> {
    let schedule = schedule.schedule();
    let mut out = BufWriter::new(out);
    out.write_all(b"{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")?;
    for (process, name) in [(0, "links"), (1, "resources")] {
        to_writer(&mut out, &json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}))?;
        out.write_all(if process == 0 { b",\n" } else { b"" })?;
    }
    for track in tracks(schedule, topology) {
        let process = if track.kind == TrackKind::Link { 0 } else { 1 };
        out.write_all(b",\n")?;
        let label = json!({"name": track.name});
        to_writer(
            &mut out,
            &json!({"ph": "M", "name": "thread_name", "pid": process, "tid": track.id, "args": label}),
        )?;
        for span in track.spans {
            let transfer = &schedule.transfers[span.transfer];
            let details = json!({
                "transfer": span.transfer, "from": transfer.from, "to": transfer.to, "kind": transfer.kind,
                "chunks": transfer.chunks, "arrives_us": transfer.end,
            });
            out.write_all(b",\n")?;
            to_writer(
                &mut out,
                &json!({
                    "ph": "X", "name": cargo(transfer), "pid": process, "tid": track.id,
                    "ts": span.start, "dur": span.busy, "args": details,
                }),
            )?;
        }
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}
