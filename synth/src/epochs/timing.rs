//! From departures in epochs to a schedule in microseconds.
//!
//! The principal function is [`schedule_of`]. The epochs determine what goes over which link and roughly when;
//! `schedule::replay` computes exact times. Useless transfers are dropped first. Two choices that the epochs leave open
//! are tried both ways: whether the chunks of one epoch travel as one message or as several, and whether the order of
//! the epochs or a list schedule by longest remaining path is better.

use crate::ordering::earliest_first;
use crate::problem::constraints::RuleKind;
use crate::problem::tolerance::faster_or_fewer;
use crate::problem::{Problem, SynthError};
use schedule::{ChunkId, Message, Schedule, Transfer, TransferKind, replay};
use std::collections::{BTreeMap, BTreeSet};
use topology::{LinkId, Micros, Rank};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Departure {
    pub(crate) chunk: ChunkId,
    pub(crate) link: LinkId,
    pub(crate) epoch: u32,
}

/// The fastest schedule found that follows `departures`.
///
/// # Errors
/// [`SynthError::Order`] if a departure sends what has not arrived: a defect of the model.
pub(crate) fn schedule_of(
    problem: &Problem,
    departures: Vec<Departure>,
    strategy: &'static str,
) -> Result<Schedule, SynthError> {
    let mut sends = drop_useless(problem, departures);
    add_remaining_paths(problem, &mut sends);
    let mut candidates = Vec::new();
    // The list scheduler ignores rules about the order of messages; the order of the epochs obeys them.
    if !problem.constraints.exceeds(&RuleKind::OF_WAYS) {
        candidates.push(earliest_first(problem, &one_by_one(&sends)));
    }
    sends.sort_by(|a, b| {
        let remaining = b.remaining.total_cmp(&a.remaining);
        a.departure.epoch.cmp(&b.departure.epoch).then(remaining).then(a.key().cmp(&b.key()))
    });
    candidates.extend([one_by_one(&sends), together(&sends)]);
    let mut best: Option<Vec<Transfer>> = None;
    for messages in candidates {
        let transfers = replay(&problem.demand, &problem.topology, &messages)
            .map_err(|error| SynthError::Order { strategy, error })?;
        if best.as_ref().is_none_or(|best| faster_or_fewer(&transfers, best)) {
            best = Some(transfers);
        }
    }
    Ok(Schedule::new(&problem.topology, problem.demand.clone(), best.unwrap_or_default(), strategy))
}

/// A departure that some rank needs.
#[derive(Clone, Copy, Debug)]
struct Send {
    departure: Departure,
    from: Rank,
    to: Rank,
    /// The time from its start to the last arrival that depends on it, on empty links.
    remaining: Micros,
}

impl Send {
    fn key(&self) -> (u32, u32) {
        (self.departure.link.0, self.departure.chunk.0)
    }
}

/// The departures without copies that are neither wanted by their receiver nor passed on.
fn drop_useless(problem: &Problem, mut departures: Vec<Departure>) -> Vec<Send> {
    departures.sort_by_key(|it| (it.epoch, it.link, it.chunk));
    let mut needed: BTreeSet<(ChunkId, Rank)> = BTreeSet::new();
    let mut sends = Vec::with_capacity(departures.len());
    // Going backwards in time, a departure is seen before the one that brings its chunk.
    for departure in departures.into_iter().rev() {
        let link = problem.topology.link(departure.link);
        let wanted = problem.demand.chunk(departure.chunk).wanted_by.has(link.to);
        if wanted || needed.contains(&(departure.chunk, link.to)) {
            needed.insert((departure.chunk, link.from));
            sends.push(Send { departure, from: link.from, to: link.to, remaining: Micros::ZERO });
        }
    }
    sends.reverse();
    sends
}

/// Fills in `remaining`; `sends` are in order of departure.
fn add_remaining_paths(problem: &Problem, sends: &mut [Send]) {
    let mut longest: BTreeMap<(ChunkId, Rank), Micros> = BTreeMap::new();
    for send in sends.iter_mut().rev() {
        let chunk = send.departure.chunk;
        let time = problem.topology.link(send.departure.link).transfer_time(problem.demand.bytes_of(chunk));
        send.remaining = time + longest.get(&(chunk, send.to)).copied().unwrap_or(Micros::ZERO);
        let from = longest.entry((chunk, send.from)).or_default();
        *from = from.max(send.remaining);
    }
}

fn message(chunks: &[Send]) -> Message {
    let link = chunks[0].departure.link;
    Message { chunks: chunks.iter().map(|send| send.departure.chunk).collect(), link, kind: TransferKind::Copy }
}

fn one_by_one(order: &[Send]) -> Vec<Message> {
    order.chunks(1).map(message).collect()
}

/// The chunks of one link and one epoch as one message, at the place of the first of them.
fn together(order: &[Send]) -> Vec<Message> {
    let mut place: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let mut groups: Vec<Vec<Send>> = Vec::new();
    for send in order {
        let next = groups.len();
        let at = *place.entry((send.departure.epoch, send.departure.link.0)).or_insert(next);
        if at == next {
            groups.push(Vec::new());
        }
        groups[at].push(*send);
    }
    groups.iter().map(|group| message(group)).collect()
}
