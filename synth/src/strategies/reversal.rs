//! Reducing demands, planned as spreading demands on the reversed topology.
//!
//! The principal function is [`propose`]. The planner calls every strategy through it, so that a strategy need not
//! handle reductions; those that exchange sums implement [`Strategy::propose_directly`]. Take a sum that one rank
//! wants: its reversal spreads that rank's chunk to all contributors, with every link turned around. A sum that several
//! ranks want is collected at one of them and then spread.
//!
//! One list scheduling over the original demand orders both halves. So there is no barrier between them: a chunk is
//! spread as soon as *its own* sum is complete. [`crate::problem::reversed`] defines the halves.

use crate::bounds::bounds;
use crate::ordering::{interleaved, reordered};
use crate::problem::reach::check_reachable;
use crate::problem::reversed::{Halves, choices};
use crate::problem::{Deadline, Problem, StopReason, SynthError};
use crate::strategies::{Attempt, Context, Joining, Strategy};
use schedule::{ChunkId, Message, Schedule, Transfer, TransferKind, reduce_of_gather, replay, turned_around};
use std::collections::BTreeSet;
use topology::Rank;

/// Where a strategy goes on from a whole plan, all halves may take one part in this many of the time left.
const HALVES_PART: u32 = 2;
/// Larger plans are not turned around for strategies to go on from: that takes time for each of them.
const MOST_TURNED: usize = 1 << 16;
/// The bound of a half may take one part in this many of the time left.
const BOUND_PART: u32 = 20;

/// Refuses demands with sums, for a strategy that only copies. [`propose`] never passes such a demand.
///
/// # Errors
/// [`SynthError::NotApplicable`].
pub(crate) fn check_copies(problem: &Problem, strategy: &'static str) -> Result<(), SynthError> {
    match problem.demand.has_sums() {
        true => Err(SynthError::NotApplicable { strategy, why: "it reduces; plan its reversal".to_owned() }),
        false => Ok(()),
    }
}

/// What `strategy` proposes for `problem`. Demands that reduce are planned on the reversed topology.
///
/// # Errors
/// Those of the strategy.
pub(crate) fn propose(
    problem: &Problem,
    context: &Context<'_>,
    strategy: &dyn Strategy,
) -> Result<Vec<Attempt>, SynthError> {
    if !problem.demand.chunks().iter().any(|chunk| chunk.combine) {
        return propose_copies(problem, context, strategy);
    }
    let (mut attempts, mut refusal) = (Vec::new(), None);
    let proposes_directly = !problem.constraints.exceeds(strategy.honours()) && !context.was_planned_as_one;
    let quick = match proposes_directly && strategy.is_quick_directly() {
        true => strategy.propose_directly(problem, context)?,
        false => Vec::new(),
    };
    let has_plan = quick.iter().any(|attempt| attempt.schedule.is_some());
    let goes_on = has_shared_sums(problem) && strategy.goes_on_from_whole(problem, context);
    let collecting = if goes_on && !strategy.plans_halves(context) { Vec::new() } else { choices(problem) };
    // Without a limit, counted work ends all parts.
    let is_divided = goes_on && context.options.time_limit.is_some();
    let for_halves = if is_divided { context.deadline.part(HALVES_PART) } else { context.deadline.clone() };
    for (collectors, left) in collecting.iter().zip((1..=collecting.len() as u32).rev()) {
        if (has_plan || !attempts.is_empty()) && context.deadline.has_passed() {
            break;
        }
        let halves = Halves::new(problem, collectors)?;
        let deadline = if is_divided { for_halves.part(left) } else { for_halves.clone() };
        match propose_halves(&halves, &Context { deadline: &deadline, ..*context }, strategy, collectors.label) {
            Ok(found) => attempts.extend(found),
            // These halves may be impossible although the problem is not: they require each sum to be complete at one
            // rank.
            Err(SynthError::Infeasible { .. }) if check_reachable(problem).is_ok() => {}
            // A strategy that does not apply to the halves may still apply to the whole.
            Err(error @ SynthError::NotApplicable { .. }) => refusal = Some(error),
            Err(SynthError::NothingYet) if has_plan || !attempts.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let has_none = !has_plan && attempts.iter().all(|attempt| attempt.schedule.is_none());
    let is_quick = strategy.is_quick_directly();
    if proposes_directly && (has_none || !is_quick && !context.deadline.has_passed()) {
        let found = attempts.iter().filter_map(|attempt: &Attempt| attempt.schedule.as_ref()).chain(context.incumbent);
        let incumbent = found.min_by(|a, b| a.makespan().total_cmp(&b.makespan()));
        // Something is better than nothing, also when the time is up.
        let deadline = if is_quick { &Deadline::default() } else { context.deadline };
        attempts.extend(strategy.propose_directly(problem, &Context { incumbent, deadline, ..*context })?);
    } else {
        attempts.extend(quick);
    }
    if attempts.is_empty() {
        let why = "under this sketch no sum can be complete at one rank and then reach the others".to_owned();
        return Err(refusal.unwrap_or(SynthError::NotApplicable { strategy: strategy.name(), why }));
    }
    Ok(attempts)
}

/// Whether several ranks want a sum, so that there are two halves.
pub(crate) fn has_shared_sums(problem: &Problem) -> bool {
    problem.demand.chunks().iter().any(|chunk| chunk.combine && chunk.wanted_by.len() > 1)
}

/// What `strategy` proposes for a problem without sums; among others only where that is worthwhile.
fn propose_copies(
    problem: &Problem,
    context: &Context<'_>,
    strategy: &dyn Strategy,
) -> Result<Vec<Attempt>, SynthError> {
    if problem.constraints.exceeds(strategy.honours()) {
        let why = "the sketch has rules that it does not honour".to_owned();
        return Err(SynthError::NotApplicable { strategy: strategy.name(), why });
    }
    if !context.is_alone {
        strategy.is_worthwhile(problem, context)?;
    }
    strategy.propose(problem, context)
}

/// What `strategy` proposes for the whole problem, planned as two halves.
fn propose_halves(
    halves: &Halves<'_>,
    context: &Context<'_>,
    strategy: &dyn Strategy,
    label: &str,
) -> Result<Vec<Attempt>, SynthError> {
    let turned = match halves.spread {
        Some(_) => None,
        None if context.deadline.has_passed() => None,
        None => context.incumbent.and_then(|incumbent| spreading_of(incumbent, &halves.collect)),
    };
    let ask = |half: &Problem, deadline: &Deadline| {
        // Where there are two halves, each has its own bound, and the incumbent is for another demand.
        let bound = match halves.spread {
            Some(_) if context.joining != Joining::AsTheyAre => bounds(half, &deadline.part(BOUND_PART)).best().value,
            _ => context.bound,
        };
        let context = Context { incumbent: turned.as_ref(), runner_up: None, bound, deadline, ..*context };
        propose_copies(half, &context, strategy)
    };
    let has_parts = halves.spread.is_some() && strategy.uses_all_time();
    let first = if has_parts { context.deadline.part(2) } else { context.deadline.clone() };
    let mut collected = ask(&halves.collect, &first)?;
    let spread = halves.spread.as_ref().map(|half| ask(half, context.deadline)).transpose()?;
    if strategy.uses_all_time() || context.joining == Joining::Exchanging {
        // The best one first, because there may be no time for more. Textbook algorithms keep their order.
        let makespan = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
        collected.sort_by(|a, b| makespan(a).total_cmp(&makespan(b)));
    }
    let mut composed: Vec<Attempt> = Vec::with_capacity(collected.len());
    for collect in collected {
        if context.deadline.has_passed() && composed.iter().any(|attempt| attempt.schedule.is_some()) {
            break;
        }
        let name = format!("{}{label}", collect.name);
        composed.push(match compose(halves, collect, spread.as_deref(), context, label) {
            // The others may be right.
            Err(error @ SynthError::Order { .. }) => {
                Attempt { name, schedule: None, stop: StopReason::Failed, note: Some(error.to_string()) }
            }
            composed => composed?,
        });
    }
    Ok(composed)
}

/// A schedule that adds each chunk up at one rank, as one that spreads it from there on the reversed topology; `None` where it is large
/// or has no such order.
fn spreading_of(sums: &Schedule, spreading: &Problem) -> Option<Schedule> {
    if sums.transfers.len() > MOST_TURNED {
        return None;
    }
    let Problem { topology, demand, .. } = spreading;
    let mut messages = turned_around(&sums.transfers);
    // A sum with one contributor may have been copied.
    messages.iter_mut().for_each(|message| message.kind = TransferKind::Copy);
    let transfers = replay(demand, topology, &messages).ok()?;
    Some(Schedule::new(topology, demand.clone(), transfers, &sums.produced_by.strategy))
}

/// Composes one attempt from one attempt at each half.
fn compose(
    halves: &Halves<'_>,
    collect: Attempt,
    spread: Option<&[Attempt]>,
    context: &Context<'_>,
    label: &str,
) -> Result<Attempt, SynthError> {
    let Attempt { name, schedule, stop, note } = collect;
    let name = format!("{name}{label}");
    let Some(collected) = schedule else { return Ok(Attempt { name, schedule: None, stop, note }) };
    let mut stop = stop;
    let mut copies: &[Transfer] = &[];
    if let Some(attempts) = spread {
        let Some((partner, schedule)) = partner(attempts, &collected) else {
            let note = Some("its second half does not apply".to_owned());
            return Ok(Attempt { name, schedule: None, stop, note });
        };
        copies = &schedule.transfers;
        // Two optimal halves need not make an optimal whole.
        stop = if stop == StopReason::Optimal { StopReason::Done } else { stop };
        stop = if partner.stop == StopReason::TimeLimit { StopReason::TimeLimit } else { stop };
    }
    let schedule = joined(halves, [&collected.transfers, copies], context.joining, context.deadline, &name)?;
    Ok(Attempt { name, schedule: Some(schedule), stop, note })
}

/// One schedule of the whole from the transfers of its halves: those that spread on the reversed topology, and those
/// that spread the complete sums.
///
/// # Errors
/// [`SynthError::Order`] if the transfers are not those of the halves.
pub(crate) fn joined(
    halves: &Halves<'_>,
    [collect, spread]: [&[Transfer]; 2],
    joining: Joining,
    deadline: &Deadline,
    name: &str,
) -> Result<Schedule, SynthError> {
    let Problem { topology, demand, .. } = halves.problem;
    let mut messages = reduce_of_gather(collect, &halves.collect.demand, topology.rank_count());
    keep_held(&mut messages, halves.problem);
    messages.extend(spread.iter().map(Message::from));
    let transfers = match joining {
        Joining::AsTheyAre => replay(demand, topology, &messages),
        Joining::Ordered => reordered(halves.problem, &messages, false, deadline),
        Joining::Exchanging => interleaved(halves.problem, &messages, deadline),
    };
    let transfers = transfers.map_err(|error| SynthError::Order { strategy: "reversal", error })?;
    Ok(Schedule::new(topology, demand.clone(), transfers, name))
}

/// Leaves out what a rank would send that neither contributes nor has got anything to add: turned around, a copy that nobody used.
fn keep_held(messages: &mut Vec<Message>, problem: &Problem) {
    let Problem { topology, demand, .. } = problem;
    let mut held: BTreeSet<(ChunkId, Rank)> = BTreeSet::new();
    for message in messages.iter_mut() {
        let link = topology.link(message.link);
        let has = |chunk: ChunkId| demand.chunk(chunk).holders.has(link.from) || held.contains(&(chunk, link.from));
        message.chunks.retain(|chunk: &mut ChunkId| has(*chunk));
        held.extend(
            message.chunks.iter().filter(|&&it| !demand.chunk(it).holders.has(link.to)).map(|&it| (it, link.to)),
        );
    }
    messages.retain(|message| !message.chunks.is_empty());
}

/// The spreading half that goes with `collected`: the one of the same name, else the fastest.
fn partner<'a>(attempts: &'a [Attempt], collected: &Schedule) -> Option<(&'a Attempt, &'a Schedule)> {
    let found = || attempts.iter().filter_map(|attempt| attempt.schedule.as_ref().map(|schedule| (attempt, schedule)));
    let like = found().find(|(_, schedule)| schedule.produced_by.strategy == collected.produced_by.strategy);
    like.or_else(|| found().min_by(|a, b| a.1.makespan().total_cmp(&b.1.makespan())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::reversed::reversed_spreading;
    use crate::problem::{Constraints, Deadline, Limits, SearchOptions};
    use crate::sketch::obey;
    use crate::strategies::classic::Classic;
    use crate::strategies::matching::Matching;
    use proptest::prelude::{ProptestConfig, Strategy as Generator, any, proptest};
    use schedule::{Collective, Demand, RankSet, Request, verify};
    use std::sync::Arc;
    use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Rank, Topology, TopologyParts, resolve};

    const STRATEGIES: [&dyn crate::strategies::Strategy; 2] = [&Classic, &Matching];

    fn propose_with(problem: &Problem, strategy: &dyn crate::strategies::Strategy, restarts: u32) -> Vec<Attempt> {
        let limits = Limits { restarts, ..Limits::default() };
        let options = SearchOptions { limits, seed: 7, ..SearchOptions::default() };
        let deadline = Deadline::default();
        let bound = bounds(problem, &Deadline::default()).best().value;
        let context = Context::among_others(&options, &deadline, bound);
        propose(problem, &context, strategy).expect("connected topologies have schedules")
    }

    /// Checks that every proposal is valid, obeys the constraints and beats no bound; returns the best makespan.
    fn check(problem: &Problem, label: &str) -> f64 {
        let bound = bounds(problem, &Deadline::default()).best();
        let mut best = f64::INFINITY;
        for strategy in STRATEGIES {
            let mut found = 0;
            for attempt in propose_with(problem, strategy, 4) {
                let Some(schedule) = attempt.schedule else { continue };
                let makespan = schedule.makespan();
                let violations = obey(&schedule, &problem.topology, &problem.constraints);
                assert!(violations.is_empty(), "{label}, {}: {}", attempt.name, violations[0]);
                if let Err(rejection) = verify(schedule, &problem.topology) {
                    panic!("{label}, {}: {rejection}", attempt.name);
                }
                assert!(
                    makespan.0 >= bound.value.0 * (1.0 - 1e-9),
                    "{label}, {}: {makespan} beats {bound:?}",
                    attempt.name
                );
                found += 1;
                best = best.min(makespan.0);
            }
            assert!(found > 0, "{label}: {} has nothing", strategy.name());
        }
        best
    }

    fn request(collective: Collective, members: RankSet, ranks: usize, size: u64, chunks: u32) -> Request {
        let root = collective.is_rooted().then(|| members[members.len() - 1]);
        Request { members, root, ..Request::new(collective, ranks, size) }.with_chunks(chunks)
    }

    fn standard() -> impl Iterator<Item = Collective> {
        let listed = [Collective::AllToAllV, Collective::Custom];
        Collective::ALL.iter().copied().filter(move |collective| !listed.contains(collective))
    }

    /// A one-way ring: its reversed topology is a different one.
    fn one_way_ring(ranks: u32) -> Topology {
        let link = |from: u32| Link {
            from: Rank(from),
            to: Rank((from + 1) % ranks),
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.01),
            latency: Latency::Occupies,
            resources: [].into(),
        };
        let parts =
            TopologyParts { ranks: ranks as usize, links: (0..ranks).map(link).collect(), ..TopologyParts::default() };
        Topology::new(parts).expect("a ring is valid")
    }

    #[test]
    fn every_collective_on_every_family() {
        let mut topologies = vec![one_way_ring(5)];
        for spec in [
            "ring:2",
            "ring:7",
            "line:5",
            "clique:6",
            "torus2d:3x4",
            "hypercube:3",
            "switch:5",
            "mesh2d:3x3,latency=pipelines",
        ] {
            topologies.push(resolve(spec).expect("a family").renamed(spec));
        }
        for topology in topologies.into_iter().map(Arc::new) {
            let ranks = topology.rank_count();
            for collective in standard() {
                for (size, chunks) in [(0, 1), (1, 1), (1_000_003, 1), (7_777, 3)] {
                    let request = request(collective, RankSet::all(ranks), ranks, size, chunks);
                    let demand = Arc::new(Demand::new(request).expect("a valid request"));
                    let label = format!("{} {collective} {size} C={chunks}", topology.name());
                    check(&Problem::new(topology.clone(), demand), &label);
                }
            }
        }
    }

    #[test]
    fn subsets_of_ranks_with_relays() {
        let topology = Arc::new(resolve("mesh2d:3x3").expect("a family"));
        for members in [&[4][..], &[0, 8], &[1, 3, 5], &[0, 2, 4, 6, 8]] {
            let members: RankSet = members.iter().map(|&rank| Rank(rank)).collect();
            for collective in standard() {
                let request = request(collective, members.clone(), 9, 10_007, 2);
                let demand = Arc::new(Demand::new(request).expect("a valid request"));
                check(&Problem::new(topology.clone(), demand), &format!("{collective} among {members:?}"));
            }
        }
    }

    #[test]
    fn forbidden_links_stay_unused() {
        let topology = Arc::new(resolve("torus2d:3x3").expect("a family"));
        let forbidden = topology.link_ids().map(|link| (link.0 % 5 == 0).then_some(3)).collect();
        let constraints = Arc::new(Constraints { forbidden, ..Constraints::none() });
        for collective in standard() {
            let request = request(collective, RankSet::all(9), 9, 90_000, 2);
            let demand = Arc::new(Demand::new(request).expect("a valid request"));
            let problem = Problem { topology: topology.clone(), demand, constraints: constraints.clone() };
            check(&problem, &format!("{collective} without some links"));
        }
    }

    #[test]
    fn threads_do_not_change_the_answer() {
        let topology = Arc::new(resolve("torus2d:3x5").expect("a family"));
        for collective in standard() {
            let demand = Demand::new(request(collective, RankSet::all(15), 15, 150_000, 2)).expect("a valid request");
            let problem = Problem::new(topology.clone(), Arc::new(demand));
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
                let attempts = pool.install(|| propose_with(&problem, &Matching, 16));
                attempts.into_iter().map(|attempt| attempt.schedule).collect::<Vec<_>>()
            };
            assert_eq!(with(1), with(2), "{collective}");
        }
    }

    /// A connected topology: a tree both ways, and any other links.
    fn any_topology() -> impl Generator<Value = Topology> {
        let cost = (0u32..20, 1u32..50, any::<bool>());
        (2usize..8).prop_flat_map(move |ranks| {
            let parents = proptest::collection::vec((any::<u32>(), cost.clone(), cost.clone()), ranks - 1);
            let others = proptest::collection::vec((0..ranks as u32, 0..ranks as u32, cost.clone()), 0..12);
            (parents, others).prop_map(move |(parents, others)| {
                let mut links = Vec::new();
                let mut add = |from: u32, to: u32, (alpha, beta, occupies): (u32, u32, bool)| {
                    let latency = if occupies { Latency::Occupies } else { Latency::Pipelines };
                    let (alpha, beta) = (Micros(f64::from(alpha) * 0.1), MicrosPerByte(f64::from(beta) * 1e-3));
                    let resources = [].into();
                    links.push(Link { from: Rank(from), to: Rank(to), alpha, beta, latency, resources });
                };
                for (child, (parent, down, up)) in (1u32..).zip(parents) {
                    add(parent % child, child, down);
                    add(child, parent % child, up);
                }
                others.into_iter().filter(|(from, to, _)| from != to).for_each(|(from, to, cost)| add(from, to, cost));
                Topology::new(TopologyParts { ranks, links, ..TopologyParts::default() }).expect("a valid topology")
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_connected_topology(
            topology in any_topology(),
            which in 0..9usize,
            size in 0u64..100_000,
            chunks in 1u32..4,
            picks in any::<u8>(),
        ) {
            let collective = standard().nth(which).expect("nine standard collectives");
            let ranks = topology.rank_count();
            let members = (0..ranks).filter(|rank| picks >> rank & 1 == 1 || *rank == 0).map(Rank::from_index).collect();
            let demand = Demand::new(request(collective, members, ranks, size, chunks)).expect("a valid request");
            check(&Problem::new(Arc::new(topology), Arc::new(demand)), &format!("{collective}"));
        }
    }

    #[test]
    fn a_sum_waits_for_nothing_but_itself() {
        // Without a barrier, AllReduce on a one-way ring takes the 2·(k − 1) steps of the ring algorithm.
        let topology = Arc::new(one_way_ring(4));
        let demand = Demand::new(Request::new(Collective::AllReduce, 4, 400)).expect("a valid request");
        assert_eq!(check(&Problem::new(topology, Arc::new(demand)), "ring"), 12.0);
    }

    #[test]
    fn sums_that_are_complete_early_are_spread_while_others_are_collected() {
        // Each link of a line carries every byte once; a barrier between the halves would add half of that time again.
        let topology = Arc::new(resolve("line:4").expect("a family"));
        let demand = Demand::new(Request::new(Collective::AllReduce, 4, 1 << 30).with_chunks(8)).expect("a request");
        let problem = Problem::new(topology, Arc::new(demand));
        let bound = bounds(&problem, &Deadline::default()).best().value.0;
        let found = check(&problem, "line");
        assert!(found < 1.1 * bound, "{found} against {bound}");
    }

    #[test]
    fn links_keep_their_ids_when_reversed() {
        let topology = Arc::new(one_way_ring(3));
        let demand = Demand::new(Request::new(Collective::ReduceScatter, 3, 300)).expect("a valid request");
        let problem = Problem::new(topology, Arc::new(demand));
        let forward = reversed_spreading(&problem).expect("a ReduceScatter has a forward problem");
        assert_eq!(forward.topology.link(LinkId(0)).from, Rank(1));
        assert_eq!(forward.demand.request().collective, Collective::AllGather);
    }
}
