//! Checks that sends and receives match, and that the program cannot deadlock.
//!
//! The principal type is [`MatchedMessages`]. Window 0 assumes the weakest transport, one without any buffer: a send
//! ends only when its receive takes the data, so a message is one event in two threadblocks. At window w, a send ends
//! when the w-th message before it has been received. The program can deadlock only if events wait for each other in a
//! cycle. A program that runs with some room also runs with more. So the smallest window is found by bisection, and the
//! program is refused exactly if there is a cycle with unlimited room.

use super::images::Images;
use super::{ProgramViolation, StepId, Steps, structure};
use crate::{ConnectionId, Program};
use schedule::Findings;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use topology::Micros;

/// A send and its receive.
#[derive(Clone, Copy)]
pub(super) struct MatchedMessage {
    pub(super) send: StepId,
    pub(super) receive: StepId,
}

/// All messages, and the message that each step sends or receives.
pub(super) struct MatchedMessages {
    /// Messages of one connection are adjacent, in order.
    pub(super) list: Vec<MatchedMessage>,
    /// For each connection the index of its first message, and at the end the number of messages.
    first: Vec<u32>,
    of: Vec<Option<u32>>,
}

/// The steps at the two ends of one connection, in order.
#[derive(Clone, Default)]
struct ConnectionSteps {
    sends: Vec<StepId>,
    receives: Vec<StepId>,
}

impl MatchedMessages {
    /// Pairs the n-th send of each connection with its n-th receive.
    pub(super) fn matched(
        program: &Program,
        steps: &Steps<'_>,
        images: &Images<'_>,
    ) -> Result<Self, Findings<ProgramViolation>> {
        let mut violations = Findings::default();
        let mut lanes = vec![ConnectionSteps::default(); program.connections.len()];
        for id in steps.ids() {
            let instruction = steps.instruction(id);
            if let Some(connection) = instruction.sends_to() {
                let end = &mut lanes[connection.index()].sends;
                append(end, id, connection, steps, &mut violations);
            }
            if let Some(connection) = instruction.receives_from() {
                let end = &mut lanes[connection.index()].receives;
                append(end, id, connection, steps, &mut violations);
            }
        }
        let mut messages = Self { list: Vec::new(), first: vec![0], of: vec![None; steps.at.len()] };
        for (index, ConnectionSteps { sends, receives }) in lanes.iter().enumerate() {
            let connection = ConnectionId(index as u32);
            let across = images.across(program, connection);
            for (&send, &receive) in sends.iter().zip(receives) {
                let number = messages.list.len() as u32;
                messages.of[send as usize] = Some(number);
                messages.of[receive as usize] = Some(number);
                messages.list.push(MatchedMessage { send, receive });
                let received = payload(program, steps, receive).map(|part| images.part(across, part));
                if !payload(program, steps, send).eq(received) {
                    let (send, receive) = (steps.at(send), steps.at(receive));
                    violations.push(ProgramViolation::MessageShape { send, receive });
                }
            }
            messages.first.push(messages.list.len() as u32);
            let paired = sends.len().min(receives.len());
            let alone = sends[paired..].iter().chain(&receives[paired..]);
            violations.extend(alone.map(|&id| ProgramViolation::Unmatched { at: steps.at(id), connection }));
        }
        if violations.is_empty() { Ok(messages) } else { Err(violations) }
    }

    /// The smallest window that suffices, and the steps in a possible order. A send comes directly before its receive
    /// where there is no room for the message in between.
    pub(super) fn order(&self, steps: &Steps<'_>) -> Result<(u32, Vec<StepId>), Findings<ProgramViolation>> {
        let order_with = |window| Events::new(self, steps, window).order();
        if let Ok(order) = order_with(0) {
            return Ok((0, order));
        }
        // With room for all messages of a connection, no send waits for room.
        let longest = self.first.windows(2).map(|lane| lane[1] - lane[0]).max().unwrap_or(0);
        let deadlock = |cycle: Vec<StepId>| ProgramViolation::Deadlock {
            cycle: cycle.into_iter().map(|step| steps.at(step)).collect(),
        };
        let mut enough = (longest, order_with(longest).map_err(|cycle| Findings::from_iter([deadlock(cycle)]))?);
        // Most programs need little room, so the first guesses are small.
        let (mut too_small, mut guess) = (0, 1);
        while too_small + 1 < enough.0 {
            let window = guess.min(too_small.midpoint(enough.0));
            match order_with(window) {
                Ok(order) => enough = (window, order),
                Err(_) => too_small = window,
            }
            guess = guess.saturating_mul(2);
        }
        Ok(enough)
    }

    /// The steps in the order of their times, as far as one may come before the other: steps and messages by their start in the
    /// schedule, those without a time as soon as possible. A send comes directly before its receive. `None` if there is no such
    /// order without room for messages.
    pub(super) fn order_in_time(&self, steps: &Steps<'_>) -> Option<Vec<StepId>> {
        let times = &steps.program.tempo.times;
        let start =
            |event: &AtomicEvent| -> Option<Micros> { Some(times.get(steps.whole(event.step).transfer? as usize)?[0]) };
        let events = Events::new(self, steps, 0);
        // Times are not negative, so their bits are in their order.
        let starts: Vec<u64> =
            events.list.iter().map(|event| start(event).map_or(0, |start| start.0.max(0.0).to_bits())).collect();
        events.order_by(&starts).ok()
    }

    /// The message that a step sends or receives.
    pub(super) fn of(&self, step: StepId) -> Option<u32> {
        self.of[step as usize]
    }

    /// The step that sent the data which a step receives.
    pub(super) fn sender(&self, receive: StepId) -> Option<StepId> {
        let message = self.list[self.of[receive as usize]? as usize];
        (message.receive == receive).then_some(message.send)
    }
}

/// Adds a step to one end of a connection, which belongs to one threadblock.
fn append(
    end: &mut Vec<StepId>,
    id: StepId,
    connection: ConnectionId,
    steps: &Steps<'_>,
    violations: &mut Findings<ProgramViolation>,
) {
    if let Some(&last) = end.last() {
        let (at, other) = (steps.at(id), steps.at(last));
        if at.threadblock != other.threadblock {
            violations.push(ProgramViolation::SharedConnection { at, other, connection });
        }
    }
    end.push(id);
}

/// The shapes of the slots that a step sends or receives; all slices of one step have the same.
fn payload<'p>(program: &'p Program, steps: &Steps<'_>, id: StepId) -> impl Iterator<Item = u32> + use<'p> {
    structure::shape(program, steps.at(id).rank, steps.instruction(id).shape())
}

/// An atomic event: a step, or at window 0 a message, with its send first.
#[derive(Clone, Copy)]
struct AtomicEvent {
    step: StepId,
    receive: Option<StepId>,
}

/// The events, and which event must come after which.
struct Events {
    list: Vec<AtomicEvent>,
    /// Where each event's list of followers starts; one allocation for all lists.
    starts: Vec<u32>,
    followers: Vec<u32>,
}

impl Events {
    fn new(messages: &MatchedMessages, steps: &Steps<'_>, window: u32) -> Self {
        let mut list = Vec::new();
        let mut event_of = vec![0u32; steps.at.len()];
        for id in steps.ids() {
            let message = messages.of(id).filter(|_| window == 0).map(|number| messages.list[number as usize]);
            if message.is_some_and(|message| message.receive == id) {
                continue;
            }
            let event = list.len() as u32;
            event_of[id as usize] = event;
            let receive = message.map(|message| message.receive);
            receive.into_iter().for_each(|receive| event_of[receive as usize] = event);
            list.push(AtomicEvent { step: id, receive });
        }
        let mut edges = Vec::new();
        for id in steps.ids() {
            let before = steps.before(id);
            edges.extend(before.map(|before| (event_of[before as usize], event_of[id as usize])));
        }
        if window > 0 {
            for lane in messages.first.windows(2) {
                let lane = &messages.list[lane[0] as usize..lane[1] as usize];
                edges.extend(lane.iter().map(|&MatchedMessage { send, receive }| (send, receive)));
                let ahead = lane.iter().zip(lane.iter().skip(window as usize));
                edges.extend(ahead.map(|(taken, next)| (taken.receive, next.send)));
            }
        }
        let mut starts = vec![0u32; list.len() + 1];
        edges.iter().for_each(|&(before, _)| starts[before as usize + 1] += 1);
        for event in 0..list.len() {
            starts[event + 1] += starts[event];
        }
        let mut next = starts.clone();
        let mut followers = vec![0; edges.len()];
        for (before, after) in edges {
            followers[next[before as usize] as usize] = after;
            next[before as usize] += 1;
        }
        Self { list, starts, followers }
    }

    /// The steps in a possible order, or a cycle of steps that wait for each other.
    fn order(&self) -> Result<Vec<StepId>, Vec<StepId>> {
        let mut waiting = self.waiting();
        let mut order: Vec<u32> = (0..self.list.len() as u32).filter(|&event| waiting[event as usize] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for &event in self.after(order[next]) {
                waiting[event as usize] -= 1;
                if waiting[event as usize] == 0 {
                    order.push(event);
                }
            }
            next += 1;
        }
        self.steps_of(&order, &waiting)
    }

    /// The same; of those that can come next, the one with the least key does.
    fn order_by(&self, keys: &[u64]) -> Result<Vec<StepId>, Vec<StepId>> {
        let mut waiting = self.waiting();
        let entry = |event: u32| Reverse((keys[event as usize], event));
        let free = (0..self.list.len() as u32).filter(|&event| waiting[event as usize] == 0);
        let mut next: BinaryHeap<_> = free.map(entry).collect();
        let mut order = Vec::with_capacity(self.list.len());
        while let Some(Reverse((_, first))) = next.pop() {
            order.push(first);
            for &event in self.after(first) {
                waiting[event as usize] -= 1;
                if waiting[event as usize] == 0 {
                    next.push(entry(event));
                }
            }
        }
        self.steps_of(&order, &waiting)
    }

    /// For how many events each one waits.
    fn waiting(&self) -> Vec<u32> {
        let mut waiting = vec![0u32; self.list.len()];
        self.followers.iter().for_each(|&event| waiting[event as usize] += 1);
        waiting
    }

    /// The steps of an order of events, or a cycle if it has not all of them.
    fn steps_of(&self, order: &[u32], waiting: &[u32]) -> Result<Vec<StepId>, Vec<StepId>> {
        let event = |event: u32| self.list[event as usize];
        if order.len() < self.list.len() {
            return Err(self.cycle(waiting).into_iter().map(event).map(|of| of.receive.unwrap_or(of.step)).collect());
        }
        Ok(order.iter().copied().map(event).flat_map(|of| std::iter::once(of.step).chain(of.receive)).collect())
    }

    fn after(&self, event: u32) -> &[u32] {
        &self.followers[self.starts[event as usize] as usize..self.starts[event as usize + 1] as usize]
    }

    /// A cycle among the events that are still waiting.
    fn cycle(&self, waiting: &[u32]) -> Vec<u32> {
        // Every stuck event waits for another stuck event, so a walk from one to the next must repeat.
        let mut waits_for = vec![None; self.list.len()];
        for event in (0..self.list.len() as u32).filter(|&event| waiting[event as usize] > 0) {
            self.after(event).iter().for_each(|&follower| waits_for[follower as usize] = Some(event));
        }
        let mut visited = vec![false; self.list.len()];
        let mut walk = Vec::new();
        let mut here = (0..self.list.len() as u32).find(|&event| waiting[event as usize] > 0);
        while let Some(event) = here {
            if std::mem::replace(&mut visited[event as usize], true) {
                let start = walk.iter().position(|&earlier| earlier == event).unwrap_or(0);
                walk.drain(..start);
                break;
            }
            walk.push(event);
            here = waits_for[event as usize];
        }
        walk.reverse();
        walk
    }
}
