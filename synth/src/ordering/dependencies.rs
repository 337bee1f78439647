//! Which messages wait for which, whatever order they leave in.
//!
//! The principal type is [`DependencyGraph`], derived from a valid order of messages.

use super::lists::Lists;
use crate::problem::Problem;
use schedule::{ChunkId, Message, TransferKind};
use std::collections::BTreeMap;
use topology::{Micros, Rank};

/// The messages and their dependencies.
pub(super) struct DependencyGraph<'a> {
    pub(super) problem: &'a Problem,
    pub(super) messages: &'a [Message],
    /// For each message, the time from its start until it has arrived.
    pub(super) durations: Vec<Micros>,
    /// For each message, the time from which its chunks are released.
    pub(super) releases: Vec<Micros>,
    /// What waits for what as time goes on.
    pub(super) onwards: Precedences,
    /// The same in reversed time.
    pub(super) back: Precedences,
    /// For each message, the time from its start until everything that depends on it has arrived.
    pub(super) tails: Vec<Micros>,
}

/// What waits for what, in one direction of time.
pub(super) struct Precedences {
    /// For each message, those that can begin only after it has ended.
    pub(super) followers: Lists,
    /// For each message, those that must not begin before it has begun: they change the value that it carries.
    pub(super) changers: Lists,
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
    fn reversed(&self) -> Self {
        let count = |message| (self.followers.of(message).len() + self.changers.of(message).len()) as u32;
        let count = (0..self.count.len()).map(count).collect();
        Self { followers: self.followers.turned(), changers: self.changers.turned(), count }
    }
}

impl<'a> DependencyGraph<'a> {
    /// Derives the dependencies from the given order.
    pub(super) fn new(problem: &'a Problem, messages: &'a [Message], exchanges: bool) -> Self {
        let duration = |message: &Message| {
            let bytes = problem.demand.message_bytes(&message.chunks);
            problem.topology.link(message.link).transfer_time(bytes)
        };
        let durations: Vec<Micros> = messages.iter().map(duration).collect();
        let onwards = waits(problem, messages, exchanges);
        let mut tails = vec![Micros::ZERO; messages.len()];
        for index in (0..messages.len()).rev() {
            let behind = onwards.followers.of(index).iter().map(|&next| tails[next as usize]);
            tails[index] = durations[index] + behind.fold(Micros::ZERO, Micros::max);
        }
        let back = onwards.reversed();
        let releases = messages.iter().map(|message| problem.demand.release(&message.chunks)).collect();
        Self { problem, messages, durations, releases, onwards, back, tails }
    }
}

/// Who waits for whom. Two messages that add and go to each other's sender carry what the other does not: none waits for the other. With
/// `exchanges`, neither does a copy of sums wait for the parts that its receiver brings, because it may add instead.
fn waits(problem: &Problem, messages: &[Message], exchanges: bool) -> Precedences {
    let ends = |index: u32| {
        let link = problem.topology.link(messages[index as usize].link);
        (link.from, link.to)
    };
    let mut count = vec![0; messages.len()];
    let (mut followers, mut changers) = (Vec::new(), Vec::new());
    let mut traffic: BTreeMap<(ChunkId, Rank), ChunkTraffic> = BTreeMap::new();
    for (index, message) in messages.iter().enumerate() {
        let link = problem.topology.link(message.link);
        let comes_back =
            |other: u32| messages[other as usize].kind == TransferKind::Reduce && ends(other) == (link.to, link.from);
        let arrivals = |chunk: ChunkId| traffic.get(&(chunk, link.from)).map_or(&[][..], |it| &it.arrivals);
        let may_cross = match message.kind {
            TransferKind::Reduce => true,
            TransferKind::Copy => {
                exchanges && message.chunks.iter().all(|&it| arrivals(it).iter().any(|&it| comes_back(it)))
            }
        };
        let crosses = |other: u32| may_cross && comes_back(other);
        // Where they carry different things, the one that comes back may not leave first.
        let is_free_of = |other: u32| crosses(other) && messages[other as usize].chunks == message.chunks;
        let (mut causes, mut before): (Vec<u32>, Vec<u32>) = Default::default();
        for &chunk in &message.chunks {
            let combine = problem.demand.chunk(chunk).combine;
            let sender = traffic.entry((chunk, link.from)).or_default();
            let held = problem.demand.chunk(chunk).holders.has(link.from);
            match combine {
                true => causes.extend(sender.arrivals.iter().filter(|&&other| !crosses(other))),
                false if held => {}
                false => causes.extend(sender.arrivals.first()),
            }
            sender.departures.push(index as u32);
            let receiver = traffic.entry((chunk, link.to)).or_default();
            if combine {
                before.extend(receiver.departures.iter().filter(|&&other| !is_free_of(other)));
            }
            receiver.arrivals.push(index as u32);
        }
        for (list, pairs) in [(&mut causes, &mut followers), (&mut before, &mut changers)] {
            list.sort_unstable();
            list.dedup();
            count[index] += list.len() as u32;
            pairs.extend(list.iter().map(|&earlier| (earlier, index as u32)));
        }
    }
    let of = |pairs: Vec<(u32, u32)>| Lists::new(messages.len(), pairs.iter().copied());
    Precedences { followers: of(followers), changers: of(changers), count }
}
