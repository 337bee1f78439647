//! The Trace Event format that `chrome://tracing` and Perfetto open: links are one process, resources another.

use super::timeline::{TrackKind, tracks};
use schedule::{Cargo, ChunkId, Timeline, TransferKind};
use serde::Serialize;
use serde_json::to_writer;
use std::io::{self, BufWriter, Write};
use topology::{Micros, Rank};

/// The name of a process or of a thread: `M` events.
#[derive(Serialize)]
struct Naming<'a> {
    ph: &'static str,
    name: &'static str,
    pid: u32,
    tid: usize,
    args: Name<'a>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

/// An interval: `X` events.
#[derive(Serialize)]
struct Lasting<'a> {
    ph: &'static str,
    name: String,
    pid: u32,
    tid: usize,
    ts: Micros,
    dur: Micros,
    args: Details<'a>,
}

#[derive(Serialize)]
struct Details<'a> {
    transfer: usize,
    from: Rank,
    to: Rank,
    kind: TransferKind,
    /// The chunks, for a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<&'a [ChunkId]>,
    /// The sender's slots, for a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<&'a str>,
    arrives_us: Micros,
}

/// Writes a trace; the same timeline gives the same bytes.
///
/// # Errors
/// Errors of `out`.
pub fn trace(timeline: &Timeline, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    out.write_all(b"{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")?;
    to_writer(&mut out, &naming("process_name", process(TrackKind::Link), 0, "links"))?;
    out.write_all(b",\n")?;
    to_writer(&mut out, &naming("process_name", process(TrackKind::Resource), 0, "resources"))?;
    for track in tracks(timeline) {
        let (pid, tid) = (process(track.kind), track.id);
        out.write_all(b",\n")?;
        to_writer(&mut out, &naming("thread_name", pid, tid, &track.name))?;
        for span in track.spans {
            let message = &timeline.messages[span.message];
            let (chunks, slots) = match &message.cargo {
                Cargo::Chunks(chunks) => (Some(chunks.as_slice()), None),
                Cargo::Place(text, _) => (None, Some(text.as_ref())),
            };
            let args = Details {
                transfer: span.message,
                from: message.from,
                to: message.to,
                kind: message.kind,
                chunks,
                slots,
                arrives_us: message.end,
            };
            let (name, ts, dur) = (message.cargo.to_string(), span.start, span.busy);
            out.write_all(b",\n")?;
            to_writer(&mut out, &Lasting { ph: "X", name, pid, tid, ts, dur, args })?;
        }
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

fn naming<'a>(what: &'static str, pid: u32, tid: usize, name: &'a str) -> Naming<'a> {
    Naming { ph: "M", name: what, pid, tid, args: Name { name } }
}

fn process(kind: TrackKind) -> u32 {
    match kind {
        TrackKind::Link => 0,
        TrackKind::Resource => 1,
    }
}
