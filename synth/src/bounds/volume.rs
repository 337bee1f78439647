//! The bound by volume: the bytes of all deliveries together, over all links together.
//!
//! A copied chunk is delivered once to every rank that lacks it. A sum of h contributions takes h − 1 deliveries until
//! it is complete at some rank for the first time. Then it takes one more for every other rank that wants it. No
//! delivery is both, because no rank can pass on a complete sum before it is complete somewhere. For AllReduce this
//! gives 2·(k − 1)·M over the total bandwidth.
//!
//! All of this also holds between groups of ranks, over the links from one group to another: deliveries inside a group
//! only help. So the bound is computed for single ranks, for machines, and for the groups that fast links join.

use super::{Bound, Certificate, Scope, capacity::capacity};
use crate::problem::sets::by_first;
use crate::problem::{Deadline, Problem};
use petgraph::unionfind::UnionFind;
use schedule::{Chunk, RankSet};
use std::collections::BTreeMap;
use topology::{LinkId, Micros, MicrosPerByte, Rank};

/// Links whose β differ by less than this factor count as equally fast: measured rates are never quite equal.
const SPEEDS: f64 = 1.25;
/// The most groupings by speed; if there are more, those by the slower links are kept.
const GROUPINGS: usize = 6;

/// The strongest bound over all groupings; `None` where nothing has to move. The coarsest and the finest grouping are
/// always tried, even without time, because this bound often binds.
pub(super) fn volume(problem: &Problem, deadline: &Deadline) -> Option<Bound> {
    let groupings = groupings(problem);
    let ends = [0, groupings.len() - 1];
    let in_time = groupings.iter().enumerate().filter(|(at, _)| ends.contains(at) || !deadline.has_passed());
    let bounds = in_time.filter_map(|(_, grouping)| between(problem, grouping));
    bounds.max_by(|a, b| a.value.total_cmp(&b.value))
}

/// The group of each rank.
type Grouping = Vec<usize>;

fn between(problem: &Problem, group: &Grouping) -> Option<Bound> {
    let (topology, demand) = (&*problem.topology, &*problem.demand);
    let mut meetings = DeliveryCounter::new(group);
    let of = |(id, chunk)| meetings.deliveries(chunk) as f64 * demand.bytes_of(id).0;
    let bytes: f64 = demand.chunk_ids().zip(demand.chunks()).map(of).sum();
    let crosses = |&id: &LinkId| {
        let link = topology.link(id);
        problem.allows_link(id) && group[link.from.index()] != group[link.to.index()]
    };
    let links: Vec<LinkId> = topology.link_ids().filter(crosses).collect();
    let alpha = links.iter().map(|&link| topology.link(link).alpha.0).fold(f64::INFINITY, f64::min);
    let capacity = capacity(topology, &links);
    if bytes == 0.0 || capacity == 0.0 {
        return None;
    }
    let value = Micros(alpha + bytes / capacity);
    let certificate = Certificate::Volume { bytes, capacity: MicrosPerByte(1.0 / capacity), groups: members(group) };
    Some(Bound { name: "volume", scope: Scope::AnyChunking, value, certificate })
}

/// The ranks of each group; empty where every rank is its own group.
fn members(group: &Grouping) -> Vec<Vec<Rank>> {
    let mut groups: BTreeMap<usize, Vec<Rank>> = BTreeMap::new();
    group.iter().enumerate().for_each(|(rank, &group)| groups.entry(group).or_default().push(Rank::from_index(rank)));
    if groups.len() == group.len() { Vec::new() } else { groups.into_values().collect() }
}

/// The groupings: every rank alone, the machines, and the ranks that links above some speed join.
fn groupings(problem: &Problem) -> Vec<Grouping> {
    let topology = &*problem.topology;
    let ranks = topology.rank_count();
    let machines = topology.ranks().map(|rank| topology.machine_of(rank)).collect();
    let mut found = vec![(0..ranks).collect(), by_first(machines)];
    let links = || topology.link_ids().filter(|&id| problem.allows_link(id)).map(|id| topology.link(id));
    // Of millions of links, most are as fast as the one before. No β is negative, so its bits are in its order.
    let mut rates: Vec<u64> = Vec::new();
    for rate in links().map(|link| link.beta.0.to_bits()) {
        if rates.last() != Some(&rate) {
            rates.push(rate);
        }
    }
    rates.sort_unstable();
    rates.dedup();
    let mut joined = UnionFind::new(ranks);
    let mut by_speed = Vec::new();
    for speed in rates.chunk_by(|&a, &b| f64::from_bits(b) <= f64::from_bits(a) * SPEEDS) {
        let mut is_new = false;
        for link in links().filter(|link| (speed[0]..=speed[speed.len() - 1]).contains(&link.beta.0.to_bits())) {
            is_new |= joined.union(link.from.index(), link.to.index());
        }
        if is_new {
            // Fast links often join exactly the machines; such duplicates are removed below.
            by_speed.push(by_first(joined.clone().into_labeling()));
        }
    }
    // The last grouping joins all ranks that can be joined.
    found.extend(by_speed.into_iter().rev().skip(1).take(GROUPINGS));
    found.sort_unstable();
    found.dedup();
    found
}

/// Counts deliveries between groups. Chunks that follow each other are often held or wanted by the same ranks; their
/// groups are then looked up only once.
struct DeliveryCounter<'a> {
    holding: DistinctGroups<'a>,
    wanting: DistinctGroups<'a>,
    /// How many groups both hold and want.
    both: usize,
}

impl<'a> DeliveryCounter<'a> {
    fn new(group: &'a Grouping) -> Self {
        Self { holding: DistinctGroups::new(group), wanting: DistinctGroups::new(group), both: 0 }
    }

    /// The least number of times that a chunk must be delivered from one group to another.
    fn deliveries(&mut self, chunk: &Chunk) -> usize {
        let is_new = [self.holding.turn_to(&chunk.holders), self.wanting.turn_to(&chunk.wanted_by)];
        if is_new.contains(&true) {
            self.both = self.holding.shared_with(&self.wanting);
        }
        let (holding, wanting) = (self.holding.distinct.len(), self.wanting.distinct.len());
        if !chunk.combine {
            return wanting - self.both;
        }
        if wanting == 0 {
            return 0;
        }
        // The first group with the complete sum saves two deliveries if it both contributes and wants.
        let saved = if self.both > 0 { 2 } else { 1 };
        (holding + wanting).saturating_sub(saved)
    }
}

struct DistinctGroups<'a> {
    group: &'a Grouping,
    ranks: RankSet,
    distinct: Vec<usize>,
    /// For each group, the number of the last set that it was in.
    seen: Vec<u64>,
    set: u64,
}

impl<'a> DistinctGroups<'a> {
    fn new(group: &'a Grouping) -> Self {
        let ranks = RankSet::from_iter([]);
        Self { group, ranks, distinct: Vec::new(), seen: vec![0; group.len()], set: 0 }
    }

    /// Looks up the groups of `ranks`; `false` if they are known already.
    fn turn_to(&mut self, ranks: &RankSet) -> bool {
        if self.ranks == *ranks {
            return false;
        }
        self.ranks = ranks.clone();
        self.set += 1;
        self.distinct.clear();
        for rank in ranks.iter() {
            let group = self.group[rank.index()];
            if std::mem::replace(&mut self.seen[group], self.set) != self.set {
                self.distinct.push(group);
            }
        }
        true
    }

    fn has(&self, group: usize) -> bool {
        self.set > 0 && self.seen[group] == self.set
    }

    fn shared_with(&self, other: &Self) -> usize {
        let (few, many) = if self.distinct.len() <= other.distinct.len() { (self, other) } else { (other, self) };
        few.distinct.iter().filter(|&&group| many.has(group)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::bounds;
    use crate::planner::synthesize;
    use crate::problem::SearchOptions;
    use crate::problem::by_hand::random_machine;
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use std::time::Duration;
    use topology::{Latency, Link, Resource, ResourceId, Topology, TopologyParts};

    fn problem(topology: Arc<Topology>, collective: Collective, bytes: u64) -> Problem {
        let request = Request::new(collective, topology.rank_count(), bytes);
        Problem::new(topology, Arc::new(Demand::new(request).expect("a valid request")))
    }

    /// Ranks that all reach each other through ports of 1 byte per µs: port 2i leaves NIC i, port 2i + 1 enters it.
    /// Ranks of one NIC reach each other by faster links.
    fn behind(nics: &[u32]) -> Arc<Topology> {
        let pairs = (0..nics.len()).flat_map(|from| (0..nics.len()).map(move |to| (from, to)));
        let link = |(from, to): (usize, usize)| {
            let mut ports = vec![ResourceId(2 * nics[from]), ResourceId(2 * nics[to] + 1)];
            ports.sort_unstable();
            let is_near = nics[from] == nics[to];
            Link {
                from: Rank::from_index(from),
                to: Rank::from_index(to),
                alpha: Micros(1.0),
                beta: MicrosPerByte(if is_near { 0.01 } else { 1.0 }),
                latency: Latency::Pipelines,
                resources: if is_near { [].into() } else { ports.into() },
            }
        };
        let links = pairs.filter(|(from, to)| from != to).map(link).collect();
        let ports = 2 * (1 + nics.iter().max().expect("a NIC"));
        let resource = |id| Resource::new(format!("port {id}"), MicrosPerByte(1.0));
        let parts = TopologyParts { ranks: nics.len(), links, ..TopologyParts::default() };
        let resources = (0..ports).map(resource).collect();
        Arc::new(Topology::new(TopologyParts { resources, ..parts }).expect("a valid topology"))
    }

    #[test]
    fn what_shares_a_port_counts_once() {
        // With k NICs, an AllReduce delivers 2·(k − 1) times what it reduces, over k ports at once. There are groups
        // only where ranks share a NIC.
        for (nics, groups) in [(&[0, 1, 2, 3][..], 0), (&[0, 1, 2, 2], 3), (&[0, 0, 0, 1, 1, 2, 2], 3)] {
            let bound = volume(&problem(behind(nics), Collective::AllReduce, 8400), &Deadline::default())
                .expect("something moves");
            let count = f64::from(1 + nics.iter().max().expect("a NIC"));
            let expected = 1.0 + 2.0 * (count - 1.0) * 8400.0 / count;
            assert!((bound.value.0 - expected).abs() < 1e-6, "{nics:?}: {} µs, not {expected}", bound.value);
            let Certificate::Volume { groups: found, .. } = bound.certificate else { panic!("{bound:?}") };
            assert_eq!(found.len(), groups, "{nics:?}: {found:?}");
        }
    }

    #[test]
    fn no_schedule_of_a_random_machine_is_faster() {
        // A computer that does much else may find nothing in the first time limit.
        let limits = || (0..6).map(|doublings| Some(Duration::from_millis(100 << doublings)));
        for seed in 0..20 {
            let topology = Arc::new(random_machine(seed));
            for collective in [Collective::AllGather, Collective::AllReduce, Collective::ReduceScatter] {
                let problem = problem(topology.clone(), collective, 60_000);
                let bound = bounds(&problem, &Deadline::default()).best_at_any_chunking();
                let within = |time_limit| {
                    let options = SearchOptions { time_limit, ..SearchOptions::default() };
                    synthesize(std::slice::from_ref(&problem), &options, &|_| {}).ok()
                };
                let found = limits().find_map(within).expect("a schedule");
                let makespan = found.schedule.schedule().makespan();
                assert!(makespan.0 >= bound.value.0 * (1.0 - 1e-9), "{collective} on machine {seed}: {bound:?}");
            }
        }
    }
}
