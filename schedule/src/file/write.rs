//! Writes a schedule: one line for each key, chunk and transfer, so that two files can be compared by `diff`.
//!
//! Lines are streamed, so a million transfers are never in memory as text. Numbers are written with the fewest digits
//! that give the same bits when they are read.

use super::FORMAT;
use crate::TopologyRef;
use crate::{Chunk, ChunkId, Generator, Schedule, Transfer, TransferKind, VerifiedCompressed, VerifiedSchedule};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use topology::Topology;

/// Writes `schedule` as `antiphon-schedule/1`; the same schedule gives the same bytes.
///
/// # Errors
/// Errors of `out`.
pub fn write(schedule: &VerifiedSchedule, out: impl Write) -> io::Result<()> {
    let (schedule, topology) = (schedule.schedule(), schedule.topology());
    let mut out = BufWriter::new(out);
    write_request(schedule, topology, &mut out)?;
    write_list(&mut out, "chunks", schedule.demand.chunk_ids().zip(schedule.demand.chunks()), write_chunk)?;
    write_list(&mut out, "transfers", schedule.transfers.iter(), write_transfer)?;
    write_answer(schedule, &mut out)?;
    out.flush()
}

/// Writes a compressed schedule: the base transfers, the generators, and the chunks only where the request does not
/// imply them. The same schedule gives the same bytes.
///
/// # Errors
/// Errors of `out`.
pub fn write_compressed(schedule: &VerifiedCompressed, out: impl Write) -> io::Result<()> {
    let base = schedule.base();
    let mut out = BufWriter::new(out);
    write_request(base, schedule.topology(), &mut out)?;
    if base.demand.request().collective.is_listed() {
        write_list(&mut out, "chunks", base.demand.chunk_ids().zip(base.demand.chunks()), write_chunk)?;
    }
    writeln!(out, "\"symmetry\": {{\"generators\": [")?;
    for (index, Generator { ranks, links, chunks }) in schedule.generators().iter().enumerate() {
        out.write_all(if index == 0 { b" {\"ranks\": " } else { b",\n {\"ranks\": " })?;
        write_numbers(&mut out, ranks.iter().map(|it| it.0))?;
        out.write_all(b",\n  \"links\": ")?;
        write_numbers(&mut out, links.iter().map(|it| it.0))?;
        out.write_all(b",\n  \"chunks\": ")?;
        write_numbers(&mut out, chunks.iter().map(|it| it.0))?;
        out.write_all(b"}")?;
    }
    writeln!(out, "\n]}},")?;
    write_list(&mut out, "transfers", base.transfers.iter(), write_transfer)?;
    write_answer(base, &mut out)?;
    out.flush()
}

fn write_request(schedule: &Schedule, topology: &Topology, out: &mut impl Write) -> io::Result<()> {
    let request = schedule.demand.request();
    writeln!(out, "{{\n\"format\": \"{FORMAT}\",")?;
    write_topology(&schedule.topology, topology, out)?;
    write_key(out, "collective", &request.collective)?;
    if let Some(op) = request.op {
        write_key(out, "op", &op)?;
    }
    write_key(out, "root", &request.root)?;
    write_key(out, "ranks", &request.ranks)?;
    if request.members.len() < request.ranks {
        write_key(out, "members", &request.members)?;
    }
    write_key(out, "size_bytes", &request.size_bytes)?;
    write_key(out, "chunks_per_rank", &request.chunks_per_rank)?;
    write_key(out, "chunk_bytes", &schedule.demand.chunk_bytes())
}

/// Writes the name and the digest, and the whole topology unless the name is a SPEC of it. So a plan needs no other
/// file.
fn write_topology(named: &TopologyRef, topology: &Topology, out: &mut impl Write) -> io::Result<()> {
    let is_known = topology.is_named_by_spec() && topology.name() == named.name;
    if is_known || topology::resolve(&named.name).is_ok_and(|other| other.digest() == topology.digest()) {
        return write_key(out, "topology", named);
    }
    write!(out, "\"topology\": {{\"name\": ")?;
    serde_json::to_writer(&mut *out, &named.name)?;
    writeln!(
        out,
        ", \"digest\": \"{}\", \"embedded\": {}}},",
        topology.digest(),
        topology::to_json(topology).trim_end()
    )
}

fn write_answer(schedule: &Schedule, out: &mut impl Write) -> io::Result<()> {
    write_key(out, "makespan_us", &schedule.makespan())?;
    write_key(out, "lower_bound_us", &schedule.bound.as_ref().map(|bound| bound.value))?;
    write_key(out, "bound", &schedule.bound.as_ref().map(|bound| &bound.name))?;
    write_key(out, "gap", &schedule.gap())?;
    write!(out, "\"produced_by\": ")?;
    serde_json::to_writer(&mut *out, &schedule.produced_by)?;
    writeln!(out, "\n}}")
}

fn write_key<T: Serialize>(out: &mut impl Write, key: &str, value: &T) -> io::Result<()> {
    write!(out, "\"{key}\": ")?;
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out, ",")
}

fn write_list<W: Write, T>(
    out: &mut W,
    key: &str,
    items: impl Iterator<Item = T>,
    write_item: impl Fn(&mut W, T) -> io::Result<()>,
) -> io::Result<()> {
    write!(out, "\"{key}\": [")?;
    for (index, item) in items.enumerate() {
        out.write_all(if index == 0 { b"\n " } else { b",\n " })?;
        write_item(out, item)?;
    }
    writeln!(out, "\n],")
}

fn write_chunk(out: &mut impl Write, (id, chunk): (ChunkId, &Chunk)) -> io::Result<()> {
    write!(out, "{{\"id\": {id}, \"holders\": ")?;
    write_numbers(out, chunk.holders.iter().map(|it| it.0))?;
    write!(out, ", \"wanted_by\": ")?;
    write_numbers(out, chunk.wanted_by.iter().map(|it| it.0))?;
    write!(out, ", \"combine\": {}", chunk.combine)?;
    if let Some(bytes) = chunk.bytes {
        write!(out, ", \"bytes\": {:?}", bytes.0)?;
    }
    if chunk.release > topology::Micros::ZERO {
        write!(out, ", \"release_us\": {:?}", chunk.release.0)?;
    }
    write!(out, "}}")
}

fn write_transfer(out: &mut impl Write, transfer: &Transfer) -> io::Result<()> {
    let Transfer { chunks, from, to, link, kind, start, end } = transfer;
    write!(out, "{{\"chunks\": ")?;
    write_numbers(out, chunks.iter().map(|it| it.0))?;
    let kind = match kind {
        TransferKind::Copy => "copy",
        TransferKind::Reduce => "reduce",
    };
    // `{:?}` of a finite float is the shortest text that reads back as the same bits, and it is valid JSON.
    let (start, end) = (start.0, end.0);
    write!(
        out,
        ", \"from\": {from}, \"to\": {to}, \"link\": {link}, \"kind\": \"{kind}\", \"start_us\": {start:?}, \"end_us\": {end:?}}}"
    )
}

/// Writes digits directly: large files have tens of millions of chunks, and formatting would be slower than the disk.
fn write_numbers(out: &mut impl Write, numbers: impl Iterator<Item = u32>) -> io::Result<()> {
    out.write_all(b"[")?;
    for (index, number) in numbers.enumerate() {
        if index > 0 {
            out.write_all(b", ")?;
        }
        let (mut digits, mut first, mut left) = ([b'0'; 10], 10, number);
        while left > 0 || first == 10 {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        out.write_all(&digits[first..])?;
    }
    out.write_all(b"]")
}
