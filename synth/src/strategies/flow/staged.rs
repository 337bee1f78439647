//! Routes in stages: chunks with the same way are gathered, cross as one message, and are handed out.
//!
//! The principal function is [`ways`]. Members are put into groups, and groups into larger ones ([`Hierarchy`]): by α,
//! by β, by machine, or as blocks of neighbours. A chunk crosses between two groups in one of three ways: from the rank
//! that has it, to the rank that wants it, or between two ranks that stand for their groups. Before and after a
//! crossing it moves by the same rule one level lower. With blocks of r, r², … members this is Bruck's algorithm of
//! radix r; with machines it is known as hierarchical. All chunks on a link in the same stage are one message, so that
//! α is paid once per stage and not once per pair.

use crate::problem::Problem;
use crate::problem::distance::PathTree;
use schedule::{ChunkId, ChunkList, Message, TransferKind};
use std::collections::BTreeSet;
use topology::{Bytes, LinkId, Rank, Topology};

/// The most levels of groups, except for blocks, which may halve the members until two are left.
const LEVELS: usize = 3;
const RADICES: [usize; 5] = [2, 3, 4, 8, 16];
/// Up to this many levels of groups, every level has its own rule; with more, all levels have the same rule.
const MIXED: usize = 2;

/// Which rank carries a chunk from one group to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum CarrierRule {
    /// The rank that has it sends it across; there it is handed out.
    Source,
    /// It is gathered first, at the rank that sends it directly to its destination.
    Target,
    /// In each group, one rank carries all chunks for the other group.
    Leaders,
}

const RULES: [CarrierRule; 3] = [CarrierRule::Leaders, CarrierRule::Source, CarrierRule::Target];

/// Members in groups, and groups in larger groups.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Hierarchy {
    /// The groups of each level, the lowest level first; each group is ascending. The levels of single ranks and of all
    /// members are left out.
    levels: Vec<Vec<Vec<Rank>>>,
}

/// One way of moving everything: a grouping, a rule for each level, and one for the whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StagedWay {
    grouping: Hierarchy,
    /// One rule more than there are levels.
    rules: Vec<CarrierRule>,
}

/// A leg of a chunk from rank to rank, and its stage.
#[derive(Clone, Copy, Debug)]
struct StagedLeg {
    stage: u32,
    from: Rank,
    to: Rank,
}

/// All ways worth trying, the most promising first.
pub(super) fn ways(problem: &Problem) -> Vec<StagedWay> {
    let mut ways: Vec<StagedWay> = Vec::new();
    for grouping in groupings(problem) {
        let levels = grouping.levels.len();
        let mut rules: Vec<Vec<CarrierRule>> = match levels > MIXED {
            true => RULES.iter().map(|&rule| vec![rule; levels]).collect(),
            false => (0..RULES.len().pow(levels as u32)).map(|number| digits(number, levels)).collect(),
        };
        // Among single ranks nothing is gathered or handed out, so any rule will do.
        rules.iter_mut().for_each(|rules| rules.insert(0, CarrierRule::Source));
        ways.extend(rules.into_iter().map(|rules| StagedWay { grouping: grouping.clone(), rules }));
    }
    ways
}

/// The digits of `number` as rules, one for each of `levels`.
fn digits(number: usize, levels: usize) -> Vec<CarrierRule> {
    (0..levels as u32).map(|level| RULES[number / RULES.len().pow(level) % RULES.len()]).collect()
}

/// The nested groups by machine, by α and by β; some may be empty.
pub(super) fn chains(problem: &Problem) -> [Vec<Vec<Vec<Rank>>>; 3] {
    let members = &problem.demand.request().members;
    let machines = problem.topology.machines().iter().map(|machine| present(machine, members));
    let by_machine = nested(vec![machines.filter(|machine| !machine.is_empty()).collect()], members.len());
    [by_machine, by_cost(problem, |link| link.alpha.0), by_cost(problem, |link| link.beta.0)]
}

/// The groupings by cost of links and by machine, then blocks.
fn groupings(problem: &Problem) -> Vec<Hierarchy> {
    let members = &problem.demand.request().members;
    let mut found: Vec<Hierarchy> = Vec::new();
    let mut offer = |levels: Vec<Vec<Vec<Rank>>>| {
        let grouping = Hierarchy { levels };
        if !grouping.levels.is_empty() && !found.contains(&grouping) {
            found.push(grouping);
        }
    };
    for chain in &chains(problem) {
        offer(chain.clone());
        chain.iter().filter(|_| chain.len() > 1).for_each(|level| offer(vec![level.clone()]));
    }
    for radix in RADICES {
        let sizes = std::iter::successors(Some(radix), |size| size.checked_mul(radix));
        let blocks: Vec<Vec<Vec<Rank>>> = sizes
            .take_while(|&size| size < members.len())
            .map(|size| members.chunks(size).map(<[Rank]>::to_vec).collect())
            .collect();
        offer(blocks.clone());
        blocks.into_iter().for_each(|level| offer(vec![level]));
    }
    found
}

fn present(ranks: &[Rank], members: &[Rank]) -> Vec<Rank> {
    ranks.iter().copied().filter(|rank| members.binary_search(rank).is_ok()).collect()
}

/// The groups that links up to a cost threshold join, for every threshold that changes them.
fn by_cost(problem: &Problem, cost: impl Fn(&topology::Link) -> f64) -> Vec<Vec<Vec<Rank>>> {
    let (topology, members) = (&*problem.topology, &problem.demand.request().members);
    let usable = || topology.link_ids().filter(|&id| problem.allows_link(id)).map(|id| topology.link(id));
    let thresholds: BTreeSet<u64> = usable().map(|link| cost(link).to_bits()).collect();
    let joined = |threshold: f64| {
        let mut group: Vec<u32> = (0..topology.rank_count() as u32).collect();
        for link in usable().filter(|link| cost(link) <= threshold) {
            let (one, other) = (first_of(&mut group, link.from.0), first_of(&mut group, link.to.0));
            group[one.max(other) as usize] = one.min(other);
        }
        let mut groups: Vec<Vec<Rank>> = vec![Vec::new(); topology.rank_count()];
        members.iter().for_each(|rank| groups[first_of(&mut group, rank.0) as usize].push(*rank));
        groups.retain(|group| !group.is_empty());
        groups
    };
    let levels = thresholds.into_iter().take(2 * LEVELS).map(|bits| joined(f64::from_bits(bits)));
    nested(levels.collect(), members.len())
}

fn first_of(group: &mut [u32], mut rank: u32) -> u32 {
    while group[rank as usize] != rank {
        group[rank as usize] = group[group[rank as usize] as usize];
        rank = group[rank as usize];
    }
    rank
}

/// The levels that differ from the level below, from single ranks and from all members: at most a few, the lowest
/// first.
fn nested(levels: Vec<Vec<Vec<Rank>>>, members: usize) -> Vec<Vec<Vec<Rank>>> {
    let mut kept: Vec<Vec<Vec<Rank>>> = Vec::new();
    for level in levels {
        let below = kept.last().map_or(members, Vec::len);
        if level.len() > 1 && level.len() < below && kept.len() < LEVELS {
            kept.push(level);
        }
    }
    kept
}

/// Shortest paths between members.
pub(super) struct MemberPaths<'a> {
    topology: &'a Topology,
    /// For each rank, its tree; `None` for ranks that are not members.
    trees: Vec<Option<PathTree>>,
}

impl<'a> MemberPaths<'a> {
    /// The paths of `problem`; `None` if some member cannot be reached from another.
    pub(super) fn new(problem: &'a Problem) -> Option<Self> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let members = &demand.request().members;
        let total: f64 = demand.chunk_ids().map(|id| demand.bytes_of(id).0).sum();
        let bytes = Bytes(total / demand.chunks().len().max(1) as f64);
        let length = |id: LinkId| {
            let time = topology.link(id).transfer_time(bytes).0.max(f64::MIN_POSITIVE);
            problem.allows_link(id).then_some(time)
        };
        let mut trees: Vec<Option<PathTree>> = vec![None; topology.rank_count()];
        for &rank in members.iter() {
            let tree = PathTree::new(topology, [rank], length);
            if members.iter().any(|member| tree.distance[member.index()].is_infinite()) {
                return None;
            }
            trees[rank.index()] = Some(tree);
        }
        Some(Self { topology, trees })
    }

    fn path(&self, from: Rank, to: Rank) -> Vec<LinkId> {
        self.trees[from.index()].as_ref().map_or_else(Vec::new, |tree| tree.path_to(self.topology, to))
    }
}

/// A hop of a chunk: its stage, its place on the leg of that stage, and its link.
type StagedHop = (u32, u32, LinkId);

impl StagedWay {
    /// The messages of all chunks, stage by stage; in a stage, every rank sends to the next rank first.
    pub(super) fn messages(&self, problem: &Problem, paths: &MemberPaths<'_>) -> Vec<Message> {
        let (topology, demand) = (&*problem.topology, &*problem.demand);
        let plan = StagedPlan::new(self, topology.rank_count());
        let ranks = topology.rank_count() as u32;
        let mut sent: Vec<(u32, u32, u32, LinkId, ChunkId)> = Vec::new();
        let mut previous: Option<((Rank, Rank), Vec<StagedHop>)> = None;
        for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
            let Some(to) = chunk.lacking().next() else { continue };
            let ends = (chunk.holders[0], to);
            let hops = match previous.take() {
                Some((like, hops)) if like == ends => hops,
                _ => plan.hops(ends.0, ends.1, paths),
            };
            for &(stage, along, link) in &hops {
                let turn = (topology.link(link).to.0 + ranks - topology.link(link).from.0) % ranks;
                sent.push((stage, along, turn, link, id));
            }
            previous = Some((ends, hops));
        }
        sent.sort_unstable();
        let one = |a: &(u32, u32, u32, LinkId, ChunkId), b: &(u32, u32, u32, LinkId, ChunkId)| {
            (a.0, a.1, a.3) == (b.0, b.1, b.3)
        };
        let message = |all: &[(u32, u32, u32, LinkId, ChunkId)]| Message {
            chunks: all.iter().map(|sent| sent.4).collect::<ChunkList>(),
            link: all[0].3,
            kind: TransferKind::Copy,
        };
        sent.chunk_by(one).map(message).collect()
    }
}

/// A way with its lookup tables.
struct StagedPlan<'a> {
    way: &'a StagedWay,
    /// By level and rank: the rank's group, and its place there.
    place: Vec<Vec<(u32, u32)>>,
    /// For each level, the number of stages of a move within a group; level 0 are single ranks.
    stages: Vec<u32>,
}

impl<'a> StagedPlan<'a> {
    fn new(way: &'a StagedWay, ranks: usize) -> Self {
        let place = |groups: &Vec<Vec<Rank>>| {
            let mut place = vec![(0, 0); ranks];
            for (number, group) in (0..).zip(groups) {
                (0..).zip(group).for_each(|(position, rank)| place[rank.index()] = (number, position));
            }
            place
        };
        let place = way.grouping.levels.iter().map(place).collect();
        let mut stages = vec![1];
        for rule in &way.rules[1..] {
            let below = stages[stages.len() - 1];
            stages.push(match rule {
                CarrierRule::Source | CarrierRule::Target => below + 1,
                CarrierRule::Leaders => 2 * below + 1,
            });
        }
        Self { way, place, stages }
    }

    /// The links from one rank to another. A detour that comes back to a rank is cut out.
    fn hops(&self, from: Rank, to: Rank, paths: &MemberPaths<'_>) -> Vec<StagedHop> {
        let mut legs = Vec::new();
        self.legs(self.stages.len() - 1, 0, from, to, &mut legs);
        let mut hops: Vec<StagedHop> = Vec::new();
        let mut passed = vec![from];
        for StagedLeg { stage, from, to } in legs {
            for (along, link) in (0..).zip(paths.path(from, to)) {
                let next = paths.topology.link(link).to;
                match passed.iter().position(|&rank| rank == next) {
                    Some(before) => {
                        hops.truncate(before);
                        passed.truncate(before + 1);
                    }
                    None => {
                        hops.push((stage, along, link));
                        passed.push(next);
                    }
                }
            }
        }
        hops
    }

    /// The legs of a move within a group of `level`, from stage `first` on.
    fn legs(&self, level: usize, first: u32, from: Rank, to: Rank, legs: &mut Vec<StagedLeg>) {
        if from == to {
            return;
        }
        let Some(below) = level.checked_sub(1) else { return legs.push(StagedLeg { stage: first, from, to }) };
        let rule = self.way.rules[level];
        let gathers = rule != CarrierRule::Source;
        let crossing = if gathers { first + self.stages[below] } else { first };
        let ((here, my_place), (there, your_place)) = (self.place[below][from.index()], self.place[below][to.index()]);
        if here == there {
            // Within a lower group, the chunk moves while other chunks are handed out, because gathering is more
            // urgent. With `Target` nothing is handed out, so it moves while others are gathered.
            let stage = if rule == CarrierRule::Target { first } else { crossing + 1 };
            return self.legs(below, stage, from, to, legs);
        }
        let groups = &self.way.grouping.levels[below];
        let (near, far) = (&groups[here as usize], &groups[there as usize]);
        let (out, into) = match rule {
            CarrierRule::Source => (from, far[my_place as usize % far.len()]),
            CarrierRule::Target => (near[your_place as usize % near.len()], to),
            CarrierRule::Leaders => (near[there as usize % near.len()], far[here as usize % far.len()]),
        };
        self.legs(below, first, from, out, legs);
        legs.push(StagedLeg { stage: crossing, from: out, to: into });
        self.legs(below, crossing + 1, into, to, legs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Constraints;
    use schedule::{Collective, Demand, RankSet, Request, Schedule, makespan, replay, verify};
    use std::sync::Arc;
    use topology::resolve;

    fn all_to_all(spec: &str, size: u64, members: Option<&[u32]>) -> Problem {
        let topology = Arc::new(resolve(spec).expect("a known topology"));
        let mut request = Request::new(Collective::AllToAll, topology.rank_count(), size).with_chunks(2);
        if let Some(members) = members {
            request.members = members.iter().copied().map(Rank).collect::<RankSet>();
        }
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// The verified makespans of all ways.
    fn makespans(problem: &Problem) -> Vec<f64> {
        let paths = MemberPaths::new(problem).expect("a connected topology");
        let time = |way: StagedWay| {
            let messages = way.messages(problem, &paths);
            let mut transfers = replay(&problem.demand, &problem.topology, &messages)
                .unwrap_or_else(|error| panic!("{way:?}: {error}"));
            let makespan = makespan(&transfers).0;
            transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
            let schedule = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "staged");
            verify(schedule, &problem.topology).unwrap_or_else(|rejection| panic!("{way:?}: {rejection}"));
            makespan
        };
        ways(problem).into_iter().map(time).collect()
    }

    #[test]
    fn every_way_is_right_on_every_kind_of_machine() {
        for (spec, members) in [
            ("fat-tree:2x3x2", None),
            ("dragonfly:3x2x2", None),
            ("dgx2x2", Some(&[0u32, 1, 2, 17, 18, 19, 20][..])),
            ("ring:7", None),
            ("mesh2d:3x4", None),
            ("switch:11", None),
        ] {
            let problem = all_to_all(spec, 1 << 20, members);
            assert_eq!(*problem.constraints, Constraints::none());
            assert!(makespans(&problem).len() > 3, "{spec}");
        }
    }

    #[test]
    fn blocks_of_two_are_brucks_algorithm() {
        // Sixteen members, four exchanges, and hardly any bytes.
        let problem = all_to_all("switch:16,alpha=1us,bandwidth=100GBps", 16, None);
        let best = makespans(&problem).into_iter().fold(f64::INFINITY, f64::min);
        assert!(best < 4.01, "{best} µs");
    }

    #[test]
    fn leaders_cross_where_up_links_are_dear() {
        // Each pod sends one message to each of three other pods; at both ends, four ranks and four leaves are reached.
        let problem = all_to_all("fat-tree:4x4x4,alpha=1us", 64, None);
        let all = makespans(&problem);
        let best = all.iter().copied().fold(f64::INFINITY, f64::min);
        // With one message per pair of ranks, 16·48 messages would pass the up-links of a pod.
        assert!(best < 60.0, "{best} µs");
    }
}
