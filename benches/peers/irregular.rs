//! Machines that no SPEC names: random graphs, grids without some cables, machines of unequal sizes, and groups of ranks. No two
//! links share anything, because TACOS knows nothing that is shared.

use super::Random;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use topology::{Link, Topology};

/// The values of random links: α in µs, and GB/s.
const ALPHAS: [f64; 3] = [0.7, 1.3, 2.0];
const BANDWIDTHS: [f64; 4] = [10.0, 25.0, 50.0, 100.0];
/// The links within a machine or group, and between two.
const INSIDE: (f64, f64) = (0.7, 50.0);
const BETWEEN: (f64, f64) = (2.0, 12.5);

/// A ring in both directions, and three further cables for each rank, at random.
pub(crate) fn random_graph(ranks: usize, seed: u64) -> Value {
    let mut random = Random(seed);
    let mut pairs: BTreeSet<(usize, usize)> = (0..ranks).map(|rank| ordered(rank, (rank + 1) % ranks)).collect();
    for rank in 0..ranks {
        for _ in 0..3 {
            let other = random.below(ranks as u64) as usize;
            if other != rank {
                pairs.insert(ordered(rank, other));
            }
        }
    }
    let cost = |_| (*random.pick(&ALPHAS), *random.pick(&BANDWIDTHS));
    let costs: Vec<(f64, f64)> = (0..2 * pairs.len()).map(cost).collect();
    let both = pairs.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
    topology(ranks, both.zip(costs).map(|((from, to), (alpha, bandwidth))| link(from, to, alpha, bandwidth)))
}

/// A machine without so many of its cables, each of which has two directions. The rest stays connected.
pub(crate) fn without_cables(whole: &Topology, cables: usize, seed: u64) -> Value {
    let mut random = Random(seed);
    let ends = |link: &Link| ordered(link.from.index(), link.to.index());
    let mut kept: BTreeSet<(usize, usize)> = whole.links().iter().map(ends).collect();
    let mut left = cables;
    while left > 0 {
        let cable = *kept.iter().nth(random.below(kept.len() as u64) as usize).expect("there are cables");
        kept.remove(&cable);
        if is_connected(whole.rank_count(), &kept) {
            left -= 1;
        } else {
            kept.insert(cable);
        }
    }
    let links = whole.links().iter().filter(|link| kept.contains(&ends(link)));
    let gigabytes = |link: &Link| 1e-3 / link.beta.0;
    let value = |of: &Link| link(of.from.index(), of.to.index(), of.alpha.0, gigabytes(of));
    topology(whole.rank_count(), links.map(value))
}

/// Groups of so many ranks, in which all pairs are linked. Between any two groups is one cable, and the ranks of a group take turns.
pub(crate) fn groups(count: usize, size: usize) -> Value {
    let inside = (0..count).flat_map(|group| all_pairs((group * size..(group + 1) * size).collect()));
    let links = inside.map(|(from, to)| link(from, to, INSIDE.0, INSIDE.1));
    // The rank of a group with the cable to another one: the k-th group after it belongs to the rank k mod size.
    let gate = |group: usize, other: usize| group * size + ((other + count - group) % count - 1) % size;
    let between = all_pairs((0..count).collect()).map(|(from, to)| (gate(from, to), gate(to, from)));
    topology(count * size, links.chain(between.map(|(from, to)| link(from, to, BETWEEN.0, BETWEEN.1))))
}

/// Machines of these sizes. All pairs of ranks of a machine are linked, and the first ranks of all machines.
pub(crate) fn unequal(sizes: &[usize]) -> Value {
    let firsts: Vec<usize> = sizes.iter().scan(0, |sum, size| Some(std::mem::replace(sum, *sum + size))).collect();
    let inside = firsts.iter().zip(sizes).flat_map(|(&first, size)| all_pairs((first..first + size).collect()));
    let links = inside.map(|(from, to)| link(from, to, INSIDE.0, INSIDE.1));
    let between = all_pairs(firsts.clone()).map(|(from, to)| link(from, to, BETWEEN.0, BETWEEN.1));
    topology(sizes.iter().sum(), links.chain(between))
}

fn all_pairs(ranks: Vec<usize>) -> impl Iterator<Item = (usize, usize)> {
    let others = ranks.clone();
    ranks
        .into_iter()
        .flat_map(move |from| others.clone().into_iter().filter(move |&to| to != from).map(move |to| (from, to)))
}

fn ordered(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

fn is_connected(ranks: usize, cables: &BTreeSet<(usize, usize)>) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([0]), vec![0]);
    while let Some(rank) = open.pop() {
        for &(a, b) in cables.iter().filter(|&&(a, b)| a == rank || b == rank) {
            let other = a + b - rank;
            if seen.insert(other) {
                open.push(other);
            }
        }
    }
    seen.len() == ranks
}

fn link(from: usize, to: usize, alpha: f64, gigabytes: f64) -> Value {
    json!({"from": from, "to": to, "alpha_us": alpha, "beta_us_per_byte": 1e-3 / gigabytes})
}

fn topology(ranks: usize, links: impl Iterator<Item = Value>) -> Value {
    json!({"format": "antiphon-topology/1", "name": "irregular", "ranks": ranks, "links": links.collect::<Vec<_>>()})
}
