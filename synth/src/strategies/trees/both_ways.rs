//! AllReduce along trees: sums go up a tree and results come down it, for many chunks at once.
//!
//! The principal function is [`propose`]. Such a tree uses both directions of each of its links, whichever of its ranks
//! is the root. So trees are packed without a root, and each is rooted at its middle afterwards. Where ranks differ,
//! slow ones become leaves, and results are spread before all sums are complete. The most that a packing can reach is
//! the strength of the network (Nash-Williams and Tutte, 1961): the capacity between the parts of the worst partition,
//! over the number of its parts minus one.

use super::packing::{Packing, PackingStyle, TreeUnits};
use super::{NAME, PACKING_PART, few_trees, is_affordable, worthwhile};
use crate::ordering::{interleaved, outlook};
use crate::problem::distance::PathTree;
use crate::problem::reversed::halves;
use crate::problem::{Constraints, Deadline, Problem, StopReason, SynthError};
use crate::strategies::{Attempt, Context};
use crate::symmetry::Mirror;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use rayon::prelude::*;
use schedule::{ChunkList, Collective, Message, Schedule, TransferKind};
use std::time::Duration;
use topology::{Link, LinkId, Micros, Rank, Topology, counted};

/// The loads (relative to the bound) up to which links are used freely, for shallow trees. They are lower than for
/// trees in one direction, because idle time elsewhere lets both directions of a tree keep pace.
const STYLES: [f64; 4] = [1.0, 0.85, 0.7, 0.5];
/// How many of them are ordered with care.
const ORDERED: usize = 2;
/// The time that a plan takes for each message, estimated generously; used where time is limited.
const PACE: Duration = Duration::from_micros(30);
/// The most messages of a plan.
const MOST: usize = 1 << 20;
/// How many times the way of a chunk from the ends of the machine to its middle counts. Twice would be enough if no link
/// ever waited while trees fill and empty; this is what meshes of 35 to 256 ranks took.
const FILLING: f64 = 8.0;
/// Estimates that differ by less than this factor are nearly equal.
const NEARLY: f64 = 1.01;

/// For each link, a different link in the opposite direction; `None` if some link has none of its own.
pub(super) fn ways_back(topology: &Topology) -> Option<Vec<LinkId>> {
    let back = |id: LinkId| {
        let link = topology.link(id);
        let place = topology.between(link.from, link.to).position(|it| it == id)?;
        topology.between(link.to, link.from).nth(place)
    };
    topology.link_ids().map(back).collect()
}

/// Whether the problem is of the kind that is planned here.
fn is_suitable(problem: &Problem) -> bool {
    problem.demand.request().collective == Collective::AllReduce && *problem.constraints == Constraints::none()
}

/// Which of `problems`, one for each chunk count, has the least estimated makespan of those that can be planned in time:
/// all links are busy on average, except while the trees fill and empty. Of nearly equal ones it is the first, which has
/// the fewest messages.
pub(super) fn promising_count(problems: &[Problem], deadline: &Deadline) -> Option<usize> {
    let topology = &*problems.first().filter(|problem| is_suitable(problem))?.topology;
    ways_back(topology)?;
    let radius = f64::from(diameter(topology)? / 2 + 1);
    let count = topology.links().len() as f64;
    let mean = |of: fn(&Link) -> f64| topology.links().iter().map(of).sum::<f64>() / count;
    let (alpha, beta) = (mean(|link| link.alpha.0), mean(|link| link.beta.0));
    let estimate = |problem: &Problem| {
        let (demand, ranks) = (&problem.demand, topology.rank_count());
        let messages = 2 * demand.chunks().len() * ranks;
        let is_in_time = deadline.remaining().is_none_or(|left| PACE * messages as u32 <= left);
        let hop = alpha + beta * demand.chunk_bytes().0;
        (messages <= MOST && is_in_time).then_some(hop * (messages as f64 / count + FILLING * radius))
    };
    let estimates: Vec<Option<f64>> = problems.iter().map(estimate).collect();
    let least = estimates.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    estimates.iter().position(|estimate| estimate.is_some_and(|estimate| estimate <= NEARLY * least))
}

/// About the most links between two ranks: from the rank that is farthest from rank 0. `None` if a rank is not reached.
fn diameter(topology: &Topology) -> Option<u32> {
    let farthest = |from: Rank| {
        let tree = PathTree::new(topology, [from], |_| Some(1.0));
        tree.distance.iter().copied().zip(topology.ranks()).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (_, end) = farthest(Rank(0))?;
    farthest(end).map(|(distance, _)| distance).filter(|distance| distance.is_finite()).map(|distance| distance as u32)
}

/// The best schedule of all styles; empty if the problem is of another kind.
pub(super) fn propose(problem: &Problem, context: &Context<'_>) -> Result<Vec<Attempt>, SynthError> {
    if !is_suitable(problem) {
        return Ok(Vec::new());
    }
    let Some(back) = ways_back(&problem.topology) else { return Ok(Vec::new()) };
    let (_, Some(spread)) = halves(problem)? else { return Ok(Vec::new()) };
    if worthwhile(&spread, context).is_err() || !is_affordable(&spread, &Mirror::plain(&spread.topology), context) {
        return Ok(Vec::new());
    }
    let way = |(number, &idle): (usize, &f64)| packed(problem, &spread, &back, context, (idle, number as u64));
    let mut ways: Vec<PackedWays> = STYLES.par_iter().enumerate().filter_map(way).collect();
    // A first order tells which packings are worth a better one.
    ways.sort_by(|a, b| a.outlook.0.total_cmp(&b.outlook.0));
    ways.truncate(ORDERED);
    let attempts: Vec<Option<Attempt>> = ways.par_iter().map(|way| way.ordered(problem, context)).collect();
    let makespan = |attempt: &Attempt| attempt.schedule.as_ref().map_or(f64::INFINITY, |it| it.makespan().0);
    let best = attempts.into_iter().flatten().min_by(|a, b| makespan(a).total_cmp(&makespan(b)));
    Ok(best.into_iter().collect())
}

/// Packed trees, and the messages along them.
struct PackedWays {
    messages: Vec<Message>,
    /// The makespan of a simple order.
    outlook: Micros,
    idle: f64,
    note: String,
}

/// Packs in one style; `spread` is the second half of `problem`.
fn packed(
    problem: &Problem,
    spread: &Problem,
    back: &[LinkId],
    context: &Context<'_>,
    (idle, number): (f64, u64),
) -> Option<PackedWays> {
    let seed = context.options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let style = PackingStyle { idle, target: context.bound.0, both_ways: true };
    let mirror = Mirror::plain(&problem.topology);
    let (units, packing) = few_trees(spread, &context.deadline.part(PACKING_PART), &mirror, style, &mut random)?;
    let messages = messages(&problem.topology, back, &units, &packing);
    let busiest = packing.peak / context.bound.0;
    let note = format!("{}, busiest link or port {busiest:.4} of the bound", counted(units.all.len(), "tree"));
    let outlook = outlook(problem, &messages, context.deadline).unwrap_or(Micros(f64::INFINITY));
    Some(PackedWays { messages, outlook, idle, note })
}

impl PackedWays {
    fn ordered(&self, problem: &Problem, context: &Context<'_>) -> Option<Attempt> {
        let transfers = interleaved(problem, &self.messages, context.deadline).ok()?;
        let name = format!("{NAME}/both-ways/{}", self.idle);
        let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, &name);
        let stop = if context.deadline.has_passed() { StopReason::TimeLimit } else { StopReason::Done };
        Some(Attempt { name, schedule: Some(schedule), stop, note: Some(self.note.clone()) })
    }
}

/// All chunks up their trees and down again. The trees take turns chunk by chunk, so that no tree waits for another.
fn messages(topology: &Topology, back: &[LinkId], units: &TreeUnits, packing: &Packing) -> Vec<Message> {
    let hung: Vec<Vec<LinkId>> = packing.trees.iter().map(|tree| hung_up(topology, back, tree)).collect();
    let most = units.all.iter().map(|unit| unit.chunks.len()).max().unwrap_or(0);
    let mut all = Vec::new();
    for turn in 0..most {
        for (unit, downward) in units.all.iter().zip(&hung) {
            let Some(&chunk) = unit.chunks.get(turn) else { continue };
            let message =
                |link: LinkId, kind| Message { chunks: [chunk].into_iter().collect::<ChunkList>(), link, kind };
            all.extend(downward.iter().rev().map(|&link| message(back[link.index()], TransferKind::Reduce)));
            all.extend(downward.iter().map(|&link| message(link, TransferKind::Copy)));
        }
    }
    all
}

/// The links of a tree, directed away from its middle. Each comes after the link that feeds it, and higher branches
/// come first.
fn hung_up(topology: &Topology, back: &[LinkId], tree: &[LinkId]) -> Vec<LinkId> {
    let Some(&first) = tree.first() else { return Vec::new() };
    let mut neighbours: Vec<Vec<LinkId>> = vec![Vec::new(); topology.rank_count()];
    for &link in tree {
        neighbours[topology.link(link).from.index()].push(link);
        neighbours[topology.link(link).to.index()].push(back[link.index()]);
    }
    let path = |from: Rank| {
        let downward = walk(topology, &neighbours, from);
        let mut distance = vec![0.0; topology.rank_count()];
        let mut parent: Vec<Option<LinkId>> = vec![None; topology.rank_count()];
        for &id in &downward {
            let link = topology.link(id);
            distance[link.to.index()] = distance[link.from.index()] + hop(topology, id);
            parent[link.to.index()] = Some(id);
        }
        let ends = downward.iter().map(|&id| topology.link(id).to).chain([from]);
        let farthest = ends.max_by(|a, b| distance[a.index()].total_cmp(&distance[b.index()])).unwrap_or(from);
        (farthest, distance, parent)
    };
    // The middle of a longest path: from one end of the path to the other, then half-way back.
    let (one_end, ..) = path(topology.link(first).from);
    let (mut middle, distance, parent) = path(one_end);
    let half = distance[middle.index()] / 2.0;
    while let Some(link) = parent[middle.index()]
        && distance[topology.link(link).from.index()] >= half
    {
        middle = topology.link(link).from;
    }
    by_height(topology, walk(topology, &neighbours, middle))
}

/// The length of a hop in the height of a tree: the time per byte, so that slow links are far from the root.
fn hop(topology: &Topology, link: LinkId) -> f64 {
    topology.link(link).beta.0
}

/// The links of a tree away from `root`, breadth first.
fn walk(topology: &Topology, neighbours: &[Vec<LinkId>], root: Rank) -> Vec<LinkId> {
    let mut downward: Vec<LinkId> = neighbours[root.index()].clone();
    let mut next = 0;
    while let Some(&id) = downward.get(next) {
        let link = topology.link(id);
        downward.extend(neighbours[link.to.index()].iter().filter(|&&onward| topology.link(onward).to != link.from));
        next += 1;
    }
    downward
}

/// The same links level by level; on each level the links to the highest branches come first.
fn by_height(topology: &Topology, downward: Vec<LinkId>) -> Vec<LinkId> {
    let mut height = vec![0.0_f64; topology.rank_count()];
    let mut depth = vec![0_usize; topology.rank_count()];
    for &id in &downward {
        depth[topology.link(id).to.index()] = depth[topology.link(id).from.index()] + 1;
    }
    for &id in downward.iter().rev() {
        let link = topology.link(id);
        let through = height[link.to.index()] + hop(topology, id);
        height[link.from.index()] = height[link.from.index()].max(through);
    }
    let mut sorted = downward;
    sorted.sort_by(|&a, &b| {
        let (a, b) = (topology.link(a).to.index(), topology.link(b).to.index());
        depth[a].cmp(&depth[b]).then(height[b].total_cmp(&height[a])).then(a.cmp(&b))
    });
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::problem::{Deadline, SearchOptions};
    use schedule::{Demand, Request, verify};
    use std::sync::Arc;
    use topology::{Latency, Link, Micros, MicrosPerByte, Resource, ResourceId, TopologyParts};

    fn planned(topology: Topology, chunks: u32) -> (f64, f64) {
        let topology = Arc::new(topology);
        let request = Request::new(Collective::AllReduce, topology.rank_count(), 64_000_000).with_chunks(chunks);
        let problem = Problem::new(topology, Arc::new(Demand::new(request).expect("a request")));
        let (options, deadline) = (SearchOptions::default(), Deadline::default());
        let bound = bounds(&problem, &Deadline::default()).best().value;
        let context = Context::among_others(&options, &deadline, bound);
        let attempts = propose(&problem, &context).expect("a connected machine");
        let schedule = attempts.into_iter().find_map(|attempt| attempt.schedule).expect("a schedule");
        let makespan = schedule.makespan();
        verify(schedule, &problem.topology).expect("a right schedule");
        (makespan.0, bound.0)
    }

    /// A switch whose ports have the given GB/s, the same in and out.
    fn switch(ports: &[f64]) -> Topology {
        let beta = |gigabytes: f64| MicrosPerByte(1e-3 / gigabytes);
        let resource = |name: String, gigabytes: f64| Resource::new(name, beta(gigabytes));
        let resources = ports
            .iter()
            .enumerate()
            .flat_map(|(rank, &port)| ["in", "out"].map(|way| resource(format!("{rank}.{way}"), port)));
        let ranks = 0..ports.len();
        let pairs =
            ranks.clone().flat_map(|from| ranks.clone().map(move |to| (from, to))).filter(|(from, to)| from != to);
        let link = |(from, to): (usize, usize)| Link {
            from: Rank::from_index(from),
            to: Rank::from_index(to),
            alpha: Micros(1.0),
            beta: beta(ports[from].min(ports[to])),
            latency: Latency::Occupies,
            resources: [ResourceId(2 * from as u32 + 1), ResourceId(2 * to as u32)].into(),
        };
        let parts = TopologyParts {
            ranks: ports.len(),
            resources: resources.collect(),
            links: pairs.map(link).collect(),
            ..TopologyParts::default()
        };
        Topology::new(parts).expect("a machine")
    }

    #[test]
    fn a_slow_port_carries_each_byte_once_each_way() {
        // In a ring, or with equal shares, the slow port would carry nearly everything twice.
        let (makespan, bound) = planned(switch(&[100.0, 100.0, 100.0, 100.0, 25.0]), 4);
        assert!((bound - 2560.0).abs() < 5.0, "{bound}");
        assert!(makespan < 1.15 * bound, "{makespan} µs, bound {bound} µs");
    }

    #[test]
    fn trees_of_a_mesh_keep_their_links_busy() {
        // Before the order was justified, it was 1.26 of the bound; now it is 1.20.
        let (makespan, bound) = planned(topology::resolve("mesh2d:5x7").expect("a known topology"), 8);
        assert!(makespan < 1.22 * bound, "{makespan} µs, bound {bound} µs");
    }

    #[test]
    fn every_machine_with_ways_back_gets_a_right_schedule() {
        for spec in ["line:5", "torus2d:3x4", "dgx1", "ring:5,direction=both", "hypercube:3"] {
            planned(topology::resolve(spec).expect("a known topology"), 2);
        }
        assert!(ways_back(&topology::resolve("ring:4").expect("a known topology")).is_none());
    }

    #[test]
    fn the_time_and_the_latency_decide_how_fine_the_cut_is() {
        let options = SearchOptions::default();
        let promising = |spec: &str, size: u64, limit: Option<Duration>| {
            let topology = Arc::new(topology::resolve(spec).expect("a known topology"));
            let problems = [1, 2, 4, 8, 16].map(|count| {
                let request = Request::new(Collective::AllReduce, topology.rank_count(), size).with_chunks(count);
                Problem::new(topology.clone(), Arc::new(Demand::new(request).expect("a request")))
            });
            promising_count(&problems, &Deadline::after(limit, options.cancel.clone()))
        };
        assert_eq!(promising("mesh2d:5x7", 256_000_000, None), Some(4));
        // A chunk takes less than α.
        assert_eq!(promising("mesh2d:5x7", 100_000, None), Some(0));
        assert_eq!(promising("mesh2d:5x7", 256_000_000, Some(Duration::ZERO)), None);
        assert_eq!(promising("ring:4", 256_000_000, None), None, "there is no way back");
    }

    #[test]
    fn a_path_hangs_by_its_middle() {
        let topology = topology::resolve("line:5").expect("a known topology");
        let back = ways_back(&topology).expect("both directions");
        let to_the_right = |rank: u32| topology.between(Rank(rank), Rank(rank + 1)).next().expect("a neighbour");
        let hung = hung_up(&topology, &back, &[0, 1, 2, 3].map(to_the_right));
        let ends: Vec<(u32, u32)> = hung.iter().map(|&id| (topology.link(id).from.0, topology.link(id).to.0)).collect();
        assert_eq!(ends, [(2, 1), (2, 3), (1, 0), (3, 4)]);
    }
}
