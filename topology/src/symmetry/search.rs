//! The search for symmetries: one path to a numbering, and for each choice on it, other choices that give an equal
//! numbering.
//!
//! The principal type is [`SymmetrySearch`]. The *base* is the list of members that were individualized on the first
//! path. From the last base point to the first, every other member of its cell is tried as its image, unless symmetries
//! already found map the base point there. So a group of billions needs few generators, and its order is the product of
//! the orbit sizes.

use super::check::SymmetryCheck;
use super::partition::{CellMember, Partition, Trace};
use super::{Colours, SymmetryGroup, join_along};
use crate::{Rank, Topology};
use petgraph::unionfind::UnionFind;

/// One choice of the first path.
struct BranchChoice {
    member: CellMember,
    /// The position of its cell before it got its own.
    cell: u32,
    /// The trace of its refinement.
    trace: Vec<u64>,
    /// The mark of the left partition before the choice.
    mark: usize,
}

pub(super) struct SymmetrySearch<'t> {
    topology: &'t Topology,
    judge: SymmetryCheck<'t>,
    left: Partition<'t>,
    right: Partition<'t>,
    /// The work spent on checking candidates.
    judged: u64,
    effort: u64,
}

/// One more choice of the right partition while an image is searched for.
struct Frame {
    left: usize,
    right: usize,
    candidates: Vec<CellMember>,
    next: usize,
}

impl<'t> SymmetrySearch<'t> {
    pub(super) fn new(topology: &'t Topology, colours: Colours<'t>, effort: u64) -> Self {
        let partition = || Partition::new(topology, colours);
        Self {
            topology,
            judge: SymmetryCheck::new(topology, colours),
            left: partition(),
            right: partition(),
            judged: 0,
            effort,
        }
    }

    fn exhausted(&self) -> bool {
        self.left.work + self.right.work + self.judged > self.effort
    }

    /// All symmetries.
    pub(super) fn group(mut self) -> SymmetryGroup {
        let ranks = self.topology.rank_count();
        let (base, mut complete) = self.first_path();
        let mut group = SymmetryGroup { ranks, generators: Vec::new(), orbit_sizes: Vec::new(), complete: true };
        let mut orbits = UnionFind::new(ranks);
        // The right partition follows the first path to the choice in question and makes another choice there.
        let mut right_marks = Vec::new();
        for choice in &base {
            right_marks.push(self.right.mark());
            self.right.individualize(choice.member, &mut Trace::Compare(&choice.trace));
        }
        for level in (0..base.len()).rev() {
            let choice = &base[level];
            self.left.undo(choice.mark);
            self.right.undo(right_marks[level]);
            // Resources that differ in no rank: exchanging them renumbers nothing.
            if choice.member as usize >= ranks {
                continue;
            }
            complete &= self.images_of(&base, level, &mut orbits, &mut group);
            let home = orbits.find(choice.member as usize);
            let cell = self.left.members_of(choice.cell).to_vec();
            group.orbit_sizes.push(cell.iter().filter(|&&rank| orbits.find(rank as usize) == home).count());
        }
        group.complete = complete;
        group
    }

    /// Individualizes members until every rank and resource has its own cell; false if the effort does not suffice.
    fn first_path(&mut self) -> (Vec<BranchChoice>, bool) {
        let mut base = Vec::new();
        let mut start = 0;
        while let Some(cell) = self.left.undecided(start) {
            if self.exhausted() {
                // Undecided members stay undecided: nothing is searched below this level, and everything found above is
                // still checked.
                return (base, false);
            }
            start = cell;
            let members = self.left.members_of(cell);
            let member = members.iter().copied().min().expect("an undecided cell has members");
            let mark = self.left.mark();
            let mut trace = Vec::new();
            self.left.individualize(member, &mut Trace::Record(&mut trace));
            base.push(BranchChoice { member, cell, trace, mark });
        }
        (base, true)
    }

    /// Finds generators that map the base point of `level` to every possible place; false if the effort ran out.
    fn images_of(
        &mut self,
        base: &[BranchChoice],
        level: usize,
        orbits: &mut UnionFind<usize>,
        group: &mut SymmetryGroup,
    ) -> bool {
        let point = base[level].member;
        let mut candidates = self.right.members_of(base[level].cell).to_vec();
        candidates.sort_unstable();
        let mut refused: Vec<usize> = Vec::new();
        for candidate in candidates {
            let orbit = orbits.find(candidate as usize);
            if orbit == orbits.find(point as usize) || refused.iter().any(|&other| orbits.find(other) == orbit) {
                continue;
            }
            if self.exhausted() {
                return false;
            }
            match self.image(base, level, candidate) {
                Some(renumbering) => {
                    join_along(orbits, &renumbering);
                    group.generators.push(renumbering);
                }
                None => refused.push(candidate as usize),
            }
        }
        !self.exhausted()
    }

    /// A symmetry that fixes the base before `level` and sends the base point there to `candidate`.
    fn image(&mut self, base: &[BranchChoice], level: usize, candidate: CellMember) -> Option<Vec<Rank>> {
        let frame = |left: usize, right: usize, candidates| Frame { left, right, candidates, next: 0 };
        let mut stack = vec![frame(self.left.mark(), self.right.mark(), vec![candidate])];
        let mut found = None;
        while let Some(top) = stack.last_mut() {
            self.left.undo(top.left);
            self.right.undo(top.right);
            if found.is_some() || top.next == top.candidates.len() || self.exhausted() {
                stack.pop();
                continue;
            }
            let candidate = top.candidates[top.next];
            top.next += 1;
            let depth = level + stack.len() - 1;
            let choice = &base[depth];
            let mut expected = Trace::Compare(&choice.trace);
            if !self.right.individualize(candidate, &mut expected) || !expected.is_finished() {
                continue;
            }
            self.left.individualize(choice.member, &mut Trace::Compare(&choice.trace));
            found = self.guess();
            let Some(next) = base.get(depth + 1).filter(|_| found.is_none()) else { continue };
            let mut candidates = self.right.members_of(next.cell).to_vec();
            // Members that need not move stay in place.
            candidates.sort_unstable_by_key(|&member| (member != next.member, member));
            stack.push(frame(self.left.mark(), self.right.mark(), candidates));
        }
        found
    }

    /// A renumbering that both partitions suggest: cells of one rank map to each other, ranks in the same larger cell
    /// stay, and ranks that lost their place close the cycle. It is checked before it is used.
    fn guess(&mut self) -> Option<Vec<Rank>> {
        let ranks = self.topology.rank_count();
        self.judged += ranks as u64;
        let mut image: Vec<Option<u32>> = vec![None; ranks];
        let mut source: Vec<Option<u32>> = vec![None; ranks];
        for rank in 0..ranks as u32 {
            let cell = self.left.cell_of(rank);
            let stays = || (self.right.cell_of(rank) == cell).then_some(rank);
            if let Some(to) = self.left.only(cell).map_or_else(stays, |_| self.right.only(cell)) {
                image[rank as usize] = Some(to);
                source[to as usize] = Some(rank);
            }
        }
        for (rank, image) in image.iter_mut().enumerate().filter(|(_, image)| image.is_none()) {
            let mut end = rank;
            while let Some(before) = source[end] {
                end = before as usize;
                self.judged += 1;
            }
            *image = Some(end as u32);
            source[end] = Some(rank as u32);
        }
        let renumbering: Vec<Rank> = image.into_iter().flatten().map(Rank).collect();
        let verdict = self.judge.judge(&renumbering);
        self.judged += verdict.as_ref().map_or(ranks, |moves| moves.links.len()) as u64;
        verdict.is_ok().then_some(renumbering)
    }

    /// One symmetry with the given images.
    pub(super) fn with_images(mut self, images: &[(Rank, Rank)]) -> Option<Vec<Rank>> {
        for (from, to) in images {
            let mut trace = Vec::new();
            let cell = self.left.cell_of(from.0);
            if self.right.cell_of(to.0) != cell {
                return None;
            }
            self.left.individualize(from.0, &mut Trace::Record(&mut trace));
            let mut expected = Trace::Compare(&trace);
            if !self.right.individualize(to.0, &mut expected) || !expected.is_finished() {
                return None;
            }
        }
        let origin = self.left.mark();
        let (base, _) = self.first_path();
        self.left.undo(origin);
        if let Some(renumbering) = self.guess() {
            return Some(renumbering);
        }
        let first = base.first()?;
        let mut candidates = self.right.members_of(first.cell).to_vec();
        candidates.sort_unstable();
        candidates.into_iter().find_map(|candidate| self.image(&base, 0, candidate))
    }
}
