//! AllReduce along a chain: the sums of all chunks, one after the other, go from both ends to the middle, and back.
//!
//! Every link of the chain carries the data once in each direction. A ring moves less in all, but every member sends and
//! receives nearly twice the data; at an end of the chain it is the data once. So it is the best where one or two members
//! have slow links and the data is cut into many chunks. (Open MPI and NCCL know the same as pipelined chains.)

use super::sums::fastest_link;
use super::{FEW_HOPS, Inapplicable, inapplicable, planned, ring};
use crate::problem::{Problem, SynthError};
use crate::strategies::{Attempt, Context};
use schedule::{ChunkId, ChunkList, Collective, Message, TransferKind, replay};
use topology::Rank;

/// The chain; nothing for other collectives than AllReduce, and for fewer than three members.
pub(super) fn attempt(problem: &Problem, context: &Context<'_>) -> Result<Option<Attempt>, SynthError> {
    let request = problem.demand.request();
    if request.collective != Collective::AllReduce || request.members.len() < 3 {
        return Ok(None);
    }
    let name = "classic/chain";
    let messages = match messages(problem) {
        Ok(messages) => messages,
        Err(why) => return Ok(Some(inapplicable(name, why))),
    };
    let order = |error| SynthError::Order { strategy: "classic", error };
    let transfers = replay(&problem.demand, &problem.topology, &messages).map_err(order)?;
    Ok(Some(planned(problem, context, name, transfers)))
}

/// A hop of each chunk: so many rounds after the chunk's first hop.
struct ChainHop {
    round: u32,
    kind: TransferKind,
    from: Rank,
    to: Rank,
}

fn messages(problem: &Problem) -> Result<Vec<Message>, Inapplicable> {
    let chain = ring::path(problem, &from_slowest(problem))?;
    let hops = there_and_back(&chain);
    let count = hops.len() * problem.demand.chunks().len();
    if count > FEW_HOPS {
        return Err(format!("needs {count} messages, which is too many for a chain to be fast"));
    }
    let mut placed: Vec<(u32, Message)> = Vec::with_capacity(count);
    for ChainHop { round, kind, from, to } in hops {
        for chunk in problem.demand.chunk_ids() {
            let chunks = ChunkList::from_slice(&[chunk]);
            let link = fastest_link(problem, from, to, &chunks)?;
            placed.push((round + chunk.0, Message { chunks, link, kind }));
        }
    }
    placed.sort_by_key(|(round, message)| (*round, message.link));
    Ok(placed.into_iter().map(|(_, message)| message).collect())
}

/// The members, the one with the slowest links first: it is then one end of the chain.
fn from_slowest(problem: &Problem) -> Vec<Rank> {
    let topology = &*problem.topology;
    let bytes = problem.demand.bytes_of(ChunkId(0));
    let least = |rank: &Rank| {
        let links = topology.outgoing(*rank).iter().filter(|link| problem.allows_link(**link));
        links.map(|link| topology.link(*link).transfer_time(bytes).0).fold(f64::INFINITY, f64::min)
    };
    let mut members = problem.demand.request().members.to_vec();
    let times: Vec<f64> = members.iter().map(least).collect();
    let slowest = (0..members.len()).rev().max_by(|one, other| times[*one].total_cmp(&times[*other]));
    members.rotate_left(slowest.unwrap_or(0));
    members
}

/// The way of a chunk: from both ends of the chain to its middle, and back.
fn there_and_back(chain: &[Rank]) -> Vec<ChainHop> {
    let middle = chain.len() / 2;
    let to_middle = |side: Vec<Rank>| -> Vec<(Rank, Rank)> { side.windows(2).map(|pair| (pair[0], pair[1])).collect() };
    let sides =
        [to_middle(chain[..=middle].to_vec()), to_middle(chain[middle..].iter().rev().copied().collect::<Vec<_>>())];
    let rounds = sides.iter().map(Vec::len).max().unwrap_or(0);
    let mut hops = Vec::with_capacity(2 * chain.len());
    for side in &sides {
        for (place, &(from, to)) in side.iter().enumerate() {
            // The last hops of both sides are in the same round.
            let round = (rounds - side.len() + place) as u32;
            hops.push(ChainHop { round, kind: TransferKind::Reduce, from, to });
            let round = 2 * rounds as u32 - 1 - round;
            hops.push(ChainHop { round, kind: TransferKind::Copy, from: to, to: from });
        }
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Deadline, SearchOptions};
    use schedule::{Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Bytes, Latency, Link, Micros, MicrosPerByte, Resource, ResourceId, Topology, TopologyParts};

    /// Members that are machines with one network interface each, at so many MB/s; every pair is connected.
    fn machines(rates: &[f64]) -> Arc<Topology> {
        let ranks = rates.len();
        let beta = |rank: usize| MicrosPerByte(1.0 / rates[rank]);
        let mut links = Vec::new();
        for (from, to) in
            (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))).filter(|(from, to)| from != to)
        {
            let slower = if beta(from) < beta(to) { beta(to) } else { beta(from) };
            links.push(Link {
                from: Rank::from_index(from),
                to: Rank::from_index(to),
                alpha: Micros(50.0),
                beta: slower,
                latency: Latency::Occupies,
                resources: [2 * from, 2 * to + 1].map(ResourceId::from_index).into(),
            });
        }
        let resource = |at: usize| Resource::new(format!("{at}"), beta(at / 2));
        let resources = (0..2 * ranks).map(resource).collect();
        let parts = TopologyParts { name: "machines".into(), ranks, links, resources, ..TopologyParts::default() };
        Arc::new(Topology::new(parts).expect("a right topology"))
    }

    /// The makespan of a verified chain, in units of the time in which the slowest member sends its data once.
    fn chain(rates: &[f64], size: u64, chunks: u32) -> f64 {
        let topology = machines(rates);
        let request = Request::new(Collective::AllReduce, rates.len(), size).with_chunks(chunks);
        let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a valid request")));
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let attempt = attempt(&problem, &context).expect("nothing breaks").expect("it applies");
        let schedule = verify(attempt.schedule.expect("a chain"), &topology).expect("a right schedule");
        let slowest = MicrosPerByte(1.0 / rates.iter().copied().fold(f64::INFINITY, f64::min));
        schedule.schedule().makespan() / (slowest * Bytes(size as f64))
    }

    #[test]
    fn a_slow_member_sends_its_data_little_more_than_once() {
        // A ring would take 1.5 times, or with five members 1.6 times, as the slowest member sends 2 (k − 1) / k of the data.
        for rates in [&[100.0, 100.0, 50.0, 25.0][..], &[25.0, 100.0, 100.0, 50.0], &[100.0, 20.0, 90.0, 100.0, 50.0]] {
            let times = chain(rates, 16_000_000, 8);
            assert!((1.0..1.2).contains(&times), "{rates:?}: {times}");
            // The first chunk has to be there before the next follows.
            assert!(chain(rates, 16_000_000, 1) > times + 0.2, "{rates:?}");
        }
    }

    #[test]
    fn every_number_of_members_has_a_right_chain() {
        for count in 3..12 {
            assert!(chain(&vec![50.0; count], 999_983, 3) > 1.0);
        }
    }
}
