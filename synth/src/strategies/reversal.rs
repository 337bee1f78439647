//! Reducing demands, planned as spreading ones on the reversed topology.
//!
//! The principal function is [`propose`], through which the planner calls every strategy: none but those that
//! exchange sums has to think of reductions ([`Strategy::propose_directly`]).
//! A sum that one rank wants is the reversal of that rank's chunk being spread to all contributors with every link
//! turned around. A sum that several ranks want is collected at one of them and spread again. The two halves share
//! one list scheduling over the original demand, so that a chunk is spread as soon as *its* sum is complete: there
//! is no barrier between them, and both share a link by urgency.
//!
//! Chunk ids coincide in all three demands: chunk i of an AllReduce over k members in C pieces is collected at
//! member i / C, as in a ReduceScatter, and spread from there, as in an AllGather.

use crate::bounds::bounds_before;
use crate::problem::distance::PathTree;
use crate::problem::reach::check_reachable;
use crate::problem::{Constraints, Deadline, Problem, StopReason, SynthError};
use crate::strategies::interleave::interleaved;
use crate::strategies::{Attempt, Context, Strategy};
use schedule::{
    Chunk, ChunkId, Collective, Demand, DemandError, Message, RankSet, Request, Schedule, reduce_of_gather,
};
use std::sync::Arc;
use topology::Rank;

/// The bound of a half gets one in so many of the time left.
const BOUND_PART: u32 = 20;

/// Refuses sums for a strategy that only copies; [`propose`] never asks it for any.
///
/// # Errors
/// [`SynthError::NotApplicable`].
pub(crate) fn check_copies(problem: &Problem, strategy: &'static str) -> Result<(), SynthError> {
    match problem.demand.has_sums() {
        true => Err(SynthError::NotApplicable { strategy, why: "it reduces; plan its reversal".to_owned() }),
        false => Ok(()),
    }
}

/// What `strategy` proposes for `problem`; where values are reduced, by way of the reversed topology.
///
/// # Errors
/// Those of the strategy.
pub(crate) fn propose(
    problem: &Problem,
    context: &Context<'_>,
    strategy: &dyn Strategy,
) -> Result<Vec<Attempt>, SynthError> {
    if !problem.demand.chunks().iter().any(|chunk| chunk.combine) {
        return strategy.propose(problem, context);
    }
    let mut attempts = Vec::new();
    let mut refusal = None;
    for collectors in collectors(problem) {
        if !attempts.is_empty() && context.deadline.has_passed() {
            break;
        }
        let halves = Halves::new(problem, &collectors)?;
        match halves.propose(context, strategy, collectors.label) {
            Ok(found) => attempts.extend(found),
            // Only sums that are complete at one rank first are impossible, where the problem itself is not.
            Err(SynthError::Infeasible { .. }) if check_reachable(problem).is_ok() => {}
            // What does not apply to the halves may apply to the whole.
            Err(error @ SynthError::NotApplicable { .. }) => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    if !context.deadline.has_passed() || attempts.iter().all(|attempt| attempt.schedule.is_none()) {
        attempts.extend(strategy.propose_directly(problem, context)?);
    }
    if attempts.is_empty() {
        let why = "under this sketch no sum can be complete at one rank and then reach the others".to_owned();
        return Err(refusal.unwrap_or(SynthError::NotApplicable { strategy: strategy.name(), why }));
    }
    Ok(attempts)
}

/// The spreading problem on the reversed topology that is equivalent to `problem`: one exists if all that moves
/// are sums that one rank each wants.
pub(crate) fn reversed_spreading(problem: &Problem) -> Option<Problem> {
    if !problem.demand.chunks().iter().all(|chunk| chunk.combine && chunk.wanted_by.len() == 1) {
        return None;
    }
    let collectors = Collectors { label: "", ranks: wanting(&problem.demand) };
    Some(Halves::new(problem, &collectors).ok()?.collect)
}

/// The two spreading problems of `problem`, whose chunks are all sums: on the reversed topology from the ranks that collect
/// them, and, where others want them, on the topology itself from there.
///
/// # Errors
/// [`SynthError::Demand`] where a half would be too large.
pub(crate) fn halves(problem: &Problem) -> Result<(Problem, Option<Problem>), SynthError> {
    let collectors = Collectors { label: "", ranks: wanting(&problem.demand) };
    Halves::new(problem, &collectors).map(|halves| (halves.collect, halves.spread))
}

/// At which rank each chunk's sum is collected.
struct Collectors {
    /// Distinguishes the attempts; empty for the usual choice.
    label: &'static str,
    ranks: Vec<Rank>,
}

impl Collectors {
    /// The one rank that collects everything.
    fn root(&self) -> Option<Rank> {
        let root = *self.ranks.first()?;
        self.ranks.iter().all(|&rank| rank == root).then_some(root)
    }
}

/// For each chunk, one of those who want it, so that every one of them gets an equal share of the chunks.
fn wanting(demand: &Demand) -> Vec<Rank> {
    let count = demand.chunks().len();
    let share = |(index, chunk): (usize, &Chunk)| {
        let wanted = if chunk.wanted_by.is_empty() { &chunk.holders } else { &chunk.wanted_by };
        wanted[index * wanted.len() / count]
    };
    demand.chunks().iter().enumerate().map(share).collect()
}

/// The choices worth trying: spread over those who want the sum, and, where α dominates, all at one rank in the
/// middle, because there one tree each way is then all that counts.
fn collectors(problem: &Problem) -> Vec<Collectors> {
    let demand = &*problem.demand;
    let mut choices = vec![Collectors { label: "", ranks: wanting(demand) }];
    let is_small = |link: &topology::Link| (link.beta * demand.chunk_bytes()).0 < link.alpha.0;
    if demand.request().collective == Collective::AllReduce && problem.topology.links().iter().all(is_small) {
        let root = centre(problem);
        choices.push(Collectors { label: "/rooted", ranks: vec![root; demand.chunks().len()] });
    }
    choices
}

/// The member whose farthest member, there and back, is nearest.
fn centre(problem: &Problem) -> Rank {
    let members = &problem.demand.request().members;
    let bytes = problem.demand.chunk_bytes();
    let reversed = problem.topology.reversed();
    let radius = |rank: Rank| {
        let farthest = |topology: &topology::Topology| {
            let length = |id| problem.allows_link(id).then(|| topology.link(id).transfer_time(bytes).0);
            let tree = PathTree::new(topology, [rank], length);
            members.iter().map(|member| tree.distance[member.index()]).fold(0.0, f64::max)
        };
        farthest(&problem.topology) + farthest(&reversed)
    };
    // Sixteen candidates, evenly picked, keep this cheap where there are thousands of members.
    let candidates = members.iter().copied().step_by(members.len().div_ceil(16));
    let measured = candidates.map(|rank| (rank, radius(rank)));
    measured.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(members[0], |(rank, _)| rank)
}

/// The two spreading problems behind a reducing one.
struct Halves<'a> {
    problem: &'a Problem,
    /// On the reversed topology: every sum's collector spreads to all contributors.
    collect: Problem,
    /// On the topology itself: what is complete is spread to all who want it; `None` if nobody else does.
    spread: Option<Problem>,
}

impl<'a> Halves<'a> {
    /// The halves of `problem`; where the sketch has stages, those that let every chunk through.
    fn new(problem: &'a Problem, collectors: &Collectors) -> Result<Self, SynthError> {
        let Some(stages) = &problem.constraints.stages else { return Self::meeting(problem, collectors, 0) };
        let is_done = problem.demand.chunks().iter().all(|chunk| !chunk.combine || chunk.wanted_by.len() == 1);
        let last = stages.count - 1;
        // Sums may be complete in any stage; the middle one is the most likely.
        let mut meetings: Vec<u8> = if is_done { vec![last] } else { (0..stages.count).collect() };
        meetings.sort_by_key(|stage| (2 * stage).abs_diff(last));
        let lets_through = |halves: &Self| {
            let reachable = |half: &Problem| check_reachable(half).is_ok();
            reachable(&halves.collect) && halves.spread.as_ref().is_none_or(reachable)
        };
        for &meeting in &meetings {
            let halves = Self::meeting(problem, collectors, meeting)?;
            if lets_through(&halves) {
                return Ok(halves);
            }
        }
        Self::meeting(problem, collectors, meetings[0])
    }

    /// The halves where sums are complete in stage `meeting`.
    fn meeting(problem: &'a Problem, collectors: &Collectors, meeting: u8) -> Result<Self, SynthError> {
        let demand = &*problem.demand;
        let (collecting_under, spreading_under) = constraints_of_halves(problem, meeting);
        let collect = Problem {
            topology: Arc::new(problem.topology.reversed()),
            demand: Arc::new(collecting(demand, collectors)?),
            constraints: collecting_under,
        };
        let done = |(chunk, &at): (&Chunk, &Rank)| chunk.combine && chunk.wanted_by.iter().all(|&rank| rank == at);
        let spread = match demand.chunks().iter().zip(&collectors.ranks).all(done) {
            true => None,
            false => {
                let demand = Arc::new(spreading(demand, collectors)?);
                Some(Problem { topology: problem.topology.clone(), demand, constraints: spreading_under })
            }
        };
        Ok(Self { problem, collect, spread })
    }

    fn propose(&self, context: &Context<'_>, strategy: &dyn Strategy, label: &str) -> Result<Vec<Attempt>, SynthError> {
        let ask = |half: &Problem| {
            // The incumbent is for another demand, and each of two halves has a bound of its own.
            let bound = match self.spread {
                None => context.bound,
                Some(_) => bounds_before(half, &context.deadline.part(BOUND_PART)).best().value,
            };
            let context = Context { incumbent: None, bound, ..*context };
            strategy.propose(half, &context)
        };
        let collected = ask(&self.collect)?;
        let spread = self.spread.as_ref().map(ask).transpose()?;
        let mut composed: Vec<Attempt> = Vec::with_capacity(collected.len());
        for collect in collected {
            if context.deadline.has_passed() && composed.iter().any(|attempt| attempt.schedule.is_some()) {
                break;
            }
            composed.push(self.compose(collect, spread.as_deref(), context.deadline, label)?);
        }
        Ok(composed)
    }

    /// One attempt out of one for each half.
    fn compose(
        &self,
        collect: Attempt,
        spread: Option<&[Attempt]>,
        deadline: &Deadline,
        label: &str,
    ) -> Result<Attempt, SynthError> {
        let Attempt { name, schedule, stop, note } = collect;
        let name = format!("{name}{label}");
        let Some(collected) = schedule else { return Ok(Attempt { name, schedule: None, stop, note }) };
        let ranks = self.problem.topology.rank_count();
        let mut messages = reduce_of_gather(&collected.transfers, &self.collect.demand, ranks);
        let mut stop = stop;
        if let Some(attempts) = spread {
            let Some((partner, schedule)) = partner(attempts, &collected) else {
                let note = Some("its second half does not apply".to_owned());
                return Ok(Attempt { name, schedule: None, stop, note });
            };
            messages.extend(schedule.transfers.iter().map(Message::from));
            // Two optimal halves need not make an optimal whole.
            stop = if stop == StopReason::Optimal { StopReason::Exhausted } else { stop };
            stop = if partner.stop == StopReason::TimeLimit { StopReason::TimeLimit } else { stop };
        }
        let Problem { topology, demand, .. } = self.problem;
        let order = |error| SynthError::Order { strategy: "reversal", error };
        let transfers = interleaved(self.problem, &messages, deadline).map_err(order)?;
        let schedule = Schedule::new(topology, demand.clone(), transfers, &name);
        Ok(Attempt { name, schedule: Some(schedule), stop, note })
    }
}

/// The spreading half to go with `collected`: of the same name, else the fastest.
fn partner<'a>(attempts: &'a [Attempt], collected: &Schedule) -> Option<(&'a Attempt, &'a Schedule)> {
    let found = || attempts.iter().filter_map(|attempt| attempt.schedule.as_ref().map(|schedule| (attempt, schedule)));
    let like = found().find(|(_, schedule)| schedule.produced_by.strategy == collected.produced_by.strategy);
    like.or_else(|| found().min_by(|a, b| a.1.makespan().total_cmp(&b.1.makespan())))
}

/// What the sketch asks of the two halves. A sum that several want belongs to nobody, so rules about owners do not bind
/// its halves. A sum goes through the stages up to `meeting` on its way to its collector, which is planned backwards, and
/// copies of it through those from there on.
fn constraints_of_halves(problem: &Problem, meeting: u8) -> (Arc<Constraints>, Arc<Constraints>) {
    let mut constraints = problem.constraints.clone();
    if !problem.demand.chunks().iter().all(|chunk| !chunk.combine || chunk.wanted_by.len() == 1) {
        let unowned = Constraints { owners: Vec::new(), own_chunks_first: None, ..(*constraints).clone() };
        constraints = Arc::new(unowned);
    }
    let Some(stages) = &constraints.stages else { return (constraints.clone(), constraints) };
    let staged = |stages| Arc::new(Constraints { stages: Some(stages), ..(*constraints).clone() });
    let last = stages.count - 1;
    (staged(stages.part(0, meeting, true)), staged(stages.part(meeting, last, false)))
}

/// The reversed first half: each collector's chunk goes to all who contribute to the sum.
fn collecting(demand: &Demand, collectors: &Collectors) -> Result<Demand, DemandError> {
    let request = demand.request();
    match request.collective {
        Collective::ReduceScatter => plain(demand, Collective::AllGather, request.chunks_per_rank, None),
        Collective::Reduce => plain(demand, Collective::Broadcast, request.chunks_per_rank, request.root),
        Collective::AllReduce => halved_all_reduce(demand, collectors),
        _ => relisted(demand, collectors, |chunk, at| match chunk.combine {
            true => (RankSet::one(at), chunk.holders.iter().copied().chain([at]).collect()),
            false => (chunk.holders.clone(), chunk.holders.clone()),
        }),
    }
}

/// The second half: each collector's sum goes to all who want it.
fn spreading(demand: &Demand, collectors: &Collectors) -> Result<Demand, DemandError> {
    match demand.request().collective {
        Collective::AllReduce => halved_all_reduce(demand, collectors),
        _ => relisted(demand, collectors, |chunk, at| match chunk.combine {
            true => (RankSet::one(at), chunk.wanted_by.clone()),
            false => (chunk.holders.clone(), chunk.wanted_by.clone()),
        }),
    }
}

/// Either half of an AllReduce: an AllGather, or a Broadcast where one rank collects everything.
fn halved_all_reduce(demand: &Demand, collectors: &Collectors) -> Result<Demand, DemandError> {
    match collectors.root() {
        None => plain(demand, Collective::AllGather, demand.request().chunks_per_rank, None),
        root => plain(demand, Collective::Broadcast, demand.chunks().len() as u32, root),
    }
}

/// A standard demand over the same members with chunks of the same size.
fn plain(demand: &Demand, collective: Collective, chunks: u32, root: Option<Rank>) -> Result<Demand, DemandError> {
    let request = demand.request().clone();
    let request = Request { collective, op: None, root, chunks_per_rank: chunks, ..request };
    Demand::new(request)?.with_chunk_bytes(demand.chunk_bytes())
}

/// A demand with the same chunks between other ranks.
fn relisted(
    demand: &Demand,
    collectors: &Collectors,
    ends: impl Fn(&Chunk, Rank) -> (RankSet, RankSet),
) -> Result<Demand, DemandError> {
    let relist = |id: ChunkId| {
        let (holders, wanted_by) = ends(demand.chunk(id), collectors.ranks[id.index()]);
        Chunk { holders, wanted_by, combine: false, bytes: Some(demand.bytes_of(id)) }
    };
    let request = Request { collective: Collective::Custom, op: None, root: None, ..demand.request().clone() };
    Demand::from_chunks(request, demand.chunk_ids().map(relist).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, Limits, Options};
    use crate::sketch::obey;
    use crate::strategies::classic::Classic;
    use crate::strategies::matching::Matching;
    use proptest::prelude::{ProptestConfig, Strategy as Generator, any, proptest};
    use schedule::verify;
    use topology::{Latency, Link, LinkId, Micros, MicrosPerByte, Topology, TopologyParts, resolve};

    const STRATEGIES: [&dyn crate::strategies::Strategy; 2] = [&Classic, &Matching];

    fn propose_with(problem: &Problem, strategy: &dyn crate::strategies::Strategy, restarts: u32) -> Vec<Attempt> {
        let limits = Limits { restarts, ..Limits::default() };
        let options = Options { limits, seed: 7, ..Options::default() };
        let deadline = Deadline::default();
        let bound = bounds(problem).best().value;
        let context = Context { options: &options, deadline: &deadline, incumbent: None, bound, progress: &|_| {} };
        propose(problem, &context, strategy).expect("connected topologies have schedules")
    }

    /// Every proposal is right, obeys the constraints and is no faster than any bound; the best makespan.
    fn check(problem: &Problem, label: &str) -> f64 {
        let bound = bounds(problem).best();
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

    /// A one-way ring: the reversed topology is another one.
    fn one_way_ring(ranks: u32) -> Topology {
        let link = |from: u32| Link {
            from: Rank(from),
            to: Rank((from + 1) % ranks),
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.01),
            latency: Latency::Occupies,
            resources: Box::new([]),
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
                    let resources = Box::new([]);
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
        // Without a barrier an AllReduce on a one-way ring takes the 2·(k − 1) steps of a ring, not one more.
        let topology = Arc::new(one_way_ring(4));
        let demand = Demand::new(Request::new(Collective::AllReduce, 4, 400)).expect("a valid request");
        assert_eq!(check(&Problem::new(topology, Arc::new(demand)), "ring"), 12.0);
    }

    #[test]
    fn sums_that_are_complete_early_are_spread_while_others_are_collected() {
        // A line's links carry every byte once each way; a barrier in the middle would cost half as much again.
        let topology = Arc::new(resolve("line:4").expect("a family"));
        let demand = Demand::new(Request::new(Collective::AllReduce, 4, 1 << 30).with_chunks(8)).expect("a request");
        let problem = Problem::new(topology, Arc::new(demand));
        let bound = bounds(&problem).best().value.0;
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
