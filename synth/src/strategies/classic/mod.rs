//! `classic`: textbook algorithms over the links that exist.
//!
//! The principal type is [`Classic`]. An algorithm only lists which chunk hops from where to where in which round
//! ([`RoundHop`]). This file finds the links and groups the hops that share a round and a link into messages;
//! `schedule::replay` computes the times. An algorithm that needs a link that does not exist, or is not allowed, names
//! it.
//!
//! Reductions come from `reversal`: a ring ReduceScatter is a ring AllGather on the reversed topology, and a ring
//! AllReduce is the two in sequence. Algorithms that exchange sums are in `sums`, and sums along a chain in `chain`.

mod chain;
mod exchange;
mod gateways;
mod multiplying;
mod nested;
mod ring;
mod shares;
mod spreading;
mod sums;
mod textbook;
mod tree;

use crate::problem::constraints::RuleKind;
use crate::problem::distance::PathTree;
use crate::problem::reach::check_reachable;
use crate::problem::{Problem, StopReason, StrategyKind, SynthError};
use crate::strategies::reversal::check_copies;
use crate::strategies::{Attempt, Context, Strategy};
use schedule::{ChunkId, ChunkList, Message, Schedule, Transfer, TransferKind, makespan, replay};
use textbook::TextbookAlgorithm;
use topology::{Bytes, LinkId, Micros, Rank, ResourceId, Topology};

/// The strategy `classic`.
#[derive(Clone, Copy, Debug)]
pub struct Classic;

/// The most hops of one algorithm: a larger textbook schedule costs more memory and time than it is worth.
const MOST_HOPS: u64 = 1 << 22;
/// So few hops take negligible time, even if the deadline has passed.
const FEW_HOPS: usize = 1 << 16;
/// So many hops are timed after the deadline as well if all plans so far are poor: this takes some tenths of a second.
const SOME_HOPS: usize = 1 << 19;
/// A plan is poor if it takes this many times as long as the bound.
const POOR: f64 = 2.0;
/// Above this number of hops, only the algorithms that may still be the best are timed.
const MANY_HOPS: usize = 1 << 14;

/// One chunk over one link in one round. A chunk moves on in a later round than the one in which it arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct RoundHop {
    round: u32,
    chunk: ChunkId,
    from: Rank,
    to: Rank,
}

/// Why an algorithm does not apply, as text for the user.
type Inapplicable = String;

impl Strategy for Classic {
    fn kind(&self) -> StrategyKind {
        StrategyKind::Classic
    }

    fn honours(&self) -> &'static [RuleKind] {
        &RuleKind::OF_ORDER
    }

    fn propose(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        check_copies(problem, self.name())?;
        check_reachable(problem)?;
        let deliveries: u64 = problem.demand.chunks().iter().map(|chunk| chunk.wanted_by.len() as u64).sum();
        if deliveries > MOST_HOPS {
            let why = format!("{deliveries} deliveries are more than the {MOST_HOPS} it writes down");
            return Err(SynthError::NotApplicable { strategy: self.name(), why });
        }
        if is_far(problem) {
            let why = format!("it would need more than the {MOST_HOPS} hops it writes down");
            return Err(SynthError::NotApplicable { strategy: self.name(), why });
        }
        let mut has_any = context.incumbent.is_some();
        let found = |algorithm: TextbookAlgorithm| {
            let is_long = || algorithm.is_search && !context.deadline.leaves_time_for(tree::search_cost(problem));
            let hops = match has_any {
                true if context.deadline.has_passed() => Err("the time was up".to_owned()),
                true if is_long() => Err("it would take longer than there is time".to_owned()),
                _ => (algorithm.hops)(problem).and_then(|hops| on_links(problem, hops)),
            };
            has_any |= hops.is_ok();
            let least = hops.as_ref().map_or(Micros::ZERO, |hops| least(problem, hops));
            (algorithm.name, least, hops)
        };
        let algorithms = textbook::in_order(problem, deliveries > MANY_HOPS as u64);
        let mut candidates: Vec<_> = algorithms.into_iter().map(found).collect();
        if candidates.iter().any(|(_, _, hops)| hops.as_ref().is_ok_and(|hops| hops.len() > MANY_HOPS)) {
            candidates.sort_by(|one, other| one.1.0.total_cmp(&other.1.0));
        }
        let mut attempts: Vec<Attempt> = Vec::new();
        for (name, least, hops) in candidates {
            let best =
                attempts.iter().filter_map(|attempt| Some(attempt.schedule.as_ref()?.makespan())).reduce(Micros::min);
            let is_poor = best.is_some_and(|best| best > context.bound * POOR);
            let is_small = hops.as_ref().is_ok_and(|hops| hops.len() <= SOME_HOPS);
            if best.is_some() && context.deadline.has_passed() && !(is_poor && is_small) {
                break;
            }
            let hops = hops.and_then(|hops| match best {
                Some(best) if best < least && hops.len() > MANY_HOPS => {
                    Err(format!("takes at least {least}, more than another one"))
                }
                _ => Ok(hops),
            });
            attempts.push(attempt(problem, name, hops, context)?);
        }
        if attempts.iter().all(|attempt| attempt.stop != StopReason::Optimal) {
            attempts.extend(spreading::attempt(problem, context)?);
            let has_plan = context.incumbent.is_some() || attempts.iter().any(|attempt| attempt.schedule.is_some());
            if !has_plan || !context.deadline.has_passed() {
                attempts.extend(gateways::attempt(problem, context)?);
            }
        }
        Ok(attempts)
    }

    fn is_quick_directly(&self) -> bool {
        true
    }

    fn propose_directly(&self, problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
        let mut attempts = sums::attempts(problem, context)?;
        attempts.extend(chain::attempt(problem, context)?);
        Ok(attempts)
    }
}

fn attempt(
    problem: &Problem,
    name: &str,
    hops: Result<Vec<PlacedHop>, Inapplicable>,
    context: &Context<'_>,
) -> Result<Attempt, SynthError> {
    let hops = match hops {
        Ok(hops) => hops,
        Err(why) => return Ok(inapplicable(name, why)),
    };
    let timed = |messages: Vec<Message>| -> Result<_, SynthError> {
        let order = |error| SynthError::Order { strategy: "classic", error };
        let transfers = replay(&problem.demand, &problem.topology, &messages).map_err(order)?;
        Ok((makespan(&transfers), transfers))
    };
    // One message for all chunks of a round saves α. One message per chunk lets the first chunk be passed on sooner.
    let mut best = timed(together(&hops))?;
    let may_be_faster = || hops.len() < FEW_HOPS || busiest(problem, &hops, |_, _| false) < best.0;
    if (!context.deadline.has_passed() || hops.len() < FEW_HOPS) && may_be_faster() {
        let single = timed(one_by_one(&hops))?;
        best = if single.0 < best.0 { single } else { best };
    }
    Ok(planned(problem, context, name, best.1))
}

/// What an algorithm has come to.
fn planned(problem: &Problem, context: &Context<'_>, name: &str, transfers: Vec<Transfer>) -> Attempt {
    let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, name);
    let stop = if schedule.makespan() <= context.bound { StopReason::Optimal } else { StopReason::Done };
    Attempt { name: name.to_owned(), schedule: Some(schedule), stop, note: None }
}

/// An algorithm that does not apply.
fn inapplicable(name: &str, why: Inapplicable) -> Attempt {
    Attempt { name: name.to_owned(), schedule: None, stop: StopReason::NotApplicable, note: Some(why) }
}

/// A lower bound on the time of these hops: the time of the chunk with the longest way, on empty links, or that of the
/// busiest link or resource, where hops share a message as [`together`] has them.
fn least(problem: &Problem, hops: &[PlacedHop]) -> Micros {
    let topology = &*problem.topology;
    // One chunk after the other, in the order of rounds: a time for every chunk at every rank would be far more than there are hops.
    let mut by_chunk: Vec<&PlacedHop> = hops.iter().collect();
    by_chunk.sort_by_key(|hop| hop.chunk);
    let mut arrived = vec![0.0_f64; topology.rank_count()];
    let mut last = 0.0_f64;
    for hops in by_chunk.chunk_by(|a, b| a.chunk == b.chunk) {
        let bytes = problem.demand.bytes_of(hops[0].chunk);
        for hop in hops {
            let link = topology.link(hop.link);
            let at = arrived[link.from.index()] + link.transfer_time(bytes).0;
            let place = &mut arrived[link.to.index()];
            *place = place.max(at);
            last = last.max(at);
        }
        for link in hops.iter().map(|hop| topology.link(hop.link)) {
            [arrived[link.from.index()], arrived[link.to.index()]] = [0.0; 2];
        }
    }
    Micros(last).max(busiest(problem, hops, share_a_message))
}

/// What a message over a link keeps busy, and for how long: links are places by their numbers, and resources come after them.
fn kept_busy(topology: &Topology, id: LinkId, bytes: Bytes) -> impl Iterator<Item = (usize, Micros)> + use<'_> {
    let (link, links) = (topology.link(id), topology.links().len());
    let of_resource = move |id: &ResourceId| (links + id.index(), topology.resource(*id).occupancy(link, bytes));
    std::iter::once((id.index(), link.occupancy(bytes))).chain(link.resources.iter().map(of_resource))
}

/// How long the busiest link or resource is busy, where such hops that follow each other share a message.
fn busiest(problem: &Problem, hops: &[PlacedHop], share: impl Fn(&PlacedHop, &PlacedHop) -> bool) -> Micros {
    let topology = &*problem.topology;
    let mut busy = vec![Micros::ZERO; topology.links().len() + topology.resources().len()];
    for message in hops.chunk_by(share) {
        let bytes = message.iter().map(|hop| problem.demand.bytes_of(hop.chunk)).sum();
        kept_busy(topology, message[0].link, bytes).for_each(|(place, time)| busy[place] += time);
    }
    busy.into_iter().fold(Micros::ZERO, Micros::max)
}

/// Whether chunks with one destination each need too many hops for any algorithm, estimated from the first chunk.
fn is_far(problem: &Problem) -> bool {
    let chunks = problem.demand.chunks();
    let Some(first) = chunks.first().filter(|_| chunks.len() as u64 > MOST_HOPS / 64) else { return false };
    if chunks.iter().any(|chunk| chunk.wanted_by.len() != 1) {
        return false;
    }
    let one = |link| problem.allows_link(link).then_some(1.0);
    let tree = PathTree::new(&problem.topology, first.holders.iter().copied(), one);
    let hops: f64 = tree.distance.iter().filter(|hops| hops.is_finite()).sum();
    // The first holder may be badly placed, but hardly by more than a factor of two.
    chunks.len() as f64 * hops / problem.topology.rank_count() as f64 > 2.0 * MOST_HOPS as f64
}

/// A hop and the link that it uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct PlacedHop {
    round: u32,
    link: LinkId,
    chunk: ChunkId,
}

/// Finds a link for every hop, and sorts the hops by round. Parallel links take turns.
fn on_links(problem: &Problem, hops: Vec<RoundHop>) -> Result<Vec<PlacedHop>, Inapplicable> {
    let topology = &*problem.topology;
    let mut placed = Vec::with_capacity(hops.len());
    let mut usable: Vec<LinkId> = Vec::new();
    for RoundHop { round, chunk, from, to } in hops {
        usable.clear();
        usable.extend(topology.between(from, to).filter(|&link| problem.allows(chunk, link)));
        let beta = |link: &LinkId| topology.link(*link).beta.0;
        let fastest = usable.iter().map(beta).fold(f64::INFINITY, f64::min);
        usable.retain(|link| beta(link) <= fastest);
        let link = *usable.get(chunk.index() % usable.len().max(1)).ok_or_else(|| missing_link(from, to))?;
        placed.push(PlacedHop { round, link, chunk });
    }
    placed.sort_unstable();
    Ok(placed)
}

/// Stops an algorithm that has too many hops.
fn few_enough(hops: usize) -> Result<(), Inapplicable> {
    if hops as u64 > MOST_HOPS {
        return Err(format!("needs more than the {MOST_HOPS} hops it writes down"));
    }
    Ok(())
}

fn missing_link(from: Rank, to: Rank) -> Inapplicable {
    format!("needs a link from rank {from} to rank {to} that it may use")
}

fn share_a_message(one: &PlacedHop, other: &PlacedHop) -> bool {
    (one.round, one.link) == (other.round, other.link)
}

/// One message for all chunks that share a round and a link.
fn together(hops: &[PlacedHop]) -> Vec<Message> {
    hops.chunk_by(share_a_message)
        .map(|hops| message(hops[0].link, hops.iter().map(|hop| hop.chunk).collect()))
        .collect()
}

fn one_by_one(hops: &[PlacedHop]) -> Vec<Message> {
    hops.iter().map(|hop| message(hop.link, ChunkList::from_slice(&[hop.chunk]))).collect()
}

fn message(link: LinkId, chunks: ChunkList) -> Message {
    Message { chunks, link, kind: TransferKind::Copy }
}

/// The members of a rooted collective, the root first, the others in ascending order around.
fn from_root(problem: &Problem) -> Vec<Rank> {
    let request = problem.demand.request();
    let mut members = request.members.to_vec();
    let root = request.root.and_then(|root| members.iter().position(|&member| member == root));
    members.rotate_left(root.unwrap_or(0));
    members
}

/// The chunks of the member at `position` among the sorted members, where every member has equally many.
fn chunks_of(problem: &Problem, position: usize) -> impl Iterator<Item = ChunkId> + use<> {
    let per_member = problem.demand.request().chunks_per_rank;
    let first = position as u32 * per_member;
    (first..first + per_member).map(ChunkId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;

    fn problem(spec: &str, collective: Collective) -> Problem {
        let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
        let request = Request::new(collective, topology.rank_count(), 1 << 20);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    #[test]
    fn hops_beyond_the_limit_are_refused_before_they_fill_the_memory() {
        // 160 000 chunks, each over a quarter of the 400 hops on average: four times the limit.
        let far = problem("ring:400", Collective::AllToAll);
        for hops in [ring::all_to_all(&far), tree::shortest_paths(&far)] {
            assert!(hops.is_err_and(|why| why.contains("more than the")));
        }
    }

    #[test]
    fn of_many_hops_only_those_are_timed_that_may_be_best() {
        let problem = problem("clique:300,alpha=1ms,bandwidth=100GBps", Collective::AllGather);
        let (options, deadline) = (crate::problem::SearchOptions::default(), crate::problem::Deadline::default());
        let bound = Micros::ZERO;
        let context = Context::among_others(&options, &deadline, bound);
        let attempts = Classic.propose(&problem, &context).unwrap();
        let of = |name: &str| attempts.iter().find(|attempt| attempt.name == name).unwrap();
        // The ring sends 299 messages one after the other, each of a millisecond.
        let note = of("classic/ring").note.clone().unwrap();
        assert!(of("classic/ring").schedule.is_none() && note.contains("takes at least"), "{note}");
        let best = of("classic/all-pairs").schedule.as_ref().unwrap().makespan();
        assert!(
            best < Micros(299e3)
                && attempts.iter().all(|other| other.schedule.as_ref().is_none_or(|other| best <= other.makespan()))
        );
    }

    #[test]
    fn without_time_one_chunk_for_many_ranks_goes_down_a_tree() {
        let options = crate::problem::SearchOptions::default();
        let deadline = crate::problem::Deadline::after(Some(std::time::Duration::ZERO), options.cancel.clone());
        for (spec, first) in
            [("clique:200", "classic/binomial"), ("torus2d:10x20", "classic/tree"), ("clique:8", "classic/chain")]
        {
            let context = Context::among_others(&options, &deadline, Micros::ZERO);
            let mut problem = problem(spec, Collective::Broadcast);
            let request = Request { root: Some(Rank(0)), ..problem.demand.request().clone() };
            problem.demand = Arc::new(Demand::new(request).expect("a valid request"));
            let attempts = Classic.propose(&problem, &context).expect("textbook algorithms");
            let planned = attempts.iter().find(|attempt| attempt.schedule.is_some()).expect("a schedule");
            assert_eq!(planned.name, first, "{spec}");
        }
    }

    #[test]
    fn without_time_ranks_with_a_link_to_everybody_send_directly() {
        let options = crate::problem::SearchOptions::default();
        let deadline = crate::problem::Deadline::after(Some(std::time::Duration::ZERO), options.cancel.clone());
        let context = Context::among_others(&options, &deadline, Micros::ZERO);
        let attempts = Classic.propose(&problem("clique:200", Collective::AllGather), &context).expect("algorithms");
        let planned = attempts.iter().find(|attempt| attempt.schedule.is_some()).expect("a schedule");
        assert_eq!(planned.name, "classic/all-pairs");
    }

    #[test]
    fn the_busiest_port_bounds_an_algorithm() {
        let problem = problem("switch:5,bandwidth=1GBps", Collective::AllGather);
        let hops = exchange::all_pairs(&problem).and_then(|hops| on_links(&problem, hops)).expect("direct links");
        // Four messages, each with its α.
        let alpha = problem.topology.links()[0].alpha.0;
        let four = 4.0 * (alpha + problem.demand.chunk_bytes().0 * 1e-3);
        assert!((least(&problem, &hops).0 - four).abs() < 1e-6 * four, "{} µs", least(&problem, &hops));
    }

    #[test]
    fn a_tree_reaches_everybody_once_from_somebody_reached_before() {
        for spec in ["ring:9", "torus2d:4x5", "dgx1", "ndv2x2"] {
            let problem = problem(spec, Collective::AllGather);
            let hops = tree::shortest_paths(&problem).expect("a tree on every topology");
            let ranks = problem.topology.rank_count();
            assert_eq!(hops.len(), ranks * (ranks - 1), "{spec}");
            let mut reached: Vec<Vec<Option<u32>>> = vec![vec![None; ranks]; ranks];
            (0..ranks).for_each(|rank| reached[rank][rank] = Some(0));
            for RoundHop { round, chunk, from, to } in hops {
                let chunk = &mut reached[chunk.index()];
                assert!(chunk[from.index()].is_some_and(|at| at + 1 == round), "{spec}");
                assert_eq!(chunk[to.index()].replace(round), None, "{spec}");
            }
        }
    }
}
