//! Copies by recursive multiplying: blocks of members that have the same chunks merge, along links that exist.
//!
//! The principal function is [`attempt`]. If all members got all chunks in these rounds, those of each member would spread along a tree.
//! Other collectives use the parts of these trees that lead to whoever wants a chunk. There are few messages one after the other, also
//! where groups of members share a way to others: then one member of each group gathers, exchanges for all, and hands on.

use super::multiplying::{MOST_MEMBERS, MemberLinks, rounds_by};
use super::sums::{TransferRound, fastest_link, fastest_links};
use super::textbook::latency_rules;
use super::{MOST_HOPS, inapplicable, planned};
use crate::problem::{Problem, SynthError};
use crate::strategies::{Attempt, Context, Joining};
use schedule::{ChunkId, ChunkList, Message, Transfer, TransferKind, makespan, replay};
use topology::{Bytes, FreeTimes, Micros, Rank};

const NAME: &str = "classic/multiplying";
/// About so many hops of all chunks are worked out for each plan that is looked at.
const MOST_PASSAGES: usize = 1 << 18;

/// A chunk: who has it, and who wants it, by position among the members.
pub(super) struct SpreadChunk {
    pub(super) id: ChunkId,
    bytes: Bytes,
    pub(super) holder: usize,
    pub(super) wanted: Vec<usize>,
}

/// What a member sends another one in a round, as positions among the chunks.
struct Parcel {
    from: usize,
    to: usize,
    chunks: Vec<usize>,
}

/// The best of its plans; none where it has no chance, or textbook algorithms are asked for.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Option<Attempt>, SynthError> {
    let members = &problem.demand.request().members;
    let is_small =
        (3..=MOST_MEMBERS).contains(&members.len()) && problem.demand.chunks().len() <= MOST_HOPS as usize / 8;
    if !is_small || context.joining != Joining::Exchanging || !latency_rules(problem) {
        return Ok(None);
    }
    let Some(chunks) = spread_chunks(problem) else { return Ok(None) };
    let passages: usize = chunks.iter().map(|chunk| chunk.wanted.len()).sum();
    if passages > MOST_PASSAGES {
        return Ok(None);
    }
    let own: ChunkList = chunks.iter().filter(|chunk| chunk.holder == chunks[0].holder).map(|chunk| chunk.id).collect();
    let links = MemberLinks::new(&problem.topology, problem.demand.message_bytes(&own), fastest_links(problem, &own));
    let time = |rounds: &[TransferRound], _| spreading_time(&links, &chunks, rounds);
    let mut best: Option<Vec<Transfer>> = None;
    for rounds in rounds_by(&links, context.options.seed, context.deadline, time) {
        if best.is_some() && !context.deadline.leaves_time_for(passages) {
            break;
        }
        let Some(messages) = messages(problem, &chunks, &rounds) else { continue };
        let order = |error| SynthError::Order { strategy: "classic", error };
        let transfers = replay(&problem.demand, &problem.topology, &messages).map_err(order)?;
        if best.as_ref().is_none_or(|best| makespan(&transfers) < makespan(best)) {
            best = Some(transfers);
        }
    }
    let none = || inapplicable(NAME, "there are no groups of members that merge along links".to_owned());
    Ok(Some(best.map_or_else(none, |transfers| planned(problem, context, NAME, transfers))))
}

/// The chunks, if each has one holder, and only members have and want them.
pub(super) fn spread_chunks(problem: &Problem) -> Option<Vec<SpreadChunk>> {
    let members = &problem.demand.request().members;
    let place = |rank: Rank| members.binary_search(&rank).ok();
    let chunks = problem.demand.chunk_ids().zip(problem.demand.chunks());
    let spread = chunks.map(|(id, chunk)| {
        let [holder] = chunk.holders[..] else { return None };
        let wanted = chunk.lacking().map(place).collect::<Option<Vec<usize>>>()?;
        Some(SpreadChunk { id, bytes: problem.demand.bytes_of(id), holder: place(holder)?, wanted })
    });
    spread.collect::<Option<Vec<_>>>().filter(|chunks| !chunks.is_empty())
}

/// What is sent in each round, and in which; `None` if somebody does not get what it wants.
fn parcels(members: usize, chunks: &[SpreadChunk], rounds: &[TransferRound]) -> Option<Vec<(usize, Parcel)>> {
    // The members whose chunks each member would have, a bit for each, and by which parcel each chunk would come.
    let mut held: Vec<u128> = (0..members).map(|member| 1 << member).collect();
    let mut by = vec![usize::MAX; members * members];
    let mut parcels: Vec<(usize, Parcel)> = Vec::new();
    for (round, (_, pairs)) in rounds.iter().enumerate() {
        let before = held.clone();
        for &(from, to) in pairs {
            let of = before[from] & !held[to];
            held[to] |= of;
            (0..members).filter(|member| of >> member & 1 == 1).for_each(|of| by[of * members + to] = parcels.len());
            parcels.push((round, Parcel { from, to, chunks: Vec::new() }));
        }
    }
    for (number, chunk) in chunks.iter().enumerate() {
        for &wanted in &chunk.wanted {
            // Back towards the holder, or to where the chunk comes by anyway.
            let mut at = wanted;
            while at != chunk.holder {
                let (_, parcel) = parcels.get_mut(by[chunk.holder * members + at])?;
                if parcel.chunks.last() == Some(&number) {
                    break;
                }
                parcel.chunks.push(number);
                at = parcel.from;
            }
        }
    }
    parcels.retain(|(_, parcel)| !parcel.chunks.is_empty());
    Some(parcels)
}

/// How long rounds take, if each member sends when it has all that it gets in earlier ones.
fn spreading_time(links: &MemberLinks<'_>, chunks: &[SpreadChunk], rounds: &[TransferRound]) -> f64 {
    let (topology, members) = (links.topology, links.links.len());
    let Some(parcels) = parcels(members, chunks, rounds) else { return f64::INFINITY };
    let mut free = FreeTimes::new(topology);
    let (mut ready, mut next) = (vec![Micros::ZERO; members], vec![Micros::ZERO; members]);
    let mut now = 0;
    for (round, Parcel { from, to, chunks: carried }) in parcels {
        if round > now {
            ready.clone_from(&next);
            now = round;
        }
        let Some(link) = links.links[from][to] else { return f64::INFINITY };
        let bytes = Bytes(carried.iter().map(|&chunk| chunks[chunk].bytes.0).sum());
        let start = free.earliest(topology, link).max(ready[from]);
        free.occupy(topology, link, start, bytes);
        next[to] = next[to].max(start + topology.link(link).transfer_time(bytes));
    }
    next.into_iter().fold(0.0, |last, time| last.max(time.0))
}

/// The messages, round by round; `None` if a link may not carry some chunk.
fn messages(problem: &Problem, chunks: &[SpreadChunk], rounds: &[TransferRound]) -> Option<Vec<Message>> {
    let members = &problem.demand.request().members;
    let message = |(_, parcel): (usize, Parcel)| {
        let carried: ChunkList = parcel.chunks.iter().map(|&chunk| chunks[chunk].id).collect();
        let link = fastest_link(problem, members[parcel.from], members[parcel.to], &carried).ok()?;
        Some(Message { chunks: carried, link, kind: TransferKind::Copy })
    };
    parcels(members.len(), chunks, rounds)?.into_iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::{asked, random_machine};
    use crate::problem::{Deadline, SearchOptions};
    use crate::strategies::classic::Classic;
    use crate::strategies::reversal;
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;
    use topology::resolve;

    /// The plan, verified; `None` if it does not apply.
    fn planned_for(problem: &Problem) -> Option<Micros> {
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let attempts = reversal::propose(problem, &context, &Classic).expect("nothing breaks");
        let found = attempts.into_iter().find(|attempt| attempt.name == NAME)?.schedule?;
        let verified =
            verify(found, &problem.topology).unwrap_or_else(|no| panic!("{}: {no}", problem.topology.name()));
        Some(verified.schedule().makespan())
    }

    /// Eight groups of eight ranks behind a port each: α is 0.5 µs inside, and 1 µs between. A member of each group gathers in 1.5 µs,
    /// exchanges in 3 µs, and hands on in 1.5 µs; bytes take less than 0.05 µs for all but the AllToAll.
    #[test]
    fn groups_behind_one_port_gather_exchange_and_hand_on() {
        let machine = || resolve("fat-tree:8x8").expect("a known topology");
        for (collective, most) in [
            (Collective::AllGather, 6.4),
            (Collective::ReduceScatter, 6.4),
            (Collective::AllToAll, 9.0),
            (Collective::Broadcast, 4.63),
        ] {
            let makespan = planned_for(&asked(machine(), collective, 1024));
            assert!(makespan.is_some_and(|makespan| makespan.0 <= most), "{collective}: {makespan:?}");
        }
    }

    /// Links of any speed, one way or both, with ports or without; all collectives that copy or add up at one rank.
    #[test]
    fn what_spreads_on_random_machines_is_right() {
        let collectives = [
            Collective::AllGather,
            Collective::AllToAll,
            Collective::Broadcast,
            Collective::Scatter,
            Collective::Gather,
            Collective::ReduceScatter,
            Collective::Reduce,
        ];
        let mut count = 0;
        for seed in 0..420 {
            let collective = collectives[seed as usize % collectives.len()];
            count += usize::from(planned_for(&asked(random_machine(seed), collective, 40)).is_some());
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn members_may_be_some_of_the_ranks() {
        let topology = Arc::new(resolve("switch:9,alpha=1us").expect("a known topology"));
        let members = [0, 2, 3, 5, 8].into_iter().map(Rank).collect();
        let request = Request { members, ..Request::new(Collective::AllGather, 9, 500) };
        let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")));
        assert!(planned_for(&problem).is_some_and(|makespan| makespan.0 < 4.1));
    }

    #[test]
    fn much_data_is_left_to_others() {
        let problem = asked(resolve("fat-tree:4x4").expect("a known topology"), Collective::AllGather, 1 << 30);
        assert_eq!(planned_for(&problem), None);
    }
}
