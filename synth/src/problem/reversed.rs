//! Reducing demands as spreading demands on the reversed topology.
//!
//! The principal type is [`Halves`]. Take a sum that one rank wants: its reversal spreads that rank's chunk to all
//! contributors, with every link turned around. A sum that several ranks want is collected at one of them and then
//! spread.
//!
//! Chunk ids are the same in all three demands. The contents of the halves are there from the beginning, whenever groups of
//! the problem start: the messages of both get their times in the problem itself. Chunk i of an AllReduce over k members in C pieces is collected at
//! member i / C, as in a ReduceScatter, and spread from there, as in an AllGather.

use super::distance::PathTree;
use super::reach::check_reachable;
use super::{Constraints, Problem, SynthError};
use schedule::{Chunk, ChunkId, Collective, Demand, DemandError, RankSet, Request};
use std::sync::Arc;
use topology::{Micros, Rank};

/// The equivalent spreading problem on the reversed topology. It exists if every chunk is a sum that one rank wants.
pub(crate) fn reversed_spreading(problem: &Problem) -> Option<Problem> {
    if !problem.demand.chunks().iter().all(|chunk| chunk.combine && chunk.wanted_by.len() == 1) {
        return None;
    }
    let collectors = Collectors { label: "", ranks: wanting(&problem.demand) };
    Some(Halves::new(problem, &collectors).ok()?.collect)
}

/// The two spreading problems of `problem`, whose chunks are all sums. In the first, on the reversed topology, the
/// collecting ranks spread to the contributors. In the second, on the topology itself, they spread the sums to the
/// other ranks that want them.
///
/// # Errors
/// [`SynthError::Demand`] if a half would be too large.
pub(crate) fn halves(problem: &Problem) -> Result<(Problem, Option<Problem>), SynthError> {
    let collectors = Collectors { label: "", ranks: wanting(&problem.demand) };
    Halves::new(problem, &collectors).map(|halves| (halves.collect, halves.spread))
}

/// At which rank each chunk's sum is collected.
pub(crate) struct Collectors {
    /// Distinguishes the attempts; empty for the usual choice.
    pub(crate) label: &'static str,
    ranks: Vec<Rank>,
}

impl Collectors {
    /// The given ranks, as far as they want the sums; the usual ones for the other chunks.
    pub(crate) fn preferring(demand: &Demand, preferred: &[Option<Rank>]) -> Self {
        let mut ranks = wanting(demand);
        for ((rank, preferred), chunk) in ranks.iter_mut().zip(preferred).zip(demand.chunks()) {
            if let Some(preferred) = preferred.filter(|&it| chunk.wanted_by.has(it)) {
                *rank = preferred;
            }
        }
        Self { label: "", ranks }
    }

    /// The one rank that collects everything.
    fn root(&self) -> Option<Rank> {
        let root = *self.ranks.first()?;
        self.ranks.iter().all(|&rank| rank == root).then_some(root)
    }
}

/// For each chunk, one of the ranks that want it. Where chunks that follow each other are wanted by the same ranks, each
/// of those gets an equal share of them.
fn wanting(demand: &Demand) -> Vec<Rank> {
    let mut ranks = Vec::with_capacity(demand.chunks().len());
    for alike in demand.chunks().chunk_by(|one, other| one.wanted_by == other.wanted_by) {
        let share = |(index, chunk): (usize, &Chunk)| {
            let wanted = if chunk.wanted_by.is_empty() { &chunk.holders } else { &chunk.wanted_by };
            wanted[index * wanted.len() / alike.len()]
        };
        ranks.extend(alike.iter().enumerate().map(share));
    }
    ranks
}

/// The choices of collectors worth trying. First, the ranks that want the sums share them. Second, where α dominates,
/// one rank in the middle collects all, because then only the depth of one tree in each direction matters.
pub(crate) fn choices(problem: &Problem) -> Vec<Collectors> {
    let demand = &*problem.demand;
    let mut choices = vec![Collectors { label: "", ranks: wanting(demand) }];
    let is_small = |link: &topology::Link| link.byte_time(demand.chunk_bytes()) < link.alpha;
    if demand.request().collective == Collective::AllReduce && problem.topology.links().iter().all(is_small) {
        let root = centre(problem);
        choices.push(Collectors { label: "/rooted", ranks: vec![root; demand.chunks().len()] });
    }
    choices
}

/// The member with the least farthest distance to the others, there and back.
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
    // At most sixteen evenly picked candidates keep this cheap where there are thousands of members.
    let candidates = members.iter().copied().step_by(members.len().div_ceil(16));
    let measured = candidates.map(|rank| (rank, radius(rank)));
    measured.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(members[0], |(rank, _)| rank)
}

/// The two spreading problems that replace a reducing one.
pub(crate) struct Halves<'a> {
    pub(crate) problem: &'a Problem,
    /// On the reversed topology: each sum's collector spreads to all contributors.
    pub(crate) collect: Problem,
    /// On the topology itself: collectors spread the complete sums to all ranks that want them; `None` if no other rank
    /// does.
    pub(crate) spread: Option<Problem>,
}

impl<'a> Halves<'a> {
    /// The halves of `problem`. Where the sketch has stages, the split between the halves lets every chunk through, if
    /// any split does.
    pub(crate) fn new(problem: &'a Problem, collectors: &Collectors) -> Result<Self, SynthError> {
        let Some(stages) = &problem.constraints.stages else { return Self::meeting(problem, collectors, 0) };
        let is_done = problem.demand.chunks().iter().all(|chunk| !chunk.combine || chunk.wanted_by.len() == 1);
        let last = stages.count - 1;
        // A sum may be complete in any stage; the middle stage is the most likely to work.
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
}

/// The constraints of the two halves. A sum that several ranks want has no owner, so rules about owners do not bind its
/// halves. On its way to the collector, which is planned backwards, a sum uses the stages up to `meeting`. Copies of
/// the sum use the stages from `meeting` on.
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

/// The reversed first half: each collector's chunk goes to all contributors to the sum.
fn collecting(demand: &Demand, collectors: &Collectors) -> Result<Demand, DemandError> {
    let request = demand.request();
    match request.collective {
        Collective::ReduceScatter => plain(demand, Collective::AllGather, request.chunks_per_rank, None),
        Collective::Reduce => plain(demand, Collective::Broadcast, request.chunks_per_rank, request.root),
        Collective::AllReduce => halved_all_reduce(demand, collectors),
        Collective::AllGather
        | Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Broadcast
        | Collective::Gather
        | Collective::Scatter
        | Collective::SendRecv
        | Collective::Custom => relisted(demand, collectors, |chunk, at| match chunk.combine {
            true => (RankSet::one(at), chunk.holders.iter().copied().chain([at]).collect()),
            false => (chunk.holders.clone(), chunk.holders.clone()),
        }),
    }
}

/// The second half: each collector's sum goes to all ranks that want it.
fn spreading(demand: &Demand, collectors: &Collectors) -> Result<Demand, DemandError> {
    if demand.request().collective == Collective::AllReduce {
        return halved_all_reduce(demand, collectors);
    }
    relisted(demand, collectors, |chunk, at| match chunk.combine {
        true => (RankSet::one(at), chunk.wanted_by.clone()),
        false => (chunk.holders.clone(), chunk.wanted_by.clone()),
    })
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
        Chunk { holders, wanted_by, combine: false, bytes: Some(demand.bytes_of(id)), release: Micros::ZERO }
    };
    let request = Request { collective: Collective::Custom, op: None, root: None, ..demand.request().clone() };
    Demand::from_chunks(request, demand.chunk_ids().map(relist).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Bytes;

    #[test]
    fn sums_are_shared_by_those_who_want_them_also_beside_other_chunks_and_in_finer_cuts() {
        let chunk = |holders: &[u32], wanted_by: &[u32], combine| {
            let set = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<RankSet>();
            let (holders, wanted_by, bytes) = (set(holders), set(wanted_by), Some(Bytes(8.0)));
            Chunk { holders, wanted_by, combine, bytes, release: Micros::ZERO }
        };
        for parts in [1, 2, 3] {
            let copies = std::iter::repeat_n(chunk(&[0], &[1, 2, 3], false), parts);
            let sums = std::iter::repeat_n(chunk(&[0, 1, 2], &[0, 1, 2], true), 3 * parts);
            let request = Request { op: Some(schedule::ReduceOp::Sum), ..Request::new(Collective::Custom, 4, 8) };
            let demand = Demand::from_chunks(request, copies.chain(sums).collect()).expect("a valid demand");
            let shares: Vec<u32> = wanting(&demand).into_iter().skip(parts).map(|rank| rank.0).collect();
            let expected = (0..3).flat_map(|rank| std::iter::repeat_n(rank, parts));
            assert_eq!(shares, expected.collect::<Vec<_>>(), "{parts}");
        }
    }
}
