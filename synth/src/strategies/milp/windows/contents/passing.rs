//! What comes to a rank leaves it or stays.
//!
//! The principal function is [`ContentsWindow::pass_on`].

use super::groups::GroupKind;
use super::{ContentsWindow, MOST_COLUMNS, Waiting};
use crate::solver::Column;
use schedule::TransferKind;
use std::collections::{BTreeMap, BTreeSet};
use topology::Rank;

impl ContentsWindow<'_> {
    /// What leaves a rank has come there or begins there, and what is wanted stays. Returns whether few enough columns are needed.
    pub(super) fn pass_on(&mut self, free: &BTreeSet<usize>) -> bool {
        for &group in free {
            let pairs = self.pairs(group);
            if self.model.columns() + pairs.len() > MOST_COLUMNS {
                return false;
            }
            match self.groups.all[group].kind {
                GroupKind::Alike => self.move_on(group, pairs),
                GroupKind::Copied => self.along_tree(group, TransferKind::Copy, &pairs),
                GroupKind::Summed => {
                    self.choose_root(group);
                    self.along_tree(group, TransferKind::Reduce, &pairs);
                    self.along_tree(group, TransferKind::Copy, &pairs);
                    self.complete(group, &pairs);
                }
            }
        }
        true
    }

    /// The pairs of messages of which one may bring what the other one carries on, of a group.
    fn pairs(&self, group: usize) -> Vec<(usize, usize, Waiting)> {
        let carries = |message: usize| self.amounts[message].contains_key(&group);
        let all = self.waiting.iter().map(|(&(before, after), &waiting)| (before, after, waiting));
        all.filter(|&(before, after, _)| carries(before) && carries(after)).collect()
    }

    /// The messages of a kind that may carry a group, with their columns.
    fn carriers(&self, group: usize, kind: TransferKind) -> Vec<(usize, Column)> {
        let of = |(number, amounts): (usize, &BTreeMap<usize, Column>)| Some((number, *amounts.get(&group)?));
        let all = self.amounts.iter().enumerate().filter_map(of);
        all.filter(|&(number, _)| self.messages[number].kind == kind).collect()
    }

    /// Σ root\[r\] = 1.
    fn choose_root(&mut self, index: usize) {
        for &rank in self.groups.all[index].holders.iter() {
            self.roots.insert((index, rank), self.model.binary());
        }
        let roots: Vec<(Column, f64)> =
            self.roots.range((index, Rank(0))..(index + 1, Rank(0))).map(|(_, &root)| (root, 1.0)).collect();
        self.model.equal(roots, 1.0);
    }

    /// Of copies: amount\[b\] ≤ Σ passed\[a,b\], passed\[a,b\] ≤ amount\[a\], and each rank gets the chunk once at most.
    ///
    /// What is added goes the other way along its tree: amount\[a\] ≤ Σ passed\[a,b\], passed\[a,b\] ≤ amount\[b\], and each rank
    /// sends the chunk once. At the root of a sum, nothing has to come before or leave afterwards.
    fn along_tree(&mut self, index: usize, kind: TransferKind, pairs: &[(usize, usize, Waiting)]) {
        let (topology, group) = (&self.problem.topology, &self.groups.all[index]);
        // Of two messages, or the two ends of one, the one that is nearer to the root comes first.
        let inner_first = |before, after| if kind == TransferKind::Copy { (before, after) } else { (after, before) };
        let mut supply: BTreeMap<usize, Vec<(Column, f64)>> = BTreeMap::new();
        for &(before, after, waiting) in pairs {
            if [before, after].iter().any(|&message| self.messages[message].kind != kind) {
                continue;
            }
            let (inner, outer) = inner_first(before, after);
            let on = self.amounts[inner][&index];
            let passed = match waiting {
                Waiting::Always => on,
                Waiting::Open(waits) => {
                    let passed = self.model.continuous(0.0, 1.0);
                    self.model.at_most([(passed, 1.0), (waits, -1.0)], 0.0);
                    self.model.at_most([(passed, 1.0), (on, -1.0)], 0.0);
                    passed
                }
            };
            supply.entry(outer).or_default().push((passed, -1.0));
        }
        let mut once: BTreeMap<Rank, Vec<(Column, f64)>> = BTreeMap::new();
        for (message, amount) in self.carriers(index, kind) {
            let link = topology.link(self.messages[message].link);
            let (inner, outer) = match kind {
                TransferKind::Copy => (link.from, link.to),
                TransferKind::Reduce => (link.to, link.from),
            };
            let root = self.roots.get(&(index, inner)).map(|&root| (root, -1.0));
            if root.is_some() || !group.holders.has(inner) {
                let supply = supply.remove(&message).unwrap_or_default();
                self.model.at_most(supply.into_iter().chain([(amount, 1.0)]).chain(root), 0.0);
            }
            once.entry(outer).or_default().push((amount, 1.0));
        }
        let ends: Vec<Rank> = match kind {
            TransferKind::Copy => group.wanted.keys().copied().collect(),
            TransferKind::Reduce => group.holders.to_vec(),
        };
        for rank in ends {
            let root = self.roots.get(&(index, rank)).map(|&root| (root, 1.0));
            self.model.equal(once.remove(&rank).unwrap_or_default().into_iter().chain(root), 1.0);
        }
        once.into_values().for_each(|all| self.model.at_most(all, 1.0));
    }

    /// What leaves the root of a sum has all of it: amount\[a\] + amount\[b\] + root\[r\] ≤ 2 + waits\[a,b\].
    fn complete(&mut self, index: usize, pairs: &[(usize, usize, Waiting)]) {
        let topology = &self.problem.topology;
        let waiting: BTreeMap<(usize, usize), Waiting> =
            pairs.iter().map(|&(before, after, waiting)| ((before, after), waiting)).collect();
        let (adds, copies) = (self.carriers(index, TransferKind::Reduce), self.carriers(index, TransferKind::Copy));
        for &(before, added) in &adds {
            let at = topology.link(self.messages[before].link).to;
            let Some(&root) = self.roots.get(&(index, at)) else { continue };
            for &(after, copied) in &copies {
                if topology.link(self.messages[after].link).from != at || self.may_cross(before, after) {
                    continue;
                }
                let waits = match waiting.get(&(before, after)) {
                    Some(Waiting::Always) => continue,
                    Some(Waiting::Open(waits)) => Some((*waits, -1.0)),
                    None => None,
                };
                self.model.at_most([(added, 1.0), (copied, 1.0), (root, 1.0)].into_iter().chain(waits), 2.0);
            }
        }
    }

    /// amount\[a\] = Σ passed\[a,b\] + stays\[a\], amount\[b\] = Σ passed\[a,b\], and as many stay as are wanted.
    fn move_on(&mut self, index: usize, pairs: Vec<(usize, usize, Waiting)>) {
        let (topology, group) = (&self.problem.topology, &self.groups.all[index]);
        let most = group.most();
        let mut gone: BTreeMap<usize, Vec<(Column, f64)>> = BTreeMap::new();
        let mut come: BTreeMap<usize, Vec<(Column, f64)>> = BTreeMap::new();
        for (before, after, waiting) in pairs {
            let passed = self.model.continuous(0.0, most);
            if let Some(waits) = waiting.column() {
                self.model.at_most([(passed, 1.0), (waits, -most)], 0.0);
            }
            gone.entry(before).or_default().push((passed, -1.0));
            come.entry(after).or_default().push((passed, -1.0));
        }
        let mut stay: BTreeMap<_, Vec<(Column, f64)>> = BTreeMap::new();
        for (message, amount) in self.carriers(index, TransferKind::Copy) {
            let link = topology.link(self.messages[message].link);
            let mut leaves = gone.remove(&message).unwrap_or_default();
            if let Some(wanted) = group.wanted.get(&link.to) {
                let stays = self.model.continuous(0.0, wanted.len() as f64);
                leaves.push((stays, -1.0));
                stay.entry(link.to).or_default().push((stays, 1.0));
            }
            self.model.equal(leaves.into_iter().chain([(amount, 1.0)]), 0.0);
            if !group.holders.has(link.from) {
                let come = come.remove(&message).unwrap_or_default();
                self.model.equal(come.into_iter().chain([(amount, 1.0)]), 0.0);
            }
        }
        for (rank, wanted) in &group.wanted {
            self.model.equal(stay.remove(rank).unwrap_or_default(), wanted.len() as f64);
        }
    }
}
