//! The order of a rank's messages to and from other computers.
//!
//! The principal type is [`MessageOrder`]. A plan assumes that messages which share a network interface pass it one
//! after the other, or as its times say. But sockets share the interface evenly among all messages that are ready. Then
//! messages that other ranks wait for are late, and queues overflow where many messages meet. So a rank keeps the order
//! of the plan ([`Sequencer`](crate::pacing::sequencer::Sequencer)).
//!
//! The orders of both directions come from one order of all messages ([`crate::pacing::order::line_up`]). All waits of
//! the program point backwards in it, so no cycle arises. Tiles follow each other. Not every message is limited by this
//! rank's interface. Messages that the same resource limits form a queue, and each queue keeps its order.

use crate::pacing::order::line_up;
use crate::pacing::rates::rates;
use crate::plan::RankPlan;
use program::{Connection, ConnectionId, Program, RankProgram, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use topology::{Micros, ResourceId};

/// One message of a rank.
#[derive(Clone, Debug)]
pub(super) struct PacedMessage {
    pub(super) lane: ConnectionId,
    /// The threadblock of its steps, and their range there.
    block: usize,
    steps: Range<usize>,
    /// Its start and its end in the plan.
    pub(super) times: [Micros; 2],
    /// The rate at which this rank sends it, in bytes per second, if it is limited.
    pub(super) rate: Option<f64>,
    /// The number of its queue, and its place there. Messages that the same resource limits are one queue.
    pub(super) queue: usize,
    pub(super) index: usize,
}

/// The messages of one direction, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageQueues {
    pub(super) passages: Vec<PacedMessage>,
    /// For each queue, the places of its messages.
    pub(super) queues: Vec<Vec<usize>>,
}

/// The order of one rank's messages to and from other computers.
#[derive(Clone, Debug)]
pub(crate) struct MessageOrder {
    pub(super) sends: MessageQueues,
    pub(super) receives: MessageQueues,
    /// For each step of each threadblock, the place of its message among the messages of its direction.
    pub(super) places: Vec<Vec<Option<usize>>>,
}

impl MessageOrder {
    /// The order for a rank. `None` if no connection is remote, if the plan has no times, if a threadblock has an order
    /// of its own, or if not all messages can be ordered. All ranks come to the same result.
    pub(crate) fn of(plan: &RankPlan<'_>, remote: impl Fn(&Connection) -> bool) -> Option<Self> {
        let (program, own) = (plan.program, plan.own());
        if !plan.connections.iter().any(&remote) || program.tempo.times.is_empty() || !has_free_ends(program) {
            return None;
        }
        let ways = |lane: &Connection| match remote(lane) {
            true => vec![2 * lane.from.index(), 2 * lane.to.index() + 1],
            false => Vec::new(),
        };
        let shared: Vec<Vec<usize>> = plan.connections.iter().map(ways).collect();
        let mut messages = messages(own);
        let mut order =
            Self { sends: MessageQueues::default(), receives: MessageQueues::default(), places: Vec::new() };
        order.places.extend(own.threadblocks.iter().map(|block| vec![None; block.steps.len()]));
        let line = line_up(program, &shared);
        // A message that is not in the line would never be admitted.
        if line.len() != sent(program) {
            return None;
        }
        for (transfer, lane) in line {
            if shared[lane.index()].is_empty() {
                continue;
            }
            let Some((block, steps)) = messages.remove(&transfer) else { continue };
            let sends = plan.connections[lane.index()].from == plan.rank;
            let line = if sends { &mut order.sends.passages } else { &mut order.receives.passages };
            order.places[block][steps.clone()].fill(Some(line.len()));
            line.push(PacedMessage {
                lane,
                block,
                steps,
                times: program.tempo.times[transfer as usize],
                rate: None,
                queue: 0,
                index: 0,
            });
        }
        let rates = rates(program, order.sends.passages.iter().map(|passage| (passage.lane, passage.times)));
        order.sends.passages.iter_mut().for_each(|passage| passage.rate = rates.get(&passage.lane).copied());
        for (end, line) in [&mut order.sends, &mut order.receives].into_iter().enumerate() {
            line.part(|lane| program.tempo.bottlenecks.get(lane.index())?[end]);
        }
        Some(order)
    }

    /// The rates at which this rank sends to other computers, in bytes per second.
    pub(crate) fn rates(&self) -> BTreeMap<ConnectionId, f64> {
        self.sends.passages.iter().filter_map(|passage| Some((passage.lane, passage.rate?))).collect()
    }
}

impl PacedMessage {
    /// The bytes of one tile.
    pub(super) fn bytes(&self, plan: &RankPlan<'_>, tile: usize) -> usize {
        plan.message_bytes(&plan.own().threadblocks[self.block].steps[self.steps.clone()], tile)
    }
}

impl MessageQueues {
    /// Parts the messages into queues, by the resource that limits them.
    fn part(&mut self, bottleneck: impl Fn(ConnectionId) -> Option<ResourceId>) {
        let mut numbers = BTreeMap::new();
        for (place, passage) in self.passages.iter_mut().enumerate() {
            let next = numbers.len();
            passage.queue = *numbers.entry(bottleneck(passage.lane)).or_insert(next);
            self.queues.resize_with(numbers.len(), Vec::new);
            passage.index = self.queues[passage.queue].len();
            self.queues[passage.queue].push(place);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.passages.len()
    }
}

/// Whether every threadblock has one end of at most one connection. Local steps may stand between its other steps.
fn has_free_ends(program: &Program) -> bool {
    let ends = |step: &Step| (step.instruction.receives_from(), step.instruction.sends_to());
    program.ranks.iter().flat_map(|rank| &rank.threadblocks).all(|block| {
        let mut steps = block.steps.iter().map(ends).filter(|ends| *ends != (None, None));
        let first = steps.next();
        !matches!(first, Some((Some(_), Some(_)))) && steps.all(|step| Some(step) == first)
    })
}

/// How many transfers are sent.
fn sent(program: &Program) -> usize {
    let steps = program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps);
    steps
        .filter(|step| step.instruction.sends_to().is_some())
        .filter_map(|step| step.transfer)
        .collect::<BTreeSet<_>>()
        .len()
}

/// The threadblock and the steps of each message of a rank.
fn messages(own: &RankProgram) -> BTreeMap<u32, (usize, Range<usize>)> {
    let mut messages = BTreeMap::new();
    for (block, threadblock) in own.threadblocks.iter().enumerate() {
        let mut at = 0;
        for steps in threadblock.steps.chunk_by(|a, b| a.transfer == b.transfer) {
            let end = at + steps.len();
            messages.extend(steps[0].transfer.map(|transfer| (transfer, (block, at..end))));
            at = end;
        }
    }
    messages
}
