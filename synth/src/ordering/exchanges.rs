//! Exchanges of sums: two ranks send each other what they have added up, at the same time.
//!
//! The principal function is [`played`]. A sum that is complete at one rank and spread from there passes the last link on its way
//! twice, one time after the other. But while the last part is still under way to that rank, it can send the other end what that one
//! lacks. Then both add the same two parts, and the longest way is one hop shorter. Where the other end comes first, the sum is
//! complete there, and it copies.
//!
//! Strategies plan sums without exchanges, as trees ([`SumTrees`]). When messages are ordered and played, those of two neighbours of a
//! tree may cross.

use super::sum_trees::SumTrees;
use crate::problem::Problem;
use crate::problem::constraints::RuleKind;
use schedule::{ChunkId, ChunkList, Message, ReplayError, Transfer, TransferKind, replay, replay_exchanging};
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

/// Where chunks pass links more often, no messages cross: finding out where takes time, and one hop less matters little.
const MOST_PASSAGES: usize = 1 << 16;

/// The rules of sketches that exchanges keep. Others count the way in of a sum and the way of its copies apart.
const KEPT: [RuleKind; 3] = [RuleKind::ForbiddenLinks, RuleKind::Owners, RuleKind::OwnChunksFirst];

/// Whether messages have sums that several ranks want, and all sums go along trees: then they may cross, if the sketch lets them.
pub(crate) fn may_exchange(problem: &Problem, messages: &[Message]) -> bool {
    let is_shared = problem.demand.chunks().iter().any(|chunk| chunk.is_sum() && chunk.wanted_by.len() > 1);
    let is_small = messages.iter().map(|message| message.chunks.len()).sum::<usize>() <= MOST_PASSAGES;
    let is_free = !problem.constraints.exceeds(&KEPT);
    is_shared && is_small && is_free && SumTrees::of(problem, messages).has_all(problem)
}

/// Times messages in the given order, each as early as the order allows, with exchanges where `exchanges` and they are sooner.
///
/// # Errors
/// [`ReplayError::NotHeld`] if the order is not valid, and [`ReplayError::Exchange`] where a copy would leave before the part of another
/// message that it has to carry.
pub(crate) fn played(problem: &Problem, messages: &[Message], exchanges: bool) -> Result<Vec<Transfer>, ReplayError> {
    match exchanges {
        true => replay_exchanging(&problem.demand, &problem.topology, &adds_first(problem, messages)?),
        false => replay(&problem.demand, &problem.topology, messages),
    }
}

/// Times the messages of a plan anew in their order: on another machine, or beside others. Neighbours that have exchanged sums do so again
/// where that is sooner.
///
/// # Errors
/// As [`played`].
pub(crate) fn replayed(problem: &Problem, messages: &[Message]) -> Result<Vec<Transfer>, ReplayError> {
    let plain = plain_messages(problem, messages);
    played(problem, &plain, may_exchange(problem, &plain))
}

/// The messages of a plan without exchanges, as far as its sums go along trees then.
pub(crate) fn plain_messages(problem: &Problem, messages: &[Message]) -> Vec<Message> {
    let mut all = messages.to_vec();
    if !problem.demand.has_sums() {
        return all;
    }
    let link = |message: &Message| problem.topology.link(message.link);
    let later = later_adds(all.iter().map(|it| (it.kind, (link(it).from, link(it).to), &it.chunks)));
    for message in later.iter().map(|&at| at as usize) {
        all[message].kind = TransferKind::Copy;
    }
    let trees = SumTrees::of(problem, &all);
    for message in later.into_iter().map(|at| at as usize) {
        if all[message].chunks.iter().any(|&chunk| trees.collector(chunk).is_none()) {
            all[message].kind = TransferKind::Reduce;
        }
    }
    all
}

/// The messages, but of two that cross and carry the same, the first one adds. If they carry different things, the copy may not be first.
fn adds_first(problem: &Problem, messages: &[Message]) -> Result<Vec<Message>, ReplayError> {
    let mut settled = messages.to_vec();
    for (back, index) in crossed(problem, messages) {
        if messages[back].chunks != messages[index].chunks {
            return Err(ReplayError::Exchange { message: back });
        }
        (settled[back].kind, settled[index].kind) = (TransferKind::Reduce, TransferKind::Copy);
    }
    Ok(settled)
}

/// The messages of a plan that was turned around in time, such that a copy comes behind what its receiver brings, where it carries other
/// chunks, too. What waits for the copy comes later still.
pub(crate) fn copies_last(problem: &Problem, messages: Vec<Message>) -> Vec<Message> {
    let mut places: Vec<usize> = (0..messages.len()).collect();
    for (back, index) in crossed(problem, &messages) {
        if messages[back].chunks != messages[index].chunks {
            places[back] = index;
        }
    }
    let mut placed: Vec<(usize, Message)> = places.into_iter().zip(messages).collect();
    // Of equal ones, the copy that has moved there comes last.
    placed.sort_by_key(|&(at, ref message)| (at, message.kind == TransferKind::Copy));
    placed.into_iter().map(|(_, message)| message).collect()
}

/// The pairs of a copy and of a later message that adds, whose ends are those of the copy the other way round, and that brings a chunk of
/// the copy.
fn crossed(problem: &Problem, messages: &[Message]) -> Vec<(usize, usize)> {
    let mut copies: BTreeMap<(ChunkId, Rank, Rank), usize> = BTreeMap::new();
    let mut pairs = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let link = problem.topology.link(message.link);
        for &chunk in &message.chunks {
            if message.kind == TransferKind::Copy {
                copies.insert((chunk, link.from, link.to), index);
            } else {
                pairs.extend(copies.get(&(chunk, link.to, link.from)).map(|&back| (back, index)));
            }
        }
    }
    pairs
}

/// Transfers whose second one of two that cross copies, so that sums go along trees.
pub(crate) fn without_exchanges(transfers: &[Transfer]) -> Vec<Transfer> {
    let mut plain = transfers.to_vec();
    for at in later_adds(transfers.iter().map(|it| (it.kind, (it.from, it.to), &it.chunks))) {
        plain[at as usize].kind = TransferKind::Copy;
    }
    plain
}

/// The messages that add and that cross an earlier one that adds, with all of their chunks.
fn later_adds<'m>(messages: impl Iterator<Item = (TransferKind, (Rank, Rank), &'m ChunkList)>) -> Vec<u32> {
    let mut added: BTreeSet<(ChunkId, Rank, Rank)> = BTreeSet::new();
    let mut later = Vec::new();
    for (index, (_, (from, to), chunks)) in (0..).zip(messages).filter(|(_, it)| it.0 == TransferKind::Reduce) {
        if chunks.iter().all(|&chunk| added.contains(&(chunk, to, from))) {
            later.push(index);
        } else {
            added.extend(chunks.iter().map(|&chunk| (chunk, from, to)));
        }
    }
    later
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordering::interleaved;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Deadline, SearchOptions};
    use crate::strategies::classic::Classic;
    use crate::strategies::matching::Matching;
    use crate::strategies::{Context, Strategy, reversal};
    use schedule::{Collective, Schedule, makespan, verify};
    use topology::{Micros, resolve};

    /// Sums of a row of four ranks, all along one tree: the messages that add, and those that copy.
    fn row(adds: [(u32, u32); 3], copies: [(u32, u32); 3]) -> (Problem, Vec<Message>) {
        let line = resolve("line:4,alpha=1us,bandwidth=1GBps").expect("a known topology");
        let problem = asked(line, Collective::AllReduce, 0);
        let message = |kind| {
            let (topology, demand) = (problem.topology.clone(), problem.demand.clone());
            move |(from, to)| {
                let link = topology.between(Rank(from), Rank(to)).next().expect("there is a link");
                Message { chunks: demand.chunk_ids().collect(), link, kind }
            }
        };
        let adds = adds.map(message(TransferKind::Reduce)).to_vec();
        let messages = adds.into_iter().chain(copies.map(message(TransferKind::Copy))).collect();
        (problem, messages)
    }

    /// Two hops lead from rank 3 to rank 1 and back; if the ranks in the middle exchange, three are enough. And where the sum is collected
    /// at an end of the row, it is complete in the middle before.
    #[test]
    fn the_middle_of_a_row_exchanges() {
        for (adds, copies, hops) in [
            ([(0, 1), (3, 2), (2, 1)], [(1, 0), (1, 2), (2, 3)], 4.0),
            ([(3, 2), (2, 1), (1, 0)], [(0, 1), (1, 2), (2, 3)], 6.0),
        ] {
            let (problem, messages) = row(adds, copies);
            let plain = replay(&problem.demand, &problem.topology, &messages).expect("a right order");
            let better = interleaved(&problem, &messages, &Deadline::default()).expect("a right order");
            assert_eq!((makespan(&plain), makespan(&better)), (Micros(hops), Micros(3.0)));
            assert_eq!(better.iter().filter(|transfer| transfer.kind == TransferKind::Reduce).count(), 4);
            let trees = without_exchanges(&better);
            let trees = SumTrees::of(&problem, &trees.iter().map(Message::from).collect::<Vec<_>>());
            assert!(trees.has_all(&problem));
            let schedule = Schedule::new(&problem.topology, problem.demand.clone(), better, "test");
            verify(schedule, &problem.topology).unwrap();
        }
    }

    /// On random machines: right, no slower than without exchanges, and without them along trees again.
    #[test]
    fn exchanges_are_right_and_never_slower() {
        let (mut exchanging, mut faster) = (0, 0);
        for seed in 0..120 {
            let problem = asked(random_machine(seed), Collective::AllReduce, 12_000 + 1000 * (seed % 7) * (seed % 3));
            let (options, deadline) = (SearchOptions::default(), Deadline::default());
            let context = Context::among_others(&options, &deadline, Micros::ZERO);
            for strategy in [&Classic as &dyn Strategy, &Matching] {
                let attempts = reversal::propose(&problem, &context, strategy).unwrap();
                for schedule in attempts.into_iter().filter_map(|attempt| attempt.schedule) {
                    let schedule = verify(schedule, &problem.topology).unwrap().into_schedule();
                    let plain = without_exchanges(&schedule.transfers);
                    let messages: Vec<Message> = plain.iter().map(Message::from).collect();
                    if plain == schedule.transfers || !may_exchange(&problem, &messages) {
                        continue;
                    }
                    exchanging += 1;
                    let waiting = replay(&problem.demand, &problem.topology, &messages).unwrap();
                    let waiting = Schedule::new(&problem.topology, problem.demand.clone(), waiting, "test");
                    assert!(waiting.makespan() >= schedule.makespan(), "seed {seed}");
                    faster += usize::from(waiting.makespan() > schedule.makespan());
                    verify(waiting, &problem.topology).unwrap_or_else(|no| panic!("seed {seed}: {no}"));
                    // Played as they are, the exchanges are the same.
                    let own: Vec<Message> = schedule.transfers.iter().map(Message::from).collect();
                    let again = replay(&problem.demand, &problem.topology, &own).unwrap();
                    assert!(makespan(&again) <= schedule.makespan(), "seed {seed}");
                    let again = Schedule::new(&problem.topology, problem.demand.clone(), again, "test");
                    verify(again, &problem.topology).unwrap_or_else(|no| panic!("seed {seed}: {no}"));
                }
            }
        }
        assert!(exchanging > 50 && faster > 15, "{exchanging} plans, {faster} of them faster");
    }
}
