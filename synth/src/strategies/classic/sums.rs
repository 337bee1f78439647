//! AllReduce algorithms in which members exchange sums: the fewest α, but more bytes.
//!
//! Reversal cannot produce them, because there each sum has one collector. All chunks travel together, but where members share the work
//! ([`super::shares`]).

use super::multiplying::{self, MemberLinks};
use super::{Inapplicable, few_enough, inapplicable, missing_link, planned, shares};
use crate::problem::{Problem, StopReason, SynthError};
use crate::strategies::{Attempt, Context, Joining};
use schedule::{
    ChunkId, ChunkList, Collective, Message, ReplayError, Transfer, TransferKind, clearly_before, replay_rounds,
};
use std::collections::BTreeMap;
use topology::{LinkId, Micros, Rank};

/// The kind of transfer of a round, and its (sender, receiver) pairs, by position among the members.
pub(super) type TransferRound = (TransferKind, Vec<(usize, usize)>);

/// A message of a round, between members by position.
pub(super) struct MemberMessage {
    pub(super) kind: TransferKind,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) chunks: ChunkList,
}

/// Why an algorithm is not played.
const NO_TIME: &str = "there is no time left to play it";

/// Whether transfers, in rounds of these lengths, are a plan.
type IsWanted = fn(&[Transfer], &[usize]) -> bool;

/// Every algorithm that exchanges sums; none for other collectives than AllReduce.
pub(super) fn attempts(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    let members = problem.demand.request().members.len();
    if problem.demand.request().collective != Collective::AllReduce || members < 2 {
        return Ok(Vec::new());
    }
    // One-shot has as many messages as there are pairs of members: too many are not even written down.
    let pairs = few_enough(members.saturating_mul(members).saturating_mul(problem.demand.chunks().len()));
    let algorithms = [
        ("classic/doubling", Ok(doubling(members))),
        ("classic/one-shot", pairs.map(|()| one_shot(members))),
        ("classic/binomial", Ok(binomial(members))),
    ];
    let mut attempts = Vec::new();
    for (name, rounds) in algorithms {
        attempts.push(match rounds {
            Ok(rounds) => attempt(problem, context, name, &rounds, |_, _| true)?,
            Err(why) => inapplicable(name, why),
        });
    }
    // They are no textbook algorithms on links as they are, and take longer to find.
    let is_done = |attempts: &[Attempt]| attempts.iter().any(|attempt| attempt.stop == StopReason::Optimal);
    if context.joining == Joining::Exchanging && !is_done(&attempts) {
        attempts.push(multiplying(problem, context)?);
        if !is_done(&attempts) {
            attempts.push(shares::attempt(problem, context)?);
        }
    }
    Ok(attempts)
}

/// Recursive multiplying along links: the best of its plans.
fn multiplying(problem: &Problem, context: &Context<'_>) -> Result<Attempt, SynthError> {
    let name = "classic/multiplying";
    if problem.demand.request().members.len() > multiplying::MOST_MEMBERS {
        return Ok(inapplicable(name, format!("there are more than {} members", multiplying::MOST_MEMBERS)));
    }
    let plans = multiplying::rounds(&member_links(problem), context.options.seed, context.deadline);
    let found = plans.iter().map(|rounds| attempt(problem, context, name, rounds, arrives_in_turn));
    let found = found.collect::<Result<Vec<Attempt>, SynthError>>()?;
    let makespan = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
    // If none applies, the first one says why.
    let best = found.into_iter().min_by(|a, b| makespan(a).total_cmp(&makespan(b)));
    let none = || inapplicable(name, "there are no groups of members that merge along links".to_owned());
    Ok(best.unwrap_or_else(none))
}

/// The fastest links between members, for all chunks together.
pub(super) fn member_links(problem: &Problem) -> MemberLinks<'_> {
    let chunks: ChunkList = problem.demand.chunk_ids().collect();
    let bytes = problem.demand.message_bytes(&chunks);
    MemberLinks::new(&problem.topology, bytes, fastest_links(problem, &chunks))
}

/// The fastest links between members for these chunks.
pub(super) fn fastest_links(problem: &Problem, chunks: &ChunkList) -> Vec<Vec<Option<LinkId>>> {
    let members = &problem.demand.request().members;
    let link = |from: Rank, to: Rank| fastest_link(problem, from, to, chunks).ok();
    members.iter().map(|&from| members.iter().map(|&to| link(from, to)).collect()).collect()
}

/// Recursive doubling: partners exchange everything that they have summed so far. Where k is no power of two, each
/// member beyond the largest one adds to a partner first and gets the result from it at the end.
fn doubling(members: usize) -> Vec<TransferRound> {
    let core = 1 << members.ilog2();
    let folded = || (core..members).map(|extra| (extra, extra - core));
    let mut rounds = vec![(TransferKind::Reduce, folded().collect())];
    for bit in 0..core.ilog2() {
        rounds.push((TransferKind::Reduce, (0..core).map(|member| (member, member ^ (1 << bit))).collect()));
    }
    rounds.push((TransferKind::Copy, folded().map(|(extra, partner)| (partner, extra)).collect()));
    rounds
}

/// One-shot: every member sends its own values to all others at once.
fn one_shot(members: usize) -> Vec<TransferRound> {
    // In turns in which each member gets one message: ports are busy all the time then.
    let turn = |distance: usize| (0..members).map(move |member| (member, (member + distance) % members));
    vec![(TransferKind::Reduce, (1..members).flat_map(turn).collect())]
}

/// Two ways of a binomial tree: sums go up to the first member, and the result comes down. Twice the rounds of doubling, but
/// only 2 (k − 1) messages, so it is the fastest where members share cores.
fn binomial(members: usize) -> Vec<TransferRound> {
    let distances = (0..usize::BITS).map(|bit| 1_usize << bit).take_while(|&distance| distance < members);
    let senders = |distance: usize| (distance..members).step_by(2 * distance).map(move |from| (from, from - distance));
    let up = distances.map(|distance| (TransferKind::Reduce, senders(distance).collect()));
    let mut rounds: Vec<TransferRound> = up.collect();
    let down = |(_, pairs): &TransferRound| (TransferKind::Copy, pairs.iter().map(|&(from, to)| (to, from)).collect());
    rounds.extend(rounds.iter().rev().map(down).collect::<Vec<_>>());
    rounds
}

/// A plan in which all chunks travel together.
fn attempt(
    problem: &Problem,
    context: &Context<'_>,
    name: &str,
    rounds: &[TransferRound],
    is_wanted: IsWanted,
) -> Result<Attempt, SynthError> {
    let passages = rounds.iter().map(|(_, pairs)| pairs.len()).sum::<usize>() * problem.demand.chunks().len();
    if let Err(why) = few_enough(passages) {
        return Ok(inapplicable(name, why));
    }
    if !context.deadline.leaves_time_for(passages) {
        return Ok(inapplicable(name, NO_TIME.to_owned()));
    }
    let chunks: ChunkList = problem.demand.chunk_ids().collect();
    let round = |&(kind, ref pairs): &TransferRound| {
        let message = |&(from, to): &(usize, usize)| MemberMessage { kind, from, to, chunks: chunks.clone() };
        pairs.iter().map(message).collect()
    };
    let rounds: Vec<Vec<MemberMessage>> = rounds.iter().map(round).collect();
    play(problem, context, name, &rounds, is_wanted)
}

/// A plan that sends these messages, round by round.
pub(super) fn play(
    problem: &Problem,
    context: &Context<'_>,
    name: &str,
    rounds: &[Vec<MemberMessage>],
    is_wanted: IsWanted,
) -> Result<Attempt, SynthError> {
    let passages = rounds.iter().flatten().map(|message| message.chunks.len()).sum();
    if !context.deadline.leaves_time_for(passages) {
        return Ok(inapplicable(name, NO_TIME.to_owned()));
    }
    let members = &problem.demand.request().members;
    let message = |MemberMessage { kind, from, to, chunks }: &MemberMessage| {
        let link = fastest_link(problem, members[*from], members[*to], chunks)?;
        Ok(Message { chunks: chunks.clone(), link, kind: *kind })
    };
    let messages: Vec<Message> = match rounds.iter().flatten().map(message).collect() {
        Ok(messages) => messages,
        Err(why) => return Ok(inapplicable(name, why)),
    };
    let lengths: Vec<usize> = rounds.iter().map(Vec::len).collect();
    let transfers = match replay_rounds(&problem.demand, &problem.topology, &messages, &lengths) {
        Ok(transfers) => transfers,
        Err(error @ ReplayError::Exchange { .. }) => return Ok(inapplicable(name, error.to_string())),
        Err(error) => return Err(SynthError::Order { strategy: "classic", error }),
    };
    if !is_wanted(&transfers, &lengths) {
        return Ok(inapplicable(
            name,
            "what a later round brings would come before what an earlier one does".to_owned(),
        ));
    }
    Ok(planned(problem, context, name, transfers))
}

/// Whether nothing of a later round arrives at a rank before what an earlier round brings there of the same chunk. Otherwise ranks that
/// add up the same parts would do so in different orders, which gives floats other bits.
pub(super) fn arrives_in_turn(transfers: &[Transfer], rounds: &[usize]) -> bool {
    let mut last: BTreeMap<(Rank, ChunkId), Micros> = BTreeMap::new();
    let mut rest = transfers;
    rounds.iter().all(|&length| {
        let (round, later) = rest.split_at(length);
        rest = later;
        let arrivals = || round.iter().flat_map(|it| it.chunks.iter().map(move |&chunk| ((it.to, chunk), it.end)));
        let mut in_turn = arrivals().map(|(key, end)| last.get(&key).is_none_or(|&before| clearly_before(before, end)));
        let is_in_turn = in_turn.all(|is_later| is_later);
        for (key, end) in arrivals() {
            let latest = last.entry(key).or_insert(end);
            *latest = latest.max(end);
        }
        is_in_turn
    })
}

pub(super) fn fastest_link(
    problem: &Problem,
    from: Rank,
    to: Rank,
    chunks: &ChunkList,
) -> Result<LinkId, Inapplicable> {
    let bytes = problem.demand.message_bytes(chunks);
    let usable = problem.topology.between(from, to);
    let usable = usable.filter(|&link| chunks.iter().all(|&chunk| problem.allows(chunk, link)));
    let time = |link: &LinkId| problem.topology.link(*link).transfer_time(bytes).0;
    usable.min_by(|a, b| time(a).total_cmp(&time(b))).ok_or_else(|| missing_link(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Deadline, SearchOptions};
    use schedule::{Demand, Request, verify};
    use std::sync::Arc;
    use topology::Micros;

    /// The makespan of each algorithm for an AllReduce of `size` bytes, where it applies; every schedule is verified.
    fn makespans(spec: &str, size: u64) -> Vec<Option<f64>> {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(Collective::AllReduce, topology.rank_count(), size);
        let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a valid request")));
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let bound = Micros::ZERO;
        let context = Context { joining: Joining::Ordered, ..Context::among_others(&options, &deadline, bound) };
        let attempts = attempts(&problem, &context).expect("nothing breaks");
        let verified = attempts.into_iter().map(|attempt| {
            let schedule = attempt.schedule?;
            Some(verify(schedule, &topology).expect("a right schedule").schedule().makespan().0)
        });
        verified.collect()
    }

    #[test]
    fn sums_are_exchanged_in_the_fewest_rounds() {
        // α is 1 µs, and 1000 bytes take 1 µs.
        let costs = "alpha=1us,bandwidth=1GBps";
        assert_eq!(makespans(&format!("clique:2,{costs}"), 1000), [Some(2.0), Some(2.0), Some(4.0)]);
        assert_eq!(makespans(&format!("clique:8,{costs}"), 1000), [Some(6.0), Some(2.0), Some(12.0)]);
        // Seven members are three more than a power of two: one more round before, and one after.
        // Two ways of a tree that only seven members have are shorter, since the last has nobody to wait for.
        assert_eq!(makespans(&format!("clique:7,{costs}"), 1000), [Some(8.0), Some(2.0), Some(8.0)]);
        assert_eq!(makespans(&format!("hypercube:4,{costs}"), 1000), [Some(8.0), None, Some(16.0)]);
        assert_eq!(makespans(&format!("ring:6,{costs}"), 1000), [None, None, None]);
    }

    #[test]
    fn one_port_each_cannot_send_one_value_to_all_at_once() {
        let found = makespans("switch:4,alpha=1us,bandwidth=1GBps", 1000);
        assert_eq!(found[1], None);
        assert!(found[0].is_some());
    }
}
