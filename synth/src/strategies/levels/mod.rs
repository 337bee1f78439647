//! `levels`: every chunk arrives after the fewest hops, and arrivals of one step are spread over the links.
//!
//! The principal type is [`Levels`]. It makes breadth-first broadcasts [1]: a chunk that is t links away from a rank
//! arrives there in step t, over a link from a rank that is one link nearer. For each rank and step, [`balance`]
//! chooses these links such that the busiest carries as little as possible. All chunks of a step on a link are one
//! message. This has the fewest α possible, which is good for small sizes. Where bandwidths differ much, other
//! strategies are better.
//!
//! [1] Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications" (arXiv 2202.03356).

mod balance;

use crate::problem::constraints::RuleKind;
use crate::problem::{Deadline, Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};
use balance::{LinkChoice, balanced};
use schedule::{Chunk, ChunkId, ChunkList, Message, Schedule, TransferKind, replay};
use std::collections::{BTreeMap, VecDeque};
use topology::{LinkId, Rank};

/// The strategy `levels`.
#[derive(Clone, Copy, Debug)]
pub struct Levels;

const NAME: &str = StrategyKind::Levels.as_str();
const MOST: usize = 1 << 22;
/// The most chunks, because balancing the arrivals at one rank in one step takes quadratic time.
const MOST_CHUNKS: usize = 1 << 13;

/// In a portfolio, the strategy is skipped if the bound exceeds this many times the latency of the longest way.
const LONG: f64 = 64.0;

impl Strategy for Levels {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Levels
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_LINKS
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check(problem)?;
        let demand = &*problem.demand;
        let messages = in_steps(problem, context.deadline).ok_or_else(|| match context.deadline.has_passed() {
            true => SynthError::NothingYet,
            false => refused("some rank is out of reach"),
        })?;
        let order = |error| SynthError::Order { strategy: NAME, error };
        let transfers = replay(demand, &problem.topology, &messages).map_err(order)?;
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, NAME);
        Ok(vec![Attempt { name: NAME.to_owned(), schedule: Some(schedule), stop: StopReason::Done, note: None }])
    }

    fn is_worthwhile(&self, problem: &Problem, context: &Context<'_>) -> Result<(), SynthError> {
        check(problem)?;
        let slowest = problem
            .topology
            .links()
            .iter()
            .map(|link| link.byte_time(problem.demand.chunk_bytes()).0 - 4.0 * link.alpha.0);
        if slowest.fold(f64::NEG_INFINITY, f64::max) > 0.0 {
            return Err(refused("bandwidth matters more than latency"));
        }
        if context.bound.0 > LONG * latency(problem) {
            return Err(refused("so much data takes far longer than the longest way"));
        }
        Ok(())
    }
}

fn refused(why: &str) -> SynthError {
    SynthError::NotApplicable { strategy: NAME, why: why.to_owned() }
}

/// Checks that the problem is of a kind that this strategy plans.
fn check(problem: &Problem) -> Result<(), SynthError> {
    let demand = &*problem.demand;
    check_copies(problem, NAME)?;
    let everybody = |chunk: &Chunk| chunk.wanted_by.len() == problem.topology.rank_count();
    if !demand.chunks().iter().all(everybody) {
        return Err(refused("not everybody wants everything"));
    }
    let chunks = demand.chunks().len();
    if chunks > MOST_CHUNKS || chunks * problem.topology.rank_count() > MOST {
        return Err(refused("there are too many deliveries"));
    }
    Ok(())
}

/// All messages, step by step; `None` if some rank cannot be reached, or the time is up before.
fn in_steps(problem: &Problem, deadline: &Deadline) -> Option<Vec<Message>> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    // For each step and receiver, the chunks that arrive.
    let mut arriving: BTreeMap<(u32, Rank), Vec<ChunkId>> = BTreeMap::new();
    let mut levels: Vec<Vec<u32>> = Vec::new();
    let mut level_of: Vec<usize> = Vec::with_capacity(demand.chunks().len());
    let mut previous: Option<&Chunk> = None;
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        if previous != Some(chunk) {
            if deadline.has_passed() {
                return None;
            }
            levels.push(distances(problem, id));
            previous = Some(chunk);
        }
        level_of.push(levels.len() - 1);
        let level = levels.last()?;
        for rank in topology.ranks().filter(|rank| level[rank.index()] > 0) {
            if level[rank.index()] == u32::MAX {
                return None;
            }
            arriving.entry((level[rank.index()], rank)).or_default().push(id);
        }
    }
    // The load of each resource in the current step, to decide between equal links.
    let mut step = 0;
    let mut busy: BTreeMap<usize, f64> = BTreeMap::new();
    let mut messages = Vec::new();
    for ((level, rank), chunks) in arriving {
        if deadline.has_passed() {
            return None;
        }
        if level != step {
            (step, busy) = (level, BTreeMap::new());
        }
        let choices = |&chunk: &ChunkId| {
            let from = |&&link: &&LinkId| {
                let sender = topology.link(link).from;
                levels[level_of[chunk.index()]][sender.index()] == level - 1 && problem.allows(chunk, link)
            };
            topology.incoming(rank).iter().filter(from).map(|&link| choice(problem, link, &busy)).collect()
        };
        let choices: Vec<Vec<LinkChoice>> = chunks.iter().map(choices).collect();
        let mut carried: BTreeMap<LinkId, ChunkList> = BTreeMap::new();
        for (&chunk, link) in chunks.iter().zip(balanced(&choices)?) {
            carried.entry(link).or_default().push(chunk);
        }
        for (link, chunks) in carried {
            for &resource in &topology.link(link).resources {
                *busy.entry(resource.index()).or_default() += chunks.len() as f64;
            }
            messages.push(Message { chunks, link, kind: TransferKind::Copy });
        }
    }
    Some(messages)
}

fn choice(problem: &Problem, link: LinkId, busy: &BTreeMap<usize, f64>) -> LinkChoice {
    let resources = &problem.topology.link(link).resources;
    let shared = resources.iter().map(|resource| busy.get(&resource.index()).copied().unwrap_or(0.0));
    LinkChoice { link, beta: problem.topology.link(link).beta.0, shared: shared.fold(0.0, f64::max) }
}

/// The largest α times the most hops from the holders of the first chunk to any rank, in µs.
fn latency(problem: &Problem) -> f64 {
    let hops = problem.demand.chunk_ids().next().map_or_else(Vec::new, |first| distances(problem, first));
    let slowest = problem.topology.links().iter().map(|link| link.alpha.0).fold(0.0, f64::max);
    slowest * f64::from(hops.into_iter().filter(|&it| it < u32::MAX).max().unwrap_or(0))
}

/// For every rank, the number of links from the nearest holder of a chunk.
fn distances(problem: &Problem, id: ChunkId) -> Vec<u32> {
    let topology = &*problem.topology;
    let mut distance = vec![u32::MAX; topology.rank_count()];
    let mut queue: VecDeque<Rank> = problem.demand.chunk(id).holders.iter().copied().collect();
    queue.iter().for_each(|holder| distance[holder.index()] = 0);
    while let Some(rank) = queue.pop_front() {
        for &link in topology.outgoing(rank).iter().filter(|&&link| problem.allows(id, link)) {
            let to = topology.link(link).to;
            if distance[to.index()] == u32::MAX {
                distance[to.index()] = distance[rank.index()] + 1;
                queue.push_back(to);
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::SearchOptions;
    use crate::strategies::reversal;
    use schedule::{Collective, Demand, Request, verify};
    use std::sync::Arc;

    fn plan(spec: &str, collective: Collective, size: u64) -> f64 {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let demand = Demand::new(Request::new(collective, topology.rank_count(), size)).expect("a valid request");
        let problem = Problem::new(topology, Arc::new(demand));
        let options = SearchOptions::default();
        let (deadline, bound) = (Deadline::default(), bounds(&problem, &Deadline::default()).best().value);
        let context = Context::of_test(&options, &deadline, bound);
        let attempt = reversal::propose(&problem, &context, &Levels).expect("it applies").remove(0);
        let verified = verify(attempt.schedule.expect("a proposal"), &problem.topology).expect("a right schedule");
        verified.schedule().makespan().0
    }

    #[test]
    fn there_are_as_many_latencies_as_links_on_the_longest_way() {
        for (spec, hops) in
            [("torus2d:5x5", 4.0), ("mesh2d:3x4", 5.0), ("hypercube:4", 4.0), ("clique:6", 1.0), ("dgx1", 2.0)]
        {
            let spec = match spec.contains(':') {
                true => format!("{spec},alpha=0.7us"),
                false => spec.to_owned(),
            };
            for (collective, times) in
                [(Collective::AllGather, 1.0), (Collective::ReduceScatter, 1.0), (Collective::AllReduce, 2.0)]
            {
                let makespan = plan(&spec, collective, 1);
                assert!((makespan - 0.7 * hops * times).abs() < 0.01, "{spec} {collective}: {makespan} µs");
            }
        }
    }

    #[test]
    fn on_tori_the_links_carry_equally_much() {
        // 24 chunks over four links: six per link.
        let makespan = plan("torus2d:5x5,alpha=0us,bandwidth=1GBps", Collective::AllGather, 25_000);
        assert!(makespan <= 6.0 * (1.0 + 1e-9), "{makespan} µs");
    }
}
