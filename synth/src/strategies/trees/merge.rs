//! Merges messages that follow each other on a link, which saves an α where no rank waits for the first.
//!
//! The principal function is [`merged`].

use crate::problem::Problem;
use schedule::{Message, Transfer, makespan, replay};
use std::collections::BTreeMap;
use topology::{Bytes, Micros};

/// Rounds of merging; each can double the length of messages, and longer ones are not useful.
const ROUNDS: u32 = 5;
/// The most transfers for which merging is worth the time.
const MOST: usize = 1 << 17;

/// `transfers` (in the order of their starts) with neighbours merged as long as that shortens the schedule.
pub(super) fn merged(problem: &Problem, transfers: Vec<Transfer>) -> Vec<Transfer> {
    let mut best = transfers;
    if best.len() > MOST {
        return best;
    }
    for _ in 0..ROUNDS {
        let Some(messages) = pairs_joined(problem, &best) else { break };
        let Ok(mut shorter) = replay(&problem.demand, &problem.topology, &messages) else { break };
        if makespan(&shorter) >= makespan(&best) {
            break;
        }
        shorter.sort_by(|a, b| a.start.total_cmp(&b.start));
        best = shorter;
    }
    best
}

/// The messages with neighbours merged in pairs, where the first's chunks can wait; `None` if there are no such pairs.
fn pairs_joined(problem: &Problem, transfers: &[Transfer]) -> Option<Vec<Message>> {
    let topology = &*problem.topology;
    let (mut held, mut used): (BTreeMap<_, Micros>, BTreeMap<_, Micros>) = Default::default();
    for transfer in transfers {
        for &chunk in &transfer.chunks {
            let first = |time: &mut Micros, other: Micros| *time = time.min(other);
            first(held.entry((chunk, transfer.to)).or_insert(transfer.end), transfer.end);
            first(used.entry((chunk, transfer.from)).or_insert(transfer.start), transfer.start);
        }
    }
    let bytes = |transfer: &Transfer| problem.demand.message_bytes(&transfer.chunks);
    let tolerance = |time: Micros| Micros(time.0 * 1e-9 + 1e-9);
    let mut before: Vec<Option<usize>> = vec![None; topology.links().len()];
    let mut joined: Vec<Option<usize>> = vec![None; transfers.len()];
    let mut count = 0;
    for (index, transfer) in transfers.iter().enumerate() {
        let link = topology.link(transfer.link);
        let Some(earlier) = before[transfer.link.index()].replace(index) else { continue };
        let first = &transfers[earlier];
        let end = first.start + link.transfer_time(Bytes(bytes(first).0 + bytes(transfer).0));
        let is_next = transfer.start <= first.start + link.occupancy(bytes(first)) + tolerance(transfer.start);
        let is_there = |chunk| match problem.demand.chunk(chunk).holders.has(transfer.from) {
            true => true,
            false => held.get(&(chunk, transfer.from)).is_some_and(|&held| held <= first.start + tolerance(held)),
        };
        let can_wait = |chunk| used.get(&(chunk, first.to)).is_none_or(|&used| end <= used + tolerance(used));
        let fits = is_next
            && first.kind == transfer.kind
            && transfer.chunks.iter().all(|&chunk| is_there(chunk) && !problem.demand.chunk(chunk).combine)
            && first.chunks.iter().all(|&chunk| can_wait(chunk));
        if fits {
            joined[earlier] = Some(index);
            before[transfer.link.index()] = None;
            count += 1;
        }
    }
    if count == 0 {
        return None;
    }
    let mut is_gone = vec![false; transfers.len()];
    let mut messages = Vec::with_capacity(transfers.len() - count);
    for (index, transfer) in transfers.iter().enumerate() {
        if is_gone[index] {
            continue;
        }
        let mut message = Message::from(transfer);
        if let Some(other) = joined[index] {
            is_gone[other] = true;
            message.chunks.extend(transfers[other].chunks.iter().copied());
            message.chunks.sort_unstable();
        }
        messages.push(message);
    }
    Some(messages)
}
