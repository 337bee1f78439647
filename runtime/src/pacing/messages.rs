//! The order of a rank's messages to and from other computers.
//!
//! The principal type is [`MessageOrder`]. A plan counts on messages that share a network interface to pass it one after the
//! other, or as far apart as their times say. Sockets would share it evenly among all messages that are ready: what others
//! wait for comes last, and where many come together, queues overflow. So a rank keeps the order of the plan
//! ([`Keeper`](crate::pacing::keeper::Keeper)).
//!
//! The orders of both directions are taken from one line-up of all messages ([`crate::pacing::order::line_up`]), and all waits
//! of the program point backwards in it, so no circle closes; tiles follow each other, as everywhere. Not all messages are
//! held up by this rank's interface. Those that the same resource holds up are a queue, which keeps its order.

use crate::pacing::order::line_up;
use crate::pacing::rates::rates;
use crate::plan::RankPlan;
use program::{Connection, ConnectionId, Program, RankProgram, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use topology::{Micros, ResourceId};

/// One message of a rank.
#[derive(Clone, Debug)]
pub(super) struct Passage {
    pub(super) lane: ConnectionId,
    /// Where its steps are.
    block: usize,
    steps: Range<usize>,
    /// When the plan has it on its way.
    pub(super) times: [Micros; 2],
    /// How fast this rank is to send it, in bytes per second, if that matters.
    pub(super) rate: Option<f64>,
    /// Those that the same holds up are one queue; its number, and the place there.
    pub(super) queue: usize,
    pub(super) index: usize,
}

/// The messages of one direction, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageQueues {
    pub(super) passages: Vec<Passage>,
    /// The places of each queue's messages.
    pub(super) queues: Vec<Vec<usize>>,
}

/// The order of one rank's messages to and from other computers.
#[derive(Clone, Debug)]
pub(crate) struct MessageOrder {
    pub(super) sends: MessageQueues,
    pub(super) receives: MessageQueues,
    /// For each step of each threadblock, its message's place in the line of its direction.
    pub(super) places: Vec<Vec<Option<usize>>>,
}

impl MessageOrder {
    /// The order for a rank; `None` where there is no plan to follow, where threadblocks have orders of their own, or where
    /// no order suits. All ranks come to the same conclusion.
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
        // Who is not in line would never be let in.
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
            line.push(Passage {
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

    /// How fast this rank is to send to other computers, in bytes per second.
    pub(crate) fn rates(&self) -> BTreeMap<ConnectionId, f64> {
        self.sends.passages.iter().filter_map(|passage| Some((passage.lane, passage.rate?))).collect()
    }
}

impl Passage {
    /// The bytes of one tile.
    pub(super) fn bytes(&self, plan: &RankPlan<'_>, tile: usize) -> usize {
        plan.message_bytes(&plan.own().threadblocks[self.block].steps[self.steps.clone()], tile)
    }
}

impl MessageQueues {
    /// Parts its messages into queues by what holds them up.
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

/// Whether every threadblock is one end of one connection, or local; local steps may stand between others.
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
