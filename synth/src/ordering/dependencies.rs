//! Which messages wait for which, whatever order they leave in.
//!
//! The principal type is [`DependencyGraph`], derived from a valid order of messages.

use crate::problem::Problem;
use schedule::{ChunkId, Message};
use std::collections::BTreeMap;
use topology::{Micros, Rank};

/// The messages and their dependencies.
pub(super) struct DependencyGraph<'a> {
    pub(super) problem: &'a Problem,
    pub(super) messages: &'a [Message],
    /// For each message, the time from its start until it has arrived.
    pub(super) durations: Vec<Micros>,
    /// What waits for what as time goes on.
    pub(super) onwards: Precedences,
    /// The same in reversed time.
    pub(super) back: Precedences,
    /// For each message, the time from its start until everything that depends on it has arrived.
    pub(super) tails: Vec<Micros>,
}

/// What waits for what, in one direction of time.
#[derive(Default)]
pub(super) struct Precedences {
    /// For each message, those that can begin only after it has ended.
    pub(super) followers: Vec<Vec<u32>>,
    /// For each message, those that must not begin before it has begun: they change the value that it carries.
    pub(super) changers: Vec<Vec<u32>>,
    /// For each message, how many others it waits for.
    pub(super) count: Vec<u32>,
}

/// The messages of one chunk that have come to one rank, and those that have left it.
#[derive(Default)]
struct ChunkTraffic {
    arrivals: Vec<u32>,
    departures: Vec<u32>,
}

impl Precedences {
    fn none(messages: usize) -> Self {
        Self { followers: vec![Vec::new(); messages], changers: vec![Vec::new(); messages], count: vec![0; messages] }
    }

    fn reversed(&self) -> Self {
        let mut reversed = Self::none(self.count.len());
        let Self { followers, changers, count } = &mut reversed;
        for (own, turned) in [(&self.followers, followers), (&self.changers, changers)] {
            for (earlier, later) in own.iter().enumerate() {
                count[earlier] += later.len() as u32;
                later.iter().for_each(|&later| turned[later as usize].push(earlier as u32));
            }
        }
        reversed
    }
}

impl<'a> DependencyGraph<'a> {
    /// Derives the dependencies from the given order.
    pub(super) fn new(problem: &'a Problem, messages: &'a [Message]) -> Self {
        let duration = |message: &Message| {
            let bytes = problem.demand.message_bytes(&message.chunks);
            problem.topology.link(message.link).transfer_time(bytes)
        };
        let durations: Vec<Micros> = messages.iter().map(duration).collect();
        let onwards = waits(problem, messages);
        let mut tails = vec![Micros::ZERO; messages.len()];
        for index in (0..messages.len()).rev() {
            let behind = onwards.followers[index].iter().map(|&next| tails[next as usize]);
            tails[index] = durations[index] + behind.fold(Micros::ZERO, Micros::max);
        }
        let back = onwards.reversed();
        Self { problem, messages, durations, onwards, back, tails }
    }
}

fn waits(problem: &Problem, messages: &[Message]) -> Precedences {
    let mut waits = Precedences::none(messages.len());
    let mut traffic: BTreeMap<(ChunkId, Rank), ChunkTraffic> = BTreeMap::new();
    for (index, message) in messages.iter().enumerate() {
        let link = problem.topology.link(message.link);
        let (mut causes, mut before): (Vec<u32>, Vec<u32>) = Default::default();
        for &chunk in &message.chunks {
            let combine = problem.demand.chunk(chunk).combine;
            let sender = traffic.entry((chunk, link.from)).or_default();
            let held = problem.demand.chunk(chunk).holders.has(link.from);
            match combine {
                true => causes.extend(&sender.arrivals),
                false if held => {}
                false => causes.extend(sender.arrivals.first()),
            }
            sender.departures.push(index as u32);
            let receiver = traffic.entry((chunk, link.to)).or_default();
            if combine {
                before.extend(&receiver.departures);
            }
            receiver.arrivals.push(index as u32);
        }
        for (list, of) in [(&mut causes, &mut waits.followers), (&mut before, &mut waits.changers)] {
            list.sort_unstable();
            list.dedup();
            waits.count[index] += list.len() as u32;
            list.iter().for_each(|&earlier| of[earlier as usize].push(index as u32));
        }
    }
    waits
}
