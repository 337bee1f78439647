//! Whether sends and receives match, and whether the program can always go on.
//!
//! The principal type is [`Messages`]. The weakest transport is assumed, one without any buffer: a send ends only
//! when its receive takes the data. A message is then one event in two threadblocks, and the program can stop
//! only if events wait for each other in a ring. Buffers never make a program stop that runs without them.

use super::{ProgramViolation, StepAt, StepId, Steps, structure};
use crate::program::{ConnectionId, Program};

/// A send and its receive.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) send: StepId,
    pub(super) receive: StepId,
}

/// All messages, and which one each step sends or receives.
pub(super) struct Messages {
    pub(super) list: Vec<Message>,
    of: Vec<Option<u32>>,
}

/// Something that happens at once: a message, or a step that neither sends nor receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Message(u32),
    Local(StepId),
}

/// The steps at the two ends of one connection, in order.
#[derive(Clone, Default)]
struct Lane {
    sends: Vec<StepId>,
    receives: Vec<StepId>,
}

impl Messages {
    /// Pairs the n-th send of each connection with its n-th receive.
    pub(super) fn matched(program: &Program, steps: &Steps) -> Result<Self, Vec<ProgramViolation>> {
        let mut violations = Vec::new();
        let mut lanes = vec![Lane::default(); program.connections.len()];
        for id in steps.ids() {
            let instruction = &steps.step(program, id).instruction;
            if let Some(connection) = instruction.sends_to() {
                let end = &mut lanes[connection.index()].sends;
                append(end, id, connection, steps, &mut violations);
            }
            if let Some(connection) = instruction.receives_from() {
                let end = &mut lanes[connection.index()].receives;
                append(end, id, connection, steps, &mut violations);
            }
        }
        let mut messages = Self { list: Vec::new(), of: vec![None; steps.at.len()] };
        for (index, Lane { sends, receives }) in lanes.iter().enumerate() {
            let connection = ConnectionId(index as u32);
            for (&send, &receive) in sends.iter().zip(receives) {
                let number = messages.list.len() as u32;
                messages.of[send as usize] = Some(number);
                messages.of[receive as usize] = Some(number);
                messages.list.push(Message { send, receive });
                let (send, receive) = (steps.at(send), steps.at(receive));
                if !payload(program, steps, send).eq(payload(program, steps, receive)) {
                    violations.push(ProgramViolation::MessageShape { send, receive });
                }
            }
            let paired = sends.len().min(receives.len());
            let alone = sends[paired..].iter().chain(&receives[paired..]);
            violations.extend(alone.map(|&id| ProgramViolation::Unmatched { at: steps.at(id), connection }));
        }
        if violations.is_empty() { Ok(messages) } else { Err(violations) }
    }

    /// The events in an order in which they can happen.
    pub(super) fn order(&self, program: &Program, steps: &Steps) -> Result<Vec<Event>, Vec<ProgramViolation>> {
        let events = Events::new(self, program, steps);
        let mut waiting = vec![0u32; events.list.len()];
        events.followers.iter().for_each(|&event| waiting[event as usize] += 1);
        let mut order: Vec<u32> = (0..events.list.len() as u32).filter(|&event| waiting[event as usize] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for &event in events.after(order[next]) {
                waiting[event as usize] -= 1;
                if waiting[event as usize] == 0 {
                    order.push(event);
                }
            }
            next += 1;
        }
        if order.len() < events.list.len() {
            let ring = events.ring(&waiting);
            let cycle = ring.into_iter().map(|event| steps.at(self.a_step_of(events.list[event as usize]))).collect();
            return Err(vec![ProgramViolation::Deadlock { cycle }]);
        }
        Ok(order.into_iter().map(|event| events.list[event as usize]).collect())
    }

    /// The step that sent what a step receives.
    pub(super) fn sender(&self, receive: StepId) -> Option<StepId> {
        let message = self.list[self.of[receive as usize]? as usize];
        (message.receive == receive).then_some(message.send)
    }

    fn a_step_of(&self, event: Event) -> StepId {
        match event {
            Event::Message(message) => self.list[message as usize].receive,
            Event::Local(step) => step,
        }
    }
}

/// Adds a step to one end of a connection, which belongs to one threadblock.
fn append(
    end: &mut Vec<StepId>,
    id: StepId,
    connection: ConnectionId,
    steps: &Steps,
    violations: &mut Vec<ProgramViolation>,
) {
    if let Some(&last) = end.last() {
        let (at, other) = (steps.at(id), steps.at(last));
        if at.threadblock != other.threadblock {
            violations.push(ProgramViolation::SharedConnection { at, other, connection });
        }
    }
    end.push(id);
}

/// The shape of what a step sends or receives; all slices of one step have the same.
fn payload<'p>(program: &'p Program, steps: &Steps, at: StepAt) -> impl Iterator<Item = u32> + use<'p> {
    structure::shape(program, at.rank, steps.step(program, steps.id(at)).instruction.shape())
}

/// The events and which of them must come directly after which.
struct Events {
    list: Vec<Event>,
    /// Where each event's followers start; one allocation for all.
    starts: Vec<u32>,
    followers: Vec<u32>,
}

impl Events {
    fn new(messages: &Messages, program: &Program, steps: &Steps) -> Self {
        let mut list: Vec<Event> = (0..messages.list.len() as u32).map(Event::Message).collect();
        let mut local = |id| {
            list.push(Event::Local(id));
            list.len() as u32 - 1
        };
        let event_of: Vec<u32> = steps.ids().map(|id| messages.of[id as usize].unwrap_or_else(|| local(id))).collect();
        let mut edges = Vec::new();
        for id in steps.ids() {
            let (at, event) = (steps.at(id), event_of[id as usize]);
            if at.step > 0 {
                edges.push((event_of[id as usize - 1], event));
            }
            for after in &steps.step(program, id).after {
                let before = steps.first[at.rank.index()][after.threadblock as usize] + after.step;
                edges.push((event_of[before as usize], event));
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

    fn after(&self, event: u32) -> &[u32] {
        &self.followers[self.starts[event as usize] as usize..self.starts[event as usize + 1] as usize]
    }

    /// A ring among the events that still wait for something.
    fn ring(&self, waiting: &[u32]) -> Vec<u32> {
        // Every stuck event waits for a stuck one; walking from each to one that it waits for must repeat.
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
