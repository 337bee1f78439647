//! Algorithms for groups of ranks in groups of ranks: machines, and what is behind the switches of a network.
//!
//! The principal type is [`NestedGroups`]. Each member has a digit for each level of groups: which of the groups of the next smaller level
//! it is in. Groups are those behind resources, and those that links of small α join. Members that differ in one digit only exchange what
//! they have, level after level, the largest groups first [1]. So in an AllGather little data travels far, and in an AllToAll few messages
//! leave a group.
//!
//! In an AllGather a member doubles what it has, or gets it from all others of its level at once, which costs more α but uses all ways
//! between groups at the same time. Where such ways are narrow, members of a group begin with different other groups.
//!
//! [1] Träff and Hunold, "Decomposing MPI Collectives for Exploiting Multi-lane Communication", CLUSTER 2020.

use super::exchange::Hops;
use super::{Inapplicable, RoundHop, few_enough, kept_busy};
use crate::problem::Problem;
use crate::problem::groupings::{MOST_LINKS, RankGroups, groupings, numbered};
use petgraph::unionfind::UnionFind;
use std::collections::BTreeMap;
use topology::{Bytes, LinkId, Rank, Topology};

/// An AllToAll is cut into so many batches. Each is handed on inside of groups before the next one comes from other groups.
const BATCHES: usize = 4;
/// Where all members of a group send to the same other one first, that takes at least so many times as long as if they take turns.
const WORTH_A_TURN: f64 = 1.5;
/// Groups are made by so many different α, the smallest ones.
const MOST_ALPHAS: usize = 4;

/// Ranks that links of small α join, for each of the smallest α; none for very many links.
fn near(topology: &Topology) -> Vec<RankGroups> {
    if topology.links().len() > MOST_LINKS {
        return Vec::new();
    }
    let mut alphas: Vec<u64> = Vec::new();
    for link in topology.links() {
        let alpha = link.alpha.0.to_bits();
        if let Err(at) = alphas.binary_search(&alpha)
            && at < MOST_ALPHAS
        {
            alphas.insert(at, alpha);
            alphas.truncate(MOST_ALPHAS);
        }
    }
    let joined = |alpha: u64| {
        let mut sets = UnionFind::new(topology.rank_count());
        let links = topology.links().iter().filter(|link| link.alpha.0.to_bits() <= alpha);
        links.for_each(|link| _ = sets.union(link.from.index(), link.to.index()));
        numbered(&sets.into_labeling())
    };
    alphas.into_iter().map(joined).collect()
}

/// Members in groups of groups, all groups of a level of the same size.
struct NestedGroups {
    /// How many groups of the next smaller level a group has, those of single members first.
    sizes: Vec<usize>,
    /// For each member its digits, as one number: the first digit counts least.
    address: Vec<usize>,
    /// For each address the member.
    member: Vec<usize>,
}

impl NestedGroups {
    fn of(problem: &Problem) -> Result<Self, Inapplicable> {
        let members = &problem.demand.request().members;
        few_enough(members.len().saturating_mul(members.len() - 1))?;
        let of_members =
            |groups: RankGroups| numbered(&members.iter().map(|it| groups[it.index()]).collect::<Vec<_>>());
        let all = groupings(&problem.topology).into_iter().chain(near(&problem.topology));
        let mut found: Vec<RankGroups> = all.map(of_members).collect();
        found.push(vec![0; members.len()]);
        // From single members to all together.
        let mut inner: RankGroups = (0..members.len()).collect();
        let count = |groups: &RankGroups| groups.iter().max().map_or(0, |last| last + 1);
        found.sort_by_key(|groups| std::cmp::Reverse(count(groups)));
        let mut nested = Self { sizes: Vec::new(), address: vec![0; members.len()], member: Vec::new() };
        for outer in found {
            if nested.add(&inner, &outer) {
                inner = outer;
            }
        }
        if nested.sizes.len() < 2 {
            return Err("there are no groups of ranks of the same size".to_owned());
        }
        nested.member = vec![0; members.len()];
        nested.address.iter().enumerate().for_each(|(member, &address)| nested.member[address] = member);
        Ok(nested)
    }

    /// Adds a level of `outer` groups of `inner` ones, if each has equally many, and more than one.
    fn add(&mut self, inner: &RankGroups, outer: &RankGroups) -> bool {
        let mut inside: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (&inner, &outer) in inner.iter().zip(outer) {
            let groups = inside.entry(outer).or_default();
            if !groups.contains(&inner) {
                groups.push(inner);
            }
        }
        let (parts, all) =
            (inside.values().map(Vec::len).sum::<usize>(), inner.iter().max().map_or(0, |last| last + 1));
        let size = parts / inside.len();
        // Where an inner group is in several outer ones, there are more parts than groups.
        if parts != all || size < 2 || inside.values().any(|groups| groups.len() != size) {
            return false;
        }
        let place: BTreeMap<usize, usize> =
            inside.values().flat_map(|groups| groups.iter().enumerate().map(|(at, &group)| (group, at))).collect();
        let weight: usize = self.sizes.iter().product();
        self.address.iter_mut().zip(inner).for_each(|(address, inner)| *address += place[inner] * weight);
        self.sizes.push(size);
        true
    }

    fn weight(&self, level: usize) -> usize {
        self.sizes[..level].iter().product()
    }

    fn digit(&self, address: usize, level: usize) -> usize {
        address / self.weight(level) % self.sizes[level]
    }

    /// The address with another digit.
    fn with(&self, address: usize, level: usize, digit: usize) -> usize {
        address - self.digit(address, level) * self.weight(level) + digit * self.weight(level)
    }

    /// The address with a digit that is so many places higher, around.
    fn after(&self, address: usize, level: usize, places: usize) -> usize {
        self.with(address, level, (self.digit(address, level) + places) % self.sizes[level])
    }

    /// The address with a digit that is so many places lower, around.
    fn before(&self, address: usize, level: usize, places: usize) -> usize {
        self.after(address, level, self.sizes[level] - places)
    }

    /// The members that have this address but for the digits above a level, which may be any.
    fn above(&self, address: usize, level: usize) -> impl Iterator<Item = usize> + use<'_> {
        let weight = self.weight(level + 1);
        (address % weight..self.member.len()).step_by(weight).map(|address| self.member[address])
    }
}

/// What a member sends to the one that is `distance` places before it: the data of the members that are `after` it by these places.
struct PlacedBlocks {
    distance: usize,
    after: Vec<usize>,
}

/// Exchanges of a level, as steps of messages that may be on their way at the same time.
type LevelSteps = Vec<Vec<PlacedBlocks>>;

/// Each member gets in each step all that it lacks from one that is 2^r places after it, with falling r.
fn doubling(size: usize) -> LevelSteps {
    // By how many places those are after a member whose data it has.
    let mut has = vec![false; size];
    has[0] = true;
    let mut steps = Vec::new();
    let mut distance = size.next_power_of_two() / 2;
    while distance > 0 {
        let after: Vec<usize> = (0..size).filter(|&more| has[more] && !has[(more + distance) % size]).collect();
        after.iter().for_each(|more| has[(more + distance) % size] = true);
        steps.push(vec![PlacedBlocks { distance, after }]);
        distance /= 2;
    }
    steps
}

/// Each member gets from all others what they have.
fn all_at_once(size: usize) -> LevelSteps {
    vec![(1..size).map(|distance| PlacedBlocks { distance, after: vec![0] }).collect()]
}

/// Whether members of a group begin with different other groups at a level. If they all sent to the same group, they would wait for the
/// same way there, while the ways to others are free.
fn takes_turns(problem: &Problem, nested: &NestedGroups, level: usize, bytes: Bytes) -> bool {
    // At the lowest level a group is one member.
    if level == 0 {
        return false;
    }
    let together = all_at_once(nested.sizes[level]);
    let one_by_one = all_at_once(nested.sizes[level]).into_iter().flatten().map(|blocks| vec![blocks]).collect();
    let [together, one_by_one] =
        [together, one_by_one].map(|steps| level_time(problem, nested, (level, bytes), &steps));
    one_by_one > together * WORTH_A_TURN
}

/// About how long the exchanges of a level take, of so many bytes for each block: in each step, as long as the busiest link or resource.
fn level_time(problem: &Problem, nested: &NestedGroups, (level, block): (usize, Bytes), steps: &LevelSteps) -> f64 {
    let (topology, members) = (&*problem.topology, &problem.demand.request().members);
    let mut busy = vec![0.0_f64; topology.links().len() + topology.resources().len()];
    let mut used: Vec<usize> = Vec::new();
    let mut total = 0.0;
    for step in steps {
        let mut delay = 0.0_f64;
        for PlacedBlocks { distance, after } in step {
            let bytes = block * after.len() as f64;
            for from in 0..nested.member.len() {
                let to = nested.before(from, level, *distance);
                let [from, to] = [from, to].map(|at| members[nested.member[at]]);
                let allowed = topology.between(from, to).filter(|&id| problem.allows_link(id));
                let beta = |id: &LinkId| topology.link(*id).beta.0;
                let Some(id) = allowed.min_by(|a, b| beta(a).total_cmp(&beta(b))) else { return f64::INFINITY };
                let link = topology.link(id);
                delay = delay.max((link.transfer_time(bytes) - link.occupancy(bytes)).0);
                for (place, time) in kept_busy(topology, id, bytes) {
                    used.push(place);
                    busy[place] += time.0;
                }
            }
        }
        // A machine may have millions of links, and a step uses few of them.
        total += delay + used.drain(..).map(|place| std::mem::take(&mut busy[place])).fold(0.0, f64::max);
    }
    total
}

/// AllGather in exchanges between members that differ in one digit, that of the largest groups first. At each level they are those that
/// promise to be faster.
pub(super) fn all_gather(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let nested = NestedGroups::of(problem)?;
    let chunks = u64::from(problem.demand.request().chunks_per_rank);
    let mut hops = Hops::new(problem);
    let mut round = 0;
    for level in (0..nested.sizes.len()).rev() {
        let size = nested.sizes[level];
        let above: usize = nested.sizes[level + 1..].iter().product();
        let bytes = problem.demand.chunk_bytes() * (above as u64 * chunks) as f64;
        let [few, direct] = [doubling(size), all_at_once(size)];
        let [few_time, direct_time] = [&few, &direct].map(|steps| level_time(problem, &nested, (level, bytes), steps));
        let is_direct = direct_time < few_time;
        let turns = is_direct && takes_turns(problem, &nested, level, bytes);
        for step in if is_direct { direct } else { few } {
            let count = step.len();
            for (turn, PlacedBlocks { distance, after }) in step.iter().enumerate() {
                for (from, &member) in nested.member.iter().enumerate() {
                    let blocks = after.iter().flat_map(|more| nested.above(nested.after(from, level, *more), level));
                    let turn = if turns { (turn + from % nested.weight(level)) % count } else { turn };
                    let to = nested.member[nested.before(from, level, *distance)];
                    hops.blocks(round + turn as u32, blocks, member, to);
                }
            }
            round += count as u32;
        }
    }
    Ok(hops.hops)
}

/// AllToAll in which each chunk gets the digits of its goal, that of the largest groups first.
pub(super) fn all_to_all(problem: &Problem) -> Result<Vec<RoundHop>, Inapplicable> {
    let (demand, nested) = (&problem.demand, NestedGroups::of(problem)?);
    let levels = nested.sizes.len();
    few_enough(demand.chunks().len().saturating_mul(levels))?;
    let turns = |level: usize| {
        let chunks = nested.member.len() / nested.sizes[level] * demand.request().chunks_per_rank as usize;
        takes_turns(problem, &nested, level, demand.chunk_bytes() * chunks as f64)
    };
    let turns: Vec<bool> = (0..levels).map(turns).collect();
    let members = &demand.request().members;
    let position: BTreeMap<Rank, usize> = members.iter().enumerate().map(|(at, &rank)| (rank, at)).collect();
    let mut hops = Vec::new();
    for (id, chunk) in demand.chunk_ids().zip(demand.chunks()) {
        let (&[holder], Some(goal)) = (&chunk.holders[..], chunk.lacking().next()) else { continue };
        let [mut at, goal] = [holder, goal].map(|rank| nested.address[position[&rank]]);
        let mut batch = 0;
        for level in (0..levels).rev() {
            let (size, digit) = (nested.sizes[level], nested.digit(goal, level));
            let distance = (digit + size - nested.digit(at, level)) % size;
            if distance == 0 {
                continue;
            }
            let ahead = if turns[level] { at % nested.weight(level) } else { 0 };
            let turn = (distance - 1 + ahead) % (size - 1);
            if level + 1 == levels {
                batch = turn * BATCHES / size;
            }
            let to = nested.with(at, level, digit);
            let round = ((batch * levels + levels - 1 - level) * nested.member.len() + turn) as u32;
            let [from, next] = [at, to].map(|at| members[nested.member[at]]);
            hops.push(RoundHop { round, chunk: id, from, to: next });
            at = to;
        }
    }
    Ok(hops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::asked;
    use crate::strategies::classic::{on_links, together};
    use schedule::{Collective, Schedule, replay, verify};
    use topology::resolve;

    /// The makespan of a plan with these hops, verified.
    fn makespan(problem: &Problem, hops: Vec<RoundHop>) -> f64 {
        let messages = together(&on_links(problem, hops).expect("links between all ranks"));
        let transfers = replay(&problem.demand, &problem.topology, &messages).expect("an order");
        let plan = Schedule::new(&problem.topology, problem.demand.clone(), transfers, "nested");
        verify(plan, &problem.topology).expect("a right plan").schedule().makespan().0
    }

    #[test]
    fn members_of_all_addresses_have_all_digits() {
        for (spec, sizes) in [
            ("fat-tree:4x6", vec![6, 4]),
            ("fat-tree:3x4x5", vec![5, 4, 3]),
            ("h800x3", vec![8, 3]),
            ("dragonfly:2x3x2", vec![2, 3, 2]),
        ] {
            let machine = resolve(spec).expect("a family");
            let ranks = machine.rank_count();
            let nested = NestedGroups::of(&asked(machine, Collective::AllGather, 1 << 20)).expect("groups");
            assert_eq!(nested.sizes, sizes, "{spec}");
            for member in 0..ranks {
                let address = nested.address[member];
                assert_eq!(nested.member[address], member);
                for level in 0..sizes.len() {
                    assert_eq!(nested.with(address, level, nested.digit(address, level)), address);
                }
            }
        }
        let alone = asked(resolve("switch:6").expect("a family"), Collective::AllGather, 600);
        assert!(NestedGroups::of(&alone).is_err());
    }

    #[test]
    fn all_chunks_arrive_in_groups_of_any_size() {
        for spec in ["fat-tree:2x2", "fat-tree:4x6", "fat-tree:5x3", "fat-tree:3x4x5", "fat-tree:2x7"] {
            for (collective, hops) in [
                (Collective::AllGather, all_gather as fn(&Problem) -> Result<Vec<RoundHop>, Inapplicable>),
                (Collective::AllToAll, all_to_all),
            ] {
                let problem = asked(resolve(spec).expect("a family"), collective, 3 << 20);
                makespan(&problem, hops(&problem).expect("groups"));
            }
        }
    }

    /// 64 ranks get 62.5 KB from each other rank, which takes 1.25 µs for each: 78.75 µs. In the rounds between leaves, eight messages of
    /// a leaf begin by α after each other.
    #[test]
    fn little_travels_far() {
        let problem = asked(resolve("fat-tree:8x8").expect("a family"), Collective::AllGather, 4_000_000);
        let found = makespan(&problem, all_gather(&problem).expect("groups"));
        assert!((78.75..78.75 + 3.0 * 10.0 + 8.75 + 1.5).contains(&found), "{found}");
    }

    /// Between any two of eight groups of eight ranks is one way. All seven ways of a group carry its eight chunks at the same time, each
    /// for 8 · (1.5 + 1.25) µs; if all began with the same group, it would be seven times as long.
    #[test]
    fn all_ways_between_groups_are_used_at_the_same_time() {
        let problem = asked(resolve("dragonfly:8x2x4").expect("a family"), Collective::AllGather, 4_000_000);
        let found = makespan(&problem, all_gather(&problem).expect("groups"));
        assert!(found < 78.75 + 7.0 * 22.0, "{found}");
    }

    /// A leaf has 16 · 240 messages for others, of 1 µs each, if all pairs send directly. If each member sends what its leaf has for the
    /// members of its place elsewhere, there are 16 · 15.
    #[test]
    fn groups_exchange_few_messages() {
        let problem = asked(resolve("fat-tree:16x16").expect("a family"), Collective::AllToAll, 1 << 20);
        let found = makespan(&problem, all_to_all(&problem).expect("groups"));
        assert!(found < 500.0, "{found} µs, where direct messages take 16 · 240");
    }
}
