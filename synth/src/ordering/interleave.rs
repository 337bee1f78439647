//! A better order for given messages: list scheduling of a schedule's own messages.
//!
//! The principal function is [`interleaved`]. Composing two halves fixes *which* messages there are, but orders them
//! badly: on each link all reductions come before all copies, though some sums are complete early. Here only the
//! dependencies between messages are kept. Rules of list scheduling [1] choose the order, such as "the message that can
//! leave first" or "the one with the longest way still before it". The best of these orders and the given one is
//! returned.
//!
//! [1] Kolisch, "Serial and parallel resource-constrained project scheduling methods revisited", EJOR 1996.

use crate::problem::distance::Key;
use crate::problem::options::DeadlinePoll;
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, Message, ReplayError, Transfer, makespan, replay};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;
use topology::{FreeTimes, Micros, Rank};

/// For more messages than this, the given order stays: the rules take O(n log n) time, but much memory.
const MOST_MESSAGES: usize = 1 << 18;

/// How often the deadline is checked, in messages that could leave.
const POLLED: u64 = 1 << 16;

/// The time that a rule takes per message, estimated generously; used where time is limited.
const PACE: Duration = Duration::from_micros(8);

/// Times `messages`, which are given in a valid order, in that order or, if there is time, in a better one.
///
/// # Errors
/// [`ReplayError::NotHeld`] if the given order is not valid.
pub(crate) fn interleaved(
    problem: &Problem,
    messages: &[Message],
    deadline: &Deadline,
) -> Result<Vec<Transfer>, ReplayError> {
    let play = |messages: &[Message]| replay(&problem.demand, &problem.topology, messages);
    let mut best = play(messages)?;
    // The rules ignore which chunks a sketch wants first.
    let is_free = problem.constraints.own_chunks_first.is_none();
    for messages in [Some(messages), one_by_one(messages).as_deref()].into_iter().flatten() {
        if messages.len() > MOST_MESSAGES || !is_free {
            break;
        }
        if takes_too_long(messages.len(), deadline) {
            return Ok(best);
        }
        let network = DependencyGraph::new(problem, messages);
        for rule in [PriorityRule::EarliestFirst, PriorityRule::LongestTailFirst, PriorityRule::InBatches] {
            if takes_too_long(messages.len(), deadline) {
                return Ok(best);
            }
            let Some(order) = network.ordered(rule, deadline) else { return Ok(best) };
            let transfers = play(&order)?;
            if makespan(&transfers) < makespan(&best) {
                best = transfers;
            }
        }
    }
    Ok(best)
}

/// `messages`, which are given in a valid order, such that the one that can leave first does, and of several the one with
/// the longest way still before it.
pub(crate) fn earliest_first(problem: &Problem, messages: &[Message]) -> Vec<Message> {
    let ordered = DependencyGraph::new(problem, messages).ordered(PriorityRule::EarliestFirst, &Deadline::default());
    ordered.unwrap_or_else(|| messages.to_vec())
}

/// Whether there is too little time for one rule. Few messages take negligible time.
fn takes_too_long(messages: usize, deadline: &Deadline) -> bool {
    let left = deadline.remaining().unwrap_or(Duration::MAX);
    messages > MOST_MESSAGES / 64 && left < PACE * messages as u32
}

/// The same messages with one chunk each, because the first chunk of a message can then go on sooner; `None` if no
/// message has several chunks.
fn one_by_one(messages: &[Message]) -> Option<Vec<Message>> {
    let one =
        |message: &Message, &chunk: &ChunkId| Message { chunks: [chunk].into_iter().collect(), ..message.clone() };
    let merged = messages.iter().any(|message| message.chunks.len() > 1);
    merged.then(|| messages.iter().flat_map(|message| message.chunks.iter().map(|chunk| one(message, chunk))).collect())
}

/// A rule that chooses the next message among those that can leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PriorityRule {
    EarliestFirst,
    LongestTailFirst,
    /// Like `EarliestFirst`, but of the messages that can leave at once, the one whose chunk is the lowest of its
    /// collector. So a few sums are complete early, and are spread while the others are still collected.
    InBatches,
}

/// The messages and their dependencies.
struct DependencyGraph<'a> {
    problem: &'a Problem,
    messages: &'a [Message],
    durations: Vec<Micros>,
    /// For each message, those that can leave only after it has arrived.
    followers: Vec<Vec<u32>>,
    /// For each message, those that must not arrive before it has left, because they change the value that it carries.
    changers: Vec<Vec<u32>>,
    /// For each message, the number of such dependencies that it still waits for.
    waits_for: Vec<u32>,
    /// For each message, the time from its start until everything that depends on it has arrived.
    tails: Vec<Micros>,
}

/// The messages of one chunk that have come to one rank, and those that have left it.
#[derive(Default)]
struct ChunkTraffic {
    arrivals: Vec<u32>,
    departures: Vec<u32>,
}

impl<'a> DependencyGraph<'a> {
    fn new(problem: &'a Problem, messages: &'a [Message]) -> Self {
        let count = messages.len();
        let duration = |message: &Message| {
            let bytes = problem.demand.message_bytes(&message.chunks);
            problem.topology.link(message.link).transfer_time(bytes)
        };
        let durations = messages.iter().map(duration).collect();
        let (followers, changers) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let (waits_for, tails) = (vec![0; count], vec![Micros::ZERO; count]);
        let mut network = Self { problem, messages, durations, followers, changers, waits_for, tails };
        network.connect();
        network.measure();
        network
    }

    /// Derives the dependencies from the given order.
    fn connect(&mut self) {
        let mut traffic: BTreeMap<(ChunkId, Rank), ChunkTraffic> = BTreeMap::new();
        for (index, message) in self.messages.iter().enumerate() {
            let link = self.problem.topology.link(message.link);
            let (mut causes, mut before): (Vec<u32>, Vec<u32>) = Default::default();
            for &chunk in &message.chunks {
                let combine = self.problem.demand.chunk(chunk).combine;
                let sender = traffic.entry((chunk, link.from)).or_default();
                let held = self.problem.demand.chunk(chunk).holders.has(link.from);
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
            for (list, of) in [(&mut causes, &mut self.followers), (&mut before, &mut self.changers)] {
                list.sort_unstable();
                list.dedup();
                self.waits_for[index] += list.len() as u32;
                list.iter().for_each(|&earlier| of[earlier as usize].push(index as u32));
            }
        }
    }

    /// The place of a message's first chunk among the chunks of its collector.
    fn batch(&self, index: usize) -> u32 {
        let chunk = self.messages[index].chunks.iter().min();
        chunk.map_or(0, |chunk| chunk.0 % self.problem.demand.request().chunks_per_rank)
    }

    fn measure(&mut self) {
        for index in (0..self.messages.len()).rev() {
            let behind = self.followers[index].iter().map(|&next| self.tails[next as usize]);
            self.tails[index] = self.durations[index] + behind.fold(Micros::ZERO, Micros::max);
        }
    }

    /// The messages in the order in which the rule sends them; `None` if the time is up before.
    fn ordered(&self, rule: PriorityRule, deadline: &Deadline) -> Option<Vec<Message>> {
        let order = self.order(rule, deadline)?;
        Some(order.into_iter().map(|index| self.messages[index].clone()).collect())
    }

    /// The same as positions.
    fn order(&self, rule: PriorityRule, deadline: &Deadline) -> Option<Vec<usize>> {
        let mut state = SchedulingState::new(self);
        let mut open = self.waits_for.clone();
        let mut ready: BinaryHeap<Reverse<ReadyMessage>> = BinaryHeap::new();
        let shown = |state: &SchedulingState<'_>, index| match rule {
            PriorityRule::EarliestFirst | PriorityRule::InBatches => Key::new(state.start(index).0),
            PriorityRule::LongestTailFirst => Key::new(0.0),
        };
        let batch = |index| if rule == PriorityRule::InBatches { self.batch(index) } else { 0 };
        let push = |ready: &mut BinaryHeap<Reverse<ReadyMessage>>, state: &SchedulingState<'_>, index: usize| {
            ready.push(Reverse((shown(state, index), batch(index), Reverse(Key::new(self.tails[index].0)), index)));
        };
        (0..open.len()).filter(|&index| open[index] == 0).for_each(|index| push(&mut ready, &state, index));
        let mut order = Vec::with_capacity(open.len());
        let mut poll = DeadlinePoll::new(deadline, POLLED);
        while let Some(Reverse((start, _, _, index))) = ready.pop() {
            if poll.is_over_after(1) {
                return None;
            }
            // Other messages may have taken the link meanwhile. Times only grow, so a stale entry is never too late.
            if shown(&state, index) > start {
                push(&mut ready, &state, index);
                continue;
            }
            order.push(index);
            state.send(index, state.start(index));
            for &follower in self.followers[index].iter().chain(&self.changers[index]) {
                open[follower as usize] -= 1;
                if open[follower as usize] == 0 {
                    push(&mut ready, &state, follower as usize);
                }
            }
        }
        Some(order)
    }
}

/// The state of the links and resources during one list scheduling.
struct SchedulingState<'a> {
    network: &'a DependencyGraph<'a>,
    /// For each message, when everything that it waits for has happened.
    released: Vec<Micros>,
    free: FreeTimes,
}

impl<'a> SchedulingState<'a> {
    fn new(network: &'a DependencyGraph<'a>) -> Self {
        let topology = &network.problem.topology;
        Self { network, released: vec![Micros::ZERO; network.messages.len()], free: FreeTimes::new(topology) }
    }

    fn start(&self, index: usize) -> Micros {
        let free = self.free.earliest(&self.network.problem.topology, self.network.messages[index].link);
        self.released[index].max(free)
    }

    fn send(&mut self, index: usize, start: Micros) {
        let Problem { topology, demand, .. } = self.network.problem;
        let message = &self.network.messages[index];
        self.free.occupy(topology, message.link, start, demand.message_bytes(&message.chunks));
        let end = start + self.network.durations[index];
        let release = |released: &mut Micros, time: Micros| *released = released.max(time);
        self.network.followers[index].iter().for_each(|&next| release(&mut self.released[next as usize], end));
        self.network.changers[index].iter().for_each(|&next| release(&mut self.released[next as usize], start));
    }
}

/// A message that waits only for links and resources; the least is next. The fields are: when it can leave, if the rule
/// considers that; its batch; its tail, longest first; its index.
type ReadyMessage = (Key, u32, Reverse<Key>, usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::asked;
    use schedule::{Collective, Schedule, TransferKind, verify};

    fn problem(spec: &str, collective: Collective, size: u64) -> Problem {
        asked(topology::resolve(spec).expect("a known topology"), collective, size)
    }

    fn message(problem: &Problem, chunk: u32, from: u32, to: u32) -> Message {
        let link = problem.topology.between(Rank(from), Rank(to)).next().expect("there is a link");
        let kind = if problem.demand.chunk(ChunkId(chunk)).combine { TransferKind::Reduce } else { TransferKind::Copy };
        Message { chunks: [ChunkId(chunk)].into_iter().collect(), link, kind }
    }

    #[test]
    fn what_must_go_far_goes_first() {
        // Chunk 1 ends at rank 1; chunk 2 goes on to rank 2, so it should leave first.
        let problem = problem("line:3,alpha=1us,bandwidth=1GBps", Collective::Scatter, 3000);
        let order = [message(&problem, 1, 0, 1), message(&problem, 2, 0, 1), message(&problem, 2, 1, 2)];
        let given = replay(&problem.demand, &problem.topology, &order).expect("a right order");
        let better = interleaved(&problem, &order, &Deadline::default()).expect("a right order");
        assert_eq!((makespan(&given), makespan(&better)), (Micros(6.0), Micros(4.0)));
    }

    #[test]
    fn sums_stay_what_they_were() {
        let problem = problem("ring:4,direction=both", Collective::Reduce, 1000);
        // 2 → 1 → 0 and 3 → 0: rank 1 must not send before the value of rank 2 has arrived.
        let order = [message(&problem, 0, 2, 1), message(&problem, 0, 1, 0), message(&problem, 0, 3, 0)];
        let network = DependencyGraph::new(&problem, &order);
        assert_eq!(network.waits_for, [0, 1, 0]);
        let transfers = interleaved(&problem, &order, &Deadline::default()).expect("a right order");
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "test");
        assert!(verify(schedule, &problem.topology).is_ok());
    }

    #[test]
    fn a_value_leaves_before_it_changes() {
        // Rank 1 sends its own value before that of rank 0 arrives; the order of these two must stay.
        let problem = problem("line:3", Collective::AllReduce, 1000);
        let order = [message(&problem, 0, 1, 2), message(&problem, 0, 0, 1)];
        let network = DependencyGraph::new(&problem, &order);
        assert_eq!((network.waits_for.as_slice(), network.changers[0].as_slice()), (&[0, 1][..], &[1][..]));
        assert_eq!(network.order(PriorityRule::EarliestFirst, &Deadline::default()), Some(vec![0, 1]));
    }
}
