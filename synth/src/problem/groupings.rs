//! Groups of ranks that a machine is made of: its machines, and the ranks behind switches.
//!
//! The principal function is [`groupings`].

use super::sets::by_first;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Rank, Topology};

/// The most groupings by switches.
const SWITCHED: usize = 4;
/// The most links of a machine that is examined: some tenths of a second.
pub(crate) const MOST_LINKS: usize = 1 << 22;

/// The group of each rank, numbered from 0 without gaps.
pub(crate) type RankGroups = Vec<usize>;

/// Every rank alone, the machines, and the ranks behind one resource, where these are groups; none for very many links.
pub(crate) fn groupings(topology: &Topology) -> Vec<RankGroups> {
    if topology.links().len() > MOST_LINKS {
        return Vec::new();
    }
    let ranks = topology.rank_count();
    let mut found: Vec<RankGroups> = vec![(0..ranks).collect()];
    found.push(by_first(topology.ranks().map(|rank| topology.machine_of(rank)).collect()));
    let mut behind: Vec<Vec<Rank>> = vec![Vec::new(); topology.resources().len()];
    for link in topology.links() {
        for &resource in &link.resources {
            behind[resource.index()].push(link.to);
        }
    }
    let sets = behind.into_iter().map(|mut set| {
        set.sort_unstable();
        set.dedup();
        set
    });
    // Sets of one size that leave no rank out and share none are the ranks behind the switches of one level.
    let sets: BTreeSet<Vec<Rank>> = sets.filter(|set| (2..ranks).contains(&set.len())).collect();
    let mut by_size: BTreeMap<usize, Vec<Vec<Rank>>> = BTreeMap::new();
    sets.into_iter().for_each(|set| by_size.entry(set.len()).or_default().push(set));
    for sets in by_size.into_values().filter(|sets| sets.iter().map(Vec::len).sum::<usize>() == ranks) {
        let mut group = vec![usize::MAX; ranks];
        sets.iter().enumerate().for_each(|(at, set)| set.iter().for_each(|rank| group[rank.index()] = at));
        let is_whole = group.iter().all(|&group| group < ranks);
        found.extend((is_whole && found.len() < 2 + SWITCHED).then(|| by_first(group)));
    }
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|grouping| numbered(&grouping)).filter(|grouping| grouping.iter().any(|&it| it > 0)).collect()
}

/// The same groups with numbers from 0 without gaps.
pub(crate) fn numbered(grouping: &[usize]) -> RankGroups {
    let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
    let mut number = |group: &usize| {
        let next = numbers.len();
        *numbers.entry(*group).or_insert(next)
    };
    grouping.iter().map(&mut number).collect()
}
