//! A better order for given messages: list scheduling of a schedule's own messages.
//!
//! The principal function is [`interleaved`]. Composing two halves fixes *which* messages there are, but orders them
//! badly: on each link all reductions come before all copies, though some sums are complete early. Here only the
//! dependencies between messages are kept. Rules of list scheduling [1] choose the order, such as "the message with the
//! longest way still before it". The best of these orders is then justified [2]: a schedule backwards in time says how
//! late each message may leave, and the next schedule forwards sends the messages first that have to leave first.
//!
//! [1] Kolisch, "Serial and parallel resource-constrained project scheduling methods revisited", EJOR 1996.
//! [2] Valls, Ballestín and Quintanilla, "Justification and RCPSP: a technique that pays", EJOR 2005.

use super::dependencies::DependencyGraph;
use super::exchanges::{may_exchange, played};
use super::list::{Listed, Time, listed};
use super::{ranked, sorted};
use crate::problem::constraints::RuleKind;
use crate::problem::{Deadline, Problem};
use schedule::{ChunkId, Message, ReplayError, Transfer, makespan};
use std::borrow::Cow;
use std::time::Duration;
use topology::Micros;

/// For more messages than this (see [`weight`]), the given order stays: the rules take O(n log n) time, but much memory.
const MOST_MESSAGES: usize = 1 << 20;
/// So few take negligible time.
const FEW_MESSAGES: usize = 1 << 12;
/// The time that a rule takes per message, estimated generously; used where time is limited.
const PACE: Duration = Duration::from_micros(8);
/// So many chunks of a message take as long as one of its own.
const LIKE_ONE: usize = 4;
/// Justification ends after so many schedules forwards that gained nothing, and after as many messages as this.
const MOST_STALE: u32 = 3;
const WORK: usize = 1 << 20;
/// A gain (relative) that counts.
const GAIN: f64 = 1e-3;

/// Times `messages`, which are given in a valid order, in that order or, if there is time, in a better one. Neighbours exchange sums if
/// these go along trees.
///
/// # Errors
/// [`ReplayError::NotHeld`] if the given order is not valid.
pub(crate) fn interleaved(
    problem: &Problem,
    messages: &[Message],
    deadline: &Deadline,
) -> Result<Vec<Transfer>, ReplayError> {
    reordered(problem, messages, may_exchange(problem, messages), deadline)
}

/// The same, with exchanges of sums only with `exchanges`, for sums along trees.
///
/// # Errors
/// As [`interleaved`].
pub(crate) fn reordered(
    problem: &Problem,
    messages: &[Message],
    exchanges: bool,
    deadline: &Deadline,
) -> Result<Vec<Transfer>, ReplayError> {
    let play = |messages: &[Message]| played(problem, messages, exchanges);
    let mut best = play(messages)?;
    // The orders ignore which chunks a sketch wants first.
    let is_free = !problem.constraints.exceeds(&RuleKind::OF_WAYS);
    for splits in [false, true] {
        let count = if splits { passages(messages) } else { weight(messages) };
        if count > MOST_MESSAGES || !is_free || takes_too_long(count, deadline) {
            break;
        }
        let messages = if splits { one_by_one(messages).map(Cow::Owned) } else { Some(Cow::Borrowed(messages)) };
        let Some(messages) = messages else { break };
        let graph = DependencyGraph::new(problem, &messages, exchanges);
        let Some(found) = ordered(&graph, deadline) else { break };
        let order = |order: &[u32]| order.iter().map(|&index| messages[index as usize].clone()).collect::<Vec<_>>();
        // The longest way first, even if it makes links wait; not all sums can be played in that order.
        let by_tail = sorted(messages.len(), |a, b| graph.tails[b].total_cmp(&graph.tails[a]));
        for transfers in [found.order, by_tail].iter().filter_map(|of| play(&order(of)).ok()) {
            if makespan(&transfers) < makespan(&best) {
                best = transfers;
            }
        }
    }
    Ok(best)
}

/// The makespan of `messages`, which are given in a valid order, if the longest way goes first; `None` if they are too
/// many or there is no time.
pub(crate) fn outlook(problem: &Problem, messages: &[Message], deadline: &Deadline) -> Option<Micros> {
    let weight = weight(messages);
    if weight > MOST_MESSAGES || takes_too_long(weight, deadline) {
        return None;
    }
    let graph = DependencyGraph::new(problem, messages, may_exchange(problem, messages));
    let urgencies = PriorityRule::LongestTailFirst.urgencies(&graph);
    listed(&graph, &urgencies, Time::Onwards, deadline).map(|found| found.makespan)
}

/// `messages`, which are given in a valid order, such that the one that can leave first does, and of several the one with
/// the longest way still before it.
pub(crate) fn earliest_first(problem: &Problem, messages: &[Message]) -> Vec<Message> {
    let graph = DependencyGraph::new(problem, messages, false);
    let by_tail = PriorityRule::LongestTailFirst.urgencies(&graph);
    let found = listed(&graph, &by_tail, Time::Onwards, &Deadline::default());
    found.map_or_else(
        || messages.to_vec(),
        |found| found.order.iter().map(|&at| messages[at as usize].clone()).collect(),
    )
}

/// The best schedule of all rules, justified; `None` if there is no time for any.
fn ordered(graph: &DependencyGraph<'_>, deadline: &Deadline) -> Option<Listed> {
    let rules = [PriorityRule::LongestTailFirst, PriorityRule::InBatches];
    let mut found: Vec<Listed> = Vec::new();
    for rule in rules {
        if takes_too_long(graph.messages.len(), deadline) {
            break;
        }
        found.extend(listed(graph, &rule.urgencies(graph), Time::Onwards, deadline));
    }
    found
        .into_iter()
        .map(|first| justified(graph, first, deadline))
        .min_by(|a, b| a.makespan.0.total_cmp(&b.makespan.0))
}

/// The best of a schedule and those that justification makes of it.
fn justified(graph: &DependencyGraph<'_>, first: Listed, deadline: &Deadline) -> Listed {
    let (mut best, mut last, mut stale, mut work) = (first.clone(), first, 0, 0);
    while stale < MOST_STALE && work < WORK && !takes_too_long(2 * graph.messages.len(), deadline) {
        work += 2 * graph.messages.len();
        // Each direction goes in the order in which the other one ends.
        let urgencies = latest_first(&last.ends);
        let Some(back) = listed(graph, &urgencies, Time::Back, deadline) else { break };
        let Some(onwards) = listed(graph, &latest_first(&back.ends), Time::Onwards, deadline) else { break };
        last = onwards;
        stale += 1;
        if last.makespan < best.makespan * (1.0 - GAIN) {
            stale = 0;
        }
        if last.makespan < best.makespan {
            best = last.clone();
        }
    }
    best
}

/// Urgencies such that what ends last in the other direction of time goes first.
fn latest_first(ends: &[Micros]) -> Vec<u32> {
    ranked(ends.len(), |a, b| ends[b].total_cmp(&ends[a]))
}

/// Whether there is too little time for one rule.
fn takes_too_long(messages: usize, deadline: &Deadline) -> bool {
    let left = deadline.remaining().unwrap_or(Duration::MAX);
    messages > FEW_MESSAGES && left < PACE * messages as u32
}

/// How many messages of one chunk take about as long to order.
fn weight(messages: &[Message]) -> usize {
    messages.len().max(passages(messages) / LIKE_ONE)
}

fn passages(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.chunks.len()).sum()
}

/// The same messages with one chunk each, because the first chunk of a message can then go on sooner; `None` if no
/// message has several chunks.
fn one_by_one(messages: &[Message]) -> Option<Vec<Message>> {
    let one =
        |message: &Message, &chunk: &ChunkId| Message { chunks: [chunk].into_iter().collect(), ..message.clone() };
    let merged = messages.iter().any(|message| message.chunks.len() > 1);
    merged.then(|| messages.iter().flat_map(|message| message.chunks.iter().map(|chunk| one(message, chunk))).collect())
}

/// Which of the messages that can leave at once goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PriorityRule {
    LongestTailFirst,
    /// The one whose chunk is the lowest of its collector. So a few sums are complete early, and are spread while the
    /// others are still collected.
    InBatches,
}

impl PriorityRule {
    fn urgencies(self, graph: &DependencyGraph<'_>) -> Vec<u32> {
        let each = graph.problem.demand.request().chunks_per_rank;
        let batch = |index: usize| match self {
            Self::LongestTailFirst => 0,
            // The place of a message's first chunk among the chunks of its collector.
            Self::InBatches => graph.messages[index].chunks.iter().min().map_or(0, |chunk| chunk.0 % each),
        };
        ranked(graph.messages.len(), |a, b| batch(a).cmp(&batch(b)).then(graph.tails[b].total_cmp(&graph.tails[a])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::asked;
    use schedule::{Collective, Schedule, TransferKind, replay, verify};
    use topology::Rank;

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
        let graph = DependencyGraph::new(&problem, &order, false);
        assert_eq!((&*graph.onwards.count, &*graph.back.count), (&[0, 1, 0][..], &[1, 0, 0][..]));
        let transfers = interleaved(&problem, &order, &Deadline::default()).expect("a right order");
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "test");
        assert!(verify(schedule, &problem.topology).is_ok());
    }

    #[test]
    fn a_value_leaves_before_it_changes() {
        // Rank 1 sends its own value before that of rank 0 arrives; the order of these two must stay.
        let problem = problem("line:3", Collective::AllReduce, 1000);
        let order = [message(&problem, 0, 1, 2), message(&problem, 0, 0, 1)];
        let graph = DependencyGraph::new(&problem, &order, false);
        assert_eq!((&*graph.onwards.count, graph.onwards.changers.of(0)), (&[0, 1][..], &[1][..]));
        let found = listed(&graph, &[1, 0], Time::Onwards, &Deadline::default()).expect("there is time");
        assert_eq!(found.order, [0, 1]);
    }
}
