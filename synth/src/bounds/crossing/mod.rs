//! The bound by crossings: what must come into a set of ranks, message after message.
//!
//! A set of ranks S wants chunks that no rank of S holds. Each of them crosses into S for the first time over some link. Each such
//! link is a *server*, and so are together all such links that share a resource. A server carries one message at a time: one of k
//! chunks keeps it for its setup (α, where α occupies) and k·β·b. A chunk leaves no sooner than it can have come to the sender over
//! links outside of S, and behind the cut it has to go on to the rank that wants it. So no schedule ends before the best order of
//! batches on these servers does, in which each chunk has a head and a tail. It is found exactly ([`batches`]).
//!
//! A sender must itself receive, over its own links, what it sends on. So the time at which it can have some chunks together is the
//! end of the best order of batches into the sender, over links outside of S, where each chunk has its head only. This counts where S
//! and the sender have few enough chunks, and is what makes the bound tight for small machines.
//!
//! Sums that several ranks want may cross in parts; [`sums`] says what that changes.
//!
//! Where there are too many classes of chunks, similar ones get the least heads and tails of both, which makes the bound weaker.

mod batches;
mod distances;
mod relay;
mod side;
mod sums;
#[cfg(test)]
mod tests;

use super::cut::machine_unions;
use super::{Bound, RankClasses, Scope};
use crate::problem::{Deadline, Problem};
use distances::Distances;
use side::SetCrossing;
use std::sync::Arc;
use sums::SharedSums;
use topology::{Micros, Rank};

/// All sets of ranks are tried where there are no more ranks than this.
const FEW_RANKS: usize = 8;
/// Problems with more chunks have other bounds.
const MOST_CHUNKS: usize = 1 << 12;
/// And so have machines with more links.
pub(super) const MOST_LINKS: usize = 1 << 13;
/// A bound that is no later than another one by this much (relative) is the same.
const SAME: f64 = 1e-9;

/// The effort that the bound may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossingEffort {
    /// The most pairs of combinations and parts of them, for one set of ranks.
    pairs: f64,
    /// The most such pairs that are looked at in all, or what takes as long.
    work: f64,
}

impl CrossingEffort {
    /// Some hundredths of a second.
    pub(crate) const QUICK: Self = Self { pairs: 2e4, work: 5e6 };
    /// About a second.
    pub(crate) const THOROUGH: Self = Self { pairs: 4e5, work: 4e8 };
}

/// The strongest bound of all sets that are tried, if it is more than `least`.
pub(super) fn crossing(
    problem: &Problem,
    classes: &RankClasses,
    effort: CrossingEffort,
    least: Micros,
    deadline: &Deadline,
) -> Option<Bound> {
    let demand = &*problem.demand;
    if demand.chunks().len() > MOST_CHUNKS || problem.topology.links().len() > MOST_LINKS {
        return None;
    }
    let sets = sets(problem, classes);
    let mut search = BestCrossing { least, best: None, deadline };
    if !demand.chunks().iter().any(|chunk| chunk.combine && chunk.holders.len() > 1) {
        let mut distances = Distances::new(problem, effort.work);
        for inside in &sets {
            let crossings = SetCrossing::of_set(inside, effort.pairs, &mut distances);
            if !search.look_at(crossings, &mut distances, false) {
                break;
            }
        }
    } else {
        let turned = Problem { topology: Arc::new(problem.topology.reversed()), ..problem.clone() };
        for (problem, backwards) in [(problem, false), (&turned, true)] {
            let mut distances = Distances::new(problem, effort.work / 2.0);
            let mut sums = SharedSums::of(problem, effort.pairs)?;
            for inside in &sets {
                let crossings = sums.crossings(inside, &mut distances);
                if !search.look_at(crossings, &mut distances, backwards) {
                    break;
                }
            }
        }
    }
    search.best
}

/// The strongest bound so far.
struct BestCrossing<'a> {
    least: Micros,
    best: Option<Bound>,
    deadline: &'a Deadline,
}

impl BestCrossing<'_> {
    /// Looks at what must cross into a set; false if there is no time for more.
    fn look_at(&mut self, crossings: Vec<SetCrossing>, distances: &mut Distances<'_>, backwards: bool) -> bool {
        for crossing in crossings {
            if distances.left <= 0.0 || self.deadline.has_passed() {
                return false;
            }
            let least = self.best.as_ref().map_or(self.least.0, |best| best.value.0) * (1.0 + SAME);
            let Some(value) = crossing.value_above(least, &mut distances.left, self.deadline) else { continue };
            let certificate = crossing.certificate(backwards);
            self.best = Some(Bound { name: "crossing", scope: Scope::ThisChunking, value: Micros(value), certificate });
        }
        distances.left > 0.0 && !self.deadline.has_passed()
    }
}

/// The sets that are tried, each as whether a rank is in it; those first into which the most must come for what their links carry.
fn sets(problem: &Problem, classes: &RankClasses) -> Vec<Vec<bool>> {
    let ranks = problem.topology.rank_count();
    let sets: Vec<Vec<bool>> = match ranks {
        0..=FEW_RANKS => {
            let of = |bits: usize| (0..ranks).map(|rank| bits >> rank & 1 == 1).collect();
            (1..(1usize << ranks) - 1).map(of).collect()
        }
        _ => {
            let (different, _) = classes.split(problem.topology.ranks());
            let alone = |one: &Rank| problem.topology.ranks().map(|rank| rank == *one).collect();
            different.iter().map(alone).chain(machine_unions(problem, classes)).collect()
        }
    };
    let mut sets: Vec<(f64, Vec<bool>)> = sets.into_iter().map(|set| (pressure(problem, &set), set)).collect();
    sets.sort_by(|a, b| b.0.total_cmp(&a.0));
    sets.into_iter().map(|(_, set)| set).collect()
}

/// The bytes that must come into a set, over what its links carry in a unit of time.
fn pressure(problem: &Problem, inside: &[bool]) -> f64 {
    let is_inside = |rank: &Rank| inside[rank.index()];
    let bytes = problem.demand.chunk_ids().zip(problem.demand.chunks()).map(|(id, chunk)| {
        let lacks = match chunk.combine {
            true => !chunk.holders.iter().all(is_inside),
            false => !chunk.holders.iter().any(is_inside),
        };
        let crosses = lacks && chunk.wanted_by.iter().any(is_inside);
        if crosses { problem.demand.bytes_of(id).0 } else { 0.0 }
    });
    let rate = problem.topology.links().iter().map(|link| match !is_inside(&link.from) && is_inside(&link.to) {
        true => 1.0 / link.beta.0,
        false => 0.0,
    });
    bytes.sum::<f64>() / rate.sum::<f64>()
}
