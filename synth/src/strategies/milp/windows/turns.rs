//! Who leaves first, where two messages may use a link or a resource.
//!
//! The principal functions are [`FreedWindow::keep_turns`] and [`FreedWindow::take_turns`].

use super::model::{FreedWindow, MergedDelivery, Sum};
use super::places::{BusyPlace, places};
use crate::solver::Column;
use std::collections::BTreeMap;
use topology::LinkId;

/// The most pairs whose order is open.
const MOST_PAIRS: usize = 400;

impl FreedWindow<'_> {
    /// How long the message of `own` over `link` keeps a place busy, with what is merged into it.
    fn busy(&self, own: usize, link: LinkId, place: BusyPlace) -> (f64, Vec<(Column, f64)>) {
        let bytes = self.all[own].bytes;
        let alone = place.busy(self.problem, link, bytes);
        let merged = self.columns[own].merged.iter().filter(|other| other.link == link);
        let more = |other: &MergedDelivery| place.busy(self.problem, link, bytes + other.bytes) - alone;
        (alone, merged.map(|other| (other.merge, more(other))).collect())
    }

    /// start\[next\] ≥ start\[i\] + busy, for messages that are not free and follow each other at a link or a resource.
    pub(super) fn keep_turns(&mut self) {
        let mut last: BTreeMap<BusyPlace, usize> = BTreeMap::new();
        for own in (0..self.all.len()).filter(|&own| !self.all[own].is_free).collect::<Vec<_>>() {
            for place in places(self.problem, self.all[own].ways[0].link).collect::<Vec<_>>() {
                if let Some(before) = last.insert(place, own) {
                    let (busy, merged) = self.busy(before, self.all[before].ways[0].link, place);
                    let sum = Sum::of(self.columns[before].start).plus(busy, merged);
                    self.no_sooner(self.columns[own].start, sum, 0.0, &[]);
                }
            }
        }
    }

    /// For each link or resource that f over l and i over k share: start\[i\] ≥ start\[f\] + busy, or the other way round,
    /// unless one of them does not go there. Returns whether few enough orders are open.
    pub(super) fn take_turns(&mut self) -> bool {
        let free: Vec<usize> = (0..self.all.len()).filter(|&own| self.all[own].is_free).collect();
        for &one in &free {
            // The pairs of `one` with messages that keep their turns at a place, in these turns.
            let mut in_turn: BTreeMap<BusyPlace, Column> = BTreeMap::new();
            for other in 0..self.all.len() {
                if other == one || self.all[other].is_free && other < one {
                    continue;
                }
                for (first, second, place) in self.meetings(one, other) {
                    let links = [self.all[one].ways[first].link, self.all[other].ways[second].link];
                    let (ahead, behind) = ((one, links[0]), (other, links[1]));
                    let over = [(one, first), (other, second)]
                        .map(|(own, way)| self.columns[own].over.get(way).copied())
                        .into_iter()
                        .flatten()
                        .collect::<Vec<_>>();
                    match [self.can_follow(behind, ahead, place), self.can_follow(ahead, behind, place)] {
                        [true, true] => {}
                        [true, false] => {
                            self.in_turn(ahead, behind, place, &over, None);
                            continue;
                        }
                        [false, _] => {
                            self.in_turn(behind, ahead, place, &over, None);
                            continue;
                        }
                    }
                    if self.before.len() > MOST_PAIRS {
                        return false;
                    }
                    let model = &mut self.model;
                    let before = *self.before.entry((one, other)).or_insert_with(|| model.binary());
                    self.in_turn(ahead, behind, place, &over, Some((before, true)));
                    self.in_turn(behind, ahead, place, &over, Some((before, false)));
                    if self.all[other].is_free {
                        continue;
                    }
                    // Who leaves before one of them leaves before the next.
                    if let Some(earlier) = in_turn.insert(place, before).filter(|&earlier| earlier != before) {
                        self.model.at_most([(earlier, 1.0), (before, -1.0)], 0.0);
                    }
                }
            }
        }
        true
    }

    /// The places where the messages of two deliveries may meet, with their ways.
    fn meetings(&self, one: usize, other: usize) -> Vec<(usize, usize, BusyPlace)> {
        let mut found = Vec::new();
        for (first, way) in self.all[one].ways.iter().enumerate() {
            for (second, way_of_other) in self.all[other].ways.iter().enumerate() {
                let theirs = || places(self.problem, way_of_other.link);
                let shared = places(self.problem, way.link).filter(|place| theirs().any(|it| it == *place));
                found.extend(shared.map(|place| (first, second, place)));
            }
        }
        found
    }

    /// Whether the message of `after` may leave when that of `first` no longer keeps the place busy.
    fn can_follow(&self, (after, _): (usize, LinkId), (first, link): (usize, LinkId), place: BusyPlace) -> bool {
        let busy = place.busy(self.problem, link, self.all[first].bytes);
        self.all[first].head + busy <= self.all[after].latest * (1.0 + 1e-9)
    }

    /// start\[second\] ≥ start\[first\] + busy, if `order` has the given value.
    fn in_turn(
        &mut self,
        (first, link): (usize, LinkId),
        (second, _): (usize, LinkId),
        place: BusyPlace,
        over: &[Column],
        order: Option<(Column, bool)>,
    ) {
        let (busy, merged) = self.busy(first, link, place);
        let most = busy + merged.iter().map(|(_, more)| more).sum::<f64>();
        let big = (self.all[first].latest + most - self.all[second].head).max(0.0);
        if big <= 0.0 {
            return;
        }
        let mut sum = Sum::of(self.columns[first].start).plus(busy, merged);
        sum = match order {
            // One value relaxes nothing, the other one relaxes all.
            Some((order, true)) => sum.plus(-big, [(order, big)]),
            Some((order, false)) => sum.plus(0.0, [(order, -big)]),
            None => sum,
        };
        self.no_sooner(self.columns[second].start, sum, big, over);
    }
}
