//! Finds which ranks share a machine, from the cost of messages between them.
//!
//! The principal function is [`boundaries`]; it is used when the runtime does not know the machines. Ranks are joined
//! by pairs in the order of their cost, as in Kruskal's algorithm for spanning trees. Machines are the groups just
//! before a step at which pairs become clearly slower. So machines may be unequal in size and in speed, as long as the
//! network between them is slower than the slowest pair inside.

use super::scout::Glimpse;
use crate::Rank;
use crate::connectivity::rank_sets;
use crate::rounds::Pair;
use petgraph::unionfind::UnionFind;
use std::collections::BTreeMap;

/// Pairs whose cost differs by no more are of one kind.
const STEP: f64 = 1.4;
/// The message by which pairs are compared: long enough for bandwidth to count, short enough for α to.
const COMPARED: f64 = 256.0 * 1024.0;

/// The machines, by first rank; one if there is no clear boundary.
pub(super) fn boundaries(ranks: usize, pairs: &BTreeMap<Pair, Glimpse>) -> Vec<Vec<Rank>> {
    let cost = |glimpse: &Glimpse| glimpse.alpha + COMPARED * glimpse.slope.beta;
    let mut edges: Vec<(f64, Pair)> = pairs.iter().map(|(pair, glimpse)| (cost(glimpse), *pair)).collect();
    edges.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut all = UnionFind::new(ranks);
    let tree: Vec<f64> =
        edges.iter().filter(|(_, pair)| all.union(pair.from.index(), pair.to.index())).map(|(cost, _)| *cost).collect();
    let steps = tree.windows(2).filter(|step| step[1] >= STEP * step[0]).map(|step| step[0]);
    let candidates =
        steps.filter_map(|inside| MachinePartition::new(ranks, &edges, inside)).filter(|cut| cut.apart >= STEP);
    // Of several such steps, the one that leaves the fewest ranks alone.
    let best = candidates.min_by(|one, other| one.lonely.cmp(&other.lonely).then(other.apart.total_cmp(&one.apart)));
    best.map_or_else(|| vec![(0..ranks).map(Rank::from_index).collect()], |best| best.machines)
}

/// Ranks joined by all pairs up to some cost.
struct MachinePartition {
    machines: Vec<Vec<Rank>>,
    /// How many ranks are alone.
    lonely: usize,
    /// The smallest factor, over all machines, by which the quickest pair that leaves a machine is slower than the
    /// pairs that joined its ranks.
    apart: f64,
}

impl MachinePartition {
    /// `edges` ascend; `None` if all ranks are alone.
    fn new(ranks: usize, edges: &[(f64, Pair)], inside: f64) -> Option<Self> {
        let mut groups = UnionFind::new(ranks);
        // For each root: the last cost at which it was joined, and the first that leaves it.
        let mut height = vec![0.0; ranks];
        for (cost, pair) in edges.iter().take_while(|(cost, _)| *cost <= inside) {
            if groups.union(pair.from.index(), pair.to.index()) {
                height[groups.find(pair.from.index())] = *cost;
            }
        }
        let mut leaving = vec![f64::INFINITY; ranks];
        for (cost, pair) in edges {
            let (one, other) = (groups.find(pair.from.index()), groups.find(pair.to.index()));
            for root in [one, other].into_iter().filter(|_| one != other) {
                leaving[root] = leaving[root].min(*cost);
            }
        }
        let roots: Vec<usize> = (0..ranks).filter(|&rank| height[rank] > 0.0 && groups.find(rank) == rank).collect();
        let apart = roots.iter().map(|&root| leaving[root] / height[root]).min_by(f64::total_cmp)?;
        let machines = rank_sets(groups);
        let lonely = machines.iter().filter(|machine| machine.len() == 1).count();
        Some(Self { machines, lonely, apart })
    }
}

/// The groups of `members` that the pairs `together` join, by first rank; groups of one rank are left out.
pub(super) fn joined(ranks: usize, together: &[Pair]) -> Vec<Vec<Rank>> {
    let mut groups = UnionFind::new(ranks);
    together.iter().for_each(|pair| {
        groups.union(pair.from.index(), pair.to.index());
    });
    rank_sets(groups).into_iter().filter(|group| group.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::super::bench::Slope;
    use super::*;

    /// Costs by the machines of both ranks; `inside` is µs/MB within each.
    fn found(homes: &[usize], inside: &[f64], between: f64) -> Vec<Vec<u32>> {
        let mut pairs = BTreeMap::new();
        for from in 0..homes.len() {
            for to in (0..homes.len()).filter(|to| *to != from) {
                let near = homes[from] == homes[to];
                // A little uneven, and different in the two directions.
                let beta =
                    if near { inside[homes[from]] } else { between } * (1.0 + 0.01 * ((from * 7 + to) % 11) as f64);
                let slope = Slope { beta: beta * 1e-6, margin: 0.0 };
                let glimpse = Glimpse { long: 0, alpha: 2.0, slope, lasting: slope.beta };
                pairs.insert(Pair::new(from, to), glimpse);
            }
        }
        let machines = boundaries(homes.len(), &pairs);
        machines.into_iter().map(|machine| machine.into_iter().map(|rank| rank.0).collect()).collect()
    }

    #[test]
    fn unequal_machines_are_told_apart_in_any_numbering() {
        assert_eq!(found(&[0, 0, 0, 0, 1, 1, 2], &[20.0, 40.0, 0.0], 110.0), [vec![0, 1, 2, 3], vec![4, 5], vec![6]]);
        assert_eq!(found(&[0, 1, 0, 1, 2, 0], &[20.0, 60.0, 0.0], 100.0), [vec![0, 2, 5], vec![1, 3], vec![4]]);
        assert_eq!(found(&[0, 0, 0, 0, 0], &[20.0], 0.0), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(found(&[0, 1, 2], &[1.0; 3], 100.0), [vec![0, 1, 2]], "nothing to tell them apart by");
        assert_eq!(boundaries(1, &BTreeMap::new()), [[Rank(0)]]);
    }
}
