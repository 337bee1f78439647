//! Checks that every transfer is a message that demand and topology allow, with times that follow from the cost model.

use super::Violation;
use crate::tolerance::{clearly_before, differs};
use crate::{ChunkId, Findings, Schedule, Transfer, TransferKind};
use std::borrow::Cow;
use topology::{Micros, Topology};

pub(super) fn check(schedule: &Schedule, topology: &Topology, violations: &mut Findings<Violation>) {
    check_topology(schedule, topology, violations);
    for (index, transfer) in schedule.transfers.iter().enumerate() {
        check_chunks(schedule, index, transfer, violations);
        check_link(topology, index, transfer, violations);
        check_times(schedule, topology, index, transfer, violations);
    }
    check_order(schedule, violations);
    check_bound(schedule, violations);
}

fn check_topology(schedule: &Schedule, topology: &Topology, violations: &mut Findings<Violation>) {
    let (stated, actual) = (schedule.demand.request().ranks, topology.rank_count());
    if stated != actual {
        violations.push(Violation::WrongRankCount { stated, actual });
    }
    if let Some(stated) = &schedule.topology.digest {
        let actual = topology.digest();
        if *stated != actual {
            let (name, stated) = (schedule.topology.name.clone(), stated.clone());
            violations.push(Violation::WrongTopology { name, stated, actual });
        }
    }
}

/// The known chunks of a message, each once; most messages list exactly these, ascending.
pub(super) fn known_chunks<'a>(schedule: &Schedule, transfer: &'a Transfer) -> Cow<'a, [ChunkId]> {
    let count = schedule.demand.chunks().len();
    let ascending = transfer.chunks.is_sorted_by(|a, b| a < b);
    if ascending && transfer.chunks.last().is_none_or(|last| last.index() < count) {
        return Cow::Borrowed(&transfer.chunks);
    }
    let mut known = transfer.chunks.clone();
    known.retain(|chunk| chunk.index() < count);
    known.sort_unstable();
    known.dedup();
    Cow::Owned(known.into_vec())
}

fn check_chunks(schedule: &Schedule, index: usize, transfer: &Transfer, violations: &mut Findings<Violation>) {
    let link = transfer.link;
    if transfer.chunks.is_empty() {
        violations.push(Violation::EmptyMessage { transfer: index, link });
    }
    if let (Cow::Borrowed(_), TransferKind::Copy) = (known_chunks(schedule, transfer), transfer.kind) {
        return;
    }
    let mut listed = transfer.chunks.clone();
    listed.sort_unstable();
    for same in listed.chunk_by(ChunkId::eq) {
        let chunk = same[0];
        if same.len() > 1 {
            violations.push(Violation::RepeatedChunk { transfer: index, link, chunk });
        }
        match schedule.demand.chunks().get(chunk.index()) {
            None => {
                let chunks = schedule.demand.chunks().len();
                violations.push(Violation::UnknownChunk { transfer: index, chunk, chunks });
            }
            Some(known) if transfer.kind == TransferKind::Reduce && !known.combine => {
                violations.push(Violation::ReduceOfPlainChunk { transfer: index, link, chunk });
            }
            Some(_) => {}
        }
    }
}

fn check_link(topology: &Topology, index: usize, transfer: &Transfer, violations: &mut Findings<Violation>) {
    let Transfer { from, to, link, .. } = *transfer;
    match topology.links().get(link.index()) {
        None => {
            let links = topology.links().len();
            violations.push(Violation::UnknownLink { transfer: index, link, links });
        }
        Some(real) if (real.from, real.to) != (from, to) => {
            let (link_from, link_to) = (real.from, real.to);
            violations.push(Violation::WrongEnds { transfer: index, link, from, to, link_from, link_to });
        }
        Some(_) => {}
    }
}

/// Whether both times are numbers. Transfers whose times are not take no part in later checks.
pub(super) fn is_timed(transfer: &Transfer) -> bool {
    transfer.start.0.is_finite() && transfer.end.0.is_finite()
}

fn check_times(
    schedule: &Schedule,
    topology: &Topology,
    index: usize,
    transfer: &Transfer,
    violations: &mut Findings<Violation>,
) {
    let Transfer { link, start, end, .. } = *transfer;
    if !is_timed(transfer) || start < Micros::ZERO || end < Micros::ZERO {
        violations.push(Violation::BadTime { transfer: index, link, start, end });
        return;
    }
    let known = known_chunks(schedule, transfer);
    let Some(real) = topology.links().get(link.index()) else { return };
    if known.len() < transfer.chunks.len() {
        return; // Already reported, and the size of the message is anybody's guess.
    }
    // end = start + α + β·bytes
    let expected = start + real.transfer_time(schedule.demand.message_bytes(&known));
    if differs(end, expected) {
        violations.push(Violation::WrongDuration { transfer: index, link, start, end, expected });
    }
}

fn check_order(schedule: &Schedule, violations: &mut Findings<Violation>) {
    for (index, pair) in schedule.transfers.windows(2).enumerate() {
        let (previous, start) = (pair[0].start, pair[1].start);
        if clearly_before(start, previous) {
            violations.push(Violation::NotSorted { transfer: index + 1, start, previous });
        }
    }
}

fn check_bound(schedule: &Schedule, violations: &mut Findings<Violation>) {
    let Some(stated) = &schedule.bound else { return };
    let makespan = schedule.makespan();
    if !stated.value.0.is_finite() || clearly_before(makespan, stated.value) {
        let (bound, name) = (stated.value, stated.name.clone());
        violations.push(Violation::BoundAboveMakespan { bound, name, makespan });
    }
}
