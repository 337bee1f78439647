//! Distances between ranks, each computed once, and the work that may still be done.

use crate::problem::Problem;
use crate::problem::distance::PathTree;
use schedule::RankSet;
use std::collections::BTreeMap;
use std::rc::Rc;
use topology::{Bytes, LinkId, Rank, Topology};

/// The ranks among which a way may go, where it begins, and the bits of the size.
type WayKey = (Rc<[bool]>, RankSet, u64);

/// Distances in time, by what a message of the given size takes over an empty link.
pub(super) struct Distances<'a> {
    pub(super) problem: &'a Problem,
    reversed: Topology,
    from: BTreeMap<WayKey, Rc<[f64]>>,
    to: BTreeMap<(Rank, u64), Rc<[f64]>>,
    /// The work that is left, in pairs of combinations and parts of them.
    pub(super) left: f64,
}

/// A visit to a link in a search for shortest ways takes as long as so many pairs.
const PAIRS_PER_LINK: f64 = 8.0;

impl<'a> Distances<'a> {
    pub(super) fn new(problem: &'a Problem, work: f64) -> Self {
        let reversed = problem.topology.reversed();
        Self { problem, reversed, from: BTreeMap::new(), to: BTreeMap::new(), left: work }
    }

    /// The time from the nearest of `holders` to each rank, over ranks of `among` only.
    pub(super) fn from(&mut self, among: &Rc<[bool]>, holders: &RankSet, bytes: Bytes) -> Rc<[f64]> {
        let problem = self.problem;
        let left = &mut self.left;
        let compute = || {
            *left -= PAIRS_PER_LINK * problem.topology.links().len() as f64;
            let length = |id: LinkId| {
                let link = problem.topology.link(id);
                let stays = among[link.from.index()] && among[link.to.index()];
                (stays && problem.allows_link(id)).then(|| link.transfer_time(bytes).0)
            };
            let sources = holders.iter().copied().filter(|rank| among[rank.index()]);
            PathTree::new(&problem.topology, sources, length).distance.into()
        };
        self.from.entry((among.clone(), holders.clone(), bytes.0.to_bits())).or_insert_with(compute).clone()
    }

    /// The time from each rank to `target`.
    pub(super) fn to(&mut self, target: Rank, bytes: Bytes) -> Rc<[f64]> {
        let (problem, reversed, left) = (self.problem, &self.reversed, &mut self.left);
        let compute = || {
            *left -= PAIRS_PER_LINK * problem.topology.links().len() as f64;
            let length = |id: LinkId| problem.allows_link(id).then(|| reversed.link(id).transfer_time(bytes).0);
            PathTree::new(reversed, [target], length).distance.into()
        };
        self.to.entry((target, bytes.0.to_bits())).or_insert_with(compute).clone()
    }
}
